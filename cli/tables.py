"""The short tables that commands print."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from headlens.errors import counted

if TYPE_CHECKING:
    import pandas as pd

    from headlens.analyses.training.training_run import TrainRun


MOST_RELATIONS = 12  # rows of a table
_LEVEL = 0.05  # of significance


def classify_tables(tables: Mapping[str, pd.DataFrame], min_instances: int) -> list[Table]:
    """Roles by number of heads, and the best heads of the relations that heads follow farthest above a fixed offset."""
    from headlens.analyses.classify.metric_declarations import measure_records, registered_declarations
    from headlens.analyses.classify.role_agreement import role_records
    from headlens.analyses.classify.roles import role_family
    from headlens.analyses.classify.syntax_figure import best_heads, gain, verdicts
    from headlens.analyses.layer_smoothness import smoothness_on_console
    from headlens.pages.page_tables import page_table, summary_table

    heads = tables["heads"]
    held, nearest = (heads[name].map(role_family) for name in ("role", "nearest"))
    told = {
        f"{model}{name}": own[heads["model"] == model]
        for model in heads["model"].unique()
        for name, own in (("", held), (" (closest, if no role)", nearest.where(held == "none", "")))
    }
    roles = [*sorted({*held, *nearest} - {"none"}), "none"]
    rows = [{"role": role, **{name: int((own == role).sum()) for name, own in told.items()}} for role in roles]
    shown = [summary_table("Heads by their strongest role", rows)]
    if len(set(heads["model"])) > 1:
        title = "Roles found in any model: number of heads, and the best head with its measured value and score"
        shown.append(page_table(title, role_records(tables["roles"])).console())
    shown.append(summary_table("Measures", list(measure_records(heads, registered_declarations()))))
    if "smoothness" in tables:
        shown += smoothness_on_console(tables["smoothness"])
    if "syntax" in tables:
        for name, group in best_heads(tables["syntax"]).groupby("model", sort=False):
            judged = group.assign(verdict=verdicts(group, min_instances), gain=gain(group))
            best = judged.sort_values("gain", ascending=False, kind="stable").head(MOST_RELATIONS)
            title = f"Best head of each relation and direction, {name}"
            if len(judged) > len(best):
                title += f" (the {len(best)} of {len(judged)} farthest above their baselines; all: syntax.csv)"
            shown.append(summary_table(title, [_best(r) for r in best.to_dict("records")]))
    return shown


def relevance_tables(tables: Mapping[str, pd.DataFrame]) -> list[Table]:
    """The most relevant heads of the rule asked for, in their layers and across them, and how far other rules agree."""
    from headlens.analyses.relevance.overviews import largest_heads, largest_record
    from headlens.pages.page_tables import page_table, summary_table

    heads = tables["relevance"]
    rule = heads["rule"].iloc[0]
    shown = []
    for (model, stack), group in heads[heads["rule"] == rule].groupby(["model", "stack"], sort=False):
        best = [_relevant(r) for r in group.nlargest(8, "relevance").to_dict("records")]
        even = (1 / group.groupby("layer")["head"].transform("count")).mean()
        start = f"rule {rule}, target {group['target'].iloc[0]}; an equal share would be {even:.3f}"
        shown.append(summary_table(f"Most relevant heads of {model}, {stack} ({start})", best))
        largest = [largest_record(row) for row in largest_heads(group, 8).to_dict("records")]
        shown.append(page_table(f"Largest contributions of {model}, {stack}, across layers", largest).console())
    if "correlations" in tables:
        known = tables["correlations"].dropna(subset="spearman")
        rows = [_correlation(r) for r in known.to_dict("records")]
        if rows:
            shown.append(
                summary_table(f"Does {rule} rank the heads in the same order as the other rules? (Spearman)", rows)
            )
    return shown


def ablation_tables(tables: Mapping[str, pd.DataFrame], models: Sequence[Mapping[str, Any]]) -> list[Table]:
    """The task with all heads, the heads it needs most, and what is left of it when many are pruned."""
    from headlens.analyses.ablate.overviews import best_alone, most_damage
    from headlens.analyses.layer_smoothness import smoothness_on_console
    from headlens.pages.page_tables import summary_table

    intact = [
        {"model": facts["model"], "metric": metric, "value": f"{e['value']:.4f}", "95 % CI": _bounds(e, 4)}
        for facts in models
        for metric, e in facts["evaluation"].items()
    ]
    data = models[0]["data"]
    shown = [summary_table(f"All heads, {counted(data['examples'], 'example')} of {data['name']}", intact)]
    for (model, mode), group in tables["ablation"].groupby(["model", "mode"], sort=False):
        alone = str(mode) == "keep-only"
        rows = [_ablated(r) for r in (best_alone(group) if alone else most_damage(group, 8)).to_dict("records")]
        title = (
            "Best head of each layer when it is the only one kept"
            if alone
            else f"Most important heads ({mode!s} ablation)"
        )
        if rows:
            shown.append(summary_table(f"{title}, {model!s}", rows))
            # Of heads that make no difference some come first, too.
            if not alone and not (group["p_holm"] < _LEVEL).any():
                shown[-1].caption = "No change is significant."
    if "smoothness" in tables:
        shown += smoothness_on_console(tables["smoothness"])
    if "pruning" in tables:
        for model, group in tables["pruning"].groupby("model", sort=False):
            rows = [_pruned(r) for r in group.to_dict("records")]
            shown.append(summary_table(f"{model!s} pruned, evaluated on {group['n'].iloc[0]} held-out examples", rows))
    return shown


def prune_tables(tables: Mapping[str, pd.DataFrame]) -> list[Table]:
    """The seeds' table: heads that are left, and the task from the trained model and from random weights."""
    from headlens.analyses.prune.results_table import result_digits, results_table
    from headlens.pages.page_tables import summary_table

    results = results_table(tables["sweep"])
    shown = []
    for (model, task, metric), group in results.groupby(["model", "task", "metric"], sort=False):
        digits = result_digits(group)
        lacking = {
            "from scratch": group["scratch"].isna().all(),
            "difference from unpruned": group["trained_delta"].isna().all(),
        }
        rows = [_gated(r, digits) for r in group.to_dict("records")]
        kept = [{k: v for k, v in row.items() if not lacking.get(k)} for row in rows]
        shown.append(summary_table(f"{model}: heads left, and {metric} on {task} with 95 % intervals", kept))
    return shown


def dam_tables(tables: Mapping[str, pd.DataFrame]) -> list[Table]:
    """How sparse the masks are, and the task under them."""
    from headlens.analyses.dam.report import baseline_of
    from headlens.pages.formatting import DIFFERENCE, difference_text
    from headlens.pages.page_tables import summary_table

    shown = []
    for (model, task, metric), group in tables["sweep"].groupby(["model", "task", "metric"], sort=False):
        difference = f"difference from {baseline_of(group)}"
        rows = [
            {
                "run": row["run"],
                "masked": "" if math.isnan(row["penalty"]) else f"{row['sparsity']:.1%}",
                "masked in texts": "" if math.isnan(row["penalty"]) else f"{row['sparsity_texts']:.1%}",
                str(metric): row["value"],
                "95 % CI": _bounds(row, 3),
                difference: "" if math.isnan(row["delta"]) else difference_text(*(row[name] for name in DIFFERENCE)),
            }
            for row in group.to_dict("records")
        ]
        shown.append(summary_table(f"Learned masks of {model}, and {task} under them", rows))
    return shown


def sparsefinder_tables(tables: Mapping[str, pd.DataFrame]) -> list[Table]:
    """The methods by how much of attention they find at every sparsity, and what of a task they keep."""
    from headlens.analyses.sparsefinder.report import method_areas
    from headlens.pages.page_tables import summary_table

    return [
        summary_table(f"Methods by area under the recall-sparsity curve, {model}, {stack}", rows)
        for (model, stack), rows in method_areas(tables["areas"])
    ]


def _gated(row: Mapping[Hashable, Any], digits: int) -> dict[str, object]:
    from headlens.analyses.prune.results_table import interval_text, minus_unpruned

    return {
        "run": row["run"],
        "heads": row["heads"],
        "from trained": interval_text(row, "trained", digits),
        "difference from unpruned": minus_unpruned(row, "trained", digits),
        "from scratch": interval_text(row, "scratch", digits),
    }


def compact_screen_table(table: pd.DataFrame) -> Table:
    """Size and speed before and after, with 95 % intervals."""
    from headlens.pages.page_tables import summary_table

    rows = [_state(r) for r in table.to_dict("records")]
    return summary_table(f"{table['model'].iloc[0]} before and after", rows)


def _ablated(row: Mapping[Hashable, Any]) -> dict[str, object]:
    return {
        "head": f"{row['stack']}.{row['layer']}.{row['head']}",
        str(row["metric"]): f"{row['value']:.4f}",
        "change": f"{row['delta']:+.4f}",
        "95 % CI": _bounds(row, 4),
        "p": f"{row['p_value']:.3g}",
        "p (Holm)": f"{row['p_holm']:.3g}",
    }


def _pruned(row: Mapping[Hashable, Any]) -> dict[str, object]:
    return {
        "strategy": row["strategy"],
        "seed": row["seed"],
        "pruned": row["n_pruned"],
        str(row["metric"]): f"{row['value']:.4f}",
        "95 % CI": _bounds(row, 4),
        "on the selection split": f"{row['ranking_value']:.4f}",
        "parameters": f"{row['parameters']:,}",
        "speed-up": f"{row['speedup']:.2f}",
    }


def _state(row: Mapping[Hashable, Any]) -> dict[str, object]:
    mean, low, high = (1000 * row[name] for name in ("seconds_per_forward", "ci_low", "ci_high"))
    gain = f"{row['speedup']:.2f} ({row['speedup_low']:.2f} to {row['speedup_high']:.2f})"
    return {
        "state": row["state"],
        "heads": row["heads"],
        "parameters": f"{row['parameters']:,}",
        "MB": f"{row['weight_bytes'] / 1e6:.1f}",
        "ms per forward": f"{mean:.1f} ({low:.1f} to {high:.1f})",
        "speed-up": "" if row["state"] == "original" else gain,
    }


def _relevant(row: Mapping[Hashable, Any]) -> dict[str, object]:
    return {
        "head": f"{row['stack']}.{row['layer']}.{row['head']}",
        "share of its layer": f"{row['relevance']:.3f}",
        "95 % CI": _bounds(row, 3),
        "signed": row["signed"],
        "raw": row["raw"],
        "examples": row["n"],
    }


def _correlation(row: Mapping[Hashable, Any]) -> dict[str, object]:
    return {
        "stack": row["stack"],
        "other rule": row["other_rule"],
        "quantity": row["of"],
        "scope": "all heads" if row["scope"] == "heads" else "within layers",
        "heads": row["n"],
        "rho": f"{row['spearman']:.2f}",
        "95 % CI": _bounds(row, 2),
    }


def _bounds(row: Mapping[Any, Any], digits: int) -> str:
    low, high = row["ci_low"], row["ci_high"]
    return "too few examples" if math.isnan(low) else f"{low:.{digits}f} to {high:.{digits}f}"


def sparsity_tables(table: pd.DataFrame) -> list[Table]:
    """How much of n × n every pattern masks, beside what the paper prints; nothing without a pattern."""
    from headlens.pages.page_tables import summary_table

    if table.empty:
        return []
    n = table["n"].iloc[0]
    rows = []
    for name, group in table.groupby("mask", sort=False):
        shares, printed = ([f"{100 * v:.1f}" for v in group[c]] for c in ("sparsity", "paper_sparsity"))
        paper = {} if group["paper_sparsity"].isna().all() else {"in the paper": " / ".join(printed)}
        _, _, parameters = str(group["pattern"].iloc[0]).partition(":")
        shown = {"pattern": name, "parameters": parameters if "|" not in parameters else ""}
        rows.append(
            {
                **shown,
                "allowed": group["allowed"].iloc[0],
                "masked, %": shares[0],
                "without diagonal, %": shares[1],
                **paper,
            }
        )
    return [summary_table(f"Fixed patterns at n = {n}", rows)]


def study_tables(tables: Mapping[str, pd.DataFrame]) -> list[Table]:
    """What models achieve that were trained under masks, over seeds; nothing where none was trained."""
    from headlens.analyses.masks.degrees import SPREAD, draw_summary, mask_words, spread_texts
    from headlens.analyses.masks.study_figures import has_delta, means
    from headlens.pages.formatting import DELTA, share_text, value_text
    from headlens.pages.page_tables import summary_table
    from headlens.plots.curves import VALUES

    if "masks" not in tables:
        return []
    shown = []
    for (model, task, metric), rows in means(tables["masks"]).groupby(["model", "task", "metric"], sort=False):
        lines = [
            {
                "pattern": row["pattern"],
                "layers": row["layers"],
                "diagonal": row["control"],
                "masked, %": share_text(row["sparsity"]),
                "masked in texts, %": share_text(row["sparsity_texts"]),
                f"{metric} [95 % CI]": value_text(*(row[name] for name in VALUES)),
                **({"difference from unmasked": value_text(*(row[name] for name in DELTA))} if has_delta(rows) else {}),
                **({"seeds": row["seeds"]} if (rows["seeds"] > 1).any() else {}),
            }
            for row in rows.to_dict("records")
        ]
        shown.append(summary_table(f"{model} trained under masks, on {task}", lines))
    drawn: dict[str, list[dict[str, object]]] = {}
    for row in draw_summary(tables["draws"], tables["masks"]) if "draws" in tables else ():
        line: dict[str, object] = {"mask": mask_words(row), **dict(zip(SPREAD, spread_texts(row), strict=True))}
        line["the median mask"] = value_text(*(row[name] for name in VALUES))
        drawn.setdefault(f"Masks drawn from learned degrees, {row['metric']} on {row['task']}", []).append(line)
    return shown + [summary_table(title, lines) for title, lines in drawn.items()]


def training_tables(run: TrainRun) -> list[Table]:
    """The evaluations, or where there is none the end of the log; the metrics at the end with 95 % intervals."""
    from headlens.pages.page_tables import summary_table

    evaluations, log = run.state.evaluations, run.state.log
    title, rows = ("Evaluations on held-out data", evaluations) if evaluations else ("Training", log)
    shown = [summary_table(title, list(rows[-8:]))]
    if len(run.metrics):
        metrics = [_metric(r) for r in run.metrics.to_dict("records")]
        shown.append(summary_table(f"{run.metrics['task'].iloc[0]} on {run.metrics['data'].iloc[0]}", metrics))
    return shown


def _metric(row: Mapping[Hashable, Any]) -> dict[str, object]:
    return {"metric": row["metric"], "value": row["value"], "95 % CI": _bounds(row, 3), "examples": row["n"]}


def _best(row: Mapping[Hashable, Any]) -> dict[str, object]:
    return {
        "relation": f"{row['relation']} {row['direction']}",
        "head": f"{row['stack']}.{row['layer']}.{row['head']}",
        "n": row["n"],
        "accuracy": f"{row['accuracy']:.2f}",
        "95 % CI": f"{row['ci_low']:.2f}-{row['ci_high']:.2f}",
        "baseline": f"{row['baseline']:.2f}",
        "syntactic": row["verdict"],
    }
