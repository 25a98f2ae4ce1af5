"""Messages stay readable whatever is told in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlens.errors import InputError

LONG_VALUES = {
    "a word": "x" * 5000,
    "a list": repr(["x"] * 5000),
    "a mapping of lists": repr({n: ["x"] * 90 for n in range(90)}),
    "words": "word " * 5000,
    "control characters": "\x1b " * 5000,
    "lines": "line\n" * 5000,
}


@pytest.mark.parametrize("value", LONG_VALUES.values(), ids=LONG_VALUES)
def test_long_values_are_cut(value: str) -> None:
    error = InputError(f"run.json: the caption is {value}, which is no text.", f"Write it again, not {value}.")
    assert error.message.startswith("run.json: the caption is ")
    assert error.message.endswith(" which is no text.")
    assert error.advice.startswith("Write it again, not ")
    assert len(str(error)) < 3000


@given(st.text(max_size=300), st.text(max_size=300))
def test_other_messages_are_told_whole(message: str, advice: str) -> None:
    error = InputError(message, advice)
    if (message + advice).isprintable():
        assert str(error) == (f"{message}\n{advice}" if advice else message)
    assert len(str(error)) < 3000
