"""What a reader of classifications looks for first, over one run or several: roles, and the best heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from headlens.analyses.classify.metric_declarations import declarations_of, measure_records
from headlens.analyses.classify.role_agreement import role_agreement, role_records
from headlens.analyses.classify.syntax_figure import FEWEST, best_heads, verdicts
from headlens.pages.page_tables import Cell, Interval, PageTable, interval_cell, number_cell, number_text, page_table
from headlens.plots.head_grid import by_model_and_stack, float_column, head_name
from headlens.plots.role_colours import FAMILIES, NONE, families, family
from headlens.runs.reading import RecordedRun, run_label, tables_of

_BOUNDS = ("ci_low", "accuracy", "ci_high", "baseline")


def fewest(run: RecordedRun) -> int:
    """Returns the `--min-instances` of a recorded run, or the default if the run has none."""
    instances = run.argument("min_instances", FEWEST)
    return instances if isinstance(instances, int) else FEWEST


def role_counts(runs: Sequence[RecordedRun]) -> PageTable:
    """How many heads of every stack have which role as their strongest."""
    counted = [
        (run, part, pd.Series(families(part.rows["role"])).value_counts())
        for run, heads in tables_of(runs, "heads")
        for part in by_model_and_stack(heads)
    ]
    present = [name for name in FAMILIES if any(name in counts for *_, counts in counted)]
    records = [
        run_label(run, runs)
        | {"model": part.model, "stack": part.stack, "heads": len(part.rows)}
        | {"no role" if name == NONE else name: int(counts.get(name, 0)) for name in present}
        for run, part, counts in counted
    ]
    about = "How many heads have each role as their strongest; a head that holds several is counted once."
    return page_table("Roles", records, about)


def roles_compared(runs: Sequence[RecordedRun]) -> PageTable:
    """Every role that some model holds, with the heads that hold it and the best one, of several models or runs."""
    roles = _labelled(runs, "roles")
    several = len(roles) and len(set(roles["model"])) > 1
    about = (
        "Whether the same roles appear in several models: how many heads hold each, and the head that exceeds the "
        "threshold by most or comes closest to it, with its measured value (a share of tokens, words, cases or "
        "weight) and its score: the value divided by the threshold, or its difference from a baseline divided by "
        "the margin. The best head was picked on the text that it is scored on."
    )
    return page_table("Roles by model", role_records(roles) if several else [], about)


def roles_agree(runs: Sequence[RecordedRun]) -> PageTable:
    """Cohen's κ of the roles of heads of the same place, of every two models of several runs."""
    heads = _labelled(runs, "heads", "role")
    if len(heads):
        heads["role"] = heads["role"].fillna("")  # a file has nothing where there is no role
    found = role_agreement(heads) if len(heads) and len(set(heads["model"])) > 1 else pd.DataFrame()
    records = [
        {name.replace("_", " "): row[name] for name in ("model", "other_model", "stack", "heads", "same")}
        | {"κ": number_cell(row["kappa"])}
        | {"95 % CI": interval_cell((row["ci_low"], row["kappa"], row["ci_high"], 0.0), (-1.0, 1.0))}
        for row in found.to_dict("records")
    ]
    about = (
        "Heads in the same position, in models of the same shape, whose roles belong to the same family (no role "
        "counts as a family); κ is the agreement beyond chance (Cohen 1960), with its 95 % interval (dot, line; from "
        "−1 to 1, tick: 0). Heads of models that were trained separately have no common order: there, κ near 0 does "
        "not mean that their roles differ."
    )
    return page_table("Agreement of roles", records, about)


def _labelled(runs: Sequence[RecordedRun], name: str, *needed: str) -> pd.DataFrame:
    """Rows of a table of all runs, with the run in the name of the model where there are several."""
    frames = [
        own.assign(model=[f"{run.label}: {model}" if len(runs) > 1 else str(model) for model in own["model"]])
        for run, own in tables_of(runs, name)
        if {*needed} <= {*own}
    ]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def best_rows(runs: Sequence[RecordedRun]) -> PageTable:
    """The best head of every relation and direction; those of several runs and models stand below each other."""
    records: list[dict[str, Any]] = []
    for run, syntax in tables_of(runs, "syntax"):
        best = best_heads(syntax)
        for row, verdict in zip(best.to_dict("records"), verdicts(best, fewest(run)), strict=True):
            low, value, high, base = bounds = Interval(*(float(row[name]) for name in _BOUNDS))
            shown = bounds if all(0 <= bound <= 1 for bound in bounds) else None
            records.append(
                {"relation": row["relation"], "direction": row["direction"]}
                | run_label(run, runs)
                | {"model": row["model"], "head": head_name(row), "n": row["n"], "accuracy": number_cell(value)}
                | {"95 % CI": Cell(f"{number_text(low)}–{number_text(high)}", repr(low), shown)}
                | {"baseline": number_cell(base), "syntactic": verdict}
            )
    # Those of several runs and models stand below each other.
    order = list(dict.fromkeys((record["relation"], record["direction"]) for record in records))
    records.sort(key=lambda record: order.index((record["relation"], record["direction"])))
    about = (
        "Accuracy with its 95 % Wilson interval (dot, line) against always choosing the most frequent offset (tick); "
        "words that are read as one unit count as one. The best head was picked on the instances it is scored on. "
        "Syntactic: above the baseline by the margin, and significantly so; n.s.: by the margin, but not "
        "significantly after the correction for all heads, "
        "relations and directions."
    )
    return page_table("Best head for every relation", records, about)


def measures(runs: Sequence[RecordedRun]) -> PageTable:
    """What the metrics measured: mean over the heads of every stack, and the highest head."""
    measured = [(run, measure_records(heads, declarations_of(run))) for run, heads in tables_of(runs, "heads")]
    records = [run_label(run, runs) | record for run, own in measured for record in own]
    return page_table("Measures", records, "Mean over the heads of a stack, and the lowest and highest head.")


def roles_held(runs: Sequence[RecordedRun]) -> PageTable:
    """Every head that has a role, with the numbers that roles come from."""
    numbers = {
        "confidence": "confidence",
        "positional_share": "at its most frequent non-zero offset",
        "rare_top1": "at the rarest word",
        "entropy_norm": "entropy",
    }
    records = [
        run_label(run, runs)
        | {"model": row["model"], "head": head_name(row), "roles": row["roles"]}
        | {title: row[name] for name, title in numbers.items()}
        for run, heads in tables_of(runs, "heads")
        for row in heads.assign(**{name: float_column(heads, name) for name in numbers}).to_dict("records")
        if family(row["role"]) != NONE
    ]
    return page_table(
        "Heads that have a role", records, "All the roles of a head, the strongest first; shares from 0 to 1."
    )
