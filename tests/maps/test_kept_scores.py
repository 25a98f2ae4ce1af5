"""What the weights of single sentences are made of: queries, keys and the rest, against the models themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from saved import build, sentence
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from headlens.attention.attach_edit import attach_edit
from headlens.attention.edits_and_observers import CallContext, Edit
from headlens.corpora.sentence import Example
from headlens.heads import Head
from headlens.maps.selection import Selection
from headlens.maps.sentence_attention import AttentionMaps, collect_attention
from headlens.models.loading import LoadedModel
from headlens.pages.score_parts import ScoreParts

SENTENCE = Example(sentence("unbelievable zzyzx cats sleep ."))
SHORT = Example(sentence("She sold nothing"))
ROOM = 10**6


@pytest.fixture(scope="module")
def bert(wordpiece_tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    return LoadedModel("tiny", build("BertModel", len(wordpiece_tokenizer)), wordpiece_tokenizer, None)


def kept(loaded: LoadedModel, example: Example = SENTENCE, **how: Any) -> AttentionMaps:
    (maps,) = collect_attention(loaded, [example], score_room=ROOM, **how)
    return maps


def decoder(bert: LoadedModel, name: str, **settings: Any) -> LoadedModel:
    model = build(name, len(bert.tokenizer or ()), **{"num_key_value_heads": 1, **settings})
    return LoadedModel(name, model, bert.tokenizer, None)


def own(loaded: LoadedModel, *modules: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """The weights that the model itself returns, by layer, and what some of its modules gave: (tokens, features)."""
    assert loaded.tokenizer is not None
    outputs: list[Tensor] = []
    hooks = [module.register_forward_hook(lambda *seen: outputs.append(seen[2][0])) for module in modules]
    loaded.model.set_attn_implementation("eager")
    with torch.no_grad():
        ids = loaded.tokenizer(SENTENCE.source.text, return_tensors="pt")["input_ids"]
        weights = loaded.model(input_ids=ids, output_attentions=True).attentions
    for hook in hooks:
        hook.remove()
    return [layer[0] for layer in weights], outputs


def by_head(features: Tensor, heads: int) -> Tensor:
    """(heads, tokens, d) of (tokens, features)."""
    return features.unflatten(-1, (heads, -1)).transpose(0, 1)


def close(ours: Any, theirs: Tensor, within: float = 1e-5) -> None:
    torch.testing.assert_close(torch.as_tensor(ours).double(), theirs.double(), rtol=0, atol=within)


def layers(maps: AttentionMaps, stack: Any) -> Sequence[ScoreParts]:
    return maps.scores[stack]


def test_queries_and_keys_of_bert_give_its_weights(bert: LoadedModel) -> None:
    attention = bert.model.encoder.layer[1].attention.self
    weights, (query, key) = own(bert, attention.query, attention.key)
    parts = layers(kept(bert), "encoder")
    assert [(one.layer, one.heads, one.shared_by) for one in parts] == [(0, [0, 1], 1), (1, [0, 1], 1)]
    close(parts[1].queries, by_head(query, 2))
    close(parts[1].keys, by_head(key, 2))
    for one, theirs in zip(parts, weights, strict=True):
        assert (one.rest == 0).all()
        # From the products alone, by the formula of the paper
        products = torch.einsum("hqd,hkd->hqk", torch.tensor(one.queries), torch.tensor(one.keys)).double()
        close((products / 8**0.5).softmax(-1), theirs)


def test_queries_and_keys_of_llama_are_those_after_rotation_and_heads_share_keys(bert: LoadedModel) -> None:
    llama = decoder(bert, "LlamaModel")
    attention = llama.model.layers[1].self_attn
    weights, (query, key) = own(llama, attention.q_proj, attention.k_proj)
    (_, parts) = layers(kept(llama), "decoder")
    assert parts.shared_by == 2
    # The two halves of a vector are turned, pair by pair, by position / 10000^(2i / d) (Su et al. 2021).
    d, length = 8, len(query)
    angles = torch.arange(length)[:, None] / 10_000 ** (torch.arange(d // 2) * 2 / d)

    def turned(vectors: Tensor) -> Tensor:
        first, second = vectors[..., : d // 2], vectors[..., d // 2 :]
        parts = first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()
        return torch.cat(parts, -1)

    close(parts.queries, turned(by_head(query, 2)), 1e-4)
    close(parts.keys, turned(by_head(key, 1)).expand(2, -1, -1), 1e-4)
    assert torch.equal(torch.tensor(parts.rest) == -torch.inf, torch.ones(2, length, length).triu(1).bool())
    products = torch.einsum("hqd,hkd->hqk", torch.tensor(parts.queries), torch.tensor(parts.keys)).double() / d**0.5
    close(products.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf).softmax(-1), weights[1])


def test_the_rest_of_t5_is_its_position_bias(bert: LoadedModel) -> None:
    model = build("T5EncoderModel", len(bert.tokenizer or ()))
    t5 = LoadedModel("t5", model, bert.tokenizer, None)
    bias = model.encoder.block[0].layer[0].SelfAttention
    weights, _ = own(t5)
    for one, theirs in zip(layers(kept(t5), "encoder"), weights, strict=True):
        assert one.scaling == 1
        length = theirs.shape[-1]
        with torch.no_grad():
            expected = bias.compute_bias(length, length)[0]
        close(one.rest, expected - expected.amax(-1, keepdim=True))
        close(one.weights(), theirs)


def test_the_rest_of_gemma_is_what_its_cap_takes(bert: LoadedModel) -> None:
    settings = {"head_dim": 8, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8}
    gemma = decoder(bert, "Gemma2Model", **settings)
    weights, _ = own(gemma)
    for one, theirs in zip(layers(kept(gemma), "decoder"), weights, strict=True):
        scores = torch.tensor(one.products())
        rest = (2 * (scores / 2).tanh() - scores).masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        close(one.rest, rest - rest.amax(-1, keepdim=True), 1e-4)
        close(one.weights(), theirs)


def test_sinks_of_gpt_oss_take_what_is_missing(bert: LoadedModel) -> None:
    oss = decoder(bert, "GptOssForCausalLM", head_dim=8)
    weights, _ = own(oss)
    for layer, (one, theirs) in enumerate(zip(layers(kept(oss), "decoder"), weights, strict=True)):
        sinks = oss.model.model.layers[layer].self_attn.sinks.detach().double()[:, None]
        length = theirs.shape[-1]
        scores = torch.tensor(one.products()).masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
        raised = scores.exp().sum(-1)
        close(one.sums, raised / (raised + sinks.exp()))
        assert set(one.rest.ravel().tolist()) == {0, -float("inf")}
        close(one.weights(), theirs)


class Alibi(Edit):
    """A penalty for distance (Press et al. 2022)."""

    edits_mask = True

    def mask(self, context: CallContext, mask: Tensor | None) -> Tensor:
        place = torch.arange(context.query.shape[2])
        penalty = -0.5 * (place[:, None] - place).abs().float()[None, None]
        return penalty if mask is None else mask + penalty


def test_a_penalty_for_distance_is_the_rest(bert: LoadedModel) -> None:
    with attach_edit(bert.model, Alibi()):
        parts = layers(kept(bert), "encoder")[0]
    place = torch.arange(parts.rest.shape[-1])
    close(parts.rest, (-0.5 * (place[:, None] - place).abs()).expand(2, -1, -1))


def test_all_stacks_of_a_translation(marian_tokenizer: PreTrainedTokenizerBase) -> None:
    pad = marian_tokenizer.pad_token_id
    model = build("MarianMTModel", len(marian_tokenizer), pad_token_id=pad, decoder_start_token_id=pad)
    loaded = LoadedModel("tiny", model, marian_tokenizer, None)
    maps = kept(loaded, Example(SHORT.source, sentence("It cannot see")))
    assert list(maps.scores) == ["encoder", "decoder", "cross"]
    for stack, weights in maps.weights.items():
        for one in maps.scores[stack]:
            close(one.weights(), weights[one.layer])
    chosen = kept(loaded, Example(SHORT.source, sentence("It cannot see")), selection=Selection("cross"))
    assert list(chosen.scores) == ["cross"]


@pytest.mark.parametrize(
    ("selection", "heads"),
    [
        (Selection(layer=1), [(1, [0, 1])]),
        (Selection(head=1), [(0, [1]), (1, [1])]),
        (Selection(layer=0, heads=(1,)), [(0, [1])]),
    ],
)
def test_only_chosen_heads_are_kept(bert: LoadedModel, selection: Selection, heads: list[Any]) -> None:
    maps, whole = kept(bert, selection=selection), kept(bert)
    assert [(one.layer, one.heads) for one in maps.scores["encoder"]] == heads
    one = maps.scores["encoder"][0]
    close(one.weights(), whole.weights["encoder"][one.layer, list(one.heads)])


def test_heads_that_are_left_out_have_no_scores(bert: LoadedModel) -> None:
    maps = kept(bert, without=[Head("encoder", 0, 0), Head("encoder", 1, 0), Head("encoder", 1, 1)])
    assert [(one.layer, one.heads) for one in maps.scores["encoder"]] == [(0, [1])]


def test_words_have_no_scores(bert: LoadedModel) -> None:
    assert kept(bert, level="word").scores == {}
    assert collect_attention(bert, [SENTENCE])[0].scores == {}


def test_scores_are_kept_of_the_first_sentences_that_fit(bert: LoadedModel) -> None:
    size = sum(one.queries.nbytes + one.keys.nbytes for one in layers(kept(bert, SHORT), "encoder"))
    fits, not_quite = (collect_attention(bert, [SHORT, SHORT], score_room=2 * size + more) for more in (1, 0))
    assert [bool(maps.scores["encoder"]) for maps in fits] == [True, True]
    assert [bool(maps.scores["encoder"]) for maps in not_quite] == [True, False]
    # One that is too long is left out as a whole, and does not take the room of those after it.
    first, second = collect_attention(bert, [SENTENCE, SHORT], score_room=size + 1)
    assert first.scores == {"encoder": []}  # asked for, and not kept
    assert len(second.scores["encoder"]) == 2


def test_weights_of_half_precision_have_no_rest(bert: LoadedModel) -> None:
    half = LoadedModel("half", build("BertModel", len(bert.tokenizer or ())).bfloat16(), bert.tokenizer, None)
    maps = kept(half)
    for one in maps.scores["encoder"]:
        assert (one.rest == 0).all()
        assert 1e-5 < max(one.off) <= 2e-2
        close(one.weights(), maps.weights["encoder"][one.layer], 2e-2)


def test_tokens_know_their_text(bert: LoadedModel) -> None:
    pair = Example(sentence("She sold nothing"), sentence("unbelievable cats"))
    (tokens,), (words,) = (collect_attention(bert, [pair], level=level) for level in ("token", "word"))
    labels = tokens.labels["encoder"][0]
    # The first separator belongs to what stands before it.
    end = labels.index("[SEP]") + 1
    assert tokens.groups["encoder"][0].texts == [0] * end + [1] * (len(labels) - end)
    assert labels[end:-1] != []
    assert words.groups["encoder"][0].texts == [0, 0, 0, 0, 0, 1, 1, 1]
    assert tokens.sentence_maps("1")[0].text == "She sold nothing unbelievable cats"
    assert collect_attention(bert, [SHORT])[0].groups["encoder"][0].texts == []
