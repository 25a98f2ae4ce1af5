"""Verdicts on claims of a text: differences by seed against intervals that were computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from headlens.analyses.reproduce.claims import CLAIM_COLUMNS, Claim
from headlens.files import write_csv

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
        ([0.9], "points that way, in one training"),
        ([0.7], "points the other way, in one training"),
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
    place = runs(tmp_path, [0.81, 0.80, 0.82], [0.8, 0.79, 0.81])
    (row,) = Claim.of(spec).judged(place).to_dict("records")
    assert row["verdict"] == "holds"
    (row,) = Claim.of(spec | {"at_most": 0.0}).judged(place).to_dict("records")
    assert row["verdict"] == "does not hold"


def test_what_was_not_run_says_what_it_needs(tmp_path: Path) -> None:
    assert list(Claim.of(SPEC).judged(tmp_path).columns) == CLAIM_COLUMNS
    (missing,) = Claim.of(SPEC).judged(tmp_path, {"graphs": "a GPU"}).to_dict("records")
    assert (missing["verdict"], missing["not_run"]) == ("not run here", "needs a GPU")
    (empty,) = Claim.of(SPEC).judged(tmp_path).to_dict("records")
    assert empty["not_run"] == "needs rows of masks.csv of its first and second side in graphs"
    (own,) = Claim.of({"claim": "x", "needs": "drawn masks"}).judged(tmp_path).to_dict("records")
    assert own["not_run"] == "needs drawn masks"
    sparse = SPEC | {"second": {"where": {"pattern": "graph:random"}, "minimum": {"sparsity": 0.78}}}
    (few,) = Claim.of(sparse).judged(runs(tmp_path, [0.9], [0.8])).to_dict("records")
    assert few["not_run"] == "needs rows of masks.csv of its second side in graphs"


def test_what_is_no_claim() -> None:
    with pytest.raises(ValueError, match="wants one of at_least and at_most"):
        Claim.of(SPEC | {"at_most": 1.0})
    with pytest.raises(ValueError, match="has no steps and file, and does not say what it needs"):
        Claim.of({"claim": "x"})
