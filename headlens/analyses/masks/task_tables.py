"""What models achieve under attention masks over several tasks: the tables of SparseBERT, from a run for each task."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headlens.analyses.masks.study_figures import (
    CHANCE,
    CONTROLS,
    FULL,
    LESS,
    SHARES,
    chance_text,
    delta,
    has_delta,
    means,
    one_answer_lines,
    one_of,
    quality_by_pattern,
    quality_figure,
    without_mask,
    worth_of_diagonal,
)
from headlens.errors import counted
from headlens.pages.command_report import Together
from headlens.pages.formatting import DELTA, NOTHING, escaped, markdown_table, share_text, value_text
from headlens.pages.page_tables import PageTable, page_table
from headlens.plots.curves import VALUES
from headlens.plots.head_grid import float_column
from headlens.plots.mask_points import short_names
from headlens.runs.reading import RecordedRun, mapping
from headlens.statistics.intervals import mean_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROW = ["model", "pattern", "layers", "control"]
_TRAINING = [*_ROW, "task", "seed"]
_RUN = "run"
_STUDY = [_RUN, "model", "task"]
_OTHER_RESULT = "{first} has the same model, task, mask and seed but a different result"
_OTHER_SETTING = "they were made on other data or with other options than those of {first}"
# What trainings of several runs must have in common: the content of their data, and these options.
_DATA = ("the data", "what is held out")
_OPTIONS = (
    *("longest", "epochs", "steps", "batch_tokens", "accumulate", "learning_rate", "warmup", "schedule"),
    *("weight_decay", "clip", "precision", "dtype"),
)


def over_tasks(runs: Sequence[RecordedRun]) -> pd.DataFrame:
    """What every model achieves under every mask, task by task and on average over the tasks.

    Of a task counts its main metric, the first in its table. The average is that of the tasks of a seed, then of the
    seeds that all tasks have; its interval is Student's t over the seeds for several, and for one that of independent
    tasks: half its width is the root of the sum of squares of theirs, divided by their number.

    Args:
        runs: of `headlens masks --task`; of a model and a task the first one counts, and of others those that go
            together with it, see `left_out`. Models that are called alike are told apart by the hash of their weights.

    Returns:
        Columns model, pattern, layers, control, sparsity, sparsity_texts (mean over the tasks), a column for each task,
        average, ci_low, ci_high, seeds, delta, delta_low, delta_high: the average less that without a mask, see
        `headlens.analyses.masks.study_figures.delta`. A mask that not all tasks of a model were trained under has no
        average. Models with fewer than two tasks are left out.
    """
    table = main_metrics(runs)
    if not table.empty:  # of a model with one task there is nothing to average
        table = table[table.groupby("model")["task"].transform("nunique") > 1]
    if table.empty:
        return pd.DataFrame()
    tasks = list(dict.fromkeys(table["task"]))
    by_model: dict[Any, Any] = table.groupby("model")["task"].unique().to_dict()
    unmasked: dict[Any, pd.Series] = {
        model: _averages(group, by_model[model]) for model, group in without_mask(table).groupby("model")
    }
    rows = []
    for key, group in table.groupby(_ROW, sort=False):
        by_task, model_averages = group.groupby("task"), _averages(group, by_model[key[0]])
        rows.append(
            dict(zip(_ROW, key, strict=True))
            | by_task[list(SHARES)].mean().mean().to_dict()
            | by_task["value"].mean().reindex(tasks).to_dict()
            | _average(group, model_averages, unmasked.get(key[0]))
        )
    averages = pd.DataFrame(rows)
    averages.loc[without_mask(averages).index, list(DELTA)] = np.nan
    return averages


def main_metrics(runs: Sequence[RecordedRun]) -> pd.DataFrame:
    """Rows of `masks.csv` of all runs: the main metric of every task, each training once, and the label of its run.

    Args:
        runs: of `headlens masks --task`.
    """
    table = _all_trainings(runs)
    if table.empty:
        return table
    apart = {key for key, _ in _not_comparable(table, runs)}
    kept = [key not in apart for key in zip(*(table[name] for name in _STUDY), strict=True)]
    return table[kept].drop_duplicates(_TRAINING)


def _all_trainings(runs: Sequence[RecordedRun]) -> pd.DataFrame:
    """The main metric of every task, with the label of the run in the column `_RUN`."""
    studies = [run for run in runs if "masks" in run.tables]
    if not studies:
        return pd.DataFrame()
    # by the short name of a model: the label of the first run that has one with these weights, by their hash
    alike: dict[str, dict[str, str]] = {}
    for run in studies:
        for model in run.models:
            alike.setdefault(model, {}).setdefault(run.weights_of(model), run.label)
    frames = []
    for run in studies:
        known = {model: alike[model][run.weights_of(model)] for model in run.models if len(alike[model]) > 1}
        rows = run.tables["masks"].assign(**{_RUN: run.label})
        frames.append(rows.assign(model=[f"{m} ({known[m]})" if m in known else m for m in rows["model"]]))
    table = pd.concat(frames, ignore_index=True)
    return table[table["metric"] == table.groupby(["model", "task"])["metric"].transform("first")]


def left_out(runs: Sequence[RecordedRun]) -> list[str]:
    """A sentence for each run that does not count on a task, as it does not go together with an earlier one.

    Args:
        runs: of `headlens masks --task`.
    """
    table = _all_trainings(runs)
    if table.empty:
        return []
    sizes = table.groupby(_STUDY).size()
    return [
        f"{counted(int(sizes[run, model, task]), 'training run')} of {run} on {task} left out over all runs: {why}."
        for (run, model, task), why in _not_comparable(table, runs)
    ]


def _not_comparable(table: pd.DataFrame, runs: Sequence[RecordedRun]) -> list[tuple[tuple[str, str, str], str]]:
    """The runs that do not count for a model and a task, and why: differences from another run's models mean nothing.

    Args:
        table: see `_all_trainings`.
        runs: that it is of.
    """
    settings = {run.label: _setting(run) for run in runs}
    apart = []
    for (model, task), rows in table.groupby(["model", "task"], sort=False):
        labels = list(dict.fromkeys(rows[_RUN]))
        first = rows[rows[_RUN] == labels[0]].set_index(_TRAINING)["value"]
        for label in labels[1:]:
            pairs = (rows[rows[_RUN] == label].set_index(_TRAINING)["value"] - first).dropna()
            if (pairs.abs() > 1e-9).any():
                apart.append(((str(label), str(model), str(task)), _OTHER_RESULT.format(first=labels[0])))
            elif settings[label] != settings[labels[0]]:
                apart.append(((str(label), str(model), str(task)), _OTHER_SETTING.format(first=labels[0])))
    return apart


def _setting(run: RecordedRun) -> list[object]:
    """What trainings of a run have in common, as far as that was recorded: hashes of their data, and options."""
    options, hashes = (mapping(run.record.get(name)) for name in ("arguments", "depends_on"))
    return [*map(hashes.get, _DATA), *map(options.get, _OPTIONS)]


def metrics_of(runs: Sequence[RecordedRun]) -> dict[str, str]:
    """The metric that counts in `over_tasks`, by task."""
    return dict(main_metrics(runs).drop_duplicates("task").set_index("task")["metric"])


def _averages(rows: pd.DataFrame, tasks: Sequence[str]) -> pd.Series:
    """The mean over the tasks, for every seed that all of them have."""
    values = rows.pivot_table(index="seed", columns="task", values="value").reindex(columns=list(tasks)).dropna()
    return values.mean(axis=1)


def _average(rows: pd.DataFrame, averages: pd.Series, unmasked: pd.Series | None) -> dict[str, Any]:
    """The average and its difference from that without a mask, with their intervals, and the number of seeds."""
    difference = delta(averages, unmasked)
    if len(averages) == 1:
        alone = rows[rows["seed"] == averages.index[0]]
        interval = _independent(alone, VALUES)
        difference |= dict(zip(DELTA, _independent(alone, DELTA), strict=True)) if set(DELTA) <= set(rows) else {}
    else:
        interval = (np.nan, np.nan, np.nan) if averages.empty else mean_interval(averages)
    return dict(zip(("average", "ci_low", "ci_high", "seeds"), (*interval, len(averages)), strict=True)) | difference


def _independent(rows: pd.DataFrame, names: Sequence[str]) -> tuple[float, float, float]:
    """The mean over tasks of a value, and its interval from theirs, as of independent tasks.

    Args:
        rows: one for each task.
        names: of the columns with the value and the ends of its interval.
    """
    value, *ends = (float_column(rows, name) for name in names)
    # Variances of independent tasks add up: the norm of the half widths is that of their sum.
    low, high = (float(np.linalg.norm(end - value)) / len(rows) for end in ends)
    mean = float(value.mean())
    return mean, mean - low, mean + high


def tasks_of(table: pd.DataFrame) -> list[str]:
    """The tasks that a table of `over_tasks` has columns for."""
    names = list(table.columns)
    return names[names.index(SHARES[-1]) + 1 : names.index("average")]


def attention_text(row: Mapping[Hashable, Any]) -> str:
    """How a row of `over_tasks` attends, in words."""
    if row["pattern"] == FULL:
        return CONTROLS[row["control"]]
    where = "" if row["layers"] == "all" else f", layers {row['layers']}"
    return f"{row['pattern']}{where}" + (f", {CONTROLS[row['control']]}" if row["control"] != "kept" else "")


def tasks_markdown(table: pd.DataFrame, metrics: Mapping[str, str], after: Sequence[str] = ()) -> str:
    """A table for each model: its attention, how much of it is masked, every task, the average.

    Args:
        table: see `over_tasks`.
        metrics: of the tasks, see `metrics_of`.
        after: sentences that follow; empty ones do not.
    """
    tasks = tasks_of(table)
    table = table.replace({"pattern": short_names(table["pattern"])})
    parts = ["# Models trained under attention masks, over tasks"]
    for model, rows in table.groupby("model", sort=False):
        measured = [task for task in tasks if rows[task].notna().any()]
        intervals = {"average [95 % interval]": ("average", "ci_low", "ci_high")}
        intervals |= {LESS: DELTA} if has_delta(rows) else {}
        lines = [
            [escaped(attention_text(row)), *(share_text(row[name]) for name in SHARES)]
            + [NOTHING if np.isnan(row[task]) else f"{row[task]:.3f}" for task in measured]
            + [value_text(*(row[name] for name in names)) for names in intervals.values()]
            for row in rows.to_dict("records")
        ]
        names = ["masked, %", "masked in texts, %", *map(escaped, measured), *intervals]
        parts += [f"\n## {escaped(str(model))}", "", *markdown_table(["attention"], names, lines)]
    metric_words = ", ".join(f"{escaped(metrics[task])} of {escaped(task)}" for task in tasks)
    known = "" if table[tasks].notna().all(axis=None) else ", as far as a model has them"
    parts.append(f"\nThe average is that of {metric_words}{known}.")
    if has_delta(table):
        pairs = "over seeds" if (table["seeds"] > 1).any() else "over the examples of each task"
        parts[-1] += f" `{LESS}` is paired {pairs}."
    return "\n".join([*parts, *(f"\n{text}" for text in after if text)]) + "\n"


def average_by_pattern(table: pd.DataFrame, unmasked: pd.DataFrame) -> Figure | None:
    """The average over tasks by the share of masked positions, as `quality_by_pattern` shows one task.

    Args:
        table: see `over_tasks`.
        unmasked: the models without a mask, task by task, see `headlens.analyses.masks.study_figures.means`.

    Returns:
        The figure, or None where nothing has an average.
    """
    known, tasks = table[table["average"].notna()], tasks_of(table)
    one_set = known[tasks].notna().all(axis=None)
    average = known.rename(columns={"average": VALUES[0]}).assign(
        metric="average", task=f"{len(tasks_of(table))} tasks" if one_set else "the tasks of each model"
    )
    # The average of guesses is known where that of every task is.
    guesses = unmasked.groupby("model")[CHANCE].mean().where(unmasked[CHANCE].notna().groupby(unmasked["model"]).all())
    return quality_figure(average.assign(**{CHANCE: average["model"].map(guesses)}), unmasked) if len(average) else None


def overview_of_tasks(runs: Sequence[RecordedRun]) -> list[PageTable]:
    """The table over tasks for the page; none for fewer than two tasks."""
    table = over_tasks(runs)
    if table.empty:
        return []
    more = DELTA if has_delta(table) else ()
    names = (*tasks_of(table), "average", "ci_low", "ci_high", "seeds", *more)
    records = [
        ({"model": row["model"]} if one_of(table, row["model"]) else {})
        | {"attention": attention_text(row)}
        | {"masked, %": 100 * row["sparsity"], "masked in texts, %": 100 * row["sparsity_texts"]}
        | {name: row[name] for name in names}
        for row in table.to_dict("records")
    ]
    about = (
        "The main metric of every task, mean over seeds, and the average over tasks with its 95 % interval: over the "
        "seeds, or for one seed over the examples of all tasks. The masked shares are of the positions at n "
        "tokens, and of those in the texts, averaged over tasks."
        + (" `delta` is the difference from the average of the same seeds without a mask." if more else "")
    )
    return [page_table("Over tasks", records, about)]


def together(runs: Sequence[RecordedRun]) -> Together:
    """What several runs give together, and those on several tasks."""
    trained = main_metrics(runs)
    if not trained.empty and len(set(trained[_RUN])) > 1 and (figure := quality_by_pattern(trained)) is not None:
        yield "together", figure
    table = over_tasks(runs)
    if table.empty:
        return
    yield "over_tasks", table
    unmasked = without_mask(means(trained))
    after = [chance_text(trained), *(f"{line[0].upper()}{line[1:]}." for line in one_answer_lines(unmasked))]
    yield "over_tasks", tasks_markdown(table, metrics_of(runs), [*after, *left_out(runs)])
    yield "average", average_by_pattern(table, unmasked)
    yield "diagonal_over_tasks", worth_of_diagonal(trained)
