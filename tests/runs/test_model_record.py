"""What tables call models."""

from types import SimpleNamespace
from typing import Any

import pytest

from headlens.runs.run import model_label


@pytest.mark.parametrize(
    ("name", "taken", "label"),
    [
        ("runs/mine", (), "mine"),
        ("runs/mine", ("mine",), "runs/mine"),
        ("/a/b/c/mine", ("mine",), "c/mine"),
        ("/a/b/c/mine", ("mine", "c/mine"), "b/c/mine"),
        ("mine", ("mine",), "mine (2)"),
        ("/a/mine", ("mine", "a/mine"), "/a/mine"),
        ("/a/mine", ("mine", "a/mine", "/a/mine"), "/a/mine (2)"),
        ("/a/mine", ("mine", "a/mine", "/a/mine", "/a/mine (2)"), "/a/mine (3)"),
    ],
)
def test_a_label_is_as_short_as_it_can_be(name: str, taken: tuple[str, ...], label: str) -> None:
    loaded: Any = SimpleNamespace(name=name, short_name="mine")
    assert model_label(loaded, taken) == label
