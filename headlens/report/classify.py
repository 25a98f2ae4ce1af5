"""The figures of `headlens classify`, from the tables it wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandas as pd
from matplotlib.figure import Figure

from headlens.report import figures as draw
from headlens.report.runs import RunFolder


def classify_figures(tables: Mapping[str, pd.DataFrame]) -> Iterator[tuple[str, Figure | None]]:
    """Draw every figure one after the other, so that only one is in memory.

    Args:
        tables: `heads`, `positions` and as far as there `syntax`, `similarity`: rows of the CSV files, of one model or
            two.

    Yields:
        Name of the figure, and the figure; None where there is nothing to draw.
    """
    heads = tables["heads"]
    by_model = {str(name): rows for name, rows in heads.groupby("model", sort=False)}
    yield "confidence", draw.confidence_map(by_model)
    yield "functions", draw.function_map(by_model)
    yield "positions", draw.positional_map(heads)
    yield "offsets", draw.offset_profile(tables["positions"])
    if "syntax" in tables:
        yield "best_heads", draw.best_heads_table(tables["syntax"])
        for name, rows in tables["syntax"].groupby("model", sort=False):
            suffix = "" if len(by_model) == 1 else f"_{list(by_model).index(str(name)) + 1}"
            yield f"syntax{suffix}", draw.syntactic_map(rows)
    yield "mass", draw.mass_bars(heads)
    yield "entropy", draw.entropy_map(heads)
    yield "rare", draw.rare_map(heads)
    if "similarity" in tables:
        yield "similarity", draw.similarity_map(tables["similarity"], heads)


def write_classification(run: RunFolder, tables: Mapping[str, pd.DataFrame], *, figures: bool = True) -> None:
    """Write every table as CSV, then, if wanted, every figure as PNG and SVG."""
    for name, frame in tables.items():
        run.table(name, frame)
    for name, figure in classify_figures(tables) if figures else ():
        run.figure(name, figure)
