"""A context that undoes its changes: on exit, after errors inside and while it opens, and once at a time."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from headlens.attention.reversible_context import ReversibleContext


class Switch(ReversibleContext):
    """Two switches that go on in turn; the second may be stuck."""

    def __init__(self, *, stuck: bool = False) -> None:
        self.on, self.stuck = list[str](), stuck

    def _change(self, undo: ExitStack) -> None:
        for name in ("first", "second"):
            if name == "second" and self.stuck:
                raise OSError(name)
            self.on.append(name)
            undo.callback(self.on.remove, name)


def test_changes_hold_inside_and_can_be_made_again() -> None:
    switch = Switch()
    for _ in range(2):
        with switch as entered:
            assert entered is switch
            assert (switch.on, switch.is_open) == (["first", "second"], True)
        assert (switch.on, switch.is_open) == ([], False)


def test_an_error_inside_and_one_on_the_way_leave_nothing() -> None:
    switch, stuck = Switch(), Switch(stuck=True)
    with pytest.raises(ValueError, match="inside"), switch:
        raise ValueError("inside")
    with pytest.raises(OSError, match="second"), stuck:
        pass
    for one in (switch, stuck):
        assert (one.on, one.is_open) == ([], False)


def test_it_is_open_once_at_a_time() -> None:
    with Switch() as switch:
        with pytest.raises(RuntimeError, match="this Switch is already open"), switch:
            pass
        assert switch.on == ["first", "second"]
