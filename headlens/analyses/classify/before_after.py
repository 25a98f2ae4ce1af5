"""A model before and after pruning, classified on the same sentences: what went, and what became of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from headlens.errors import counted
from headlens.heads import KEY_COLUMNS
from headlens.pages.head_cards import REMOVED, PrunedPair
from headlens.pages.page_tables import PageTable, number_text, page_table
from headlens.plots.head_grid import float_column, head_name
from headlens.plots.role_colours import FAMILIES, NONE, families
from headlens.runs.reading import RecordedRun, tables_of
from headlens.statistics.intervals import mean_interval

_NAMED = 6  # heads that a sentence names


@dataclass(frozen=True)
class _Classified:
    """A model of a run: rows of `heads.csv`, and the heads that it had lost."""

    corpus: Any
    model: str
    heads: pd.DataFrame
    removed: frozenset[str]


def pruned_pairs(runs: Sequence[RecordedRun]) -> list[PrunedPair]:
    """Every pruned model with the first whole one that has its heads and read the same tokens."""
    known = [
        _Classified(run.corpus.get("sha256"), str(model), rows, run.heads_removed(str(model)))
        for run, heads in tables_of([run for run in runs if run.command == "classify"], "heads")
        for model, rows in heads.groupby("model", sort=False)
    ]
    return [
        _pair(before, after)
        for after in known
        if after.removed
        for before in [unpruned for unpruned in known if not unpruned.removed and _fit(unpruned, after)][:1]
    ]


def pruned_findings(pair: PrunedPair) -> list[str]:
    """How many heads went, by their roles; what became of the roles and the confidence of the others."""
    return [
        f"{pair.after}, {stack}: {text}"
        for stack, rows in pair.heads.groupby("stack", sort=False)
        if (rows["role_after"] == REMOVED).any()
        for text in _sentences(pair.before, rows)
    ]


def roles_before_after(runs: Sequence[RecordedRun]) -> PageTable:
    """For every role before pruning how many heads went, and what roles the others hold now."""
    pairs = pruned_pairs(runs)
    now = _held(pd.concat([pair.heads["role_after"] for pair in pairs])) if pairs else []
    records = [
        {"model": pair.after, "pruned from": pair.before, "stack": stack, "role before": _spelled(role)}
        | {"heads": len(rows), REMOVED: int((rows["role_after"] == REMOVED).sum())}
        | {f"then {_spelled(name)}": int((rows["role_after"] == name).sum()) for name in now}
        for pair in pairs
        for stack, stack_heads in pair.heads.groupby("stack", sort=False)
        for role in _held(stack_heads["role_before"])
        for rows in [stack_heads[stack_heads["role_before"] == role]]
    ]
    about = (
        "Heads of the whole model by their strongest role, and what became of them: removed, or the role that they "
        "hold in the pruned model, on the same sentences."
    )
    return page_table("Roles before and after pruning", records, about)


def _fit(unpruned: _Classified, pruned: _Classified) -> bool:
    """Whether the heads of one are those of the other and those that it lost, and both read the same."""
    tokens, left = (pd.Series(float_column(run.heads, "tokens"), _names(run.heads)) for run in (unpruned, pruned))
    same_heads = {*left.index} | pruned.removed == {*tokens.index}
    return same_heads and unpruned.corpus == pruned.corpus and tokens[left.index].equals(left)


def _pair(unpruned: _Classified, pruned: _Classified) -> PrunedPair:
    before, after = (
        run.heads[KEY_COLUMNS].assign(
            name=_names(run.heads), role=families(run.heads["role"]), confidence=float_column(run.heads, "confidence")
        )
        for run in (unpruned, pruned)
    )
    # Heads that are silent at their depth alone have rows still.
    after = after[~after["name"].isin(pruned.removed)].drop(columns="name")
    heads = before.merge(after, "left", KEY_COLUMNS, suffixes=("_before", "_after"))
    return PrunedPair(unpruned.model, pruned.model, heads.fillna({"role_after": REMOVED}))


def _sentences(unpruned: str, rows: pd.DataFrame) -> list[str]:
    left = rows[rows["role_after"] != REMOVED]
    count, gone = counted(len(rows), "head"), len(rows) - len(left)
    before, after = rows["role_before"].value_counts(), left["role_before"].value_counts()
    by_role = [
        f"{after.get(role, 0)} of {before[role]} {'without one' if role == NONE else role}"
        for role in _held(rows["role_before"])
    ]
    went = f"{gone} of the {count} of {unpruned} {'was' if gone == 1 else 'were'} removed."
    if left.empty:
        return [went]
    return [f"{went} Left are, by their role before: {', '.join(by_role)}.", _roles(left), _confidence(left)]


def _roles(left: pd.DataFrame) -> str:
    changed = left[left["role_before"] != left["role_after"]]
    named = [
        f"{name} ({_spelled(was)}, then {_spelled(now)})"
        for name, was, now in zip(changed["name"], changed["role_before"], changed["role_after"], strict=True)
    ]
    if len(named) > _NAMED:
        named[_NAMED:] = [f"{len(named) - _NAMED} more"]
    verb = "has" if len(changed) < 2 else "have"
    text = f"of the {counted(len(left), 'head')} left {len(changed) or 'none'} {verb} another role than before"
    return f"{text}: {', '.join(named)}." if named else f"{text}."


def _confidence(left: pd.DataFrame) -> str:
    change = float_column(left, "confidence_after") - float_column(left, "confidence_before")
    mean, low, high = mean_interval(change)
    most = left.iloc[int(np.argmax(np.abs(change)))]
    interval = f" [{number_text(low)}, {number_text(high)}, over heads]" if len(left) > 1 else ""
    was, now = (number_text(most[f"confidence_{when}"]) for when in ("before", "after"))
    return (
        f"the confidence of the heads left changed by {number_text(mean)}{interval} on average, farthest that of "
        f"{most['name']} from {was} to {now}."
    )


def _held(roles: pd.Series[str]) -> list[str]:
    return [name for name in FAMILIES if name in set(roles)]


def _names(rows: pd.DataFrame) -> list[str]:
    return [head_name(row) for row in rows.to_dict("records")]


def _spelled(role: str) -> str:
    return "no role" if role == NONE else role
