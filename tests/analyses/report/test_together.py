"""What several runs of one command give together is written once, and shown with the first of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made_runs import write_other

from headlens.analyses.report import recipe
from headlens.analyses.report.options import ReportRequest
from headlens.pages.command_report import CommandReport, Together
from headlens.plots.style import new_figure
from headlens.runs.reading import RecordedRun
from headlens.shared_options import OutputOptions


def test_tables_texts_and_figures_of_several_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [write_other(tmp_path / name) for name in ("one", "other")]

    def together(recorded: Sequence[RecordedRun]) -> Together:
        assert [run.folder for run in recorded] == runs
        results: dict[str, Any] = {
            "all_tasks": pd.DataFrame({"task": ["sst2"]}),
            "summary": "# Both\n",
            "both": new_figure(2, 1),
            "none": None,
        }
        yield from results.items()

    shown = CommandReport(together=together, left_out=lambda _: ["other does not count."])
    monkeypatch.setattr(recipe, "report_of", lambda _: shown)
    done = recipe.run_report(ReportRequest(tuple(runs), OutputOptions(out=tmp_path / "page")))
    names = {path.name for path in done.files}
    assert {"all_tasks.csv", "summary.md", "both.png", "report.html"} <= names
    assert any("other does not count." in note for note in done.notes)
    assert (tmp_path / "page" / "summary.md").read_text(encoding="utf-8") == "# Both\n"
