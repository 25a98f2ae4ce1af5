"""How runs of `headlens compact` are shown: size and speed before and after."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from headlens.pages.command_report import CommandReport
from headlens.pages.formatting import number_text
from headlens.pages.page_tables import PageTable, interval_cell, number_cell, page_table
from headlens.runs.reading import RecordedRun, labelled_rows
from headlens.tables.every_table import TABLES

_SCALE = (0.5, 2.0)  # ends of the picture of an interval of speed-ups


INTERVALS = (
    "Intervals of times and speed-ups are 95 % over the rounds of this run, on this machine as busy as it was: other "
    "runs may differ by more."
)


_TEXT = (
    "A decoder on text before and after: perplexity, loss in nats per token, its change with a 95 % interval paired by "
    "text, and by how much the keys and values that it keeps grow with a token."
)
_SHAPES = (
    "As many heads of the same ranking, in the shapes that they can be cut in, each with its heads at 0 and without "
    "rescaling; changes are those of the original."
)


def _overviews(runs: Sequence[RecordedRun]) -> list[PageTable]:
    records = [
        label
        | {k: row[k] for k in ("model", "state", "heads", "parameters")}
        | {
            "weights, MB": number_text(row["weight_bytes"] / 1e6),
            "s per batch": row["seconds_per_forward"],
            "speed-up": row["speedup"],
            "95 % interval": interval_cell((row["speedup_low"], row["speedup"], row["speedup_high"], 1.0), _SCALE),
            "theoretical speed-up": number_cell(float(row.get("theoretical_speedup", math.nan))),
        }
        for label, row in labelled_rows(runs, "compact")
    ]
    about = (
        "The original model, and the model without the heads. Times are per batch of sentences: geometric means of "
        "interleaved passes over the same batches on one machine, without the task head (dot, line; tick: as fast as "
        "before). "
        f"{INTERVALS} The theoretical speed-up "
        "counts the operations of such a pass over the middle batch."
    )
    tables = (
        page_table("Size and speed", records, about),
        page_table("Text", _texts(runs, "compact", "state"), _TEXT),
        page_table("Shapes", _texts(runs, "shapes", "shape"), _SHAPES),
    )
    return [table for table in tables if table.rows]


def _texts(runs: Sequence[RecordedRun], name: str, key: str) -> list[dict[str, Any]]:
    """Loss and perplexity of decoders, of every row of a table that has them."""
    return [
        label
        | {k: row[k] for k in ("model", key)}
        | {
            k: "" if math.isnan(row[k]) else number_text(row[k])
            for k in ("perplexity", "loss", "loss_delta", "loss_delta_low", "loss_delta_high")
        }
        | ({"cache, bytes per token": number_text(row["cache_bytes_per_token"], 0)} if key == "state" else {})
        for label, row in labelled_rows(runs, name)
        if "loss" in row
    ]


REPORT = CommandReport(
    "compact",
    tables=TABLES["compact"],
    needed=("compact",),
    overviews=_overviews,
)
