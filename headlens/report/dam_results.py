"""What came of learned masks, as Markdown: how sparse they are, what models achieve, and where attention is needed."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from headlens.report.curves import VALUES
from headlens.report.gate_results import escaped
from headlens.report.mask_study import grid, value_text
from headlens.report.panels import numbers

CLASSES = ("special", "diagonal", "neighbourhood", "rest")


def dam_markdown(sweep: pd.DataFrame, positions: pd.DataFrame) -> str:
    """Two tables: every mask with the share of masked positions and all metrics, and mean P by class of positions.

    Args:
        sweep: rows of `sweep.csv`.
        positions: rows of `positions.csv`.
    """
    parts = ["# Learned masks"]
    for (model, task), own in sweep.groupby(["model", "task"], sort=False):
        parts += ["", f"## {escaped(str(task))} by {escaped(str(model))} [95 % interval over examples]", ""]
        parts += grid(list(_runs(own)))
    if len(positions):
        parts += ["", "## Where attention is needed: mean P of all heads (share of the positions that stay)", ""]
        parts += grid(list(_classes(positions)))
    return "\n".join(parts) + "\n"


def _runs(rows: pd.DataFrame) -> Iterator[list[str]]:
    metrics = list(dict.fromkeys(rows["metric"]))
    yield ["run", "masked, %", *metrics]
    yield ["---", *("---:" for _ in range(1 + len(metrics)))]
    for run, own in rows.groupby("run", sort=False):
        masked = own["penalty"].notna().any()
        line = [str(run), f"{100 * float(own['sparsity'].iloc[0]):.1f}" if masked else "–"]
        for metric in metrics:
            there = own[own["metric"] == metric]
            line.append(value_text(*(float(numbers(there, name)[0]) for name in VALUES)) if len(there) else "–")
        yield line


def _classes(positions: pd.DataFrame) -> Iterator[list[str]]:
    known = [name for name in CLASSES if (positions["class"] == name).any()]
    yield ["run", *known]
    yield ["---", *("---:" for _ in known)]
    means = positions.groupby(["mask", "class"], sort=False)[["p", "kept"]].mean()
    for mask in dict.fromkeys(positions["mask"]):
        cells = (means.loc[(mask, name)] if (mask, name) in means.index else None for name in known)
        yield [str(mask), *("–" if own is None else f"{own['p']:.3f} ({own['kept']:.0%})" for own in cells)]
