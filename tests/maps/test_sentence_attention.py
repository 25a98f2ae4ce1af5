"""Attention maps of single sentences."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from saved import build, sentence
from transformers import PreTrainedTokenizerBase

from headlens.corpora.sentence import Example
from headlens.errors import CorpusError, OptionError
from headlens.heads import Head
from headlens.interventions.compacting import compact_model
from headlens.maps.selection import Selection
from headlens.maps.sentence_attention import collect_attention, sink_notes
from headlens.models.loading import LoadedModel

SENTENCE = sentence("unbelievable zzyzx cats sleep .")
SHORT = sentence("She sold nothing")


@pytest.fixture(scope="module")
def bert(wordpiece_tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    return LoadedModel("tiny", build("BertModel", len(wordpiece_tokenizer)), wordpiece_tokenizer, None)


@pytest.fixture(scope="module")
def marian(marian_tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    pad = marian_tokenizer.pad_token_id
    model = build("MarianMTModel", len(marian_tokenizer), pad_token_id=pad, decoder_start_token_id=pad)
    return LoadedModel("tiny", model, marian_tokenizer, None)


def eager(loaded: LoadedModel, ids: Any, **more: Any) -> Any:
    loaded.model.set_attn_implementation("eager")
    with torch.no_grad():
        return loaded.model(input_ids=ids, output_attentions=True, **more)


def test_maps_are_the_models_own(bert: LoadedModel) -> None:
    first, second = collect_attention(bert, [Example(SENTENCE), Example(SHORT)])
    assert bert.tokenizer is not None
    for maps, text in ((first, SENTENCE.text), (second, SHORT.text)):
        ids = bert.tokenizer(text)["input_ids"]
        expected = torch.cat(eager(bert, torch.tensor([ids])).attentions)
        torch.testing.assert_close(maps.weights["encoder"], expected, rtol=0, atol=1e-6)
        names = bert.tokenizer.convert_ids_to_tokens(ids)
        assert maps.labels == {"encoder": (names, names)}
        assert maps.example.source.text == text


def test_rows_that_give_a_part_to_no_token_are_told(bert: LoadedModel) -> None:
    model = build("GptOssForCausalLM", len(bert.tokenizer or ()), num_key_value_heads=2, head_dim=8)
    (maps,) = collect_attention(LoadedModel("sinks", model, bert.tokenizer, None), [Example(SENTENCE)])
    (told,) = sink_notes(maps.weights.values())
    least = float(maps.weights["decoder"].sum(-1).min())
    assert told.startswith(f"Rows of these maps add up to less than 1 (to {least:.2f} at the least): the rest")
    (maps,) = collect_attention(bert, [Example(SENTENCE)], without=[Head("encoder", 0, 1)])
    assert sink_notes(maps.weights.values()) == []


def test_words(bert: LoadedModel) -> None:
    tokens, words = (collect_attention(bert, [Example(SENTENCE)], level=level)[0] for level in ("token", "word"))
    names = words.labels["encoder"][0]
    assert names == ["[CLS]", *(w.form for w in SENTENCE.words), "[SEP]"]
    weights = words.weights["encoder"]
    assert weights.shape == (2, 2, 7, 7)
    assert weights.sum(-1).allclose(torch.ones((), dtype=weights.dtype), atol=1e-5)
    # "cats" has one piece: what it gives to "zzyzx" is the sum over that word's pieces
    pieces = tokens.labels["encoder"][0]
    cats, first, last = pieces.index("cats"), pieces.index("unbelievable") + 1, pieces.index("cats")
    expected = tokens.weights["encoder"][1, 0, cats, first:last].sum()
    assert weights[1, 0, 3, 2].item() == pytest.approx(expected.item(), abs=1e-6)


def test_pairs_have_three_stacks(marian: LoadedModel) -> None:
    (maps,) = collect_attention(marian, [Example(SHORT, sentence("It cannot see"))])
    assert list(maps.weights) == ["encoder", "decoder", "cross"]
    queries, keys = maps.labels["cross"]
    assert maps.weights["cross"].shape[2:] == (len(queries), len(keys))
    assert maps.labels["encoder"] == (keys, keys)
    assert maps.labels["decoder"] == (queries, queries)
    assert queries[0] == "<pad>"  # the decoder's start
    assert keys[-1] == "</s>"
    assert torch.equal(maps.weights["decoder"], maps.weights["decoder"].tril())


def test_source_alone(marian: LoadedModel) -> None:
    (maps,) = collect_attention(marian, [Example(SHORT)])
    assert list(maps.weights) == ["encoder"]


def test_one_stack(marian: LoadedModel) -> None:
    (maps,) = collect_attention(marian, [Example(SHORT, SHORT)], Selection("cross", 1, 0))
    assert list(maps.weights) == ["cross"]
    assert maps.weights["cross"].shape[:2] == (2, 2)


def test_too_long_is_not_cut(bert: LoadedModel) -> None:
    with pytest.raises(CorpusError, match=r"The sentence 'cats cats .* is longer than the model's 40 tokens"):
        collect_attention(bert, [Example(sentence(" ".join(["cats"] * 50)))])


HEADS = [Head("encoder", layer, h) for layer in range(2) for h in range(3)]


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection("cross"), "--stack cross: the model was only run on encoder."),
        (Selection(layer=2), "--layer 2 is out of range.\nChoose 0 to 1"),
        (Selection(layer=0, head=3), "--head 3 is out of range.\nChoose 0 to 2"),
        (Selection(heads=(0, 3)), "--heads 3 is out of range.\nChoose 0 to 2"),
    ],
)
def test_selections_out_of_range(selection: Selection, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        selection.check(HEADS)
    assert message in str(caught.value)


@pytest.mark.parametrize("selection", [Selection(), Selection("encoder"), Selection(None, 1, 2), Selection(head=2)])
def test_selections_in_range(selection: Selection) -> None:
    selection.check(HEADS)
    assert selection.takes("encoder")


def test_no_sentence(bert: LoadedModel) -> None:
    assert collect_attention(bert, []) == []


@pytest.mark.parametrize("level", ["token", "word"])
def test_heads_that_were_cut_out_leave_gaps(bert: LoadedModel, level: Any) -> None:
    """The others stay at the numbers they had; what is below the cut sees the same as before."""
    small = LoadedModel("small", copy.deepcopy(bert.model), bert.tokenizer, None)
    compact_model(small.model, [Head("encoder", 0, 0)])
    (before,), (after,) = (collect_attention(m, [Example(SENTENCE)], level=level) for m in (bert, small))
    assert after.weights["encoder"].shape == before.weights["encoder"].shape
    torch.testing.assert_close(after.weights["encoder"][0, 1], before.weights["encoder"][0, 1])
    assert after.weights["encoder"][0, 0].isnan().all()
    assert not after.weights["encoder"][1].isnan().any()
    with pytest.raises(OptionError, match=r"--head 0 is out of range.\nChoose 1; both"):
        collect_attention(small, [Example(SENTENCE)], Selection(layer=0, head=0), level=level)


def test_a_layer_that_was_cut_out_is_a_gap(bert: LoadedModel) -> None:
    small = LoadedModel("small", copy.deepcopy(bert.model), bert.tokenizer, None)
    compact_model(small.model, [Head("encoder", 0, 0), Head("encoder", 0, 1)])
    (found,) = collect_attention(small, [Example(SENTENCE)])
    assert found.weights["encoder"][0].isnan().all()
    assert not found.weights["encoder"][1].isnan().any()
    with pytest.raises(OptionError, match=r"--layer 0 is out of range.\nChoose 1; both"):
        collect_attention(small, [Example(SENTENCE)], Selection(layer=0))
