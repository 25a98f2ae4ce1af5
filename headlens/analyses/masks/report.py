"""The figures of `headlens masks`, from the tables it wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headlens.analyses.masks.degree_figures import learned_degrees, learned_spans, quality_by_degrees, quality_of_draws
from headlens.analyses.masks.degree_tables import draw_summary, draws_markdown, effects_markdown, mask_words
from headlens.analyses.masks.study_figures import (
    BLOCK,
    CHANCE,
    FULL,
    SHARES,
    has_delta,
    means,
    quality_by_layers,
    quality_by_pattern,
    study_markdown,
    without_mask,
    worth_of_diagonal,
)
from headlens.analyses.masks.task_tables import left_out, overview_of_tasks, together
from headlens.attention_masks.patterns import parse_pattern
from headlens.errors import counted
from headlens.findings.verdicts import (
    VERDICTS_KEY,
    bound_text,
    chosen_text,
    foremost,
    known_verdicts,
    taken_away_text,
    tied,
    verdict_cells,
)
from headlens.findings.without_skill import gives_one_answer, one_answer_after, one_answer_text, within_guesses
from headlens.pages.command_report import Caption, CommandReport, Figures, write_results
from headlens.pages.formatting import DELTA, markdown_notes, value_text
from headlens.pages.page_tables import PageTable, page_table
from headlens.plots import style
from headlens.plots.curves import FRAMED, VALUES
from headlens.plots.head_grid import float_column
from headlens.runs.folder import RunFolder
from headlens.runs.reading import RecordedRun, rows_of_runs
from headlens.tables.every_table import TABLES
from headlens.tasks.task_options import LOWER_IS_BETTER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# inches
_LEFT, _GAP, _TOP, _BOTTOM, _LINE = 0.42, 0.16, 0.30, 0.36, 0.14
_ACROSS = 3


def mask_figures(tables: Mapping[str, pd.DataFrame]) -> Figures:
    """Draw every figure one after the other.

    Args:
        tables: `sparsity`, `masks`, `degrees`, `spans` and `draws`, as far as there: rows of the CSV files.

    Yields:
        Name of the figure, and the figure; None where there is nothing to draw.
    """
    for name, (draw, sources) in _DRAWN.items():
        if tables.keys() >= set(sources):
            yield name, draw(*(tables[source] for source in sources))


def pattern_pictures(sparsity: pd.DataFrame) -> Figure | None:
    """Every fixed pattern as a picture, with the diagonal: white where a query may look, dark where it is masked.

    Args:
        sparsity: rows of `sparsity.csv`: mask, pattern, diagonal, n, sparsity.

    Returns:
        The figure, or None when there is no fixed pattern.
    """
    from matplotlib.colors import ListedColormap

    rows = sparsity[sparsity["pattern"].notna() & (sparsity["n"] > 0)] if "pattern" in sparsity else sparsity[:0]
    names = list(dict.fromkeys(rows["mask"].astype(str)))
    if not names:
        return None
    # a single picture fits a column as it is
    page = style.page_width() if len(names) > 1 else style.FULL_WIDTH
    most = _ACROSS if page == style.FULL_WIDTH else _ACROSS - 1
    across = min(most, len(names))
    size = (page - _LEFT - most * _GAP) / most
    by_name = [rows[rows["mask"] == name] for name in names]
    titles = [_title(*labelled) for labelled in zip(by_name, names, strict=True)]
    lines = max(style.heading_lines(t, size) for t in titles)
    width = _LEFT + across * (size + _GAP)
    causal = "causal" in rows and bool(rows["causal"].astype(str).eq("True").any())
    later = "; grey: later tokens, which a decoder never sees" if causal else ""
    title = f"Fixed attention patterns (white: may attend, dark: masked{later})"
    columns = [(_LEFT + column * (size + _GAP)) / width for column in range(across)], size / width
    top = _TOP + style.further_lines(title, width)
    slots = (size + _LINE * lines + 0.12, 0.06, size)
    figure, panels = style.panel_grid(title, len(names), width, columns, slots, (top, _BOTTOM))
    for number, (axes, pattern_rows) in enumerate(zip(panels, by_name, strict=True)):
        labels = {"key": number + across >= len(names), "query": number % across == 0}
        style.dress(axes, *(word * labelled for word, labelled in labels.items()))
        n = int(pattern_rows["n"].iloc[0])
        allowed, edge = parse_pattern(str(pattern_rows["pattern"].iloc[0])).allowed(n), (-0.5, n - 0.5, n - 0.5, -0.5)
        colours = ListedColormap([style.MASKED, "white"], bad=style.MISSING)
        allowed = np.where(np.tri(n, dtype=bool), allowed, np.nan) if causal else allowed
        axes.imshow(allowed, cmap=colours, vmin=0, vmax=1, interpolation="nearest", extent=edge, aspect="auto")
        ticks = [0, n // 2, n - 1] if n > 2 else list(range(n))
        for labelled, set_ticks in zip(labels.values(), (axes.set_xticks, axes.set_yticks), strict=True):
            shown = ticks if labelled else []
            set_ticks(shown, list(map(str, shown)), fontsize=style.TICK_SIZE, color=style.INK)
        style.heading(axes, titles[number], size)
    return figure


# The function and the tables of every figure.
_DRAWN: dict[str, tuple[Callable[..., Figure | None], tuple[str, ...]]] = {
    "patterns": (pattern_pictures, ("sparsity",)),
    "quality": (quality_by_pattern, ("masks",)),
    "diagonal": (worth_of_diagonal, ("masks",)),
    "layers": (quality_by_layers, ("masks",)),
    "degrees": (quality_by_degrees, ("masks",)),
    "learned": (learned_degrees, ("degrees",)),
    "spans": (learned_spans, ("spans",)),
    "draws": (quality_of_draws, ("draws", "masks")),
}


def _title(rows: pd.DataFrame, name: str) -> str:
    """Name, and the share that is masked with and without the diagonal."""
    shares = {bool(d): 100 * s for d, s in zip(rows["diagonal"], float_column(rows, "sparsity"), strict=True)}
    without = f" ({shares[False]:.1f} no diagonal)" if False in shares else ""
    return f"{name}\n{shares[True]:.1f} % masked{without}" if True in shares else name


def write_masks(
    run: RunFolder, tables: Mapping[str, pd.DataFrame], notes: Sequence[str] = (), *, figures: bool = True
) -> None:
    """Write every table as CSV, then, if wanted, every figure.

    Args:
        run: the folder, started.
        tables: `sparsity`, `masks` where models were trained, `effects` of a grid, `degrees` that were learned and
            `draws` from them, `spans` that were learned.
        notes: what to know about the numbers of models that were trained.
        figures: whether to draw.
    """
    results = ""
    if "masks" in tables:
        parts = [study_markdown(tables["masks"])]
        parts += [effects_markdown(tables["effects"])] if "effects" in tables else []
        parts += [draws_markdown(tables["draws"], tables["masks"])] if "draws" in tables else []
        results = "\n".join(parts) + markdown_notes(notes)
    write_results(run, tables, mask_figures(tables) if figures else (), results)


def _overviews(runs: Sequence[RecordedRun]) -> list[PageTable]:
    # Runs of several folders may be called alike.
    tables = [means(run.tables["masks"]).assign(folder=run.folder.name) for run in runs if "masks" in run.tables]
    more = DELTA if any(map(has_delta, tables)) else ()
    names = ("folder", "model", "task", "metric", "pattern", "layers", "control", *SHARES, *VALUES, "seeds", *more)
    records = [{k: row[k] for k in names} | verdict_cells(row) for table in tables for row in table.to_dict("records")]
    about = (
        "Models trained and measured under each mask; `control` says whether the diagonal was kept as it is in "
        "the mask, dropped, or kept with the same number of random positions masked instead. "
        "`sparsity` is the share of masked positions at "
        "n tokens, `sparsity_texts` that share at the actual lengths of the texts."
        + (
            " `delta` is the difference from the same seeds without a mask. Verdicts, on masks of one seed, are "
            f"corrected for the number of masks (Holm). {VERDICTS_KEY}"
            if more
            else ""
        )
    )
    about_effects = (
        "A regression over all training runs with a grid of BigBird patterns: `effect` is the effect of one more token "
        "of a kind, `density` the share of positions that it opens, and `effect_per_percent` the effect of opening one "
        "per cent of the positions with that kind."
    )
    overviews = (
        ("Models trained under masks", records, about),
        ("Effect of each kind of degree", rows_of_runs(runs, "effects"), about_effects),
    )
    return [*overview_of_tasks(runs), *(page_table(*table) for table in overviews if table[1])]


def mask_sentences(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """Sentences for every task: no mask, the best and worst mask in the same layers, and the verdict on the sparsest.

    Args:
        tables: `masks` and `draws`, as far as there.
    """
    if "masks" not in tables:
        return []
    sentences = []
    table = means(tables["masks"])
    tests = known_verdicts(table[table["seeds"] == 1]).groupby(BLOCK).size().to_dict()
    for (model, task, metric), rows in table[table["control"] == "kept"].groupby(BLOCK, sort=False):
        unmasked, others = rows[rows["pattern"] == FULL], rows[rows["pattern"] != FULL].dropna(subset=["value"])
        if len(unmasked):
            sentences.append(
                f"{model}: {metric} on {task} after training without a mask: {_value_text(unmasked.iloc[0])}."
            )
            told = one_answer_after(unmasked.iloc[0].to_dict())
            seeds = without_mask(tables["masks"]).query("model == @model and task == @task and metric == @metric")
            sentences[-1] += told or _seeds_that_guess(seeds)
        skilled = _is_skilled(unmasked, str(metric))
        for layers, layer_rows in others.groupby("layers", sort=False):
            down = metric in LOWER_IS_BETTER
            order = layer_rows.sort_values("value", ascending=down, kind="stable")
            where = "all layers" if layers == "all" else f"layer{'' if str(layers).isdigit() else 's'} {layers}"
            if len(unmasked) and all(map(gives_one_answer, [*unmasked.to_dict("records"), *order.to_dict("records")])):
                text = one_answer_text(str(metric), int(unmasked["n"].iloc[0]), "examples", "masked positions")
                sentences.append(f"{model}: {task}, with and without {counted(len(order), 'mask')} in {where}: {text}")
                continue
            first, last = order.iloc[0], order.iloc[-1]
            same = "" if len(order) == 1 else "all alike, such as"
            labels = ("lowest measured", "highest measured")[:: 1 if down else -1]
            ends = {same: first} if first["value"] == last["value"] else dict(zip(labels, (first, last), strict=True))
            measured = tables["masks"][tables["masks"]["task"] == task].get("n", pd.Series(dtype=float)).max()
            of = "" if pd.isna(measured) else f", {counted(int(measured), 'example')}"
            of += f", {counted(int(layer_rows['seeds'].max()), 'seed')}"
            texts = [
                f"{name} {row['pattern']}{tied((order['value'] == row['value']).sum() * (name != same), 'masks')} "
                f"({row['sparsity_texts']:.0%} of text positions masked) "
                f"{_value_text(row)}{_change(row.to_dict(), skilled=skilled)}".strip()
                for name, row in ends.items()
            ]
            sentences.append(
                f"{model}: {task} under {counted(len(layer_rows), 'mask')} in {where}{of}: {'; '.join(texts)}."
            )
            if len(known := known_verdicts(layer_rows[layer_rows["seeds"] == 1])):
                row = foremost(known, "sparsity_texts")
                masked = f"{row['sparsity_texts']:.0%} of text positions masked ({row['pattern']} in {where})"
                masked += tied(row["alike"], "masks")
                text = chosen_text(row, known, f"masks in {where}", most="sparsest", least="densest")
                text += taken_away_text(row, masked, int(tests[model, task, metric]), "masks")
                sentences.append(f"{model}: {text}")
    # How far masks differ that were drawn from the same degrees.
    return sentences + [
        f"{row['model']}: {row['metric']} on {row['task']} under {counted(row['draws'], 'mask')} drawn from "
        f"{mask_words(row)}: {row['lowest']:.3f} to {row['highest']:.3f}, mean "
        f"{row['mean']:.3f}, standard deviation {row['sd']:.4f}; {row['different'] or 'none'} of them "
        f"{'differs' if row['different'] < 2 else 'differ'} significantly from the median mask ({_value_text(row)})."
        for row in (draw_summary(tables["draws"], tables["masks"]) if "draws" in tables else ())
    ]


def _change(row: Mapping[Any, Any], *, skilled: bool) -> str:
    """How far a mask is from none, and how much may be lost, behind what it achieves; empty where it is not known.

    Args:
        row: of a mask.
        skilled: whether the model without a mask is above guesses; one that is not has nothing to lose.
    """
    if not (bound := bound_text(row)):
        return ""
    # An interval over trainings says nothing of other examples.
    if row["seeds"] > 1 and not row["seeds_agree"]:
        bound = "over trainings, on these very examples"
    lost = f" ({bound})" if skilled else ""
    return f", a change of {value_text(*(float(row[name]) for name in DELTA))}{lost}"


def _is_skilled(unmasked: pd.DataFrame, metric: str) -> bool:
    """Whether a model is above guesses by its interval, as far as these are known."""
    chance, low, high = (float_column(unmasked.head(1), name) for name in (CHANCE, "ci_low", "ci_high"))
    return not (high >= chance if metric in LOWER_IS_BETTER else low <= chance).any()


def _seeds_that_guess(rows: pd.DataFrame) -> str:
    """In how many of several seeds a model without a mask is not shown to beat guesses; empty for none, or one seed."""
    guess = sum(within_guesses(rows.iloc[[place]]) for place in range(len(rows)))
    same = sum(map(gives_one_answer, rows.to_dict("records")))
    if len(rows) < 2 or not guess:
        return ""
    one_answer = f" (in {same}, it gives the same answer to all examples)" * bool(same)
    guessing = f"In {guess} of {len(rows)} seeds it is not shown to be better than guessing{one_answer}"
    return f" {guessing}, so that differences from it say little about masks."


def _value_text(row: Mapping[str, Any] | pd.Series[Any]) -> str:
    return value_text(*(float(row[name]) for name in VALUES))


_NOT_DRAWN = (
    "Not drawn here: text graphs, zeroed layers, and degrees and spans that were learned in a run; see the figures by "
    "layers and by degrees of each run, and the table."
)
CAPTIONS = {
    "patterns": Caption(
        "Fixed patterns",
        "Where a query (row) may look (column): white positions are open, dark ones masked. Below the name is the "
        "share of all positions that is masked, and that share when the diagonal is masked as well.",
    ),
    "quality": Caption(
        "What models achieve under masks",
        "Models that were trained and measured under each mask, against the share of positions of the texts that it "
        "masks, with 95 % intervals: of the examples for one seed, of the means for several. A faint line joins a "
        "pattern as it is, which may have no diagonal, and without the diagonal; a coloured line joins the masks "
        f"learned in one sweep of train-dam, labelled with λ; the dashed line is without a mask. {FRAMED} {_NOT_DRAWN}",
    ),
    "diagonal": Caption(
        "Effect of the diagonal",
        "What a model loses or gains when it is trained and evaluated without the diagonal, so that no token attends "
        "to itself, and with the same number of random positions masked instead. Differences from full attention "
        f"with paired 95 % intervals: over examples for one seed, over seeds for several. {FRAMED}",
    ),
    "layers": Caption(
        "What models achieve under masks, by layers",
        "Models that were trained and measured under each mask, as it is, in each range of layers, with 95 % "
        "intervals: of the examples for one seed, of the means for several. The dashed line is without a mask. "
        f"Graphs have the same number of edges in every text. {FRAMED}",
    ),
    "degrees": Caption(
        "Quality by sparsity, over degrees of attention",
        "Models that were trained and measured under BigBird patterns with every combination of degrees, and with "
        "learned degrees or spans, against the share of positions of the texts that is masked, with 95 % intervals: of "
        "the examples for one seed, of the means for several. The dashed line is without a mask. What is learned is "
        "measured on the model that learned it; mask files, such as those of train-dam, on a model that was trained "
        f"under them. {FRAMED}",
    ),
    "learned": Caption(
        "Learned degrees",
        "How far the heads of each layer look to each side at the end of training under each penalty μ; where other "
        "kinds of connections have degrees, also how many global tokens or random keys they use.",
    ),
    "spans": Caption(
        "Learned attention spans",
        "Up to how many tokens away on each side a head's weights are unchanged, at the end of training under each "
        "penalty μ, mean over seeds; beyond the span, weights fall to 0.",
    ),
    "draws": Caption(
        "Masks drawn from learned degrees",
        "The model that learned degrees, measured under masks that are drawn from what it learned: the mean of the "
        "draws, and the range from the lowest to the highest; next to it the median mask, with every degree at its "
        "median, and its 95 % interval over examples. The dashed line is without a mask.",
    ),
    "together": Caption(
        "What models achieve under patterns and mask files of all runs",
        "The main metric of every task against the share of positions of the texts that a mask hides, with 95 % "
        f"intervals. The masks of one sweep of train-dam are joined by a line, with points labelled by λ. {FRAMED} "
        f"{_NOT_DRAWN}",
    ),
    "average": Caption(
        "What models achieve under masks on average over tasks",
        f"The mean of the main metrics of all tasks, against the share of positions that a mask hides. {_NOT_DRAWN}",
    ),
    "diagonal_over_tasks": Caption(
        "Effect of the diagonal, task by task",
        "The main metric of every task without the diagonal, and with as many random positions masked instead, minus "
        "the metric with full attention, with paired 95 % intervals: over examples for one seed, over seeds for "
        "several.",
    ),
}

REPORT = CommandReport(
    "masks",
    tables=TABLES["masks"],
    needed=("sparsity",),
    figures=lambda run: mask_figures(run.tables),
    captions=CAPTIONS,
    sources={name: sources for name, (_, sources) in _DRAWN.items()},
    overviews=_overviews,
    findings=lambda run: mask_sentences(run.tables),
    together=together,
    left_out=left_out,
)
