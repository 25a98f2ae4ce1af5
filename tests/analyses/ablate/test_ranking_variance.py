"""How much rankings change: ranks on parts of the examples against scores by hand, the table and the sentences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_tasks import TASKS, given_examples
from saved import build
from scipy import stats
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.analyses.ablate.pruning_strategies import Score
from headlens.analyses.ablate.ranking_overviews import stable_rankings
from headlens.analyses.ablate.ranking_variance import variance_notes, variance_table
from headlens.analyses.ablate.rankings import agreement_table, rankings_table
from headlens.analyses.ablate.scorers import (
    AttributionEstimator,
    ExampleScores,
    ImportanceEstimator,
    ImportanceScorer,
    RankingScorer,
    RelevanceEstimator,
    ShapleyEstimator,
)
from headlens.analyses.ablate.sweep import TaskSweep, task_heads
from headlens.heads import Head
from headlens.models.loading import LoadedModel
from headlens.runs.reading import RecordedRun
from headlens.statistics.ranking_reliability import random_halves
from headlens.tasks.task_examples import Examples
from headlens.tasks.task_heads import with_task_head

Made = tuple[PreTrainedModel, Examples]


def made(tokenizer: PreTrainedTokenizerBase, task: str) -> Made:
    bare = LoadedModel("tiny", build("BertModel", len(tokenizer), max_position_embeddings=80), tokenizer, None)
    model = with_task_head(bare, TASKS[task], 0).model.eval()
    return model, given_examples(TASKS[task], model, tokenizer, 6)


@pytest.mark.parametrize("task", ["sst2", "swag"])
@pytest.mark.parametrize("kind", [ImportanceEstimator, AttributionEstimator, ShapleyEstimator, RelevanceEstimator])
def test_scores_of_some_examples_are_those_of_a_run_on_them(
    wordpiece_tokenizer: PreTrainedTokenizerBase, kind: type[ImportanceEstimator], task: str
) -> None:
    model, examples = made(wordpiece_tokenizer, task)
    chosen = np.array([True, False, True, True, False, False])
    scores = kind(model, examples, 60, print).by_example()
    part = examples.part(chosen)
    if kind is ShapleyEstimator:  # whose orders depend on the place of an example
        expected = scores.sums[0][chosen].mean(0)
    else:
        expected = np.array([*(alone := kind(model, part, None, print)(frozenset())).values()])
        assert tuple(alone) == scores.heads
    found = kind(model, examples, 60, print).worth(scores.mean(chosen))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)
    everything = kind(model, examples, None, print)(frozenset())
    np.testing.assert_allclose(
        [*everything.values()], kind(model, examples, None, print).worth(scores.mean()), rtol=1e-4
    )


def test_scores_survive_a_checkpoint_to_the_last_bit() -> None:
    heads = [Head("encoder", 0, 1), Head("cross", 1, 0)]
    scores = ExampleScores(heads, np.random.default_rng(0).normal(size=(2, 5, 2)), np.array([1.0, 2, 1, 1, 3]))
    again = ExampleScores()
    again.take(scores.dump())
    assert again.heads == tuple(heads)
    np.testing.assert_array_equal(again.sums, scores.sums)
    np.testing.assert_array_equal(again.mean(np.arange(5) < 3, slice(1, 2)), scores.sums[1, :3].sum(0) / 4)


def test_ranks_are_those_of_the_table_of_rankings(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    model, examples = made(wordpiece_tokenizer, "sst2")
    heads = task_heads(model, examples.task)
    importance = ImportanceScorer(ImportanceEstimator(model, examples, None, print))
    swept = TaskSweep().run(model, examples)
    ranked = RankingScorer(model, examples, "accuracy", lambda _: TaskSweep(), dict(swept.items()))
    every = np.ones(len(examples), bool)
    for name, scorer in (("importance", importance), ("ranked", ranked)):
        scores = {head: Score.of(score) for head, score in scorer.without(frozenset(), heads).items()}
        table = rankings_table({name: scores}, 0.0, {}, 6)
        # The first rank is that of the head that is worth most.
        assert (len(heads) + 1 - scorer.ranks(heads, every)).tolist() == table["rank"].tolist()
    recorded = ImportanceScorer(lambda _: dict.fromkeys(heads, 1.0))
    assert np.isnan(recorded.ranks(heads, every)).all()
    assert recorded.rounds == []


def simulated(noise: float) -> np.ndarray:
    """What each of 40 examples says of 30 heads."""
    rng = np.random.default_rng(5)
    return np.linspace(0, 1, 30) + rng.normal(0, noise, (40, 30))


KEYS = [f"{n}" for n in range(40)]


def test_rows_are_correlations_of_halves() -> None:
    sharp, blurred = simulated(0.2), simulated(1.5)
    rankers = {
        "ranked": lambda chosen: stats.rankdata(sharp[chosen].mean(0)),
        "shapley": lambda chosen: stats.rankdata(blurred[chosen].mean(0)),
    }
    rounds = [blurred[:, :].mean(0) + step for step in np.random.default_rng(0).normal(0, 0.3, (4, 30))]
    table, corrected = variance_table(rankers, KEYS, 7, rounds)
    rows = table.set_index(["strategy", "source"])
    shares = rows.loc["all", "share"]
    assert shares.sum() == pytest.approx(1)
    assert list(shares.index) == ["heads", "strategy", "examples"]
    halves = random_halves(KEYS, 30, 7)
    expected = [stats.spearmanr(blurred[h].mean(0), blurred[~h].mean(0)).statistic for h in halves]
    own = rows.loc["shapley", "examples"]
    assert own["correlation"] == pytest.approx(np.mean(expected))
    assert own["reliability"] == pytest.approx(2 * np.mean(expected) / (1 + np.mean(expected)))
    assert own["share"] == pytest.approx(1 - own["reliability"])
    assert own["low"] < own["reliability"] < own["high"]
    assert rows.loc["ranked", "examples"]["reliability"] > 0.95
    orders = rows.loc["shapley", "orders"]
    both = stats.spearmanr(np.mean(rounds[:2], axis=0), np.mean(rounds[2:], axis=0)).statistic
    assert (orders["correlation"], orders["reliability"]) == pytest.approx((both, 2 * both / (1 + both)))
    plain = stats.spearmanr(sharp.mean(0), blurred.mean(0)).statistic
    assert corrected.loc["ranked", "shapley"] > plain
    assert corrected.loc["ranked", "shapley"] == corrected.loc["shapley", "ranked"]
    worths = {
        name: {Head("encoder", n // 6, n % 6): Score(-v) for n, v in enumerate(values.mean(0))}
        for name, values in (("ranked", sharp), ("shapley", blurred))
    }
    agreement = agreement_table(rankings_table(worths, 0.0, {}, 40), 0, corrected)
    assert agreement["corrected"].tolist() == [corrected.loc["ranked", "shapley"]]


def test_a_ranking_that_turns_over_is_no_more_than_unreliable() -> None:
    """Examples that speak for the opposite of each other: two halves agree less than by chance."""
    values = np.linspace(0, 1, 30) * np.repeat([1.0, -1.0], 20)[:, None]
    rounds = [np.linspace(0, 1, 30), np.linspace(1, 0, 30)]
    table, _ = variance_table({"ranked": lambda chosen: stats.rankdata(values[chosen].mean(0))}, KEYS, 0, rounds)
    assert (table["correlation"] < 0).all()
    assert table["reliability"].tolist() == [0, 0]
    assert table["share"].tolist() == [1, 1]
    assert table["low"].iloc[0] >= 0
    assert variance_notes(table)[0].endswith("0.00 (0: halves do not agree).")


def test_orders_are_told_apart_from_three_rounds_on_by_as_many_as_fit() -> None:
    values = simulated(0.5)
    rankers = {"shapley": lambda chosen: stats.rankdata(values[chosen].mean(0))}
    rounds = [*np.random.default_rng(1).normal(np.linspace(0, 1, 30), 0.3, (3, 30))]
    table, _ = variance_table(rankers, KEYS, 0, rounds)
    assert table["strategy"].tolist() == ["shapley", "shapley"], "one strategy is compared with nothing"
    orders = table.iloc[1]
    r = stats.spearmanr(rounds[0], rounds[1]).statistic
    assert orders["reliability"] == pytest.approx(3 * r / (1 + 2 * r)), "of three rounds"
    assert len(variance_table(rankers, KEYS, 0, rounds[:1])[0]) == 1
    few, corrected = variance_table(rankers, ["a"] * 20 + ["b"] * 20, 0, rounds)
    assert few.empty
    assert corrected.isna().all(axis=None)


def test_what_is_told_of_rankings() -> None:
    rows = [("all", "heads", 0.5, np.nan), ("all", "strategy", 0.2, np.nan), ("all", "examples", 0.3, np.nan)]
    rows += [("ranked", "examples", 0.6, 0.4), ("shapley", "examples", 0.2, 0.8), ("shapley", "orders", 0.1, 0.9)]
    table = pd.DataFrame(rows, columns=["strategy", "source", "share", "reliability"])
    table = table.assign(model="m", n=111, splits=30, low=np.nan, high=np.nan)
    shares, reliabilities = variance_notes(table)
    assert shares == (
        "Of the variance of ranks on 111 examples, 50 % is common to the 2 strategies that rank all heads, 20 % "
        "differs between them, and 30 % would change with other examples."
    )
    assert reliabilities == (
        "Reliability of rankings over examples (split halves, Spearman-Brown): ranked 0.40, shapley 0.80; of shapley "
        "over random orders, on the same examples: 0.90."
    )
    assert len(variance_notes(table.iloc[3:])) == 1
    assert variance_notes(None) == variance_notes(table.iloc[:0]) == []
    run = RecordedRun(Path("run"), "run", {"command": "ablate", "status": "finished"}, {"ranking_variance": table})
    shown = stable_rankings([run])
    place = [column.name for column in shown.columns].index("changes with")
    assert [row[place].text for row in shown.rows][2:4] == ["the examples", "the examples"]
