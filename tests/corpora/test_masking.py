"""Which tokens are masked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlens.corpora.alignment import Alignment
from headlens.corpora.encoded_corpus import EncodingCounts, Masking, mask_examples
from headlens.corpora.encoding import EncodedExample, EncodedSequence, TokenKind
from headlens.corpora.sentence import Sentence
from headlens.errors import OptionError

MASK = 99


def example(ids: Sequence[int], special: Sequence[bool], text: str = "text") -> EncodedExample:
    kinds = tuple(int(TokenKind.SPECIAL) * s for s in special)
    alignment = Alignment((-1,) * len(ids), (), 0, 0, 0)
    return EncodedExample(EncodedSequence(tuple(ids), kinds, ((0, 0),) * len(ids), alignment, Sentence(text, ())))


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.floats(0.01, 1), st.integers(0, 5), st.text(max_size=10))
def test_a_share_of_the_tokens_of_text_is_masked_and_nothing_else_changes(
    special: list[bool], share: float, seed: int, text: str
) -> None:
    row = example(range(len(special)), special, text)
    masked = Masking(MASK, share, seed).mask(row)
    of_text = special.count(False)
    if not of_text:
        assert masked is None
        return
    assert masked is not None
    changed = [i for i, token in enumerate(masked.source.ids) if token != i]
    assert all(masked.source.ids[i] == MASK and not special[i] for i in changed)
    assert len(changed) == max(1, round(share * of_text))
    assert (masked.source.kinds, masked.key) == (row.source.kinds, row.key)


def test_the_choice_depends_on_sentence_and_seed_alone() -> None:
    row, other = example(range(40), [False] * 40), example(range(40), [False] * 40, "another")
    first = Masking(MASK).mask(row)
    assert first == Masking(MASK).mask(row)
    assert first != Masking(MASK, seed=1).mask(row)
    chosen = [None if m is None else m.source.ids for m in (first, Masking(MASK).mask(other))]
    assert chosen[0] != chosen[1]


def test_every_token_of_text_is_as_likely() -> None:
    masked = [Masking(MASK, 0.2).mask(example(range(10), [False] * 10, str(i))) for i in range(2000)]
    counts = [sum(m is not None and m.source.ids[i] == MASK for m in masked) for i in range(10)]
    assert sum(counts) == 4000
    assert all(320 < n < 480 for n in counts)


def test_mask_tokens_of_the_text_are_kept_and_no_others_added() -> None:
    row = example([5, MASK, 7, 8], [True, True, False, False])
    assert Masking(MASK, 1.0).mask(row) is row


def test_what_cannot_be_masked_is_counted() -> None:
    counts = EncodingCounts()
    rows = [example([1, 2], [True, True]), example([1, 2], [True, False])]
    (kept,) = mask_examples(rows, Masking(MASK), counts)
    assert kept.source.ids == (1, MASK)
    assert counts.unmaskable == 1


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, float("nan")])
def test_bad_shares(share: float) -> None:
    with pytest.raises(OptionError, match="mask-share"):
        Masking(MASK, share)
