"""How names, numbers and their intervals are written in tables, on pages and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

NOTHING = "–"
# Columns of what a metric is more than that of a model that it is compared with.
DELTA = ("delta", "delta_low", "delta_high")
DIFFERENCE = (*DELTA, "p_value")
_UNSAFE = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]<>#|~"})


def escaped(text: str) -> str:
    """Text that Markdown shows as it stands, in one line."""
    return " ".join(text.split()).translate(_UNSAFE)


def markdown_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table, of the names, the alignments (`---:`) and the cells of every row."""
    return ["| " + " | ".join(row) + " |" for row in rows]


def value_text(value: float, low: float, high: float, *, digits: int = 3) -> str:
    """Formats a value with its interval, such as `0.846 [0.812, 0.871]`; a dash for NaN, no interval for NaN ends."""
    if np.isnan(value):
        return NOTHING
    shown, *ends = (unsigned(f"{number:.{digits}f}") for number in (value, low, high))
    return shown if np.isnan(low) or np.isnan(high) else f"{shown} [{', '.join(ends)}]"


def difference_text(value: float, low: float, high: float, p_value: float, *, digits: int = 3) -> str:
    """What something has more than something else, with its p-value: `-0.44 [-0.98, 0.10], p 0.11`."""
    if np.isnan(value):
        return NOTHING
    p_text = "" if np.isnan(p_value) else ", p < 0.001" if p_value < 0.001 else f", p {p_value:.2g}"
    return value_text(value, low, high, digits=digits) + p_text


def share_text(share: float) -> str:
    """Formats a share from 0 to 1 as a percentage with one decimal, such as `70.4`; a dash for NaN."""
    return NOTHING if np.isnan(share) else f"{100 * share:.1f}"


def unsigned(number: str) -> str:
    """A formatted number; what was rounded to zero has no sign."""
    return number if number.strip("-0.") else number.lstrip("-")
