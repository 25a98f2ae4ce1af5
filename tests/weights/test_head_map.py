"""What becomes of the heads of a model when more are removed, against sets made by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlens.errors import OptionError
from headlens.heads import Head
from headlens.weights.head_map import HeadMap, SiteHeads

# Three depths of one module of 3 heads, and a layer of its own with 2.
SITES = (*(SiteHeads("encoder", i, "shared", 3, (0, 1, 2)) for i in range(3)), SiteHeads("cross", 0, "own", 2, (0, 1)))
WHOLE = HeadMap(SITES)
HEADS = [h for s in SITES for h in s.heads_of(range(s.heads))]


@given(removed=st.sets(st.sampled_from(HEADS), max_size=len(HEADS) - 1))
def test_removed_is_what_was_asked_for_and_cut_is_what_is_dead_everywhere(removed: set[Head]) -> None:
    after = WHOLE.without(removed)
    assert set(after.removed) == removed
    for number in range(3):
        depths = {Head("encoder", i, number) for i in range(3)}
        assert (number not in after.modules["shared"]) == (depths <= removed)
        assert {h for h in after.masked if h.head == number and h.stack == "encoder"} == (
            set() if depths <= removed else depths & removed
        )
    assert set(after.modules["own"]) == {h for h in range(2) if Head("cross", 0, h) not in removed}
    assert not [h for h in after.masked if h.stack == "cross"]


@given(first=st.sets(st.sampled_from(HEADS), max_size=6), second=st.sets(st.sampled_from(HEADS), max_size=4))
def test_maps_compose(first: set[Head], second: set[Head]) -> None:
    assert WHOLE.without(first).without(second) == WHOLE.without(first | second)


def test_nothing_left() -> None:
    with pytest.raises(OptionError, match=r"No head of the model would be left.\nKeep at least one."):
        WHOLE.without(HEADS)


def test_unknown_head_names_what_there_is() -> None:
    with pytest.raises(OptionError) as caught:
        WHOLE.without([Head("encoder", 1, 3)])
    assert caught.value.message == "There is no head encoder.1.3."
    assert (
        caught.value.advice
        == "The model has encoder.0 to encoder.2 with heads 0 to 2; cross.0 to cross.0 with heads 0 to 1."
    )
