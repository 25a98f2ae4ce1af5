"""What all tasks promise: metrics of weighted records, records in step with their columns."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_tasks import TASKS, example

from headlens.errors import OptionError
from headlens.statistics.bootstrap import Draws
from headlens.statistics.non_inferiority import Margin
from headlens.tasks.catalogue import CATALOGUE, find_task
from headlens.tasks.classification import ChoiceTask, CorrelationTask, SequenceClassification
from headlens.tasks.evaluation import paired_comparison
from headlens.tasks.language_modeling import LogitDifference
from headlens.tasks.masked import Likelihood
from headlens.tasks.task import PreparedExample, Task
from headlens.tasks.task_options import LENGTH_TELLS


def random_records(task: Task, n: int, seed: int) -> Any:
    """Numbers that such a task can give: classes where there are classes, counts where there are counts."""
    generator = np.random.default_rng(seed)
    records = generator.integers(0, 4, size=(n, len(task.columns))).astype(float)
    for column, name in enumerate(task.columns):
        if name in {"nll", "margin", "predicted"} and "label" not in task.columns[:1]:
            records[:, column] += generator.random(n).round(2)
        if name.startswith(("exact", "f1")):
            records[:, column] = records[:, column] / 3
    if task.columns[0] == "label" and task.labels:
        records[:, :2] %= len(task.labels)
    return records


@pytest.mark.parametrize("name", TASKS)
@given(weights=st.lists(st.integers(0, 3), min_size=1, max_size=15), seed=st.integers(0, 1000))
def test_weights_are_repetitions(name: str, weights: list[int], seed: int) -> None:
    task = TASKS[name]
    records = random_records(task, len(weights), seed)
    repeated = records.repeat(weights, axis=0)
    if not len(repeated):
        return
    for metric in task.metrics:
        expected = task.value(repeated, metric=metric)
        close = pytest.approx(expected, rel=1e-12, abs=1e-8, nan_ok=True)
        assert task.value(records, np.array(weights), metric) == close


@pytest.mark.parametrize("name", TASKS)
@given(mixed=st.lists(st.booleans(), min_size=4, max_size=12), seed=st.integers(0, 1000))
def test_examples_that_do_not_change_give_the_same_metric(name: str, mixed: list[bool], seed: int) -> None:
    """Whatever the weights: nothing that counts in a metric differs for those that are not called changed."""
    task, chosen = TASKS[name], np.array(mixed)
    theirs, ours = (random_records(task, len(chosen), number) for number in (seed, seed + 1))
    ours = np.where(chosen[:, None], ours, theirs)
    if task.columns[0] == "gold":
        ours[:, 0] = theirs[:, 0]
    weights = np.random.default_rng(seed).integers(0, 3, (4, len(chosen))).astype(float)
    for metric in task.metrics:
        same = ~task.changed(ours, theirs, metric)
        assert same[~chosen].all() or metric in ("spearman", "best_f1", "best_exact"), "where others change places"
        if same.any():
            values = (task.statistic(metric, rows[same], weights[:, same]) for rows in (ours, theirs))
            np.testing.assert_allclose(*values, rtol=1e-12, atol=1e-12)
        assert not task.changed(theirs, theirs, metric).any()


@pytest.mark.parametrize(
    ("name", "metric", "column", "factor"),
    [
        ("similarity", "spearman", "predicted", 1.1),  # no two change places
        ("stsb", "spearman", "predicted", 1.1),
        ("squad2", "best_f1", "margin", 1.1),
        ("squad", "f1", "margin", 1.1),
        ("translation", "bleu", "chrf_match_1", 0.9),
        ("translation", "chrf", "bleu_match_1", 0.9),
        ("mlm", "accuracy", "nll", 1.1),
        ("mrpc", "f1", "nll", 1.1),
    ],
)
def test_what_a_metric_does_not_see_proves_nothing(name: str, metric: str, column: str, factor: float) -> None:
    """A loss below the margin is shown by examples that change, not by numbers behind them."""
    task = TASKS[name]
    records = random_records(task, 40, 3)
    other = records.copy()
    other[:, task.columns.index(column)] *= factor
    assert (other != records).any(axis=1).sum() > 10
    draws = Draws.of([str(n) for n in range(40)], 200)
    found = paired_comparison(task, metric, records, draws, Margin(0.01)).of(other)
    assert (found.delta, found.p_value) == (0, 1)
    assert np.isnan([found.low, found.high, found.p_margin, found.n_to_decide]).all()


@pytest.mark.parametrize("name", TASKS)
def test_what_is_finer_knows_better_models_of_the_same_answers(name: str) -> None:
    task = TASKS[name]
    records = random_records(task, 20, 1)
    records[:, 1:2] += isinstance(task, Likelihood)  # tokens
    better = records.copy()
    for column, says in enumerate(task.columns):
        better[:, column] += {"nll": -0.5, "margin": 0.5}.get(says, 0.0)
    told = "nll" in task.columns or isinstance(task, ChoiceTask)
    assert (task.finer(better) > task.finer(records)) == told
    assert told or task.finer(records) == 0


@pytest.mark.parametrize("name", TASKS)
def test_many_weightings_at_once_are_each_of_them(name: str) -> None:
    task = TASKS[name]
    records = random_records(task, 40, 1)
    weights = np.random.default_rng(2).multinomial(40, np.full(40, 1 / 40), size=6).astype(float)
    for metric in task.metrics:
        together = task.replicates(records, weights, metric)
        assert together.shape == (6,)
        np.testing.assert_allclose(together, [task.value(records, w, metric) for w in weights], atol=1e-12)
        shuffled = np.random.default_rng(3).permutation(40)
        assert task.value(records[shuffled], metric=metric) == pytest.approx(task.value(records, metric=metric))


@pytest.mark.parametrize("name", TASKS)
def test_metrics_of_right_and_wrong_are_the_share_that_is_right(name: str) -> None:
    task = TASKS[name]
    records = random_records(task, 40, 1)
    records[:, [c.startswith("exact") for c in task.columns]] = (
        records[:, [c.startswith("exact") for c in task.columns]] > 0.5
    )
    shares = {metric: task.right(records, metric) for metric in task.metrics}
    for metric, right in shares.items():
        if right is not None:
            assert set(right) <= {0.0, 1.0}
            assert right.mean() == pytest.approx(task.value(records, metric=metric))
    # Metrics that count tokens, and the best of several thresholds, are no such share.
    expected = {"accuracy", "acc_norm", "exact"} if "tokens" not in task.columns else set()
    assert {metric for metric, right in shares.items() if right is not None} == expected & set(task.metrics)


@pytest.mark.parametrize("name", TASKS)
def test_chance_is_what_the_best_constant_answer_gives(name: str) -> None:
    task = TASKS[name]
    records = random_records(task, 40, 1)
    if name in LENGTH_TELLS:
        longer = records[:, task.columns.index("longer")]
        by_length = [np.where(longer == 0, 0.5, longer * sign > 0).mean() for sign in (-1, 1)]
        assert task.chance(records) == pytest.approx(max(by_length))
    elif isinstance(task, ChoiceTask):
        assert task.chance(records) == pytest.approx(0.25 if name == "swag" else 0.5)
    elif isinstance(task, SequenceClassification):
        always = [
            np.column_stack([records[:, 0], np.full(40, said), records[:, 2]]) for said in range(len(task.labels))
        ]
        assert task.chance(records) == max(map(task.value, always))
    elif isinstance(task, CorrelationTask | LogitDifference):
        assert task.chance(records) == 0
    else:
        assert task.chance(records) is None


@pytest.mark.parametrize("name", TASKS)
def test_the_loss_of_chance_is_that_of_the_best_constant_answer(name: str) -> None:
    task = TASKS[name]
    prepared = [PreparedExample(n, example(task, n % 7), ()) for n in range(20)]
    found = task.chance_loss(prepared)
    labels = [getattr(p.example, "label", None) for p in prepared]
    if isinstance(task, SequenceClassification):
        assert found == pytest.approx(-np.mean([np.log(labels.count(label) / 20) for label in labels]))
    elif isinstance(task, CorrelationTask):
        scores = np.array(labels) / (5 if name == "similarity" else 1)
        always = [np.mean((scores - said) ** 2) for said in (scores.mean(), scores.mean() + 0.01, scores.mean() - 0.01)]
        assert found == pytest.approx(always[0])
        assert found < min(always[1:])
        assert task.loss_name == "squared error"
    elif isinstance(task, ChoiceTask):
        assert found == pytest.approx(np.log(4 if name == "swag" else 2))
    else:
        assert np.isnan(found)


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if isinstance(task, Likelihood)])
def test_chance_of_tokens_is_the_best_constant_distribution(name: str) -> None:
    """Against a fine grid of distributions over three tokens: none has a lower loss, none a higher accuracy."""
    task, counts = TASKS[name], {7: 5, 3: 3, 11: 2}
    found = {metric: task.chance(np.zeros((0, 3)), metric, counts) for metric in task.metrics}
    grid = [np.array([a, b, 100 - a - b]) / 100 for a in range(1, 99) for b in range(1, 100 - a)]
    losses = [-(np.array(list(counts.values())) * np.log(shares)).sum() / 10 for shares in grid]
    assert found["loss"] == pytest.approx(min(losses))
    assert found["perplexity"] == pytest.approx(np.exp(min(losses)))
    assert found["accuracy"] == 0.5
    assert task.chance(np.zeros((0, 3)), None, counts) == found[task.metrics[0]]
    assert task.chance(np.zeros((0, 3)), "loss", {}) is None


@pytest.mark.parametrize("name", TASKS)
def test_descriptions(name: str) -> None:
    task = TASKS[name]
    assert task.name == name
    assert set(task.values(random_records(task, 9, 0))) == set(task.metrics)
    assert task.higher_is_better is (task.metrics[0] != "loss")
    hash(task)
    with pytest.raises(OptionError, match=f"The task {name} has no metric 'beauty'.\nIt has {task.metrics[0]}"):
        task.value(random_records(task, 9, 0), metric="beauty")


def test_every_task_of_glue_has_its_own_metric() -> None:
    main = {name: task.metrics for name, task in TASKS.items()}
    assert main["cola"][0] == "matthews"
    assert main["mrpc"] == main["qqp"] == ("f1", "accuracy")
    assert main["stsb"] == ("pearson", "spearman")
    assert {main[name][0] for name in ("sst2", "mnli", "mnli-mm", "qnli", "rte", "snli", "swag")} == {"accuracy"}
    assert TASKS["rte"].labels == ("entailment", "not_entailment")
    assert CATALOGUE["mnli"].split == "validation_matched"
    assert CATALOGUE["mnli-mm"].split == "validation_mismatched"
    assert CATALOGUE["mnli-mm"].dataset == CATALOGUE["mnli"].dataset == "nyu-mll/glue:mnli"


def test_unknown_tasks() -> None:
    with pytest.raises(OptionError, match=r"Unknown task 'sts'\.\nChoose one with --task: paraphrase, "):
        find_task("sts")
