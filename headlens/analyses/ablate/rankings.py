"""Rankings of heads by what they are worth: scores of every strategy, their agreement, and the area under its curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from headlens.analyses.ablate.pruning_strategies import RANDOM_SETS, Score
from headlens.errors import counted
from headlens.findings.verdicts import has_no_verdicts
from headlens.heads import KEY_COLUMNS, Head
from headlens.pages.formatting import difference_text, number_text
from headlens.plots.head_grid import float_column, head_name
from headlens.statistics.bootstrap import FEWEST
from headlens.statistics.non_inferiority import LEVEL
from headlens.statistics.paired_tests import Floats, holm, interval_around, p_from
from headlens.tables.ablation_tables import AGREEMENT_OF_RANKINGS, INTERACTIONS, PRUNING_AREAS, RANKINGS
from headlens.tasks.task_options import LOWER_IS_BETTER

REPLICATES = 2000
_RANDOM, _NONE = "random", "none"
_COMPARED = ("ci_low", "ci_high", "compared_with", "delta", "delta_low", "delta_high", "p_value", "p_holm")
# What columns of controls are called, and what their sets are.
CONTROL_COLUMNS = {"random-by-layer": "by_layer", "placebo": "placebo"}
_ENOUGH = 19  # random sets, of which being better than all has a probability of 1 in 20 by chance
_CONTROL_SETS = {"random-by-layer": "as many heads in every layer", "placebo": "heads that it does not choose"}


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


def agreement_table(rankings: pd.DataFrame, seed: int, corrected: pd.DataFrame | None = None) -> pd.DataFrame:
    """Spearman's correlation of every two rankings, with a bootstrap interval over heads.

    Args:
        rankings: rows of rankings.csv of one model.
        seed: of the resampling.
        corrected: correlations without the noise of examples, by the names of both strategies; may lack some.
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
        of_pair = np.nan if corrected is None or not {one, other} <= set(corrected) else corrected.loc[one, other]
        rows.append({"strategy": one, "other_strategy": other, **spearman, "heads": len(wide), "corrected": of_pair})
    columns = [name for name in AGREEMENT_OF_RANKINGS.names if name != "model"]
    return pd.DataFrame(rows, columns=columns)


def _spearman(pair: np.ndarray[Any, Any]) -> float:
    """Of two columns of numbers; NaN where one of them is constant."""
    ranks = pd.DataFrame(pair).rank().to_numpy()
    ranks = ranks - ranks.mean(0)
    norm = np.sqrt((ranks**2).sum(0).prod())
    return float(ranks.prod(1).sum() / norm) if norm > 0 else float("nan")


def interactions_table(
    found: Mapping[tuple[Head, Head], Score], values: Mapping[Head, float], keys: Sequence[str]
) -> pd.DataFrame:
    """How pairs of heads interact, with a test for each, as rows of interactions.csv without the model.

    Args:
        found: the interaction of each pair, as `value`, and its standard error, as `finer`.
        values: Shapley values of the heads.
        keys: of the examples; those of examples that are not independent are equal.
    """
    from scipy.stats import t

    clusters = len(set(keys))
    rows = []
    for (first, second), (interaction, error) in found.items():
        names = {f"other_{name}": part for name, part in second._asdict().items()}
        known = clusters >= FEWEST and np.isfinite(error) and error > 0
        rows.append(
            {
                **(first._asdict() | names),
                "interaction": interaction,
                "se": error if np.isfinite(error) else np.nan,
                "p_value": 2 * t.sf(abs(interaction) / error, clusters - 1) if known else np.nan,
                "value": values[first],
                "other_value": values[second],
                "n": len(keys),
            }
        )
    table = pd.DataFrame(rows)
    return table.assign(p_holm=holm(float_column(table, "p_value")))[INTERACTIONS.names[1:]]


def sets_have_no_verdicts(pruning: pd.DataFrame) -> bool:
    """Whether nothing is known of any set of heads, as the model gives one answer, or is not shown to beat guesses.

    Args:
        pruning: rows of `pruning.csv` of one model.
    """
    sets = pruning[(pruning["n_pruned"] > 0) & ~pruning["strategy"].isin(RANDOM_SETS)]
    return len(sets) > 0 and has_no_verdicts(sets)


def interaction_notes(interactions: pd.DataFrame | None, *, silent: bool = False) -> list[str]:
    """How many pairs interact, and which most.

    Args:
        interactions: rows of interactions.csv of one model; None where there are none.
        silent: whether the model has no verdicts, which was told.
    """
    if interactions is None or interactions.empty:
        return []
    sure = interactions[float_column(interactions, "p_holm") < LEVEL]
    keys = {prefix: [f"{prefix}{name}" for name in KEY_COLUMNS] for prefix in ("", "other_")}
    heads = {Head(*key) for names in keys.values() for key in interactions[names].itertuples(index=False)}
    text = (
        f"Shapley interactions of {counted(len(interactions), 'pair')} of the {len(heads)} heads with the largest "
        f"Shapley values, for the loss of an example (a sum where it predicts several tokens): "
        f"{len(sure) or 'none'} {'is' if len(sure) < 2 else 'are'} significant after Holm's correction"
    )
    if silent:
        return [f"{text}, which tells nothing of heads where the model has no verdicts."]
    ends = []
    for row, meaning in (
        (sure[sure["interaction"] < 0].nsmallest(1, "interaction"), "each stands in for the other"),
        (sure[sure["interaction"] > 0].nlargest(1, "interaction"), "each needs the other"),
    ):
        for pair in row.to_dict("records"):
            one, other = (Head(*(pair[name] for name in names)) for names in keys.values())
            ends.append(f"{one} and {other} {pair['interaction']:+.2g} (standard error {pair['se']:.1g}; {meaning})")
    return [f"{text}: {'; '.join(ends)}." if ends else f"{text}."]


def area_table(pruning: pd.DataFrame, resampled: Floats | None = None, independent: int = 0) -> pd.DataFrame:
    """The mean of a metric over numbers of pruned heads (trapezoids from none to the most), for every strategy.

    Args:
        pruning: rows of pruning.csv of one model.
        resampled: the metric of every row in the same bootstrap replicates of the examples, (rows, replicates).
        independent: number of independent examples.

    Returns:
        Rows of pruning_areas.csv without the model: the area of each strategy, of `random` the mean over its orders,
        beside the lowest and the highest area of a random order, and its difference from that of the strategy that was
        named first.
    """
    # The value of every row, then its replicates.
    numbers = float_column(pruning, "value")[:, None]
    numbers = numbers if resampled is None else np.column_stack([numbers, resampled])
    whole = numbers[[(pruning["strategy"] == _NONE).to_numpy().argmax()]]
    # By strategy, and by the strategy that it is a control of.
    curves: dict[tuple[str, str], list[Floats]] = {}
    most, places = int(pruning["n_pruned"].max()), np.arange(len(pruning))
    controlled = "control_of" in pruning
    chosen = pruning[pruning["strategy"] != _NONE].assign(
        control_of=pruning["control_of"].fillna("") if controlled else "", place=places[pruning["strategy"] != _NONE]
    )
    ordered = chosen.sort_values("n_pruned", kind="stable")
    for (strategy, of, _), rows in ordered.groupby(["strategy", "control_of", "seed"], sort=False, dropna=False):
        counts = np.array([0, *rows["n_pruned"]], float)
        values = np.concatenate([whole, numbers[rows["place"]]])
        # Where there is no control of the largest sets, the curve ends before.
        area = np.trapezoid(values, counts, axis=0) / most if counts[-1] == most else np.full(values.shape[1], np.nan)
        curves.setdefault((str(strategy), str(of)), []).append(area)
    areas = {key: [float(curve[0]) for curve in own] for key, own in curves.items()}
    first = next((key for key in curves if key[0] not in RANDOM_SETS), None)
    metric, random = str(pruning["metric"].iloc[0]), areas.get((_RANDOM, ""), [])
    kinds = [(name, prefix) for name, prefix in CONTROL_COLUMNS.items() if name in set(chosen["strategy"])]
    rows_of_areas = []
    for (strategy, of), own in areas.items():
        is_chosen = strategy not in RANDOM_SETS
        low, high, better, equal = _beside(own[0] if is_chosen else np.nan, random, metric)
        row = {"strategy": strategy, "metric": metric, "area": np.mean(own), "random_low": low, "random_high": high}
        row |= {"better_than": better, "equal_to": equal, "orders": len(random), "most": most}
        row |= {"control_of": of or None} if controlled else {}
        mean = np.mean(curves[strategy, of], axis=0)
        row |= dict(zip(("ci_low", "ci_high"), interval_around(mean[0], mean[1:]), strict=True))
        if first is not None and not of and (strategy, of) != first:
            beside = np.array(mean - curves[first][0])
            delta, replicates = float(beside[0]), beside[1:]
            ends = interval_around(delta, replicates)
            row |= {"compared_with": first[0], "delta": delta, "delta_low": ends[0], "delta_high": ends[1]}
            row |= {"p_value": p_from(replicates, delta, independent)}
        for name, prefix in kinds if is_chosen else ():
            by_chance = _beside(own[0], areas.get((name, strategy), []), metric)
            columns = f"{prefix}_low", f"{prefix}_high", f"better_than_{prefix}", f"equal_to_{prefix}"
            row |= dict(zip(columns, by_chance, strict=True))
        rows_of_areas.append(row)
    known = {*_COMPARED, *(name for row in rows_of_areas for name in row)}
    table = pd.DataFrame(rows_of_areas, columns=[name for name in PRUNING_AREAS.names if name in known])
    return table.assign(p_holm=holm(float_column(table, "p_value")))


def _beside(area: float, random: Sequence[float], metric: str) -> tuple[float, float, float, float]:
    """The lowest and highest of the areas of random sets, and how many are worse than one and equal to it."""
    if not random or np.isnan(random).any():
        return (np.nan,) * 4
    if np.isnan(area):
        return min(random), max(random), np.nan, np.nan
    worse = sum(area < r if metric in LOWER_IS_BETTER else area > r for r in random)
    return min(random), max(random), worse, sum(area == r for r in random)


def control_notes(areas: pd.DataFrame, pruning: pd.DataFrame) -> list[str]:
    """How each strategy does beside random sets that have something in common with its own, and where these are few.

    Args:
        areas: rows of pruning_areas.csv of one model.
        pruning: its rows of pruning.csv.
    """
    notes = []
    for name, prefix in CONTROL_COLUMNS.items():
        rows = pruning[pruning["strategy"] == name]
        if rows.empty:
            continue
        seeds = rows["seed"].nunique()
        known = areas[areas[f"better_than_{prefix}"].notna()] if f"better_than_{prefix}" in areas else areas.iloc[:0]
        if len(known):
            several = "; ".join(
                f"{number_text(row['area'])} for {row['strategy']}, {number_text(row[f'{prefix}_low'])} to "
                f"{number_text(row[f'{prefix}_high'])} for its random sets"
                + _beaten(row[f"better_than_{prefix}"], row[f"equal_to_{prefix}"], seeds)
                for row in known.to_dict("records")
            )
            notes.append(
                f"{name} ({counted(seeds, 'random set')} of {_CONTROL_SETS[name]} beside each set): mean "
                f"{known['metric'].iloc[0]} over 0 to {int(known['most'].iloc[0])} pruned heads is {several}."
                f"{_too_few(seeds, 'random set')}"
            )
        few = rows[rows["possible_sets"] <= seeds].drop_duplicates(["control_of", "n_pruned"])
        if len(few):
            places = ", ".join(
                f"{row['control_of']} with {row['n_pruned']} pruned ({counted(int(row['possible_sets']), 'set')})"
                for row in few.to_dict("records")
            )
            single = {"random-by-layer": "that of the strategy", "placebo": "all other heads"}[name]
            own = f", and a single one is {single}" if (few["possible_sets"] == 1).any() else ""
            notes.append(
                f"{name} has no more sets to draw from than draws, so that some are drawn again{own}: {places}."
            )
        chosen = pruning[~pruning["strategy"].isin([_NONE, *RANDOM_SETS])]
        if len(lacking := sorted(set(chosen["n_pruned"]) - set(rows["n_pruned"]))):
            notes.append(
                f"{name} has no sets where {', '.join(map(str, lacking))} heads are pruned: too few are left to draw "
                "from."
            )
    return notes


def _beaten(better: float, equal: float, of: float) -> str:
    """How many random sets are beaten; nothing where beating all of them would be chance one time in twenty or more."""
    if of < _ENOUGH:
        return ""
    return f" (better than {better:.0f}" + f", equal to {equal:.0f}" * bool(equal > 0) + f" of {of:.0f})"


def _too_few(of: float, what: str) -> str:
    if of >= _ENOUGH:
        return ""
    return (
        f" With {counted(int(of), what)}, even being better than all is no evidence at the 5 % level ({_ENOUGH} are)."
    )


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
            f"{row['strategy']} {number_text(row['area'])}"
            + _beaten(row["better_than"], row["equal_to"], row["orders"])
            for row in known.to_dict("records")
        )
        notes.append(
            f"Mean {first['metric']} over 0 to {int(first['most'])} pruned heads, beside that of random orders "
            f"({number_text(first['random_low'])} to {number_text(first['random_high'])}): {several}."
            f"{_too_few(first['orders'], 'random order')}"
        )
    compared = areas[areas["delta_low"].notna()]
    if len(compared):
        names = ("delta", "delta_low", "delta_high", "p_value")
        several = "; ".join(
            f"{row['strategy']} {difference_text(*(row[name] for name in names), p_holm=row['p_holm'])}"
            for row in compared.to_dict("records")
        )
        notes.append(
            f"The same means minus that of {compared['compared_with'].iloc[0]}, with 95 % intervals over examples, "
            f"paired: {several}."
        )
    shapley = None if rankings is None else rankings[rankings["strategy"] == "shapley"]
    if shapley is not None and len(shapley):
        errors, values = float_column(shapley, "se"), float_column(shapley, "worth")
        high, low = (shapley.iloc[int(place)] for place in (np.nanargmax(values), np.nanargmin(values)))
        ends = f"the largest is {high['worth']:.3g} ({head_name(high)})"
        if low["worth"] < 0:
            harms = ", which harms" * bool(low["worth"] < -1.96 * low["se"])
            ends += f", the smallest {low['worth']:.3g} ({head_name(low)}{harms})"
        notes.append(
            "Shapley values are those of the loss of an example (a sum where it predicts several tokens), from random "
            f"orders of {counted(int(shapley['n'].iloc[0]), 'example')}: {ends}, the largest standard error "
            f"{errors.max():.2g}."
        )
    return notes
