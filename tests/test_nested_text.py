"""JSON and TOML that anybody wrote, brought to a type or refused with the part that does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from headlens.nested_text import conform, fits, parse_json, parse_toml


@dataclass(frozen=True)
class Inner:
    value: float
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True)
class Outer:
    name: str
    count: int
    inner: tuple[Inner, ...]
    flags: list[bool] = field(default_factory=list)
    words: Mapping[str, str | float] = field(default_factory=dict)
    best: float | None = None
    anything: Any = None


WHOLE = {
    "name": "x", "count": 3, "inner": [{"value": 1}, {"value": 0.5, "kind": "b"}], "flags": [True],
    "words": {"a": "b", "c": 1.5}, "best": None, "anything": [{}],
}  # fmt: skip


def test_a_value_that_fits() -> None:
    expected = Outer("x", 3, (Inner(1), Inner(0.5, "b")), [True], {"a": "b", "c": 1.5}, None, [{}])
    assert conform(WHOLE, Outer) == expected
    assert fits(WHOLE, Outer)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": 3}, "name of it is 3, not a text"),
        ({"count": True}, "count of it is True, not a whole number"),
        ({"count": 1.0}, "count of it is 1.0, not a whole number"),
        ({"inner": {}}, "inner of it is {}, not a list"),
        ({"inner": [{"value": "x"}]}, "value of item 1 of inner of it is 'x', not a number"),
        ({"inner": [{"value": 10**400}]}, "value of item 1 of inner of it is 1000"),
        ({"inner": [{"kind": "a"}]}, "item 1 of inner of it has no value"),
        ({"inner": [{"value": 1, "kind": "c"}]}, "kind of item 1 of inner of it is 'c', not one of a, b"),
        ({"inner": [{"value": 1, "more": 2}]}, "has 'more', which is not one of value, kind"),
        ({"flags": [0]}, "item 1 of flags of it is 0, not true or false"),
        ({"words": []}, "words of it is [], not an object"),
        ({"words": {"a": None}}, "a of words of it is None, not a number"),
        ({"best": "x"}, "best of it is 'x', not a number"),
        ({"name": 16**9000}, "name of it is too long or deep to be shown, not a text"),
    ],
)
def test_a_value_that_does_not_fit(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=r"is|has") as refused:
        conform(WHOLE | change, Outer, "it")
    assert words in str(refused.value)
    assert not fits(WHOLE | change, Outer)


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, "{", '{"a": 1} x'])
def test_texts_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_json(text)
    with pytest.raises(ValueError, match=r"\w"):
        parse_toml(f"a = {text}")
