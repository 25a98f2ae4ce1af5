"""Curves of a whole model, and the few points of them that are tried on a task."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headlens.analyses.sparsefinder.measures import MEASURES
from headlens.analyses.sparsefinder.pareto_curves import area, areas, curve, frontier, hull, of_model, spread_out
from headlens.analyses.sparsefinder.pareto_points import POINT
from headlens.tables.sparsefinder_tables import AREAS, GOLD


def heads() -> pd.DataFrame:
    rows = [
        ("distance", "threshold", t, w, 0, head, 0.1 * t + 0.2 * head, 1 - 0.1 * t - 0.01 * w, 0.5, 0.7)
        for t in (1.0, 2.0)
        for w in (0, 3)
        for head in (0, 1)
    ]
    rows += [
        ("window", "window", w, w, 0, head, np.nan if head else 0.3, 1 - 0.1 * w, 0.2, 0.3)
        for w in (0, 3)
        for head in (0, 1)
    ]
    return pd.DataFrame(rows, columns=[*POINT, "head", *MEASURES])


def test_heads_have_equal_weight_and_those_without_gold_pairs_say_nothing() -> None:
    found = of_model(pd.concat([heads(), heads().assign(recall=0.9)], ignore_index=True))
    assert len(found) == 6
    near = found[(found["method"] == "distance") & (found["value_of_parameter"] == 1.0) & (found["window"] == 3)].iloc[
        0
    ]
    assert near["recall"] == pytest.approx((0.1 + 0.3 + 0.9 + 0.9) / 4)
    assert near["sparsity"] == pytest.approx(0.87)
    assert found[found["method"] == "window"]["recall"].tolist() == pytest.approx([(0.3 + 0.9 + 0.9) / 3] * 2)


def test_areas_by_method() -> None:
    points = of_model(heads())
    gold = {"method": GOLD, "recall": 1.0, "sparsity": 0.8, "exact": 1.0, "mass": 1.0}
    found = areas(pd.concat([points, pd.DataFrame([gold])], ignore_index=True)).set_index("method")
    assert [*found.reset_index().columns] == AREAS.names[2:]
    own = points[points["method"] == "distance"]
    expected = area(own["sparsity"].to_numpy(), own["recall"].to_numpy())
    assert found["points"].to_dict() == {"distance": 4, "window": 2, GOLD: 1}
    assert found.loc["distance", "area"] == pytest.approx(expected)
    # What is possible is between 1/2, by chance, and (1 + s) / 2 of entmax itself.
    assert found.loc[GOLD, ["area", "share"]].tolist() == pytest.approx([0.9, 1.0])
    assert found.loc["distance", "share"] == pytest.approx((expected - 0.5) / 0.4)
    # Nothing was measured where the line to the empty graph begins.
    assert np.isnan(found.loc[GOLD, "at_90"])
    assert areas(points, "exact")["quality"].unique().tolist() == ["exact"]
    assert areas(points)["share"].isna().all(), "nobody knows what is possible"


def test_recall_at_a_sparsity_is_told_where_points_are_as_sparse() -> None:
    points = pd.DataFrame({"method": ["near", "near", "far", "far"], "sparsity": [0.5, 0.89, 0.5, 0.9]})
    found = areas(points.assign(recall=[1.0, 0.4, 1.0, 0.3])).set_index("method")
    assert found["at_90"].to_dict() == pytest.approx({"near": np.nan, "far": 0.3}, nan_ok=True)


def test_intervals_of_areas() -> None:
    """Against the hull of each sample by itself."""
    draw = np.random.default_rng(0)
    points = pd.DataFrame({"method": [GOLD, *["distance"] * 5, *["window"] * 2]})
    points["sparsity"], points["recall"] = (
        [0.6, 0.1, 0.3, 0.5, 0.7, 0.9, 0.2, 0.4],
        [1, 0.99, 0.9, 0.8, 0.5, 0.2, 0.8, 0.5],
    )
    samples = points[["recall", "sparsity"]].to_numpy() + draw.normal(0, 0.05, (40, 8, 2))
    samples[:, 0, 0] = 1.0
    empty = np.full_like(samples[:1], np.nan)  # of no sentence
    found = areas(points, samples=np.concatenate([samples, empty])).set_index("method")
    gold = np.array([area(own[:1, 1], own[:1, 0]) for own in samples])
    for method, rows in (("distance", slice(1, 6)), ("window", slice(6, 8))):
        own = np.array([np.trapezoid(*hull(one[rows, 1], one[rows, 0])[::-1]) for one in samples])
        for values, names in (
            (own, ("ci_low", "ci_high")),
            ((own - 0.5) / (gold - 0.5), ("share_ci_low", "share_ci_high")),
        ):
            low, high = found.loc[method, list(names)]
            assert [low, high] == pytest.approx(np.quantile(values, [0.025, 0.975]).tolist())
            assert low < high
    # Its own share is 1 in every sample, which is no estimate.
    assert found.loc[GOLD, ["share_ci_low", "share_ci_high"]].isna().all()
    assert areas(points)[["ci_low", "share_ci_high"]].isna().all(axis=None)
    alike = areas(points, samples=samples[:1].repeat(40, axis=0))
    assert alike["area"].notna().all()
    assert alike[["ci_low", "ci_high", "share_ci_low", "share_ci_high"]].isna().all(axis=None)


def test_intervals_of_a_metric_whose_ends_are_sampled_too() -> None:
    """Against the hull of each sample between its own ends."""
    draw = np.random.default_rng(1)
    points = pd.DataFrame({"method": [GOLD, *["distance"] * 3, "window"]})
    points["sparsity"], points["bleu"] = [0.6, 0.2, 0.5, 0.9, 0.7], [30.0, 29.0, 25.0, np.nan, 12.0]
    quality = points["bleu"].to_numpy() + draw.normal(0, 1, (50, 5))
    samples = np.stack([quality, np.broadcast_to(points["sparsity"], quality.shape)], axis=-1)
    nothing = 3.0 + draw.normal(0, 1, 50)
    # Of a sample of examples that say nothing
    unknown = np.append(quality[:, 0], np.nan), np.append(nothing, 3.0)
    drawn = np.concatenate([samples, samples[:1]])
    found = areas(points, "bleu", (30.0, 3.0), samples=drawn, sampled_ends=unknown)
    found = found.set_index("method")
    for method, rows in (("distance", [1, 2]), ("window", [4])):
        shares = []
        for one, low in zip(samples, nothing, strict=True):
            ends = float(one[0, 0]), float(low)
            own, best = (np.trapezoid(*hull(one[r, 1], one[r, 0], ends)[::-1]) for r in (rows, [0]))
            shares.append((own - sum(ends) / 2) / (best - sum(ends) / 2))
        expected = np.quantile(shares, [0.025, 0.975])
        assert found.loc[method, ["share_ci_low", "share_ci_high"]].tolist() == pytest.approx(expected.tolist())
        assert found.loc[method, "share_ci_low"] < found.loc[method, "share"] < found.loc[method, "share_ci_high"]


def test_shares_of_a_difference_that_may_be_nothing_are_not_given() -> None:
    """Of few examples without one pair the model may do as well as with all: shares of that are anything, also 2.5."""
    points = pd.DataFrame({"method": [GOLD, "bucket"], "sparsity": [0.2, 0.6], "accuracy": [0.78, 0.79]})
    draw = np.random.default_rng(0)
    for error, known in ((0.1, False), (0.005, True)):
        noise = draw.normal(0, error, (200, 3))
        samples = np.stack([0.78 + noise[:, :2], np.broadcast_to(points["sparsity"], (200, 2))], axis=-1)
        found = areas(
            points, "accuracy", (0.78, 0.70), samples=samples, sampled_ends=(0.78 + noise[:, 0], 0.7 + noise[:, 2])
        )
        assert found["share"].notna().all() == known
        assert found["area"].notna().all()
    # A difference that is sure, but next to nothing, has neither shares nor intervals of these, in no sample.
    samples = np.stack([0.78 + noise[:, :2], np.broadcast_to(points["sparsity"], (200, 2))], axis=-1)
    small = areas(
        points, "accuracy", (0.78, 0.779), samples=samples, sampled_ends=(0.78 + noise[:, 0], 0.75 + noise[:, 2])
    )
    assert small[["share", "share_ci_low", "share_ci_high"]].isna().all(axis=None)


def test_of_attention_that_is_all_but_dense_nothing_is_possible() -> None:
    drawn = pd.DataFrame({"method": [GOLD, "random"], "recall": [1.0, 0.5], "sparsity": [0.002, 0.5]})
    found = areas(drawn).set_index("method")
    assert found["area"].tolist() == pytest.approx([0.501, 0.5])
    assert found["share"].isna().all()


def test_a_metric_over_the_sparsity_it_was_measured_at() -> None:
    drawn = pd.DataFrame(
        [(GOLD, 0.9, 0.6, 30.0), ("distance", 0.8, 0.5, 20.0), ("window", 0.7, 0.2, np.nan)],
        columns=["method", "sparsity", "task_sparsity", "value"],
    )
    found = areas(drawn, "value", (30.0, 10.0), "task_sparsity").set_index("method")
    assert found.index.tolist() == [GOLD, "distance"]
    assert found.loc[GOLD, "area"] == pytest.approx(0.6 * 30 + 0.4 * 20)
    assert found.loc["distance", "area"] == pytest.approx(20)  # on the line between the ends: no better than lots
    assert found["share"].tolist() == pytest.approx([1, 0])
    assert found["points"].tolist() == [1, 1]


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=15), st.integers(1, 6))
def test_points_that_are_tried_are_of_the_curve(drawn: list[tuple[float, float]], count: int) -> None:
    points = pd.DataFrame(drawn, columns=["sparsity", "recall"]).assign(method="distance")
    best = curve(points)
    few = spread_out(best, count)
    assert len(few) == min(count, len(best))
    chosen = list(map(tuple, few[["sparsity", "recall"]].to_numpy()))
    assert set(chosen) <= set(map(tuple, best[["sparsity", "recall"]].to_numpy()))
    assert sorted(chosen) == chosen
    assert few["sparsity"].max() == best["sparsity"].max()


def test_points_are_close_where_recall_falls() -> None:
    """A curve of three straight parts, each as long as the others."""
    flat = [(x, 1 - x / 1e6) for x in np.linspace(0.01, 0.5, 50)]
    steep = [(0.5 + (1 - y) / 1e6, y) for y in np.linspace(0.99, 0.5, 50)]
    end = [(x, 0.5 - x / 1e6) for x in np.linspace(0.51, 1.0, 50)]
    points = pd.DataFrame(flat + steep + end, columns=["sparsity", "recall"]).assign(method="distance")
    found = spread_out(curve(points), 6)[["sparsity", "recall"]].to_numpy()
    assert found == pytest.approx(
        np.array([(0.25, 1), (0.5, 1), (0.5, 0.75), (0.5, 0.5), (0.75, 0.5), (1, 0.5)]), abs=0.006
    )


def test_nothing_is_nothing() -> None:
    empty = of_model(heads())[:0]
    assert curve(empty).empty
    assert spread_out(empty, 3).empty
    assert areas(empty).empty


POINTS = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=12)


@given(POINTS)
def test_no_point_of_the_frontier_is_beaten(drawn: list[tuple[float, float]]) -> None:
    sparsity, quality = (np.array(values) for values in zip(*drawn, strict=True))
    places = frontier(sparsity, quality)
    assert (np.diff(sparsity[places]) > 0).all()
    assert (np.diff(quality[places]) < 0).all()
    for s, q in drawn:
        assert any(sparsity[p] >= s and quality[p] >= q for p in places)


@example([(0.0, 0.25), (5e-324, 1.0)], 5e-324, 0.0)
@given(POINTS, st.floats(0, 1), st.floats(0, 1))
def test_the_hull_is_the_best_mixture_of_two_graphs(
    drawn: list[tuple[float, float]], place: float, lowest: float
) -> None:
    """At every sparsity: of all pairs of points, the ends among them, the best of the lines that pass there."""
    sparsity, quality = (np.array(values) for values in zip(*drawn, strict=True))
    known = [*drawn, (0.0, 1.0), (1.0, lowest)]
    best = -1.0
    for (x, y), (far, other) in product(known, repeat=2):
        if x <= place <= far:
            # The share of the way first: a product with the smallest number there is would round to anything.
            way = 0.0 if far == x else (place - x) / (far - x)
            best = max(best, y + (other - y) * way, y if x == place else -1.0)
    assert np.interp(place, *hull(sparsity, quality, (1.0, lowest))) == pytest.approx(best, abs=1e-9)


@given(POINTS, st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_the_area_by_summing_up_and_with_one_more_point(
    drawn: list[tuple[float, float]], another: tuple[float, float]
) -> None:
    sparsity, quality = (np.array(values) for values in zip(*drawn, strict=True))
    found = area(sparsity, quality)
    steps = (np.arange(20_000) + 0.5) / 20_000
    assert found == pytest.approx(float(np.interp(steps, *hull(sparsity, quality)).mean()), abs=2e-3)
    assert 0.5 - 1e-12 <= found <= 1
    more = np.append(sparsity, another[0]), np.append(quality, another[1])
    assert area(*more) >= found - 1e-12


@given(st.floats(0, 1), st.lists(st.floats(0, 1), max_size=8))
def test_random_graphs_have_a_half_and_nothing_is_above_attention_itself(gold: float, kept: list[float]) -> None:
    by_chance = np.array(kept, float)
    assert area(by_chance, 1 - by_chance) == pytest.approx(0.5)
    # Parts of the pairs with weight, and more pairs than those: what a perfect prediction gives at other sparsities
    perfect = np.minimum(1.0, (1 - by_chance) / (1 - gold)) if gold < 1 else np.ones_like(by_chance)
    own = np.append(by_chance, gold), np.append(perfect, 1.0)
    assert area(*own) == pytest.approx((1 + gold) / 2)


def test_areas_at_the_ends() -> None:
    assert area(np.array([1.0]), np.array([1.0])) == 1.0
    assert area(np.array([0.0]), np.array([1.0])) == 0.5
    assert area(np.array([]), np.array([])) == 0.5
    assert area(np.array([0.5, 0.8]), np.array([1.0, 0.6])) == pytest.approx(0.5 + 0.3 * 0.8 + 0.2 * 0.3)
    assert area(np.array([0.5]), np.array([20.0]), (30.0, 10.0)) == pytest.approx(20.0)
