"""A table of a paper, with the numbers of our runs beside the published ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from headlens.analyses.reproduce.options import Scale
from headlens.analyses.reproduce.paper_cells import (
    ENDS,
    ComparedColumn,
    matching,
    mean_of,
    measured_number,
    named_cells,
    published_cell_text,
    read_frame,
    step_and_task,
)
from headlens.errors import read_errors
from headlens.nested_text import conform
from headlens.pages.formatting import NOTHING, difference_text, escaped
from headlens.pages.page_tables import Cell, Column, PageTable
from headlens.tables.reproduce_tables import COMPARISON

NOT_RUN = "not run here; needs"
_REMARKS = "remarks"
_WORDS = ("table", "column", "claim", "reading", "step", "verdict", "agreement")
_FILES = "ours"  # the column of names of figures
Source = Literal["paper", "slides"]


@dataclass(frozen=True)
class ComparedRow:
    """A row of a paper's table.

    Args:
        label: name of the row.
        where: cells of the rows of the file that are about it, by column, as in `ComparedColumn`.
        published: the paper's cells, by column; without those that are not known.
        step: of the numbers of this row, where it is not that of the table.
        cells: of single columns, by their names, what stands in the place of the `where` of row and column.
        needs: what is missing for numbers of ours; empty if nothing is.
    """

    label: str
    where: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, float | str] = field(default_factory=dict)
    step: str = ""
    cells: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    needs: str = ""


@dataclass(frozen=True)
class CellSource:
    """Where our number for a cell comes from.

    Args:
        step: the run; empty where nothing is run for it.
        file: of that run.
        where: cells of the rows of the file that count, by column.
        needs: what is missing for it; empty if nothing is.
    """

    step: str
    file: str
    where: Mapping[str, Any]
    needs: str


@dataclass(frozen=True)
class ComparedTable:
    """A table of a paper, or of what stands in for it in the small setting.

    Args:
        title: what it shows, and where in the paper it is.
        columns, rows: its cells.
        step: the run that has our numbers, where columns and rows name no other.
        file: of that run.
        source: where its published cells are printed.
        baseline: a row; agreement says whether differences from it have the paper's sign. Empty for none.
        small: whether it shows stand-ins of the small setting; it has no published cells then.
        scale: of the runs that it shows, where that is given; see `shown_scale`.
    """

    title: str
    columns: tuple[ComparedColumn, ...]
    rows: tuple[ComparedRow, ...]
    step: str = ""
    file: str = ""
    source: Source = "paper"
    baseline: str = ""
    small: bool = False
    scale: Scale = "full"

    @property
    def shown_scale(self) -> Scale:
        """The scale of the runs whose numbers it shows."""
        return "small" if self.small else self.scale

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> ComparedTable:
        """Reads a table from a recipe; a ValueError says what is wrong with it."""
        table: ComparedTable = conform(spec, cls, "a table")
        table.check()
        return table

    def check(self) -> None:
        """Refuses what would put a number nowhere, or where another is meant.

        Raises:
            ValueError: for names that are twice or not there, and cells that neither have a step nor say what they
                need.
        """
        names, labels, place = [c.name for c in self.columns], [r.label for r in self.rows], f"the table {self.title!r}"
        for kind, each in (("columns", names), ("rows", labels)):
            if len(set(each)) < len(each):
                raise ValueError(f"{place} has two {kind} of the same name")
        if self.baseline and self.baseline not in labels:
            raise ValueError(f"{place} has no row {self.baseline!r}, its baseline")
        for column in self.columns:
            if column.against and (column.against not in names or column.against == column.name):
                raise ValueError(f"{place} has no column {column.against!r}, which {column.name!r} is against")
            if not (column.value or column.needs or column.pick == "count"):
                raise ValueError(f"{place}: {column.name!r} has no value and does not say what it needs")
        for row in self.rows:
            self._check_row(row, names, place)

    def _check_row(self, row: ComparedRow, names: Sequence[str], place: str) -> None:
        if self.small and row.published:
            raise ValueError(f"{place} is of the small setting, and its row {row.label!r} has published cells")
        if unknown := (set(row.published) | set(row.cells)) - set(names):
            raise ValueError(f"{place} has no column {min(unknown)!r}, of which {row.label!r} has a cell")
        for column in self.columns:
            twice = [k for k, v in row.where.items() if column.where.get(k, v) != v]
            if twice and column.name not in row.cells:
                raise ValueError(f"{place}: {row.label!r} and {column.name!r} want another {twice[0]!r} each")
            if not all(source.needs or (source.step and source.file) for source in self.sources_of(row, column)):
                cell = f"{row.label!r}, {column.name!r}"
                raise ValueError(f"{place}: the cell {cell} has no step and file, and does not say what it needs")

    def sources_of(self, row: ComparedRow, column: ComparedColumn) -> list[CellSource]:
        """Returns where the number of a cell comes from: one run, or all of those that it is a mean over."""
        where = row.cells.get(column.name, {**row.where, **column.where})
        file, needs = column.file or self.file, row.needs or named_cells(column.needs, where)
        if column.steps:
            parts = [(*step_and_task(name), metric) for name, metric in column.steps.items()]
            return [CellSource(step, file, {**where, **task, "metric": metric}, needs) for step, task, metric in parts]
        return [CellSource(row.step or column.step or self.step, file, where, needs)]

    def sources(self) -> list[CellSource]:
        """Returns where the numbers of all cells come from that do not need anything."""
        cells = (self.sources_of(row, column) for row in self.rows for column in self.columns)
        return [source for sources in cells for source in sources if not source.needs]

    def compared(self, runs: Path, missing: Mapping[str, str] | None = None) -> pd.DataFrame:
        """Returns rows of comparison.csv, one for each cell of the paper's table; agreement is left empty.

        Args:
            runs: the folder that has a folder for each run.
            missing: of runs that were not made, what they would need, by their names.
        """
        read = cache(read_frame)

        def ours(row: ComparedRow, column: ComparedColumn) -> dict[str, Any]:
            numbers = []
            for source in self.sources_of(row, column):
                if needs := source.needs or (missing or {}).get(source.step):
                    return {"not_run": f"needs {needs}"}
                path, wrong = runs / source.step / source.file, f"does not have what {self.title!r} asks for"
                with read_errors(path, wrong, "Correct the table in the recipe."):
                    rows = matching(read(path), source.where)
                    if rows.empty and (column.pick != "count" or not path.is_file()):
                        return {"not_run": f"needs a row of {source.file} that the step {source.step} did not write"}
                    numbers.append(measured_number(rows, column))
            return dict(numbers[0] if len(numbers) == 1 else mean_of(numbers))

        cells = []
        for row, column in product(self.rows, self.columns):
            published = row.published.get(column.name)
            cell = {"table": self.title, "row": row.label, "column": column.name, "published": published}
            cell |= {
                "scale": self.shown_scale,
                "source": "" if published is None else self.source,
                "not_run": "",
                "agreement": "",
            }
            cells.append(cell | dict.fromkeys(("ours", *ENDS)) | ours(row, column))
        return COMPARISON.frame(cells)

    def lines(self, compared: pd.DataFrame, ours: str = "ours") -> list[dict[str, str]]:
        """Returns the table for readers: published cells beside ours, a mapping for each row.

        Its last column, `remarks`, has how far the numbers agree, and what the row needs where it was not run.

        Args:
            compared: the result of `compared`.
            ours: the word for our numbers in the names of columns.
        """
        digits = {column.name: column.digits for column in self.columns}
        lines = []
        for row in self.rows:
            line, needs, words = {"": row.label}, list[str](), dict[str, str]()
            for cell in compared[compared["row"] == row.label].to_dict("records"):
                name = str(cell["column"])
                number, *ends = (published_cell_text(cell[part], digits[name]) for part in ("ours", *ENDS))
                line[f"{name}, {self.source}"] = published_cell_text(cell["published"], digits[name])
                line[f"{name}, {ours}"] = number + ("" if NOTHING in ends else f" [{', '.join(ends)}]")
                if cell["not_run"]:
                    needs.append(cell["not_run"].removeprefix("needs "))
                elif cell["agreement"]:
                    words[name] = cell["agreement"]
            same = len(set(words.values())) == 1
            remarks = list(words.values())[:1] if same else [f"{k}: {v}" for k, v in words.items()]
            remarks += [f"{NOT_RUN} {'; '.join(dict.fromkeys(needs))}"] * bool(needs)
            line[_REMARKS] = "; ".join(remarks) or NOTHING
            lines.append(line)
        # Columns without any number are left out.
        filled = {name for name in (lines[0] if lines else {}) if any(line[name] != NOTHING for line in lines)}
        filled |= {f"{name}, {ours}" for name in digits if f"{name}, {self.source}" in filled}
        return [{name: text for name, text in line.items() if name in filled} for line in lines]


@dataclass(frozen=True)
class ComparedFigure:
    """A figure of a paper, and those of our runs that show the same.

    Args:
        title: what it shows, and where in the paper it is.
        figures: ours, as `STEP/NAME` without the format.
    """

    title: str
    figures: tuple[str, ...]

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> ComparedFigure:
        """Reads a figure from a recipe; a ValueError says what is wrong with it."""
        figure: ComparedFigure = conform(spec, cls, "a figure")
        if not figure.figures or not all("/" in name for name in figure.figures):
            raise ValueError(f"the figure {figure.title!r} names none of ours as STEP/NAME")
        return figure

    @property
    def steps(self) -> list[str]:
        """Names of the steps whose runs have these figures, in their order."""
        return [name.partition("/")[0] for name in self.figures]

    def line(self, runs: Path, missing: Mapping[str, str]) -> dict[str, str]:
        """Returns a row for readers: the figure, the files of ours that are there, and what others need.

        Args:
            runs: the folder that has a folder for each run.
            missing: of runs that were not made, what they would need, by their names.
        """
        here, needs = list[str](), list[str]()
        for step, _, name in (figure.partition("/") for figure in self.figures):
            path = Path(step, "figures", f"{name}.png")
            if step in missing:
                needs.append(f"{NOT_RUN} {missing[step]}")
            elif (runs / path).is_file():
                here.append(path.as_posix())
            else:
                needs.append(f"{path.as_posix()} was not drawn")
        remarks = "; ".join(dict.fromkeys(needs)) or NOTHING
        return {"figure of the paper": self.title, _FILES: ", ".join(here) or NOTHING, _REMARKS: remarks}


def comparison_markdown(tables: Sequence[tuple[str, Sequence[Mapping[str, str]]]]) -> str:
    """Writes tables of `ComparedTable.lines` under their titles, for `comparison.md`."""
    parts, texts = [], {*_WORDS, _FILES, _REMARKS}
    for title, lines in tables:
        columns = tuple(Column(name, numeric=number > 0 and name not in texts) for number, name in enumerate(lines[0]))
        rows = tuple(tuple(Cell(line[column.name]) for column in columns) for line in lines)
        parts.append(f"## {escaped(title)}\n\n{PageTable(title, columns, rows).markdown()}\n")
    return "\n".join(parts)


def in_words(frame: pd.DataFrame) -> list[dict[str, str]]:
    """Returns the words of the tables `agreement` or `claims` for readers, a mapping for each row.

    The difference that a verdict is about follows with its interval or p-value; what a verdict needs stands in its
    place.
    """
    lines = []
    for row in frame.to_dict("records"):
        line = {name: NOTHING if pd.isna(row[name]) else str(row[name]) for name in _WORDS if name in row}
        if "verdict" in line:
            numbers = (float(row[name]) for name in ("difference", *ENDS, "p_value"))
            line["difference"] = difference_text(*numbers)
            line["verdict"] = f"{line['verdict']}: {row['not_run']}" if row["not_run"] else line["verdict"]
        lines.append(line)
    return lines
