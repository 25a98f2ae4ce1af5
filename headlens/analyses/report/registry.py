"""The reports of commands: how `headlens report` and results in Python show the runs of each."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any

import headlens.analyses
from headlens.extensions import Registry, with_extension_errors
from headlens.findings.without_skill import skill_first
from headlens.pages.command_report import CommandReport
from headlens.runs.reading import RecordedRun, read_recorded

# Packages of others register a `CommandReport` of theirs by an entry point of this group.
ENTRY_POINTS = "headlens.reports"


def report_of(command: str) -> CommandReport:
    """Returns the report of a command; one without figures of its own for a command that has none."""
    report = reports().get(command, CommandReport(command))
    ours = reports().is_own(command) or command not in reports()
    return report if ours else with_extension_errors(report, f"The report {command}")


def findings_of_run(command: str, run: RecordedRun) -> list[str]:
    """Returns the findings of a run in sentences; of a command without a report there are none."""
    return skill_first(run.notes, report_of(command).findings(run))


def summary_of(command: str, run: Any) -> dict[str, Any]:
    """Returns what `--json` prints of a finished run: what all commands have, and the summary of its own.

    Args:
        command: name of the command.
        run: what its recipe returned.
    """
    recorded = read_recorded(run.folder, run.folder.name)
    shared = {"command": command, "headlens": headlens.__version__, "rows": recorded.record.get("rows", {})}
    return {**shared, "findings": findings_of_run(command, recorded), **run.summary()}


def report_of_run(run: RecordedRun) -> CommandReport:
    """Returns the report of the run's command with what the run itself declares."""
    report = report_of(run.command)
    return report.declared(report, run)


@cache
def reports() -> Registry[CommandReport]:
    """Returns all reports by command: `REPORT` in `report.py` of every analysis, and those of other packages."""
    packages = [p.name for p in iter_modules(headlens.analyses.__path__, f"{headlens.analyses.__name__}.") if p.ispkg]
    names = [f"{package}.report" for package in packages]
    built_in: list[CommandReport] = [import_module(name).REPORT for name in names if find_spec(name) is not None]
    return Registry(ENTRY_POINTS, {report.command: report for report in built_in}, CommandReport, "report")
