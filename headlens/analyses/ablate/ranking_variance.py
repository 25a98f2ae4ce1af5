"""How much rankings of heads change with the examples, the random orders and the strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from headlens.errors import counted
from headlens.plots.head_grid import float_column
from headlens.statistics.bootstrap import FEWEST
from headlens.statistics.ranking_reliability import (
    SPLITS,
    disattenuated_correlations,
    random_halves,
    spearman_brown,
    unit_ranks,
    variance_shares,
)
from headlens.tables.ablation_tables import RANKING_VARIANCE
from headlens.tables.shared_columns import ALL
from headlens.tasks.task import Floats
from headlens.tasks.task_examples import Chosen

# From which examples are chosen to the ranks of all heads.
Ranker = Callable[[Chosen], Floats]
_SOURCES = ("heads", "strategy", "examples")


def variance_table(
    rankers: Mapping[str, Ranker], keys: Sequence[str], seed: int, rounds: Sequence[Floats] = ()
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Where the variance of ranks comes from, and how alike strategies would rank on endless examples.

    Args:
        rankers: of each strategy, how it ranks heads on some examples.
        keys: of the examples; those with equal keys are not independent.
        seed: of the divisions into halves.
        rounds: Shapley values of each round of random orders, on all examples, (heads,) each; fewer than two tell
            nothing of the orders.

    Returns:
        Rows of ranking_variance.csv without the model, and correlations of two strategies each without the noise of
        examples, by their names; both without numbers for fewer than `FEWEST` independent examples.
    """
    names = list(rankers)
    empty = pd.DataFrame(np.nan, names, names)
    if len(set(keys)) < FEWEST:
        return pd.DataFrame(columns=RANKING_VARIANCE.names[1:]), empty
    halves = random_halves(keys, SPLITS, seed)
    first, second = (np.stack([[rank(half) for rank in rankers.values()] for half in way]) for way in (halves, ~halves))
    common: dict[str, Any] = {"n": len(keys), "splits": SPLITS}
    rows = []
    if len(names) > 1:
        shares = dict(zip(_SOURCES, variance_shares(first, second), strict=True))
        rows += [{"strategy": ALL, "source": source, "share": share, **common} for source, share in shares.items()]
    for number, name in enumerate(names):
        correlations = (unit_ranks(first[:, number]) * unit_ranks(second[:, number])).sum(-1)
        low, high = np.quantile(spearman_brown(correlations), [0.025, 0.975])
        mean = float(np.mean(correlations))
        reliability = float(spearman_brown(mean))
        row = {"strategy": name, "source": "examples", "share": 1 - reliability, "correlation": mean}
        rows.append({**row, "reliability": reliability, "low": low, "high": high, **common})
    if (half := len(rounds) // 2) > 0:
        values = np.stack([np.mean(part, axis=0) for part in (rounds[:half], rounds[half : 2 * half])])
        # Values have no ties, so that ranks are places.
        one, other = unit_ranks(pd.DataFrame(values).rank(axis=1).to_numpy())
        correlation = float(one @ other)
        reliability = float(spearman_brown(correlation, len(rounds) / half))
        row = {"strategy": "shapley", "source": "orders", "share": 1 - reliability, "correlation": correlation}
        rows.append({**row, "reliability": reliability, "n": len(keys), "splits": 1})
    corrected = pd.DataFrame(disattenuated_correlations(first, second), names, names)
    return RANKING_VARIANCE.frame(rows)[RANKING_VARIANCE.names[1:]], corrected


def variance_notes(variance: pd.DataFrame | None) -> list[str]:
    """Where the variance of ranks comes from, and how reliable each ranking is.

    Args:
        variance: rows of ranking_variance.csv of one model; None where there are none.
    """
    if variance is None or variance.empty:
        return []
    shares = variance[variance["strategy"] == ALL].set_index("source")["share"]
    own = variance[(variance["source"] == "examples") & (variance["strategy"] != ALL)]
    orders = variance[variance["source"] == "orders"]
    notes = []
    if shares.notna().any():
        of_heads, of_strategies, of_examples = (f"{100 * shares[source]:.0f} %" for source in _SOURCES)
        notes.append(
            f"Of the variance of ranks on {counted(int(own['n'].iloc[0]), 'example')}, {of_heads} is common to the "
            f"{len(own)} strategies that rank all heads, {of_strategies} differs between them, and {of_examples} would "
            "change with other examples."
        )
    values = ", ".join(
        f"{name} {value:.2f}" for name, value in zip(own["strategy"], float_column(own, "reliability"), strict=True)
    )
    text = f"Reliability of rankings over examples (split halves, Spearman-Brown): {values}"
    if len(orders):
        text += f"; of shapley over random orders, on the same examples: {float_column(orders, 'reliability')[0]:.2f}"
    unreliable = float_column(own, "reliability") <= 0
    return [*notes, f"{text}{' (0: halves do not agree)' if unreliable.any() else ''}."]
