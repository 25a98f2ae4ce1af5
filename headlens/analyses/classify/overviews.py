"""What a reader of classifications looks for first, over one run or several: roles, and the best heads.

Of a model before and after pruning, classified on the same sentences: what went, and what became of the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from headlens.analyses.classify.metric_declarations import declarations_of, measure_records
from headlens.analyses.classify.roles_over_training import roles_by_step
from headlens.analyses.classify.syntax_figure import FEWEST, best_head_name, best_heads
from headlens.findings.before_after import pruned_pairs, role_text, roles_present
from headlens.models.names import first_and_last, recorded_steps
from headlens.pages.formatting import number_text
from headlens.pages.head_cards import REMOVED
from headlens.pages.page_tables import Cell, Interval, PageTable, interval_cell, number_cell, page_table
from headlens.plots.head_grid import by_model_and_stack, float_column, head_name
from headlens.plots.role_colours import FAMILIES, NONE, families, family
from headlens.roles import even_attention, role_agreement, role_rules
from headlens.roles.syntax_verdicts import verdicts
from headlens.runs.reading import RecordedRun, run_label, tables_of

_BOUNDS = ("ci_low", "accuracy", "ci_high", "baseline")


def fewest(run: RecordedRun) -> int:
    """Returns the threshold `min_instances` of a recorded run, or the default if the run has none."""
    return recorded if isinstance(recorded := run.argument("min_instances", FEWEST), int) else FEWEST


def role_counts(runs: Sequence[RecordedRun]) -> PageTable:
    """How many heads of every stack have which role as their strongest."""
    parts = [
        (run, part, pd.Series(families(part.rows["role"])).value_counts())
        for run, heads in tables_of(runs, "heads")
        for part in by_model_and_stack(heads)
    ]
    present = [name for name in FAMILIES if any(name in counts for *_, counts in parts)]
    records = [
        run_label(run, runs)
        | {"model": part.model, "stack": part.stack, "heads": len(part.rows)}
        | {role_text(name): int(counts.get(name, 0)) for name in present}
        for run, part, counts in parts
    ]
    about = "How many heads have each role as their strongest; a head that holds several is counted once."
    return page_table("Roles", records, about)


def roles_of_checkpoints(runs: Sequence[RecordedRun]) -> PageTable:
    """How many heads hold each role, and means over heads, by step of one training."""
    records = [
        run_label(run, runs) | {**row, **{name: number_cell(row[name]) for name in ("confidence", "entropy")}}
        for run, heads in tables_of(runs, "heads")
        for row in roles_by_step(heads, recorded_steps(run.model_facts))
    ]
    about = (
        "Checkpoints of one training: how many heads hold each role (a head that holds several counts for each), and "
        "the mean over heads of confidence and of entropy, as a share of the largest."
    )
    return page_table("Roles over training", records, about)


def family_counts(heads: pd.DataFrame) -> list[dict[Any, Any]]:
    """Counts the heads of every model by role family: by their strongest role, all that they hold, and the closest.

    Args:
        heads: rows of heads.csv of one model or several, as they were measured.

    Returns:
        A row for every family, the last one for heads without a role. What the heads of a model hold beside their
        strongest role, or are close to, is left out where they attend evenly.
    """
    counts: dict[str, pd.Series[int]] = {}
    even = even_attention.even_models(heads)
    for model, model_rows in heads.groupby("model", sort=False):
        counts[str(model)] = role_rules.count_families(model_rows)
        if model not in even:
            held = model_rows["roles"].map(lambda roles: {role_rules.role_family(role) for role in roles.split("; ")})
            counts[f"{model} (held at all)"] = held.explode().value_counts()
            closest = model_rows.loc[model_rows["role"] == "", "nearest"]
            counts[f"{model} (closest, if no role)"] = closest.map(role_rules.role_family).value_counts()
    table = pd.DataFrame(counts).fillna(0).astype(int)
    table = table.reindex([*sorted(set(table.index) - {"none"}), "none"], fill_value=0)
    return table.rename_axis("role").reset_index().to_dict("records")


ROLE_SCORE = (
    "Score: value divided by the threshold, or its difference from a baseline divided by the margin. n.s.: what is "
    "needed is reached, but not significantly."
)


def roles_compared(runs: Sequence[RecordedRun]) -> PageTable:
    """Every role that some model holds, with the heads that hold it and the best one, of several models or runs."""
    roles = _labelled(runs, "roles")
    several = len(roles) and len(set(roles["model"])) > 1
    about = (
        "Whether the same roles appear in several models: how many heads hold each, and the head that exceeds the "
        "threshold by most or comes closest to it, with its measured value (a share of tokens, words, cases or "
        "weight), what is needed, which is the threshold, or the better baseline and the margin, and its score. "
        f"{ROLE_SCORE} The best head was picked on the text that it is scored on; none (even): nearly all heads of the "
        "stack attend evenly, and none holds the role."
    )
    even = even_attention.even_stacks(_labelled(runs, "heads"))
    return page_table("Roles by model", role_rules.role_records(roles, even) if several else [], about)


def roles_agree(runs: Sequence[RecordedRun]) -> PageTable:
    """Cohen's κ of the roles of heads of the same place, of every two models of several runs."""
    # Of checkpoints of one training the first and the last are compared.
    compared = [_of_models(run, first_and_last(recorded_steps(run.model_facts))) for run in runs]
    heads = _labelled(compared, "heads", "role")
    if len(heads):
        heads["role"] = heads["role"].fillna("")  # a file has nothing where there is no role
    agreement = role_agreement.role_agreement(heads) if len(heads) and len(set(heads["model"])) > 1 else pd.DataFrame()
    records = [
        {name.replace("_", " "): row[name] for name in ("model", "other_model", "stack", "heads", "same")}
        | {"κ": number_cell(row["kappa"])}
        | {"95 % CI over heads": interval_cell((row["ci_low"], row["kappa"], row["ci_high"], 0.0), (-1.0, 1.0))}
        for row in agreement.to_dict("records")
    ]
    about = (
        "Heads in the same position, in models of the same shape, whose roles belong to the same family (no role "
        "counts as a family); κ is the agreement beyond chance (Cohen 1960), with its 95 % interval (dot, line; from "
        "−1 to 1, tick: 0). Heads of models that were trained separately have no common order: there, κ near 0 does "
        "not mean that their roles differ."
    )
    return page_table("Agreement of roles", records, about)


def _of_models(run: RecordedRun, models: Sequence[str]) -> RecordedRun:
    """The run with the heads of some of its models alone; of all where none is named."""
    if not models or "heads" not in run.tables:
        return run
    heads = run.tables["heads"]
    return replace(run, tables={**run.tables, "heads": heads[heads["model"].isin(models)]})


def _labelled(runs: Sequence[RecordedRun], name: str, *needed: str) -> pd.DataFrame:
    """Rows of a table of all runs, with the run in the name of the model where there are several."""
    frames = [
        model_rows.assign(
            model=[f"{run.label_with_mask}: {model}" if len(runs) > 1 else str(model) for model in model_rows["model"]]
        )
        for run, model_rows in tables_of(runs, name)
        if {*needed} <= {*model_rows}
    ]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def best_rows(runs: Sequence[RecordedRun]) -> PageTable:
    """The best head of every relation and direction; those of several runs and models stand below each other."""
    by_relation: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for run, syntax in tables_of(runs, "syntax"):
        best = best_heads(even_attention.without_even(syntax, even_attention.even_stacks(run.tables.get("heads"))))
        for row, verdict in zip(best.to_dict("records"), verdicts(best, fewest(run)), strict=True):
            low, value, high, base = bounds = Interval(*(float(row[name]) for name in _BOUNDS))
            shown = bounds if all(0 <= bound <= 1 for bound in bounds) else None
            # Those of several runs and models stand below each other.
            by_relation.setdefault((row["relation"], row["direction"]), []).append(
                {"relation": row["relation"], "direction": row["direction"]}
                | run_label(run, runs)
                | {"model": row["model"], "head": best_head_name(row), "n": row["n"], "accuracy": number_cell(value)}
                | {"95 % CI": Cell(f"{number_text(low)}–{number_text(high)}", repr(low), shown)}
                | {"baseline": number_cell(base), "uniform attention": number_cell(row.get("accuracy_null", np.nan))}
                | {"syntactic": verdict}
            )
    about = (
        "Accuracy with its 95 % Wilson interval (dot, line) against always choosing the most frequent offset (tick), "
        "and what uniform attention has; "
        "words that are read as one unit count as one. The best head was picked on the instances it is scored on. "
        "Syntactic: above the baseline by the margin, and significantly so; n.s.: by the margin, but not "
        "significantly after the correction for all heads, relations and directions; uniform: not above uniform "
        "attention; ceiling: the baseline is so high that no head can be above it by the margin; later: the other word "
        "mostly stands to the right, where a causal head cannot look."
    )
    return page_table("Best head for every relation", [*chain(*by_relation.values())], about)


def measures(runs: Sequence[RecordedRun]) -> PageTable:
    """What the metrics measured: mean over the heads of every stack, and the highest head."""
    measured = [
        (run, measure_records(heads, declarations_of(run), fewest(run))) for run, heads in tables_of(runs, "heads")
    ]
    records = [run_label(run, runs) | record for run, of_run in measured for record in of_run]
    return page_table(
        "Measures",
        records,
        "Mean over the heads of a stack, the lowest and highest head, what the better baseline of the measure has, "
        "such as chance or always the nearest mention, and what uniform attention has on this text; n: "
        "of words, mentions or tokens of pairs, where not all tokens count. If n is below what roles need, no head is "
        "named.",
    )


def roles_held(runs: Sequence[RecordedRun]) -> PageTable:
    """Every head that has a role, with the numbers that roles come from."""
    numbers = {"confidence": "confidence", "positional_share": "at its most frequent non-zero offset"}
    numbers |= {"rare_top1": "at the rarest word", "entropy_norm": "entropy"}
    records = [
        run_label(run, runs)
        | {"model": row["model"], "head": head_name(row), "roles": row["roles"]}
        | {title: row[name] for name, title in numbers.items()}
        for run, heads in tables_of(runs, "heads")
        for row in heads.assign(**{name: float_column(heads, name) for name in numbers}).to_dict("records")
        if family(row["role"]) != NONE
    ]
    about = "All the roles of a head, the strongest first; shares from 0 to 1."
    return page_table("Heads that have a role", records, about)


def roles_before_after(runs: Sequence[RecordedRun]) -> PageTable:
    """For every role before pruning how many heads went, and what roles the others hold now."""
    pairs = pruned_pairs(runs)
    now = roles_present(pd.concat([pair.heads["role_after"] for pair in pairs])) if pairs else []
    records = [
        {"model": pair.after, "pruned from": pair.before, "stack": stack, "role before": role_text(role)}
        | {"heads": len(rows), REMOVED: int((rows["role_after"] == REMOVED).sum())}
        | {f"then {role_text(name)}": int((rows["role_after"] == name).sum()) for name in now}
        for pair in pairs
        for stack, stack_heads in pair.heads.groupby("stack", sort=False)
        for role in roles_present(stack_heads["role_before"])
        for rows in [stack_heads[stack_heads["role_before"] == role]]
    ]
    about = (
        "The heads of the unpruned model by strongest role, and what became of them: removed, or the role they hold "
        "in the pruned model, on the same sentences."
    )
    return page_table("Roles before and after pruning", records, about)


FIRST = (roles_of_checkpoints, role_counts, roles_compared, roles_agree, roles_before_after, best_rows, measures)
