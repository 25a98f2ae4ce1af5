"""The page of exhibits and claims: none of a recipe is missing, its steps are there, and what it counts is right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headlens.analyses.reproduce.paper_recipe import PaperRecipe, read_recipe, recipe_names

PAGE = Path(__file__).parents[3] / "docs" / "results" / "exhibits.md"


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|\n ").split(" | ")]


def sections() -> dict[str, list[list[str]]]:
    """Rows of the page by recipe: exhibit, what gives it, our result, status."""
    found: dict[str, list[list[str]]] = {}
    for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        name = re.search(r"^`headlens reproduce (\w+)`$", part, re.MULTILINE)
        assert name is not None
        found[name[1]] = [cells(line) for line in part.splitlines() if line.startswith("| ")][1:]
    return found


def exhibits(recipe: PaperRecipe) -> list[str]:
    return [str(of.get("title", of.get("claim"))) for of in (*recipe.tables, *recipe.claims, *recipe.figures)]


@pytest.mark.parametrize("paper", recipe_names())
def test_every_table_figure_and_claim_of_a_recipe_has_a_row(paper: str) -> None:
    rows = [row[0] for row in sections()[paper]]
    recipe = read_recipe(paper)[0]
    assert [text for text in exhibits(recipe) if not any(row.startswith(text) for row in rows)] == []


@pytest.mark.parametrize("paper", recipe_names())
def test_the_steps_and_figures_that_rows_name_are_in_the_recipe(paper: str) -> None:
    recipe = read_recipe(paper)[0]
    steps = {step.name for step in recipe.steps}
    figures = {name.partition("/")[2] for figure in recipe.figures for name in figure["figures"]}
    for _, given, _, status in sections()[paper]:
        named = re.match(r"(?:the )?steps? ([^;]*)", given)
        known, _, drawn = named[1].partition("figure") if named else ("", "", "")
        assert set(re.findall(r"`([a-z0-9-]+)`", known)) <= steps, given
        assert all(any(f.startswith(name) for f in figures) for name in re.findall(r"`([a-z_]+)", drawn)), given
        assert status == "covered" or re.match("(partly|not): .", status), "what is missing is said"


def test_the_table_of_counts_counts_the_rows() -> None:
    lines = PAGE.read_text(encoding="utf-8").partition("\n## ")[0].splitlines()
    *counts, total = [[int(n) for n in cells(line)[1:]] for line in lines if re.match(r"\| [^|]+ \| \d", line)]
    statuses = [[row[3].partition(":")[0] for row in rows] for rows in sections().values()]
    assert counts == [[len(of), *map(of.count, ("covered", "partly", "not"))] for of in statuses]
    assert total == [sum(column) for column in zip(*counts, strict=True)]
