"""What heads are worth: Shapley values by enumeration, attribution by finite differences, rankings by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import made_tasks
import numpy as np
import pandas as pd
import pytest
import torch
from made_tasks import given_examples
from saved import build
from scipy import stats
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.analyses.ablate.pruning_strategies import Score
from headlens.analyses.ablate.rankings import agreement_table, area_table, comparison_notes, rankings_table
from headlens.analyses.ablate.scorers import AttributionEstimator, ShapleyEstimator
from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.heads import Head
from headlens.interventions.gates import HeadGates
from headlens.interventions.shapley_values import HeadGame, shapley_values
from headlens.models.loading import LoadedModel
from headlens.statistics.bootstrap import Draws
from headlens.tables.ablation_tables import PRUNING_AREAS
from headlens.tasks.task_examples import Examples
from headlens.tasks.task_heads import with_task_head


def classifier(
    tokenizer: PreTrainedTokenizerBase, name: str, count: int, task: str = "sst2"
) -> tuple[PreTrainedModel, Examples]:
    chosen = made_tasks.TASKS[task]
    model = with_task_head(LoadedModel("tiny", build(name, len(tokenizer)), tokenizer, None), chosen, 0).model.eval()
    return model.double(), given_examples(chosen, model, tokenizer, count)


def losses(model: PreTrainedModel, examples: Examples, gates: dict[Head, float]) -> np.ndarray:
    """Of all examples, one by one, with heads times numbers."""
    found = []
    for prepared in examples.prepared:
        batch = examples.task.collate([prepared], examples.reader, "cpu")
        with AttentionSession(model, edits=[HeadGates(gates)]), torch.inference_mode():
            outputs = model(**batch.inputs, **examples.task.arguments(model))
            found.append(examples.task.losses(outputs, batch).item())
    return np.array(found)


@pytest.mark.parametrize("name", ["BertModel", "AlbertModel"])
def test_shapley_values_are_those_of_the_enumeration(wordpiece_tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """One example in all 24 orders of four heads gives its values exactly."""
    model, examples = classifier(wordpiece_tokenizer, name, 1)
    heads = [h for s in find_sites(model) for h in s.heads]
    assert len(heads) == 4
    worth = {
        gone: -losses(model, examples, dict.fromkeys(gone, 0.0))[0]
        for size in range(5)
        for gone in itertools.combinations(heads, size)
    }
    expected = []
    for head in heads:
        rest = [h for h in heads if h != head]
        expected.append(
            sum(
                math.factorial(size)
                * math.factorial(3 - size)
                / math.factorial(4)
                * (worth[gone] - worth[tuple(h for h in heads if h in {*gone, head})])
                for size in range(4)
                for gone in itertools.combinations(rest, size)
            )
        )
    orders = [np.array(order) for order in itertools.permutations(range(4))]
    batch = examples.task.collate([examples.prepared[0]] * 24, examples.reader, "cpu")
    game = HeadGame(model, batch.inputs, lambda outputs: examples.task.losses(outputs, batch), [1] * 24, heads)
    found = shapley_values(game, orders)
    np.testing.assert_allclose(found.mean(0), expected, atol=1e-12)
    np.testing.assert_allclose(found.sum(1), worth[()] - worth[tuple(heads)], atol=1e-12)


def test_shapley_values_of_examples_with_several_rows(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    """They add up to what the loss grows by when all heads go, and do not depend on the batch."""
    model, examples = classifier(wordpiece_tokenizer, "BertModel", 5, "swag")
    heads = [h for s in find_sites(model) for h in s.heads]
    found = [ShapleyEstimator(model, examples, tokens, print, seed=3)(frozenset()) for tokens in (1, None)]
    assert found[0] == pytest.approx(found[1], abs=1e-12)
    grows = losses(model, examples, dict.fromkeys(heads, 0.0)) - losses(model, examples, {})
    assert sum(found[0].values()) == pytest.approx(grows.mean(), abs=1e-12)


def test_rounds_end_where_values_are_precise(
    wordpiece_tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, examples = classifier(wordpiece_tokenizer, "BertModel", 4)
    one = ShapleyEstimator(model, examples, None, print, seed=0, rounds=1)
    three = ShapleyEstimator(model, examples, None, print, seed=0, rounds=3)
    assert one(frozenset()) != three(frozenset())
    assert all(error > 0 for error in three.errors(frozenset()).values())
    monkeypatch.setattr("headlens.analyses.ablate.scorers.PRECISE", 1e9)
    enough = ShapleyEstimator(model, examples, None, print, seed=0, rounds=3)
    assert enough(frozenset()) == one(frozenset())


def test_attribution_is_the_slope_of_the_loss(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    model, examples = classifier(wordpiece_tokenizer, "BertModel", 4)
    found = AttributionEstimator(model, examples, None, print)(frozenset())
    step = 2**-12  # gates are single precision
    for head, estimate in found.items():
        low, high = (losses(model, examples, {head: 1 + way * step}).mean() for way in (-1, 1))
        assert estimate == pytest.approx((low - high) / (2 * step), rel=1e-5, abs=1e-10)
    assert min(found.values()) < 0 < max(found.values()), "unlike importance, it has a sign"


HEADS = [Head("encoder", layer, head) for layer in range(3) for head in range(4)]


def scored(*values: float) -> dict[Head, Score]:
    return {head: Score(value) for head, value in zip(HEADS, values, strict=True)}


def test_rankings_and_their_agreement() -> None:
    rng = np.random.default_rng(0)
    ranked, shapley = rng.normal(size=12).round(1), rng.normal(size=12)
    scores = {"ranked": scored(*ranked), "shapley": scored(*shapley), "importance": scored(*-shapley)}
    table = rankings_table(scores, 0.5, dict.fromkeys(HEADS, 0.1), 40)
    of = {name: rows.reset_index(drop=True) for name, rows in table.groupby("strategy")}
    np.testing.assert_allclose(of["ranked"]["worth"], 0.5 - ranked)
    np.testing.assert_allclose(of["shapley"]["worth"], -shapley)
    np.testing.assert_allclose(of["ranked"]["rank"], stats.rankdata(ranked))
    assert of["shapley"]["se"].tolist() == [0.1] * 12
    assert of["ranked"]["se"].isna().all()
    agreement = agreement_table(table, 0).set_index(["strategy", "other_strategy"])
    expected = stats.spearmanr(ranked, shapley).statistic
    row = agreement.loc["ranked", "shapley"]
    assert row["spearman"] == pytest.approx(expected)
    assert row["ci_low"] < expected < row["ci_high"]
    assert agreement.loc["shapley", "importance"]["spearman"] == pytest.approx(-1)
    few = rankings_table({k: dict(list(v.items())[:4]) for k, v in scores.items()}, 0.5, {}, 40)
    assert agreement_table(few, 0)["ci_low"].isna().all()


@pytest.mark.parametrize(("metric", "beaten"), [("accuracy", 1), ("loss", 1)])
def test_areas_are_means_over_pruned_heads(metric: str, beaten: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("none", None, 0, 0.8)]
    rows += [("ranked", None, 2, 0.8), ("ranked", None, 4, 0.6)]
    rows += [("random", seed, count, 0.8 - 0.05 * seed * count) for seed in (0, 2) for count in (2, 4)]
    table = pd.DataFrame(rows, columns=["strategy", "seed", "n_pruned", "value"]).assign(metric=metric)
    areas = area_table(table).set_index("strategy")
    assert areas.loc["ranked", "area"] == pytest.approx((0.8 * 2 + 0.7 * 2) / 4)
    assert areas.loc["random", "area"] == pytest.approx((0.8 + 0.6) / 2)
    assert (areas.loc["ranked", "random_low"], areas.loc["ranked", "random_high"]) == pytest.approx((0.6, 0.8))
    assert areas.loc["ranked", "better_than"] == beaten
    assert math.isnan(areas.loc["random", "better_than"])
    (few,) = comparison_notes(area_table(table), None)
    assert few.endswith(
        "ranked 0.750. With 2 random orders, even being better than all is no evidence at the 5 % level (19 are)."
    )
    monkeypatch.setattr("headlens.analyses.ablate.rankings._ENOUGH", 2)
    (note,) = comparison_notes(area_table(table), None)
    assert note == (
        f"Mean {metric} over 0 to 4 pruned heads, beside that of random orders (0.600 to 0.800): ranked 0.750 (better "
        "than 1 of 2)."
    )
    alike = table.assign(value=table["value"].where(table["strategy"] == "none", 0.6))
    (note,) = comparison_notes(area_table(alike), None)
    assert note.endswith("(better than 0, equal to 2 of 2).")


@pytest.mark.parametrize(
    ("worth", "told"),
    [
        ([2.29, -5.05, 0.1], "the largest is 2.29 (encoder.0.0), the smallest -5.05 (encoder.0.1, which harms), the "),
        ([2.29, 5.05, 0.1], "the largest is 5.05 (encoder.0.1), the largest standard error 0.25."),
        # Less than two standard errors below 0 it is not known to harm.
        ([2.29, -0.48, 0.1], "the largest is 2.29 (encoder.0.0), the smallest -0.48 (encoder.0.1), the largest"),
    ],
)
def test_the_largest_shapley_value_has_its_sign(worth: list[float], told: str) -> None:
    heads = {"stack": "encoder", "layer": 0, "head": range(3), "strategy": "shapley", "n": 40}
    rankings = pd.DataFrame({**heads, "worth": worth, "se": [0.1, 0.25, 0.2]})
    (*_, note) = comparison_notes(pd.DataFrame(columns=PRUNING_AREAS.names), rankings)
    assert told in note


def test_areas_of_a_model_that_nothing_changes_have_no_intervals() -> None:
    """One answer to everything: sums of the same numbers in another order differ by rounding."""
    rows = [
        ("none", None, 0),
        *((name, seed, n) for name, seed in (("ranked", None), ("random", 0)) for n in (1, 2, 3)),
    ]
    table = pd.DataFrame(rows, columns=["strategy", "seed", "n_pruned"]).assign(metric="accuracy", value=0.1)
    resampled = np.full((len(table), 200), 0.1) + np.random.default_rng(0).choice([-1, 0, 1], (len(table), 200)) * 1e-17
    resampled += np.where(np.arange(200) % 2, 2.8e-17, 0)
    found = area_table(table, resampled, 40).set_index("strategy")
    assert found[["ci_low", "ci_high", "delta_low", "delta_high"]].isna().all(axis=None)
    assert found.loc["random", "p_value"] == 1


def test_intervals_of_areas_resample_the_examples_of_all_strategies_together() -> None:
    """Every replicate is a data set of its own, written out example by example, and its area is added up by hand."""
    rng, draws = np.random.default_rng(0), Draws.of([str(n) for n in range(40)], 400, seed=3)
    right = {
        (strategy, seed, count): rng.random(40) < 0.8 - loss * count
        for strategy, seed, loss in (
            ("shapley", None, 0.01),
            ("ranked", None, 0.1),
            ("random", 0, 0.15),
            ("random", 1, 0.2),
        )
        for count in (1, 4)
    }
    right |= {("none", None, 0): rng.random(40) < 0.85}
    resampled = {key: np.array([np.repeat(own, times).mean() for times in draws.counts]) for key, own in right.items()}
    rows = sorted(right, key=lambda key: key[0] != "none")
    table = pd.DataFrame(rows, columns=["strategy", "seed", "n_pruned"]).assign(
        metric="accuracy", value=[right[key].mean() for key in rows]
    )
    found = area_table(table, np.stack([resampled[key] for key in rows]), 40).set_index("strategy")

    def area(of: Mapping[tuple[str, int | None, int], Any], strategy: str, seed: int | None) -> Any:
        none, one, four = of["none", None, 0], of[strategy, seed, 1], of[strategy, seed, 4]
        return ((none + one) / 2 * 1 + (one + four) / 2 * 3) / 4

    means = {key: own.mean() for key, own in right.items()}
    by_hand = {name: (area(means, name, None), area(resampled, name, None)) for name in ("shapley", "ranked")}
    of_orders = [(area(means, "random", seed), area(resampled, "random", seed)) for seed in (0, 1)]
    by_hand["random"] = tuple(np.mean(parts, axis=0) for parts in zip(*of_orders, strict=True))  # type: ignore[assignment]
    for name, (value, replicates) in by_hand.items():
        assert found.loc[name, "area"] == pytest.approx(value)
        assert found.loc[name, ["ci_low", "ci_high"]].tolist() == pytest.approx(np.quantile(replicates, [0.025, 0.975]))
    assert pd.isna(found.loc["shapley", ["compared_with", "delta", "delta_low", "p_value"]]).all()
    for name in ("ranked", "random"):
        row, differences = found.loc[name], by_hand[name][1] - by_hand["shapley"][1]
        assert row["compared_with"] == "shapley"
        assert row["delta"] == pytest.approx(by_hand[name][0] - by_hand["shapley"][0])
        assert row[["delta_low", "delta_high"]].tolist() == pytest.approx(np.quantile(differences, [0.025, 0.975]))
        assert row["p_value"] < 0.01
        assert row["p_value"] <= row["p_holm"] <= 2 * row["p_value"]
    (_, note) = comparison_notes(found.reset_index(), None)
    assert note.startswith(
        "The same means minus that of shapley, with 95 % intervals over examples, paired: ranked -0."
    )
    alone = area_table(table[table["strategy"].isin(["none", "random"])])
    assert alone["compared_with"].isna().all()
