"""The short tables that commands print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    import pandas as pd


def classify_tables(tables: Mapping[str, pd.DataFrame]) -> list[Table]:
    """Roles by number of heads, and the best head of every relation and direction beside its baseline."""
    from headlens.report.console import summary_table
    from headlens.report.figures import best_heads
    from headlens.roles.labels import role_family

    heads = tables["heads"]
    families = heads.assign(role=heads["role"].map(role_family))
    counts = families.pivot_table(index="role", columns="model", values="head", aggfunc="count", fill_value=0)
    rows = [{"role": str(role), **{str(m): int(n) for m, n in own.items()}} for role, own in counts.iterrows()]
    shown = [summary_table("Heads by their strongest role", sorted(rows, key=lambda r: str(r["role"]) == "none"))]
    if "syntax" in tables:
        best = best_heads(tables["syntax"])
        shown.append(summary_table("Best head of each relation", [_best(r) for r in best.to_dict("records")]))
    return shown


def _best(row: Mapping[str, object]) -> dict[str, object]:
    return {
        "model": row["model"],
        "relation": row["relation"],
        "direction": row["direction"],
        "head": f"{row['stack']}.{row['layer']}.{row['head']}",
        "n": row["n"],
        "accuracy": row["accuracy"],
        "95 % interval": f"{row['ci_low']:.3f}-{row['ci_high']:.3f}",
        "baseline": row["baseline"],
        "syntactic": row["syntactic"],
        "significant": row["significant"],
    }
