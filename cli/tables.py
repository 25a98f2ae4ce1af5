"""The short tables that commands print."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    import pandas as pd


def classify_tables(tables: Mapping[str, pd.DataFrame], min_instances: int) -> list[Table]:
    """Roles by number of heads, and the best head of every relation and direction beside its baseline."""
    from headlens.report.console import summary_table
    from headlens.report.figures import best_heads
    from headlens.report.syntax import verdicts
    from headlens.roles.labels import role_family

    heads = tables["heads"]
    families = heads.assign(role=heads["role"].map(role_family))
    counts = families.pivot_table(index="role", columns="model", values="head", aggfunc="count", fill_value=0)
    counts = counts[list(heads["model"].unique())]
    rows = [{"role": str(role), **{str(m): int(n) for m, n in own.items()}} for role, own in counts.iterrows()]
    shown = [summary_table("Heads by their strongest role", sorted(rows, key=lambda r: str(r["role"]) == "none"))]
    if "syntax" in tables:
        for name, own in best_heads(tables["syntax"]).groupby("model", sort=False):
            best = [_best(r) for r in own.assign(verdict=verdicts(own, min_instances)).to_dict("records")]
            shown.append(summary_table(f"Best head of each relation, {name}", best))
    return shown


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
