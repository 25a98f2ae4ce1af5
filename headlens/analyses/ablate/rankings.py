"""Rankings of heads by what they are worth: scores of every strategy, their agreement, and the area under its curve."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from headlens.analyses.ablate.pruning_strategies import Score
from headlens.errors import counted
from headlens.heads import KEY_COLUMNS, Head
from headlens.pages.formatting import number_text
from headlens.plots.head_grid import float_column
from headlens.statistics.bootstrap import FEWEST
from headlens.tables.ablation_tables import AGREEMENT_OF_RANKINGS, PRUNING_AREAS, RANKINGS
from headlens.tasks.task_options import LOWER_IS_BETTER

REPLICATES = 2000
_RANDOM, _NONE = "random", "none"


def rankings_table(
    scores: Mapping[str, Mapping[Head, Score]], baseline: float, errors: Mapping[Head, float], n: int
) -> pd.DataFrame:
    """What heads are worth by every strategy that scores them once, as rows of rankings.csv without the model.

    Args:
        scores: what strategies choose by, higher for heads that can go.
        baseline: score of the model with all heads, which that of `ranked` is compared with.
        errors: standard errors of Shapley values.
        n: number of examples that the scores are from.
    """
    frames = []
    for strategy, of_heads in scores.items():
        values = np.array([score.value for score in of_heads.values()])
        worth = baseline - values if strategy == "ranked" else -values
        # Of the same worth, the strategy lets heads go by what is finer.
        order = pd.Series(list(zip((-values).tolist(), [-s.finer for s in of_heads.values()], strict=True)))
        frames.append(
            pd.DataFrame([head._asdict() for head in of_heads]).assign(
                strategy=strategy,
                worth=worth,
                rank=order.rank(ascending=False, method="average") if len(order) else [],
                se=[errors.get(head, np.nan) if strategy == "shapley" else np.nan for head in of_heads],
                n=n,
            )
        )
    columns = [name for name in RANKINGS.names if name != "model"]
    return pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)


def agreement_table(rankings: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Spearman's correlation of every two rankings, with a bootstrap interval over heads.

    Args:
        rankings: rows of rankings.csv of one model.
        seed: of the resampling.
    """
    wide = rankings.pivot_table(index=KEY_COLUMNS, columns="strategy", values="rank")
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(wide), size=(REPLICATES, len(wide))) if len(wide) >= FEWEST else None
    rows = []
    for one, other in combinations(dict.fromkeys(rankings["strategy"]), 2):
        pair = wide[[one, other]].to_numpy(float)
        low = high = np.nan
        if drawn is not None:
            replicates = np.array([_spearman(pair[places]) for places in drawn])
            low, high = np.nanquantile(replicates, [0.025, 0.975])
        spearman = {"spearman": _spearman(pair), "ci_low": low, "ci_high": high}
        rows.append({"strategy": one, "other_strategy": other, **spearman, "heads": len(wide)})
    columns = [name for name in AGREEMENT_OF_RANKINGS.names if name != "model"]
    return pd.DataFrame(rows, columns=columns)


def _spearman(pair: np.ndarray[Any, Any]) -> float:
    """Of two columns of numbers; NaN where one of them is constant."""
    ranks = pd.DataFrame(pair).rank().to_numpy()
    ranks = ranks - ranks.mean(0)
    norm = np.sqrt((ranks**2).sum(0).prod())
    return float(ranks.prod(1).sum() / norm) if norm > 0 else float("nan")


def area_table(pruning: pd.DataFrame) -> pd.DataFrame:
    """The mean of a metric over numbers of pruned heads (trapezoids from none to the most), for every strategy.

    Args:
        pruning: rows of pruning.csv of one model.

    Returns:
        Rows of pruning_areas.csv without the model: the area of each strategy, of `random` the mean over its orders,
        beside the lowest and the highest area of a random order.
    """
    whole = float(float_column(pruning[pruning["strategy"] == _NONE], "value")[0])
    by_strategy: dict[str, list[float]] = {}
    most = int(pruning["n_pruned"].max())
    chosen = pruning[pruning["strategy"] != _NONE]
    ordered = chosen.sort_values("n_pruned", kind="stable")
    for (strategy, _), rows in ordered.groupby(["strategy", "seed"], sort=False, dropna=False):
        counts = np.array([0, *rows["n_pruned"]], float)
        values = np.array([whole, *float_column(rows, "value")])
        by_strategy.setdefault(str(strategy), []).append(float(np.trapezoid(values, counts) / most))
    random = by_strategy.get(_RANDOM, [])
    lower = pruning["metric"].iloc[0] in LOWER_IS_BETTER
    rows_of_areas = [
        {
            "strategy": strategy,
            "metric": pruning["metric"].iloc[0],
            "area": np.mean(areas),
            "random_low": min(random, default=np.nan),
            "random_high": max(random, default=np.nan),
            "better_than": np.nan
            if not random or strategy == _RANDOM
            else sum(areas[0] < r if lower else areas[0] > r for r in random),
            "equal_to": np.nan if not random or strategy == _RANDOM else sum(areas[0] == r for r in random),
            "orders": len(random),
            "most": most,
        }
        for strategy, areas in by_strategy.items()
    ]
    columns = [name for name in PRUNING_AREAS.names if name != "model"]
    return pd.DataFrame(rows_of_areas, columns=columns)


def comparison_notes(areas: pd.DataFrame, rankings: pd.DataFrame | None) -> list[str]:
    """How many random orders each strategy beats, and how precise Shapley values are.

    Args:
        areas: rows of pruning_areas.csv of one model; none for one whose metric tells nothing of heads.
        rankings: rows of rankings.csv; None where there are none.
    """
    notes = []
    known = areas[areas["better_than"].notna()]
    if len(known):
        first = known.iloc[0]
        several = ", ".join(
            f"{row['strategy']} {number_text(row['area'])} (better than {row['better_than']:.0f}"
            + f", equal to {row['equal_to']:.0f}" * bool(row["equal_to"] > 0)
            + f" of {row['orders']:.0f})"
            for row in known.to_dict("records")
        )
        notes.append(
            f"Mean {first['metric']} over 0 to {int(first['most'])} pruned heads, beside that of random orders "
            f"({number_text(first['random_low'])} to {number_text(first['random_high'])}): {several}."
        )
    shapley = None if rankings is None else rankings[rankings["strategy"] == "shapley"]
    if shapley is not None and len(shapley):
        errors, values = float_column(shapley, "se"), np.abs(float_column(shapley, "worth"))
        notes.append(
            "Shapley values are those of the loss, from random orders of "
            f"{counted(int(shapley['n'].iloc[0]), 'example')}: the largest is {values.max():.3g}, the largest standard "
            f"error {errors.max():.2g}."
        )
    return notes
