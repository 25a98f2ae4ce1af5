"""Figures are found by their names, and by those of the columns that they draw."""

from __future__ import annotations

import pytest

from headlens.pages.command_report import Caption, CommandReport
from headlens.tables.table_schema import TableSchema, index, number

_CAPTION = Caption("title", "text")
REPORT = CommandReport(
    "made",
    tables={
        "heads": TableSchema("heads", "A head.", (index("head", "It."), number("sure", "It."), number("n", "It."))),
        "runs": TableSchema(
            "runs", "A run.", (index("run", "It."), number("lost", "It."), number("n", "It.")), ("run",)
        ),
    },
    captions=dict.fromkeys(("map", "map_of_runs", "lost"), _CAPTION),
    sources={"map": ("heads",), "map_of_runs": ("runs",), "curve": ("runs", "not written")},
    columns={"sure": "map", "n": ""},
)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("map", ["map", "map_2"]),
        ("map_2", ["map_2"]),
        ("map_of_runs", ["map_of_runs"]),
        ("curve", ["curve"]),
        ("sure", ["map", "map_2"]),  # a column that is said to be drawn there
        ("n", []),  # one that is said to be drawn nowhere
        ("lost", []),  # a figure of that name, and a column of runs: the figure counts
        ("run", []),  # tells rows apart
        ("nonsense", []),
        ("", []),
    ],
)
def test_figures_and_columns(name: str, found: list[str]) -> None:
    drawn = ["map", "map_2", "map_of_runs", "curve"]
    assert [figure for figure in drawn if REPORT.is_asked_for(figure, name)] == found


def test_a_column_is_drawn_by_the_figures_of_its_table() -> None:
    report = CommandReport("made", tables=REPORT.tables, sources=REPORT.sources)
    assert [figure for figure in ("map", "map_of_runs", "curve") if report.is_asked_for(figure, "lost")] == [
        "map_of_runs",
        "curve",
    ]
    assert report.is_asked_for("map", "sure")
