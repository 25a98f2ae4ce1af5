"""The figures of `headlens train-dam`, and what came of learned masks as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from safetensors.numpy import load_file

from headlens.attention_masks.named_masks import PROBABILITIES, UNMASKED
from headlens.errors import read_errors
from headlens.findings.verdicts import (
    VERDICTS_KEY,
    known_verdicts,
    one_answer_after,
    one_answer_text,
    taken_away_text,
    verdict_cells,
)
from headlens.pages.command_report import Caption, CommandReport, Figures, write_results
from headlens.pages.formatting import (
    DIFFERENCE,
    NOTHING,
    difference_text,
    escaped,
    markdown_notes,
    markdown_table,
    share_text,
    value_text,
)
from headlens.pages.page_tables import PageTable, difference_cell, page_table
from headlens.plots import style
from headlens.plots.axis_labels import font_family
from headlens.plots.cell_drawing import BAR_SLOT, Scale, add_bar
from headlens.plots.curves import (
    FRAMED,
    VALUES,
    draw_chance,
    draw_intervals,
    draw_level,
    draw_rims,
    draw_same_answers,
    examples_text,
    legend_below,
    no_shorter_than_margin,
)
from headlens.plots.head_grid import Grid, float_column
from headlens.plots.mask_points import SHARE_LABEL
from headlens.runs.folder import RunFolder
from headlens.runs.reading import RecordedRun, rows_of_runs
from headlens.tables.every_table import TABLES
from headlens.tables.mask_tables import CLASSES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A learned mask: the name of its run, P of its positions and which of them stay, (layers or 1, heads, n, n).
MaskPicture = tuple[str, Any, Any]

PLAIN = "plain"
NO_DIAGONAL = "-no-diagonal"  # how the names of runs end that are controls of others
# A metric without the diagonal less that of the same run with it, paired by example.
DIAGONAL_DIFFERENCE = tuple(f"diagonal_{name}" for name in DIFFERENCE)
_SHARES = ("sparsity", "sparsity_texts")
IMPORTANCE = Scale("P that a position stays", 0.0, 1.0)
KEPT = Scale("white: may attend", 0.0, 1.0, "gray")
_WORDS_OF = {"special": "first, last token", "neighbourhood": "neighbours"}
_P = "importance P, 0 to 1"
_BEFORE = style.FAINT
_NOT_LEARNED = "not learned: in no training text, or held open or closed"
_EMPTY: dict[str, Any] = {"facecolor": "none", "edgecolor": style.FAINT, "hatch": "////", "linewidth": 0}
# inches
_LEFT, _TOP, _WORDS, _GAP, _BOTTOM = 0.28, 0.32, 0.16, 0.08, 0.24
_MOST_HEADS, _LARGEST = 12, 1.5
_SAME_PLACE = 0.02  # of the span of all points


def dam_figures(tables: Mapping[str, pd.DataFrame], masks: Iterable[MaskPicture]) -> Figures:
    """Draw every figure one after the other, so that only one is in memory.

    Args:
        tables: `sweep`, `positions` and `importance`, as far as there.
        masks: by run.

    Yields:
        Name of the figure, and the figure; None where there is nothing to draw.
    """
    model = ", ".join(map(str, tables["sweep"]["model"].unique())) if "sweep" in tables else ""
    if "sweep" in tables:
        yield "quality", quality_by_sparsity(tables["sweep"])
    if "positions" in tables:
        yield "importance", importance_by_place(tables["positions"], model)
    if "importance" in tables:
        yield "importance_over_training", importance_over_training(tables["importance"], model)
    across = "queries downwards, keys to the right"
    for name, probabilities, kept in masks:
        of = ", ".join(filter(None, [name, "the same in all layers" if len(kept) == 1 else "", model]))
        n = len(kept[0, 0])
        learned = known_positions(tables["positions"], name, n) if "positions" in tables else np.ones((n, n), bool)
        # Positions that no training text has would be nearly all of the picture where texts are short.
        rows = np.flatnonzero(learned.any(axis=1))
        end = int(rows[-1]) + 1 if rows.size else n
        reach = f"\nup to position {end - 1} of {n - 1}, the last that was learned;" if end < n else ""
        title = f"Learned mask {of}\n(white: may attend, dark: masked;{reach}\n{across})"
        yield f"mask_{name}", mask_picture(np.asarray(kept, dtype=float)[..., :end, :end], title, KEPT)
        shown = np.where(learned, np.asarray(probabilities), np.nan)[..., :end, :end]
        title = f"Probability that a position stays, {of}\n(hatched: not learned;{reach}\n{across})"
        yield f"p_{name}", mask_picture(shown, title, IMPORTANCE)


def known_positions(positions: pd.DataFrame, name: str, n: int) -> npt.NDArray[np.bool_]:
    """Which positions of a mask were learned, as far as its rows of `positions.csv` tell, (n, n).

    All others have what the penalty, or the form of the mask, alone decides. If a text has all tokens but the last,
    the last row and column count as learned.

    Args:
        positions: rows of `positions.csv`, empty P where nothing was learned.
        name: of the mask.
        n: tokens.
    """
    rows_of_mask = positions[positions["mask"].astype(str) == name]
    known = rows_of_mask[np.isfinite(float_column(rows_of_mask, "p"))]
    if len(rows_of_mask) and known.empty:
        return np.zeros((n, n), bool)
    offsets = float_column(known[known["class"] == "offset"], "offset")
    longest = n if not offsets.size or offsets.max() >= n - 3 else offsets.max() + 2
    place = np.arange(n)
    ends = (place == 0) | (place == n - 1)
    learned = np.logical_and.outer(place < longest, place < longest)
    held = set(rows_of_mask["class"]) - set(known["class"])
    if "special" in held:
        learned &= ~np.logical_or.outer(ends, ends)
    if "diagonal" in held:
        learned &= ~np.eye(n, dtype=bool)
    return learned


def write_dam(
    run: RunFolder, tables: Mapping[str, pd.DataFrame], masks: Sequence[MaskPicture], notes: Sequence[str] = ()
) -> None:
    """Write every table as CSV, the two that tell most as Markdown, then every figure.

    Args:
        run: the folder, started.
        tables: `sweep`, `sparsity`, `positions`, `importance`, `log`.
        masks: by run; none draws nothing.
        notes: what to know about the numbers, such as that a mask has not settled.
    """
    write_results(run, tables, ())
    text = dam_markdown(tables["sweep"], tables["positions"]) + markdown_notes(notes)
    with run.file("results.md") as path:
        path.write_text(text, encoding="utf-8")
    write_results(run, {}, dam_figures(tables, masks) if masks else ())


def dam_markdown(sweep: pd.DataFrame, positions: pd.DataFrame) -> str:
    """Two tables: every mask with the share of masked positions and all metrics, and mean P by class of positions.

    Metrics of runs with a mask have the difference from the run without one, paired by example.

    Args:
        sweep: rows of `sweep.csv`.
        positions: rows of `positions.csv`.
    """
    parts = ["# Learned masks"]
    for (model, task), group in sweep.groupby(["model", "task"], sort=False):
        metrics = list(dict.fromkeys(group["metric"]))
        parts += ["", f"## {escaped(str(task))} by {escaped(str(model))} [95 % interval over examples]", ""]
        parts += _runs(group, metrics)
        if lines := _diagonals(group, metrics):
            parts += ["", "With the diagonal and without it, as in the last table of Shi et al. (2021):", "", *lines]
    sentences = penalty_sentences(positions) if len(positions) else []
    parts += ["", *sentences] if sentences else []
    if len(positions):
        title = "Which positions the penalty leaves: mean P of all heads (share of the positions that stay)"
        about = "Of what is learned: positions of the training texts that are held neither open nor closed."
        parts += ["", f"## {title}", "", about, ""]
        parts += _classes(positions)
    return "\n".join(parts) + "\n"


def baseline_of(sweep: pd.DataFrame) -> str:
    """What runs with a mask are compared with: `unmasked`, or `plain` where the mask alone was trained."""
    return UNMASKED if (sweep["run"] == UNMASKED).any() else PLAIN


def _numbers(rows: pd.DataFrame, metrics: list[str], names: Sequence[str]) -> Grid:
    """Columns of the row of every metric, NaN where there is none: (metrics, names)."""
    first = rows.drop_duplicates("metric").set_index("metric").reindex(metrics)
    return np.stack([float_column(first, name) for name in names], axis=1)


def _runs(rows: pd.DataFrame, metrics: list[str]) -> list[str]:
    column = ["verdict"] * bool("verdict" in rows and rows["verdict"].notna().any())
    minus = [f"difference from {baseline_of(rows)} [paired]", *column]
    names = ["masked, %", "masked in texts, %", *(n for metric in metrics for n in (escaped(str(metric)), *minus))]
    lines = []
    for run, group in rows.groupby("run", sort=False):
        masked = group["penalty"].notna().any()
        line = [escaped(str(run)), *(share_text(float(group[s].iloc[0])) if masked else NOTHING for s in _SHARES)]
        verdicts = group.drop_duplicates("metric").set_index("metric").reindex(metrics, columns=column).fillna(NOTHING)
        numbers = _numbers(group, metrics, (*VALUES, *DIFFERENCE, "p_holm"))
        for (value, low, high, *difference, p_holm), verdict in zip(numbers, verdicts.to_numpy(), strict=True):
            line += [value_text(value, low, high), difference_text(*difference, p_holm=p_holm), *verdict]
        lines.append(line)
    return markdown_table(["run"], names, lines)


def _diagonals(rows: pd.DataFrame, metrics: list[str]) -> list[str]:
    """A line for each λ: what is masked, and every metric, with the diagonal and without it; none of other masks."""
    headings = [(escaped(str(metric)), "without it", "difference from the mask with it [paired]") for metric in metrics]
    by_run = {str(run): run_rows for run, run_rows in rows.groupby("run", sort=False)}
    lines = []
    for run, with_diagonal in by_run.items():
        dropped = by_run.get(run + NO_DIAGONAL)
        # A mask that closes the diagonal anyway is the same without it.
        if dropped is not None and dropped["sparsity"].iloc[0] > with_diagonal["sparsity"].iloc[0]:
            line = [escaped(run), *(share_text(float(part["sparsity"].iloc[0])) for part in (with_diagonal, dropped))]
            with_it, without = (_numbers(part, metrics, VALUES) for part in (with_diagonal, dropped))
            differences = _numbers(dropped, metrics, DIAGONAL_DIFFERENCE)
            for one, other, difference in zip(with_it, without, differences, strict=True):
                line += [value_text(*one), value_text(*other), difference_text(*difference)]
            lines.append(line)
    names = ["masked, %", "without it", *(name for parts in headings for name in parts)]
    return markdown_table(["run"], names, lines) if lines else []


def _classes(positions: pd.DataFrame) -> list[str]:
    known = [name for name in CLASSES if (positions["class"] == name).any()]
    means = positions.groupby(["mask", "class"], sort=False)[["p", "kept"]].mean()
    lines = []
    for mask in dict.fromkeys(positions["mask"]):
        cells = (means.loc[(mask, name)] if (mask, name) in means.index else None for name in known)
        texts = (
            NOTHING
            if cell is None
            else "not learned"
            if np.isnan(cell["p"])
            else f"{cell['p']:.3f} ({cell['kept']:.0%})"
            for cell in cells
        )
        lines.append([escaped(str(mask)), *texts])
    return markdown_table(["run"], [_WORDS_OF.get(name, name) for name in known], lines)


def quality_by_sparsity(sweep: pd.DataFrame) -> Figure | None:
    """The task's main metric over the share of masked positions, with intervals; dashed lines without a mask.

    The same masks without the diagonal, where they are controls, are crosses.
    """
    if sweep.empty:
        return None
    rows = sweep[sweep["metric"] == sweep["metric"].iloc[0]]
    others = rows[rows["penalty"].isna()]
    title = f"Quality of {rows['model'].iloc[0]} under learned masks\n(95 % intervals{examples_text(rows)})"
    entries = rows["penalty"].nunique() + len(others) + 2  # of the legend, in lines of their own
    figure = style.constrained_figure(style.FULL_WIDTH / 2, 2.1 + 0.15 * entries, title)
    axes = figure.subplots()
    measured = f"{rows['metric'].iloc[0]} on {rows['task'].iloc[0]}"
    style.dress(axes, SHARE_LABEL, style.one_line(measured, 0.66 * 2.6, style.LABEL_SIZE))
    masked = rows[rows["penalty"].notna()]
    for penalty, colour, is_control, rows_of_mask in _by_penalty(masked):
        x, y = 100 * float_column(rows_of_mask, "sparsity_texts"), float_column(rows_of_mask, "value")
        marker, label = ("x", "no diagonal") if is_control else ("o", penalty)
        axes.plot(x, y, marker, color=colour, markersize=4, label=label, linestyle="none", zorder=3)
        draw_intervals(axes, x, rows_of_mask, colour)
        draw_same_answers(axes, x, rows_of_mask)
    trained = others["run"] == UNMASKED
    draw_level(axes, others[~trained], "before training, no mask", colour=_BEFORE)
    draw_level(axes, others[trained], "trained without a mask")
    axes.set_ylim(no_shorter_than_margin(axes.get_ylim(), rows))
    draw_rims(axes)
    left, right = axes.get_xlim()
    draw_same_answers(axes, np.full(len(others), left + 0.03 * (right - left)), others)
    draw_chance(axes, float(chance[0]) if len(chance := float_column(rows, "chance")) else np.nan)
    legend_below(figure, [axes])
    return figure


def importance_by_place(positions: pd.DataFrame, model: str = "") -> Figure | None:
    """Mean P of all heads by class, and by offset, a line for each λ, of runs that are no controls of others.

    Args:
        positions: rows of `positions.csv`.
        model: its name, for the title.
    """
    if positions.empty:
        return None
    # A file gives text, whose order is another one: 0, 1, 10, 100, 2.
    positions = positions.assign(run=positions["mask"], **{k: float_column(positions, k) for k in ("offset", "p")})
    controls = _is_control(positions)
    lines = list(_by_penalty(positions[~controls]))
    title = ", ".join(filter(None, ["Learned importance of positions, mean over heads", model]))
    title += "\n(masks learned with the diagonal)" if controls.any() else ""
    figure = style.constrained_figure(style.FULL_WIDTH, 2.5, title)
    classes, offsets = figure.subplots(1, 2, width_ratios=(0.42, 0.58))
    style.dress(classes, "", _P)
    style.dress(offsets, "distance of query and key, tokens", _P)
    for number, (penalty, colour, _, rows) in enumerate(lines):
        shift = (number - (len(lines) - 1) / 2) * 0.8 / len(lines)
        heights = rows.groupby("class")["p"].mean().reindex(CLASSES).to_numpy(float)
        classes.bar(np.arange(len(CLASSES)) + shift, heights, 0.8 / len(lines), color=colour)
        by_offset = rows[rows["class"] == "offset"].groupby("offset")["p"].mean()
        at, mean = by_offset.index.to_numpy(float), by_offset.to_numpy(float)
        offsets.plot(at, mean, color=colour, linewidth=1, label=penalty)
        # What the penalty, or the form of the mask, alone decides.
        unknown = np.flatnonzero(np.isnan(heights) & np.isin(CLASSES, rows["class"]))
        label = {"label": _NOT_LEARNED} if not number else {}
        classes.bar(unknown + shift, 1.0, 0.8 / len(lines), **_EMPTY, **label)
        if len(beyond := at[np.isnan(mean)]):
            offsets.axvspan(beyond.min() - 0.5, beyond.max(), **_EMPTY)
    classes.set_xticks(range(len(CLASSES)), [_WORDS_OF.get(name, name).replace(", ", ",\n") for name in CLASSES])
    for axes, words in ((classes, "by class"), (offsets, "by distance, first and last token left out")):
        axes.set_ylim(0, 1.05)
        style.heading(axes, words, 3.0)
    legend_below(figure, [offsets, classes])
    return figure


def importance_over_training(importance: pd.DataFrame, model: str = "") -> Figure | None:
    """Mean P of all heads over the training, a panel for each class of positions and a line for each λ.

    The same masks without the diagonal, where they are controls, are dotted lines.

    Args:
        importance: rows of `importance.csv`.
        model: its name, for the title.

    Returns:
        The figure, or None where nothing was followed.
    """
    from matplotlib.ticker import MaxNLocator

    if importance.empty:
        return None
    known = [c for c in CLASSES if c in set(importance["class"])]
    title = ", ".join(filter(None, ["Learned importance of positions during training, mean over heads", model]))
    figure = style.constrained_figure(style.FULL_WIDTH, 2.2, title)
    drawn = figure.subplots(1, len(known), sharey=True, squeeze=False)[0]
    for place, (name, axes) in enumerate(zip(known, drawn, strict=True)):
        style.dress(axes, "update", "" if place else _P)
        lines = [
            (float_column(rows, "step"), float_column(rows, "p"), colour, is_control, penalty)
            for penalty, colour, is_control, rows_of_mask in _by_penalty(importance)
            for _, rows in rows_of_mask[rows_of_mask["class"] == name].groupby("run", sort=False)
        ]
        for number, (x, y, colour, is_control, penalty) in enumerate(lines, 1):
            line, label = (":", "learned without the diagonal") if is_control else ("-", penalty)
            # As a rim around the points that would hide it.
            above = sum(
                len(y) == len(other[1]) and np.abs(y - other[1]).max() < _SAME_PLACE for other in lines[number:]
            )
            axes.plot(x, y, line, color=colour, linewidth=1 + 1.5 * above, label=label)
        axes.set_ylim(0, 1.05)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        style.heading(axes, _WORDS_OF.get(name, name), 3.0)
    legend_below(figure, list(drawn))
    return figure


def _is_control(rows: pd.DataFrame) -> pd.Series[bool]:
    return rows["run"].astype(str).str.endswith(NO_DIAGONAL)


def _by_penalty(rows: pd.DataFrame) -> Iterator[tuple[str, Any, bool, pd.DataFrame]]:
    """Every λ in words, from weak to strong, its colour, and its rows: first of runs that are no controls of others."""
    from matplotlib import colormaps

    known = sorted(rows["penalty"].unique().tolist())
    colours = colormaps[style.SEQUENTIAL](np.linspace(0.0, 0.85, len(known)))
    for penalty, colour in zip(known, colours, strict=True):
        for is_control in (False, True):
            rows_of_mask = rows[(rows["penalty"] == penalty) & (_is_control(rows) == is_control)]
            if len(rows_of_mask):
                yield f"penalty λ {penalty:g}", colour, is_control, rows_of_mask


def mask_picture(maps: Grid, title: str, scale: Scale) -> Figure:
    """A map of n x n positions for every head, first position at the upper left, one row of maps for each layer.

    Positions are numbered at the left and lower ends of the picture.

    Args:
        maps: numbers from 0 to 1, or NaN, which is hatched, (layers or 1, heads, n, n); of many heads a layer has
            several rows.
        title: of the figure.
        scale: its colours; a bar is drawn for scales of more than masked and not masked.
    """
    from matplotlib.colors import ListedColormap

    shared, heads = len(maps) == 1, maps.shape[1]
    # Few maps in a row are large ones.
    most = min(_MOST_HEADS, max(4, -(-heads // 2))) if shared else _MOST_HEADS
    across, lines = min(most, heads), -(-heads // most)
    bar = BAR_SLOT + 0.1 if scale is not KEPT else 0.0
    side = min(_LARGEST, (style.FULL_WIDTH - _LEFT - bar) / across - _GAP)
    width = max(2.4, _LEFT + across * (side + _GAP) + bar)
    top = _TOP + style.further_lines(title, width)
    height = max(top + len(maps) * lines * (side + _WORDS) + _BOTTOM, 1.6 if bar else 0.0)
    figure = style.new_figure(width, height)
    style.headline(figure, title)
    colours = ListedColormap([style.MASKED, "white"]) if scale is KEPT else scale.map
    for layer, head in np.ndindex(maps.shape[:2]):
        line, column = divmod(head, most)
        left, above = _LEFT + column * (side + _GAP), (layer * lines + line) * (side + _WORDS)
        low = height - top - above - _WORDS - side
        axes = figure.add_axes((left / width, low / height, side / width, side / height))
        axes.patch.set(facecolor="white", edgecolor=style.FAINT, hatch="////", linewidth=0)
        axes.imshow(maps[layer, head], cmap=colours, vmin=scale.low, vmax=scale.high, interpolation="nearest")
        # First and last position, where no other map is in the way.
        numbered = [0, maps.shape[2] - 1]
        is_lowest = layer == len(maps) - 1 and head + most >= heads
        axes.set_xticks(numbered if is_lowest else [])
        axes.set_yticks(numbered if not column else [])
        axes.tick_params(labelsize=style.TICK_SIZE - 1, length=1.5, width=0.4, pad=1, labelcolor=style.INK)
        for label, number in zip(axes.get_xticklabels(), numbered, strict=False):
            label.set_horizontalalignment("right" if number else "left")
        name = f"head {head}" if shared else f"{layer}.{head}"
        axes.set_title(name, fontsize=style.TICK_SIZE, fontfamily=font_family(), color=style.INK, pad=1.5)
        for spine in axes.spines.values():
            spine.set_linewidth(0.4)
            spine.set_color(style.INK)
    if bar:
        add_bar(figure, scale, BAR_SLOT, top + _WORDS)
    return figure


def _masks(run: RecordedRun) -> Iterator[MaskPicture]:
    """The mask pictures that still lie in the folder of a run.

    Raises:
        InputError: if one cannot be read.
    """
    if "sweep" not in run.tables:
        return
    rows = run.tables["sweep"].drop_duplicates("run")
    for name, mask in zip(rows["run"], rows["mask"], strict=True):
        place = run.folder / str(mask)
        beside = place.with_name(PROBABILITIES)
        if isinstance(mask, str) and place.is_file() and beside.is_file():
            with read_errors(place.parent, "does not hold a mask", "Run the command again."):
                picture = str(name), load_file(beside)["p"], load_file(place)["allowed"]
            yield picture


def _overviews(runs: Sequence[RecordedRun]) -> list[PageTable]:
    names = ("folder", "run", "metric", *VALUES, *_SHARES)
    rows = rows_of_runs(runs, "sweep")
    records = [{k: row[k] for k in names} | {"difference": difference_cell(row)} | verdict_cells(row) for row in rows]
    about = (
        "The share of masked positions and task performance under the final mask, for each penalty λ; `plain` is "
        "the original model, `unmasked` the same training without a mask. `sparsity` is the share of n x n positions, "
        "`sparsity_texts` that of the positions of the texts, at their actual lengths. The difference is from "
        "`unmasked`, or from `plain` where the mask alone was trained, paired by example; verdicts are corrected for "
        f"the number of masks (Holm). {VERDICTS_KEY}"
    )
    return [page_table("Masks and what models achieve under them", records, about)] if records else []


def dam_sentences(sweep: pd.DataFrame) -> list[str]:
    """Sentences on the task under each mask: its verdict, or its metric where there is nothing to compare with.

    Args:
        sweep: rows of `sweep.csv`.
    """
    sentences, known = [], known_verdicts(sweep)
    tests, compared = known["metric"].value_counts(), known.to_dict("index")
    for place, row in sweep.to_dict("index").items():
        share = float(row["sparsity_texts"])
        one_answer = one_answer_after(row)
        if place in compared:
            masked = f"{share:.1%} of text positions masked ({row['run']})"
            text = taken_away_text(compared[place], masked, int(tests[row["metric"]]), "masks")
            sentences.append(f"{row['model']}: {text}")
        elif one_answer and np.isfinite(float(row.get("delta", np.nan))):
            text = one_answer_text(str(row["metric"]), int(row["n"]), "evaluation examples", "masked positions")
            sentences.append(f"{row['model']}, {row['run']}: with and without the mask {text}")
        elif np.isfinite(share):
            measured = f"{row['metric']} on {row['task']} {value_text(*(float(row[name]) for name in VALUES))}"
            sentences.append(
                f"{row['model']}, {row['run']}: {share:.1%} of text positions masked, {measured}.{one_answer}"
            )
    return sentences


def penalty_sentences(positions: pd.DataFrame) -> list[str]:
    """Sentences on penalties under which all learned positions are kept, or all masked: such masks rank no positions.

    Args:
        positions: rows of `positions.csv`.
    """
    learned = positions.assign(kept=float_column(positions, "kept"), p=float_column(positions, "p")).dropna(subset="p")
    by_mask = learned.groupby("mask", sort=False)["kept"]
    fates = (0.0, "every position that can be closed is closed", "smaller"), (1.0, "no position is closed", "larger")
    sentences = []
    for kept, fate, other in fates:
        masks = [str(name) for name, rows_of_mask in by_mask if (rows_of_mask == kept).all()]
        if masks:
            which = "every mask" if 1 < len(masks) == by_mask.ngroups else ", ".join(masks)
            advice = f"the final mask tells no positions apart: try {other} penalties with --lambdas"
            sentences.append(f"In {which} {fate}, so that {advice}.")
    return sentences


def _findings(run: RecordedRun) -> list[str]:
    sentences = dam_sentences(run.tables["sweep"]) if "sweep" in run.tables else []
    return sentences + (penalty_sentences(run.tables["positions"]) if "positions" in run.tables else [])


CAPTIONS = {
    "quality": Caption(
        "Quality by sparsity",
        "Task performance under the final masks, with 95 % intervals, against the share of text positions that is "
        "masked; the dashed lines are without a mask: grey for the original model, black for one trained in the "
        "same way, dotted for the chance level where it is not far below. Crosses are the same masks learned without "
        f"the diagonal. A rim of another colour around a point is another mask in the same place. {FRAMED}",
    ),
    "importance": Caption(
        "Which positions the penalty leaves",
        "The mean probability P that a position stays, over all heads. On the left by class: the first and last row "
        "and column, the diagonal, its neighbourhood, and the rest. On the right by distance. Masks learned without "
        "the diagonal are in `positions.csv` alone. Hatched: what was not "
        "learned, because no training text has such positions, or the mask holds them open or closed.",
    ),
    "importance_over_training": Caption(
        "Which positions the penalty leaves, over training",
        "The mean probability P that a position stays, over all heads, by class of positions, from before the first "
        "update to the last: the first and last row and column, the diagonal, its neighbourhood, and the rest. "
        "Dotted lines are the same masks learned without the diagonal.",
    ),
    "mask": Caption(
        "The mask",
        "The positions of every head, queries downwards and keys to the right: white ones stay, dark ones are masked. "
        "Drawn as far as the training texts reach; the penalty alone decides on later positions.",
    ),
    "p": Caption(
        "Probability that a position stays",
        "The probability P of every position that was learned, queries downwards and keys to the right, up to the "
        "longest training text; hatched: the mask holds them open or closed. It is symmetric; a head "
        "whose P is the same everywhere has found no position that matters more than others.",
    ),
}

REPORT = CommandReport(
    "train-dam",
    tables=TABLES["train-dam"],
    needed=("sweep", "sparsity", "positions"),
    figures=lambda run: dam_figures(run.tables, list(_masks(run))),
    captions=CAPTIONS,
    sources={"quality": ("sweep",), "importance": ("positions",), "importance_over_training": ("importance",)},
    overviews=_overviews,
    findings=_findings,
)
