"""What a reader of ablations looks for first: the heads a task needs, those that suffice alone, what pruning leaves.

Tables for the page, and the cards of heads.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from headlens.analyses.ablate.figures import DENOISE, KEEP_ONLY, NONE, not_ablated, receiver_text, significant
from headlens.analyses.ablate.worth_over_training import worth_by_step
from headlens.findings.verdicts import (
    VERDICTS_KEY,
    has_no_verdicts,
    tied,
    verdict_cells,
)
from headlens.heads import STACKS
from headlens.pages.formatting import by_sign, shown_of, value_text, without_noise
from headlens.pages.head_cards import HeadFacts, HeadSeries
from headlens.pages.page_tables import (
    Cell,
    PageTable,
    difference_cell,
    interval_cell,
    number_cell,
    page_table,
    picture_ends,
)
from headlens.plots.head_grid import by_model_and_stack, float_column, head_name
from headlens.runs.reading import RecordedRun, run_label, tables_of
from headlens.statistics.non_inferiority import LEVEL, NEEDED
from headlens.tables.shared_columns import VERDICTS
from headlens.tasks.task_options import FEW_EXAMPLES, LOWER_IS_BETTER

MOST = 10  # heads of a model
LOSSES_TITLE, NONE_SIGNIFICANT = "Largest losses without a head", " (none is significant)"
_MEANS = ("value", "delta", "ranking_value", "speedup")
_OF_ONE = ("delta_low", "delta_high", "p_value", "p_holm")  # of a comparison, of which means are none
_SIZES = ("parameters", "removed")
_COMPARED = ("all heads", "value")
Row = Mapping[Any, Any]
Ends = Mapping[str, tuple[float, float]]


# What is read in the place of a head, by mode.
_INSTEAD = {
    "mean": "with the mean output of",
    "uniform": "with even attention in",
    "resample": "with another example's output of",
    "counterfactual": "with the changed text's output of",
    "path": "with the changed text's output, by the direct path alone, of",
    "denoise": "with the original's output of",
    "optimal": "with a constant fitted to other examples instead of",
}


def without(mode: str) -> str:
    """The words before the head that an ablation is of: `without`, or what stands in the place of its output."""
    return _INSTEAD.get(mode, "without")


def most_damage(rows: pd.DataFrame, most: int = MOST) -> pd.DataFrame:
    """The heads without which a model is worse, of one model and mode, worst first; none of too few examples."""
    return _largest(rows, worsening(rows), most)


def most_restored(rows: pd.DataFrame, most: int = MOST) -> pd.DataFrame:
    """The heads whose output on the original text restores a metric, of one model, most first; none of few examples."""
    return _largest(rows, -worsening(rows), most)


def _largest(rows: pd.DataFrame, by: pd.Series[float], most: int) -> pd.DataFrame:
    known = by[(by > 0) & (rows["n"] >= FEW_EXAMPLES)]
    return rows.loc[known.sort_values(ascending=False, kind="stable").index[:most]]


def best_alone(rows: pd.DataFrame) -> pd.DataFrame:
    """The head of every layer that does best alone, of one model (Michel et al. 2019, table 3).

    Of several the first, with their number in the column `alike`.
    """
    order = worsening(rows).dropna().sort_values(kind="stable").index
    ordered = rows.loc[order]
    best = ordered.drop_duplicates(["stack", "layer"]).sort_index()
    return best.assign(alike=ordered.groupby(["stack", "layer", "delta"])["delta"].transform("size"))


def worsening(rows: pd.DataFrame) -> pd.Series[float]:
    """Returns by how much a model does worse, whatever the direction of its metric; (rows,)."""
    return rows["delta"] if set(rows["metric"]) <= LOWER_IS_BETTER else -rows["delta"]


def two_methods(
    rows: pd.DataFrame, shown: tuple[str, str, str] = ("ci_low", "ci_high", "p_value"), of: str = "heads"
) -> str | None:
    """The remark on an interval that holds 0 beside a small p-value, or leaves it out beside a large one; else None.

    Args:
        rows: of ablation.csv or pruning.csv.
        shown: their columns with the ends of the interval and the p-value.
        of: what these are corrected for.
    """
    low, high, p_value = (float_column(rows, name) for name in shown)
    if not (np.isfinite(low * high) & ((low * high > 0) != (p_value < LEVEL))).any():
        return None
    return (
        "Where an interval leaves 0 out and p is above 0.05, or the other way round: they are made by different "
        f"methods, and verdicts rest on p, corrected for all {of}."
    )


def needed_heads(runs: Sequence[RecordedRun]) -> PageTable:
    """The heads without which the task suffers most, of every model and mode."""
    changes = _changes(runs, most_damage, lambda mode: mode not in (KEEP_ONLY, DENOISE))
    about = (
        "The heads of every model whose removal, or replacement (see mode), hurts the task most "
        f"({shown_of(MOST, len(changes))}), of runs with at least {FEW_EXAMPLES} examples. Intervals of the change are "
        "paired (dot, line; tick: no change); p-values and verdicts are corrected for the number of heads (Holm). "
        f"{VERDICTS_KEY}"
    )
    none = NONE_SIGNIFICANT * all(change["significant"] == "no" for change in changes)
    return page_table(f"{LOSSES_TITLE}{none}", changes, about, _COMPARED, LOSSES_TITLE)


def restoring_heads(runs: Sequence[RecordedRun]) -> PageTable:
    """The heads whose output on the original text restores most of a metric on changed texts."""
    changes = _changes(runs, most_restored, lambda mode: mode == DENOISE)
    about = (
        "The heads of every model whose output on the original text, put into the changed one, restores most "
        f"of the task's metric ({shown_of(MOST, len(changes))}), of runs with at least {FEW_EXAMPLES} examples. "
        "Intervals of the change from the metric on the changed texts are paired; p-values are corrected for the "
        "number of heads (Holm). What restores an answer need not be needed for it."
    )
    return page_table("Heads that restore most (denoising)", changes, about, _COMPARED)


def damage_by_layer(runs: Sequence[RecordedRun]) -> PageTable:
    """How much the task suffers from the loss of single heads, by kind of attention and by layer."""
    records, partial = [], False
    for run, ablation in tables_of(runs, "ablation"):
        swept = ablation[~ablation["mode"].isin([KEEP_ONLY, DENOISE]) & (ablation["n"] >= FEW_EXAMPLES)]
        partial |= bool(not_ablated(swept).any())
        swept = swept[~not_ablated(swept)]
        swept = swept.assign(worse=worsening(swept), sure=significant(swept))
        for _, group in swept.groupby(["model", "mode"], sort=False):
            for part in by_model_and_stack(group):
                layers = list(part.rows.groupby("layer")) if len(set(part.rows["layer"])) > 1 else []
                for layer, rows in [("all", part.rows), *layers]:
                    records += [run_label(run, runs) | _damage(str(layer), rows)] if rows["worse"].notna().any() else []
    about = (
        f"Which kind of attention and which layers a task is most sensitive to, in runs with at least {FEW_EXAMPLES} "
        "examples. The change in the metric when a single head is removed or replaced (see mode): the mean over the "
        f"heads of a stack or layer, and the largest loss. {VERDICTS_KEY} Corrected for all heads (Holm). What "
        "removing several heads at once costs is a different question; see pruning."
        + " Heads are those that were ablated, being the ones whose attribution is largest in size."
        * partial
    )
    return page_table("Damage by stack and layer", records, about)


def pruned_by_stack(runs: Sequence[RecordedRun]) -> PageTable:
    """How many heads were pruned from each stack, for models with several stacks."""
    records: list[dict[str, Any]] = []
    for run, pruning in tables_of(runs, "pruning"):
        ablation = run.tables.get("ablation", pd.DataFrame(columns=["model", "mode", "stack"]))
        if "removed" not in pruning:
            continue
        for row in pruning.assign(strategy=control_names(pruning))[pruning["n_pruned"] > 0].to_dict("records"):
            swept = ablation[(ablation["model"] == row["model"]) & (ablation["mode"] != KEEP_ONLY)]
            gone = Counter(name.partition(".")[0] for name in str(row["removed"]).split())
            sizes = {stack: int((swept["stack"] == stack).sum()) for stack in STACKS}
            if sum(size > 0 for size in sizes.values()) > 1:
                by_stack = {stack: f"{gone[stack]} of {size}" if size else "" for stack, size in sizes.items()}
                counts: dict[str, Any] = {"pruned": row["n_pruned"]} | by_stack | {"value": number_cell(row["value"])}
                records.append(run_label(run, runs) | _named(row, "strategy", "seed") | counts)
    about = (
        "How many heads of each kind of attention are among those that were pruned: a strategy that prunes many "
        "heads of a stack ranks them below those of other stacks."
    )
    return page_table("Pruned heads by stack", records, about)


def heads_alone(runs: Sequence[RecordedRun]) -> PageTable:
    """The head of every layer that does best when it is the only one there."""
    about = (
        "For every layer, the head that does best when all others in the layer are removed (Michel et al. 2019). It "
        "was selected on the same examples that it is scored on; the verdict is on the others, which are removed."
    )
    changes = [
        {("the others are" if name == "verdict" else name): cell for name, cell in change.items()}
        for change in _changes(runs, best_alone, lambda mode: mode == KEEP_ONLY)
    ]
    none = NONE_SIGNIFICANT * all(change["significant"] == "no" for change in changes)
    title = "Best head of each layer"
    return page_table(f"{title}{none}", changes, about, _COMPARED, title)


def pruned_models(runs: Sequence[RecordedRun]) -> PageTable:
    """What is left of the task when many heads are pruned."""
    groups = [
        (run, one_row_for_orders(group))
        for run, pruning in tables_of(runs, "pruning")
        for _, group in pruning.groupby("model", sort=False)
    ]
    ends = _ends([group for _, group in groups], "value")
    records = []
    for run, group in groups:
        intact = next(iter(float_column(group[group["strategy"] == NONE], "value")), math.nan)
        records += [run_label(run, runs) | _pruned(row, float(intact), ends) for row in group.to_dict("records")]
    about = (
        "Task performance when many heads are pruned, on examples that were not used to choose heads, with 95 % "
        "intervals (dot, line; tick: the whole model); next to it the value on the examples that were used to "
        "choose them. Several random orders are one row: their mean, and their range in place of the interval. The "
        "theoretical speed-up counts the operations of a forward pass; headlens compact measures time. Verdicts are "
        f"corrected for the number of sets that strategies chose (Holm). {VERDICTS_KEY}"
    )
    return page_table("Pruned models", records, about)


def control_names(pruning: pd.DataFrame) -> pd.Series[str]:
    """The names of strategies in rows of `pruning.csv`; those of controls with the strategy that they belong to."""
    named = pruning["strategy"].astype(str)
    if "control_of" not in pruning:
        return named
    return named.where(pruning["control_of"].isna(), named + " (" + pruning["control_of"].astype(str) + ")")


def one_row_for_orders(pruning: pd.DataFrame) -> pd.DataFrame:
    """Rows of `pruning.csv` of one model, several random orders of one number of heads as one row.

    That is their mean, from their lowest to their highest value in place of an interval; `strategy` tells how many, and
    `spread` that it is no interval.
    """
    rows = []
    named = pruning.assign(strategy=control_names(pruning))
    for _, group in named.groupby(["strategy", "n_pruned"], sort=False):
        first = group.iloc[:1]
        if len(group) > 1 and group["seed"].notna().all():
            mean = {name: float_column(group, name).mean() for name in _MEANS if name in group}
            mean |= {"ci_low": group["value"].min(), "ci_high": group["value"].max()}
            same = {name: None for name in _SIZES if name in group and len(set(group[name])) > 1}
            summary: dict[str, Any] = {"strategy": f"{group['strategy'].iloc[0]}, mean of {len(group)}", "seed": pd.NA}
            summary["spread"] = "range "
            empty: dict[str, Any] = dict.fromkeys({"verdict", "n_to_decide"} & set(group))
            empty |= dict.fromkeys(set(_OF_ONE) & set(group), math.nan)
            first = first.assign(**summary, **mean, **same, **empty)
        rows.append(first.astype(object))
    return pd.concat(rows, ignore_index=True).fillna({"spread": ""})


def _named(row: Any, *names: str) -> dict[str, Any]:
    return {name: row[name] for name in ("model", "task", "metric", *names)}


def _changes(
    runs: Sequence[RecordedRun], chosen: Callable[[pd.DataFrame], pd.DataFrame], is_of: Callable[[str], bool]
) -> list[dict[str, Any]]:
    """A record for each head that is chosen of a model and mode."""
    groups = [
        (run, chosen(group))
        for run, ablation in tables_of(runs, "ablation")
        for _, group in ablation[ablation["mode"].map(is_of).astype(bool)].groupby(["model", "mode"], sort=False)
    ]
    ends = _ends([rows for _, rows in groups], "delta", at_least=(0.0,))
    return [
        run_label(run, runs) | _change(row, ends, sure=bool(sure))
        for run, rows in groups
        for row, sure in zip(rows.to_dict("records"), significant(rows), strict=True)
    ]


def _change(row: Row, ends: Ends, *, sure: bool) -> dict[str, Any]:
    low, delta, high = (float(row[name]) for name in ("ci_low", "delta", "ci_high"))
    restored = {"restored": restored_text(row)} if row["mode"] == DENOISE else {}
    return _named(row, "mode") | {
        "head": f"{head_name(row)}{tied(row.get('alike', 1))}",
        **restored,
        "all heads": number_cell(row["baseline"]),
        "value": number_cell(row["value"]),
        "change": number_cell(without_noise(delta, row["baseline"])),
        "95 % CI": interval_cell((low, delta, high, 0.0), ends[str(row["metric"])]),
        "p (Holm)": number_cell(row["p_holm"]),
        "significant": "yes" if sure else "no",
        "n": row["n"],
        **verdict_cells(row),
    }


def restored_text(row: Row | pd.Series[Any]) -> str:
    """Returns the share that a head restores with its interval, such as `45% [18%, 150%]`; empty without a share.

    Args:
        row: of ablation.csv, of the mode `denoise`; tables of older versions have no intervals.
    """
    share, *ends = (float(row.get(f"restored{end}", math.nan)) for end in ("", "_low", "_high"))
    interval = "" if any(map(math.isnan, ends)) else f" [{', '.join(f'{end:.0%}' for end in ends)}]"
    return "" if math.isnan(share) else f"{share:.0%}{interval}"


def _damage(layer: str, rows: pd.DataFrame) -> dict[str, Any]:
    """A row on the heads of a stack or of one of its layers: columns of ablation.csv with `worse` and `sure`."""
    worst = rows.iloc[int(np.nanargmax(float_column(rows, "worse")))]
    alike = tied((rows["worse"] == worst["worse"]).sum())
    return _named(worst, "mode", "stack") | {
        "layer": layer,
        "heads": len(rows),
        "mean change": number_cell(without_noise(rows["delta"].mean(), worst["baseline"])),
        "largest loss": by_sign([float(worst["worse"])], above=f"{head_name(worst)}{alike}", below="none"),
        "change when removed": number_cell(without_noise(worst["delta"], worst["baseline"])),
        **_verdict_counts(rows),
    }


def _verdict_counts(rows: pd.DataFrame) -> Mapping[str, int | str]:
    if has_no_verdicts(rows):
        return dict.fromkeys(VERDICTS, "")
    if "verdict" not in rows:  # of an older version
        return {NEEDED: int((rows["sure"] & (rows["worse"] > 0)).sum())}
    return {name: int((rows["verdict"] == name).sum()) for name in VERDICTS}


def _pruned(row: Row, unpruned: float, ends: Ends) -> dict[str, Any]:
    low, value, high = (float(row[name]) for name in ("ci_low", "value", "ci_high"))
    interval = interval_cell((low, value, high, unpruned), ends[str(row["metric"])])
    return _named(row, "strategy", "seed") | {
        "pruned": row["n_pruned"],
        "left": row["n_heads"],
        "value": number_cell(value),
        "95 % CI": replace(interval, text=f"{row.get('spread') or ''}{interval.text}"),
        "change [95 % CI]": Cell("") if row["strategy"] == NONE else difference_cell(row),
        "selection split": number_cell(row.get("ranking_value", float("nan"))),
        "parameters": _whole(row["parameters"]),
        "theoretical speed-up": number_cell(row["speedup"]),
        **verdict_cells(row),
    }


def _whole(number: Any) -> Cell:
    return Cell("") if pd.isna(number) else Cell(f"{int(number):,}", str(int(number)))


def _ends(tables: Sequence[pd.DataFrame], column: str, at_least: Sequence[float] = ()) -> Ends:
    """The smallest and the largest number of a column and its intervals, by metric."""
    rows, names = pd.concat(tables) if tables else pd.DataFrame({"metric": []}), (column, "ci_low", "ci_high")
    return {
        str(metric): picture_ends(np.hstack([at_least, *(float_column(group, name) for name in names)]))
        for metric, group in rows.groupby("metric")
    }


def ablation_heads(run: RecordedRun) -> HeadFacts:
    """How a task changes without a head, or with it alone in its layer: signs and colours as on the map."""
    if "ablation" not in run.tables:
        return HeadFacts()
    series = []
    for names, comparable in run.tables["ablation"].groupby(["task", "metric", "mode"], sort=False):
        task, metric, mode = map(str, names)
        alone = mode == KEEP_ONLY
        what = "when the head is the only one in its layer" if alone else f"{without(mode)} the head ({mode})"
        about = f"The change in {metric} {what}, with its paired 95 % interval. Red is worse."
        gone = "when it is removed" if without(mode) == "without" else "when it is replaced"
        gone = "when it is restored" if mode == DENOISE else gone
        title = f"{task}: change in {metric} {'when it is the only one' if alone else gone}"
        title += "" if alone or mode == "zero" else f" ({mode}{receiver_text(comparable)})"
        rows = comparable.assign(
            sure=np.where(np.isfinite(float_column(comparable, "p_holm")), significant(comparable), np.nan)
        )
        key, ends, worse = f"{task} {metric} {mode}", ("ci_low", "ci_high"), metric in LOWER_IS_BETTER
        series.append(HeadSeries(key, title, about, rows, "delta", ends, diverging=True, worse=worse, sure="sure"))
        if "attribution" in rows:
            about = (
                "By how much the loss of an example (a sum where it predicts several tokens) grows without the head, "
                "to first order; of heads that were not ablated, too. "
            )
            key, title = f"{key} attribution", f"{task}: attribution"
            silent = [name for name, own in rows.groupby("model") if has_no_verdicts(own)]
            rows = rows.assign(sure=np.where(rows["model"].isin(silent), 0.0, np.nan))
            looks: dict[str, Any] = {"diverging": True, "worse": True, "sure": "sure"}
            looks["pale"] = "the model gives one answer to everything, or is not shown to be better than guessing"
            series.append(HeadSeries(key, title, f"{about}Red is worse.", rows, "attribution", **looks))
    return HeadFacts(series)


def worth_of_checkpoints(runs: Sequence[RecordedRun]) -> PageTable:
    """The metric with all heads and the number of heads of each verdict, by step of one training."""
    records = [
        run_label(run, runs)
        | {"step": row["step"], "metric": row["metric"], "all heads": number_cell(row["value"])}
        | {"95 % CI": value_text(row["value"], row["ci_low"], row["ci_high"]), "chance": number_cell(row["chance"])}
        | {name: "" if math.isnan(row[name]) else row[name] for name in VERDICTS}
        for run, ablation in tables_of(runs, "ablation")
        for row in worth_by_step(ablation, run.model_facts)
    ]
    about = (
        "Checkpoints of one training; heads are counted by their verdicts, each head alone, corrected within each "
        "checkpoint, and not at all where a model is not shown to be better than guessing, or gives one answer."
    )
    return page_table("What heads are worth over training", records, about)
