"""From measures to labels (Voita et al. 2019, section 5; Clark et al. 2019, section 3)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from headlens.analyses.classify.options import Thresholds
from headlens.errors import counted
from headlens.heads import KEY_COLUMNS, HeadTable


def mark_syntactic(syntax: HeadTable, thresholds: Thresholds) -> HeadTable:
    """Add the columns `syntactic` and `significant` to the rows of syntax.csv.

    `significant` asks for `syntactic` and for p_holm < 0.05.
    """
    rows = syntax.rows
    enough = rows["n"] >= thresholds.min_instances
    # Counts are whole: that 0.2 + 0.1 is a little more than 0.3 must not decide about 3 of 10.
    above = rows["accuracy"] >= thresholds.syntactic(rows["baseline"].to_numpy()) - 1e-12
    syntactic = enough & above
    return HeadTable(rows.assign(syntactic=syntactic, significant=syntactic & (rows["p_holm"] < 0.05)))


def too_little_notes(sentences: int, tokens: int, thresholds: Thresholds) -> list[str]:
    """The note on a corpus of which too few sentences or tokens were read to give any head a role; none if enough."""
    if sentences >= thresholds.min_sentences and tokens >= thresholds.min_tokens:
        return []
    return [
        f"No roles are given: {counted(sentences, 'sentence')} with {counted(tokens, 'token')} were read, and roles "
        f"need {thresholds.min_sentences} with {thresholds.min_tokens}. Give more text, or lower --min-sentences and "
        "--min-tokens."
    ]


def label(heads: HeadTable, syntax: HeadTable | None, thresholds: Thresholds) -> HeadTable:
    """Add the columns `role` and `roles` to the rows of heads.csv.

    `roles` lists every role a head holds, strongest first; `role` is the first. Strength is the margin over the
    threshold as a share of the largest margin possible, (value - threshold) / (1 - threshold): thresholds of 0.9 and
    of 0.5 leave very different room, so plain differences would call nearly every positional head something else.

    Args:
        heads: with the columns of the metrics.
        syntax: with the column `syntactic`; None when there were no trees.
        thresholds: from where on.
    """
    # Labels with the margin by which a head deserves them: 0 at the threshold, 1 at the most that is possible.
    syntactic: dict[tuple[Any, ...], list[tuple[str, float]]] = {}
    for row in [] if syntax is None else syntax.rows[syntax.rows["syntactic"]].to_dict("records"):
        margin = _scaled(row["accuracy"], float(thresholds.syntactic(np.array(row["baseline"]))))
        name = f"syntactic({row['relation']} {row['direction']})"
        syntactic.setdefault(tuple(row[k] for k in KEY_COLUMNS), []).append((name, margin))
    roles = []
    for row in heads.rows.to_dict("records"):
        held = [*_roles(row, thresholds), *syntactic.get(tuple(row[k] for k in KEY_COLUMNS), [])]
        roles.append([name for name, _ in sorted(held, key=lambda role: -role[1])])
    return HeadTable(heads.rows.assign(role=[r[0] if r else "" for r in roles], roles=["; ".join(r) for r in roles]))


def _roles(row: Mapping[Any, Any], thresholds: Thresholds) -> Iterator[tuple[str, float]]:
    """Yields the roles that a row of heads.csv holds by its own numbers, each with its margin."""
    if row.get("tokens", math.inf) < thresholds.min_instances:
        return
    offset = row.get("positional_offset", math.nan)
    separators = [row.get("to_sep"), row.get("to_eos")]
    separator = max((v for v in separators if v is not None and not math.isnan(v)), default=math.nan)
    few = row.get("rare_words", math.inf) < thresholds.min_instances
    candidates = [
        ("positional" if math.isnan(offset) else f"positional({int(offset):+d})", row.get("positional_share")),
        ("self", row.get("self_share")),
        ("rare", None if few else row.get("rare_top1")),
        ("separator", separator),
        ("broad", row.get("entropy_norm")),
    ]
    limits = (thresholds.positional, thresholds.diagonal, thresholds.rare, thresholds.separator, thresholds.broad)
    for (name, value), threshold in zip(candidates, limits, strict=True):
        # "More than half" for rare words, "at least" for the shares; a NaN is never above.
        if value is not None and (value > threshold if name == "rare" else value >= threshold):
            yield name, _scaled(value, threshold)


def _scaled(value: float, threshold: float) -> float:
    return (value - threshold) / (1 - threshold) if threshold < 1 else 0.0


def role_family(role: str) -> str:
    """`syntactic` for `syntactic(nsubj dep->head)`; "none" for no role."""
    return role.partition("(")[0] or "none"


def count_families(heads: pd.DataFrame) -> pd.Series[int]:
    """How many heads have each role family as their strongest role."""
    return heads["role"].map(role_family).value_counts()
