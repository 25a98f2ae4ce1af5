"""What models achieve that were trained under attention masks: the tables of SparseBERT, and quality by sparsity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headlens.attention_masks.named_masks import (
    FULL_ATTENTION,
    LearnedDegrees,
    LearnedInRun,
    TextGraph,
    ZeroedScores,
    parse_named_mask,
)
from headlens.findings.without_skill import within_guesses
from headlens.pages.formatting import DELTA, NOTHING, escaped, markdown_table, share_text, value_text
from headlens.plots import style
from headlens.plots.axis_labels import font_family
from headlens.plots.curves import (
    CHANCE_LABEL,
    SAME_ANSWER,
    VALUES,
    chance_label,
    draw_chance,
    draw_level,
    intervals_text,
    known_values,
    legend_below,
    legend_columns,
    level_text,
    lowest_value,
    no_shorter_than_margin,
    range_text,
    silence_text,
)
from headlens.plots.head_grid import float_column
from headlens.plots.mask_points import SHARE_LABEL, WAYS, draw_masks, mask_curves, name_masks, short_names
from headlens.plots.point_rows import PointGroup, PointPanel, point_rows
from headlens.statistics.intervals import mean_interval
from headlens.tables.mask_tables import GRID
from headlens.tables.same_answers import NEARLY_ALL, answer_shares
from headlens.tasks.task_options import CHOICES, LENGTH_TELLS, LOWER_IS_BETTER, NO_UPPER_END, OF_A_HUNDRED, guess_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FULL = str(FULL_ATTENTION)
_LEAST = 4  # combinations, from which on they are a grid
CONTROLS = {"kept": "all", "random": "random positions instead", "dropped": "no diagonal"}
BLOCK = ["model", "task", "metric"]
# Of masked positions: of n tokens, and of the texts as long as they are, which is what models do without.
SHARES = ("sparsity", "sparsity_texts")
LESS = "difference from unmasked"
# Of a training; the means of several have none, as their interval over few seeds is wide, and not corrected.
_VERDICT = ("verdict", "margin", "p_holm", "p_margin_holm", "n_to_decide")
_ANSWERS = ("n", "same_answer", "answer_share", "seeds_agree")
CHANCE = "chance"  # what guessing without reading gives
_CONTROL_LOOKS = {
    "random": ("as many random positions masked", style.FAINT),
    "dropped": ("diagonal masked", style.VERMILION),
}
_LAYER_COLOURS = (style.BLUE, style.VERMILION, style.GREEN, style.ORANGE, style.PURPLE, style.SKY)
UNBOUNDED = NO_UPPER_END | OF_A_HUNDRED
_NO_DIFFERENCE = pd.DataFrame([dict.fromkeys(VALUES, 0.0)])
# inches
_TOP, _SLOT, _PANEL, _WORDS, _BOTTOM, _LINE = 0.35, 2.75, 2.1, 0.5, 0.3, 0.17


def means(masks: pd.DataFrame) -> pd.DataFrame:
    """Over seeds: one row per model, task, metric, pattern, layers and control.

    Args:
        masks: rows of `masks.csv`.

    Returns:
        Columns model, task, metric, pattern, layers, control, sparsity of n tokens (NaN for graphs), sparsity_texts,
        value, ci_low, ci_high, seeds, delta, delta_low, delta_high, chance (NaN where unknown), n, whether the models
        of all seeds give one answer, the lowest of their shares of one answer, whether several seeds have the same
        value or difference, and where there is one seed and the table has them verdict, margin, p_margin_holm and
        n_to_decide. The delta is what is achieved less what the same seeds achieve without a mask; it is NaN for these
        themselves. Intervals are those of the examples for one seed, and where all seeds agree, which tells nothing of
        how much others would differ; else of Student's t over the seeds. Of differences they are paired.
    """
    keys = [*BLOCK, "pattern", "layers", "control"]
    unmasked = {key: group.set_index("seed")["value"] for key, group in without_mask(masks).groupby(BLOCK)}
    verdicts = [name for name in _VERDICT if name in masks]
    rows = [
        dict(zip(keys, key, strict=True))
        | {name: float(group[name].mean()) for name in SHARES}
        | {"seeds": len(group), CHANCE: float(group[CHANCE].mean()) if CHANCE in group else math.nan}
        | _of_seeds(group, unmasked.get(key[: len(BLOCK)]))
        | {name: group[name].iloc[0] if len(group) == 1 else None for name in verdicts}
        | ({"n": group["n"].max()} if "n" in group else {})
        | {"same_answer": bool(group.get("same_answer", pd.Series([False])).astype(str).eq("True").all())}
        # NaN where one seed's is not known.
        | {"answer_share": answer_shares(group).min()}
        for key, group in masks.groupby(keys, sort=False)
    ]
    table = pd.DataFrame(rows, columns=[*keys, *SHARES, *VALUES, "seeds", *DELTA, CHANCE, *verdicts, *_ANSWERS])
    table.loc[without_mask(table).index, list(DELTA)] = np.nan
    return table


def without_mask(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of models that see all positions."""
    return rows[(rows["pattern"] == FULL) & (rows["control"] == "kept")]


def of_kind(patterns: pd.Series, *kinds: Any, zeroed: bool = False) -> pd.Series[bool]:
    """Returns which masks are of the given kinds.

    Args:
        patterns: names of masks, a column `pattern`.
        kinds: classes of `headlens.attention_masks.named_masks`.
        zeroed: whether masks of these kinds count whose scores are 0.
    """

    def fits(name: object) -> bool:
        parsed = parse_named_mask(str(name))
        return isinstance(parsed.mask if zeroed and isinstance(parsed, ZeroedScores) else parsed, kinds)

    return patterns.map(fits).astype(bool)


def _of_seeds(rows: pd.DataFrame, unmasked: pd.Series | None) -> dict[str, float]:
    """`VALUES` and `DELTA` of a mask; of a single training as measured, NaN in tables that were written without."""
    if len(rows) == 1:
        return {name: float(float_column(rows, name)[0]) for name in (*VALUES, *DELTA)} | {"seeds_agree": False}
    values = float_column(rows, "value")
    found = dict(zip(VALUES, mean_interval(values), strict=True)) | delta(rows.set_index("seed")["value"], unmasked)
    agree = False
    for mean, *ends in (VALUES, DELTA):
        if math.isfinite(found[mean]) and math.isnan(found[ends[0]]):
            low, high = (float_column(rows, name) for name in ends)
            found |= dict(zip(ends, (float(low.min()), float(high.max())), strict=True))
            agree |= math.isfinite(found[ends[0]])
    return found | {"seeds_agree": agree}


def delta(values: pd.Series, unmasked: pd.Series | None) -> dict[str, float]:
    """What is achieved under a mask less what is without one, in pairs of one seed.

    Seeds draw what is not pretrained and the order of the examples, so the two of a pair begin alike.

    Args:
        values: by seed.
        unmasked: those without a mask, by seed.

    Returns:
        `DELTA`: the mean, and its 95 % interval by Student's t; NaN for fewer than two pairs.
    """
    pairs = pd.Series(dtype=np.float64) if unmasked is None else (values - unmasked).dropna()
    return dict(zip(DELTA, mean_interval(pairs) if len(pairs) > 1 else [math.nan] * 3, strict=True))


def has_delta(table: pd.DataFrame) -> bool:
    """Whether anything in a table has a delta."""
    return bool(table["delta"].notna().any())


def study_markdown(masks: pd.DataFrame) -> str:
    """Two tables for each model and metric: what the diagonal is worth, and every pattern with and without it.

    After Shi et al. (2021), table 2 and the last one.

    Args:
        masks: rows of `masks.csv`.
    """
    blocks = [_block(rows) for _, rows in means(masks).groupby(["model", "metric"], sort=False)]
    return "\n".join(["# Models trained under attention masks", *blocks]) + "\n"


def _block(rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    interval_of = "means of seeds" if rows["seeds"].max() > 1 else "examples"
    interval_of += ", over examples where these agree" if rows["seeds_agree"].any() else ""
    title = f"\n## {escaped(str(first['metric']))} of {escaped(str(first['model']))} [95 % interval over {interval_of}]"
    full, others = rows[rows["pattern"] == FULL], rows[rows["pattern"] != FULL]
    # What a control is compared with stands first.
    controls = {c: _differs(control_rows) for c in CONTROLS if len(control_rows := full[full["control"] == c])}
    heads = [name for control, more in controls.items() for name in (CONTROLS[control], *more)]
    lines = []
    for task, task_rows in full.groupby("task", sort=False):
        line = [escaped(str(task))]
        for control, more in controls.items():
            control_rows = task_rows[task_rows["control"] == control]
            line += [_cell(control_rows), *_difference_cells(control_rows, more)]
        lines.append(line)
    parts = [title, "", *markdown_table(["task"], heads, lines)]
    if len(others):
        parts += ["", *_pattern_lines(others)]
    if chance := chance_text(full):
        parts += ["", chance]
    return "\n".join(parts)


def chance_text(rows: pd.DataFrame) -> str:
    """What guessing without reading gives of every task, as far as known.

    Args:
        rows: of `means` or of `masks.csv`.
    """
    if CHANCE not in rows:
        return ""
    guesses: dict[str, list[str]] = {}
    for (task, metric), group in rows.dropna(subset=[CHANCE]).groupby(["task", "metric"], sort=False):
        length = math.nan if task in LENGTH_TELLS else 0
        guess = guess_text(among_candidates=task in CHOICES, length=length)
        guess = "Predicting every token by its frequency" if metric in LOWER_IS_BETTER else guess
        level = range_text(float_column(group, CHANCE), ".3f")
        guesses.setdefault(guess, []).append(f"{level} ({escaped(str(metric))} of {escaped(str(task))})")
    return " ".join(f"{guess} has {', '.join(levels)}: the chance level." for guess, levels in guesses.items())


def _pattern_lines(rows: pd.DataFrame) -> list[str]:
    less = {way: _differs(rows[rows["control"] == way]) for way in WAYS}
    heads = ["masked, %"]
    for way, (_, words) in WAYS.items():
        heads += ["masked in texts, %", words, *less[way]]
    names = short_names(rows["pattern"])
    lines = []
    for (task, pattern, layers), group in rows.groupby(["task", "pattern", "layers"], sort=False):
        line = [escaped(text) for text in (str(task), names[str(pattern)], str(layers))]
        line.append(share_text(float(group["sparsity"].iloc[0])))
        for way, more in less.items():
            part = group[group["control"] == way]
            line += [share_text(float(part["sparsity_texts"].iloc[0])) if len(part) else NOTHING, _cell(part)]
            line += _difference_cells(part, more)
        lines.append(line)
    return markdown_table(["task", "pattern", "layers"], heads, lines)


def _differs(rows: pd.DataFrame) -> list[str]:
    """Names of the cells of masks that were compared with none: the difference, and the verdict where there is any."""
    has_verdicts = has_delta(rows) and "verdict" in rows and rows["verdict"].notna().any()
    return [LESS] * has_delta(rows) + ["verdict"] * bool(has_verdicts)


def _difference_cells(rows: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """The cells that `_differs` names, of one row of `means` or none."""
    verdict = rows["verdict"].fillna(NOTHING).iloc[0] if "verdict" in names and len(rows) else NOTHING
    return [_cell(rows, DELTA), verdict][: len(names)]


def _cell(rows: pd.DataFrame, names: Sequence[str] = VALUES) -> str:
    return NOTHING if rows.empty else value_text(*(float(float_column(rows, name)[0]) for name in names))


def quality_by_pattern(masks: pd.DataFrame) -> Figure | None:
    """The metric over the share of masked positions, a panel per model and task, with and without the diagonal.

    See `draw_masks`.

    Args:
        masks: rows of `masks.csv`.

    Returns:
        The figure, or None where no pattern was trained under.
    """
    # A grid of degrees has too many points for their names, and a figure of its own.
    outside_grid = masks[masks[GRID].isna().any(axis=1)] if is_grid(masks) else masks
    return quality_figure(means(outside_grid))


def is_grid(masks: pd.DataFrame) -> bool:
    """Whether every combination of some degrees was trained under."""
    if not set(GRID) <= set(masks):
        return False
    fixed = masks[(masks["control"] == "kept") & ~of_kind(masks["pattern"], LearnedDegrees)]
    known = fixed[GRID].dropna().drop_duplicates()
    return len(known) >= _LEAST and len(known) == math.prod(known.nunique())


def quality_figure(table: pd.DataFrame, unmasked: pd.DataFrame | None = None) -> Figure | None:
    """Draws the metric over the share of masked positions, from `means` or rows like them.

    Graphs, which mask alike, are left to `quality_by_layers`, learned degrees to `quality_by_degrees`.

    Args:
        table: what is drawn.
        unmasked: models without a mask, task by task, of which the title says where they guess; None for those drawn.
    """
    # What is made for the texts of a run has a sparsity at other lengths that says nothing.
    table = within_bounds(table[~of_kind(table["pattern"], TextGraph, LearnedInRun, zeroed=True)])
    if (table["pattern"] == FULL).all():
        return None
    blocks = list(table.groupby(BLOCK, sort=False))
    across = 1 if style.in_column() else min(2, len(blocks))
    # A mask of half of the layers stands where it would stand in all of them.
    parts = "layers" in table and not (table["layers"].isna() | (table["layers"].astype(str) == "all")).all()
    title, width = (
        titled(
            f"Quality under masks{', masked share of their layers alone' * parts}",
            table,
            without_mask(table) if unmasked is None else unmasked,
        ),
        min(style.page_width(), style.FULL_WIDTH * across / 2),
    )
    curves = [curve for _, rows in blocks for curve in mask_curves(rows)]
    single = table[~table["pattern"].isin({FULL, *(pattern for curve in curves for pattern in curve.strengths)})]
    ways = [label for way, (_, label) in WAYS.items() if (single["control"] == way).any()]
    guesses = {_chance_label(rows) for _, rows in blocks} - {""}
    labels = {"no mask", *guesses, *ways, *(curve.label for curve in curves)}
    labels |= {SAME_ANSWER} if (answer_shares(table) >= NEARLY_ALL).any() else set()
    lines = -(-len(labels) // min(3 * across, legend_columns(labels, width)))
    margins = _TOP + style.further_lines(title, width), _BOTTOM + (lines - 1) * _LINE
    columns = [(column + 0.16) / across for column in range(across)], 0.78 / across
    figure, drawn = style.panel_grid(title, len(blocks), width, columns, (_SLOT, _WORDS, _PANEL), margins)
    for axes, ((model, task, metric), rows) in zip(drawn, blocks, strict=True):
        share_axes(axes, f"{metric} on {task}", _PANEL, one_of(table, model), 0.78 * width / across)
        draw_level(axes, without_mask(rows), "no mask")
        draw_masks(axes, rows[rows["pattern"] != FULL])
        axes.set_ylim(no_shorter_than_margin(axes.get_ylim(), rows))
        draw_chance(axes, _chance(rows))
        name_masks(axes, rows[rows["pattern"] != FULL])
    legend_below(figure, drawn, lines)
    return figure


def _chance(rows: pd.DataFrame) -> float:
    """What guessing gives of the metric of a panel, as the rows without a mask have it; NaN if that is not known."""
    full = rows[rows["pattern"] == FULL]
    return float(full[CHANCE].mean()) if CHANCE in full else math.nan


def _chance_label(rows: pd.DataFrame) -> str:
    """The label of the chance level of a panel, as far as is known before its axes are drawn."""
    known = known_values(rows)
    return chance_label(_chance(rows), (known.min(initial=math.inf), known.max(initial=-math.inf)))


def share_axes(axes: Axes, measured: str, height: float, title: str, width: float) -> None:
    """Labels axes for a metric over the share of masked positions, with a title; sizes in inches."""
    style.dress(axes, SHARE_LABEL, style.one_line(measured, height, style.LABEL_SIZE))
    name = style.one_line(title, width, style.TICK_SIZE)
    axes.set_title(name, fontsize=style.TICK_SIZE, fontfamily=font_family(), color=style.INK)


def one_of(rows: pd.DataFrame, model: object) -> str:
    """The name of a model where a table has several, else nothing, as the title of the figure says it."""
    return str(model) if len(set(rows["model"])) > 1 else ""


def titled(title: str, rows: pd.DataFrame, unmasked: pd.DataFrame, *, with_chance: bool = False) -> str:
    """Adds the model to the title of a figure that shows only one, and what its intervals are of.

    Models that give one answer without a mask are named: nothing can be measured of what is masked.

    Args:
        title: of the figure.
        rows: see `means`.
        unmasked: the same models without a mask.
        with_chance: whether to add the chance level, see `level_text`.
    """
    # Masks of several runs may be of fewer seeds than the models without a mask.
    seeds = range_text(float_column(rows, "seeds"), ".0f") if "seeds" in rows else "1"
    of_seeds = f", means of {seeds} seeds" if seeds not in ("", "1") else ""
    of_seeds += ", over examples where these agree" if rows.get("seeds_agree", pd.Series([False])).any() else ""
    level = level_text(rows, CHANCE) if with_chance else ""
    chance = f"; {CHANCE_LABEL} {level}" if level else ""
    title = f"{with_model(title, rows)}\n({intervals_text(rows)}{of_seeds}{chance})"
    return "\n".join([title, *one_answer_lines(unmasked)])


def one_answer_lines(unmasked: pd.DataFrame) -> list[str]:
    """Which models without a mask give (nearly) one answer or only guess, with their tasks where there are several.

    Args:
        unmasked: see `means`.
    """
    rows = unmasked.drop_duplicates(BLOCK[:2])
    several, named = len(set(rows["model"])) > 1, dict[str, list[str]]()
    for share, row in zip(answer_shares(rows), rows.to_dict("records"), strict=True):
        told = silence_text(share, guesses=within_guesses(pd.DataFrame([row])))
        named.setdefault(told, []).append(f"{row['model']}, " * several + str(row["task"]))
    return [f"no mask: {same}" + f" ({'; '.join(names)})" * (len(rows) > 1) for same, names in named.items() if same]


def with_model(title: str, rows: pd.DataFrame) -> str:
    """Adds the model to the title of a figure that shows only one."""
    models = rows["model"].drop_duplicates().astype(str)
    return f"{title}, {models.iloc[0]}" if len(models) == 1 else title


def within_bounds(rows: pd.DataFrame) -> pd.DataFrame:
    """Ends intervals at the bounds of what a metric can be: those of the means of few seeds may reach beyond 1."""
    metrics = rows["metric"].astype(str)
    bounded = ~metrics.isin(UNBOUNDED) & rows["value"].between(-1.0, 1.0)
    low = metrics.map(lowest_value)
    return rows.assign(**{name: rows[name].clip(low, 1.0).where(bounded, rows[name]) for name in VALUES[1:]})


def worth_of_diagonal(masks: pd.DataFrame) -> Figure | None:
    """What is lost or won without the diagonal, and with as many random positions masked instead, task by task.

    Values are differences from the same seeds without a mask, see `means`; the
    dashed line is no difference. A panel per model and metric, a row per task and range of layers.

    Args:
        masks: rows of `masks.csv`, of one run or of several.

    Returns:
        The figure, or None where nothing was trained without the diagonal, or nothing it could be compared with.
    """
    every = means(masks)
    table = every[(every["pattern"] == FULL) & every["control"].isin(list(_CONTROL_LOOKS)) & every["delta"].notna()]
    if not (table["control"] == "dropped").any():
        return None
    drawn = every[every["model"].isin(table["model"]) & every["task"].isin(table["task"])]
    where = ("" if layers == "all" else f", layers {layers}" for layers in table["layers"])
    differences = {value: table[name] for value, name in zip(VALUES, DELTA, strict=True)}
    labelled = table.assign(name=table["task"].astype(str) + list(where), **differences)
    panels = []
    for (model, metric), rows in labelled.groupby(["model", "metric"], sort=False):
        groups = [
            PointGroup(words, colour, control_rows["name"].tolist(), control_rows)
            for control, (words, colour) in _CONTROL_LOOKS.items()
            for control_rows in (rows[rows["control"] == control],)
        ]
        about, names = f"{metric} minus that with full attention", list(dict.fromkeys(rows["name"]))
        panels.append(PointPanel(about, names, groups, _NO_DIFFERENCE, "nothing masked", one_of(table, model)))
    return point_rows(titled("What the diagonal is worth", table, without_mask(drawn)), panels)


def quality_by_layers(masks: pd.DataFrame) -> Figure | None:
    """The metric of every mask, one below the other, a point for each range of layers; a panel per model and task.

    Masks are as they are, nothing dropped. The dashed line is the model without a mask, the band its interval.

    Args:
        masks: rows of `masks.csv`.

    Returns:
        The figure, or None where all masks are fixed patterns that hold in all layers, as `quality_by_pattern` shows.
    """
    table = means(masks)
    table = within_bounds(table[table["control"] == "kept"])
    others = table[table["pattern"] != FULL]
    if others.empty or (set(others["layers"]) == {"all"} and not of_kind(others["pattern"], TextGraph).any()):
        return None
    looks = list(zip(dict.fromkeys(others["layers"].astype(str)), cycle(_LAYER_COLOURS), strict=False))
    panels = []
    for (model, task, metric), block in table.groupby(BLOCK, sort=False):
        full, rows = block[block["pattern"] == FULL], block[block["pattern"] != FULL]
        if rows.empty:
            continue
        names = short_names(rows["pattern"])
        shown, groups = rows["pattern"].astype(str).map(names), []
        for layers, colour in looks:
            chosen = rows["layers"].astype(str) == layers
            label = "all layers" if layers == "all" else f"layers {layers}"
            groups.append(PointGroup(label, colour, shown[chosen].tolist(), rows[chosen]))
        about = f"{metric} on {task}"
        panels.append(PointPanel(about, list(names.values()), groups, full, "no mask", one_of(table, model)))
    title = titled("Quality under masks, by layers", table, without_mask(table), with_chance=True)
    return point_rows(title, panels)
