"""Recipes: the settings of a paper as commands and their options, in order, and the tables they are compared with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from headlens.nested_text import conform, parse_toml

_FOLDER = Path(__file__).parent / "recipes"
# What an earlier step left, as in `model = "{baseline}/model"` or `mask = ["{dam}/masks/soft/mask.safetensors"]`.
_MODEL = re.compile(r"\{([\w-]+)\}/model\b")
_FOLDER_OF = re.compile(r"\{([\w-]+)\}")
_ABOUT = ("title", "citation", "setting", "small")
_NOT_OPTIONS = ("name", "command", "why", "small")


@dataclass(frozen=True)
class Step:
    """A command with its options.

    Args:
        name: of its folder.
        command: of headlens.
        why: what it is for.
        options: by the names of the command line, without dashes.
        small: what is otherwise with `--small`, where an empty text leaves an option out; None leaves the step out.
    """

    name: str
    command: str
    why: str
    options: Mapping[str, Any]
    small: Mapping[str, Any] | None = field(default_factory=dict)

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Step:
        """Creates a step from its entry in a recipe file; a ValueError says what is wrong with it."""
        spec = conform(spec, dict[str, Any], "a step")
        options = {key: value for key, value in spec.items() if key not in _NOT_OPTIONS}
        name, command, why = (conform(spec.get(key), str, f"{key} of a step") for key in ("name", "command", "why"))
        small = conform(spec.get("small", {}), dict[str, Any], "small of a step")
        return cls(name, command, why, options, None if small.pop("skip", False) else small)

    def made_small(self) -> Step:
        """Returns the step with its `small` options in place of the full ones; empty values remove an option."""
        options = {**self.options, **(self.small or {})}
        return replace(self, options={key: value for key, value in options.items() if value != ""}, small={})

    @property
    def model(self) -> str | None:
        """The model that it begins with."""
        named: Any = self.options.get("model", self.options.get("models"))
        return named if named is None else str(named[0] if isinstance(named, list) else named)


@dataclass(frozen=True)
class PaperRecipe:
    """The setting of a paper.

    Args:
        name: as it is asked for.
        title, citation: of the paper.
        setting: what is the paper's in it, and what is not.
        less: what is otherwise with `--small`.
        steps: in order.
        tables: of the paper, as `headlens.analyses.report.paper_tables.ComparedTable` reads them.
    """

    name: str
    title: str
    citation: str
    setting: str
    less: str
    steps: tuple[Step, ...]
    tables: tuple[Mapping[str, Any], ...]

    def small(self) -> PaperRecipe:
        """The same path on what comes along with headlens, in minutes."""
        steps = tuple(step.made_small() for step in self.steps if step.small is not None)
        tables = tuple(table for table in self.tables if table["step"] in {step.name for step in steps})
        return replace(self, setting=self.less, steps=steps, tables=tables)

    def filled(self, step: Step, folders: Mapping[str, str], models: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The options of a step with what earlier steps left.

        Args:
            step: of the recipe.
            folders: by the names of steps.
            models: that they leave; None for the folder `model` in theirs.
        """
        models = {name: f"{folder}/model" for name, folder in folders.items()} if models is None else models

        def fill(value: Any) -> Any:
            if isinstance(value, list):
                return [fill(part) for part in value]
            if not isinstance(value, str):
                return value
            return _FOLDER_OF.sub(lambda m: folders[m[1]], _MODEL.sub(lambda m: models[m[1]], value))

        return {key: fill(value) for key, value in step.options.items()}


def recipe_names() -> list[str]:
    """Of the recipes that come along."""
    return sorted(file.stem for file in _FOLDER.glob("*.toml"))


def packaged(name: str) -> Path | None:
    """The file of a recipe that comes along; None if there is none of that name."""
    return _FOLDER / f"{name}.toml" if name in recipe_names() else None


def read_recipe(name: str) -> tuple[PaperRecipe, str]:
    """A recipe and its text.

    Args:
        name: of one that comes along, or a TOML file of somebody's own.

    Raises:
        OptionError: if there is none, or what it says cannot be read.
    """
    from headlens.errors import OptionError, read_errors

    given_path = Path(name)
    path = given_path if given_path.suffix == ".toml" else packaged(name)
    if path is None or not path.is_file():
        known = recipe_names()
        close = get_close_matches(name, known, n=1)
        hint = f"Did you mean {close[0]}?" if close else f"There are: {', '.join(known)}."
        raise OptionError(f"There is no recipe {name}.", f"{hint} A file of your own ends in .toml.")
    advice = f"headlens reproduce {recipe_names()[0]} --show prints one."
    with read_errors(path, "is no recipe", advice, OptionError):
        text = path.read_text(encoding="utf-8")
        return _parsed(path.stem, parse_toml(text)), text


def _parsed(name: str, content: Mapping[str, Any]) -> PaperRecipe:
    from headlens.analyses.report.paper_tables import ComparedTable

    paper = {"small": "", **conform(content.get("paper"), dict[str, Any], "paper")}
    steps = tuple(Step.of(spec) for spec in conform(content.get("steps"), list[Any], "steps"))
    title, citation, setting, less = (conform(paper.get(key), str, f"{key} of paper") for key in _ABOUT)
    tables = conform(content.get("tables", []), list[Any], "tables")
    recipe = PaperRecipe(name, title, citation, setting, less, steps, tuple(tables))
    names = [step.name for step in steps]
    if not steps:
        raise ValueError("it has no step")
    if len(set(names)) < len(names):
        raise ValueError("two steps have the same name")
    for number, step in enumerate(steps):
        try:
            recipe.filled(step, dict.fromkeys(names[:number], ""))
        except KeyError as error:
            raise ValueError(f"step {step.name} takes something of {error}, which is no step before it") from error
    for table in recipe.tables:
        if (compared := ComparedTable.of(table)).step not in names:
            raise ValueError(f"the table {compared.title!r} is about {compared.step!r}, which is no step")
    return recipe
