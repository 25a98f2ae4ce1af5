"""Searching for a number of heads, what is remembered, and the tables of a sweep."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from saved import build

from headlens.analyses.prune.options import LAMBDAS, PenaltySweepOptions, RoleOptions, SweepTraining
from headlens.analyses.prune.sweep import LEAST, MOST, UNPRUNED, PenaltyOutcome, gate_tables, nearest, search
from headlens.attention.sites import Site, find_sites
from headlens.errors import OptionError, ResumeError
from headlens.learning.hyperparameters import TrainingOptions
from headlens.learning.sweep import Trainings, run_name
from headlens.learning.training_options import TrainingSetOptions
from headlens.runs.processes import ALONE
from headlens.runs.progress import Reporter
from headlens.runs.run import Run
from headlens.tables.prune_tables import ROLES_KEPT, SWEEP
from headlens.tasks.task_options import TaskData


def made(strength: float, heads: int = 48) -> PenaltyOutcome:
    """The stronger, the fewer heads: all at 0.001, none at 10."""
    kept = min(heads, max(0, round(heads * (1 - math.log10(strength)) / 4)))
    names = [f"encoder.{i // 8}.{i % 8}" for i in range(heads)]
    return PenaltyOutcome(run_name(strength), strength, names[kept:], {n: float(i < kept) for i, n in enumerate(names)})


@given(target=st.integers(1, 47))
def test_the_search_finds_what_there_is(target: int) -> None:
    calls: list[float] = []

    def of(strength: float) -> PenaltyOutcome:
        calls.append(strength)
        return made(strength)

    found = search(of, target, 12)
    assert nearest(found, target).left == target
    assert len(calls) <= 12
    assert all(LEAST < s < MOST for s in calls)
    assert [o.penalty for o in found] == sorted(calls)
    assert len(set(calls)) == len(calls)


def test_the_search_ends_without_what_there_is_not() -> None:
    """Heads go in twos: an odd number is never met."""
    even = lambda s: made(s, 48) if made(s, 48).left % 2 == 0 else made(s * 1.2, 48)  # noqa: E731
    outcomes = [even(0.1), even(0.2)]
    found = search(lambda s: outcomes[s > 0.1], 25, 5)
    assert len(found) == 5
    assert nearest(found, 25) in outcomes


def test_the_search_ends_where_no_other_penalty_is_left() -> None:
    calls: list[float] = []

    def of(strength: float) -> PenaltyOutcome:
        calls.append(strength)
        return made(1e-4, 48)  # nothing ever closes

    found = search(of, 1, 50)
    assert len(found) == len(calls) == len(set(calls)) < 20
    assert max(calls) == MOST


def test_of_two_as_near_the_one_with_more_heads() -> None:
    few, many = made(1.0), made(0.01)
    between = (few.left + many.left) // 2
    assert nearest([few, many], between) is many


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lambdas": (0.1, -1.0)}, r"--lambdas -1\.0 is out of range\.\nGive at least 0"),
        ({"lambdas": ()}, r"No penalty was given\.\nName some with --lambdas"),
        ({"target_heads": 0}, "--target-heads 0 is out of range"),
        (
            {"target_heads": 4, "lambdas": (0.1,)},
            r"--target-heads and --lambdas cannot be combined\.\nGive one of them\.",
        ),
        ({"target_heads": 4, "lambdas": LAMBDAS}, "--target-heads and --lambdas cannot be combined"),
        ({"most_runs": 0}, "--law most-runs 0 is out of range"),
    ],
)
def test_sweeps_that_cannot_be(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        PenaltySweepOptions(**wrong)  # type: ignore[arg-type]


def test_penalties_of_a_sweep() -> None:
    assert PenaltySweepOptions().strengths == LAMBDAS
    assert PenaltySweepOptions(lambdas=(0.2, 0.1, 0.2)).strengths == (0.2, 0.1)
    assert PenaltySweepOptions(target_heads=4).strengths == ()


def test_trainings_that_cannot_be() -> None:
    for steps in (-3, 0):
        with pytest.raises(OptionError, match=f"--training-args scratch-steps {steps} is out of range"):
            SweepTraining(scratch_steps=steps)
    with pytest.raises(OptionError, match="--training-args scratch-learning-rate 0"):
        SweepTraining(scratch_learning_rate=0.0)
    with pytest.raises(OptionError, match="--training-args log-every 0"):
        SweepTraining(log_every=0)
    assert SweepTraining(steps=7, learning_rate=1.0).scratch().steps == 7
    assert SweepTraining(steps=7, scratch_steps=9).scratch().steps == 9
    assert SweepTraining(seed=3).scratch().learning_rate == 5e-4


@pytest.mark.parametrize(
    ("task", "given_", "message"),
    [
        ("sst2", {"corpus": "a.txt"}, r"--corpus is not for --task sst2\.\nName its data with --data"),
        ("sst2", {"dev": "a.txt"}, "--dev is not for --task sst2"),
        ("mlm", {"dev_data": "a.tsv"}, "--dev-data is not for --task mlm"),
        (
            "translation",
            {"dev_target": "a.en"},
            "--data-args dev-target only applies together with --dev",
        ),
        ("translation-loss", {}, "--task translation-loss can only be evaluated, not trained on"),
        # What was named as text is by now named as data; that it does not go along is no reason to name it again.
        ("translation-loss", {"dev_target": "a.en"}, "--task translation-loss can only be evaluated, not trained on"),
        ("sst2", {"dev_data": "a.tsv", "dev_target": "a.en"}, "--data-args dev-target is not for --task sst2"),
        ("cloze", {"dev_target": "a.en", "dev_share": 0.95}, "--data-args dev-target is not for --task cloze"),
        ("sst2", {"dev_share": 0.95}, r"--data-args dev-share 0\.95 is out of range"),
        ("sst2", {"dev_share": 0.0}, r"--data-args dev-share 0\.0 is out of range"),
        ("mlm", {"column": "text"}, "--column"),
    ],
)
def test_data_that_cannot_be(task: str, given_: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        TrainingSetOptions(TaskData(task), **given_)  # type: ignore[arg-type]


def test_half_of_the_embedded_task_is_held_out() -> None:
    assert TrainingSetOptions().share == 0.5
    assert TrainingSetOptions(TaskData("paraphrase", ("own.tsv",))).share == 0.1
    assert TrainingSetOptions(TaskData("mlm"), dev_share=0.2).share == 0.2


def test_translations_of_no_sentences() -> None:
    with pytest.raises(OptionError, match="--data-args roles-target only applies together with --roles-corpus"):
        RoleOptions(roles_target="a.en")


def test_runs_are_remembered(tmp_path: Path) -> None:
    class Folder:
        pass

    run = Run(tmp_path, Folder(), ALONE, Reporter())  # type: ignore[arg-type]
    trainings = Trainings(run, TrainingOptions())
    calls: list[int] = []

    def make() -> PenaltyOutcome:
        calls.append(1)
        return made(0.1)

    run.kept("").mkdir()
    first = trainings.remembered("penalty-0.1", make, PenaltyOutcome)
    assert trainings.remembered("penalty-0.1", make, PenaltyOutcome) == first == made(0.1)
    assert calls == [1]
    run.kept("penalty-0.1.json").write_text("{")
    with pytest.raises(ResumeError, match=r"penalty-0\.1\.json cannot be read"):
        trainings.remembered("penalty-0.1", make, PenaltyOutcome)


def metric(name: str, value: float) -> dict[str, object]:
    return {
        "metric": name,
        "value": value,
        "ci_low": value - 1,
        "ci_high": value + 1,
        "n": 9,
        "model": "?",
        "task": "?",
    }


SITES = [Site("encoder", 0, 2, "a"), Site("decoder", 0, 2, "b"), Site("cross", 0, 2, "c")]


def outcomes() -> list[PenaltyOutcome]:
    roles = {str(h): ["positional(-1)", "positional(-1)"] for s in SITES for h in s.heads}
    whole = PenaltyOutcome(UNPRUNED, metrics=[metric("bleu", 30.0), metric("chrf", 50.0)], roles=roles)
    pruned = PenaltyOutcome(
        "penalty-0.1",
        0.1,
        ["encoder.0.1", "cross.0.0"],
        {"encoder.0.0": 1.0, "encoder.0.1": 0.0, "cross.0.0": 0.0, "cross.0.1": 0.4},
        [{"step": 0, "stack": "encoder", "layer": 0, "head": 0, "log_alpha": 2.5, "p_open": 0.96, "gate": 1.0}],
        [{"step": 5, "loss": 1.0}],
        "models/penalty-0.1",
        roles | {"cross.0.1": ["none", ""]},
        [metric("bleu", 20.0), metric("chrf", 40.0)],
        "models/penalty-0.1-scratch",
        metrics=[metric("bleu", 29.0), metric("chrf", 49.0)],
    )
    return [whole, pruned]


def tables() -> dict[str, pd.DataFrame]:
    return gate_tables("tiny", "translation", "mean", SITES, ("encoder", "cross"), outcomes())


def test_a_row_per_run_start_and_metric() -> None:
    found = tables()["sweep"]
    assert found.columns.tolist() == SWEEP.names
    assert found[["run", "init", "metric", "value"]].to_numpy().tolist() == [
        ["unpruned", "trained", "bleu", 30.0],
        ["unpruned", "trained", "chrf", 50.0],
        ["penalty-0.1", "trained", "bleu", 29.0],
        ["penalty-0.1", "trained", "chrf", 49.0],
        ["penalty-0.1", "scratch", "bleu", 20.0],
        ["penalty-0.1", "scratch", "chrf", 40.0],
    ]
    assert found[["heads_encoder", "heads_decoder", "heads_cross"]].iloc[[0, 4]].to_numpy().tolist() == [
        [2, 2, 2],
        [1, 2, 1],
    ]
    last = found.iloc[4]
    assert (last["removed"], last["n_heads"], last["total_decoder"], last["between"]) == (
        "encoder.0.1 cross.0.0",
        4,
        2,
        1,
    )
    assert (last["checkpoint"], last["model"], last["task"], last["penalty_kind"]) == (
        "models/penalty-0.1-scratch",
        "tiny",
        "translation",
        "mean",
    )
    assert math.isnan(found["penalty"].iloc[0])


def test_stacks_that_a_model_lacks_are_empty() -> None:
    sites = find_sites(build("BertModel"))
    found = gate_tables("tiny", "sst2", "sum", sites, ("encoder",), outcomes()[:1])["sweep"]
    assert found["heads_encoder"].tolist() == [4, 4]
    assert found[["heads_decoder", "heads_cross"]].isna().all().all()


def test_gates_log_and_roles() -> None:
    frames = tables()
    assert frames["gates"].iloc[0].tolist() == ["penalty-0.1", 0.1, 0, "encoder", 0, 0, 2.5, 0.96, 1.0, "tiny"]
    assert frames["log"].to_dict("records") == [{"run": "penalty-0.1", "penalty": 0.1, "step": 5, "loss": 1.0}]
    roles = frames["roles"]
    assert roles.columns.tolist() == ROLES_KEPT.names
    assert len(roles) == 6
    after = roles.set_index(["stack", "layer", "head"])[["role", "kept", "role_pruned"]]
    assert after.loc[("cross", 0, 1)].tolist() == ["positional(-1)", True, "none"]
    gone = after.loc[("encoder", 0, 1)]
    assert not gone["kept"]
    assert pd.isna(gone["role_pruned"])
