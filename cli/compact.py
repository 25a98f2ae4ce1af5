"""`headlens compact`: a smaller model without some of its heads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .command import analysis
from .next_steps import next_step
from .screen import Screen

if TYPE_CHECKING:
    import pandas as pd


def _with_interval(value: float, low: float, high: float, form: str) -> str:
    """Formats a number with its interval, or without one where there were too few rounds."""
    text = format(value, form)
    return text if math.isnan(low) else f"{text} ({low:{form}} to {high:{form}})"


def _of_text(row: Mapping[Any, Any], name: str) -> dict[str, str]:
    """Loss and perplexity of a row, under its name."""
    from headlens.pages.formatting import digits_of

    delta, low, high = (row[key] for key in ("loss_delta", "loss_delta_low", "loss_delta_high"))
    digits = digits_of((0.0, delta, low, high))
    return {
        name: row[name],
        "perplexity": _with_interval(row["perplexity"], row["perplexity_low"], row["perplexity_high"], ".3f"),
        "loss": _with_interval(row["loss"], row["loss_low"], row["loss_high"], ".3f"),
        "change of the loss": "" if math.isnan(delta) else _with_interval(delta, low, high, f"+.{digits}f"),
    }


def _of_decoder(row: Mapping[Any, Any]) -> dict[str, str]:
    kept = row["cache_bytes_per_token"]
    text = _of_text(row, "state") if "loss" in row else {"state": row["state"]}
    return text | {
        "tokens/s": f"{row['tokens_per_second']:,.0f}",
        "cache, bytes/token": "" if math.isnan(kept) else f"{kept:,.0f}",
    }


@analysis("Models")
def compact(run: Any, request: Any, screen: Screen) -> str:
    """Cut attention heads out of a model: a smaller, faster checkpoint, equal to the model with these heads at 0.

    Example: headlens compact demo --heads encoder.3.1,encoder.4.0 --out small
    """
    from headlens.errors import counted
    from headlens.pages.formatting import digits_of

    table: pd.DataFrame = run.table
    rows, digits = [], digits_of(table["weight_bytes"] / 1e6, least=1)
    for row in table.to_dict("records"):
        mean, low, high = (1000 * row[name] for name in ("seconds_per_forward", "ci_low", "ci_high"))
        gain = _with_interval(row["speedup"], row["speedup_low"], row["speedup_high"], ".2f")
        rows.append(
            {
                "state": row["state"],
                "heads": row["heads"],
                "parameters": f"{row['parameters']:,}",
                "MB": f"{row['weight_bytes'] / 1e6:.{digits}f}",
                "ms per batch": _with_interval(mean, low, high, ".1f"),
                "speed-up": "" if row["state"] == "original" else gain,
                "theoretical": "" if row["state"] == "original" else f"{row['theoretical_speedup']:.2f}",
            }
        )
    screen.table(f"{table['model'].iloc[0]} before and after", rows)
    if table["cache_bytes_per_token"].notna().any() or "loss" in table:
        first = "the first " * (request.corpus_options.limit == run.corpus.sentences)
        half = "every other one of " * request.rescale  # the rest is what factors were fitted to
        where = f"{half}{first}{counted(run.corpus.sentences, 'sentence')} of {run.corpus.name}"
        screen.table(f"As a decoder, on {where}", [_of_decoder(row) for row in table.to_dict("records")])
    if "shapes" in run.tables:
        shapes = run.tables["shapes"].to_dict("records")
        screen.table("Shapes, with the heads at 0", [_of_text(row, "shape") for row in shapes])
    rescaled = " and what is left of their layers rescaled alike" * request.rescale
    screen.notes([f"Self-check against the model with these heads at 0{rescaled}: {run.difference}."])
    return next_step("classify", request, str(run.folder))
