"""How training runs are shown."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from headlens.analyses.training.report import REPORT, training_curve
from headlens.errors import InputError
from headlens.runs.reading import RecordedRun

LOG = pd.DataFrame({"step": [10, 20, 30], "loss": [2.0, 1.5, 1.25]})
HELD = pd.DataFrame({"step": [15, 30], "loss": [1.75, 1.5], "accuracy": [0.5, 0.75]})


def metrics(low: float = 0.625) -> pd.DataFrame:
    row = {"model": "m", "task": "sst2", "data": "dev", "metric": "accuracy", "n": 8, "value": 0.75}
    return pd.DataFrame([{**row, "ci_low": low, "ci_high": 0.875}])


def recorded(**tables: pd.DataFrame) -> RecordedRun:
    return RecordedRun(Path("folder"), "run", {"command": "train"}, tables)


def test_both_losses_are_drawn_where_they_were_measured() -> None:
    figure = training_curve(LOG, HELD)
    assert figure is not None
    training, held = figure.axes[0].lines
    assert list(zip(*training.get_data(), strict=True)) == [(10, 2.0), (20, 1.5), (30, 1.25)]
    assert list(zip(*held.get_data(), strict=True)) == [(15, 1.75), (30, 1.5)]


def test_a_single_point_can_be_seen() -> None:
    figure = training_curve(LOG[:1], pd.DataFrame())
    assert figure is not None
    (line,) = figure.axes[0].lines
    assert line.get_marker() == "o"
    assert training_curve(LOG[:0], HELD) is None


def test_a_report_draws_the_curve_again() -> None:
    ((name, figure),) = REPORT.figures(recorded(log=LOG, evaluations=HELD))
    assert name == "training"
    assert figure is not None
    assert "evaluations" in REPORT.caption(name).text
    assert list(REPORT.figures(recorded())) == []


def test_the_overview_says_what_the_model_achieves() -> None:
    (table,) = REPORT.overviews([recorded(metrics=metrics()), recorded(log=LOG)])
    names = [column.name for column in table.columns]
    cells = dict(zip(names, table.rows[0], strict=True))
    assert (cells["metric"].text, cells["value"].text) == ("accuracy", "0.750")
    assert cells["95 % interval"].text == "0.625 to 0.875"
    assert len(table.rows) == 1
    assert REPORT.overviews([recorded(log=LOG)]) == []


def test_a_task_with_too_few_examples_has_no_interval() -> None:
    (table,) = REPORT.overviews([recorded(metrics=metrics(float("nan")))])
    assert [column.name for column in table.columns][-1] == "value"


def test_a_damaged_log_is_named() -> None:
    with pytest.raises(InputError, match=r"log\.csv"):
        REPORT.check(recorded(log=LOG.drop(columns="loss")))
