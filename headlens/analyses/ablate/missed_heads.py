"""What is told of heads that were not ablated, since attribution ranked others above them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from headlens.errors import counted
from headlens.findings.verdicts import tied
from headlens.pages.formatting import number_text
from headlens.plots.head_grid import float_column, head_name

SHARE = 4  # a head is in one of so many random subsets
CONFIDENCE = 0.95


def screening_facts(rows: pd.DataFrame, subsets: int) -> dict[str, Any]:
    """What run.json says of a screening.

    Args:
        rows: of ablation.csv, see `Screener.columns`.
        subsets: how many random subsets were ablated.
    """
    others = rows[~rows["confirmed"].astype(bool)]
    facts: dict[str, Any] = {"heads": len(rows), "confirmed": len(rows) - len(others)}
    if others.empty:
        return facts
    head, bound, effect, alike = largest_bound(others)
    facts |= {"subsets": subsets, "share": subsets // SHARE / subsets, "confidence": CONFIDENCE}
    return facts | {"bound": bound, "bound_head": head, "bound_heads": alike, "bound_head_effect": effect}


def largest_bound(others: pd.DataFrame) -> tuple[str, float | None, float | None, int]:
    """Returns the head with the largest bound, the bound and its estimated effect; None where these are not defined.

    The last number is that of heads with this bound and effect: those that were in the same subsets share an estimate,
    which is of all of them together.

    Args:
        others: rows of ablation.csv, of heads that were not ablated exactly.
    """
    bounds, effects = (float_column(others, name) for name in ("subset_bound", "subset_effect"))
    place = int(np.argmax(np.where(np.isnan(bounds), np.inf, bounds)))
    bound, effect = (float(numbers[place]) if np.isfinite(numbers[place]) else None for numbers in (bounds, effects))
    alike = int(((bounds == bounds[place]) & (effects == effects[place])).sum())
    return head_name(others.iloc[place]), bound, effect, alike


def screening_notes(facts: Mapping[str, Any], metric: str) -> list[str]:
    """How heads were screened, and what may have been missed.

    Args:
        facts: see `screening_facts`.
        metric: of the task.
    """
    heads, confirmed = facts["heads"], facts["confirmed"]
    notes = [
        "Attribution (minus the derivative of the loss of an example, a sum where it predicts several tokens, by a "
        f"head's gate) ranked {heads} heads, and the {confirmed} whose attribution is largest in size, "
        f"whatever its sign, were ablated. P-values are corrected for all {heads}, as attribution saw the same "
        "examples."
    ]
    if "subsets" in facts:
        others = counted(heads - confirmed, "other head")
        which = f"{facts['subsets']} random subsets of {others}, each head in a quarter of them"
        found = (
            f"{metric} is not defined without some of them, so that nothing bounds what was missed."
            if facts["bound"] is None
            else f"the largest change of {metric} without one of these heads is at most {number_text(facts['bound'])} "
            f"with {100 * CONFIDENCE:.0f} % confidence, the bound of {facts['bound_head']}{tied(facts['bound_heads'])} "
            f"(estimated change {number_text(facts['bound_head_effect'])}). This is Welch's one-sided test, as in the "
            "diagnostics of AtP* (Kramár et al. 2024); it takes effects of heads to add up: what a head does only "
            "while others are there, or only while they are gone, is not in it."
        )
        notes.append(f"{which}, were ablated together: {found}")
    return notes
