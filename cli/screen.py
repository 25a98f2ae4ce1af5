"""What a command shows: progress on stderr, results on stdout."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Advance = Callable[[int], None]


_PIPE = 140  # columns: the widest table


def _width() -> int | None:
    """A terminal knows its width; a pipe has none, where rich would squeeze tables into 80 columns."""
    return None if sys.stdout.isatty() or os.environ.get("COLUMNS") else _PIPE


class Screen:
    """The terminal, as `--json` and `--quiet` want it.

    With `json` the only thing on stdout is the summary; with `quiet` there is nothing at all but errors.
    """

    def __init__(self, *, json: bool, quiet: bool) -> None:
        self._json = json
        self.silent = json or quiet
        self.out = Console(quiet=self.silent, soft_wrap=True, width=_width())
        self.err = Console(stderr=True, quiet=self.silent)

    @contextmanager
    def status(self, text: str) -> Iterator[None]:
        """A spinner while something of unknown length is done."""
        with self.err.status(text):
            yield

    @contextmanager
    def progress(self, text: str, total: int | None) -> Iterator[Advance]:
        """A bar with rate and remaining time."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate("{task.description}"))
        times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        # A pipe or a log file gets no bars.
        hidden = not self.err.is_terminal
        with Progress(*columns, *times, console=self.err, transient=True, disable=hidden) as bar:
            task = bar.add_task(text, total=total)
            yield lambda n: bar.advance(task, n)

    def warn(self, text: str) -> None:
        """Something that cannot wait for the results."""
        self.err.print(f"warning: {text}", markup=False, highlight=False)

    def show(self, *tables: RenderableType) -> None:
        """Prints tables or text to standard output, one after the other."""
        for table in tables:
            self.out.print(table)

    def say(self, sentences: Sequence[str]) -> None:
        """Prints sentences, a line each."""
        for sentence in sentences:
            self.out.print(sentence, markup=False, highlight=False)

    def notes(self, notes: Sequence[str]) -> None:
        """Print what the reader of the results should know."""
        for note in notes:
            self.out.print(f"note: {note}", markup=False, highlight=False)

    def finish(self, summary: Mapping[str, Any], files: Sequence[Path], next_command: str) -> None:
        """Name the files and the next sensible command; or print the summary as JSON."""
        if self._json:
            sys.stdout.write(json.dumps({**summary, "files": [str(f) for f in files]}, indent=2) + "\n")
            return
        if files:
            self.out.print("Written:", highlight=False)
        for folder in dict.fromkeys(f.parent for f in files):
            endings: dict[str, list[str]] = {}
            for file in files:
                if file.parent == folder:
                    endings.setdefault(file.stem, []).append(file.suffix.removeprefix("."))
            names = (f"{n}.{e[0]}" if len(e) == 1 else f"{n}.{{{','.join(e)}}}" for n, e in endings.items())
            self.out.print(f"  {folder}/", "  ".join(names), markup=False, highlight=False)
        self.out.print(f"Next: {next_command}", markup=False, highlight=False)


class _Rate(TextColumn):
    """Column of a progress bar that shows the rate in completed items per second."""

    def render(self, task: Any) -> Any:
        from rich.text import Text

        return Text("" if not task.speed else f"{task.speed:,.0f}/s")
