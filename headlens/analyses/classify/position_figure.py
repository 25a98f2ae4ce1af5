"""Where heads point, relative to the token they read from, and where the other word of a dependency relation stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.plots import head_grid, style
from headlens.plots.axis_labels import font_family
from headlens.plots.cell_drawing import BAR_SLOT, Scale, bar_beside, colour_cells, write
from headlens.plots.curves import legend_below, range_text
from headlens.plots.style import BLUE, INK, MISSING, PALE_BLUE, TICK_SIZE, VERMILION
from headlens.roles.even_attention import ROUNDING, even_note, even_stacks
from headlens.roles.syntax_verdicts import CAUSAL, mostly_later
from headlens.tables.classify_tables import REACH, offsets_to

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OFFSETS = offsets_to(REACH)
_TALLEST, _WORDS = 7.0, 0.8  # inches of the offset profile's columns, and of the words around all panels
_LINE = 0.15  # inches: of a legend
_NAMES = 0.30  # inches for the numbers of heads and of layers, beside a profile
_HEAD_SIZE = 5.0  # points
_TELL_LITTLE = "offsets tell little"
_UNDER = 2  # lines of a profile for uniform attention
MOST = 12  # relations
_UP = "dep->head"
_FARTHEST = 8
_SLOT, _PANEL = 1.6, 1.25  # inches: width and height of a panel of a relation
_TOP, _ABOVE = 1.28, 1.15  # of the axis of shares, and where the numbers stand
_BEST: dict[str, Any] = {"color": VERMILION, "linewidth": 1.0, "linestyle": (0, (4, 2)), "zorder": 3}
_LATER = len(OFFSETS) // 2 + 1  # the first of the offsets to the right
# What a causal head cannot see is not 0.
_UNSEEN: dict[str, Any] = {"facecolor": "none", "edgecolor": MISSING, "hatch": "....", "linewidth": 0, "zorder": 0}
_HATCHED: dict[str, Any] = {"hatch": "//////", "edgecolor": "white", "linewidth": 0}


def positional_map(heads: pd.DataFrame) -> Figure | None:
    """The share of tokens at every head's most frequent offset, 0 among them, with that offset in the cell.

    Args:
        heads: rows of `heads.csv`, of one model or several.

    Returns:
        The figure, or None when nothing was measured.
    """
    if not head_grid.has_numbers(heads, "positional_share"):
        return None
    pieces = head_grid.by_model_and_stack(heads)
    # A column of its own says how many look at themselves: that is the most frequent offset of many heads.
    columns = ("positional_share", "self_share")
    shares, uniform = (
        [np.fmax(*(head_grid.float_column(p.rows, f"{name}{kind}") for name in columns)) for p in pieces]
        for kind in ("", "_null")
    )
    levels = [f"\n(uniform attention {text})" if (text := range_text(u, ".3f")) else "" for u in uniform]
    scale = Scale("share of tokens at that offset")
    panels = [
        (p.model, head_grid.panel(p.rows, share, p.name + level, scale))
        for p, share, level in zip(pieces, shares, levels, strict=True)
    ]
    rows = head_grid.flow(panels)
    title = "Most frequent offset of the most attended token, special tokens left out"
    title += even_note(even_stacks(heads), _TELL_LITTLE)
    sheet = head_grid.head_grid_figure(rows, title)
    # cells of a column are too narrow for more than a sign and a digit
    letters = 2 if style.in_column() else 5
    ink = np.vectorize(scale.ink, otypes=[object])
    for (axes, item), part in zip(head_grid.each(sheet, rows), pieces, strict=True):
        itself = head_grid.float_column(part.rows, "self_share") > head_grid.float_column(part.rows, "positional_share")
        offsets = np.where(itself, 0.0, head_grid.float_column(part.rows, "positional_offset"))
        signed = ["" if np.isnan(v) else f"{v:+.0f}".replace("-", "−") if v else "0" for v in offsets]
        words = head_grid.scatter_grid(part.rows, np.array(signed, object), empty="")
        write(axes, words, ink(item.values), sheet.cell, letters)
    return sheet.figure


def offset_profile(positions: pd.DataFrame, even: Sequence[tuple[str, str]] = ()) -> Figure | None:
    """The whole histogram of offsets of every head: one line per head, layer 0 at the bottom.

    Uniform attention is below, where it is the same in all layers. Numbers beside the lines are those of the heads, as
    many as can be read; outside of them, the layer. What causal heads cannot see is dotted.

    Args:
        positions: rows of `positions.csv`, of one model or several.
        even: stacks whose offsets tell little, see `headlens.roles.even_attention.even_stacks`.

    Returns:
        The figure, or None when nothing was measured.
    """
    if not head_grid.has_numbers(positions, "share"):
        return None
    pieces = [p for p in head_grid.by_model_and_stack(positions) if head_grid.has_numbers(p.rows, "share")]
    scale = Scale("share of query tokens")
    tables = [histogram(part) for part in pieces]
    below, abreast = (len(pieces), 1) if style.in_column() else (1, len(pieces))
    length = float(np.clip(0.12 * max(len(table) + _UNDER for table in tables), 1.6, max(1.6, _TALLEST / below)))
    width = BAR_SLOT + min(3.2 * abreast, style.page_width() - BAR_SLOT)
    causal = [
        part.stack == CAUSAL and not table.iloc[:, _LATER:].any(axis=None)
        for part, table in zip(pieces, tables, strict=True)
    ]
    title = "Offsets of attention heads, special tokens left out"
    title += "\n(dotted: later tokens, which causal heads cannot see)" * any(causal)
    title += even_note(even, _TELL_LITTLE)
    figure = style.constrained_figure(width, 0.3 + (length + _WORDS) * below, title)
    grid = figure.subplots(below, abreast, squeeze=False)
    for axes, part, table, unseen in zip(grid.flat, pieces, tables, causal, strict=True):
        uniform = _uniform_offsets(part)
        if unseen:
            table.iloc[:, _LATER:] = np.nan
        _profile(axes, table, uniform, scale, length)
        if unseen:
            axes.axvspan(_LATER, len(OFFSETS), **_UNSEEN | {"facecolor": "white", "zorder": 2})
        style.heading(axes, part.name, (width - BAR_SLOT) / abreast - 0.6)
    bar_beside(figure, scale, grid, (length + _WORDS) * below)
    return figure


def _uniform_offsets(part: head_grid.StackRows) -> npt.NDArray[np.float64] | None:
    """Shares of uniform attention by offset; None where they are unknown, or not the same in all layers."""
    if "share_null" not in part.rows:
        return None
    shares = histogram(part, "share_null")
    differ = (shares.max() - shares.min()).max() > ROUNDING
    return None if differ else shares.mean().to_numpy()


def histogram(part: head_grid.StackRows, column: str = "share") -> pd.DataFrame:
    """Shares of a part's heads: a row for each, from layer 0 upwards, and a column for each of `OFFSETS`."""
    # A file gives text, a table in memory perhaps numbers.
    offsets = [str(int(o)) if isinstance(o, int | float | np.number) else str(o).strip() for o in part.rows["offset"]]
    rows = part.rows[["layer", "head"]].assign(offset=offsets, share=head_grid.float_column(part.rows, column))
    # A pivot_table would leave out heads without any share.
    return rows.pivot(index=["layer", "head"], columns="offset", values="share").reindex(columns=list(OFFSETS))  # noqa: PD010


def _profile(
    axes: Axes, table: pd.DataFrame, even: npt.NDArray[np.float64] | None, scale: Scale, length: float
) -> None:
    """Draws the heads of a histogram as lines, and uniform attention below, in axes about so many inches high."""
    lines = table.index.to_frame(index=False)
    style.dress(axes, "offset of the\nmost attended token", "layer and head")
    below = [] if even is None else [even] * _UNDER
    under = len(below)
    colour_cells(axes, np.vstack([*below, table]), scale)
    axes.set_xticks([0.5, 5.5, 9.5, 13.5, 18.5], ["<−8", "−4", "0", "+4", ">8"])
    layers = lines["layer"].to_numpy()
    starts = np.flatnonzero(np.diff(layers, prepend=-1))
    middles = (starts + np.append(starts[1:], len(layers))) / 2
    axes.hlines(starts[1:] + under, 0, len(OFFSETS), colors="white", linewidth=0.8)
    axes.hlines([under] * (under > 0), 0, len(OFFSETS), colors="white", linewidth=3)
    step = -(-len(starts) // 40)
    names = [str(layers[i]) for i in starts[::step]]
    axes.set_yticks([*[under / 2] * (under > 0), *middles[::step] + under], ["uniform"] * (under > 0) + names)
    axes.tick_params(axis="y", which="major", pad=72 * _NAMES / 2, length=0)
    axes.yaxis.labelpad = 5
    # The heads of every layer are numbered on the minor axis, in steps that leave room.
    line, room = length / len(lines), 1.25 * _HEAD_SIZE / 72
    step = style.tick_step(line, room)
    left = lines.groupby("layer")["head"].transform("size") - lines.groupby("layer").cumcount()
    # the last number of a layer must not touch the first one of the next
    shown = lines[(lines["head"] % step == 0) & (left * line >= room)]
    # the number of a layer stands beside one of a head; matplotlib would leave the latter out
    axes.yaxis.remove_overlapping_locs = False
    axes.set_yticks(shown.index.to_numpy() + under + 0.5, shown["head"].astype(str).to_list(), minor=True)
    axes.tick_params(axis="y", which="minor", labelsize=_HEAD_SIZE, length=1.5, width=0.4, pad=1, labelcolor=INK)


def relation_offset_figures(
    offsets: pd.DataFrame, syntax: pd.DataFrame, even: Sequence[tuple[str, str]] = ()
) -> Iterator[tuple[str, Figure | None]]:
    """Draws the relations of every stack with the best heads of one model: others read the same trees.

    That is the first model whose heads do not attend evenly, or the first one of all.

    Args:
        offsets: rows of `relation_offsets.csv`, of one model or several.
        syntax: rows of `syntax.csv`; without any there are neither baselines from elsewhere nor best heads.
        even: stacks without a best head, see `headlens.roles.even_attention.even_stacks`.

    Yields:
        Name of the figure, with the stack where there are several, and the figure; None where there is no relation.
    """
    models: dict[str, list[head_grid.StackRows]] = {}
    for part in head_grid.by_model_and_stack(offsets):
        models.setdefault(part.stack, []).append(part)
    for stack, parts in models.items():
        part = next((part for part in parts if (part.model, stack) not in even), parts[0])
        scored = syntax[(syntax["model"] == part.model) & (syntax["stack"] == stack)] if len(syntax) else syntax
        note = even_note([key for key in even if key == (part.model, stack)]).strip()
        if len(parts) > 1:
            note = f"{note or part.name}; of {len(parts)} models, the heads of one are shown"
        yield (
            "relation_offsets" if len(models) == 1 else f"relation_offsets_{stack}",
            relation_offsets(part, scored, note),
        )


def relation_offsets(part: head_grid.StackRows, syntax: pd.DataFrame, note: str = "") -> Figure | None:
    """How far the head of a dependent stands from it, for the relations with the most instances; a panel each.

    After Voita et al. (2019), section 5.2: syntactic heads are compared with the most frequent relative position. That
    bar is dark and has its number, the accuracy of the best head is a dashed line. Where causal heads cannot look is
    dotted, and no head is named that has nothing right since the governors stand there.

    Args:
        part: rows of `relation_offsets.csv` of one model and stack.
        syntax: rows of `syntax.csv` of the same; its baseline counts, which may come from another corpus.
        note: line of the title that stands for the name of model and stack.

    Returns:
        The figure, or None where there is no relation.
    """
    rows = part.rows[part.rows["direction"] == _UP]
    counts = rows.assign(n=head_grid.float_column(rows, "n")).groupby("relation", sort=False)["n"].sum()
    names = counts.sort_values(ascending=False, kind="stable").head(MOST).index
    if not len(names):
        return None
    width = style.page_width()
    abreast = min(len(names), int(width // _SLOT))
    lines = -(-len(names) // abreast)
    part_of = f" (the {len(names)} of {len(counts)} with most instances)" * (len(names) < len(counts))
    title = f"Position of the governor relative to its dependent, by relation{part_of}\n{note or part.name}"
    words = _WORDS + _LINE * (part.stack == CAUSAL)
    figure = style.constrained_figure(width, words + _PANEL * lines, title)
    grid = figure.subplots(lines, abreast, squeeze=False, sharex=True, sharey=True)
    for axes in grid.flat[len(names) :]:
        axes.remove()
    distance = style.fold("distance to the governor, in words", width / abreast - 0.3, style.LABEL_SIZE)
    for place, (axes, name) in enumerate(zip(grid.flat, names, strict=False)):
        scored = syntax[(syntax["relation"] == name) & (syntax["direction"] == _UP)] if len(syntax) else syntax
        shares = shares_by_offset(rows[rows["relation"] == name])
        is_first, is_last = place % abreast == 0, place + abreast >= len(names)
        style.dress(axes, distance * is_last, "share of cases" * is_first)
        axes.tick_params(labelbottom=is_last)
        if part.stack == CAUSAL:
            # Numbers stand above.
            axes.axvspan(0.5, _FARTHEST + 1.6, 0, 1 / _TOP, label="later words, unseen by causal heads", **_UNSEEN)
        _draw(axes, shares, scored)
        style.heading(axes, f"{name} (n = {counts[name]:,.0f})", width / abreast - 0.3)
    legend_below(figure, list(figure.axes), 1 if abreast > 2 else 3)
    return figure


def shares_by_offset(rows: pd.DataFrame) -> dict[int, float]:
    """Shares of the cases of a relation and direction by offset, of which those beyond 8 count with it as -9 and 9."""
    shares = dict.fromkeys(range(-_FARTHEST - 1, _FARTHEST + 2), 0.0)
    for offset, share in zip(rows["offset"], head_grid.float_column(rows, "share"), strict=True):
        number = int(str(offset).strip().strip("<>"))
        shares[int(np.clip(number, -_FARTHEST - 1, _FARTHEST + 1))] += share
    return shares


def fixed_offset(shares: Mapping[int, float], scored: pd.DataFrame) -> tuple[int, float]:
    """Returns the offset that the baseline chooses, and the share of cases it has right.

    Args:
        shares: by offset, for tables without syntax: the nearer one, then the left one, of equal ones.
        scored: rows of `syntax.csv` of one relation and direction.
    """
    known = scored[np.isfinite(head_grid.float_column(scored, "baseline_offset"))] if len(scored) else scored
    if len(known):
        return int(known["baseline_offset"].iloc[0]), float(known["baseline"].iloc[0])
    inner = {offset: share for offset, share in shares.items() if abs(offset) <= _FARTHEST}
    best = max(inner, key=lambda offset: (inner[offset], -abs(offset), -offset))
    return best, inner[best]


def _draw(axes: Axes, shares: Mapping[int, float], scored: pd.DataFrame) -> None:
    from matplotlib.ticker import PercentFormatter

    offset, baseline = fixed_offset(shares, scored)
    # The baseline's bar, which may be one of the farther ones, is a part of the column at the end.
    place = int(np.clip(offset, -_FARTHEST - 1, _FARTHEST + 1))
    # The first one stands in the legend; those at the ends are many offsets together, which no baseline could choose.
    first = sorted(shares, key=abs)
    near: dict[str, Any] = {"label": "governor at this offset"}
    far = {"label": f"farther than {_FARTHEST} words", **_HATCHED}
    for places, drawn in ((first[:-2], near), (first[-2:], far)):
        axes.bar(places, [shares[at] for at in places], 0.8, color=PALE_BLUE, **drawn)
    axes.bar([place], [baseline], 0.8, color=BLUE, label="baseline: always predict this offset")
    # Above all bars and lines, in their colours.
    looks: dict[str, Any] = {"fontsize": TICK_SIZE - 0.5, "fontfamily": font_family(), "va": "center"}
    axes.text(-_FARTHEST - 1.3, _ABOVE, f"{offset:+d}: {baseline:.0%}".replace("-", "−"), color=BLUE, **looks)
    accuracy = head_grid.float_column(scored, "accuracy")
    if np.isfinite(accuracy).any() and (np.nanmax(accuracy) > 0 or not mostly_later(scored).any()):
        best = scored.iloc[int(np.nanargmax(accuracy))]
        label = f"{int(best['layer'])}.{int(best['head'])}: {best['accuracy']:.0%}"
        axes.text(_FARTHEST + 1.3, _ABOVE, label, color=VERMILION, ha="right", **looks)
        axes.axhline(
            float(best["accuracy"]), label="accuracy of the best head (layer.head), dependent to governor", **_BEST
        )
    axes.set_xlim(-_FARTHEST - 1.6, _FARTHEST + 1.6)
    axes.set_ylim(0, _TOP)
    axes.set_yticks([0, 0.5, 1])
    ticks = [-_FARTHEST - 1, -4, 0, 4, _FARTHEST + 1]
    axes.set_xticks(ticks, [OFFSETS[0].replace("-", "−"), "−4", "0", "+4", OFFSETS[-1]])
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
