"""New models by name and by shape."""

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from headlens.errors import OptionError
from headlens.learning.new_models import (
    byte_tokenizer,
    new_model,
    shape_of,
    wordpiece_tokenizer,
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    """A vocabulary of some words."""
    return wordpiece_tokenizer(["the cat sat on the mat", "a dog ran"] * 20, 60, 64)


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_a_masked_model_has_the_shape_that_its_name_gives(family: str, tokenizer: PreTrainedTokenizerBase) -> None:
    model = new_model(f"{family}-3x4x64", "mlm", tokenizer, 64, seed=0)
    config = model.config
    found = (config.num_hidden_layers, config.num_attention_heads, config.hidden_size, config.intermediate_size)
    assert found == (3, 4, 64, 256)
    assert config.vocab_size == len(tokenizer)
    assert shape_of(f"{family}-3x4x64", len(tokenizer), 64).hidden_size == 64


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_decoder_has_the_shape_that_its_name_gives(family: str) -> None:
    tokenizer = byte_tokenizer(["the cat sat on the mat", "a dog ran"] * 20, 300, 64)
    assert byte_tokenizer(["the cat sat on the mat", "a dog ran"] * 20, 300, 64).get_vocab() == tokenizer.get_vocab()
    end = tokenizer.eos_token_id
    assert tokenizer("the cat")["input_ids"][0] == end == tokenizer.bos_token_id == tokenizer.pad_token_id
    assert tokenizer.decode(tokenizer("The ünknown cat")["input_ids"][1:]) == "The ünknown cat"
    model = new_model(f"{family}-3x4x64", "causal-lm", tokenizer, 64, seed=0)
    config = model.config
    assert (config.num_hidden_layers, config.num_attention_heads, config.hidden_size) == (3, 4, 64)
    inner = model.transformer.h[0].mlp.c_fc.nf if family == "gpt2" else model.model.layers[0].mlp.up_proj.out_features
    assert inner == 256
    assert config.vocab_size == len(tokenizer)
    assert config.max_position_embeddings == 64
    again = new_model(f"{family}-3x4x64", "causal-lm", tokenizer, 64, seed=0).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in model.state_dict().items())
    with pytest.raises(OptionError, match="too small for 256 bytes"):
        byte_tokenizer(["a"], 256, 64)


def test_a_translator_has_the_shape_that_its_name_gives(tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.eos_token = tokenizer.sep_token
    model = new_model("marian-3x8x128", "translation", tokenizer, 64, seed=0)
    for side in (model.model.encoder, model.model.decoder):
        assert len(side.layers) == 3
        assert side.layers[0].self_attn.num_heads == 8
        assert tuple(side.layers[0].fc1.weight.shape) == (512, 128)


def test_a_shape_can_be_that_of_a_named_model() -> None:
    named, shaped = (shape_of(name, 8000, 512).to_dict() for name in ("marian-small", "marian-3x8x256"))
    assert named == shaped


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bert-0x8x128", "none of them may be 0"),
        ("bert-3x8x100", "3 layers of 8 heads, 100 wide, do not make a valid model"),
        ("marian-3x1x127", "even for marian"),
        ("llama-3x4x36", "of twice HEADS for llama"),
        ("bert-3x8", "new:bert-3x8 is not a known model"),
        ("marian-huge", "new:marian-LAYERSxHEADSxWIDTH"),
        ("gpt-3x8x128", "new:gpt-3x8x128 is not a known model"),
    ],
)
def test_what_is_no_shape_is_refused(name: str, said: str) -> None:
    with pytest.raises(OptionError) as found:
        shape_of(name, 8000, 512)
    assert said in f"{found.value}"


def test_a_shape_of_the_other_kind_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(OptionError, match=r"new:marian-3x8x128 is not a known model\.\n.*new:bert-LAYERS"):
        new_model("marian-3x8x128", "mlm", tokenizer, 64, seed=0)
    with pytest.raises(OptionError, match=r"new:bert-3x8x128 is not a known model\.\n.*new:marian-LAYERS"):
        new_model("bert-3x8x128", "translation", tokenizer, 64, seed=0)
