"""Documents, help and notebooks keep to the words of docs/style.md."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
import typer
from test_docs import DOCS, PAGES, ROOT, prose

from headlens.analyses.commands import commands
from headlens_cli.app import app

STYLE = DOCS / "style.md"
RECIPES = sorted((ROOT / "headlens/analyses/reproduce/recipes").glob("*.toml"))


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


def headings_of(lines: list[str]) -> list[str]:
    """The cells in the first rows of the tables of a page."""
    heads = [line for line, below in itertools.pairwise(lines) if re.fullmatch(r" *\|[ :|-]*-[ :|-]*", below)]
    return [cell.strip() for line in heads for cell in line.strip(" |").split("|")]


def subtracting(headings: list[str]) -> list[str]:
    """The headings in which `less` stands for minus."""
    return [heading for heading in headings if re.search(r"\bless\b(?! than\b)", heading)]


def test_the_list_is_read() -> None:
    words = avoided_words()
    assert len(words) > 50
    assert {"commonest", "less all", "behavior", "dataset", "embedded treebank", "heads rest on"} <= set(words)


def test_words_are_found_whole_and_outside_of_code() -> None:
    words = ["dataset", "less all"]
    assert found_in("A Dataset.", words) == ["dataset"]
    assert found_in("It is less\nall the same.", words) == ["less all"]
    assert found_in("`dataset`, datasets, [a page](dataset.md), https://a.org/dataset", words) == []


def test_headings_are_found() -> None:
    table = ["less text", "| all | all less BigBird |", "|---|:-:|", "| a | b less c |", "", "| less than 3 |", "|-|"]
    assert headings_of(table) == ["all", "all less BigBird", "less than 3"]
    assert subtracting(headings_of(table)) == ["all less BigBird"]


@pytest.mark.parametrize("page", [p for p in PAGES if p != STYLE], ids=lambda page: str(page.relative_to(ROOT)))
def test_documents(page: Path) -> None:
    assert found_in("\n".join(prose(page)), avoided_words()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_headings_of_documents(page: Path) -> None:
    assert subtracting(headings_of(prose(page))) == []


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_headings_of_recipes(recipe: Path) -> None:
    tables = tomllib.loads(recipe.read_text(encoding="utf-8"))["tables"]
    headings = [column["name"] for table in tables for column in table["columns"]]
    assert len(headings) > 2
    assert subtracting(headings) == []


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
