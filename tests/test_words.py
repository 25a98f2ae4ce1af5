"""Documents, help and notebooks keep to the words of docs/style.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
import typer
from test_docs import DOCS, PAGES, ROOT, prose

from headlens.analyses.commands import commands
from headlens_cli.app import app

STYLE = DOCS / "style.md"


def avoided_words() -> list[str]:
    """The words in the last column of the table, and those of the paragraph on spelling."""
    lines = STYLE.read_text(encoding="utf-8").splitlines()
    cells = [line.rsplit("|", 2)[1] for line in lines if line.startswith("|") and '"' in line]
    spelling = "\n".join(lines).split("**Spelling**")[1].split("\n\n")[0]
    return re.findall(r'"([^"]+)"', " ".join([*cells, spelling]))


def found_in(text: str, words: list[str]) -> list[str]:
    """The avoided words that occur in a text, whole and in any case; code and the names of files do not count."""
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|https?://\S+", " ", text)
    text = " ".join(text.split())
    return [word for word in words if re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text, re.IGNORECASE)]


def helps() -> Iterator[tuple[str, str]]:
    """The help of every command and of every option."""
    group = typer.main.get_command(app)
    for name, command in getattr(group, "commands").items():  # noqa: B009
        yield name, command.help or ""
        yield from ((f"{name} {one.name}", getattr(one, "help", "") or "") for one in command.params)
    for name, declared in commands().items():
        yield from ((f"{name} {own.name}", own.option.help) for own in declared.options.values())


def test_the_list_is_read() -> None:
    words = avoided_words()
    assert len(words) > 40
    assert {"commonest", "less all", "behavior", "dataset"} <= set(words)


def test_words_are_found_whole_and_outside_of_code() -> None:
    words = ["dataset", "less all"]
    assert found_in("A Dataset.", words) == ["dataset"]
    assert found_in("It is less\nall the same.", words) == ["less all"]
    assert found_in("`dataset`, datasets, [a page](dataset.md), https://a.org/dataset", words) == []


@pytest.mark.parametrize("page", [p for p in PAGES if p != STYLE], ids=lambda page: str(page.relative_to(ROOT)))
def test_documents(page: Path) -> None:
    assert found_in("\n".join(prose(page)), avoided_words()) == []


def test_help() -> None:
    words = avoided_words()
    texts = dict(helps())
    assert len(texts) > 300
    assert {place: found for place, text in texts.items() if (found := found_in(text, words))} == {}


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert found_in(text, avoided_words()) == []
