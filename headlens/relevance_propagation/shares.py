"""What figures of relevance have in common: the rule that was asked for, even shares, axes that no outlier sets."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.plots import style
from headlens.plots.cell_drawing import Ends, Scale
from headlens.plots.head_grid import Grid, float_column
from headlens.plots.heatmaps import centred_scale, limit
from headlens.tables.same_answers import NEARLY_ALL

Marks = npt.NDArray[np.bool_]
# What the heads of a layer do together.
SERVES, OPPOSES, CANCEL, OPEN = "serves the target", "opposes the target", "its heads cancel", "not decided"
UNTESTED = "not tested"
UNSIGNED = "magnitudes, no sign"
# Whose relevance has one sign, whatever a head does: above 0, or that of the target that it starts from.
UNSIGNED_RULES = frozenset({"taylor", "alpha-beta"})
SAME_OUTPUT = "The model gives the same output for every example"
ONE_ANSWER = "The model nearly always gives the same answer"
FEW_ANSWERS = "The model nearly always gives one of"
EVEN_OUTPUT = "The model finds all answers almost equally probable"
NO_PREDICTION = (SAME_OUTPUT, ONE_ANSWER, FEW_ANSWERS, EVEN_OUTPUT)  # how notes begin that come before all numbers
EVEN = 0.99  # from which share of the largest entropy on, as for the attention of a head
_MIXED = 0.1  # of the examples at least is on either side
_OF_ANSWERS = 20  # that a model can give, and that it gave, one is few
_TINY = 0.1  # of the sum of magnitudes, as `CANCELLED` is for one example
_FAR = 1.5  # times the limit of all others
MARGIN = 0.07  # at either end of an axis, as a share of what is between


def rules_of_table(relevance: pd.DataFrame) -> list[str]:
    """The rules of a table in order of appearance: the first is the one that was asked for."""
    return [str(rule) for rule in relevance["rule"].dropna().drop_duplicates()] if "rule" in relevance else []


def of_rule(relevance: pd.DataFrame, rule: str) -> pd.DataFrame:
    """Returns the rows of relevance.csv for one rule: share of the layer, interval, signed and raw sums by head."""
    return relevance[relevance["rule"].astype(str) == rule]


def requested_rule(relevance: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """The rule that was asked for, and its rows."""
    rules = rules_of_table(relevance)
    return (rules[0], of_rule(relevance, rules[0])) if rules else ("", relevance.iloc[:0])


def described(rows: pd.DataFrame) -> str:
    """Rule and target of rows, for a title."""
    words = {name: ", ".join(map(str, rows[name].dropna().unique())) for name in ("rule", "target") if name in rows}
    magnitudes = ", magnitudes" if gives_magnitudes(rows) else ""
    return f"rule {words['rule']}{magnitudes}" + (f", target {words['target']}" if words.get("target") else "")


def figure_title(words: str, rows: pd.DataFrame) -> str:
    """The title of a figure: words, rule and target, and which models have one output or predict nothing."""
    title = f"{words} ({described(rows)})"
    said = {
        "same_output": "the same output for every example",
        "few_answers": "nearly always the same answer, or one of few",
        "even_output": "predicts nothing here",
    }
    for column, what in said.items():
        told = rows[rows[column].astype(str) == "True"] if column in rows else rows.iloc[:0]
        models = ", ".join(map(str, told["model"].unique())) if "model" in told else ""
        title += f"\n{models or 'model'}: {what}" if len(told) else ""
    return title


def warned_title(words: str, relevance: pd.DataFrame | None) -> str:
    """The title of a figure of shares: as `figure_title`, and which layers do not serve the target as a whole.

    Args:
        words: what is drawn.
        relevance: rows of `relevance.csv`; without any the words stay alone.
    """
    if relevance is None or relevance.empty:
        return words
    _, rows = requested_rule(relevance)
    title = figure_title(words, rows)
    # Layers of other models and stacks have the same numbers.
    places = [name for name in ("model", "stack") if name in rows and len(rows[name].unique()) > 1]
    of_layers = (
        "shares of layers that work against the target",
        "shares of layers of which it is not decided whether they serve it",
    )
    for what, chosen in zip(of_layers, (opposing, unclear_direction), strict=True):
        layers: dict[str, list[str]] = {}
        found = rows[chosen(rows)] if "layer" in rows else rows.iloc[:0]
        for row in found[[*places, "layer"]].drop_duplicates().to_dict("records") if len(found) else ():
            layers.setdefault(", ".join(str(row[name]) for name in places), []).append(str(row["layer"]))
        named = "; ".join(
            f"{place}: {', '.join(numbers)}" if place else ", ".join(numbers) for place, numbers in layers.items()
        )
        title += f"\n{what}: {named}" if named else ""
    return title


def even_shares(rows: pd.DataFrame) -> Grid:
    """The share of every head if all heads of its layer had the same: 1 / heads."""
    keys = [name for name in ("model", "stack", "layer") if name in rows]
    return 1 / rows.groupby(keys, dropna=False)["head"].transform("size").to_numpy(np.float64)


def layer_signs(rows: pd.DataFrame) -> npt.NDArray[np.object_]:
    """What the heads of every row's layer do together: `SERVES`, `OPPOSES`, `CANCEL` or, for an unclear sign, `OPEN`.

    Of a rule that gives magnitudes alone it is `UNSIGNED`.

    The 95 % interval of the layer's sum decides; fewer than ten examples have none, and nothing is tested (`UNTESTED`).
    Where it contains 0 and the sum is less than a tenth of the magnitudes of its heads, they cancel. Tables of older
    versions have no column of intervals: the size of the sum decides, then its sign.
    """
    if gives_magnitudes(rows):
        return np.full(len(rows), UNSIGNED, object)
    raw = float_column(rows, "raw")
    total, size = layer_sums(rows), _of_layer(rows, np.abs(raw))
    low, high = float_column(rows, "layer_raw_low"), float_column(rows, "layer_raw_high")
    tiny, unknown = np.abs(total) < _TINY * size, np.isnan(low) | np.isnan(high)
    unclear = unknown | ((low <= 0) & (high >= 0))
    untested = unknown & np.isfinite(raw) & ("layer_raw_low" in rows)
    cases = [untested, unclear & tiny, unclear & ~unknown, total < 0]
    return np.select(cases, np.array([UNTESTED, CANCEL, OPEN, OPPOSES], object), SERVES)


def layer_sums(rows: pd.DataFrame) -> Grid:
    """The sum of `raw` over the heads of every row's layer."""
    return _of_layer(rows, float_column(rows, "raw"))


def gives_magnitudes(rows: pd.DataFrame) -> bool:
    """Whether rows are of a rule that gives magnitudes, and does not tell what serves the target."""
    return "rule" in rows and set(map(str, rows["rule"])) <= UNSIGNED_RULES and len(rows) > 0


def relevance_scale(label: str, rows: pd.DataFrame, column: str, relevance: pd.DataFrame) -> Scale:
    """Colours with 0 in their middle, or, of a rule that gives magnitudes alone, from 0 on.

    Args:
        label: of the colour bar.
        rows: with the numbers.
        column: of them.
        relevance: rows of relevance.csv of the rule that they are of.
    """
    centred = centred_scale(label, rows, column, style.DIVERGING)
    # Those of alpha-beta are below 0 where the target is.
    if not gives_magnitudes(relevance) or (float_column(rows, column) < 0).any():
        return centred
    beyond: Ends = "max" if centred.beyond in ("max", "both") else "neither"
    return Scale(f"{label}, magnitude", 0.0, centred.high, style.SEQUENTIAL, beyond)


def opposing(rows: pd.DataFrame) -> Marks:
    """Which rows are of a layer whose heads together work against the target."""
    return np.asarray(layer_signs(rows) == OPPOSES, bool)


def unclear_direction(rows: pd.DataFrame) -> Marks:
    """Which rows are of a layer that is not shown to serve or oppose the target, or whose heads cancel.

    Shares of a sum near 0, which may have either sign, mean little or nothing.
    """
    return np.isin(layer_signs(rows).astype(str), (CANCEL, OPEN, UNTESTED))


def same_output(count: int) -> str:
    """The note that all outputs of a model are identical, so that nothing that was measured is about inputs."""
    return (
        f"{SAME_OUTPUT} (all {count:,} are identical, but for rounding): these numbers are of one constant output, and "
        "their intervals tell nothing about other texts."
    )


def few_answers(counts: npt.NDArray[np.number]) -> str:
    """The note that a model (nearly) always gives one of few answers, whatever it reads; empty for other models.

    Args:
        counts: of the examples, or predicted tokens, how many get each answer that the model can give, from the most
            frequent one on.
    """
    shares = np.cumsum(counts) / max(1, counts.sum())
    few = int(np.argmax(shares >= NEARLY_ALL)) + 1 if counts.sum() > 1 else 0
    if not few or (few > 1 and few * _OF_ANSWERS > min(len(counts), counts.sum())):
        return ""
    percent = f"{math.floor(1000 * shares[few - 1]) / 10:g} % of what relevance started from"
    if few > 1:
        return (
            f"{FEW_ANSWERS} {few} answers, of {len(counts):,} that it can give ({percent}): relevance "
            "is what leads to these, and narrow intervals do not tell that the heads distinguish much."
        )
    return (
        f"{ONE_ANSWER} ({percent}): relevance is what leads to this answer, and narrow intervals do not tell that the "
        "heads distinguish anything."
    )


def mixed_signs(below: int, count: int) -> str:
    """The note that the target is on both sides of 0, so that what serves it depends on the mix of examples; or empty.

    Args:
        below: in how many examples it is below 0.
        count: number of examples.
    """
    if not _MIXED * count <= below <= (1 - _MIXED) * count or not count:
        return ""
    return (
        f"The target is below 0 in {below:,} of {count:,} examples: means over both kinds depend on how many there are "
        "of each, and what opposes the target here may serve it in a corpus of one kind, such as texts of one class."
    )


def even_output(evenness: float) -> str:
    """The note that a model finds (nearly) all answers equally probable; empty for other models.

    Args:
        evenness: mean entropy of what it predicts where relevance started, as a share of the largest possible one.
    """
    if not evenness >= EVEN:
        return ""
    return (
        f"{EVEN_OUTPUT} (entropy {100 * math.floor(1000 * evenness) / 1000:g} % of the largest): it predicts nothing "
        "here, as an untrained model does, and relevance is what makes one of its guesses."
    )


def positive_sums(rows: pd.DataFrame) -> Grid:
    """The sum of the positive shares of every row's layer: above 1 where its heads work against each other."""
    return _of_layer(rows, np.maximum(float_column(rows, "relevance"), 0))


def _of_layer(rows: pd.DataFrame, values: Grid) -> Grid:
    keys = [name for name in ("model", "stack", "layer") if name in rows]
    return rows.assign(summed=values).groupby(keys, dropna=False)["summed"].transform("sum").to_numpy(np.float64)


def span(values: Grid, *others: Grid) -> tuple[float, float]:
    """Limits of an axis that holds 0 and all of the numbers but outliers, with a margin."""
    end = limit(values, *others)
    every = np.concatenate([values, *others])
    known = every[np.isfinite(every)]
    # What is hardly farther away is no outlier that others would have to make room for.
    if np.abs(known).max(initial=0.0) > _FAR * end:
        known = np.clip(known, -end, end)
    low, high = float(min(known.min(initial=0.0), 0.0)), float(max(known.max(initial=0.0), 0.0))
    margin = MARGIN * ((high - low) or 1.0)
    return low - margin, high + margin
