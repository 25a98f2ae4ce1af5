"""What `headlens report` has to know about a command to show its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from headlens.errors import InputError
from headlens.report.images import Animation
from headlens.report.page_tables import PageTable
from headlens.report.recorded import Columns, RecordedRun

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
    """No tables but those of the run."""
    del runs
    return []


Together = Iterator[tuple[str, Figure | pd.DataFrame | str | None]]


def nothing_together(runs: Sequence[RecordedRun]) -> Together:
    """Each run stands alone."""
    del runs
    return iter(())


@dataclass(frozen=True)
class Kind:
    """How runs of one command are shown. A new command has one of its own, in a file beside its figures.

    Args:
        tables: the tables that figures are drawn from, with the columns they need.
        needed: those that no finished run lacks.
        figures: draws a run from its tables, figure by figure.
        captions: by name of the figure; one with more behind it (`syntax_2`, `gates_encoder`) has the caption of what
            stands in front (`syntax`, `gates`) where it has none of its own.
        overviews: short tables over all the runs of the command, to be read first.
        first: of tables too long for a page, the column whose smallest values are shown.
        together: what several runs of the command give together: by name figures, tables, and texts in Markdown, which
            are written where the report goes.
    """

    tables: Mapping[str, Columns] = field(default_factory=dict)
    needed: tuple[str, ...] = ()
    figures: Callable[[RecordedRun], Drawings] = no_figures
    captions: Mapping[str, Caption] = field(default_factory=dict)
    overviews: Callable[[Sequence[RecordedRun]], list[PageTable]] = no_overviews
    first: Mapping[str, str] = field(default_factory=dict)
    together: Callable[[Sequence[RecordedRun]], Together] = nothing_together

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

    def caption(self, name: str) -> Caption:
        """Title and text for a figure."""
        parts = name.split("_")
        stems = ("_".join(parts[:end]) for end in range(len(parts), 0, -1))
        known = next((self.captions[stem] for stem in stems if stem in self.captions), None)
        return known or Caption(name.replace("_", " "), f"figures/{name}.png, as the run drew it.")
