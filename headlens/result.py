"""What the functions of `headlens` return: tables, notes, figures, and a run folder that can be kept."""

from __future__ import annotations

import base64
import io
import shutil
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
from markupsafe import escape

from headlens.analyses.report.registry import findings_of_run, report_of, report_of_run
from headlens.errors import OptionError
from headlens.files import output_errors
from headlens.option_values import check_text, folder
from headlens.pages.attention_page import page_of_view
from headlens.pages.command_report import CommandReport
from headlens.pages.self_contained import notebook_frame
from headlens.plots.style import WIDTHS, drawn_for
from headlens.runs.folder import RunFolder
from headlens.runs.reading import RecordedRun, read_recorded
from headlens.visible_text import visible_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def given_folder(given: Any, advice: str) -> Path:
    """Returns the folder of a run that is given by its name or as a result.

    Raises:
        OptionError: if it can be no folder; `advice` shows the right call.
    """
    if isinstance(given, Result):
        return given.folder
    try:
        place = folder(given)
        check_text("The folder", str(place), is_place=True)
    except (ValueError, OptionError) as error:
        raise OptionError(f"{given!r} names no folder.", advice) from error
    return place


class Result:
    """The result of a command.

    Args:
        command: its name.
        run: what its recipe returned: folder, notes, summary and, where they are at hand, tables.
        temporary: a folder that goes with the result; `save` keeps what is in it.
        draw: draws the figures of the run; None for those of its report.
        parts: other results to keep alive as long as this one.

    Attributes:
        command: the name of the command.
        folder: the run folder, with the same content as on the command line.
        notes: things to know when reading the numbers.
        summary: a short summary of the result, as printed by `--json` beside what all commands have; empty for a
            folder that was read.
    """

    def __init__(
        self,
        command: str,
        run: Any,
        temporary: Path | None = None,
        draw: Callable[[RecordedRun], Iterator[tuple[str, Figure | None]]] | None = None,
        parts: Sequence[Any] = (),
    ) -> None:
        self.command = command
        self.folder: Path = run.folder
        self.notes: list[str] = list(run.notes)
        self.summary: dict[str, Any] = {} if isinstance(run, RecordedRun) else run.summary()
        self._tables: Mapping[str, pd.DataFrame] | None = getattr(run, "tables", None)
        if temporary is not None:
            weakref.finalize(self, shutil.rmtree, temporary, ignore_errors=True)
        self._draw = draw or self._report.figures
        self._parts = parts

    @classmethod
    def read(cls, folder: str | Path) -> Result:
        """Reads a run folder: an earlier run, or one of another machine, whose model need not be there.

        Raises:
            InputError: if the folder, its `run.json` or a table is missing or cannot be read.
        """
        place = given_folder(folder, 'Write headlens.Result.read("runs/mine").')
        recorded = read_recorded(place, place.name)
        return cls(recorded.command, recorded)

    @cached_property
    def tables(self) -> Mapping[str, pd.DataFrame]:
        """The tables by name, as the command writes them to CSV files."""
        return self._recorded.tables if self._tables is None else dict(self._tables)

    @cached_property
    def findings(self) -> list[str]:
        """The main findings of the run, in a few sentences with intervals."""
        return findings_of_run(self.command, self._recorded)

    @cached_property
    def figures(self) -> dict[str, Figure]:
        """The figures by name, drawn from the tables when they are first asked for."""
        return dict(self._drawn())

    def plot(self, name: str | None = None, width: Literal["full", "column"] = "full") -> Figure:
        """Returns a figure by its name or that of a column that it draws; the main figure if no name is given.

        Args:
            name: of the figure, or of a column.
            width: that of a page, or of one of two columns, as for `headlens report --width`.

        Raises:
            OptionError: if there is no such figure, or none at all, or no such width.
        """
        if width not in list(WIDTHS):
            inches = ", ".join(f'"{known}" ({wide:g} inches)' for known, wide in WIDTHS.items())
            raise OptionError(f"width {width!r} is unknown.", f"Choose one of {inches}.")
        if not isinstance(name, str | None):
            raise OptionError(f"{name!r} is no name of a figure.", f"There are {', '.join(self.figures)}.")
        report = report_of_run(self._recorded)
        with drawn_for(width):
            for known, figure in self._drawn() if width == "full" else self._draw(self._recorded):
                if figure is not None and (name is None or report.is_asked_for(known, name)):
                    return figure
        names = ", ".join(self.figures)
        columns = [str(column) for table in self.tables.values() for column in table]
        close = get_close_matches(name or "", [*self.figures, *columns], n=1)
        raise OptionError(
            f"{self.command} has no figure {name!r}." if name is not None else f"{self.command} has no figures.",
            (f"Did you mean {close[0]}? " if close and close[0] != name else "")
            + (f"There are {names}." if names else "Look at its tables."),
        )

    def save(self, folder: str | Path, *, overwrite: bool = False, figures: bool = True) -> Path:
        """Writes the run folder, as the command line does: tables, figures, run.json, and models or masks if any.

        Args:
            folder: where to write it.
            overwrite: whether to replace an existing run.
            figures: whether figures are drawn.

        Raises:
            OutputError: if the folder holds something else, or cannot be written.
        """
        place = given_folder(folder, 'Write result.save("runs/mine").')
        if place.resolve() == self.folder.resolve():
            return place
        model = str(self._recorded.record.get("model"))
        with RunFolder.create(place, command=self.command, model=model, overwrite=overwrite):
            pass
        with output_errors(place):
            shutil.copytree(self.folder, place, dirs_exist_ok=True)
        if figures and not self._recorded.pictures:
            with RunFolder.reopen(place) as run:
                for name, figure in self._drawn():
                    run.figure(name, figure)
        return place

    def __repr__(self) -> str:
        """The command, its models, its tables and what it found first."""
        tables = ", ".join(f"{name} ({len(table)} rows)" for name, table in self.tables.items())
        lines = [f"headlens {self.command} of {', '.join(self._recorded.models)}: {tables or 'no table'}"]
        return visible_text("\n".join([*lines, *(f"  {text}" for text in self.findings[:3])]))

    def _repr_html_(self) -> str:
        """The result in a notebook: what was found, what to know, and attention to be explored or the main figure."""
        findings = "".join(f"<li>{escape(visible_text(text))}</li>" for text in self.findings)
        notes = "".join(f"<li>{escape(visible_text(text))}</li>" for text in self.notes)
        title = escape(visible_text(f"headlens {self.command} of {', '.join(self._recorded.models)}"))
        tables = escape(", ".join(f"{name} ({len(table)})" for name, table in self.tables.items()))
        parts = [
            f"<h4>{title}</h4>",
            f"<ul>{findings}</ul>" if findings else "",
            f"<p>Tables: {tables}</p>" if tables else "",
        ]
        parts += [f"<details><summary>Notes</summary><ul>{notes}</ul></details>" if notes else ""]
        if (view := self._report.attention(self._recorded)) is not None and not tables:
            page = page_of_view(f"Attention of {' and '.join(view.states)}", view)
            return "".join([*parts, notebook_frame(page, f"headlens {self.command}")])
        main = next((figure for _, figure in self._drawn()), None)
        if main is not None:
            picture = io.BytesIO()
            main.savefig(picture, format="png", dpi=110)
            data = base64.b64encode(picture.getvalue()).decode("ascii")
            parts.append(f'<img alt="{title}" src="data:image/png;base64,{data}" style="max-width: 100%">')
        return "".join(parts)

    @property
    def _report(self) -> CommandReport:
        return report_of(self.command)

    @cached_property
    def _recorded(self) -> RecordedRun:
        return read_recorded(self.folder, self.folder.name)

    def _drawn(self) -> Iterator[tuple[str, Figure]]:
        if "figures" in self.__dict__:
            yield from self.figures.items()
            return
        for name, figure in self._draw(self._recorded):
            if figure is not None:
                yield name, figure
