"""Heads before and after pruning: a model, and what is left of it, classified on the same text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from headlens.errors import counted
from headlens.findings.verdicts import tied
from headlens.heads import KEY_COLUMNS
from headlens.pages.formatting import number_text
from headlens.pages.head_cards import REMOVED, PrunedPair
from headlens.plots.head_grid import float_column, head_name
from headlens.plots.role_colours import FAMILIES, NONE, families
from headlens.runs.reading import RecordedRun, tables_of
from headlens.statistics.intervals import mean_interval

_ENDS = ("confidence_ci_low", "confidence_ci_high")
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
            columns = {name: float_column(rows, name) for name in ("tokens", "confidence", *_ENDS)}
            role_rows = rows[KEY_COLUMNS].assign(role=families(rows["role"]), **columns)
            role_rows.index = pd.Index(map(head_name, rows.to_dict("records")), name="name")
            known.append(_Classified(run.corpus.get("sha256"), str(model), role_rows, run.heads_removed(str(model))))
    pairs = []
    for pruned in known:
        intact = next((other for other in known if not other.removed and _fit(other, pruned)), None)
        if pruned.removed and intact is not None:
            # Heads that are silent at their depth alone have rows still.
            left = pruned.heads[~pruned.heads.index.isin(list(pruned.removed))].drop(columns=KEY_COLUMNS)
            heads = intact.heads.merge(left, "left", "name", suffixes=("_before", "_after")).reset_index()
            pairs.append(PrunedPair(intact.model, pruned.model, heads.fillna({"role_after": REMOVED})))
    return pairs


def _fit(intact: _Classified, pruned: _Classified) -> bool:
    """Whether the heads of one are those of the other and those that it lost, and both read the same."""
    tokens, left = intact.heads["tokens"], pruned.heads["tokens"]
    same_heads = {*left.index} | pruned.removed == {*tokens.index}
    return same_heads and intact.corpus == pruned.corpus and tokens[left.index].equals(left)


def pruned_findings(pair: PrunedPair) -> list[str]:
    """How many heads went, by their roles; what became of the roles and the confidence of the others."""
    sentences = []
    for stack, rows in pair.heads.groupby("stack", sort=False):
        left = rows[rows["role_after"] != REMOVED]
        if not (gone := len(rows) - len(left)):
            continue
        before, after = rows["role_before"].value_counts(), left["role_before"].value_counts()
        by_role = [
            f"{after.get(role, 0)} of {before[role]} {'without one' if role == NONE else role}"
            for role in roles_present(rows["role_before"])
        ]
        went = "was removed" if gone == 1 else "were removed"
        texts = [f"{gone} of the {counted(len(rows), 'head')} of {pair.before} {went}."]
        if len(left):
            texts[0] += f" The heads left, by their earlier role: {', '.join(by_role)}."
            texts += [_changed_roles(left), _changed_confidence(left)]
        sentences += [f"{pair.after}, {stack}: {text}" for text in texts]
    return sentences


def _changed_roles(left: pd.DataFrame) -> str:
    changed = left[left["role_before"] != left["role_after"]]
    rows = changed[["name", "role_before", "role_after"]].itertuples(index=False)
    changes = [f"{name} ({role_text(was)}, then {role_text(now)})" for name, was, now in rows]
    if len(changes) > _NAMED:
        changes[_NAMED:] = [f"{len(changes) - _NAMED} more"]
    verb = "has" if len(changed) < 2 else "have"
    count = f"{len(changed) or 'none'} {verb}"
    text = f"of the {counted(len(left), 'remaining head')}, {count} a different role than before"
    return f"{text}: {', '.join(changes)}." if changes else f"{text}."


def _changed_confidence(left: pd.DataFrame) -> str:
    change = (left["confidence_after"] - left["confidence_before"]).to_numpy()
    mean, low, high = map(number_text, mean_interval(change))
    if not change.any():
        return "the confidence of the heads that are left did not change."
    size = np.abs(change)
    most, alike = left.iloc[int(np.argmax(size))], int((size == size.max()).sum())
    interval = f" (95% interval over heads [{low}, {high}])" if np.ptp(change) > 0 else ""
    was, now = number_text(most["confidence_before"]), number_text(most["confidence_after"])
    low, high = _ENDS
    overlap = most[f"{low}_after"] <= most[f"{high}_before"] and most[f"{low}_before"] <= most[f"{high}_after"]
    return (
        f"the confidence of the heads that are left changed by {mean} on average{interval}, most on this text that of "
        f"{most['name']}{tied(alike)} from {was} to {now}{' (their intervals overlap)' * bool(overlap)}."
    )


def roles_present(roles: pd.Series[str]) -> list[str]:
    """The families of roles that some heads have, in the order of all figures."""
    return [name for name in FAMILIES if name in set(roles)]


def role_text(role: str) -> str:
    """Returns the name of a family of roles as sentences and headings have it."""
    return "no role" if role == NONE else role
