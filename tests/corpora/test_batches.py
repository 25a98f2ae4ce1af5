"""Batches within a budget of tokens, and the tensors made of them."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    MarianConfig,
    MarianModel,
    OPTConfig,
    OPTModel,
    PreTrainedTokenizerBase,
    RobertaConfig,
    RobertaModel,
)

from headlens.attention.edits_and_observers import Tokens
from headlens.corpora.alignment import Alignment
from headlens.corpora.batches import (
    attention_mask,
    collate,
    cut_batches,
    one_row,
    padded,
    pooled_batches,
    token_budget_batches,
)
from headlens.corpora.encoding import EncodedExample, EncodedSequence, SentenceEncoder, TokenKind
from headlens.corpora.sentence import Example, Sentence, Word
from headlens.errors import OptionError

KINDS = st.integers(0, 63)


def sequence(ids: Sequence[int], kinds: Sequence[int] = (), units: Sequence[int] = ()) -> EncodedSequence:
    units = tuple(units or [-1] * len(ids))
    alignment = Alignment(units, (), max(units, default=-1) + 1, 0, 0)
    spans = ((0, 0),) * len(ids)
    return EncodedSequence(tuple(ids), tuple(kinds or [0] * len(ids)), spans, alignment, Sentence("", ()))


def of_length(n: int, target: int | None = None) -> EncodedExample:
    return EncodedExample(sequence([7] * n), None if target is None else sequence([8] * target))


@given(
    st.lists(st.tuples(st.integers(1, 12), st.none() | st.integers(1, 12)), max_size=40),
    st.integers(1, 40),
    st.integers(1, 15),
)
def test_batches_hold_the_budget_and_every_example_once(
    lengths: list[tuple[int, int | None]], budget: int, pool: int
) -> None:
    examples = [of_length(*pair) for pair in lengths]
    batches = list(token_budget_batches(iter(examples), budget, pool))
    assert sorted(map(id, (e for b in batches for e in b))) == sorted(map(id, examples))
    for batch in batches:
        longest = max(max(len(e.source), len(e.target or ())) for e in batch)
        assert len(batch) == 1 or len(batch) * longest <= budget
    # pool by pool, each sorted: the order follows from the examples alone
    expected = []
    for start in range(0, len(examples), pool):
        expected += sorted(examples[start : start + pool], key=lambda e: max(len(e.source), len(e.target or ())))
    assert [id(e) for b in batches for e in b] == [id(e) for e in expected]


@given(st.lists(st.integers(1, 12), max_size=30), st.integers(1, 40))
def test_batches_are_as_full_as_their_order_allows(lengths: list[int], budget: int) -> None:
    batches = list(token_budget_batches(map(of_length, lengths), budget))
    for batch, following in pairwise(batches):
        assert (len(batch) + 1) * following[0].length > budget


def test_only_one_pool_is_read_ahead() -> None:
    read = 0

    def examples() -> Iterator[EncodedExample]:
        nonlocal read
        for _ in range(100):
            read += 1
            yield of_length(3)

    next(token_budget_batches(examples(), batch_tokens=6, pool=10))
    assert read == 10


@pytest.mark.parametrize(("batch_tokens", "pool", "named"), [(0, 10, "--batch-tokens 0"), (10, -1, "--pool -1")])
def test_nonsense_is_refused_at_once(batch_tokens: int, pool: int, named: str) -> None:
    with pytest.raises(OptionError, match=named):
        token_budget_batches([], batch_tokens, pool)


@st.composite
def rows(draw: st.DrawFn) -> EncodedSequence:
    n = draw(st.integers(1, 7))
    kinds = draw(st.lists(KINDS, min_size=n, max_size=n))
    units, unit = [], -1
    for kind in kinds:
        if kind & TokenKind.SPECIAL:
            units.append(-1)
        else:
            unit = max(0, unit + draw(st.integers(0, 1)))
            units.append(unit)
    return sequence(draw(st.lists(st.integers(0, 99), min_size=n, max_size=n)), kinds, units)


FIELDS = {
    "special": TokenKind.SPECIAL,
    "cls": TokenKind.CLS,
    "sep": TokenKind.SEP,
    "bos": TokenKind.BOS,
    "eos": TokenKind.EOS,
    "punct": TokenKind.PUNCT,
}


def check_side(ids: Tensor, mask: Tensor, tokens: Tokens, sequences: list[EncodedSequence], pad_id: int) -> None:
    """Compare tensors with the sequences they were made of, one cell at a time."""
    assert ids.dtype == mask.dtype == tokens.word.dtype == tokens.n_words.dtype == tokens.n_pieces.dtype == torch.int64
    assert ids.shape == mask.shape == tokens.shape == (len(sequences), max(map(len, sequences)))
    for b, row in enumerate(sequences):
        for k in range(ids.shape[1]):
            inside = k < len(row)
            assert ids[b, k] == (row.ids[k] if inside else pad_id)
            assert mask[b, k] == tokens.real[b, k] == inside
            assert tokens.word[b, k] == (row.units[k] if inside else -1)
            for name, bit in FIELDS.items():
                value = getattr(tokens, name)
                assert value.dtype == torch.bool
                assert bool(value[b, k]) == (bool(row.kinds[k] & bit) if inside else name == "special")
        assert tokens.n_words[b] == row.n_units
        pieces = [row.units.count(u) for u in range(tokens.n_pieces.shape[1])]
        assert tokens.n_pieces[b].tolist() == pieces
    assert tokens.n_pieces.shape[1] == max(row.n_units for row in sequences)


@given(st.lists(st.tuples(rows(), rows()), min_size=1, max_size=4), st.booleans(), st.integers(0, 99))
def test_collate_cell_by_cell(pairs: list[tuple[EncodedSequence, EncodedSequence]], paired: bool, pad_id: int) -> None:
    examples = [EncodedExample(a, b if paired else None) for a, b in pairs]
    batch = collate(examples, pad_id=pad_id, device="cpu")
    assert batch.examples == examples
    inputs = batch.inputs
    check_side(inputs["input_ids"], inputs["attention_mask"], batch.source, [a for a, _ in pairs], pad_id)
    if paired:
        assert batch.target is not None
        ids, mask = inputs["decoder_input_ids"], inputs["decoder_attention_mask"]
        check_side(ids, mask, batch.target, [b for _, b in pairs], pad_id)
    else:
        assert batch.target is None
        assert set(inputs) == {"input_ids", "attention_mask"}


def test_equal_lengths_have_a_mask_of_ones() -> None:
    assert collate([of_length(3)] * 2, pad_id=0, device="cpu").inputs["attention_mask"].all()


def test_padding_up_to_a_length_that_is_asked_for() -> None:
    batch = collate([of_length(3, 2), of_length(2, 1)], pad_id=9, device="cpu", padded_length=lambda n: n + 4)
    assert [batch.inputs[name].shape[1] for name in ("input_ids", "decoder_attention_mask")] == [7, 6]
    assert batch.inputs["attention_mask"].tolist() == [[1, 1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0]]
    assert batch.source.special[:, 3:].all()
    assert (batch.source.word[:, 3:] == -1).all()


def test_the_padding_id_inside_a_sentence_is_real() -> None:
    batch = collate([EncodedExample(sequence([0, 5])), of_length(4)], pad_id=0, device="cpu")
    assert batch.source.real[0].tolist() == [True, True, False, False]


def test_some_targets_missing() -> None:
    with pytest.raises(ValueError, match="target"):
        collate([of_length(3, 2), of_length(3)], pad_id=0, device="cpu")


def test_tensors_go_to_the_device() -> None:
    batch = collate([of_length(3, 2)], pad_id=0, device="meta")
    assert batch.target is not None
    tensors = list(batch.inputs.values())
    tensors += [getattr(side, f.name) for side in (batch.source, batch.target) for f in fields(side) if f.init]
    assert batch.source.host is not None
    assert batch.source.host.real.device.type == "cpu"
    assert {t.device.type for t in tensors if t is not None} == {"meta"}


SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50}
ENCODER = SIZES | {"intermediate_size": 16, "max_position_embeddings": 40}
SMALL = {
    "bert": (BertModel, BertConfig(**ENCODER)),
    "roberta": (RobertaModel, RobertaConfig(**ENCODER)),
    "gpt2": (GPT2Model, GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=50)),
    "opt": (OPTModel, OPTConfig(**SIZES, ffn_dim=16, word_embed_proj_dim=16)),
    "marian": (
        MarianModel,
        MarianConfig(
            vocab_size=50,
            d_model=16,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=16,
            decoder_ffn_dim=16,
            pad_token_id=1,
            decoder_start_token_id=1,
        ),
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_padding_on_the_right_changes_nothing_for_a_model(name: str) -> None:
    kind, config = SMALL[name]
    torch.manual_seed(0)
    model = kind(config).eval()

    def example(n: int, target: int) -> EncodedExample:
        pair = sequence([1, *range(10, 9 + target)]) if name == "marian" else None  # begins with the padding id
        return EncodedExample(sequence(range(5, 5 + n)), pair)

    examples = [example(3, 2), example(9, 6)]
    with torch.inference_mode():
        alone = model(**collate(examples[:1], pad_id=1, device="cpu").inputs).last_hidden_state
        padded = model(**collate(examples, pad_id=1, device="cpu").inputs).last_hidden_state
    torch.testing.assert_close(padded[:1, : alone.shape[1]], alone, atol=1e-5, rtol=1e-5)


def test_batches_of_real_sentences(any_tokenizer: PreTrainedTokenizerBase) -> None:
    texts = ["A cat isn't gonna see it.", "Nobody", "She sold 10,000 books?"]
    encoder = SentenceEncoder(any_tokenizer)
    examples = []
    for text in texts:
        at, words = 0, []
        for part in text.split(" "):
            words.append(Word(part, at, at + len(part)))
            at += len(part) + 1
        examples.append(encoder.encode(Example(Sentence(text, tuple(words)))))
    for batch in token_budget_batches(filter(None, examples), 64):
        tensors = collate(batch, pad_id=0, device="cpu")
        assert tensors.source.n_words.tolist() == [len(e.source.sentence.words) for e in batch]
        inside = tensors.source.real & ~tensors.source.special
        assert tensors.source.n_pieces.sum() == inside.sum()


Sized = tuple[int, int]
LENGTHS_AND_ROWS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 5)), max_size=60)


@given(LENGTHS_AND_ROWS, st.integers(1, 200), st.integers(1, 20))
def test_every_example_once_and_no_batch_too_large(sizes: list[Sized], budget: int, pool: int) -> None:
    found = list(pooled_batches(sizes, budget, lambda e: e[0], lambda e: e[1], pool))
    assert sorted(e for batch in found for e in batch) == sorted(sizes)
    for batch in found:
        padded = sum(rows for _, rows in batch) * max(length for length, _ in batch)
        assert padded <= budget or len(batch) == 1


@given(LENGTHS_AND_ROWS, st.integers(1, 200))
def test_no_batch_could_take_the_next_example(sizes: list[Sized], budget: int) -> None:
    found = list(cut_batches(sorted(sizes), budget, lambda e: e[0], lambda e: e[1]))
    for batch, following in pairwise(found):
        together = [*batch, following[0]]
        assert sum(rows for _, rows in together) * following[0][0] > budget


def test_the_order_within_a_pool_is_by_length() -> None:
    assert list(pooled_batches([5, 3, 4, 1, 2], 100, lambda n: n, one_row, 3)) == [[3, 4, 5], [1, 2]]
    assert list(cut_batches([], 5, lambda n: n, one_row)) == []


@pytest.mark.parametrize(("budget", "pool", "name"), [(0, 5, "batch-tokens"), (5, 0, "pool")])
def test_numbers_that_cannot_be(budget: int, pool: int, name: str) -> None:
    with pytest.raises(OptionError, match=f"--{name} 0 is not a positive number"):
        pooled_batches([1], budget, lambda n: n, one_row, pool)


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=6), st.booleans())
def test_on_the_right(rows: list[list[int]], arrays: bool) -> None:
    given_rows: Sequence[Sequence[int]] = [np.array(r, dtype=np.int64) for r in rows] if arrays else rows  # type: ignore[misc]
    longest = max(map(len, rows))
    assert padded(given_rows, -7).tolist() == [r + [-7] * (longest - len(r)) for r in rows]
    assert attention_mask(given_rows).tolist() == [[1] * len(r) + [0] * (longest - len(r)) for r in rows]
