"""How names, numbers and their intervals are written in tables, on pages and in Markdown."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from headlens.visible_text import visible_text

Floats = npt.NDArray[np.float64]
NOTHING = "–"
LARGE = 10_000  # numbers from here on are written in powers of ten
MOST_DIGITS = 6  # of float32, in which metrics are computed
_LEVEL = 0.05  # of significance
_FLOAT32 = 2.0**-23  # relative distance of two numbers
# Columns of the difference between a metric and that of the model that it is compared with.
DELTA = ("delta", "delta_low", "delta_high")
DIFFERENCE = (*DELTA, "p_value")
_UNSAFE = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]<>#|~&$"})
# Letters that LaTeX reads as commands, and those that its oldest engines lack.
_LATEX = str.maketrans({
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    "–": "--", "−": "$-$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "→": r"$\rightarrow$",
    "λ": r"$\lambda$", "μ": r"$\mu$", "×": r"$\times$", "\n": " ", "\t": " ",
})  # fmt: skip
# The sign of a number; a hyphen within a word or a range is none.
_MINUS = re.compile(r"(?<![^ \[(,])-(?=\d)")


def escaped(text: str) -> str:
    """Escapes text so that Markdown shows it as it stands, in one line."""
    return visible_text(" ".join(text.split())).translate(_UNSAFE)


def escaped_latex(text: str) -> str:
    """Escapes text so that LaTeX shows it as it stands; signs of negative numbers become minus signs."""
    return typeset(visible_text(text)).translate(_LATEX)


def typeset(text: str) -> str:
    """Returns text with arrows and with the minus signs of negative numbers, as print has them."""
    return _MINUS.sub("−", text.replace("->", "→"))


def slug(title: str) -> str:
    """Returns a title as a file name and a label: small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "table"


def shown_of(most: int, shown: int) -> str:
    """Returns how many rows a table has that shows at most so many of each model: `at most 10 of each, 8 in all`."""
    return f"at most {most} of each, {shown} in all"


def markdown_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a Markdown table, from the names, the alignments (`---:`) and the cells of every row."""
    return ["| " + " | ".join(row) + " |" for row in rows]


def markdown_notes(notes: Sequence[str]) -> str:
    """Returns the notes of a run as the last section of a Markdown document; nothing where there are none."""
    return "\n".join(["", "## Notes", "", *(f"- {escaped(note)}" for note in notes), ""]) if notes else ""


def digits_of(values: npt.ArrayLike, least: int = 3) -> int:
    """Returns with how many decimals numbers that are compared are written: two digits of their range are shown.

    Args:
        values: the numbers, of any shape; those that are not finite do not count.
        least: decimals of numbers that are equal, or differ by more; `MOST_DIGITS` are the most.
    """
    known = np.asarray(values, np.float64)
    known = known[np.isfinite(known)]
    spread = float(known.max()) - float(known.min()) if known.size else 0.0
    if spread < 10**-MOST_DIGITS or spread > 1:  # rounding, not a difference; or one that every form shows
        return least
    return max(least, min(MOST_DIGITS, 1 - math.floor(math.log10(spread))))


def compared_texts(*values: float) -> list[str]:
    """Formats numbers that a sentence compares, such as `4.85500` and `4.85530`: digits follow the difference."""
    large = max(map(abs, values), default=0.0) >= LARGE
    digits = digits_of(values, least=0 if large else 3)
    return [number_text(value, digits) for value in values]


def number_text(value: float, digits: int | None = None) -> str:
    """Formats a number with some decimals, by default three, or in powers of ten where those would not show it.

    Large numbers are written with four digits where no decimals are asked for.
    """
    if digits is None and abs(value) >= LARGE:
        return f"{value:.4g}"
    digits = 3 if digits is None else digits
    return f"{value:.1e}" if 0 < abs(value) < 0.5 * 10**-digits else unsigned(f"{value:.{digits}f}")


def value_text(value: float, low: float, high: float, *, digits: int = 3) -> str:
    """Formats a value with its interval, such as `0.846 [0.812, 0.871]`; a dash for NaN, no interval for NaN ends.

    `digits` are the fewest decimals: a narrow interval has more (`digits_of`).
    """
    if np.isnan(value):
        return NOTHING
    digits = digits_of((value, low, high), least=digits)
    text, *ends = (unsigned(f"{number:.{digits}f}") for number in (value, low, high))
    return text if np.isnan(low) or np.isnan(high) else f"{text} [{', '.join(ends)}]"


def difference_text(
    value: float, low: float, high: float, p_value: float, *, p_holm: float = math.nan, digits: int = 3
) -> str:
    """Formats a difference with its interval and p-value, such as `-0.44 [-0.98, 0.10], p 0.11`; a dash for NaN.

    Where `p_holm`, the p-value corrected for several comparisons, is known, it is shown instead of `p_value`.
    Where the interval leaves 0 out although the test is not significant, `deciding_text` follows.
    """
    if np.isnan(value):
        return NOTHING
    name, shown = ("p", p_value) if np.isnan(p_holm) else ("p (Holm)", p_holm)
    p_text = "" if np.isnan(shown) else f", {name} < 0.001" if shown < 0.001 else f", {name} {shown:.2g}"
    return value_text(value, low, high, digits=digits) + p_text + deciding_text(low, high, shown)


def deciding_text(low: float, high: float, p_value: float) -> str:
    """The words behind a p-value that contradicts the interval beside it; empty where they agree.

    Of few examples that change an exact test needs more than an interval does, and p-values may be corrected for other
    comparisons, as intervals are not: the verdict is that of the test.
    """
    return ", which decides on a change, not the interval" if low * high > 0 and p_value >= _LEVEL else ""


def without_noise(difference: float, size: float) -> float:
    """Returns 0 for a difference that is rounding: below what float32 holds of the numbers it is the difference of.

    Args:
        difference: of two numbers, or a mean of such differences.
        size: of these numbers.
    """
    return 0.0 if abs(difference) < _FLOAT32 * abs(size) else difference


def percent_texts(*shares: float) -> list[str]:
    """Formats shares that a sentence compares as whole per cent, such as `62%`; with decimals where two look alike.

    Shares that are the same, or not known, may look alike.
    """
    known = {round(share, MOST_DIGITS) for share in shares if math.isfinite(share)}
    digits = next(d for d in range(MOST_DIGITS - 1) if d == MOST_DIGITS - 2 or _apart(known, d))
    return [f"{share:.{digits}%}" for share in shares]


def _apart(shares: Collection[float], digits: int) -> bool:
    """Whether no two percentages with so many decimals look alike."""
    return len({f"{share:.{digits}%}" for share in shares}) == len(shares)


def share_text(share: float) -> str:
    """Formats a share from 0 to 1 as a percentage with one decimal, such as `70.4`; a dash for NaN."""
    return NOTHING if np.isnan(share) else f"{100 * share:.1f}"


def unsigned(number: str) -> str:
    """Removes the sign of a formatted number that was rounded to zero."""
    return number if number.strip("-0.") else number.lstrip("-")


def by_sign(
    values: Sequence[float] | Floats, *, above: str, below: str, mixed: str = "", equal: str = "", none: str = ""
) -> str:
    """Returns the words for the largest of some differences: a superlative follows their sign.

    Args:
        values: the differences that are shown or compared; NaN does not count.
        above: for values above 0.
        below: for values none of which is above 0.
        mixed: where some are above 0 and others not; by default as for `above`.
        equal: where all are 0, by default as for `below`.
        none: for no value.
    """
    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    if not known.size:
        return none
    if not known.any():
        return equal or below
    if known.max() <= 0:
        return below
    return above if known.min() > 0 else mixed or above


def markdown_table(left: Sequence[str], right: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a Markdown table, of the names of its columns of words and then of numbers."""
    return markdown_lines([[*left, *right], ["---"] * len(left) + ["---:"] * len(right), *rows])
