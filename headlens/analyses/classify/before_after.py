"""A model before and after pruning, classified on the same sentences: what went, and what became of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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


class _Classified(NamedTuple):
    """A model of a run: rows of `heads.csv` by the name of their head, and the heads that it had lost."""

    corpus: Any
    model: str
    heads: pd.DataFrame
    removed: frozenset[str]


def pruned_pairs(runs: Sequence[RecordedRun]) -> list[PrunedPair]:
    """Every pruned model with the first whole one that has its heads and read the same tokens."""
    known = []
    for run, heads in tables_of([run for run in runs if run.command == "classify"], "heads"):
        for model, rows in heads.groupby("model", sort=False):
            columns = {name: float_column(rows, name) for name in ("tokens", "confidence")}
            names = [head_name(row) for row in rows.to_dict("records")]
            named = rows[KEY_COLUMNS].assign(name=names, role=families(rows["role"]), **columns)
            removed = run.heads_removed(str(model))
            known.append(_Classified(run.corpus.get("sha256"), str(model), named.set_index("name"), removed))
    pairs = []
    for pruned in known:
        whole = next((other for other in known if not other.removed and _fit(other, pruned)), None)
        if pruned.removed and whole is not None:
            # Heads that are silent at their depth alone have rows still.
            left = pruned.heads[~pruned.heads.index.isin(list(pruned.removed))].drop(columns=KEY_COLUMNS)
            heads = whole.heads.merge(left, "left", "name", suffixes=("_before", "_after")).reset_index()
            pairs.append(PrunedPair(whole.model, pruned.model, heads.fillna({"role_after": REMOVED})))
    return pairs


def _fit(whole: _Classified, pruned: _Classified) -> bool:
    """Whether the heads of one are those of the other and those that it lost, and both read the same."""
    tokens, left = whole.heads["tokens"], pruned.heads["tokens"]
    same_heads = {*left.index} | pruned.removed == {*tokens.index}
    return same_heads and whole.corpus == pruned.corpus and tokens[left.index].equals(left)


def pruned_findings(pair: PrunedPair) -> list[str]:
    """How many heads went, by their roles; what became of the roles and the confidence of the others."""
    sentences = []
    for stack, rows in pair.heads.groupby("stack", sort=False):
        left = rows[rows["role_after"] != REMOVED]
        gone = len(rows) - len(left)
        if not gone:
            continue
        before, after = rows["role_before"].value_counts(), left["role_before"].value_counts()
        by_role = [
            f"{after.get(role, 0)} of {before[role]} {'without one' if role == NONE else role}"
            for role in _held(rows["role_before"])
        ]
        verb = "was" if gone == 1 else "were"
        found = [f"{gone} of the {counted(len(rows), 'head')} of {pair.before} {verb} removed."]
        if len(left):
            found[0] += f" The heads left, by their earlier role: {', '.join(by_role)}."
            found += [_changed_roles(left), _changed_confidence(left)]
        sentences += [f"{pair.after}, {stack}: {text}" for text in found]
    return sentences


def _changed_roles(left: pd.DataFrame) -> str:
    changed = left[left["role_before"] != left["role_after"]]
    named = [
        f"{name} ({_spelled(was)}, then {_spelled(now)})"
        for name, was, now in zip(changed["name"], changed["role_before"], changed["role_after"], strict=True)
    ]
    if len(named) > _NAMED:
        named[_NAMED:] = [f"{len(named) - _NAMED} more"]
    verb = "has" if len(changed) < 2 else "have"
    count = len(changed) or "none"
    text = f"of the {counted(len(left), 'remaining head')}, {count} {verb} a different role than before"
    return f"{text}: {', '.join(named)}." if named else f"{text}."


def _changed_confidence(left: pd.DataFrame) -> str:
    change = (left["confidence_after"] - left["confidence_before"]).to_numpy()
    mean, low, high = map(number_text, mean_interval(change))
    most = left.iloc[int(np.argmax(np.abs(change)))]
    interval = f" (95% interval over heads [{low}, {high}])" if len(left) > 1 else ""
    was, now = number_text(most["confidence_before"]), number_text(most["confidence_after"])
    return (
        f"the confidence of the heads that are left changed by {mean} on average{interval}, most of all that of "
        f"{most['name']} from {was} to {now}."
    )


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
        "The heads of the unpruned model by strongest role, and what became of them: removed, or the role they hold "
        "in the pruned model, on the same sentences."
    )
    return page_table("Roles before and after pruning", records, about)


def _held(roles: pd.Series[str]) -> list[str]:
    return [name for name in FAMILIES if name in set(roles)]


def _spelled(role: str) -> str:
    return "no role" if role == NONE else role
