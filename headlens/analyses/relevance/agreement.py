"""Whether two ways to measure relevance put the heads in the same order."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

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
    stacks: list[str] = list(dict.fromkeys(site.stack for site in means))
    rows = []
    for stack, of in product(stacks if len(stacks) == 1 else [*stacks, ALL], ("relevance", "magnitude")):
        pairs = []
        for first, second in ((means[s], others[s]) for s in means if stack in (ALL, s.stack)):
            # Heads that have a mean under both rules: in a layer that always cancels none has.
            there = ~(np.isnan(first[0]) | np.isnan(second[0]))
            pair = first[:, there], second[:, there]
            pairs.append(pair if of == "relevance" else (np.abs(pair[0]), np.abs(pair[1])))
        by_layer = np.ma.masked_invalid(np.stack([spearman_by_row(*pair) for pair in pairs]))
        correlations = {
            "heads": spearman_by_row(*(np.concatenate(side, axis=1) for side in zip(*pairs, strict=True))),
            "layers": np.ma.filled(by_layer.mean(axis=0), np.nan),
        }
        place = {"stack": stack, "rule": rule, "other_rule": other_rule, "of": of}
        for scope, values in correlations.items():
            low, high = map(float, percentile_interval(values[1:]))
            numbers = {"n": sum(first.shape[1] for first, _ in pairs), "spearman": values[0], "ci_low": low}
            rows.append({**place, "scope": scope, **numbers, "ci_high": high})
    return pd.DataFrame(rows, columns=list(COLUMNS))
