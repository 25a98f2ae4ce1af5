"""What came of learned masks, as Markdown: how sparse they are, what models achieve, and where attention is needed."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from headlens.pages.formatting import (
    DIFFERENCE,
    NOTHING,
    difference_text,
    escaped,
    markdown_lines,
    share_text,
    value_text,
)
from headlens.plots.curves import VALUES
from headlens.plots.head_grid import float_column

PLAIN, UNMASKED = "plain", "unmasked"
NO_DIAGONAL = "-no-diagonal"  # how the names of runs end that are controls of others
# A metric without the diagonal less that of the same run with it, paired by example.
DIAGONAL_DIFFERENCE = tuple(f"diagonal_{name}" for name in DIFFERENCE)
CLASSES = ("special", "diagonal", "neighbourhood", "rest")


def dam_markdown(sweep: pd.DataFrame, positions: pd.DataFrame) -> str:
    """Two tables: every mask with the share of masked positions and all metrics, and mean P by class of positions.

    Metrics of runs with a mask have the difference from the run without one, paired by example.

    Args:
        sweep: rows of `sweep.csv`.
        positions: rows of `positions.csv`.
    """
    parts = ["# Learned masks"]
    for (model, task), group in sweep.groupby(["model", "task"], sort=False):
        parts += ["", f"## {escaped(str(task))} by {escaped(str(model))} [95 % interval over examples]", ""]
        parts += markdown_lines(list(_runs(group)))
        if group["run"].str.endswith(NO_DIAGONAL).any():
            parts += ["", "With the diagonal and without it, as in the last table of Shi et al. (2021):", ""]
            parts += markdown_lines(list(_diagonals(group)))
    if len(positions):
        parts += ["", "## Where attention is needed: mean P of all heads (share of the positions that stay)", ""]
        parts += markdown_lines(list(_classes(positions)))
    return "\n".join(parts) + "\n"


def baseline_of(sweep: pd.DataFrame) -> str:
    """What runs with a mask are compared with: `unmasked`, or `plain` where the mask alone was trained."""
    return UNMASKED if (sweep["run"] == UNMASKED).any() else PLAIN


def _runs(rows: pd.DataFrame) -> Iterator[list[str]]:
    metrics = list(dict.fromkeys(rows["metric"]))
    minus = f"difference from {baseline_of(rows)} [paired]"
    names = ["masked, %", "masked in texts, %", *(name for metric in metrics for name in (escaped(str(metric)), minus))]
    yield ["run", *names]
    yield ["---", *("---:" for _ in names)]
    for run, group in rows.groupby("run", sort=False):
        masked = bool(group["penalty"].notna().any())
        shares = (float(group[name].iloc[0]) for name in ("sparsity", "sparsity_texts"))
        line = [escaped(str(run)), *(share_text(share) if masked else NOTHING for share in shares)]
        for metric in metrics:
            there = group[group["metric"] == metric]
            if there.empty:
                line += [NOTHING, NOTHING]
                continue
            values, difference = ([float(float_column(there, n)[0]) for n in own_] for own_ in (VALUES, DIFFERENCE))
            line += [value_text(*values), difference_text(*difference)]
        yield line


def _diagonals(rows: pd.DataFrame) -> Iterator[list[str]]:
    """A line for each λ: what is masked, and every metric, with the diagonal and without it."""
    metrics = list(dict.fromkeys(rows["metric"]))
    named = [(escaped(str(metric)), "without it", "difference from the mask with it [paired]") for metric in metrics]
    names = ["masked, %", "without it", *(name for parts in named for name in parts)]
    yield ["run", *names]
    yield ["---", *("---:" for _ in names)]
    by_run = {str(run): run_rows for run, run_rows in rows.groupby("run", sort=False)}
    for run, kept in by_run.items():
        dropped = by_run.get(run + NO_DIAGONAL)
        if dropped is None:
            continue
        line = [escaped(run), *(share_text(float(part["sparsity"].iloc[0])) for part in (kept, dropped))]
        for metric in metrics:
            one, other = (part[part["metric"] == metric] for part in (kept, dropped))
            line += [value_text(*(float(float_column(part, n)[0]) for n in VALUES)) for part in (one, other)]
            line.append(difference_text(*(float(float_column(other, n)[0]) for n in DIAGONAL_DIFFERENCE)))
        yield line


def _classes(positions: pd.DataFrame) -> Iterator[list[str]]:
    known = [name for name in CLASSES if (positions["class"] == name).any()]
    yield ["run", *known]
    yield ["---", *("---:" for _ in known)]
    means = positions.groupby(["mask", "class"], sort=False)[["p", "kept"]].mean()
    for mask in dict.fromkeys(positions["mask"]):
        cells = (means.loc[(mask, name)] if (mask, name) in means.index else None for name in known)
        yield [
            escaped(str(mask)),
            *(NOTHING if cell is None else f"{cell['p']:.3f} ({cell['kept']:.0%})" for cell in cells),
        ]
