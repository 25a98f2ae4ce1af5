"""Text in the cells of rows."""

from typing import Any

import pytest

from headlens.corpora.cell_text import list_names, text_cell
from headlens.errors import CorpusError

ROW: dict[str, Any] = {
    "text": "Hello",
    "empty": None,
    "label": 3,
    "list": ["a"],
    "translation": {"de": "Hallo", "deep": {"er": "tief"}},
    "a.b": "dotted",
    "half": "\ud83d",
}


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("text", "Hello"),
        ("empty", ""),
        ("translation.de", "Hallo"),
        ("translation.deep.er", "tief"),
        ("a.b", "dotted"),
    ],
)
def test_text(column: str, text: str) -> None:
    assert text_cell(ROW, column, "file") == text


@pytest.mark.parametrize("column", ["Text", "translation.fr", "text.en", "translation.de.x", ""])
def test_unknown_column(column: str) -> None:
    with pytest.raises(CorpusError) as caught:
        text_cell(ROW, column, "file", 7)
    assert str(caught.value) == (
        f"file:7: there is no column {column!r}.\n"
        "Columns: text, empty, label, list, translation.de, translation.deep.er, a.b, half."
    )


@pytest.mark.parametrize(("column", "kind"), [("label", "int"), ("list", "list"), ("translation", "dict")])
def test_no_text(column: str, kind: str) -> None:
    with pytest.raises(CorpusError, match=rf"file:7: '{column}' holds {kind}, not text\.\nChoose a column of text: t"):
        text_cell(ROW, column, "file", 7)


def test_half_a_character() -> None:
    with pytest.raises(CorpusError, match=r"file: 'half' holds half a character(.|\n)*come in pairs"):
        text_cell(ROW, "half", "file")


def test_names_that_would_flood_the_screen() -> None:
    assert list_names(["", "a", " ", "b" * 41]) == f"(one without a name), a, (one without a name), {'b' * 40}…"
    assert list_names(map(str, range(31))).endswith(", 29, …")
    assert list_names(map(str, range(30))).endswith(", 29")
    assert list_names([]) == "none"


def test_names_of_deep_rows() -> None:
    row: dict[str, object] = {"end": 1}
    for _ in range(5000):
        row = {"x": row}
    with pytest.raises(CorpusError, match=r"Columns: x\.x\.x\.x\.x\.x\.x\.x\.$"):
        text_cell(row, "text", "file")
