"""The figures of `headlens train-dam`, and what came of learned masks as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from safetensors.numpy import load_file

from headlens.analyses.dam.figures import CLASS_LABELS, NO_DIAGONAL, MaskPicture, dam_figures
from headlens.attention_masks.named_masks import PROBABILITIES, UNMASKED
from headlens.errors import read_errors
from headlens.findings.verdicts import (
    VERDICTS_KEY,
    known_verdicts,
    taken_away_text,
    verdict_cells,
)
from headlens.findings.without_skill import gives_one_answer, one_answer_after, one_answer_text
from headlens.pages.command_report import Caption, CommandReport, write_results
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
from headlens.plots.curves import (
    FRAMED,
    VALUES,
)
from headlens.plots.head_grid import Grid, float_column
from headlens.runs.folder import RunFolder
from headlens.runs.reading import RecordedRun, rows_of_runs
from headlens.tables.every_table import TABLES
from headlens.tables.mask_tables import CLASSES

PLAIN = "plain"
# What runs without a mask are, in sentences.
_WHEN = {PLAIN: f"{PLAIN} (before training)", UNMASKED: f"{UNMASKED} (trained alike, without a mask)"}
# A metric without the diagonal less that of the same run with it, paired by example.
DIAGONAL_DIFFERENCE = tuple(f"diagonal_{name}" for name in DIFFERENCE)
_SHARES = ("sparsity", "sparsity_texts")


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
    results = dam_markdown(tables["sweep"], tables["positions"]) + markdown_notes(notes)
    write_results(run, tables, dam_figures(tables, masks) if masks else (), results)


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
            parts += _closed_diagonals(group, positions)
    sentences = penalty_sentences(positions) if len(positions) else []
    parts += ["", *sentences] if sentences else []
    if len(positions):
        title = "Importance of positions: mean P of all heads (share of the positions that stay)"
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
    """A line for each λ: what is masked, and every metric, with the diagonal and without it; none without controls."""
    headings = [(escaped(str(metric)), "without it", "difference from the mask with it [paired]") for metric in metrics]
    by_run = {str(run): run_rows for run, run_rows in rows.groupby("run", sort=False)}
    lines = []
    for run, with_diagonal in by_run.items():
        if (dropped := by_run.get(run + NO_DIAGONAL)) is not None:
            line = [escaped(run), *(share_text(float(part["sparsity"].iloc[0])) for part in (with_diagonal, dropped))]
            with_it, without = (_numbers(part, metrics, VALUES) for part in (with_diagonal, dropped))
            differences = _numbers(dropped, metrics, DIAGONAL_DIFFERENCE)
            for one, other, difference in zip(with_it, without, differences, strict=True):
                line += [value_text(*one), value_text(*other), difference_text(*difference)]
            lines.append(line)
    names = ["masked, %", "without it", *(name for parts in headings for name in parts)]
    return markdown_table(["run"], names, lines) if lines else []


def _closed_diagonals(rows: pd.DataFrame, positions: pd.DataFrame) -> list[str]:
    """Names masks that were learned with the diagonal and close it anyway: without it, they are not another mask."""
    runs = set(rows["run"].astype(str))
    learned = positions[positions["mask"].isin(run for run in runs if run + NO_DIAGONAL in runs)]
    kept = learned[learned["class"] == "diagonal"].groupby("mask", sort=False)["kept"].max()
    if not (closed := [escaped(str(mask)) for mask in kept.index[kept == 0]]):
        return []
    verb = "closes" if len(closed) == 1 else "close"
    return [
        "",
        f"{', '.join(closed)} {verb} the diagonal in every head: the two differ by how they were trained alone.",
    ]


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
    return markdown_table(["run"], [CLASS_LABELS.get(name, name) for name in known], lines)


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
    unmasked = sweep[sweep["run"].isin(list(_WHEN))].to_dict("records") if len(sweep) else []
    constant = bool(unmasked) and all(map(gives_one_answer, unmasked))
    for place, row in sweep.to_dict("index").items():
        share = float(row["sparsity_texts"])
        one_answer = one_answer_after(row)
        if place in compared:
            masked = f"{share:.1%} of text positions masked ({row['run']})"
            text = taken_away_text(compared[place], masked, int(tests[row["metric"]]), "masks")
            sentences.append(f"{row['model']}: {text}")
        elif gives_one_answer(row) and np.isfinite(float(row.get("delta", np.nan))) and constant:
            text = one_answer_text(str(row["metric"]), int(row["n"]), "evaluation examples", "masked positions")
            sentences.append(f"{row['model']}, {row['run']}: with and without the mask {text}")
        elif np.isfinite(share):
            measured = f"{row['metric']} on {row['task']} {value_text(*(float(row[name]) for name in VALUES))}"
            run = _WHEN.get(str(row["run"]), row["run"])
            sentences.append(f"{row['model']}, {run}: {share:.1%} of text positions masked, {measured}.{one_answer}")
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
        f"the diagonal. A rim of another colour around a point is another mask in the same place. {FRAMED} "
        "Of models without a mask, the legend says so.",
    ),
    "importance": Caption(
        "Importance of positions",
        "The mean probability P that a position stays, over all heads. On the left by class: the first and last row "
        "and column, the diagonal, its neighbourhood, and the rest. On the right by distance. Masks learned without "
        "the diagonal are in `positions.csv` alone. Dotted: distances whose positions fewer than half of the "
        "training texts have on average. These decide less there: under a penalty P may fall with distance for this "
        "reason alone, and under λ = 0 it stays nearer to 1/2. Hatched: what was not learned, because no training text "
        "has such positions, or the mask holds them open or closed.",
    ),
    "importance_over_training": Caption(
        "Importance of positions, over training",
        "The mean probability P that a position stays, over all heads, by class of positions, from before the first "
        "update to the last: the first and last row and column, the diagonal, its neighbourhood, and the rest. "
        "Dotted lines are the same masks learned without the diagonal.",
    ),
    "mask": Caption(
        "The mask",
        "The positions of every head, queries downwards and keys to the right: white ones stay, dark ones are masked. "
        "Drawn as far as the training texts reach; on later positions the penalty alone decides, and under λ = 0 "
        "chance.",
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
