"""Claims of a paper that stand in its text alone, and what our runs say of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from headlens.analyses.reproduce.paper_cells import ENDS, matching, read_frame, step_and_task
from headlens.analyses.reproduce.paper_tables import Source
from headlens.errors import read_errors
from headlens.nested_text import conform
from headlens.statistics.intervals import mean_interval
from headlens.tables.reproduce_tables import CLAIMS

NOTHING_RUN = "not run here"
_LEVEL = 0.05  # p-values below it decide
_FEWEST = 4  # rows whose columns are correlated
# What both sides have, by what decides, and the words for a single one.
_COMPARED = {"seeds": (("seed",), "in one training run"), "heads": (("stack", "layer", "head"), "in one head")}
_PICKS = {"mean": "mean", "largest": "max", "smallest": "min"}


@dataclass(frozen=True)
class ClaimSide:
    """The rows of a table that one side of a claim is about.

    Args:
        where: their cells, by column, as in `headlens.analyses.reproduce.paper_tables.ComparedColumn`.
        minimum: numbers that they reach at least, by column.
        maximum: numbers that they reach at most, by column.
        pick: of several rows of a seed the `mean` of their values, the `largest` or the `smallest`; of a claim that a
            single row decides, the row with that value.
    """

    where: Mapping[str, Any] = field(default_factory=dict)
    minimum: Mapping[str, float] = field(default_factory=dict)
    maximum: Mapping[str, float] = field(default_factory=dict)
    pick: Literal["mean", "largest", "smallest"] = "mean"


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper as a difference: the mean over the rows of one side less that over the other's.

    The difference is taken for each seed, or for each head. It has to be at least `at_least`, or at most `at_most`.
    Of a statistic that its file tests by itself the number of one row stands in place of the difference.

    Args:
        claim: the sentence.
        reading: how it is measured here, and what in that is ours.
        steps: the metric of each run that it is asked of, by their names, `STEP/TASK` of runs with several tasks; empty
            for files without metrics.
        file: of these runs.
        value: the column of its numbers.
        ends: the columns of the ends of its interval, where that decides.
        other_value: the column that it is correlated with, where that decides.
        metric_column: the column that names the metric.
        first, second: the sides.
        evidence: what decides: `seeds`, Student's t over the differences of all seeds; `heads`, the same over those of
            all heads of one run, whose layers share them where the file names no layer; `interval`, that of the one row
            that `first` is about; `p_value`, that of this row, whose number less what chance gives (`expected`) has to
            be above or below 0; `correlation`, Spearman's test of value and `other_value` over the rows of `first`;
            `groups`, Mann and Whitney's test of the heads of one side against those of the other, of one run.
        at_least, at_most: where the difference has to lie; one of them.
        source: where it is printed.
        needs: what is missing for a verdict; empty if nothing is.
    """

    claim: str
    reading: str = ""
    steps: Mapping[str, str] = field(default_factory=dict)
    file: str = ""
    value: str = "value"
    ends: tuple[str, str] = ENDS
    other_value: str = ""
    metric_column: str = "metric"
    first: ClaimSide = field(default_factory=ClaimSide)
    second: ClaimSide = field(default_factory=ClaimSide)
    evidence: Literal["seeds", "heads", "interval", "p_value", "correlation", "groups"] = "seeds"
    at_least: float | None = None
    at_most: float | None = None
    source: Source = "paper"
    needs: str = ""

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Claim:
        """Reads a claim from a recipe; a ValueError says what is wrong with it."""
        claim: Claim = conform(spec, cls, "a claim")
        if claim.needs:
            return claim
        if not claim.steps or not claim.file:
            raise ValueError(f"the claim {claim.claim!r} has no steps and file, and does not say what it needs")
        if (claim.at_least is None) == (claim.at_most is None):
            raise ValueError(f"the claim {claim.claim!r} needs either at_least or at_most")
        if claim.evidence not in (*_COMPARED, "groups") and claim.second != ClaimSide():
            raise ValueError(f"the claim {claim.claim!r} is decided by a single row, but has a second side")
        if (claim.evidence == "correlation") != bool(claim.other_value):
            raise ValueError(f"the claim {claim.claim!r} is correlated with other_value, or it is not")
        if claim.evidence in ("p_value", "correlation", "groups") and (claim.at_least or claim.at_most):
            raise ValueError(f"the claim {claim.claim!r} has a p-value, which only applies to a bound of 0")
        return claim

    def judged(self, runs: Path, missing: Mapping[str, str] | None = None) -> pd.DataFrame:
        """Returns rows of claims.csv: one for each run that the claim is asked of, or one with what it needs.

        Args:
            runs: the folder that has a folder for each run.
            missing: of runs that were not made, what they would need, by their names.
        """
        about = {"claim": self.claim, "source": self.source, "reading": self.reading}
        if self.needs:
            rows = [{"verdict": NOTHING_RUN, "not_run": f"needs {self.needs}"}]
        else:
            rows = [
                {"step": step, "metric": metric, **self._row(runs, step, metric, missing or {})}
                for step, metric in self.steps.items()
            ]
        return CLAIMS.frame(about | row for row in rows)

    def _row(self, runs: Path, step: str, metric: str, missing: Mapping[str, str]) -> dict[str, Any]:
        name, task = step_and_task(step)
        if name in missing:
            return {"verdict": NOTHING_RUN, "not_run": f"needs {missing[name]}"}
        path = runs / name / self.file
        with read_errors(path, f"does not have what {self.claim!r} asks for", "Correct the claim in the recipe."):
            judge = self._of_pairs if self.evidence in _COMPARED else self._of_row
            judge = {"correlation": self._of_columns, "groups": self._of_groups}.get(self.evidence, judge)
            return judge(matching(read_frame(path), task), step, metric)

    def _of_pairs(self, frame: pd.DataFrame, step: str, metric: str) -> dict[str, Any]:
        """The mean difference of both sides over the seeds or heads, and what it says."""
        keys, alone = _COMPARED[self.evidence]
        sides = [self._by_unit(frame, side, metric, keys) for side in (self.first, self.second)]
        differences = pd.Series(dtype=float) if any(side.empty for side in sides) else (sides[0] - sides[1]).dropna()
        if differences.empty:
            missed = " and ".join(name for name, side in zip(("first", "second"), sides, strict=True) if side.empty)
            both = f"a {self.evidence.removesuffix('s')} that both sides have"
            rows = f"rows of {self.file} of its {missed} side" if missed else both
            return {"verdict": NOTHING_RUN, "not_run": f"needs {rows} in {step}"}
        difference, low, high = mean_interval(differences)
        interval = {"difference": difference, "ci_low": low, "ci_high": high, "trainings": len(differences)}
        without = alone if len(differences) == 1 else "without any spread"
        return interval | {"verdict": self._verdict(difference, low, high, without), "not_run": ""}

    def _of_row(self, frame: pd.DataFrame, step: str, metric: str) -> dict[str, Any]:
        """The number of the one row that the claim is about, and what its own interval or p-value says."""
        rows = self._rows(frame, self.first, metric)
        if self.first.pick != "mean" and not rows.empty:
            values = rows[self.value].astype(float)
            rows = rows[values == values.agg(_PICKS[self.first.pick])].iloc[:1]
        if len(rows) > 1:
            raise ValueError(f"{len(rows)} rows would be one number")
        if rows.empty or rows[self.value].isna().all():
            what = f"a row of {self.file}" if rows.empty else f"a number in the row of {self.file}, which has none,"
            return {"verdict": NOTHING_RUN, "not_run": f"needs {what} in {step}"}
        row = rows.iloc[0]
        if self.evidence == "p_value":
            return self._tested(row[self.value] - row["expected"], row["p_value"], 1)
        low, high = (row[end] for end in self.ends)
        verdict = self._verdict(row[self.value], low, high, "without an interval")
        record = {"difference": row[self.value], "trainings": 1, "not_run": ""}
        return record | {"ci_low": low, "ci_high": high, "verdict": verdict}

    def _of_columns(self, frame: pd.DataFrame, step: str, metric: str) -> dict[str, Any]:
        """The rank correlation of two columns, and what its p-value says."""
        from scipy.stats import spearmanr

        columns = [self.value, self.other_value]
        rows = self._rows(frame, self.first, metric).reindex(columns=columns).astype(float).dropna()
        if len(rows) < _FEWEST or (rows.nunique() < 2).any():
            return {"verdict": NOTHING_RUN, "not_run": f"needs {' and '.join(columns)} of {_FEWEST} rows in {step}"}
        found = spearmanr(rows[self.value], rows[self.other_value])
        return self._tested(found.statistic, found.pvalue, len(rows))

    def _of_groups(self, frame: pd.DataFrame, step: str, metric: str) -> dict[str, Any]:
        """The difference of the means of two groups of heads, and what the p-value of their ranks says."""
        from scipy.stats import mannwhitneyu

        keys, _ = _COMPARED["heads"]
        sides = [self._by_unit(frame, side, metric, keys) for side in (self.first, self.second)]
        if min(map(len, sides)) < _FEWEST:
            return {"verdict": NOTHING_RUN, "not_run": f"needs {_FEWEST} heads on either side in {step}"}
        p_value = float(mannwhitneyu(sides[0], sides[1]).pvalue)
        return self._tested(float(sides[0].mean() - sides[1].mean()), p_value, sum(map(len, sides)))

    def _tested(self, difference: float, p_value: float, n: int) -> dict[str, Any]:
        """A difference with its p-value, of which one below the level leaves one side of 0, and what it says."""
        record = {"difference": difference, "p_value": p_value, "trainings": n, "not_run": ""}
        # Without any p-value the number only points.
        end = math.nan if pd.isna(p_value) else difference
        verdict = self._verdict(difference, end, end, "without a p-value")
        return record | {"verdict": "not decided" if p_value >= _LEVEL else verdict}

    def _rows(self, frame: pd.DataFrame, side: ClaimSide, metric: str) -> pd.DataFrame:
        """Returns the rows that a side is about."""
        rows = matching(frame, {**({self.metric_column: metric} if metric else {}), **side.where})
        for bounds, within in ((side.minimum, pd.Series.ge), (side.maximum, pd.Series.le)):
            for name, bound in bounds.items():
                rows = rows[within(rows[name].astype(float), bound)] if name in rows else rows.iloc[:0]
        return rows

    def _by_unit(self, frame: pd.DataFrame, side: ClaimSide, metric: str, keys: Sequence[str]) -> pd.Series:
        """Returns the number of a side, by seed or by head."""
        rows = self._rows(frame, side, metric)
        if rows.empty:
            return pd.Series(dtype=float)
        known = [key for key in keys if key in rows]
        return rows.groupby(known, dropna=False)[self.value].agg(_PICKS[side.pick]).astype(float)

    def _verdict(self, difference: float, low: float, high: float, without: str) -> str:
        """Holds or does not where the whole interval says so; `without` says why there is none."""
        bound = self.at_least
        if self.at_most is not None:
            # "At most" is "at least" of the negative numbers.
            bound, difference, low, high = -self.at_most, -difference, -high, -low
        assert bound is not None
        if math.isnan(low):
            return f"points in the {'claimed' if difference >= bound else 'opposite'} direction, {without}"
        if low >= bound:
            return "holds"
        return "does not hold" if high < bound else "not decided"
