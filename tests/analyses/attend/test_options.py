"""Which arguments of `attend` are models and which are sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headlens.analyses.attend.options import EXAMPLE, is_sentence, sorted_arguments
from headlens.errors import OptionError
from headlens.maps.selection import Selection
from headlens.options import Given


@pytest.mark.parametrize(
    ("values", "models", "texts"),
    [
        ({"model": "demo"}, ("demo", None), (EXAMPLE,)),
        ({"model": "Your own sentence."}, ("demo", None), ("Your own sentence.",)),
        ({"model": "One here.", "words": ["Two here."]}, ("demo", None), ("One here.", "Two here.")),
        ({"model": "bert", "words": ["One here.", "Two here."]}, ("bert", None), ("One here.", "Two here.")),
        ({"model": "One here.", "words": ["bert"]}, ("bert", None), ("One here.",)),
        ({"model": "bert", "words": ["albert", "One here."]}, ("bert", "albert"), ("One here.",)),
        ({"model": "bert", "second": "albert", "text": ["Word."]}, ("bert", "albert"), ("Word.",)),
        ({"model": "bert", "words": None, "text": ("a b", "c")}, ("bert", None), ("a b", "c")),
        ({}, ("demo", None), (EXAMPLE,)),
        ({"model": "words " * 900}, ("demo", None), ("words " * 900,)),
    ],
)
def test_arguments_are_sorted(values: dict[str, Any], models: tuple[str, str | None], texts: tuple[str, ...]) -> None:
    request = sorted_arguments(values)
    assert (request.model, request.second) == models
    assert request.text == texts


@pytest.mark.parametrize(
    ("given", "heads"),
    [
        ("0-4", (0, 1, 2, 3, 4)),
        ("7", (7,)),
        (7, (7,)),
        ("3, 1-2,2", (3, 1, 2)),
        ([0, 5], (0, 5)),
        (["0-1", 4], (0, 1, 4)),
    ],
)
def test_heads_are_numbers_and_ranges(given: Any, heads: tuple[int, ...]) -> None:
    assert sorted_arguments({"model": "demo", "heads": given}).selection.heads == heads


@pytest.mark.parametrize("given", ["4-2", "-1", "a", "0-", "1.5", "0-999999999", "encoder.0.1"])
def test_what_is_no_head_is_refused(given: str) -> None:
    with pytest.raises(OptionError, match=r"is neither a whole number nor a range. Write 0,3,7 or 0-4."):
        sorted_arguments({"model": "demo", "heads": given})


@pytest.mark.parametrize("name", ["layer", "head"])
def test_what_is_below_the_first_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match=rf"--{name} -1 is out of range\.\nGive at least 0"):
        Selection(**{name: -1})


def test_one_head_and_several_are_one_too_many() -> None:
    with pytest.raises(OptionError, match="--head and --heads cannot be combined"):
        Selection(head=2, heads=(0, 1))


def test_folders_with_spaces_and_models_in_memory_are_no_sentences(tmp_path: Path) -> None:
    folder = tmp_path / "my models and others"
    folder.mkdir()
    assert not is_sentence(str(folder))
    assert is_sentence(f"{folder} that is not")
    assert not is_sentence(Given("a model of mine", object()))
    assert not is_sentence(" bert ")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": "bert", "words": ["albert", "electra", "A b."]}, "'albert', 'electra': at most two models"),
        ({"model": "bert", "words": ["albert"], "second": "electra"}, "'albert', 'electra': at most two models"),
        ({"model": "A b.", "text": ["C d."]}, "Some sentences are given as arguments, others with --text or in a file"),
        (
            {"model": "a", "second": "b", "without": "encoder.0.0"},
            "--without removes heads from one model, but two were given",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        sorted_arguments(values)
