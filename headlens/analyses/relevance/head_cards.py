"""What `headlens relevance` tells about single heads, and about all of them in a sentence."""

from __future__ import annotations

import numpy as np
import pandas as pd

from headlens.analyses.relevance.shares import even_shares, of_rule, requested_rule, rules_of_table
from headlens.heads import Head
from headlens.pages.head_cards import HeadFacts, HeadSeries
from headlens.pages.page_tables import number_text
from headlens.plots.head_grid import by_model_and_stack, float_column
from headlens.runs.reading import RecordedRun


def relevance_series(relevance: pd.DataFrame) -> list[HeadSeries]:
    """Returns the shares of relevance by head, a series of the page for every rule."""
    about = "Share of what its layer contributes to the output that was asked about; the shares of a layer add up to 1."
    return [
        HeadSeries(
            f"relevance {rule}",
            f"relevance ({rule})",
            about,
            of_rule(relevance, rule),
            "relevance",
            ("ci_low", "ci_high"),
            diverging=True,
        )
        for rule in rules_of_table(relevance)
    ]


def relevance_heads(run: RecordedRun) -> HeadFacts:
    """Relevance under every rule."""
    return HeadFacts(relevance_series(run.tables["relevance"])) if "relevance" in run.tables else HeadFacts()


def relevance_findings(run: RecordedRun) -> list[str]:
    """The head with the largest share of its layer."""
    if "relevance" not in run.tables:
        return []
    rule, rows = requested_rule(run.tables["relevance"])
    found = []
    for part in by_model_and_stack(rows):
        values = float_column(part.rows, "relevance")
        if not np.isfinite(values).any():
            continue
        place = int(np.nanargmax(values))
        best = part.rows.iloc[place]
        head = Head(best["stack"], int(best["layer"]), int(best["head"]))
        low, high = (number_text(float(best[name])) for name in ("ci_low", "ci_high"))
        found.append(
            f"{part.name}: {head} has the largest share of its layer's relevance (rule {rule}): "
            f"{number_text(values[place])} [{low}, {high}]; an even share is "
            f"{number_text(float(even_shares(part.rows)[place]))}."
        )
    return found
