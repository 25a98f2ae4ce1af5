"""What `headlens report` has to know about a command to show its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from headlens.errors import InputError
from headlens.pages.head_cards import HeadFacts
from headlens.pages.page_tables import PageTable
from headlens.plots.export import Animation
from headlens.runs.reading import Columns, RecordedRun

Figures = Iterator[tuple[str, Figure | None]]
Drawings = Iterator[tuple[str, Figure | Animation | None]]


class Caption(NamedTuple):
    """The title of a figure, and what it shows and how it is read."""

    title: str
    text: str


def no_figures(run: RecordedRun) -> Figures:
    """Nothing is drawn: the page shows the pictures that lie in the folder."""
    del run
    return iter(())


def no_overviews(runs: Sequence[RecordedRun]) -> list[PageTable]:
    """Returns no overview tables, for commands whose report shows only the tables of each run."""
    del runs
    return []


def no_heads(run: RecordedRun) -> HeadFacts:
    """Nothing about single heads."""
    del run
    return HeadFacts()


def no_findings(run: RecordedRun) -> list[str]:
    """Returns no findings, for commands whose report states no results in sentences."""
    del run
    return []


Together = Iterator[tuple[str, Figure | pd.DataFrame | str | None]]


def nothing_left_out(runs: Sequence[RecordedRun]) -> list[str]:
    """For kinds of which several runs leave nothing out."""
    del runs
    return []


def nothing_together(runs: Sequence[RecordedRun]) -> Together:
    """Returns no combined figures, tables or texts, for commands whose runs are reported one by one."""
    del runs
    return iter(())


@dataclass(frozen=True)
class CommandReport:
    """How runs of one command are shown. A new command has one of its own, in a file beside its figures.

    Args:
        command: its name.
        tables: the tables that figures are drawn from, with the columns they need.
        needed: those that no finished run lacks.
        figures: draws a run from its tables, figure by figure.
        captions: by name of the figure; one with more behind it (`syntax_2`, `gates_encoder`) has the caption of what
            stands in front (`syntax`, `gates`) where it has none of its own.
        sources: the tables that figures are drawn from, by name of the figure, as with captions.
        overviews: short tables over all the runs of the command, to be read first.
        heads: what a run tells about single heads.
        findings: what a run found, in a few sentences with their intervals.
        first: of tables too long for a page, the column whose smallest values are shown.
        together: what several runs of the command give together: by name figures, tables, and texts in Markdown, which
            are written where the report goes.
        left_out: what of several runs does not count in these, a sentence each.
    """

    command: str = ""
    tables: Mapping[str, Columns] = field(default_factory=dict)
    needed: tuple[str, ...] = ()
    figures: Callable[[RecordedRun], Drawings] = no_figures
    captions: Mapping[str, Caption] = field(default_factory=dict)
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    overviews: Callable[[Sequence[RecordedRun]], list[PageTable]] = no_overviews
    heads: Callable[[RecordedRun], HeadFacts] = no_heads
    findings: Callable[[RecordedRun], list[str]] = no_findings
    first: Mapping[str, str] = field(default_factory=dict)
    together: Callable[[Sequence[RecordedRun]], Together] = nothing_together
    left_out: Callable[[Sequence[RecordedRun]], list[str]] = nothing_left_out

    @property
    def draws(self) -> bool:
        """Whether figures are drawn from tables."""
        return self.figures is not no_figures

    def check(self, run: RecordedRun) -> None:
        """Look whether a run can be drawn.

        Raises:
            InputError: if a table that a finished run must have is missing, or a table lacks what its figures need.
        """
        lacking = [name for name in self.needed if name not in run.tables] if run.finished else []
        if lacking:
            raise InputError(
                f"{run.folder / lacking[0]}.csv is missing, which every finished run of {run.command} writes.",
                "Run the command again, or leave this run out.",
            )
        for name, columns in self.tables.items():
            if name in run.tables:
                columns.check(run.tables[name], run.folder / f"{name}.csv")
        # Files beside the tables, too, are read before anything is written.
        self.heads(run)

    def caption(self, name: str) -> Caption:
        """Returns the caption of a figure by its name or longest known stem; failing that, one made from the name."""
        known = next((self.captions[stem] for stem in _stems(name) if stem in self.captions), None)
        return known or Caption(name.replace("_", " "), f"figures/{name}.png, as the run drew it.")

    def drawn_from(self, name: str) -> tuple[str, ...]:
        """The tables that a figure is drawn from; none where that is not known."""
        return next((self.sources[stem] for stem in _stems(name) if stem in self.sources), ())


def _stems(name: str) -> Iterator[str]:
    """A name, and what stands in front of each of its underscores, the longest first."""
    parts = name.split("_")
    return ("_".join(parts[:end]) for end in range(len(parts), 0, -1))
