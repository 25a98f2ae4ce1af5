"""Names of models: short ones for titles and tables, revisions on the hub, and the steps of checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from headlens.errors import ModelError

# How checkpoints end that Trainer, nanotron, DeepSpeed, Pythia, OLMo (with tokens) and MultiBERTs (in thousands) write.
_STEP = re.compile(
    r"(?:^|[^A-Za-z])(?:checkpoint|ckpt|global_?step|step|iter)[-_]?(?P<step>\d+)(?P<thousands>k?)(?:-tokens\w+)?$",
    re.IGNORECASE,
)


def short_model_name(name: str) -> str:
    """The last part of an id or folder; of the folder `model` that `headlens train` wrote, the name of its run."""
    path = Path(name.rstrip("/"))
    return path.parent.name if path.name == "model" and path.parent.name not in ("", "..") else path.name


def name_and_revision(name: str) -> tuple[str, str | None]:
    """The two parts of NAME@REVISION, which is a model on the hub; a folder that exists keeps its @.

    Raises:
        ModelError: if a revision is given of a folder, or none follows the @.
    """
    before, at, revision = name.partition("@")
    if not at or Path(name).expanduser().exists():
        return name, None
    if not before or not revision:
        raise ModelError(f"{name} is not NAME@REVISION.", "Name a model on the hub and a branch, tag or commit of it.")
    if Path(before).expanduser().is_dir() or before.startswith((".", "/", "~")) or before.count("/") > 1:
        raise ModelError(f"{name}: no such model folder.", "Only models on the hub have revisions (NAME@REVISION).")
    return before, revision


def training_step(name: str) -> int | None:
    """The number of updates in the name of a checkpoint (`checkpoint-500`, `NAME@step1000`); None where it has none."""
    found = _STEP.search(name.rstrip("/"))
    return None if found is None else int(found["step"]) * (1000 if found["thousands"] else 1)


def steps_of_one_training(names: Sequence[str]) -> dict[str, int]:
    """The steps of models whose names differ in their steps alone, by name, first step first.

    Returns:
        Nothing where these are not several checkpoints of one training, as far as their names tell.
    """
    steps = {name: step for name in names if (step := training_step(name)) is not None}
    trainings = {str(Path(_STEP.sub("", name.rstrip("/")))) for name in steps}
    if len(steps) < max(len(names), 2) or len(trainings) > 1 or len(set(steps.values())) < len(steps):
        return {}
    return dict(sorted(steps.items(), key=lambda item: item[1]))


def in_training_order(names: Sequence[str]) -> tuple[str, ...]:
    """Names of models as they were given; of checkpoints of one training in the order of their steps."""
    return tuple(steps_of_one_training(names) or names)


def recorded_steps(models: Sequence[Mapping[str, object]]) -> dict[str, int]:
    """The steps of models of a run by their names in tables; nothing where these are not checkpoints of one training.

    Args:
        models: what run.json says of each: `model`, the name in tables, and `name`, as it was given.
    """
    labels = {str(model.get("name", "")): str(model.get("model", "")) for model in models}
    return {labels[name]: step for name, step in steps_of_one_training(list(labels)).items()}


def first_and_last(steps: Mapping[str, int]) -> list[str]:
    """The models that are compared of checkpoints of one training, which has two at least; none of other models."""
    return [*steps][:: len(steps) - 1] if steps else []
