"""From measures to labels (Voita et al. 2019, section 5; Clark et al. 2019, section 3)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from headlens.analyses.classify.options import Thresholds
from headlens.heads import KEY_COLUMNS, HeadTable


class Role(NamedTuple):
    """A label and by how much the head deserves it: 0 at the threshold, 1 at the most that is possible."""

    label: str
    margin: float


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
    syntactic: dict[tuple[Any, ...], list[Role]] = {}
    if syntax is not None:
        for relation in syntax.rows[syntax.rows["syntactic"]].to_dict("records"):
            role = Role(
                f"syntactic({relation['relation']} {relation['direction']})", _syntactic_margin(relation, thresholds)
            )
            syntactic.setdefault(tuple(relation[k] for k in KEY_COLUMNS), []).append(role)
    roles = []
    for row in heads.rows.to_dict("records"):
        candidates = [*_roles(row, thresholds), *syntactic.get(tuple(row[k] for k in KEY_COLUMNS), [])]
        roles.append([r.label for r in sorted(candidates, key=lambda r: -r.margin)])
    return HeadTable(heads.rows.assign(role=[r[0] if r else "" for r in roles], roles=["; ".join(r) for r in roles]))


def _roles(row: Mapping[Any, Any], thresholds: Thresholds) -> Iterator[Role]:
    separators = [row.get("to_sep"), row.get("to_eos")]
    separator = max((v for v in separators if v is not None and not math.isnan(v)), default=math.nan)
    candidates = [
        (_positional_label(row), row.get("positional_share"), thresholds.positional),
        ("self", row.get("self_share"), thresholds.diagonal),
        ("rare", row.get("rare_top1"), thresholds.rare),
        ("separator", separator, thresholds.separator),
        ("broad", row.get("entropy_norm"), thresholds.broad),
    ]
    few = {"rare": row.get("rare_words", math.inf) < thresholds.min_instances}
    too_short = row.get("tokens", math.inf) < thresholds.min_instances
    for name, value, threshold in candidates:
        if too_short or few.get(name, False):
            continue
        # "More than half" for rare words, "at least" for the shares; a NaN is never above.
        if value is not None and (value > threshold if name == "rare" else value >= threshold):
            yield Role(name, _scaled(value, threshold))


def _positional_label(row: Mapping[Any, Any]) -> str:
    offset = row.get("positional_offset", math.nan)
    return "positional" if math.isnan(offset) else f"positional({int(offset):+d})"


def _syntactic_margin(row: Mapping[Any, Any], thresholds: Thresholds) -> float:
    return _scaled(row["accuracy"], float(thresholds.syntactic(np.array(row["baseline"]))))


def _scaled(value: float, threshold: float) -> float:
    return (value - threshold) / (1 - threshold) if threshold < 1 else 0.0


def role_family(role: str) -> str:
    """`syntactic` for `syntactic(nsubj dep->head)`; "none" for no role."""
    return role.partition("(")[0] or "none"


def count_families(heads: pd.DataFrame) -> pd.Series[int]:
    """How many heads have each role family as their strongest role."""
    return heads["role"].map(role_family).value_counts()
