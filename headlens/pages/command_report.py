"""The report of a command: the figures, tables, texts and head facts by which `headlens report` shows its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pandas as pd

from headlens.errors import InputError
from headlens.pages.attention_page import AttentionView
from headlens.pages.head_cards import HeadFacts
from headlens.pages.page_tables import PageTable
from headlens.runs.folder import RunFolder
from headlens.runs.reading import RecordedRun
from headlens.tables.table_check import MEND, check_table
from headlens.tables.table_schema import TableSchema

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Figures: TypeAlias = "Iterator[tuple[str, Figure | None]]"
Together: TypeAlias = "Iterator[tuple[str, Figure | pd.DataFrame | str | None]]"


class Caption(NamedTuple):
    """The title of a figure, and what it shows and how it is read."""

    title: str
    text: str


def write_results(
    run: RunFolder, tables: Mapping[str, pd.DataFrame], figures: Figures | tuple[()], results: str = ""
) -> None:
    """Writes every table as CSV, `results` as results.md, then every figure as PNG and SVG as soon as it is drawn."""
    for name, frame in tables.items():
        run.table(name, frame)
    if results:
        with run.file("results.md") as path:
            path.write_text(results, encoding="utf-8")
    for name, figure in figures:
        run.figure(name, figure)


def no_figures(run: RecordedRun) -> Figures:
    """Draws nothing: the page shows the pictures in the folder of the run."""
    del run
    return iter(())


@dataclass(frozen=True)
class CommandReport:
    """How runs of one command are shown. A new command has one of its own, in a file beside its figures.

    Args:
        command: name of the command.
        tables: the tables that the command writes, by name.
        needed: names of the tables that no finished run lacks.
        figures: draws a run from its tables, figure by figure; with `no_figures` the pictures of the run are shown.
        captions: by name of the figure; a name with a suffix (`syntax_2`, `gates_encoder`) and no caption has that of
            the name without it (`syntax`, `gates`).
        sources: the tables that figures are drawn from, by name of the figure, as with captions.
        columns: by name of a column the figure that draws it, empty for none; by default the first one drawn from a
            table with that column.
        overviews: short tables over all the runs of the command, to be read first.
        heads: facts about the single heads of a run.
        attention: attention on sentences that a run keeps; None where it keeps none.
        findings: the results of a run, in a few sentences with their intervals.
        first: of tables too long for a page, the column whose smallest values are shown.
        together: results of several runs of the command together: by name figures, tables, and texts in Markdown,
            which are written where the report goes.
        left_out: what of several runs does not count in `together`, a sentence each.
        declared: the report with what a run itself declares, such as columns and figures of the metrics it was given.
    """

    command: str = ""
    tables: Mapping[str, TableSchema] = field(default_factory=dict)
    needed: tuple[str, ...] = ()
    figures: Callable[[RecordedRun], Figures] = no_figures
    captions: Mapping[str, Caption] = field(default_factory=dict)
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    overviews: Callable[[Sequence[RecordedRun]], list[PageTable]] = lambda _: []
    heads: Callable[[RecordedRun], HeadFacts] = lambda _: HeadFacts()
    attention: Callable[[RecordedRun], AttentionView | None] = lambda _: None
    findings: Callable[[RecordedRun], list[str]] = lambda _: []
    first: Mapping[str, str] = field(default_factory=dict)
    together: Callable[[Sequence[RecordedRun]], Together] = lambda _: iter(())
    left_out: Callable[[Sequence[RecordedRun]], list[str]] = lambda _: []
    declared: Callable[[CommandReport, RecordedRun], CommandReport] = lambda report, _: report

    @property
    def draws(self) -> bool:
        """Whether figures are drawn from tables; otherwise the page shows the pictures in the folder of the run."""
        return self.figures is not no_figures

    def check(self, run: RecordedRun) -> None:
        """Checks that a run can be drawn.

        Raises:
            InputError: if a table that a finished run must have is missing, or a table lacks what its figures need.
        """
        lacking = [name for name in self.needed if name not in run.tables] if run.finished else []
        if lacking:
            raise InputError(
                f"{run.folder / lacking[0]}.csv is missing, which every finished run of {run.command} writes.",
                MEND,
            )
        for name, schema in self.tables.items():
            if name in run.tables:
                check_table(schema, run.tables[name], run.folder / f"{name}.csv")
        # Reads the files beside the tables, too: errors in them must come before anything is written.
        self.heads(run)

    def is_asked_for(self, figure: str, name: str) -> bool:
        """Whether a name is that of a figure, or of a column that the figure draws."""
        stem = next((stem for stem in _stems(figure) if stem in self.captions), figure)
        if name in self.captions or name == figure:
            return name in (stem, figure)
        if name in self.columns:
            return stem == self.columns[name]
        schemas = [self.tables[table] for table in self.drawn_from(figure) if table in self.tables]
        return any(name in set(schema.names).difference(schema.identity) for schema in schemas)

    def caption(self, name: str) -> Caption:
        """Returns the caption of a figure by its name or longest known stem; failing that, one made from the name."""
        made = Caption(name.replace("_", " "), f"figures/{name}.png, as drawn by the run.")
        return next((self.captions[stem] for stem in _stems(name) if stem in self.captions), made)

    def drawn_from(self, name: str) -> tuple[str, ...]:
        """Returns the tables that a figure is drawn from; none where that is not known."""
        return next((self.sources[stem] for stem in _stems(name) if stem in self.sources), ())


def _stems(name: str) -> Iterator[str]:
    """Yields a name and its beginnings up to each of its underscores, the longest first."""
    parts = name.split("_")
    return ("_".join(parts[:end]) for end in range(len(parts), 0, -1))
