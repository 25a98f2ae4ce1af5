"""Words of models and data in figures: formulas are no formulas there, and nothing that hides is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.cbook import is_math_text
from matplotlib.figure import Figure
from matplotlib.text import Text

from headlens.analyses.report.registry import report_of
from headlens.files import read_csv, write_csv
from headlens.plots.export import write_figure
from headlens.runs.reading import read_recorded
from headlens.tables.every_table import word_columns
from headlens.visible_text import visible_text

from .conftest import Headlens
from .test_offline import RUNS, data  # noqa: F401

# Opens a formula and breaks it; one that is whole; what no font has.
HOSTILE = " $\\frac{1$ $x^2$\x1b\u202e"
FREE = (
    "model",
    "task",
    "metric",
    "relation",
    "target",
    "strategy",
    "role",
    "roles",
    "rule",
    "other_rule",
    "run",
    "mask",
)


@pytest.mark.slow
@pytest.mark.parametrize("command", RUNS)
@pytest.mark.usefixtures("data")
def test_no_word_is_a_formula(command: str, headlens: Headlens, made: Any, tiny_bert: Path) -> None:
    has_task, options = RUNS[command]
    done = headlens(command, made("local") if has_task else tiny_bert, *options, "--out", "run")
    assert done.code == 0, done.err
    for path in Path("run").glob("*.csv"):
        frame = read_csv(path, word_columns(command, path.stem))
        for name in {*FREE} & {*frame.columns}:
            frame[name] = frame[name].map(lambda word: f"{word}{HOSTILE}", na_action="ignore")
        write_csv(frame, path)
    figures = [figure for _, figure in report_of(command).figures(read_recorded(Path("run"), HOSTILE))]
    for figure in figures:
        if isinstance(figure, Figure):
            write_figure(figure, "drawn", ("svg",))
            words = [text.get_text() for text in figure.findobj(Text)]
            assert not [text for text in words if is_math_text(text) or visible_text(text) != text]
    assert figures or command in ("attend", "compact")
