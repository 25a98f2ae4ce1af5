"""What a step needs that this machine does not have: a GPU, the hub, a model of a parser, an earlier step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from huggingface_hub import constants

from headlens.analyses.reproduce.paper_recipe import Step
from headlens.hub_access import hub_answers
from headlens.models.loading import choose_device

_HUB, _SPACY = "hub:", "spacy:"
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_MODEL_OPTIONS = ("model", "models")


def missing_of(steps: Sequence[Step]) -> dict[str, str]:
    """Returns what steps would need to be run here, by name; those that can be run are left out.

    Args:
        steps: in order, before what earlier ones leave is filled in.
    """
    accelerated, answers = cache(lambda: choose_device("auto").type != "cpu"), cache(hub_answers)
    missing: dict[str, list[str]] = {}
    for step in steps:
        needs = [text for name in sorted(step.references) for text in missing.get(name, [])]
        needs += ["a GPU"] * (step.gpu and not accelerated())
        uncached = [name for name in _hub_names(step) if not _is_cached(name)]
        needs += [f"{_HUB}{name}" for name in uncached] if uncached and not answers() else []
        needs += [f"the spaCy model {name}" for name in _parser_models(step) if not _is_installed(name)]
        if needs:
            missing[step.name] = list(dict.fromkeys(needs))
    return {name: ", ".join(needs) for name, needs in missing.items()}


def _hub_names(step: Step) -> Iterator[str]:
    """Yields the models and data sets of the hub that a step names."""
    for text in step.texts:
        if text.startswith(_HUB):
            yield text.removeprefix(_HUB).partition(":")[0]
    for option in _MODEL_OPTIONS:
        given = step.options.get(option, ())
        for model in given if isinstance(given, list) else [given]:
            if isinstance(model, str) and _REPOSITORY.fullmatch(model) and not Path(model).exists():
                yield model


def _is_cached(name: str) -> bool:
    """Whether the caches of the hub's client or of `datasets` have something of a repository."""
    folders = [Path(constants.HF_HUB_CACHE) / f"{kind}--{name.replace('/', '--')}" for kind in ("models", "datasets")]
    return any(
        folder.is_dir() for folder in [*folders, Path(constants.HF_HOME) / "datasets" / name.replace("/", "___")]
    )


def _parser_models(step: Step) -> Iterator[str]:
    parser = step.options.get("parser")
    if isinstance(parser, str) and parser.startswith(_SPACY):
        yield parser.removeprefix(_SPACY)


def _is_installed(name: str) -> bool:
    """Whether spaCy finds a model: a package, or a folder."""
    return Path(name).exists() or (name.isidentifier() and find_spec(name) is not None)
