"""What a task loses with each head: the recipe of `headlens ablate` without `--prune`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from headlens.analyses.ablate.options import AblationOptions
from headlens.analyses.ablate.screening import Screener
from headlens.analyses.ablate.stand_ins import changed_examples
from headlens.analyses.ablate.sweep import HeadRecords, TaskSweep, zeroed_heads
from headlens.findings.verdicts import margin_of, with_verdicts, without_verdicts
from headlens.heads import KEY_COLUMNS, Head, HeadTable
from headlens.models.loading import LoadedModel
from headlens.replay.direct_path import Receiver
from headlens.replay.modes import Mode
from headlens.statistics.bootstrap import Draws, percentile_interval
from headlens.statistics.non_inferiority import LEVEL, NOT_DECIDED, NOT_NEEDED, Margin
from headlens.statistics.paired_tests import PairedComparison, replicates_of
from headlens.tables.ablation_tables import ABLATION
from headlens.tasks.evaluation import chosen_metric, label_counts, paired_comparison
from headlens.tasks.skill import skill_of
from headlens.tasks.task import Floats, Task
from headlens.tasks.task_examples import Examples
from headlens.tasks.task_options import LOWER_IS_BETTER

Sweeps = Callable[[Mode], AbstractContextManager[TaskSweep]]


@dataclass(frozen=True)
class Ablation:
    """What a task loses with each head.

    Args:
        table: a row per mode and head, see `ablation_table`.
        records: of all examples, by mode; with the mode `denoise` of the changed texts.
        intact: records of all examples with all heads, on the texts of the data: (examples, columns).
    """

    table: pd.DataFrame
    records: dict[Mode, HeadRecords]
    intact: Floats


def ablate_heads(
    loaded: LoadedModel,
    examples: Examples,
    options: AblationOptions | None = None,
    sweeps: Sweeps | None = None,
    changed: Examples | None = None,
    screener: Screener | None = None,
) -> Ablation:
    """Run a task with all heads and without each.

        task, source = headlens.open_task("sst2", "dev.tsv")
        found = headlens.ablate_heads(loaded, headlens.Examples.of(task, source, loaded))
        found.table

    Args:
        loaded: the model.
        examples: the examples as prepared for the model.
        options: how heads are taken out, and what is measured.
        sweeps: how the examples go through the model in a mode; None for one process, without progress and resuming.
        changed: for the modes `counterfactual`, `path` and `denoise`, the examples with changed texts, in the same
            order.
        screener: which heads are ablated; None for all, or with `options.confirm` for one that keeps nothing.

    Raises:
        OptionError: if the task has no such metric, or cannot be run in such a mode.
        SelfCheckError: if something else was taken out than was meant.
    """
    options = options or AblationOptions()
    metric = chosen_metric(examples.task, options.metric)
    paired = None if changed is None else replace(examples, prepared=changed_examples(examples, changed))
    receiver = None if options.receiver is None else Receiver.parse(options.receiver)
    if options.confirm is not None and screener is None:
        given = (options.confirm, options.subsets, options.seed, options.batch_tokens)
        screener = Screener(loaded, examples, metric, *given)
    chosen, others = (None, ()) if screener is None else (screener.confirmed, screener.others)
    records = {}
    for mode in options.modes:
        with nullcontext(TaskSweep(mode, options.batch_tokens)) if sweeps is None else sweeps(mode) as sweep:
            to = receiver if mode == "path" else None
            denoises = mode == "denoise" and paired is not None
            ran, donors = (paired, examples) if denoises else (examples, paired)
            made = replace(sweep, seed=options.seed, receiver=to, changed=donors)
            records[mode] = made.run(loaded.model, ran or examples, chosen)
            records[mode].others = others
    intact = records[options.mode].intact
    draws = Draws.of(examples.keys, options.replicates, options.seed)
    labels = label_counts(examples.prepared)
    apart = None
    if paired is not None:
        # With all heads, on the texts that no head was replaced in.
        other = TaskSweep().run(loaded.model, examples if options.mode == "denoise" else paired, heads=()).intact
        apart = paired_comparison(examples.task, metric, intact, draws).of(other)
    margin = partial(margin_of, requested=options.margin, replaced=None if apart is None else apart.value)
    tables = [
        ablation_table(examples.task, metric, mode, swept, draws, margin, labels) for mode, swept in records.items()
    ]
    if apart is not None:
        of_mode, denoises = records[options.mode], options.mode == "denoise"
        ends = (of_mode.intact, other) if denoises else (other, of_mode.intact)
        low, high = share_intervals(examples.task, metric, of_mode.without, ends, draws)
        tables[0] = (with_restored if denoises else with_kept)(tables[0], apart, low, high)
        intact = other if denoises else intact
    if screener is not None:
        tables[0] = screener.columns(tables[0], examples.task.value(intact, metric=metric))
    if options.mode == "path":
        tables[0] = tables[0].assign(receiver="outputs" if receiver is None else str(receiver))
    table = with_zeroed_heads(pd.concat(tables, ignore_index=True), zeroed_heads(loaded.model, examples.task))
    return Ablation(table, records, intact)


def share_intervals(
    task: Task, metric: str, without: Floats, ends: tuple[Floats, Floats], draws: Draws
) -> tuple[Floats, Floats]:
    """The ends of the 95 % intervals of where models without a head are between two others, in shares of the way.

    Percentiles of the bootstrap, in which all three are measured on the same resampled examples. Where the two hardly
    differ the share says little, and its interval is wide.

    Args:
        task: whose records they are.
        metric: of the task.
        without: records without each head, (heads, n, k).
        ends: records of the model at which the share is 0, and of that at which it is 1, (n, k) each.
        draws: of the same examples.

    Returns:
        Both (heads,); NaN where there are too few examples for an interval.
    """
    statistic = partial(task.replicates, metric=metric)
    first, last, *heads = (replicates_of(records, statistic, draws) for records in (*ends, *without))
    way = np.where(last == first, np.nan, last - first)
    return percentile_interval((np.array(heads).reshape(len(heads), -1) - first).T / way[:, None])


def with_restored(table: pd.DataFrame, apart: PairedComparison, low: Floats, high: Floats) -> pd.DataFrame:
    """Adds what the metric is on the original texts, and how much of the way there a head's output restores.

    Args:
        table: see `ablation_table`, of the changed texts.
        apart: all heads on the original texts, compared with the same on the changed ones. Where the latter are not
            significantly worse, there is no such share.
        low: lower ends of the intervals of the shares, see `share_intervals`.
        high: upper ends.
    """
    way = apart.value - table["baseline"]
    better = way * np.where(table["metric"].isin(LOWER_IS_BETTER), -1, 1) > 0
    restored = ((table["value"] - table["baseline"]) / way).where(better & (apart.p_value < LEVEL))
    shares = _shares("restored", restored, low, high)
    return _with_difference(table, apart).assign(on_original=apart.value, **shares)


def with_kept(table: pd.DataFrame, apart: PairedComparison, low: Floats, high: Floats) -> pd.DataFrame:
    """Adds what the metric is on the changed texts, and how much of the way there is left, to rows of single heads.

    Args:
        table: see `ablation_table`.
        apart: all heads on the changed texts, whose answers are those of the data, compared with the same on the
            original ones. Where the two do not differ significantly, there is no such share, and no verdict: a head can
            lose nothing of what is not shown to be there.
        low: lower ends of the intervals of the shares, see `share_intervals`.
        high: upper ends.
    """
    way, shown = table["baseline"] - apart.value, bool(apart.p_value < LEVEL)
    kept = (table["value"] - apart.value) / (way if shown else np.nan)
    table = _with_difference(table, apart).assign(on_changed=apart.value, **_shares("kept", kept, low, high))
    return table if shown else without_verdicts(table)


def _shares(name: str, shares: pd.Series[float], low: Floats, high: Floats) -> dict[str, Any]:
    """The columns of a share; heads that were left in have no records, and no intervals."""
    columns = {name: shares}
    for end, values in (("low", low), ("high", high)):
        of_heads = pd.Series(values, shares.index[: len(values)]).reindex(shares.index)
        columns[f"{name}_{end}"] = of_heads.where(shares.notna())
    return columns


def _with_difference(table: pd.DataFrame, apart: PairedComparison) -> pd.DataFrame:
    ends = {"texts_low": apart.low, "texts_high": apart.high}
    return table.assign(texts_delta=apart.delta, **ends, texts_p_value=apart.p_value)


def with_zeroed_heads(table: pd.DataFrame, zeroed: Collection[Head]) -> pd.DataFrame:
    """Calls heads not needed that add nothing whatever the examples, which need not decide it.

    Args:
        table: a row per mode and head, see `ablation_table`; where it has no verdicts, they stay empty.
        zeroed: see `headlens.analyses.ablate.sweep.zeroed_heads`.
    """
    heads = pd.Series(list(zip(*(table[name] for name in KEY_COLUMNS), strict=True)), table.index)
    sure = heads.isin(zeroed) & (table["mode"] != "keep-only") & table["verdict"].notna()
    return table.assign(verdict=table["verdict"].mask(sure, NOT_NEEDED), n_to_decide=table["n_to_decide"].mask(sure))


def ablation_table(
    task: Task,
    metric: str,
    mode: Mode,
    records: HeadRecords,
    draws: Draws,
    margin: Callable[..., Margin] = margin_of,
    labels: Mapping[int, int] | None = None,
) -> pd.DataFrame:
    """What becomes of a metric without each head: one row per head.

    Args:
        task: whose records they are.
        metric: of the task.
        mode: how heads were taken out; for `keep-only` the row of a head is about the model with this head alone in
            its layer.
        records: of all examples.
        draws: of the same examples, for the intervals.
        margin: the smallest loss that matters, given what `headlens.findings.verdicts.margin_of` takes.
        labels: how often each token was to be predicted, of tasks that predict tokens.

    Returns:
        Rows of ablation.csv without the model: `delta` is `value` - `baseline`, `ci_low` and `ci_high` are its
        paired 95 % interval; where the metric is the share of examples that are right, this is the score interval and
        `p_value` McNemar's exact test, otherwise both are those of the paired bootstrap, see `Comparison`; `p_holm` is
        corrected for the number of heads (Holm 1979), those among them that were not taken out, as they were expected
        to matter less on these examples, and whose rows are empty. `p_margin` is of the hypothesis that the loss is
        `margin` or more, `p_margin_holm` is corrected, too; `verdict` says whether what was taken out is needed, see
        `headlens.statistics.non_inferiority.verdict`, and if that is not decided, `n_to_decide` about how many examples
        would. Both are empty if the model with all heads gives every example the same answer, or is not significantly
        better than guessing (`skill_of`), and for the mode `denoise`.
    """
    guesses = task.chance(records.intact, metric, labels)
    tests = len(records.heads) + len(records.others)
    tested = margin(metric, task.value(records.intact, metric=metric), tests=tests, guesses=guesses)
    compare = paired_comparison(task, metric, records.intact, draws, tested)
    # Holm's correction by numbers that stand for any: no p-value is larger.
    unknown = [{**head._asdict(), "p_value": 1.0, "p_margin": 1.0} for head in records.others]
    rows = pd.DataFrame(
        [*({**head._asdict(), **asdict(compare.of(record))} for head, record in records.items()), *unknown],
        columns=[*KEY_COLUMNS, *(f.name for f in fields(PairedComparison))],
    ).rename(columns={"low": "ci_low", "high": "ci_high"})
    common: dict[str, Any] = {
        "task": task.name,
        "metric": metric,
        "mode": mode,
        "n": len(records.intact),
        "baseline": compare.value,
        "baseline_answer_share": task.answer_share(records.intact, metric),
    }
    rows = with_verdicts(rows.assign(**common), tested)
    rows.loc[len(records.heads) :, ["p_value", "p_holm", "p_margin", "p_margin_holm", "verdict"]] = np.nan
    if mode == "keep-only":
        # Of a layer with one head nothing was taken out, which shows nothing of heads that it does not have.
        whole = rows.groupby(["stack", "layer"])["head"].transform("size") == 1
        rows.loc[whole, ["p_margin", "p_margin_holm", "n_to_decide"]] = np.nan
        rows.loc[whole, "verdict"] = NOT_DECIDED
    # What restores an answer is not what is needed for it.
    vain = mode == "denoise" or task.constant(records.intact, metric) or skill_of(task, records.intact, labels).lacking
    table = HeadTable(without_verdicts(rows) if vain else rows)
    return table.rows[[name for name in ABLATION.names[1:] if name in table.rows]]
