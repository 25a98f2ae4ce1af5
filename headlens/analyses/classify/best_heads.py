"""The table of best heads, drawn."""

from __future__ import annotations

from typing import Literal, NamedTuple

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from headlens.analyses.classify.syntax_figure import best_heads, is_marked
from headlens.heads import Head
from headlens.plots.axis_labels import FAMILY, drawable_text
from headlens.plots.style import FAINT, INK, SMALLEST_SIZE, TICK_SIZE, fold, headline, new_figure, page_width

# inches
_EDGE, _ROW, _TOP, _FOOT = 0.1, 0.19, 0.42, 0.48


class _Column(NamedTuple):
    name: str
    width: float
    align: Literal["left", "center", "right"] = "left"


_KEYS = (_Column("relation", 0.68), _Column("direction", 0.78))
_VALUES = (
    _Column("best / baseline", 0.88, "center"),
    _Column("head", 0.72),
    _Column("n", 0.40, "right"),
    _Column("95% CI", 0.58, "right"),
    _Column("", 0.10),
)
_FOOTNOTE = (
    "Accuracy of the best head / of always choosing the commonest offset, in %. A star: above the baseline after "
    "correction for all heads, relations and directions. The best head was picked on the instances it is scored on."
)
_TOO_FEW = " A dagger, grey: fewer than {} instances, too few to call a head syntactic."
FEWEST = 30  # the default of --min-instances


def best_heads_table(syntax: pd.DataFrame, min_instances: int = FEWEST) -> Figure | None:
    """The best head of every relation and direction against the fixed-offset baseline; models side by side.

    After Voita et al. (2019), table 2.

    Args:
        syntax: rows of `syntax.csv`, of one model or several.
        min_instances: relations with fewer instances are marked: they give no head a role.

    Returns:
        The figure, or None when no head was scored.
    """
    best = best_heads(syntax)
    if best.empty:
        return None
    models = list(best["model"].drop_duplicates())
    lines = best[["relation", "direction"]].drop_duplicates().reset_index(drop=True)
    width = 2 * _EDGE + _span(_KEYS) + len(models) * _span(_VALUES)
    few = bool((best["n"] < min_instances).any())
    height = _TOP + (len(lines) + 2.3) * _ROW + _FOOT + (_ROW if few else 0.0)
    figure = new_figure(width, height)
    headline(figure, "Best head of every dependency relation")
    top = height - _TOP - _ROW / 2
    _write_line(figure, _KEYS, [c.name for c in _KEYS], (_EDGE, top - _ROW))
    for number, (relation, direction) in enumerate(lines.itertuples(index=False)):
        _write_line(figure, _KEYS, [relation, direction], (_EDGE, _line_height(top, number)))
    for number, model in enumerate(models):
        left = _EDGE + _span(_KEYS) + number * _span(_VALUES)
        _write_model(figure, best[best["model"] == model].assign(few=best["n"] < min_instances), lines, (left, top))
        span = left + 0.05, left + _span(_VALUES) - 0.10
        _rule(figure, top - 0.5 * _ROW, span, 0.5)
    whole = _EDGE / 2, width - _EDGE / 2
    _rule(figure, top + 0.6 * _ROW, whole, 0.9)
    _rule(figure, top - 1.6 * _ROW, whole, 0.5)
    _rule(figure, _line_height(top, len(lines) - 1) - 0.65 * _ROW, whole, 0.9)
    _footnote(figure, _FOOTNOTE + (_TOO_FEW.format(min_instances) if few else ""))
    if len(models) == 1:
        _shrink(figure, page_width())
    return figure


def _shrink(figure: Figure, width: float) -> None:
    """Make a table at most so wide, with smaller letters below its title; for one model they can still be read."""
    size = figure.get_size_inches()
    share = min(1.0, width / float(size[0]))
    if share < 1:
        figure.set_size_inches(*(share * size))
        for text in figure.texts[1:]:
            text.set_fontsize(share * float(text.get_fontsize()))


def _span(columns: tuple[_Column, ...]) -> float:
    return sum(c.width for c in columns)


def _line_height(top: float, number: int) -> float:
    return top - (number + 2.3) * _ROW


def _write_model(figure: Figure, best: pd.DataFrame, lines: pd.DataFrame, corner: tuple[float, float]) -> None:
    left, top = corner
    head = _Column("", _span(_VALUES), "center")
    _write_line(figure, (head,), [str(best["model"].iloc[0])], (left, top))
    _write_line(figure, _VALUES, [c.name for c in _VALUES], (left, top - _ROW))
    rows = lines.merge(best, on=["relation", "direction"], how="left")
    for number, row in rows.iterrows():
        if pd.notna(row["accuracy"]):
            colour = FAINT if row["few"] else INK
            _write_line(figure, _VALUES, _cells(row), (left, _line_height(top, int(str(number)))), colour)


def _cells(row: pd.Series) -> list[str]:
    star = "*" if is_marked(pd.Series([row["significant"]]))[0] else ""
    scores = f"{100 * row['accuracy']:.0f}{star} / {100 * row['baseline']:.0f}"
    head = Head(row["stack"], int(row["layer"]), int(row["head"]))
    count = f"{row['n']:.0f}{'†' if row['few'] else ''}"
    return [scores, str(head), count, f"{100 * row['ci_low']:.0f}–{100 * row['ci_high']:.0f}", ""]


def _write_line(
    figure: Figure, columns: tuple[_Column, ...], words: list[str], corner: tuple[float, float], colour: str = INK
) -> None:
    width, height = figure.get_size_inches()
    left, level = corner
    for column, word in zip(columns, words, strict=True):
        x = left + {"left": 0.0, "center": 0.5, "right": 1.0}[column.align] * column.width
        figure.text(
            x / width,
            level / height,
            drawable_text(word),
            ha=column.align,
            va="center",
            color=colour,
            fontsize=_size(word, column.width),
            fontfamily=FAMILY,
        )
        left += column.width


def _size(word: str, width: float) -> float:
    """The size of normal text, or less where a long name would leave its column."""
    return max(SMALLEST_SIZE, min(TICK_SIZE + 0.3, 72 * width / (0.56 * max(len(word), 1))))


def _rule(figure: Figure, level: float, span: tuple[float, float], thickness: float) -> None:
    width, height = figure.get_size_inches()
    ends = [span[0] / width, span[1] / width]
    figure.add_artist(Line2D(ends, [level / height] * 2, color=INK, linewidth=thickness))


def _footnote(figure: Figure, words: str) -> None:
    width, height = figure.get_size_inches()
    text = fold(words, width - 2 * _EDGE, TICK_SIZE)
    figure.text(_EDGE / width, 0.06 / height, text, fontsize=TICK_SIZE, color=INK, va="bottom")
