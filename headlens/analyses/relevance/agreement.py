"""Whether two ways to measure relevance put the heads in the same order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.attention.sites import Site
from headlens.statistics.bootstrap import percentile_interval
from headlens.statistics.rank_correlation import spearman_by_row

Floats = npt.NDArray[np.float64]
Means = Mapping[Site, Floats]
COLUMNS = ("stack", "rule", "other_rule", "of", "scope", "n", "spearman", "ci_low", "ci_high")
ALL = "all"


def rule_correlations(rule: str, means: Means, other_rule: str, others: Means) -> pd.DataFrame:
    """Rank correlations between two rules over one corpus, with 95 % bootstrap intervals.

    Args:
        rule: name of the first.
        means: its mean relevance and paired replicates by site (`RelevanceSums.means`).
        other_rule: name of the second.
        others: the same for it.

    Returns:
        Columns `COLUMNS`: `of` is `relevance`, or `magnitude` for absolute values; `scope` is `heads`, all heads of the
        stack (or of all stacks: `all`), or `layers`, the mean over layers of the correlation between the heads of a
        layer. `n` is the number of heads that have a relevance under both rules, the others are left out. Correlations
        that do not exist are NaN.
    """
    rows = list(_rows(means, others))
    return pd.DataFrame([{"rule": rule, "other_rule": other_rule, **row} for row in rows], columns=list(COLUMNS))


def _rows(means: Means, others: Means) -> Iterator[dict[str, Any]]:
    stacks: list[str] = list(dict.fromkeys(site.stack for site in means))
    for stack in stacks if len(stacks) == 1 else [*stacks, ALL]:
        sites = [s for s in means if stack in (ALL, s.stack)]
        for of in ("relevance", "magnitude"):
            pairs = [(means[s], others[s]) for s in sites]
            if of == "magnitude":
                pairs = [(np.abs(first), np.abs(second)) for first, second in pairs]
            pairs = [_known(*pair) for pair in pairs]
            whole = spearman_by_row(*(np.concatenate(side, axis=1) for side in zip(*pairs, strict=True)))
            by_layer = np.stack([spearman_by_row(*pair) for pair in pairs])
            heads = sum(first.shape[1] for first, _ in pairs)
            place = {"stack": stack, "of": of, "n": heads}
            yield {**place, "scope": "heads", **_summary(whole)}
            yield {**place, "scope": "layers", **_summary(_mean(by_layer))}


def _known(first: Floats, second: Floats) -> tuple[Floats, Floats]:
    """Heads that have a mean under both rules: in a layer that always cancels none has."""
    there = ~(np.isnan(first[0]) | np.isnan(second[0]))
    return first[:, there], second[:, there]


def _mean(values: Floats) -> Floats:
    """Mean over rows of what is there, NaN where nothing is."""
    present = ~np.isnan(values)
    counts = present.sum(axis=0)
    return np.where(counts > 0, np.where(present, values, 0.0).sum(axis=0) / np.maximum(counts, 1), np.nan)


def _summary(values: Floats) -> dict[str, float]:
    low, high = percentile_interval(values[1:])
    return {"spearman": float(values[0]), "ci_low": float(low), "ci_high": float(high)}
