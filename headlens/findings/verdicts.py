"""What is said of a loss: that something is needed, is not needed, or that the examples do not decide it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.errors import OptionError, counted
from headlens.findings.without_skill import one_answer_after
from headlens.pages.formatting import DELTA, compared_texts, deciding_text, number_text, value_text
from headlens.pages.page_tables import Cell, number_cell
from headlens.plots.head_grid import float_column
from headlens.statistics.non_inferiority import (
    LEVEL,
    NEEDED,
    NOT_DECIDED,
    NOT_NEEDED,
    Margin,
    verdict,
    verdict_of_interval,
)
from headlens.statistics.paired_tests import holm
from headlens.tables.shared_columns import VERDICT, VERDICTS
from headlens.tables.table_schema import names_of
from headlens.tasks.task_options import LOWER_IS_BETTER, NO_UPPER_END, OF_A_HUNDRED, usual_margin

# At the end of tables of many comparisons, after their p-values.
VERDICT_COLUMNS = names_of(VERDICT)
VERDICTS_KEY = (
    "Needed: the loss is significant; not needed: it is shown to be below the margin; not decided: neither, and about "
    "how many examples would decide, if the change is as measured. Where an interval leaves 0 out and the p-value is "
    "above 0.05, the p-value decides: intervals are a little too narrow where few examples make up the change."
)
_OF_SKILL = 0.1  # the most that the usual margin is of what a model is above guesses
# What a training that is compared with a baseline has of its verdict, before the others of its family are known.
UNCORRECTED = ("p_margin", "margin", "n_to_decide")
# At the end of tables of sweeps.
SWEEP_VERDICT = ("p_holm", *VERDICT_COLUMNS)


def margin_of(
    metric: str,
    baseline: float,
    requested: float | None = None,
    tests: int = 1,
    *,
    guesses: float | None = None,
    replaced: float | None = None,
) -> Margin:
    """The smallest loss of a metric that matters: the one asked for, or the usual one.

    The usual one is a tenth of what the model is above guesses at most: one point of 1.4 BLEU is nearly all of it, and
    1 % of a loss half of what a model that has just begun to learn is below guesses. Where heads are replaced by those
    of another text, it also is a tenth of what all of them together change at most.

    Args:
        metric: of a task.
        baseline: its value with all heads.
        requested: what the user says; None for `headlens.tasks.task_options.usual_margin`.
        tests: number of comparisons that are corrected for.
        guesses: what the best guesses made without reading have; None where that is not known, which counts as 0.
        replaced: what the metric is with all heads on the text that they are replaced from.
    """
    size = usual_margin(metric, baseline) if requested is None else requested
    # A model that is no better than guesses has no verdicts anyway, see `headlens.tasks.skill`.
    if requested is None and metric not in LOWER_IS_BETTER and (above := baseline - (guesses or 0.0)) > 0:
        size = min(size, _OF_SKILL * above)
    if requested is None and metric in LOWER_IS_BETTER and guesses is not None and guesses > baseline > 0:
        size = min(size, _of_losses(metric, baseline, guesses))
    if requested is None and replaced is not None and (whole := abs(baseline - replaced)) > 0:
        size = min(size, _OF_SKILL * whole)
    return Margin(size, metric in LOWER_IS_BETTER, max(1, tests))


def check_margin(metric: str, requested: float | None) -> None:
    """Refuses a margin that nothing can lose, such as 5 points of a share that were written as 5.

    Raises:
        OptionError: for a metric between 0 and 1, or 0 and 100, and a margin as large as that.
    """
    whole = 100.0 if metric in OF_A_HUNDRED else 1.0
    if requested is None or metric in NO_UPPER_END or requested < whole:
        return
    points = f"A point is --margin {whole / 100:g}, and so the usual one."
    raise OptionError(f"--margin {requested:g}: {metric} is between 0 and {whole:g}, and cannot lose that.", points)


def _of_losses(metric: str, baseline: float, guesses: float) -> float:
    """A tenth of what a loss is below that of guesses; of perplexities what that makes of them."""
    if metric == "perplexity":
        return baseline * math.expm1(_OF_SKILL * math.log(guesses / baseline))
    return _OF_SKILL * (guesses - baseline)


def with_verdicts(rows: pd.DataFrame, margin: Margin) -> pd.DataFrame:
    """Adds `p_holm` and `VERDICT_COLUMNS`, corrected for the number of rows (Holm 1979).

    Args:
        rows: comparisons of one family, with the columns delta, p_value, p_margin, n_to_decide.
        margin: that they were tested with.
    """
    p_holm, p_margin_holm = (holm(float_column(rows, name)) for name in ("p_value", "p_margin"))
    sign = 1 if margin.lower_is_better else -1
    verdicts = [
        verdict(loss=sign * delta, p_loss=loss, p_margin=below)
        for delta, loss, below in zip(float_column(rows, "delta"), p_holm, p_margin_holm, strict=True)
    ]
    open_ones = np.array([one == NOT_DECIDED for one in verdicts], bool)
    numbers = np.where(open_ones, float_column(rows, "n_to_decide"), np.nan)
    added: dict[str, Any] = {"p_holm": p_holm, "p_margin_holm": p_margin_holm, "margin": margin.size}
    return rows.assign(**added, verdict=pd.Series(verdicts, rows.index, object), n_to_decide=numbers)


def without_verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """Empties `verdict` and `n_to_decide`: nothing shows what a model needs that always says the same, or guesses."""
    return rows.assign(verdict=pd.Series(None, rows.index, object), n_to_decide=np.nan)


def has_no_verdicts(rows: pd.DataFrame) -> bool:
    """Whether the verdicts of some comparisons were left empty, see `without_verdicts`.

    Args:
        rows: at least one; tables of older versions have no such column.
    """
    return "verdict" in rows and bool(rows["verdict"].isna().all())


def with_family_verdicts(table: pd.DataFrame, families: Sequence[str] = ()) -> pd.DataFrame:
    """Fills `SWEEP_VERDICT`, columns of a sweep, every family corrected apart.

    Args:
        table: with the columns of the sweep, in which those of `UNCORRECTED` are as they were measured; rows without a
            margin have no verdict, but a corrected p-value.
        families: columns that rows of one family have in common beside the metric, and with it their baseline.
    """
    judged, tested = table["margin"].notna(), np.isfinite(float_column(table, "p_value"))
    of_families = table[judged | tested].groupby(["metric", *families, judged], sort=False, dropna=False)
    frames = [
        with_verdicts(rows, Margin(float(rows["margin"].iloc[0]), str(key[0]) in LOWER_IS_BETTER))
        if key[-1]
        else without_verdicts(rows.assign(p_holm=holm(float_column(rows, "p_value"))))
        for key, rows in of_families
    ]
    columns = list(SWEEP_VERDICT)
    verdicts = pd.concat(frames)[columns] if frames else pd.DataFrame(columns=columns, dtype=float)
    return table.drop(columns=columns).join(verdicts)[list(table.columns)]


def amount_text(amount: float, metric: str) -> str:
    """How much of a metric: in points, of which 100 are all there is, or of a loss as a number."""
    if metric in NO_UPPER_END:
        return number_text(amount) if not 0 < amount < 1 else f"{amount:.3g}"
    points = amount if metric in OF_A_HUNDRED else 100 * amount
    text = f"{points:.2g}" if points < 0.995 else f"{points:.1f}".removesuffix(".0")
    return f"{text} {'point' if text == '1' else 'points'}"


def bound_text(row: Mapping[Any, Any]) -> str:
    """How much may be lost by a 95 % interval, such as `may lose up to 8.4 points`; empty without one.

    Args:
        row: a comparison with a metric, and the ends of the interval of its difference.
    """
    metric, low, high = str(row["metric"]), float(row["delta_low"]), float(row["delta_high"])
    most = high if metric in LOWER_IS_BETTER else -low
    if math.isnan(most):
        return ""
    verb = "may rise by" if metric in LOWER_IS_BETTER else "may lose"
    return f"{verb} up to {amount_text(max(0.0, most), metric)}"


def to_decide_text(number: float, *, more: str = "") -> str:
    """About how many examples would decide, after a comma or so; empty where that is not known.

    A forecast, for the change that was measured is an estimate itself.
    """
    return (
        "" if math.isnan(number) else f"about {number:,.0f} {more}examples would decide, if the change is as measured"
    )


def counts_text(rows: pd.DataFrame, tests: int | None = None) -> str:
    """How many heads are needed, not needed, or not decided, with the margin; empty for tables without verdicts.

    Args:
        rows: of heads of one model and mode, with `VERDICT_COLUMNS`.
        tests: how many heads were corrected for; None for as many as there are rows.
    """
    if "verdict" not in rows or rows["verdict"].isna().all():
        return ""
    counts = Counter(rows["verdict"])
    margin = amount_text(float(rows["margin"].iloc[0]), str(rows["metric"].iloc[0]))
    text = ", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name])
    each = ", each head alone" if counts[NOT_NEEDED] > 1 else ""
    text = f"With a margin of {margin}{each}, corrected for all {tests or len(rows)} heads: {text}"
    undecided = float_column(rows[rows["verdict"] == NOT_DECIDED], "n_to_decide")
    known = np.sort(undecided[np.isfinite(undecided)])
    half = (len(undecided) - 1) // 2
    share = "half of these" if len(undecided) > 1 else "this one"
    if len(known) > half >= 0:
        text += f" (if changes are as measured, about {known[half]:,.0f} examples would decide {share})"
    elif len(known):
        text += (
            f" (if changes are as measured, about {known[-1]:,.0f} examples would decide {len(known)} of these; "
            "how many the others need cannot be told)"
        )
    return text + "."


def known_verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that have a verdict; those of older versions by their 95 % interval, which is stricter than the test.

    Args:
        rows: comparisons with `metric`, `value`, and as far as there `delta`, `delta_low`, `delta_high`, `chance` and
            `verdict`.
    """
    if "delta" not in rows:
        return rows.iloc[:0]
    rows = rows.dropna(subset=["delta"])
    if "verdict" in rows:
        return rows.dropna(subset=["verdict"])
    baselines = float_column(rows, "value") - float_column(rows, "delta")
    known = zip(rows["metric"], baselines, float_column(rows, "chance"), strict=True)
    margins = [margin_of(str(m), baseline, guesses=None if np.isnan(c) else c) for m, baseline, c in known]
    ends = zip(*(float_column(rows, name) for name in DELTA), margins, strict=True)
    return rows.assign(verdict=[verdict_of_interval(*end) for end in ends], margin=[margin.size for margin in margins])


def foremost(rows: pd.DataFrame, size: str) -> dict[Any, Any]:
    """Returns the comparison of a metric to report: the most that is not needed, or else not decided.

    If everything is needed it is the least of it. Of as much the better model counts, and of several the first.

    Args:
        rows: at least one, with a verdict each.
        size: column of how much is taken away.

    Returns:
        The row, with how many are like it in size, verdict and value as `alike`, and in size and verdict as `as_large`.
    """
    name = next(name for name in (NOT_NEEDED, NOT_DECIDED, NEEDED) if (rows["verdict"] == name).any())
    lower = set(rows["metric"]) <= LOWER_IS_BETTER
    order = rows[rows["verdict"] == name].sort_values("value", ascending=lower, kind="stable")
    row = order.sort_values(size, ascending=name == NEEDED, kind="stable").iloc[0]
    alike = (order[[size, "value"]] == row[[size, "value"]]).all(axis=1).sum()
    return row.to_dict() | {"alike": int(alike), "as_large": int((order[size] == row[size]).sum())}


def chosen_text(row: Mapping[Any, Any], rows: pd.DataFrame, of: str, *, most: str, least: str, only: str = "") -> str:
    """How many comparisons lose significantly, and which of those with one verdict is told, before `taken_away_text`.

    Args:
        row: that is told, see `foremost`.
        rows: all comparisons with a verdict; of a single one there is nothing to choose, and nothing is said.
        of: what these are of, such as `masks`.
        most: what the one is called of which most is taken away, such as `sparsest`.
        least: the same of the one of which least is.
        only: what they are among which it is told, such as `not random`; empty for all.
    """
    if len(rows) < 2:
        return ""
    # A loss below the margin may be significant, too.
    lost, counts = int(loses_significantly(rows).sum()), Counter(rows["verdict"])
    alike, better = counts[row["verdict"]], int(((_losses(rows) < 0) & (rows["verdict"] == NOT_NEEDED)).sum())
    every = "both" if lost == 2 else f"all {lost}"
    number = every if lost == len(rows) else f"{lost or 'none'} of {len(rows)}"
    both = int((loses_significantly(rows) & (rows["verdict"] == NOT_NEEDED).to_numpy(bool)).sum())
    undecided, small = counts[NOT_DECIDED], counts[NOT_NEEDED] - both
    rest = f"{counted(small, 'other') if both else small} {'loses' if small == 1 else 'lose'}"
    texts = {
        NOT_DECIDED: f", {undecided} {'is' if undecided == 1 else 'are'} not decided" * bool(undecided),
        NOT_NEEDED: f", {rest} less than the margin" * bool(small) + f" ({better} measured better)" * bool(better),
    }
    # What is told next stands last.
    others = "".join(sorted(texts.values(), key=lambda text: text == texts.get(row["verdict"])))
    # Those that lose less than the margin are in two groups if some of them lose significantly.
    these = f"all {alike} below the margin" if both and row["verdict"] == NOT_NEEDED else "these"
    told, equal = least if row["verdict"] == NEEDED else most, row["as_large"]
    several = equal > row["alike"]
    told = f"{'better' if equal == 2 else 'best'} of the {equal} {told}" if several else told
    told += f" that {'are' if several else 'is'} {only}" * bool(only)
    which = f"; of {these}, the {told}: " if alike > 1 else ": "
    less = f" ({both} of them less than the margin)" * bool(both)
    return f"{number} {of} {'lose' if lost > 1 else 'loses'} significantly{less}{others}{which}"


def loses_significantly(rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which comparisons lose significantly after Holm's correction, whether or not that is more than the margin."""
    known, needed = float_column(rows, "p_holm"), (rows["verdict"] == NEEDED).to_numpy(bool)
    return needed | ((_losses(rows) > 0) & (known < LEVEL))


def _losses(rows: pd.DataFrame) -> npt.NDArray[np.float64]:
    """By how much rows are worse than what they are compared with: below 0 for better ones, 0 for equal ones."""
    lower = rows["metric"].isin(LOWER_IS_BETTER).to_numpy(bool)
    return np.where(lower, 1.0, -1.0) * float_column(rows, "delta")


def tied(alike: float, what: str = "heads", near: int = 0, how: str = "") -> str:
    """The words behind one of several items with the same number; empty for a single item.

    Args:
        alike: how many have that number.
        what: they are.
        near: how many others it is not told apart from, see `not_apart`.
        how: the intervals of these are compared, if not as they stand.
    """
    ties = [f"{alike:.0f} {what} tie"] if alike > 1 else []
    ties += [f"{how}{overlap_text(near, what)}"] if near else []
    return f" ({'; '.join(ties)})" if ties else ""


def overlap_text(near: int, what: str) -> str:
    """How many others, such as heads, one of them is not told apart from, see `not_apart`."""
    return f"the intervals of {counted(near, f'other {what[:-1]}')} overlap with its own"


def not_apart(rows: pd.DataFrame, place: int, names: tuple[str, str, str]) -> int:
    """How many rows have an interval that overlaps with that of one of them, and another number.

    A superlative is not said of a row with such others, which may be ahead of it as well.

    Args:
        rows: that are compared.
        place: of the row that is reported.
        names: columns of the number and the ends of its interval; rows without one do not count.
    """
    value, low, high = (float_column(rows, name) for name in names)
    return int(((low <= high[place]) & (high >= low[place]) & (value != value[place])).sum())


def taken_away_text(row: Mapping[Any, Any], what: str, tests: int, of: str) -> str:
    """What is known of a model with something taken away, in a sentence, and whether it has one answer to everything.

    Args:
        row: with a verdict.
        what: is taken away, such as `20 of 72 heads pruned`.
        tests: how many were corrected for.
        of: what these are of, such as `sets of heads`.
    """
    delta, low, high = (float(row[name]) for name in DELTA)
    value, intact = compared_texts(row["value"], row["value"] - delta)
    measured = f"{row['metric']} {value} instead of {intact}, a change of {value_text(delta, low, high)}"
    p_holm = float(row.get("p_holm", math.nan))
    if decides := deciding_text(low, high, p_holm):
        measured += f", p (Holm) {p_holm:.2g}{decides}"
    if not pd.isna(examples := row.get("n")):
        measured += f", n = {int(examples):,}"
    margin = amount_text(float(row["margin"]), str(row["metric"]))
    corrected = f" (corrected for {tests} {of})" if "p_margin_holm" in row and tests > 1 else ""
    one_answer = one_answer_after(row)
    gain = delta < 0 if row["metric"] in LOWER_IS_BETTER else delta > 0
    differs = delta != 0 and p_holm < LEVEL
    least = f"loses {'significantly, but ' * differs}less than the margin of {margin}"
    least = "is significantly better" if gain and differs else least
    if does := {NOT_NEEDED: least, NEEDED: "loses significantly"}.get(row["verdict"]):
        return f"{row['task']} with {what} {does}{corrected}: {measured}.{one_answer}"
    number = float(row["n_to_decide"]) if "n_to_decide" in row else math.nan
    details = "; ".join(filter(None, (bound_text(row), to_decide_text(number, more="evaluation "))))
    undecided = f"whether {row['task']} needs the {what} is not decided for a margin of {margin}{corrected}: {measured}"
    return (f"{undecided}; {details}." if details else f"{undecided}.") + one_answer


def verdict_cells(row: Mapping[Any, Any]) -> dict[str, Any]:
    """The verdict of a row, its margin, and how many examples would decide; empty in tables of older versions."""
    known = isinstance(row.get("verdict"), str)
    number = float(row["n_to_decide"]) if known and row["n_to_decide"] is not None else math.nan
    return {
        "verdict": row["verdict"] if known else "",
        "margin": number_cell(row["margin"] if known else math.nan),
        "examples that would decide": Cell("") if math.isnan(number) else Cell(f"about {number:,.0f}", repr(number)),
    }
