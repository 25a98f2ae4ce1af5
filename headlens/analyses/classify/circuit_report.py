"""What `headlens classify --probes circuits` tells: sentences, maps of copying and of composition, tables, cards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.heads import STACKS
from headlens.pages.command_report import Caption, Figures
from headlens.pages.formatting import compared_texts, shown_of
from headlens.pages.head_cards import HeadSeries, HeadWords
from headlens.pages.page_tables import PageTable, page_table
from headlens.plots import style
from headlens.plots.cell_drawing import Scale, fitting_size, write
from headlens.plots.head_grid import Panel, each, float_column, has_numbers, head_grid_figure, head_name
from headlens.plots.heatmaps import Cells, interval_map
from headlens.runs.reading import RecordedRun, labelled_records
from headlens.statistics.non_inferiority import LEVEL
from headlens.tables.circuit_tables import COMPOSITION, COMPOSITION_KINDS, HEAD_CIRCUITS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KEYS = ["model", "stack", "layer", "head"]
_PASS = 1 / 40  # of heads with random weights, that have as high a score of copying
_BEST, _ABREAST, _SMALL = 10, 3, 4.5  # rows of a table, panels in a row, points of numbers in cells
_LEAST = 0.1  # end of the scale of composition, which is from 0 to 1: hundredths do not look like much
_LIKE_RANDOM = "no farther from 0 than 95 % of heads with random weights"

CIRCUIT_CAPTIONS = {
    "copying": Caption(
        "Copying",
        "What the weights of every head do with the token that it attends to, whatever that is: the sum of the "
        "eigenvalues of embedding, values, output projection and unembedding in a row, over the sum of their "
        "magnitudes (Elhage et al. 2021). At 1 (blue) it raises the logit of that token, at −1 (red) it lowers it. Of "
        "encoders the embedding stands in place of the unembedding. Heads that are no farther from 0 than 95 % of "
        "heads with random weights are pale.",
    ),
    "composition": Caption(
        "Composition between layers",
        "How much heads of an earlier layer write into what queries, keys or values of a later layer read: the norm of "
        "the product of two heads' matrices over the product of their norms, minus what random directions give "
        "(Elhage et al. 2021). Each cell has the largest number of all pairs of heads of the two layers; grey ones do "
        "not read each other. The keys of an induction head read what a head writes that attends to the previous "
        "token.",
    ),
}
CIRCUIT_SOURCES = {"copying": (HEAD_CIRCUITS.name,), "composition": ("layer_composition",)}


def circuit_figures(tables: Mapping[str, pd.DataFrame]) -> Figures:
    """Draws the map of copying and that of composition, as far as their tables are there.

    Yields:
        Name of the figure, and the figure; None where there is nothing to draw.
    """
    if HEAD_CIRCUITS.name in tables:
        yield "copying", copying_map(tables[HEAD_CIRCUITS.name])
    if "layer_composition" in tables:
        yield "composition", composition_map(tables["layer_composition"])


def copying_map(circuits: pd.DataFrame) -> Figure | None:
    """The copying score of every head.

    Args:
        circuits: rows of circuits.csv, of one model or several.

    Returns:
        The figure, or None when no head has one.
    """
    if not has_numbers(circuits, "copying"):
        return None

    cells = Cells(
        "copying",
        unsure=partial(_like_random, name="copying"),
        pale=f"Pale: {_LIKE_RANDOM}.",
        remark="Blue: writes in the direction of what it reads, red: against it (eigenvalues).",
    )
    with style.of_no_corpus():
        return interval_map(circuits, cells, Scale("copying score", -1.0, 1.0, style.DIVERGING), "Copying by weights")


def _like_random(rows: pd.DataFrame, name: str) -> npt.NDArray[np.bool_]:
    """Returns which rows are no farther from 0 than most heads with random weights are."""
    near: npt.NDArray[np.bool_] = np.abs(float_column(rows, name)) <= float_column(rows, f"{name}_random")
    return near


def composition_map(layers: pd.DataFrame) -> Figure | None:
    """The largest composition of heads of two layers, for every two layers, by what of the later heads reads.

    Args:
        layers: rows of layer_composition.csv, of one model or several.

    Returns:
        The figure, or None when no layer reads another.
    """
    if not has_numbers(layers, "largest"):
        return None
    values = float_column(layers, "largest")
    scale = Scale("composition above random", min(0.0, float(np.nanmin(values))), max(_LEAST, float(np.nanmax(values))))
    rows: list[list[Panel]] = []
    order = {stack: place for place, stack in enumerate(STACKS)}
    parts = layers.assign(place=layers["stack"].map(order), other=layers["other_stack"].map(order))
    for (model, *_), part in parts.groupby(["model", "place", "other"], sort=True):
        panels = [_panel(str(model), kind, own, scale) for kind, own in part.groupby("kind", sort=False)]
        rows += [panels[start : start + _ABREAST] for start in range(0, len(panels), _ABREAST)]
    with style.of_no_corpus():
        note = (
            "The largest of all pairs of heads; 0: what random directions give on average. How large the largest is by "
            "chance was not tested. Grey: no earlier layer."
        )
        sheet = head_grid_figure(rows, "Composition between layers, by weights", note=lambda _: note)
    for axes, item in each(sheet, rows):
        words = np.vectorize(_number, otypes=[object])(item.values)
        if fitting_size("", sheet.cell, 3) >= _SMALL:
            write(axes, words, np.vectorize(item.scale.ink, otypes=[object])(item.values), sheet.cell, 3)
    return sheet.figure


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.2f}".replace("0.", ".").replace("-", "−")


def _panel(model: str, kind: Any, rows: pd.DataFrame, scale: Scale) -> Panel:
    later, earlier = rows["layer"].to_numpy(int), rows["other_layer"].to_numpy(int)
    grid = np.full((later.max() + 1, earlier.max() + 1), np.nan)
    grid[later, earlier] = float_column(rows, "largest")
    stack, other = rows["stack"].iloc[0], rows["other_stack"].iloc[0]
    title = f"{model}: {COMPOSITION_KINDS[str(kind)]} of {stack}"
    return Panel(title, grid, np.ones(grid.shape, bool), scale, f"earlier layer, {other}")


def circuit_sentences(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """How many heads of every model and stack have a high score of copying, and which two heads compose most."""
    sentences = []
    circuits = tables.get(HEAD_CIRCUITS.name, pd.DataFrame(columns=HEAD_CIRCUITS.names))
    known = circuits[np.isfinite(float_column(circuits, "copying"))]
    for (model, _), rows in known.groupby(["model", "stack"], sort=False):
        best = _largest(rows, "copying", 1).iloc[0]
        scores, by_chance = float_column(rows, "copying"), float_column(rows, "copying_random")
        above, below = int((scores > by_chance).sum()), int((scores < -by_chance).sum())
        sentences.append(f"{model}: {_copying_text(above, below, len(rows), best)}")
    pairs = tables.get(COMPOSITION.name, pd.DataFrame(columns=COMPOSITION.names))
    for (model, *_), rows in pairs.groupby(["model"], sort=False):
        best = _largest(rows, "composition", 1).iloc[0]
        what: str = COMPOSITION_KINDS[str(best["kind"])]
        value, random = float(best["composition"]), float(best["random"])
        sentences.append(
            f"{model!s}: of all pairs of heads, the {what} of {head_name(best)} read most of what another head writes, "
            f"{_other(best)}: {value:.2f} above {random:.2f} of random directions (the largest of "
            "all; how large that is by chance was not tested)."
        )
    return sentences


def _copying_text(copying: int, below: int, heads: int, best: pd.Series[Any]) -> str:
    """How many heads of a stack have a high score of copying, if that is more than chance gives, and which one most.

    Args:
        copying: how many heads have a score above that of all but one in forty heads with random weights.
        below: how many have one as far below 0.
        heads: how many there are.
        best: the row of the one with the largest score.
    """
    from scipy import stats

    scores = [float(best["copying"]), float(best["copying_random"])]
    value, random = (f"{score:.2f}" for score in scores)
    value, random = compared_texts(*scores) if value == random else (value, random)
    above = f"above {random}, as that of one in forty heads with random weights"
    # Eigenvalues tell of a mean over all directions, not of the token itself.
    against = f", {below} against it (below -{random})" * bool(below)
    meaning = f": on the whole, they write in the direction of what they read{against}."
    if stats.binom.sf(copying - 1, heads, _PASS) >= LEVEL:
        meaning = ", which is no more than chance gives"
        if stats.binom.sf(below - 1, heads, _PASS) < LEVEL:
            have, write = ("has", "writes") if below == 1 else ("have", "write")
            meaning += f"; {below} {have} one below -{random}, which is more, and {write} against what is read"
        meaning += "."
    verb = "has a score of copying" if copying == 1 else "have scores of copying"
    text = f"{copying or 'none'} of {heads} heads {verb} {above}{meaning}"
    return (
        f"{text} The largest score is that of {head_name(best)}, {value}; of all logits of frequent tokens, it raises "
        f"that of the token itself most for {best['copying_top']:.0%} of these."
    )


def circuit_overviews(runs: Sequence[RecordedRun]) -> list[PageTable]:
    """The heads that copy most, and the pairs that compose most, of every model."""
    copying = labelled_records(runs, HEAD_CIRCUITS.name, copying_records)
    pairs = labelled_records(runs, COMPOSITION.name, composition_records)
    return [
        page_table(
            "Largest copying scores",
            copying,
            f"The heads of every model with the largest copying score ({shown_of(_BEST, len(copying))}). Of 95 % of "
            "heads with random weights it is no larger in magnitude than the number behind it: one head in forty is "
            "above that by chance; own token first: how often the logit of a frequent token itself is raised the most "
            "among theirs; matching: whether queries look for their own token.",
        ),
        page_table(
            "Pairs of heads that compose most",
            pairs,
            "The pairs of every model in which something of the later head reads most of what the earlier head writes "
            f"({shown_of(_BEST, len(pairs))}): by how much it is above that of random directions, which is beside it.",
        ),
    ]


def copying_records(circuits: pd.DataFrame, most: int = _BEST) -> list[dict[str, Any]]:
    """The heads of every model with the largest copying scores, as rows of a short table."""
    return [
        {
            "model": row["model"],
            "head": head_name(row),
            "copying": row["copying"],
            "random": row["copying_random"],
            "own token first": row["copying_top"],
            "matching": row["matching"],
        }
        for _, rows in circuits[np.isfinite(float_column(circuits, "copying"))].groupby("model", sort=False)
        for row in _largest(rows, "copying", most).to_dict("records")
    ]


def composition_records(pairs: pd.DataFrame, most: int = _BEST) -> list[dict[str, Any]]:
    """The pairs of heads of every model that compose most, as rows of a short table."""
    return [
        {
            "model": row["model"],
            "head": head_name(row),
            "reads with its": COMPOSITION_KINDS[row["kind"]],
            "what writes": _other(row),
            "composition above random": row["composition"],
            "random": row["random"],
        }
        for _, rows in pairs.groupby("model", sort=False)
        for row in _largest(rows, "composition", most).to_dict("records")
    ]


def circuit_series(tables: Mapping[str, pd.DataFrame]) -> list[HeadSeries]:
    """Copying and matching by head, for the map of the page."""
    if HEAD_CIRCUITS.name not in tables:
        return []
    rows = tables[HEAD_CIRCUITS.name]
    about = {column.name: column.about for column in HEAD_CIRCUITS.columns}
    return [
        HeadSeries(
            name,
            f"{name} by weights",
            about[name],
            rows.assign(sure=~_like_random(rows, name)),
            name,
            diverging=True,
            high=1.0,
            sure="sure",
            pale=_LIKE_RANDOM,
            beside={"size that 95 % of heads with random weights do not exceed": f"{name}_random"},
        )
        for name in ("copying", "matching")
        if has_numbers(rows, name)
    ]


def circuit_words(tables: Mapping[str, pd.DataFrame]) -> list[HeadWords]:
    """The leading direction of each matrix of every head, in words of its card; the others are in the table."""
    if "circuit_directions" not in tables:
        return []
    rows = tables["circuit_directions"].fillna("")
    rows = rows[float_column(rows, "direction") == 0]
    reads = {"OV": ("attends to", "writes"), "QK": ("queries", "keys")}
    texts = []
    for row in rows.to_dict("records"):
        before, after = reads[row["circuit"]]
        share = f"{float(row['share']):.0%} of all"
        texts.append(
            f"{row['circuit']} {row['sign']} ({share}): {before} {row['from_tokens']} → {after} {row['to_tokens']}"
        )
    return [
        HeadWords("Leading directions of its weights, with the tokens nearest to them", rows[_KEYS].assign(text=texts))
    ]


def _largest(rows: pd.DataFrame, column: str, most: int) -> pd.DataFrame:
    order = np.argsort(-float_column(rows, column), kind="stable")
    return rows.iloc[order[:most]]


def _other(row: Mapping[Any, Any] | pd.Series[Any]) -> str:
    return f"{row['other_stack']}.{int(row['other_layer'])}.{int(row['other_head'])}"
