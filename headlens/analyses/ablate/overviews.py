"""What a reader of ablations looks for first: the heads a task needs, those that suffice alone, what pruning leaves.

Tables for the page, the cards of heads, and the findings in a few sentences.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from headlens.analyses.ablate.figures import DENOISE, KEEP_ONLY, NONE, RANDOM, not_ablated, significant
from headlens.analyses.ablate.missed_heads import largest_bound
from headlens.analyses.ablate.pruning_strategies import CONTROLS, RANDOM_SETS
from headlens.analyses.ablate.rankings import CONTROL_COLUMNS
from headlens.analyses.ablate.worth_over_training import worth_by_step, worth_sentences
from headlens.errors import counted
from headlens.findings.verdicts import (
    VERDICTS_KEY,
    amount_text,
    chosen_text,
    counts_text,
    foremost,
    has_no_verdicts,
    known_verdicts,
    no_skill_text,
    not_apart,
    one_answer_text,
    taken_away_text,
    tied,
    verdict_cells,
)
from headlens.heads import KEY_COLUMNS, STACKS
from headlens.models.names import first_and_last, recorded_steps
from headlens.pages.formatting import by_sign, compared_texts, deciding_text, number_text, value_text, without_noise
from headlens.pages.head_cards import HeadFacts, HeadSeries
from headlens.pages.page_tables import Cell, PageTable, interval_cell, number_cell, page_table
from headlens.plots.head_grid import by_model_and_stack, float_column, head_name, rows_of_models
from headlens.runs.reading import RecordedRun, run_label, tables_of
from headlens.statistics.non_inferiority import LEVEL, NEEDED
from headlens.tables.same_answers import answer_shares, same_answer_text
from headlens.tables.shared_columns import VERDICTS
from headlens.tasks.task_options import FEW_EXAMPLES, LOWER_IS_BETTER, WRITTEN

MOST = 10  # heads of a model
LOSSES_TITLE, NONE_SIGNIFICANT = "Largest losses without a head", " (none is significant)"
_MEANS = ("value", "delta", "delta_low", "delta_high", "ranking_value", "speedup")
_SIZES = ("parameters", "removed")
_COMPARED = ("all heads", "value")
_SOURCES = {
    "heads": "nothing: common to all",
    "strategy": "the strategy",
    "examples": "the examples",
    "orders": "the random orders",
}
_PAIR_COLUMNS = {
    "interaction": "interaction",
    "standard error": "se",
    "p (Holm)": "p_holm",
    "Shapley value": "value",
    "of the other": "other_value",
}
_CONTROL_WORDS = {
    "random-by-layer": ("random set", "with as many heads in every layer"),
    "placebo": ("random set", "of as many other heads"),
}
_CHANGE = ("delta", "ci_low", "ci_high")
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
    "optimal": "with the best constant instead of",
}


def without(mode: str) -> str:
    """The words before the head that an ablation is of: `without`, or what stands in the place of its output."""
    return _INSTEAD.get(mode, "without")


def most_damage(rows: pd.DataFrame, most: int = MOST) -> pd.DataFrame:
    """The heads without which a model is worse, of one model and mode, worst first; none of too few examples."""
    rows = rows[rows["n"] >= FEW_EXAMPLES]
    worse = worsening(rows)
    order = worse[worse > 0].sort_values(ascending=False, kind="stable").index
    return rows.loc[order].head(most)


def most_restored(rows: pd.DataFrame, most: int = MOST) -> pd.DataFrame:
    """The heads whose output on the original text restores a metric, of one model, most first; none of few examples."""
    rows = rows[rows["n"] >= FEW_EXAMPLES]
    better = -worsening(rows)
    return rows.loc[better[better > 0].sort_values(ascending=False, kind="stable").index].head(most)


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


def needed_heads(runs: Sequence[RecordedRun]) -> PageTable:
    """The heads without which the task suffers most, of every model and mode."""
    about = (
        f"The {MOST} heads of every model whose removal hurts the task most, of runs with at least {FEW_EXAMPLES} "
        "examples. Intervals of the change are paired (dot, line; tick: no change); p-values and verdicts are "
        f"corrected for the number of heads (Holm). {VERDICTS_KEY}"
    )
    changes = _changes(runs, most_damage, lambda mode: mode not in (KEEP_ONLY, DENOISE))
    none = NONE_SIGNIFICANT * all(change["significant"] == "no" for change in changes)
    return page_table(f"{LOSSES_TITLE}{none}", changes, about, _COMPARED)


def restoring_heads(runs: Sequence[RecordedRun]) -> PageTable:
    """The heads whose output on the original text restores most of a metric on changed texts."""
    about = (
        f"The {MOST} heads of every model whose output on the original text, put into the changed one, restores most "
        f"of the task's metric, of runs with at least {FEW_EXAMPLES} examples. Intervals of the change from the metric "
        "on the changed texts are paired; p-values are corrected for the number of heads (Holm). What restores an "
        "answer need not be needed for it."
    )
    changes = _changes(runs, most_restored, lambda mode: mode == DENOISE)
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
        "examples. The change in the metric when a single head is removed: the mean over the heads of a stack or "
        f"layer, and the largest loss. {VERDICTS_KEY} Corrected for all heads (Holm). What removing several heads at "
        "once costs is a different question; see pruning."
        + " Heads are those that were ablated, being the ones with the largest attribution."
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
                by_stack: dict[str, Any] = {
                    stack: f"{gone[stack]} of {size}" if size else "" for stack, size in sizes.items()
                }
                counts = {"pruned": row["n_pruned"], **by_stack, "value": number_cell(row["value"])}
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
    return page_table(f"Best head of each layer{none}", changes, about, _COMPARED)


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


def compared_rankings(runs: Sequence[RecordedRun]) -> PageTable:
    """How alike two strategies rank the heads."""
    records = [
        run_label(run, runs)
        | {"model": row["model"], "strategy": row["strategy"], "other strategy": row["other_strategy"]}
        | {"Spearman's ρ": number_cell(row["spearman"]), "95 % CI over heads": _ends_cell(row), "heads": row["heads"]}
        | {"without the noise of examples": number_cell(row.get("corrected", math.nan))}
        for run, table in tables_of(runs, "ranking_agreement")
        for row in table.to_dict("records")
    ]
    about = (
        "Rank correlations between what heads are worth by two strategies, on the examples that heads are chosen on; "
        "intervals resample heads, and say nothing of other examples. Without the noise of examples: as it would be on "
        "endless ones, from one strategy on one half and the other on the other half, over the reliability of both."
    )
    return page_table("Do strategies rank the heads alike?", records, about)


def stable_rankings(runs: Sequence[RecordedRun]) -> PageTable:
    """How much rankings of heads change with the examples, the random orders and the strategy."""
    records = [
        run_label(run, runs)
        | {"model": row["model"], "strategy": row["strategy"], "changes with": _SOURCES[row["source"]]}
        | {"share of the variance of ranks": number_cell(row["share"]), "reliability": number_cell(row["reliability"])}
        | {"2.5 % of divisions": number_cell(row["low"]), "97.5 %": number_cell(row["high"]), "examples": row["n"]}
        for run, table in tables_of(runs, "ranking_variance")
        for row in table.to_dict("records")
    ]
    about = (
        "Where the variance of ranks comes from: from what all strategies say of the heads, from differences between "
        "strategies, or from the examples (and random orders of Shapley values). Reliability is the correlation with "
        "the same ranking on as many other examples, from random halves by the formula of Spearman and Brown; the "
        "quantiles are over random divisions, and are no confidence limits."
    )
    return page_table("How stable are the rankings?", records, about)


def interacting_pairs(runs: Sequence[RecordedRun]) -> PageTable:
    """How pairs of the heads with the largest Shapley values interact, the strongest first."""
    records = []
    for run, table in tables_of(runs, "interactions"):
        order = table["interaction"].abs().sort_values(ascending=False, kind="stable").index
        for row in table.loc[order].to_dict("records"):
            heads = {
                name: head_name({key: row[f"{prefix}{key}"] for key in KEY_COLUMNS})
                for name, prefix in (("head", ""), ("other head", "other_"))
            }
            numbers = {name: number_cell(row[column]) for name, column in _PAIR_COLUMNS.items()}
            sure = {"significant": "yes" if row["p_holm"] < LEVEL else "no", "n": row["n"]}
            records.append(run_label(run, runs) | {"model": row["model"]} | heads | numbers | sure)
    about = (
        "Shapley interaction index of pairs of heads for minus the loss, on the examples that heads are chosen on: "
        "below 0, each stands in for the other; above 0, each needs the other. P-values are corrected for the pairs of "
        "the model (Holm)."
    )
    return page_table("Which heads stand in for each other, or need each other?", records, about)


def pruning_areas(runs: Sequence[RecordedRun]) -> PageTable:
    """The mean of the metric over numbers of pruned heads, beside those of random orders."""
    records = [
        run_label(run, runs)
        | {"model": row["model"], "strategy": row["strategy"], "mean of the metric": number_cell(row["area"])}
        | {"random orders, lowest": number_cell(row["random_low"]), "highest": number_cell(row["random_high"])}
        | {"worse than it": "" if pd.isna(row["better_than"]) else f"{row['better_than']:.0f} of {row['orders']}"}
        | {
            f"{name}, {words}": number_cell(row.get(column.format(prefix), math.nan))
            for name, prefix in CONTROL_COLUMNS.items()
            for words, column in (("lowest", "{}_low"), ("highest", "{}_high"), ("how many worse", "better_than_{}"))
        }
        | {"up to": counted(int(row["most"]), "head")}
        for run, table in tables_of(runs, "pruning_areas")
        for row in table.assign(strategy=control_names(table)).to_dict("records")
    ]
    about = (
        "Mean of the metric over numbers of pruned heads, from none to the most (trapezoids), on examples that heads "
        "were not chosen on; of random orders and sets the mean. `worse than it` counts random orders whose mean is "
        "worse, `how many worse` random sets beside those of the strategy; a few do not make a test."
    )
    return page_table("The metric while heads go", records, about)


def _ends_cell(row: Row) -> Cell:
    low, value, high = (float(row[name]) for name in ("ci_low", "spearman", "ci_high"))
    return interval_cell((low, value, high, 0.0), (-1.0, 1.0)) if np.isfinite([low, high]).all() else Cell("")


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
    restored = {"restored": number_cell(row["restored"])} if row["mode"] == DENOISE else {}
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
        "selection split": number_cell(row.get("ranking_value", float("nan"))),
        "parameters": _whole(row["parameters"]),
        "theoretical speed-up": number_cell(row["speedup"]),
        **verdict_cells(row),
    }


def _whole(number: Any) -> Cell:
    return Cell("") if pd.isna(number) else Cell(f"{int(number):,}", str(int(number)))


def _ends(tables: Sequence[pd.DataFrame], column: str, at_least: Sequence[float] = ()) -> Ends:
    """The smallest and the largest number of a column and its intervals, by metric."""
    ends = {}
    rows = pd.concat(tables) if tables else pd.DataFrame({"metric": []})
    for metric, group in rows.groupby("metric"):
        every = np.concatenate(
            [np.array(at_least, float), *(float_column(group, name) for name in (column, "ci_low", "ci_high"))]
        )
        known = every[np.isfinite(every)]
        low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
        ends[str(metric)] = (low, high if high > low else low + 1.0)
    return ends


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
        gone = "when it is restored" if mode == DENOISE else "when it is removed"
        title = f"{task}: change in {metric} {'when it is the only one' if alone else gone}"
        title += "" if alone or mode == "zero" else f" ({mode})"
        rows = comparable.assign(
            sure=np.where(np.isfinite(float_column(comparable, "p_holm")), significant(comparable), np.nan)
        )
        key, ends, worse = f"{task} {metric} {mode}", ("ci_low", "ci_high"), metric in LOWER_IS_BETTER
        series.append(HeadSeries(key, title, about, rows, "delta", ends, diverging=True, worse=worse, sure="sure"))
        if "attribution" in rows:
            about = "By how much the loss grows without the head, to first order; of heads that were not ablated, too. "
            key, title = f"{key} attribution", f"{task}: attribution"
            series.append(
                HeadSeries(key, title, f"{about}Red is worse.", rows, "attribution", diverging=True, worse=True)
            )
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


def findings_of(tables: Mapping[str, pd.DataFrame], models: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """The head that is needed most, how many are needed or not, and how many can be pruned.

    A head is not said to be needed where no change is significant.

    Args:
        tables: `ablation` and `pruning` as they are written; either may be missing.
        models: what run.json says of them; of checkpoints of one training the last is told in full.
    """
    ablation = tables.get("ablation", pd.DataFrame({"mode": [], "model": []}))
    if sentences := worth_sentences(ablation, models):
        tables = rows_of_models(tables, first_and_last(recorded_steps(models))[1:])
        ablation = tables["ablation"]
    silent = set[str]()  # models without verdicts
    for (model, mode), rows in ablation[ablation["mode"] != KEEP_ONLY].groupby(["model", "mode"], sort=False):
        if mode == DENOISE:
            sentences += [f"{model}: {_restored(rows)}"] * bool(rows["n"].iloc[0] >= FEW_EXAMPLES)
        elif has_no_verdicts(rows):
            silent.add(str(model))
            answers = rows.get("baseline_answer_share", pd.Series([1.0])).iloc[0]
            ablated = rows[~not_ablated(rows)]
            sentences.append(f"{model}: {_no_verdict(rows, answers, 'examples', 'heads')}{_without_any(ablated)}")
        elif rows["n"].iloc[0] >= FEW_EXAMPLES and rows["delta"].notna().any():
            sentences.append(f"{model}: {_needed(rows)}")
    if "pruning" in tables:
        sentences += _sets_needed(tables["pruning"], silent)
    return sentences


def _no_verdict(rows: pd.DataFrame, answers: float, examples: str, what: str) -> str:
    """Why nothing is said of what heads are needed for: one answer to that share of the examples, or no skill."""
    # A table from somewhere else may have empty cells.
    n = int(np.nanmax([0, *float_column(rows, "n")]))
    metric, same = str(rows["metric"].iloc[0]), same_answer_text(answers)
    if same and str(rows["task"].iloc[0]) in WRITTEN:
        return f"the model gives {same} ({n:,} {examples}), so that {metric} does not tell what {what} are needed for."
    return (one_answer_text if answers >= 1 else no_skill_text)(metric, n, examples, what)


def _without_any(rows: pd.DataFrame) -> str:
    """The metric of a model without verdicts, and whether it changes without single heads."""
    metric, baseline = rows["metric"].iloc[0], float(rows["baseline"].iloc[0])
    if not math.isfinite(baseline):
        return ""
    gone, heads, value = without(str(rows["mode"].iloc[0])), counted(len(rows), "head"), number_text(baseline)
    if not (rows["value"] != baseline).any():
        return f" It has exactly the same {metric}, {value}, {gone} any one of {heads}."
    sure, lost = int(significant(rows).sum()), int((significant(rows) & (worsening(rows) > 0)).sum())
    verb, taken = "changes" if sure < 2 else "change", "taken out" if gone == "without" else "replaced"
    ways = {sure: "to the worse", 0: "to the better"}.get(lost, f"{lost} of them to the worse") if sure else ""
    way = f" ({ways})" if ways else ""
    return f" It has {metric} {value}; {sure or 'none'} of {heads} {verb} it significantly when {taken} alone{way}."


def _needed(rows: pd.DataFrame) -> str:
    """The effect of removing the heads of one model in one mode, in a sentence."""
    tests, others = len(rows), rows[not_ablated(rows)]
    rows = rows[~not_ablated(rows)]
    task, metric, baseline = (rows[name].iloc[0] for name in ("task", "metric", "baseline"))
    worst, worse, sure = most_damage(rows, 1), worsening(rows), significant(rows)
    better, counts = _better_without(rows[sure & (worse < 0)]), counts_text(rows, tests)
    verdicts, gone = f" {counts}" if counts else "", without(mode := str(rows["mode"].iloc[0]))
    if counts and mode == "path":
        verdicts = f" Of the direct paths, not of the heads: {counts[0].lower()}{counts[1:]}"
    if "on_changed" in rows and math.isfinite(changed := float(rows["on_changed"].iloc[0])):
        verdicts = f" All heads on the changed texts: {metric} {number_text(changed)}.{verdicts}"
    verdicts += _missed(others)
    if worst.empty:
        intact = number_text(float(baseline))
        same = (rows["value"].dropna() == baseline).all()
        has = f"exactly the same {metric} as with all, {intact}," if same else f"{metric} {intact} or better"
        none = f"{gone} any one of {len(rows)} heads, {task} has {has} on these examples"
        return f"{none}.{better}{verdicts}"
    row, lost = worst.iloc[0], int((sure & (worse > 0)).sum())
    value, intact = compared_texts(row["value"], row["baseline"])
    change = (
        f"{metric} {value} instead of {intact}, a change of {value_text(row['delta'], row['ci_low'], row['ci_high'])}, "
        f"Holm-corrected p {'below 0.001' if row['p_holm'] < 0.001 else format(row['p_holm'], '.3f')}"
        f"{deciding_text(row['ci_low'], row['ci_high'], row['p_holm'])}."
    )
    alike = (worse == worse.max()).sum()
    if not lost:
        effect = f"is significantly needed for {task}" if better else f"changes {task} significantly"
        none = f"none of {len(rows)} heads {effect} on its own"
        return f"{none}; the largest loss is {gone} {head_name(row)}{tied(alike)}: {change}{better}{verdicts}"
    # Improvements, which are counted in a sentence of their own, may be significant, too.
    what = f"The loss {gone} {'each of ' * (lost > 1)}{counted(lost, 'head')}" if better else counted(lost, "head")
    significance = f"{what} of {len(rows)} {'is' if lost == 1 or better else 'are'} significant."
    near = not_apart(rows, int(np.nanargmax(worse)), _CHANGE)
    most = f"{task} suffers most {gone}"
    if near:
        removed = gone == "without"
        most = (
            f"one of the heads that {task} suffers most without is"
            if removed
            else f"one of the largest losses is {gone}"
        )
    which = f"{head_name(row)}{tied(alike, near=near)}"
    return f"{most} {which}: {change} {significance}{better}{verdicts}"


def _missed(others: pd.DataFrame) -> str:
    """What is known of heads that were not ablated, in a sentence; empty where all were."""
    if others.empty:
        return ""
    head, bound, _ = largest_bound(others)
    left_in = "was not ablated" if len(others) == 1 else "were not ablated"
    which = f"{counted(len(others), 'other head')} with less attribution {left_in}"
    if bound is None:
        return f" {which}."
    amount = amount_text(bound, str(others["metric"].iloc[0]))
    return (
        f" {which}; with 95 % confidence, none of them changes {others['metric'].iloc[0]} by more than {amount}, if "
        f"effects add up (the bound of {head})."
    )


def _restored(rows: pd.DataFrame) -> str:
    """Which head's output on the original text restores most, in a sentence."""
    metric, baseline, original = (rows[name].iloc[0] for name in ("metric", "baseline", "on_original"))
    changed, whole = compared_texts(baseline, original)
    begin = f"on the changed texts {metric} is {changed}, on the originals {whole}"
    lower = {str(metric)} <= LOWER_IS_BETTER
    if not (baseline > original if lower else baseline < original):
        return f"{begin}: the changed texts are no worse, so that there is nothing to restore."
    best = most_restored(rows, 1)
    if best.empty:
        return f"{begin}; no head's output on the original restores any of that on its own."
    row, better = best.iloc[0], -worsening(rows)
    place = int(np.nanargmax(better))
    near, alike = not_apart(rows, place, _CHANGE), tied((better == better.max()).sum())
    sure = int((significant(rows) & (better > 0)).sum())
    most = "one of the heads whose output on the original restores most is" if near else "most is restored by"
    value, _ = compared_texts(row["value"], row["baseline"])
    which = head_name(row) + (tied((better == better.max()).sum(), near=near) if near else alike)
    change = value_text(row["delta"], row["ci_low"], row["ci_high"])
    p_value = "below 0.001" if row["p_holm"] < 0.001 else format(row["p_holm"], ".3f")
    return (
        f"{begin}; {most} {which}: {value}, a change of {change}, Holm-corrected p {p_value}, "
        f"{row['restored']:.0%} of what the changed texts take away. {sure or 'None'} of {counted(len(rows), 'head')} "
        f"{'restores' if sure == 1 else 'restore'} some of it significantly."
    )


def _better_without(rows: pd.DataFrame) -> str:
    """How many heads make a model significantly better when removed, and the foremost one."""
    if rows.empty:
        return ""
    place = int(np.argmin(worsening(rows)))
    row, near = rows.iloc[place], not_apart(rows, place, _CHANGE)
    value, _ = compared_texts(row["value"], row["baseline"])
    best, gone = f"{head_name(row)}{tied((rows['delta'] == row['delta']).sum(), near=near)}", without(str(row["mode"]))
    begin = f"{gone[0].upper()}{gone[1:]}"
    if len(rows) == 1:
        return f" {begin} {best}, {row['metric']} is significantly better: {value}."
    most = "among them" if near else f"most so {gone}"
    which = f"{begin} any one of {len(rows)} heads, {row['metric']} is significantly better, {most}"
    return f" {which} {best}: {value}."


def _sets_needed(pruning: pd.DataFrame, silent: Collection[str]) -> list[str]:
    """The most heads that a strategy takes out and that are shown not to be needed, or else what is not decided.

    Args:
        pruning: as it is written.
        silent: models of which it was said why they have no verdicts.
    """
    sentences = []
    for model, rows in pruning.groupby("model", sort=False):
        sets = rows[~rows["strategy"].isin([NONE, *RANDOM_SETS]) & (rows["n_pruned"] > 0)]
        chosen = known_verdicts(sets)
        if len(sets) and has_no_verdicts(sets) and str(model) not in silent:
            answers = answer_shares(rows)[0] if "answer_share" in rows else 1.0  # of the whole model, the first row
            sentences.append(f"{model}: {_no_verdict(sets, answers, 'evaluation examples', 'pruned heads')}")
        if len(chosen):
            row = foremost(chosen, "n_pruned")
            gone, left = int(row["n_pruned"]), int(row["n_heads"])
            as_many = chosen[chosen["n_pruned"] == gone]
            equal = (as_many["value"] == row["value"]) & (as_many["verdict"] == row["verdict"])
            pruned = f"{gone} of {gone + left} heads pruned ({', '.join(map(str, as_many[equal]['strategy']))})"
            sentence = chosen_text(row, chosen, "sets of heads", most="largest", least="smallest")
            sentence += taken_away_text(row, pruned, len(chosen), "sets of heads")
            sentence += _other_strategies(as_many[~equal])
            sentences.append(f"{model}: {sentence}{_random_sets(rows, row)}")
    return sentences


def _other_strategies(rows: pd.DataFrame) -> str:
    """What other strategies reach with as many heads pruned, as the first was chosen on these examples."""
    texts = [f"{row['strategy']} {number_text(float(row['value']))}" for row in rows.to_dict("records")]
    others = "This strategy was picked on these examples; others with as many heads pruned"
    return f" {others}: {', '.join(texts)}." if texts else ""


def _random_sets(pruning: pd.DataFrame, chosen: Row) -> str:
    """What random sets of as many heads reach in a model: chance may do as well as the strategy that chose a set."""
    as_many = pruning[pruning["n_pruned"] == chosen["n_pruned"]].dropna(subset=["value"])
    kinds = {RANDOM: ("random order", "of as many heads"), **_CONTROL_WORDS}
    sentences = ""
    for name, (what, of) in kinds.items():
        drawn = as_many[as_many["strategy"] == name]
        if name in CONTROLS and len(drawn):
            drawn = drawn[drawn["control_of"] == chosen["strategy"]]
        if len(drawn):
            low, high = compared_texts(drawn["value"].min(), drawn["value"].max())
            values = f"{low} to {high}" if low != high else f"{low} each" if len(drawn) > 1 else low
            sentences += f" {counted(len(drawn), what)} {of}: {values}."
    return sentences
