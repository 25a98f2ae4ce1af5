"""What is held out of a corpus."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saved import Memory, sentence

from headlens.corpora.held_out import split_corpus, stride
from headlens.corpora.sentence import Example


@given(st.floats(0.001, 0.9), st.integers(1, 300))
def test_the_share_is_about_that(share: float, count: int) -> None:
    every = stride(share, count)
    if every is None:
        assert count < max(2, round(1 / share))
    else:
        assert 1 <= count // every <= count / 2
        assert abs(1 / every - share) <= 0.41


@pytest.mark.parametrize(("share", "held"), [(0.25, [4, 8]), (0.9, [2, 4, 6, 8]), (0.1, None), (0.0, None)])
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
