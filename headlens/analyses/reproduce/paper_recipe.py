"""Recipes: the settings of a paper as commands and their options, in order, and the tables they are compared with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from headlens.analyses.reproduce.options import Scale
from headlens.nested_text import conform, parse_toml

_FOLDER = Path(__file__).parent / "recipes"
# What an earlier step left, as in `model = "{baseline}/model"` or `mask = ["{dam}/masks/soft/mask.safetensors"]`.
_MODEL = re.compile(r"\{([\w-]+)\}/model\b")
_FOLDER_OF = re.compile(r"\{([\w-]+)\}")
_ABOUT = ("title", "citation", "setting")
SCALES: tuple[Literal["small"], Literal["card"]] = ("small", "card")  # besides that of the paper, `full`
_NOT_OPTIONS = ("name", "command", "why", "gpu", *SCALES)
_WHOLE = "the whole recipe, --scale full"


@dataclass(frozen=True)
class ScaledStep:
    """What is otherwise in a step at another scale than the paper's.

    Args:
        name: of its folder, where that is about something else.
        why: what it is for, where that is something else.
        options: that overrule the full ones, where an empty text leaves an option out; None leaves the step out.
    """

    name: str
    why: str
    options: Mapping[str, Any] | None

    @classmethod
    def of(cls, spec: Mapping[str, Any], scale: str) -> ScaledStep:
        """Reads the table of a scale from the entry of a step.

        Without one the step stays as it is, but is left out at the scale `card` if it needs a GPU: it would take longer
        than that scale allows.
        """
        usual = {"skip": True} if scale == "card" and spec.get("gpu", False) else {}
        options = conform(spec.get(scale, usual), dict[str, Any], f"{scale} of a step")
        name, why = (conform(options.pop(key, spec.get(key)), str, f"{key} of a step") for key in ("name", "why"))
        return cls(name, why, None if options.pop("skip", False) else options)


@dataclass(frozen=True)
class Step:
    """A command with its options.

    Args:
        name: of its folder.
        command: of headlens.
        why: what it is for.
        options: by the names of the command line, without dashes.
        scales: what is otherwise at other scales, by their names.
        gpu: whether it is so long without a GPU that it is not begun on a machine that has none; never of `small`.
    """

    name: str
    command: str
    why: str
    options: Mapping[str, Any]
    scales: Mapping[str, ScaledStep] = field(default_factory=dict)
    gpu: bool = False

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Step:
        """Creates a step from its entry in a recipe file; a ValueError says what is wrong with it."""
        spec = conform(spec, dict[str, Any], "a step")
        options = {key: value for key, value in spec.items() if key not in _NOT_OPTIONS}
        name, command, why = (conform(spec.get(key), str, f"{key} of a step") for key in ("name", "command", "why"))
        gpu = conform(spec.get("gpu", False), bool, "gpu of a step")
        return cls(name, command, why, options, {scale: ScaledStep.of(spec, scale) for scale in SCALES}, gpu)

    def at(self, scale: Literal["small", "card"]) -> Step | None:
        """Returns the step with the options of a scale in place of the full ones; None if it has none there."""
        scaled = self.scales[scale]
        if scaled.options is None:
            return None
        options = {key: value for key, value in {**self.options, **scaled.options}.items() if value != ""}
        return Step(scaled.name, self.command, scaled.why, options, gpu=self.gpu and scale != "small")

    def texts(self, *names: str) -> list[str]:
        """The values of its options that are texts, also those in lists; of all options, or of those named."""
        given = [self.options[name] for name in names or self.options if name in self.options]
        values = [v for value in given for v in (value if isinstance(value, list) else [value])]
        return [value for value in values if isinstance(value, str)]

    def filled(self, folders: Mapping[str, str], models: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Its options, with the folders and models of earlier steps filled in.

        Args:
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

        return {key: fill(value) for key, value in self.options.items()}

    @property
    def references(self) -> set[str]:
        """Names of the earlier steps from whose folders it reads."""
        return {match[1] for text in self.texts() for match in _FOLDER_OF.finditer(text)}

    @property
    def model(self) -> str | None:
        """The model that it begins with."""
        models: Any = self.options.get("model", self.options.get("models"))
        return models if models is None else str(models[0] if isinstance(models, list) else models)


@dataclass(frozen=True)
class PaperRecipe:
    """The setting of a paper.

    Args:
        name: as it is asked for.
        title, citation: of the paper.
        setting: what is the paper's in it, and what is not.
        less: what is otherwise at the scales `small` and `card`, by their names.
        steps: in order.
        tables: of the paper, as `headlens.analyses.reproduce.paper_tables.ComparedTable` reads them.
        small_tables: the same for what stands in for the paper's runs at the scale `small`.
        claims: of the paper's text, as `headlens.analyses.reproduce.claims.Claim` reads them.
        figures: of the paper, as `headlens.analyses.reproduce.paper_tables.ComparedFigure` reads them.
        stand_ins: names of the steps that are not as in the paper's setting, and what the paper's tables need in their
            place.
    """

    name: str
    title: str
    citation: str
    setting: str
    less: Mapping[str, str]
    steps: tuple[Step, ...]
    tables: tuple[Mapping[str, Any], ...]
    small_tables: tuple[Mapping[str, Any], ...] = ()
    claims: tuple[Mapping[str, Any], ...] = ()
    figures: tuple[Mapping[str, Any], ...] = ()
    stand_ins: Mapping[str, str] = field(default_factory=dict)

    def at(self, scale: Scale) -> PaperRecipe:
        """The same steps at another scale, with tables of their own.

        Numbers of steps that are otherwise than in the whole recipe do not stand in the paper's tables. At the scale
        `small` the recipe has others for them; at `card` they stand beside the paper's cells once more, in tables that
        are named as a smaller setting.
        """
        if scale == "full":
            return self
        scaled_steps = [(step, step.at(scale)) for step in self.steps]
        steps = tuple(scaled for _, scaled in scaled_steps if scaled is not None)
        stand_ins: dict[str, str] = {}
        for step, scaled in scaled_steps:
            alike = scaled is not None and (scaled.name, scaled.options) == (step.name, step.options)
            if not alike or step.references & set(stand_ins):
                stand_ins[step.name] = _WHOLE
        own = self.small_tables if scale == "small" else tuple(self._beside_the_paper(steps, stand_ins))
        tables, less = (*self.tables, *own), self.less[scale]
        return replace(self, setting=less, steps=steps, tables=tables, small_tables=(), stand_ins=stand_ins)

    def _beside_the_paper(self, steps: Sequence[Step], stand_ins: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
        """The tables of the paper that have numbers of these steps, named as those of a smaller setting."""
        from headlens.analyses.reproduce.paper_tables import ComparedTable

        smaller = {step.name for step in steps} & set(stand_ins)
        for table in self.tables:
            if smaller & {source.step for source in ComparedTable.of(table).sources()}:
                title = f"Smaller setting (--scale card) in place of: {table['title']}"
                yield {**table, "title": title, "scale": "card"}


def recipe_names() -> list[str]:
    """Names of the recipes that come with headlens, in alphabetical order."""
    return sorted(file.stem for file in _FOLDER.glob("*.toml"))


def packaged(name: str) -> Path | None:
    """The file of a bundled recipe; None if there is none of that name."""
    return _FOLDER / f"{name}.toml" if name in recipe_names() else None


def read_recipe(name: str) -> tuple[PaperRecipe, str]:
    """A recipe and its text.

    Args:
        name: of a bundled recipe, or the path of a TOML file.

    Raises:
        OptionError: if there is none, or what it says cannot be read.
    """
    from headlens.errors import OptionError, did_you_mean, read_errors

    given_path = Path(name)
    path = given_path if given_path.suffix == ".toml" else packaged(name)
    if path is None or not path.is_file():
        hint = did_you_mean(name, recipe_names(), f"Available recipes: {', '.join(recipe_names())}.")
        raise OptionError(f"There is no recipe {name}.", f"{hint} A file of your own ends in .toml.")
    advice = f"headlens reproduce {recipe_names()[0]} --show prints one."
    with read_errors(path, "is not a recipe", advice, OptionError):
        text = path.read_text(encoding="utf-8")
        return _parsed(path.stem, parse_toml(text)), text


def _parsed(name: str, content: Mapping[str, Any]) -> PaperRecipe:
    paper = dict.fromkeys(SCALES, "") | conform(content.get("paper"), dict[str, Any], "paper")
    steps = tuple(Step.of(spec) for spec in conform(content.get("steps"), list[Any], "steps"))
    title, citation, setting = (conform(paper.get(key), str, f"{key} of paper") for key in _ABOUT)
    less: dict[str, str] = {scale: conform(paper[scale], str, f"{scale} of paper") for scale in SCALES}
    tables, claims, figures = (conform(content.get(n, []), list[Any], n) for n in ("tables", "claims", "figures"))
    names = [step.name for step in steps]
    if not steps:
        raise ValueError("it has no step")
    if len(set(names)) < len(names):
        raise ValueError("two steps have the same name")
    for number, step in enumerate(steps):
        try:
            step.filled(dict.fromkeys(names[:number], ""))
        except KeyError as error:
            raise ValueError(f"step {step.name} refers to {error}, which is not an earlier step") from error
        if renamed := {s.name for s in steps if any(own.name != s.name for own in s.scales.values())} & step.references:
            raise ValueError(f"step {step.name} refers to {min(renamed)}, which has another name at another scale")
    of_paper, of_small = _checked_tables(tables, claims, figures, steps)
    return PaperRecipe(name, title, citation, setting, less, steps, of_paper, of_small, tuple(claims), tuple(figures))


def _checked_tables(
    tables: Sequence[Any], claims: Sequence[Any], figures: Sequence[Any], steps: Sequence[Step]
) -> list[tuple[Mapping[str, Any], ...]]:
    """Returns the tables of the paper, and those of the small setting.

    Raises:
        ValueError: if one of them, a claim or a figure cannot be read, or is about a step that there is not.
    """
    from headlens.analyses.reproduce.claims import Claim
    from headlens.analyses.reproduce.paper_cells import step_and_task
    from headlens.analyses.reproduce.paper_tables import ComparedFigure, ComparedTable

    names = {step.name for step in steps}
    small_names = {scaled.name for step in steps if (scaled := step.at("small")) is not None}
    read = [ComparedTable.of(table) for table in tables]
    if len({table.title for table in read}) < len(read):
        raise ValueError("two tables have the same title")
    for compared in read:
        known, where = (small_names, "no step of the small setting") if compared.small else (names, "no step")
        if unknown := sorted({source.step for source in compared.sources()} - known):
            raise ValueError(f"the table {compared.title!r} is about {unknown[0]!r}, which is {where}")
    for claim in map(Claim.of, claims):
        if unknown := sorted({step_and_task(name)[0] for name in claim.steps} - names):
            raise ValueError(f"the claim {claim.claim!r} is about {unknown[0]!r}, which is no step")
    for figure in map(ComparedFigure.of, figures):
        if unknown := sorted(set(figure.steps) - names):
            raise ValueError(f"the figure {figure.title!r} is about {unknown[0]!r}, which is no step")
    pairs = list(zip(tables, read, strict=True))
    return [tuple(spec for spec, table in pairs if table.small == small) for small in (False, True)]
