"""Every command has a report, and other packages can bring theirs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from headlens import extensions
from headlens.analyses.commands import commands
from headlens.analyses.report import registry
from headlens.pages.command_report import CommandReport


def test_every_command_with_a_recipe_has_a_report() -> None:
    # What these two write is the page itself, and runs of the others.
    assert set(commands()) - {"report", "reproduce"} == set(registry.reports())
    assert all(report.command == name for name, report in registry.reports().items())


def test_reports_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    point = SimpleNamespace(name="outside", group="headlens.reports", value="a:b", dist=None)
    point.load = lambda: CommandReport("outside", needed=("rows",))
    monkeypatch.setattr(extensions, "entry_points", lambda group: [point] if group == "headlens.reports" else [])
    registry.reports.cache_clear()
    try:
        assert registry.report_of("outside").needed == ("rows",)
        assert registry.report_of("classify").command == "classify"
    finally:
        registry.reports.cache_clear()
