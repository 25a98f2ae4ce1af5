"""The figures of `headlens prune`, from the tables it wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from headlens.analyses.prune import results_table as results
from headlens.analyses.prune.gate_figures import gate_maps, kept_by_layer
from headlens.analyses.prune.sweep_figures import gate_quality, roles_kept
from headlens.pages.command_report import Caption, CommandReport, Figures, write_results
from headlens.pages.formatting import markdown_notes
from headlens.pages.page_tables import PageTable
from headlens.plots.curves import FRAMED
from headlens.runs.folder import RunFolder
from headlens.runs.reading import RecordedRun
from headlens.tables.every_table import TABLES


def gate_figures(tables: Mapping[str, pd.DataFrame]) -> Figures:
    """Draw every figure one after the other, so that only one is in memory.

    Args:
        tables: `sweep`, `gates` and `roles`, as far as there: rows of the CSV files, of one model or several.

    Yields:
        Name of the figure, and the figure; None where there is nothing to draw.
    """
    gates = tables.get("gates")
    if "sweep" in tables:
        yield "quality", gate_quality(tables["sweep"], gates)
    if gates is not None:
        yield "kept", kept_by_layer(gates)
    if "roles" in tables:
        yield "functions", roles_kept(tables["roles"])
        if tables["roles"].get("role_pruned", pd.Series(dtype=object)).notna().any():
            yield "functions_after", roles_kept(tables["roles"], "role_pruned")
    if gates is not None:
        yield from gate_maps(gates)


def write_gates(
    run: RunFolder, tables: Mapping[str, pd.DataFrame], notes: Sequence[str] = (), *, figures: bool = True
) -> None:
    """Write every table as CSV, the results as CSV and Markdown, then, if wanted, every figure.

    Args:
        run: the folder, started.
        tables: `gates` and `sweep`, and `roles` where they are known.
        notes: what to know about the numbers, such as the chance level.
        figures: whether to draw.
    """
    write_results(run, {**tables, "results": results.results_table(tables["sweep"])}, ())
    text = results.results_markdown(tables["sweep"]) + markdown_notes(notes)
    with run.file("results.md") as path:
        path.write_text(text, encoding="utf-8", newline="\n")
    write_results(run, {}, gate_figures(tables) if figures else ())


def _overviews(runs: Sequence[RecordedRun]) -> list[PageTable]:
    makers = results.results_overview, results.remaining_heads, results.lasting_roles
    return [table for make in makers if (table := make(runs)).rows]


CAPTIONS = {
    "quality": Caption(
        "Quality by heads left",
        "Task performance with fewer heads, with 95 % intervals: blue for models that were trained and then pruned, "
        "orange for the same architectures trained from scratch. Dashed lines with bands are the models with all "
        "heads; the dotted line is the chance level, where it is not far below. The penalty λ that left this number of "
        "heads is printed above. If models from scratch were trained "
        "for as long as the model itself, and orange falls faster below its dashed line than blue, the heads that are "
        "gone do more for learning the task than for doing it. Intervals are of each model alone: whether the task "
        f"needs the heads that are gone, the paired differences and verdicts in the table tell. {FRAMED}",
    ),
    "kept": Caption(
        "Heads left per layer",
        "How many heads every layer keeps, from weak penalties λ on the left to strong ones on the right; white layers "
        "keep none. Rows that fade from dark to white are layers whose heads the penalty closes.",
    ),
    "functions": Caption(
        "Roles of the heads that are left",
        "A bar for every run, from most heads to fewest, and how many heads are left in it whose first role is each of "
        "these. Roles are those that heads had in the unpruned model: a colour that is still there on the right is a "
        "role that dies last (Voita et al. 2019, figure 8).",
    ),
    "functions_after": Caption(
        "Roles after pruning",
        "The same heads by the first role that they have in the pruned models. One that grows here may have been the "
        "second role of a head before, as roles.csv tells; whether heads took over what pruned ones did was not "
        "measured. The first bar is the unpruned model.",
    ),
    "gates": Caption(
        "Gates during training",
        "Some updates of every run, from weak penalties λ above to strong ones below. Each cell is the gate of a head "
        "when the model is used: dark heads are fully open, white ones are closed, which removes the head. The number "
        "of open gates is printed above each panel.",
    ),
}

REPORT = CommandReport(
    "prune",
    tables=TABLES["prune"],
    needed=("gates", "sweep"),
    figures=lambda run: gate_figures(run.tables),
    captions=CAPTIONS,
    sources={
        "quality": ("sweep", "gates"),
        "kept": ("gates",),
        "functions": ("roles",),
        "gates": ("gates",),
    },
    overviews=_overviews,
    heads=results.gate_heads,
    findings=results.gate_findings,
)
