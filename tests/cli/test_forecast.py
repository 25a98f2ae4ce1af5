"""How long work takes, by its first part."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import pytest

from headlens_cli.screen import Forecast, Screen, bounds


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def told(forecast: Forecast, clock: Clock, steps: Sequence[tuple[float, int]]) -> list[float | None]:
    """What is told after steps, each with the seconds since the one before."""
    found = []
    for seconds, number in steps:
        clock.now += seconds
        found.append(forecast.seconds(number))
    return found


def test_it_is_told_once_after_a_second() -> None:
    clock = Clock()
    assert told(Forecast(40, (), clock), clock, [(0.5, 2), (0.5, 2), (0.5, 2)]) == [None, pytest.approx(10.0), None]


def test_steps_that_cost_more_come_later() -> None:
    clock = Clock()
    assert told(Forecast(4, (1, 1, 4, 4), clock), clock, [(2.0, 2)]) == [pytest.approx(10.0)]


def test_what_was_done_before_takes_no_time() -> None:
    """Neither do steps that are loaded at once, nor what comes before the first."""
    clock = Clock()
    steps = [(30.0, 0), (0.0, 50), (2.0, 10)]
    assert told(Forecast(100, (), clock), clock, steps) == [None, None, pytest.approx(10.0)]


@pytest.mark.parametrize("total", [0, 3])
def test_nothing_is_told_at_the_end_or_without_a_total(total: int) -> None:
    clock = Clock()
    assert told(Forecast(total, (), clock), clock, [(9.0, 3)]) == [None]


def test_millions_of_steps_need_no_list_of_them() -> None:
    clock = Clock()
    tracemalloc.start()
    forecast = Forecast(10**8, (), clock)
    found = told(forecast, clock, [(0.5, 10**6), (0.5, 10**6), (0.5, 10**6)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [None, pytest.approx(50.0), None]
    assert peak < 10**5


def test_an_interval_that_is_not_there_is_said_to_be_none() -> None:
    assert bounds({"ci_low": float("nan"), "ci_high": float("nan")}, 2) == "no interval"
    assert bounds({"ci_low": -0.1, "ci_high": 0.25}, 2) == "-0.10 to 0.25"


def test_a_log_gets_a_line_from_time_to_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bars are for terminals; what takes hours is seen to go on, and what is done at once says nothing."""
    now = [0.0]
    monkeypatch.setattr("headlens_cli.screen.time.monotonic", lambda: now[0])
    screen = Screen(json=False, quiet=False)
    with screen.progress("training (updates)", 1000) as advance:
        for _ in range(8):
            now[0] += 100.0
            advance(50)
    shown = capsys.readouterr().err.splitlines()
    assert [line for line in shown if "estimated" not in line] == [
        "training (updates): 200 of 1,000",
        "training (updates): 400 of 1,000",
    ]
    with screen.progress("reading", 3) as advance:
        advance(3)
    assert not capsys.readouterr().err
