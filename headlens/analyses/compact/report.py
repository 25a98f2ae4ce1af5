"""How runs of `headlens compact` are shown: size and speed before and after."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headlens.pages.command_report import CommandReport
from headlens.pages.formatting import number_text
from headlens.pages.page_tables import PageTable, interval_cell, number_cell, page_table
from headlens.runs.reading import RecordedRun, run_label, tables_of
from headlens.tables.every_table import TABLES

_SCALE = (0.5, 2.0)  # ends of the picture of an interval of speed-ups


INTERVALS = (
    "Intervals of times and speed-ups are 95 % over the rounds of this run, on this machine as busy as it was: other "
    "runs may differ by more."
)


def _overviews(runs: Sequence[RecordedRun]) -> list[PageTable]:
    records = [
        run_label(run, runs)
        | {k: row[k] for k in ("model", "state", "heads", "parameters")}
        | {
            "weights, MB": number_text(row["weight_bytes"] / 1e6),
            "s per batch": row["seconds_per_forward"],
            "speed-up": row["speedup"],
            "95 % interval": interval_cell((row["speedup_low"], row["speedup"], row["speedup_high"], 1.0), _SCALE),
            "theoretical speed-up": number_cell(float(row.get("theoretical_speedup", math.nan))),
        }
        for run, table in tables_of(runs, "compact")
        for row in table.to_dict("records")
    ]
    about = (
        "The original model, and the model without the heads. Times are per batch of sentences: geometric means of "
        "interleaved passes over the same batches on one machine (dot, line; tick: as fast as before). "
        f"{INTERVALS} The theoretical speed-up "
        "counts the operations of a forward pass over the middle batch, without the task head."
    )
    return [page_table("Size and speed", records, about)] if records else []


REPORT = CommandReport(
    "compact",
    tables=TABLES["compact"],
    needed=("compact",),
    overviews=_overviews,
)
