"""Names of checkpoints: their steps and order, and revisions on the hub."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from headlens.errors import ModelError, OptionError
from headlens.models.loading import of_revision
from headlens.models.model_options import ModelOptions
from headlens.models.names import (
    first_and_last,
    in_training_order,
    name_and_revision,
    recorded_steps,
    short_model_name,
    steps_of_one_training,
    training_step,
)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("run/checkpoints/checkpoint-500", 500),
        ("run/checkpoints/checkpoint-500/", 500),
        ("checkpoint-0", 0),
        ("step1000", 1000),
        ("step-1000", 1000),
        ("out/global_step500", 500),
        ("EleutherAI/pythia-14m@step512", 512),
        ("allenai/OLMo-1B@step20000-tokens84B", 20000),
        ("allenai/OLMo-2@stage1-step140000-tokens294B", 140000),
        ("google/multiberts-seed_0-step_20k", 20000),
        ("footstep-3", None),
        ("bert-base-uncased", None),
        ("checkpoint-best", None),
        ("checkpoint-500/model", None),
        ("opt-125m", None),
        ("", None),
    ],
)
def test_the_step_of_a_checkpoint(name: str, step: int | None) -> None:
    assert training_step(name) == step


FOLDERS = ("run/checkpoint-0", "run/checkpoint-500", "run/checkpoint-1000", "run/checkpoint-10000")


@pytest.mark.parametrize("given", list(itertools.permutations(FOLDERS)))
def test_checkpoints_are_ordered_by_step_whatever_the_order(given: tuple[str, ...]) -> None:
    assert in_training_order(given) == FOLDERS
    assert steps_of_one_training(given) == dict(zip(FOLDERS, (0, 500, 1000, 10000), strict=True))


@pytest.mark.parametrize(
    "names",
    [
        ("b/checkpoint-2", "a/checkpoint-1"),
        ("somebody/a@step2", "somebody/b@step1"),
        ("checkpoint-2", "checkpoint-1", "bert"),
        ("checkpoint-2", "checkpoint-2"),
        ("step02", "step2"),
        ("checkpoint-2",),
        ("bert", "albert"),
        (),
    ],
)
def test_other_models_keep_their_order(names: tuple[str, ...]) -> None:
    assert in_training_order(names) == names
    assert steps_of_one_training(names) == {}


def test_a_run_knows_its_steps_by_the_names_of_its_tables() -> None:
    models = [{"model": f"at {step}", "name": f"./run/checkpoint-{step}/"} for step in (20, 100, 3)]
    models[0]["name"] = "run/checkpoint-20"
    steps = recorded_steps(models)
    assert list(steps.items()) == [("at 3", 3), ("at 20", 20), ("at 100", 100)]
    assert first_and_last(steps) == ["at 3", "at 100"]
    # In tables they look alike, but their folders tell that they are of two trainings.
    assert recorded_steps([{"model": f"checkpoint-{n}", "name": f"run{n}/checkpoint-{n}"} for n in (1, 2)]) == {}
    assert recorded_steps([{}, {"model": "demo"}]) == {}
    assert first_and_last({}) == []


def test_a_revision_follows_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert name_and_revision("EleutherAI/pythia-14m@step1000") == ("EleutherAI/pythia-14m", "step1000")
    assert name_and_revision("gpt2@refs/pr/1") == ("gpt2", "refs/pr/1")
    assert name_and_revision("gpt2") == ("gpt2", None)
    Path("here@home").mkdir()
    for name in ("here@home", "./here@home", str(tmp_path / "here@home")):
        assert name_and_revision(name) == (name, None)
    assert short_model_name("EleutherAI/pythia-14m@step1000") == "pythia-14m@step1000"


@pytest.mark.parametrize("name", ["here@step1", "./gone@step1", "/gone/model@step1", "a/b/c@step1"])
def test_folders_have_no_revisions(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    with pytest.raises(ModelError, match="no such model folder") as refused:
        name_and_revision(name)
    assert refused.value.advice == "Only models on the hub have revisions (NAME@REVISION)."


@pytest.mark.parametrize("name", ["gpt2@", "@step1"])
def test_half_a_revision_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="is not NAME@REVISION"):
        name_and_revision(name)


def test_two_revisions_are_refused() -> None:
    assert of_revision("gpt2@v2", ModelOptions()) == ("gpt2", ModelOptions(revision="v2"))
    assert of_revision("gpt2", ModelOptions(revision="v1")) == ("gpt2", ModelOptions(revision="v1"))
    with pytest.raises(OptionError, match="gpt2@v2 names a revision, and so does --model-args revision=v1") as refused:
        of_revision("gpt2@v2", ModelOptions(revision="v1"))
    assert refused.value.advice == "Leave out one of them."
