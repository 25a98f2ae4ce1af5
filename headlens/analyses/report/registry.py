"""The reports of commands: how `headlens report` and results in Python show the runs of each."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pkgutil import iter_modules

import headlens.analyses
from headlens.pages.command_report import CommandReport

# Packages of others register a `CommandReport` of theirs by an entry point of this group.
ENTRY_POINTS = "headlens.reports"


def report_of(command: str) -> CommandReport:
    """Returns how runs of a command are shown; runs of a command without a report have the pictures in their folder."""
    return reports().get(command, CommandReport(command))


@cache
def reports() -> dict[str, CommandReport]:
    """Returns all reports by command: `REPORT` in `report.py` of every analysis, and those of other packages."""
    found = {report.command: report for report in _own()}
    for point in entry_points(group=ENTRY_POINTS):
        found.setdefault(point.name, point.load())
    return found


def _own() -> Iterator[CommandReport]:
    for package in iter_modules(headlens.analyses.__path__, f"{headlens.analyses.__name__}."):
        if package.ispkg and find_spec(f"{package.name}.report") is not None:
            yield import_module(f"{package.name}.report").REPORT
