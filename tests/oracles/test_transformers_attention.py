"""The eager reference on tiny models of every kind, with random weights."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from naive_samples import make_seq
from transformers import (
    AlbertConfig,
    AlbertModel,
    BartConfig,
    BartModel,
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers_attention import eager_attention, unpadded

from headlens.attention.edits_and_observers import Tokens

SOURCE, TARGET = [3, 4, 5, 6, 7], [2, 8, 9]
SHAPE = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16}
SPECIAL = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 2}
PAIR = SPECIAL | {"vocab_size": 40, "d_model": 16, "encoder_layers": 3, "decoder_layers": 2}
PAIR |= {"encoder_attention_heads": 2, "decoder_attention_heads": 4, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
T5 = {"vocab_size": 40, "d_model": 16, "d_kv": 8, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 4, "d_ff": 16}

MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "bert": lambda: BertModel(BertConfig(**SHAPE)),
    "albert": lambda: AlbertModel(AlbertConfig(**SHAPE, embedding_size=8)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=16, n_layer=3, n_head=2, **SPECIAL)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=1)),
    "marian": lambda: MarianMTModel(MarianConfig(**PAIR)),
    "bart": lambda: BartModel(BartConfig(**PAIR)),
    "t5": lambda: T5ForConditionalGeneration(T5Config(**T5, **SPECIAL)),
}
ENCODERS, DECODERS, PAIRS = ("bert", "albert"), ("gpt2", "llama"), ("marian", "bart", "t5")


def model(name: str) -> PreTrainedModel:
    """With weights far from 0, so that the attention is far from even."""
    torch.manual_seed(0)
    made = MODELS[name]()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return made


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_has_one_stack_and_sees_all_keys(name: str) -> None:
    found = eager_attention(model(name), SOURCE)
    assert list(found) == ["encoder"]
    assert found["encoder"].shape == (3, 2, 5, 5)
    assert found["encoder"].dtype == np.float32
    assert (found["encoder"] > 0).all()
    np.testing.assert_allclose(found["encoder"].sum(-1), 1, atol=1e-6)
    assert np.ptp(found["encoder"], axis=0).max() > 1e-3  # layers differ, also those that share their weights


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_is_causal_and_named_by_the_caller(name: str) -> None:
    found = eager_attention(model(name), SOURCE, stack="decoder")
    assert list(found) == ["decoder"]
    assert found["decoder"].shape == (3, 2, 5, 5)
    assert ((found["decoder"] > 0) == np.tri(5, dtype=bool)).all()


@pytest.mark.parametrize("name", PAIRS)
def test_an_encoder_decoder_has_three_stacks(name: str) -> None:
    found = eager_attention(model(name), SOURCE, decoder_input_ids=TARGET)
    heads = 4 if name == "t5" else 2
    shapes = {"encoder": (3, heads, 5, 5), "decoder": (2, 4, 3, 3), "cross": (2, 4, 3, 5)}
    assert {stack: weights.shape for stack, weights in found.items()} == shapes
    assert ((found["decoder"] > 0) == np.tri(3, dtype=bool)).all()
    assert (found["encoder"] > 0).all()
    assert (found["cross"] > 0).all()
    for weights in found.values():
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)


def test_the_first_layer_of_bert_is_softmax_of_queries_times_keys() -> None:
    bert = model("bert").eval()
    attention = bert.encoder.layer[0].attention.self
    with torch.no_grad():
        states = bert.embeddings(torch.tensor([SOURCE]), token_type_ids=torch.tensor([[0, 0, 0, 1, 1]]))[0].numpy()
    projected = [
        states @ projection.weight.detach().numpy().T + projection.bias.detach().numpy()
        for projection in (attention.query, attention.key)
    ]
    found = eager_attention(bert, SOURCE, token_type_ids=[0, 0, 0, 1, 1])["encoder"][0]
    for head in range(2):
        queries, keys = (p[:, 8 * head : 8 * head + 8] for p in projected)
        scores = np.exp(queries @ keys.T / np.sqrt(8))
        np.testing.assert_allclose(found[head], scores / scores.sum(1, keepdims=True), atol=1e-6)


def test_segments_are_passed_on() -> None:
    bert = model("bert")
    with_segments = eager_attention(bert, SOURCE, token_type_ids=[0, 0, 0, 1, 1])["encoder"]
    assert np.abs(with_segments - eager_attention(bert, SOURCE)["encoder"]).max() > 1e-3


@pytest.mark.parametrize("name", MODELS)
def test_the_model_given_stays_as_it_is(name: str) -> None:
    given = model(name).to(torch.bfloat16)
    before = given.config._attn_implementation
    target = TARGET if name in PAIRS else None
    first, second = (eager_attention(given, SOURCE, decoder_input_ids=target) for _ in range(2))
    assert given.config._attn_implementation == before != "eager"
    assert given.training  # dropout is off all the same: both runs agree
    assert {parameter.dtype for parameter in given.parameters()} == {torch.bfloat16}
    for stack in first:
        np.testing.assert_array_equal(first[stack], second[stack])


def test_unpadded_keeps_the_real_tokens_on_either_side_of_the_padding() -> None:
    # "[CLS] a b . [SEP]" with padding after it, and padding before "[CLS] c [SEP]".
    ids = torch.tensor([[8, 5, 6, 7, 9, 1], [1, 1, 1, 8, 5, 9]])
    none = torch.zeros_like(ids, dtype=torch.bool)
    tokens = Tokens(
        real=ids != 1,
        special=(ids == 1) | (ids == 8) | (ids == 9),
        cls=ids == 8,
        sep=ids == 9,
        bos=none,
        eos=none,
        punct=ids == 7,
        word=torch.tensor([[-1, 0, 0, 1, -1, -1], [-1, -1, -1, -1, 0, -1]]),
        n_words=torch.tensor([2, 1]),
        n_pieces=torch.tensor([[2, 1], [1, 0]]),
    )
    assert unpadded(tokens, 0) == make_seq([-1, 0, 0, 1, -1], cls=[0], sep=[4], punct=[3])
    assert unpadded(tokens, 1) == make_seq([-1, 0, -1], cls=[0], sep=[2])
