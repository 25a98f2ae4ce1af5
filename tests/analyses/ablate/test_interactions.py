"""Shapley interactions of pairs: by enumeration of all subsets, their random coalitions, test, figure and sentence."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from math import factorial
from pathlib import Path

import made_tasks
import numpy as np
import pandas as pd
import pytest
import torch
from made_tasks import given_examples
from naive_statistics import holm
from saved import build
from scipy import stats
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.analyses.ablate.interactions_figure import interactions_map, named
from headlens.analyses.ablate.options import PruneOptions
from headlens.analyses.ablate.pruning_strategies import Score
from headlens.analyses.ablate.ranking_overviews import interacting_pairs
from headlens.analyses.ablate.rankings import interaction_notes, interactions_table
from headlens.analyses.ablate.scorers import InteractionEstimator, mean_with_error
from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.errors import OptionError
from headlens.heads import Head
from headlens.interventions.gates import HeadGates
from headlens.interventions.shapley_values import HeadGame, interaction_samples, random_coalitions
from headlens.models.loading import LoadedModel
from headlens.runs.reading import RecordedRun
from headlens.tasks.task_examples import Examples
from headlens.tasks.task_heads import with_task_head

N = 6
Worth = dict[frozenset[int], float]


def classifier(tokenizer: PreTrainedTokenizerBase, count: int) -> tuple[PreTrainedModel, Examples]:
    """A model of six heads in double precision."""
    task = made_tasks.TASKS["sst2"]
    bare = LoadedModel("tiny", build("BertModel", len(tokenizer), num_hidden_layers=3), tokenizer, None)
    model = with_task_head(bare, task, 0).model.eval().double()
    return model, given_examples(task, model, tokenizer, count)


def worth_of(model: PreTrainedModel, examples: Examples, place: int) -> Worth:
    """Minus the loss of an example for every set of heads that are there, one pass for each."""
    heads = [h for s in find_sites(model) for h in s.heads]
    assert len(heads) == N
    batch = examples.task.collate([examples.prepared[place]], examples.reader, "cpu")
    found = {}
    for size in range(N + 1):
        for there in combinations(range(N), size):
            gone = [head for number, head in enumerate(heads) if number not in there]
            with AttentionSession(model, edits=[HeadGates(dict.fromkeys(gone, 0.0))]), torch.inference_mode():
                outputs = model(**batch.inputs, **examples.task.arguments(model))
                found[frozenset(there)] = -examples.task.losses(outputs, batch).item()
    return found


def index(worth: Worth, one: int, other: int) -> float:
    """The definition of Grabisch and Roubens (1999): a weighted sum over all subsets of the others."""
    others = [n for n in range(N) if n not in (one, other)]
    total = 0.0
    for size in range(N - 1):
        weight = factorial(N - size - 2) * factorial(size) / factorial(N - 1)
        for there in map(frozenset, combinations(others, size)):
            together = worth[there | {one, other}] - worth[there | {one}] - worth[there | {other}] + worth[there]
            total += weight * together
    return total


def shapley(worth: Worth, one: int, players: list[int]) -> float:
    rest = [n for n in players if n != one]
    return sum(
        factorial(size)
        * factorial(len(rest) - size)
        / factorial(len(players))
        * (worth[frozenset(there) | {one}] - worth[frozenset(there)])
        for size in range(len(players))
        for there in combinations(rest, size)
    )


@pytest.fixture(scope="module")
def enumerated(wordpiece_tokenizer: PreTrainedTokenizerBase) -> tuple[PreTrainedModel, Examples, list[Worth]]:
    model, examples = classifier(wordpiece_tokenizer, 2)
    return model, examples, [worth_of(model, examples, place) for place in range(2)]


@pytest.mark.parametrize("pair", [(0, 1), (1, 4), (5, 2)])
def test_samples_in_all_coalitions_give_the_enumerated_index(
    enumerated: tuple[PreTrainedModel, Examples, list[Worth]], pair: tuple[int, int]
) -> None:
    model, examples, (worth, *_) = enumerated
    others = [n for n in range(N) if n not in pair]
    sets = [there for size in range(N - 1) for there in combinations(others, size)]
    coalitions = np.array([[n in there for n in range(N)] for there in sets])
    # What stands there for the pair itself does not count.
    coalitions[::2, list(pair)] = True
    heads = [h for s in find_sites(model) for h in s.heads]
    batch = examples.task.collate([examples.prepared[0]] * len(sets), examples.reader, "cpu")
    rows = [1] * len(sets)
    game = HeadGame(model, batch.inputs, lambda outputs: examples.task.losses(outputs, batch), rows, heads)
    found = interaction_samples(game, coalitions, pair)
    weights = [factorial(N - len(there) - 2) * factorial(len(there)) / factorial(N - 1) for there in sets]
    assert sum(weights) == pytest.approx(1)
    expected = index(worth, *pair)
    assert np.dot(weights, found) == pytest.approx(expected, abs=1e-12)
    assert expected == pytest.approx(index(worth, *pair[::-1]), abs=1e-12)
    assert abs(expected) > 1e-6


def test_it_is_the_difference_of_two_shapley_values(
    enumerated: tuple[PreTrainedModel, Examples, list[Worth]],
) -> None:
    """As the page says: that of a head where the other always is there, minus that where it is gone."""
    *_, (worth, *_) = enumerated
    players = [n for n in range(N) if n != 3]
    with_it = {there: worth[there | {3}] for there in map(frozenset, subsets(players))}
    without_it = {there: worth[there] for there in map(frozenset, subsets(players))}
    expected = shapley(with_it, 1, players) - shapley(without_it, 1, players)
    assert index(worth, 1, 3) == pytest.approx(expected, abs=1e-12)


def subsets(players: list[int]) -> list[tuple[int, ...]]:
    return [there for size in range(len(players) + 1) for there in combinations(players, size)]


def test_coalitions_have_any_size_and_then_any_members() -> None:
    pair = (4, 1)
    drawn = [random_coalitions(np.random.default_rng(seed), N, pair) for seed in range(3000)]
    assert not np.any([one[:, list(pair)] for one in drawn])
    others = [n for n in range(N) if n not in pair]
    assert all((one[0, others] != one[1, others]).all() for one in drawn), "the second is that of the reverse"
    for way in range(2):
        counts = Counter(tuple(np.flatnonzero(one[way])) for one in drawn)
        expected = {
            there: len(drawn) * factorial(N - len(there) - 2) * factorial(len(there)) / factorial(N - 1)
            for size in range(N - 1)
            for there in combinations(others, size)
        }
        assert stats.chisquare([counts[there] for there in expected], [*expected.values()]).pvalue > 0.001


def test_estimates_are_those_of_the_enumeration_within_their_errors(
    enumerated: tuple[PreTrainedModel, Examples, list[Worth]],
) -> None:
    model, examples, worths = enumerated
    heads = [h for s in find_sites(model) for h in s.heads]
    estimator = InteractionEstimator(model, examples, None, print, seed=1, rounds=4)
    found = estimator.samples(heads[2], heads[4])
    exact = np.array([index(worth, 2, 4) for worth in worths])
    # Of single coalitions, whose spread is known.
    others = [n for n in range(N) if n not in (2, 4)]
    for worth, own, expected in zip(worths, found, exact, strict=True):
        samples, weights = zip(
            *(
                (
                    worth[there | {2, 4}] - worth[there | {2}] - worth[there | {4}] + worth[there],
                    factorial(N - len(there) - 2) * factorial(len(there)) / factorial(N - 1),
                )
                for there in map(frozenset, subsets(others))
            ),
            strict=True,
        )
        spread = np.sqrt(np.dot(weights, (np.array(samples) - expected) ** 2) / 4)
        assert abs(own - expected) < 4 * spread
    again = InteractionEstimator(model, examples, 1, print, seed=1, rounds=4).samples(heads[2], heads[4])
    np.testing.assert_allclose(again, found, atol=1e-12), "whatever the batches"
    score = estimator.without(frozenset([heads[2]]), [heads[4]])[heads[4]]
    assert score == pytest.approx((found.mean(), found.std(ddof=1) / np.sqrt(2)))


def test_errors_are_of_independent_examples() -> None:
    samples = np.array([1.0, 2.0, 4.0, 7.0])
    mean, error = mean_with_error(samples, ["a", "b", "c", "d"])
    assert (mean, error) == pytest.approx((3.5, samples.std(ddof=1) / 2))
    # Two paragraphs of two questions each: as two examples with their means.
    _, together = mean_with_error(samples, ["a", "a", "b", "b"])
    assert together == pytest.approx(np.array([1.5, 5.5]).std(ddof=1) / np.sqrt(2))
    assert np.isnan(mean_with_error(samples, ["a"] * 4)[1])


HEADS = [Head("encoder", 0, 1), Head("encoder", 10, 0), Head("cross", 0, 3)]
PAIRS = dict(zip(combinations(HEADS, 2), [Score(-0.2, 0.04), Score(0.05, 0.02), Score(0.3, 0.02)], strict=True))


def table(keys: int = 20) -> pd.DataFrame:
    values = dict(zip(HEADS, (0.5, 0.4, 0.3), strict=True))
    return interactions_table(PAIRS, values, [f"{n}" for n in range(keys)]).assign(model="m")


def test_pairs_are_tested_and_corrected() -> None:
    rows = table()
    expected = [2 * stats.t(19).sf(abs(score.value / score.finer)) for score in PAIRS.values()]
    assert rows["p_value"].tolist() == pytest.approx(expected)
    assert rows["p_holm"].tolist() == pytest.approx(list(holm(expected)))
    assert rows[["value", "other_value"]].to_numpy().tolist() == [[0.5, 0.4], [0.5, 0.3], [0.4, 0.3]]
    assert table(9)["p_value"].isna().all(), "too few examples"
    sample = np.random.default_rng(0).normal(0.1, 1, 30)
    known = {(HEADS[0], HEADS[1]): Score(*mean_with_error(sample, [*map(str, range(30))]))}
    (row,) = interactions_table(known, dict.fromkeys(HEADS, 0.0), [*map(str, range(30))]).to_dict("records")
    assert row["p_value"] == pytest.approx(stats.ttest_1samp(sample, 0).pvalue)
    single = interactions_table({(HEADS[0], HEADS[1]): Score(0.1, -np.inf)}, dict.fromkeys(HEADS, 0.0), ["a"])
    assert single[["se", "p_value", "p_holm"]].isna().all(axis=None)


def pruned(verdict: str | None) -> pd.DataFrame:
    """Two sets of heads of a model with verdicts, or of one that gives the same answer to everything."""
    rows = [("none", 0, None), ("shapley", 1, verdict), ("shapley", 2, verdict), ("random", 2, None)]
    frame = pd.DataFrame(rows, columns=["strategy", "n_pruned", "verdict"])
    return frame.assign(model="m", task="sst2", answer_share=0.6 if verdict else 1.0)


def test_what_is_told_of_pairs() -> None:
    assert interaction_notes(table()) == [
        "Shapley interactions of 3 pairs of the 3 heads with the largest Shapley values, for the loss of an example (a "
        "sum where it predicts several tokens): 3 are significant after Holm's correction: encoder.0.1 and "
        "encoder.10.0 -0.2 (standard error 0.04; each stands in for the other); encoder.10.0 and cross.0.3 +0.3 "
        "(standard error 0.02; each needs the other)."
    ]
    (none,) = interaction_notes(table(9))
    assert none.endswith("(a sum where it predicts several tokens): none is significant after Holm's correction.")
    assert interaction_notes(None) == []
    run = RecordedRun(
        Path("run"),
        "run",
        {"command": "ablate", "status": "finished"},
        {"interactions": table(), "pruning": pruned("needed")},
    )
    shown = interacting_pairs([run])
    names = [column.name for column in shown.columns]
    cells = [dict(zip(names, (cell.text for cell in row), strict=True)) for row in shown.rows]
    assert [row["interaction"] for row in cells] == ["0.300", "-0.200", "0.050"]
    assert [row["other head"] for row in cells] == ["cross.0.3", "encoder.10.0", "cross.0.3"]
    assert {row["significant"] for row in cells} == {"yes"}


def test_the_map_is_symmetric_with_dots_where_pairs_are_significant() -> None:
    rows = table()
    rows.loc[1, "p_holm"] = 0.2
    names, matrix, sure = named(rows)
    assert names == ["encoder.0.1", "encoder.10.0", "cross.0.3"]
    expected = [[np.nan, -0.2, 0.05], [-0.2, np.nan, 0.3], [0.05, 0.3, np.nan]]
    np.testing.assert_array_equal(matrix, expected)
    assert sure.tolist() == [[False, True, False], [True, False, True], [False, True, False]]
    both = pd.concat([rows, rows.assign(model="other", interaction=-rows["interaction"])])
    sets = pd.concat([pruned(verdict="needed"), pruned(verdict="needed").assign(model="other")])
    figure = interactions_map(both, sets)
    assert figure is not None
    panels = [axes for axes in figure.axes if axes.get_title(loc="left")]
    assert [axes.get_title(loc="left") for axes in panels] == ["m", "other"]
    for axes, sign in zip(panels, (1, -1), strict=True):
        (dots,) = [c for c in axes.collections if len(c.get_offsets()) == 4 and hasattr(c, "get_sizes")]
        assert {(int(y), int(x)) for x, y in dots.get_offsets()} == {(0, 1), (1, 0), (1, 2), (2, 1)}
        words = [text.get_text() for text in axes.texts if text.get_text()]
        assert sorted(words) == sorted(["−.20", ".05", ".30"] * 2 if sign > 0 else [".20", "−.05", "−.30"] * 2)
    assert interactions_map(rows.assign(interaction=np.nan), sets) is None


def test_small_numbers_are_in_powers_of_ten_and_a_model_that_guesses_has_no_dots() -> None:
    rows = table().assign(interaction=[-1.32e-7, 0.4e-7, 0.06e-7], se=2e-8)
    guesses = pruned(verdict=None)
    figure, silent = (interactions_map(rows, sets) for sets in (pruned(verdict="needed"), guesses))
    assert figure is not None
    assert silent is not None
    for drawn, dots, title in ((figure, True, "m"), (silent, False, "m\nunpruned: the same answer to all examples")):
        panel = next(axes for axes in drawn.axes if axes.get_title(loc="left"))
        assert panel.get_title(loc="left").split() == title.split()
        assert {text.get_text() for text in panel.texts} >= {"−.13", ".04", ".01"}
        assert any(len(points.get_offsets()) == 6 for points in panel.collections) == dots
        assert "in units of 10⁻⁶" in drawn.texts[0].get_text().replace("\n", " ")
    (note,) = interaction_notes(rows, silent=True)
    assert "stands in" not in note
    run = RecordedRun(Path("run"), "run", {"command": "ablate"}, {"interactions": rows, "pruning": guesses})
    shown = interacting_pairs([run])
    assert "interaction" in [column.name for column in shown.columns]
    assert "significant" not in [column.name for column in shown.columns]


def test_interactions_are_of_shapley_values() -> None:
    with pytest.raises(OptionError, match=r"(?s)interactions applies to the strategy shapley.*--strategies shapley"):
        PruneOptions((3,), ("ranked",), interactions=3)
    with pytest.raises(OptionError, match="interactions 1 is out of range"):
        PruneOptions((3,), ("shapley",), interactions=1)
