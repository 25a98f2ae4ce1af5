"""What a command shows: progress on stderr, results on stdout."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from headlens.runs.progress import LONG, Advance, Reporter
from headlens.visible_text import visible_text

from .next_steps import as_started

if TYPE_CHECKING:
    import pandas as pd

_PIPE = 140  # columns: the widest table
_APART = 300.0  # seconds between lines of a log on work that takes long


class Forecast:
    """Estimates once how long work takes as a whole, from its first part that took a second or more.

    Steps that come at once were done before the run was interrupted, and tell nothing about time.

    Args:
        total: number of steps.
        costs: of the steps in their order, where they differ.
        clock: seconds from any start.
    """

    FIRST, AT_ONCE = 1.0, 0.001  # seconds

    def __init__(self, total: int, costs: Sequence[float] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self._total = len(costs) or total
        # Of the steps up to each; of steps that do not differ there may be millions, and their number is enough.
        self._up_to = list(accumulate(costs, initial=0.0)) if costs else None
        self._clock, self._last = clock, clock()
        self._done, self._seconds, self._timed = 0, 0.0, 0.0
        self._told = False

    def seconds(self, steps: int) -> float | None:
        """Adds steps that were done since the last call; 0 begins to measure the time anew.

        Returns:
            The seconds of all steps from first to last, once; None before that is known, and again afterwards.
        """
        if self._told:
            return None
        now = self._clock()
        spent, self._last = now - self._last, now
        before, self._done = self._done, self._done + steps
        if steps and spent > self.AT_ONCE:
            self._seconds += spent
            self._timed += self._cost(self._done) - self._cost(before)
        left = self._cost(self._total) - self._cost(self._done)
        if self._seconds < self.FIRST or not (left and self._timed):
            return None
        self._told = True
        return self._seconds * (1 + left / self._timed)

    def _cost(self, steps: int) -> float:
        """Returns the cost of the first steps."""
        known = min(steps, self._total)
        return float(known) if self._up_to is None else self._up_to[known]


class Screen(Reporter):
    """The terminal, as `--json` and `--quiet` want it.

    With `json` the only thing on stdout is the summary; with `quiet` there is nothing at all but errors.
    """

    def __init__(self, *, json: bool, quiet: bool) -> None:
        self._json = json
        self.silent = json or quiet
        # A terminal knows its width; a pipe has none, where rich would squeeze tables into 80 columns.
        width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else _PIPE
        self.out = Console(quiet=self.silent, soft_wrap=True, width=width)
        self.err = Console(stderr=True, quiet=self.silent)

    def status(self, text: str) -> AbstractContextManager[Any]:
        """A spinner while something of unknown length is done."""
        return self.err.status(_line(text))

    @contextmanager
    def progress(self, text: str, total: int | None, costs: Sequence[float] | None = ()) -> Iterator[Advance]:
        """A bar with rate and remaining time; and, once it is known, a line with the time of work that takes long."""
        forecast, done = Forecast(total or 0, costs or ()), 0
        bound, order = ("at least", ", short ones first") if costs is None else ("about", "")
        name = TextColumn("{task.description}", markup=False)
        columns = (name, BarColumn(), MofNCompleteColumn(), _Rate("{task.description}"))
        times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        # A pipe or a log file gets no bars, but a line from time to time.
        hidden, told = not self.err.is_terminal, time.monotonic()
        with Progress(*columns, *times, console=self.err, transient=True, disable=hidden) as bar:
            task = bar.add_task(visible_text(text, ""), total=total)

            def advance(steps: int) -> None:
                nonlocal done, told
                done += steps
                bar.advance(task, steps)
                if hidden and time.monotonic() - told > _APART and total:
                    told = time.monotonic()
                    self.remark(f"{text}: {done:,} of {total:,}")
                if (seconds := forecast.seconds(steps)) is not None and seconds > LONG:
                    self.remark(
                        f"{text}: {bound} {duration(seconds)}, estimated from the first {done:,} of {total:,}{order}"
                    )

            yield advance

    def remark(self, text: str) -> None:
        """Prints a sentence about unfinished work, such as how long it will take; the bar goes on below it."""
        self.err.print(_line(text), soft_wrap=True)

    def warn(self, text: str) -> None:
        """Something that cannot wait for the results."""
        self.err.print(_line(f"warning: {text}"))

    def show(self, *tables: Table | str) -> None:
        """Prints tables of `PageTable`, or text, to standard output, one after the other."""
        for table in tables:
            self.out.print(table if isinstance(table, Table) else Text(visible_text(table)))

    def table(
        self, title: str, rows: Sequence[Mapping[str, object]] | pd.DataFrame, caption: str | None = None
    ) -> None:
        """Prints a short table, see `summary_table`."""
        from headlens.pages.page_tables import summary_table

        table = summary_table(title, rows)
        table.caption = caption
        self.show(table)

    def say(self, sentences: Sequence[str]) -> None:
        """Prints sentences, a line each."""
        for sentence in sentences:
            self.out.print(_line(sentence))

    def findings(self, name: str, run: Any) -> None:
        """Prints the findings of the run of a command, a line each, as its page and `--json` have them."""
        from headlens.analyses.report.registry import findings_of_run
        from headlens.runs.reading import read_recorded

        self.say(findings_of_run(name, read_recorded(run.folder, run.folder.name)))

    def notes(self, notes: Sequence[str]) -> None:
        """Print what the reader of the results should know."""
        for note in notes:
            self.out.print(_line(f"note: {note}"))

    def finish_run(self, name: str, run: Any, next_command: str) -> None:
        """Name the files of a run and the next sensible command; or print the run of a command as JSON."""
        summary = {}
        if self._json:
            from headlens.analyses.report.registry import summary_of

            summary = summary_of(name, run)
        self.finish(summary, run.files, next_command)

    def finish(self, summary: Mapping[str, Any], files: Sequence[Path], next_command: str) -> None:
        """Name the files and the next sensible command, empty for none; or print the summary as JSON."""
        if self._json:
            from headlens.files import plain_value

            # What is not known is null: NaN is no JSON.
            text = json.dumps(plain_value({**summary, "files": [str(f) for f in files]}), indent=2, allow_nan=False)
            # JSON leaves one control character as it is.
            sys.stdout.write(visible_text(text.replace("\x7f", "\\u007f")) + "\n")
            return
        if files:
            self.out.print(_line("Written:"))
        for folder in dict.fromkeys(f.parent for f in files):
            endings: dict[str, list[str]] = {}
            for file in files:
                if file.parent == folder:
                    endings.setdefault(file.stem, []).append(file.suffix.removeprefix("."))
            names = (f"{n}.{e[0]}" if len(e) == 1 else f"{n}.{{{','.join(e)}}}" for n, e in endings.items())
            self.out.print(_line(f"  {folder}/ {'  '.join(names)}"))
        if next_command:
            self.out.print(_line(f"Next: {as_started(next_command)}"))


def duration(seconds: float) -> str:
    """Seconds as people say them, no finer than an estimate is: `40 s`, `12 min`, `3.5 h`, `4 days`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{round(seconds / 86400)} days"


def bounds(row: Mapping[Any, Any], digits: int) -> str:
    """Returns the interval of a row as `0.12 to 0.34`; there is none of too few examples, or where all are alike."""
    low, high = row["ci_low"], row["ci_high"]
    return "no interval" if math.isnan(low) else f"{low:.{digits}f} to {high:.{digits}f}"


def _line(text: str) -> Text:
    """A line in which nothing is read as markup, emoji or command, and nothing is coloured."""
    return Text(visible_text(text, ""))


class _Rate(TextColumn):
    """Column of a progress bar that shows the rate in completed items per second."""

    def render(self, task: Any) -> Any:
        return Text("" if not task.speed else f"{task.speed:,.0f}/s")


def show_plan(request: Any, screen: Screen, resumed: Path | None = None) -> None:
    """Print what would be done for a request, or with --json the plan as JSON.

    Args:
        request: of a command.
        screen: where.
        resumed: the folder of the run that would be gone on with.
    """
    from headlens.heads import layers_text
    from headlens.planning.plan import plan_of
    from headlens.runs.folder import check_resumable

    plan = plan_of(request, screen)
    if resumed is not None:
        check_resumable(resumed, plan.command)
    models = [
        {
            "model": m.name,
            "heads": "; ".join(f"{stack}: {layers_text(heads)}" for stack, heads in m.stacks.items()),
            "parameters": f"{m.parameters / 1e6:.1f} million",
            "weights": size_text(m.weight_bytes),
            "source": m.source,
        }
        for m in plan.models
    ]
    data = [
        {
            "data": d.name,
            "examples": "unknown" if d.examples is None else f"{d.examples:,}",
            "tokens (approx.)": "unknown" if d.tokens is None else f"{d.tokens:,.0f}",
            "source": d.source,
        }
        for d in plan.data
    ]
    work = [
        {"step": number, "work": w.text, "time (approx.)": "unknown" if s is None else duration(s)}
        for number, (w, s) in enumerate(zip(plan.work, plan.seconds, strict=True), 1)
    ]
    for title, rows in (("Models", models), ("Data", data), ("Planned steps", work)):
        if rows:
            screen.table(title, rows)
    memory = f"about {size_text(plan.bytes)} of memory" if plan.models else "hardly any memory"
    if plan.total is None:
        total = f"How long it takes on {plan.device} depends on data that is not available here; it needs {memory}."
    else:
        total = f"About {duration(plan.total)} on {plan.device}, estimated from batches timed just now, and {memory}."
    screen.notes([total, *plan.notes])
    command = [word for word in sys.argv[1:] if word != "--dry-run"]
    screen.finish(plan.summary(), [], shlex.join(["headlens", *command]))


def size_text(size: float) -> str:
    """Formats a number of bytes as decimal megabytes or gigabytes, such as `1.5 GB`; at least `1 MB`."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{max(1, round(size / 1e6))} MB"
