"""The figures of `headlens relevance`, from the tables it wrote."""

from __future__ import annotations

from collections.abc import Sequence

from headlens.pages.command_report import CommandReport
from headlens.pages.page_tables import PageTable
from headlens.plots.style import named_after
from headlens.relevance_propagation import overviews
from headlens.relevance_propagation.figures import CAPTIONS, RELEVANCE_SOURCES, relevance_figures
from headlens.runs.reading import RecordedRun
from headlens.tables.every_table import TABLES


def _overviews(runs: Sequence[RecordedRun]) -> list[PageTable]:
    makers = overviews.largest_heads_table, overviews.top_heads, overviews.rule_agreement_table
    return [table for make in makers if (table := make(runs)).rows]


REPORT = CommandReport(
    "relevance",
    tables=TABLES["relevance"],
    needed=("relevance",),
    figures=lambda run: named_after(run.corpus_name, relevance_figures(run.tables), run.mask_name),
    captions=CAPTIONS,
    sources=RELEVANCE_SOURCES,
    overviews=_overviews,
    heads=overviews.relevance_heads,
    findings=overviews.relevance_findings,
)
