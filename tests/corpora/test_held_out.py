"""What is held out of a corpus."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from saved import Memory, sentence

from headlens.corpora.held_out import held_out_of, is_held_out, split_corpus
from headlens.corpora.sentence import Example


@given(st.integers(0, 900), st.integers(0, 300))
def test_the_share_is_held_out_and_evenly_spread(thousandths: int, count: int) -> None:
    share = thousandths / 1000
    held = [number for number in range(1, count + 1) if is_held_out(number, share)]
    assert len(held) == held_out_of(share, count) == thousandths * count // 1000
    if len(held) > 1:
        apart = np.diff(held)
        assert apart.max() - apart.min() <= 1


def test_shares_as_they_are_written() -> None:
    assert held_out_of(0.29, 100) == 29, "0.29 * 100 is a little less than 29"
    assert [number for number in range(1, 21) if is_held_out(number, 0.05)] == [20]
    assert [number for number in range(1, 11) if is_held_out(number, 0.4)] == [3, 5, 8, 10]


@pytest.mark.parametrize(("share", "held"), [(0.25, [4, 8]), (0.9, [2, 3, 4, 5, 6, 7, 8, 9]), (0.1, None), (0.0, None)])
def test_both_parts_make_the_whole(share: float, held: list[int] | None) -> None:
    corpus = Memory([Example(sentence(str(n))) for n in range(1, 10)])
    kept, dev = split_corpus(corpus, share, 9)
    numbers = [int(e.source.text) for e in kept]
    if held is None:
        assert (dev, numbers) == (None, list(range(1, 10)))
    else:
        assert dev is not None
        assert [int(e.source.text) for e in dev] == held
        assert sorted(numbers + held) == list(range(1, 10))
        assert dev.name == kept.name == "memory"
