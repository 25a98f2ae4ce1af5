"""Damaged tables and records of real runs of every command: their pages, LaTeX and figures are made, or refused."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from every_command import CASES
from forks import Forks
from fuzz.damage import blows, damaged, damaged_json, fuzzing, told
from fuzz.test_run_folders import shown
from hypothesis import given
from hypothesis import strategies as st

from headlens.analyses.report.options import ReportRequest
from headlens.analyses.report.recipe import run_report
from headlens.analyses.report.registry import report_of_run
from headlens.runs.reading import read_recorded
from headlens.shared_options import OutputOptions

pytestmark = pytest.mark.slow
AT_LENGTH = bool(os.environ.get("HEADLENS_FUZZ"))
at_length = pytest.mark.skipif(not AT_LENGTH, reason="takes half an hour, with HEADLENS_FUZZ=1")


@pytest.fixture(scope="module", params=[case for case in CASES if case != "report"])
def run(request: Any, forks: Forks, command: Callable[[str], list[str]], tmp_path_factory: Any) -> Path:
    """The folder of a run of each command."""
    place: Path = tmp_path_factory.mktemp("real")
    assert forks.run(place, *command(request.param)) == 0, (place / "stderr").read_text()
    return place / "run"


def struck(run: Path, strokes: Any, which: int) -> tuple[Path, bytes]:
    """One of its tables or its record, and what it is after these blows."""
    paths = [run / "run.json", *sorted(run.rglob("*.csv"))]
    path = paths[which % len(paths)]
    whole = path.read_bytes()
    return path, damaged_json(json.loads(whole), strokes) if path.name == "run.json" else damaged(whole, strokes)


def drawn(run: Path) -> list[str]:
    """Draws the figures of a run and writes none; returns their names."""
    found = read_recorded(run, "run")
    report = report_of_run(found)
    report.check(found)
    names = []
    for name, _ in report.figures(found):
        names.append(name)
        plt.close("all")
    return names


def test_what_is_not_damaged_is_drawn(run: Path) -> None:
    """Refusing every run would pass all tests below."""
    found = shown(run)
    assert found.finished
    assert bool(drawn(run)) is report_of_run(found).draws


# What stands in a column, and in how many of its rows; nothing for a column that is gone.
DAMAGE: dict[str, tuple[object, int | None] | None] = {
    "without": None,
    "words": ("x", None),
    "one word": ("x", 1),
    "empty": (None, None),
    "one empty": (None, 1),
    "infinite": (math.inf, None),
    "negative": (-1.5, None),
}


@pytest.mark.parametrize("how", list(DAMAGE))
@pytest.mark.parametrize("show", [shown, pytest.param(drawn, marks=at_length)])
def test_every_column_in_turn(run: Path, how: str, show: Callable[[Path], object]) -> None:
    """Every column is damaged in one of the ways here, and with HEADLENS_FUZZ=1 in all of them."""
    mishandled = []
    turn = itertools.count(list(DAMAGE).index(how))
    for path in sorted(run.rglob("*.csv")):
        whole = path.read_bytes()
        table = pd.read_csv(path)
        try:
            for name in table.columns:
                if next(turn) % len(DAMAGE) and not AT_LENGTH:
                    continue
                other = table.astype({name: object}) if DAMAGE[how] else table.drop(columns=name)
                if damage := DAMAGE[how]:
                    other.loc[other.index[: damage[1]], name] = damage[0]
                other.to_csv(path, index=False)
                try:
                    told(lambda: show(run))
                except Exception as error:
                    at = traceback.extract_tb(error.__traceback__)
                    own = [f"{Path(f.filename).name}:{f.lineno}" for f in at if "/headlens/" in f.filename]
                    mishandled.append(f"{path.name} {name}: {type(error).__name__} {error} {' '.join(own[-3:])}")
        finally:
            path.write_bytes(whole)
    assert not mishandled, "\n".join(mishandled)


@fuzzing(40)
@given(blows(least=1), st.integers(0, 30))
def test_pages_of_damaged_runs(run: Path, strokes: Any, which: int) -> None:
    path, data = struck(run, strokes, which)
    whole = path.read_bytes()
    try:
        path.write_bytes(data)
        assert told(lambda: shown(run))
    finally:
        path.write_bytes(whole)


@fuzzing(4)
@given(blows(most=2, least=1), st.integers(0, 30))
def test_figures_of_damaged_runs(run: Path, strokes: Any, which: int) -> None:
    out = run.parent / "report"
    path, data = struck(run, strokes, which)
    whole = path.read_bytes()
    try:
        path.write_bytes(data)
        assert told(lambda: run_report(ReportRequest((run,), OutputOptions(out), ("png",), latex=True)))
    finally:
        path.write_bytes(whole)
        shutil.rmtree(out, ignore_errors=True)
