"""Verdicts on claims of a text: differences by seed against intervals that were computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from headlens.analyses.reproduce.claims import Claim
from headlens.analyses.reproduce.paper_tables import in_words
from headlens.errors import InputError
from headlens.files import write_csv
from headlens.tables.reproduce_tables import CLAIMS

SPEC: dict[str, Any] = {
    "claim": "neighbours are the most robust",
    "reading": "neighbour less random is above 0",
    "steps": {"graphs": "accuracy"},
    "file": "masks.csv",
    "first": {"where": {"pattern": "graph:neighbour"}},
    "second": {"where": {"pattern": "graph:random"}},
    "at_least": 0.0,
}


def runs(folder: Path, first: list[float], second: list[float]) -> Path:
    rows = [("graph:neighbour", seed, value, 0.8) for seed, value in enumerate(first)]
    rows += [("graph:random", seed, value, 0.6) for seed, value in enumerate(second)]
    frame = pd.DataFrame(rows, columns=["pattern", "seed", "value", "sparsity"]).assign(metric="accuracy")
    other = frame.assign(metric="f1", value=0.0)
    write_csv(pd.concat([frame, other]), folder / "graphs" / "masks.csv")
    return folder


@pytest.fixture(autouse=True)
def graphs(tmp_path: Path) -> None:
    (tmp_path / "graphs").mkdir()


@pytest.mark.parametrize(
    ("first", "verdict"),
    [
        ([0.9, 0.92, 0.91], "holds"),
        ([0.7, 0.71, 0.72], "does not hold"),
        ([0.9, 0.7, 0.82], "not decided"),
        ([0.9, 0.9], "points in the claimed direction, without any spread"),
        ([0.9], "points in the claimed direction, in one training run"),
        ([0.7], "points in the opposite direction, in one training run"),
    ],
)
def test_the_whole_interval_decides(tmp_path: Path, first: list[float], verdict: str) -> None:
    second = [0.8, 0.8, 0.81]
    (row,) = Claim.of(SPEC).judged(runs(tmp_path, first, second)).to_dict("records")
    differences = np.array(first) - np.array(second[: len(first)])
    assert row["verdict"] == verdict
    assert row["difference"] == pytest.approx(differences.mean())
    assert row["trainings"] == len(first)
    if len(first) == 3:
        low, high = stats.t.interval(0.95, 2, differences.mean(), stats.sem(differences))
        assert (row["ci_low"], row["ci_high"]) == pytest.approx((low, high))


def test_at_most_is_the_other_way_round(tmp_path: Path) -> None:
    spec = {k: v for k, v in SPEC.items() if k != "at_least"} | {"at_most": 0.02}
    place = runs(tmp_path, [0.81, 0.80, 0.82], [0.8, 0.795, 0.81])
    (row,) = Claim.of(spec).judged(place).to_dict("records")
    assert row["verdict"] == "holds"
    (row,) = Claim.of(spec | {"at_most": 0.0}).judged(place).to_dict("records")
    assert row["verdict"] == "does not hold"


def test_what_was_not_run_says_what_it_needs(tmp_path: Path) -> None:
    assert list(Claim.of(SPEC).judged(tmp_path).columns) == CLAIMS.names
    (missing,) = Claim.of(SPEC).judged(tmp_path, {"graphs": "a GPU"}).to_dict("records")
    assert (missing["verdict"], missing["not_run"]) == ("not run here", "needs a GPU")
    (empty,) = Claim.of(SPEC).judged(tmp_path).to_dict("records")
    assert empty["not_run"] == "needs rows of masks.csv of its first and second side in graphs"
    (own,) = Claim.of({"claim": "x", "needs": "drawn masks"}).judged(tmp_path).to_dict("records")
    assert own["not_run"] == "needs drawn masks"
    sparse = SPEC | {"second": {"where": {"pattern": "graph:random"}, "minimum": {"sparsity": 0.78}}}
    (few,) = Claim.of(sparse).judged(runs(tmp_path, [0.9], [0.8])).to_dict("records")
    assert few["not_run"] == "needs rows of masks.csv of its second side in graphs"


@pytest.mark.parametrize(("pick", "number"), [("mean", 0.85), ("largest", 0.9), ("smallest", 0.8)])
def test_of_several_rows_of_a_seed_one_number_is_taken(tmp_path: Path, pick: str, number: float) -> None:
    frame = pd.DataFrame({"pattern": ["a", "a", "b"], "seed": 0, "value": [0.9, 0.8, 0.5]}).assign(metric="accuracy")
    write_csv(frame, tmp_path / "graphs" / "masks.csv")
    sides = {"first": {"where": {"pattern": "a"}, "pick": pick}, "second": {"where": {"pattern": "b"}}}
    (row,) = Claim.of(SPEC | sides).judged(tmp_path).to_dict("records")
    assert row["difference"] == pytest.approx(number - 0.5)


OF_ROW: dict[str, Any] = {
    "claim": "heads are smooth over depth",
    "steps": {"graphs": "delta"},
    "file": "smoothness.csv",
    "metric_column": "quantity",
    "first": {"where": {"model": "b", "other_model": ""}},
    "evidence": "interval",
    "at_least": 0.3,
}


def smoothness(folder: Path, value: float, low: float, high: float, expected: float, p_value: float) -> Path:
    """A row of the model, one of its difference from another, and the same of another quantity."""
    names = ["value", "ci_low", "ci_high", "expected", "p_value"]
    rows = pd.DataFrame([(value, low, high, expected, p_value), (9, 9, 9, 9, 0)], columns=names).astype(float)
    rows = rows.assign(model="b", other_model=["", "a"], quantity="delta")
    write_csv(pd.concat([rows, rows.assign(quantity="confidence", value=7.0)]), folder / "graphs" / "smoothness.csv")
    return folder


@pytest.mark.parametrize(
    ("row", "at_least", "at_most"),
    [
        ((0.9, 0.4, 0.95), "holds", "does not hold"),
        ((0.1, -0.2, 0.2), "does not hold", "holds"),
        ((0.5, 0.1, 0.7), "not decided", "not decided"),
        (
            (0.5, np.nan, np.nan),
            "points in the claimed direction, without an interval",
            "points in the opposite direction, without an interval",
        ),
    ],
)
def test_the_interval_of_a_row_decides(
    tmp_path: Path, row: tuple[float, float, float], at_least: str, at_most: str
) -> None:
    place = smoothness(tmp_path, *row, 0.0, 0.01)
    turned = {k: v for k, v in OF_ROW.items() if k != "at_least"} | {"at_most": 0.3}
    for spec, verdict in (OF_ROW, at_least), (turned, at_most):
        (judged,) = Claim.of(spec).judged(place).to_dict("records")
        assert judged["verdict"] == verdict
        numbers = [judged[name] for name in ("difference", "ci_low", "ci_high", "trainings")]
        assert numbers == pytest.approx([*row, 1], nan_ok=True)
        assert np.isnan(judged["p_value"]), "that of the row is about 0, not about the bound"


@pytest.mark.parametrize(
    ("value", "p_value", "at_least", "at_most"),
    [
        (0.2, 0.0001, "holds", "does not hold"),
        (-0.3, 0.049, "does not hold", "holds"),
        (-0.05, 0.0001, "holds", "does not hold"),  # above what chance gives, -0.1
        (0.2, 0.05, "not decided", "not decided"),
        (
            0.2,
            np.nan,
            "points in the claimed direction, without a p-value",
            "points in the opposite direction, without a p-value",
        ),
    ],
)
def test_the_p_value_of_a_row_decides(
    tmp_path: Path, value: float, p_value: float, at_least: str, at_most: str
) -> None:
    place = smoothness(tmp_path, value, np.nan, np.nan, -0.1, p_value)
    spec = {k: v for k, v in OF_ROW.items() if k != "at_least"} | {"evidence": "p_value"}
    for name, verdict in ("at_least", at_least), ("at_most", at_most):
        (judged,) = Claim.of(spec | {name: 0.0}).judged(place).to_dict("records")
        assert judged["verdict"] == verdict
        assert judged["difference"] == pytest.approx(value + 0.1)
        assert judged["p_value"] == pytest.approx(p_value, nan_ok=True)
        assert np.isnan(judged["ci_low"])


def test_a_row_that_decides_is_one_and_has_a_number(tmp_path: Path) -> None:
    (lost,) = Claim.of(OF_ROW).judged(tmp_path).to_dict("records")
    assert lost["not_run"] == "needs a row of smoothness.csv in graphs"
    place = smoothness(tmp_path, np.nan, np.nan, np.nan, np.nan, np.nan)
    (empty,) = Claim.of(OF_ROW).judged(place).to_dict("records")
    assert (empty["verdict"], empty["not_run"]) == (
        "not run here",
        "needs a number in the row of smoothness.csv, which has none, in graphs",
    )
    with pytest.raises(InputError, match="2 rows would be one number"):
        Claim.of(OF_ROW | {"first": {"where": {"model": "b"}}}).judged(place)


def test_verdicts_for_readers_have_interval_and_p_value(tmp_path: Path) -> None:
    (line,) = in_words(Claim.of(OF_ROW).judged(smoothness(tmp_path, 0.38, 0.12, 0.59, 0.0, 0.0013)))
    assert (line["verdict"], line["difference"]) == ("not decided", "0.380 [0.120, 0.590]")
    spec = OF_ROW | {"evidence": "p_value", "at_least": 0.0}
    (line,) = in_words(Claim.of(spec).judged(smoothness(tmp_path, 0.18, np.nan, np.nan, -0.01, 0.0096)))
    assert (line["verdict"], line["difference"]) == ("holds", "0.190, p 0.0096")


def test_what_is_no_claim() -> None:
    with pytest.raises(ValueError, match="is decided by a single row, but has a second side"):
        Claim.of(OF_ROW | {"second": {"where": {"model": "a"}}})
    with pytest.raises(ValueError, match="has a p-value, which only applies to a bound of 0"):
        Claim.of(OF_ROW | {"evidence": "p_value"})
    with pytest.raises(ValueError, match="needs either at_least or at_most"):
        Claim.of(SPEC | {"at_most": 1.0})
    with pytest.raises(ValueError, match="has no steps and file, and does not say what it needs"):
        Claim.of({"claim": "x"})


def test_heads_decide_where_a_run_has_no_seeds(tmp_path: Path) -> None:
    """Over the heads of a run whose layers share masks: layer is empty, and there are no metrics."""
    p = {"diagonal": [0.2, 0.3, 0.25, 0.2], "rest": [0.5, 0.7, 0.5, 0.6]}
    rows = [(kind, head, value) for kind, values in p.items() for head, value in enumerate(values)]
    frame = pd.DataFrame(rows, columns=["class", "head", "p"]).assign(layer=np.nan)
    write_csv(frame, tmp_path / "graphs" / "positions.csv")
    spec = {**SPEC, "steps": {"graphs": ""}, "file": "positions.csv", "value": "p", "evidence": "heads"}
    sides = {"first": {"where": {"class": "diagonal"}}, "second": {"where": {"class": "rest"}}}
    del spec["at_least"]
    (row,) = Claim.of({**spec, **sides, "at_most": 0.0}).judged(tmp_path).to_dict("records")
    differences = np.subtract(p["diagonal"], p["rest"])
    interval = stats.ttest_1samp(differences, 0).confidence_interval()
    assert (row["verdict"], row["trainings"]) == ("holds", 4)
    assert (row["ci_low"], row["ci_high"]) == pytest.approx((interval.low, interval.high))
    other = {**sides, "second": {"where": {"class": "special"}}}
    (row,) = Claim.of({**spec, **other, "at_most": 0.0}).judged(tmp_path).to_dict("records")
    assert row["not_run"] == "needs rows of positions.csv of its second side in graphs"


CORRELATED = {
    "claim": "confident heads are relevant",
    "steps": {"roles": ""},
    "file": "heads.csv",
    "value": "relevance",
    "other_value": "confidence",
    "evidence": "correlation",
    "first": {"where": {"stack": "encoder"}},
    "at_least": 0.0,
}


@pytest.mark.parametrize(("slope", "verdict"), [(1, "holds"), (-1, "does not hold"), (0, "not decided")])
def test_the_rank_correlation_of_two_columns_decides(tmp_path: Path, slope: int, verdict: str) -> None:
    rng = np.random.default_rng(0)
    confidence = np.append(rng.uniform(size=20), [0.9, 0.1])
    relevance = np.exp(slope * confidence) + 0.05 * rng.normal(size=22)
    frame = pd.DataFrame(
        {"stack": ["encoder"] * 20 + ["decoder"] * 2, "confidence": confidence, "relevance": relevance}
    )
    (tmp_path / "roles").mkdir()
    frame.to_csv(tmp_path / "roles" / "heads.csv", index=False)
    (judged,) = Claim.of(CORRELATED).judged(tmp_path).to_dict("records")
    expected = stats.spearmanr(relevance[:20], confidence[:20])
    assert (judged["verdict"], judged["trainings"]) == (verdict, 20)
    assert (judged["difference"], judged["p_value"]) == pytest.approx((expected.statistic, expected.pvalue))
    frame.assign(relevance=np.nan).to_csv(tmp_path / "roles" / "heads.csv", index=False)
    (empty,) = Claim.of(CORRELATED).judged(tmp_path).to_dict("records")
    assert empty["not_run"] == "needs relevance and confidence of 4 rows in roles"
    with pytest.raises(ValueError, match="is correlated with other_value, or it is not"):
        Claim.of({k: v for k, v in CORRELATED.items() if k != "other_value"})


def test_the_best_row_within_a_limit_decides(tmp_path: Path) -> None:
    """Of the models with at most 24 heads that with the largest change."""
    spec = {
        **{k: v for k, v in CORRELATED.items() if k not in ("other_value", "evidence", "first")},
        "steps": {"encoder-heads": "bleu"},
        "file": "sweep.csv",
        "value": "delta",
        "evidence": "interval",
        "ends": ["delta_low", "delta_high"],
        "first": {"minimum": {"penalty": 1e-9}, "maximum": {"heads_encoder": 24}, "pick": "largest"},
        "at_least": -1.0,
    }
    rows = [(0.0, 24, 0.1), (0.01, 40, 0.5), (0.03, 24, -0.3), (0.1, 8, -2.0)]
    frame = pd.DataFrame(rows, columns=["penalty", "heads_encoder", "delta"]).assign(metric="bleu")
    (tmp_path / "encoder-heads").mkdir()
    path = tmp_path / "encoder-heads" / "sweep.csv"
    for half, verdict in ((0.5, "holds"), (1.0, "not decided")):
        frame.assign(delta_low=frame["delta"] - half, delta_high=frame["delta"] + half).to_csv(path, index=False)
        (judged,) = Claim.of(spec).judged(tmp_path).to_dict("records")
        assert (judged["difference"], judged["verdict"]) == (-0.3, verdict)


@pytest.mark.parametrize(("late", "verdict"), [(0.9, "holds"), (0.1, "does not hold"), (0.5, "not decided")])
def test_two_groups_of_heads_are_compared(tmp_path: Path, late: float, verdict: str) -> None:
    """Over several runs: the share of these that keep a head, of heads with one of several roles and without any."""
    rng = np.random.default_rng(0)
    roles = ["positional(+1)", "syntactic(obj dep->head); broad", "rare", "sink", None]
    rows = [
        {"stack": "encoder", "layer": layer, "head": head, "roles": role, "run": run, "kept": bool(kept)}
        for layer in range(4)
        for head, role in enumerate(roles * 2)
        for run, kept in enumerate(rng.random(6) < (0.5 if role is None else late))
    ]
    (tmp_path / "encoder-heads").mkdir()
    pd.DataFrame(rows).to_csv(tmp_path / "encoder-heads" / "roles.csv", index=False)
    spec = {
        "claim": "specialised heads stay",
        "steps": {"encoder-heads": ""},
        "file": "roles.csv",
        "value": "kept",
        "evidence": "groups",
        "at_least": 0.0,
        "second": {"where": {"roles": ""}},
        "first": {"where": {"roles": "*positional(*|*syntactic*|*rare*"}},
    }
    (judged,) = Claim.of(spec).judged(tmp_path).to_dict("records")
    frame = pd.DataFrame(rows)
    shares = frame.groupby(["layer", "head"])["kept"].mean()
    of = frame.groupby(["layer", "head"])["roles"].first()
    first, second = shares[of.notna() & (of != "sink")], shares[of.isna()]
    assert judged["difference"] == pytest.approx(first.mean() - second.mean())
    assert judged["p_value"] == pytest.approx(stats.mannwhitneyu(first, second).pvalue)
    assert (judged["verdict"], judged["trainings"]) == (verdict, 32)
    (missing,) = Claim.of(spec | {"second": {"where": {"roles": "coreference"}}}).judged(tmp_path).to_dict("records")
    assert missing["not_run"] == "needs 4 heads on either side in encoder-heads"
