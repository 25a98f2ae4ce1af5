"""What every test costs in CPU seconds, and the budget that the default tier keeps.

`pytest -n auto -m "" --write-durations` records `durations.json`. With `--cpu-budget`, which CI gives, a run fails
that has a default test above `MOST_OF_ONE` CPU seconds, or default tests above `MOST_OF_ALL` together. What several
tests share (fixtures of a module or a session) is counted once, under its own name. CPU time and not wall time,
because what else the machine does hardly changes it; of a slower machine more is accepted, as much as the median test
takes longer there than is recorded. For the same reason a new record is divided by that: it stays in the seconds of the
machine of the first one.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest

DURATIONS = Path(__file__).with_name("durations.json")
TIERS = ("default", "slow")
MOST_OF_ONE, MOST_OF_ALL = 1.0, 480.0
# A test alone was measured at up to three times as much on a machine with neighbours, and all of them at up to .12 more
# than the median test tells, since imports cost more there. The record is of a quiet machine; tests there vary by half.
TOLERANCE, TOLERANCE_OF_ALL, TOLERANCE_OF_RECORD = 3.0, 1.25, 1.5
_LISTED = 0.1  # seconds; cheaper tests stand in the record as one sum of their file
REST = "(cheaper ones)"


def cpu_seconds() -> float:
    """CPU seconds of this process and of the programs that it has waited for."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def load_durations() -> dict[str, dict[str, dict[str, float]]]:
    """The record: CPU seconds by tier (`default` or `slow`), file and test."""
    return {name: tier for name, tier in json.loads(DURATIONS.read_text(encoding="utf-8")).items() if name in TIERS}


class Costs:
    """What the tests of a run cost, as it is collected where they run and handed to where it is told.

    Attributes:
        tests: CPU seconds by tier and by the id of the test.
        shared: CPU seconds of fixtures that several tests share, all processes together.
        rest: CPU seconds of imports, collection and whatever else is in no test.
    """

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, float]] = {tier: {} for tier in TIERS}
        self.shared: dict[str, float] = defaultdict(float)
        self.rest = 0.0

    def add_process(self, other: Mapping[str, Any]) -> None:
        """Adds what another process counted beside its tests."""
        self.rest += other["rest"]
        for name, seconds in other["shared"].items():
            self.shared[name] += seconds

    def total(self, tier: str) -> float:
        return self.rest + sum(self.shared.values()) + sum(self.tests[tier].values())


class CpuTimer:
    """Measures tests where they run."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self._inside: list[float] = []  # of the shared fixtures being set up: what those within them took
        self._began = self._in_shared = self._in_tests = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """Counts a fixture that several tests share for itself, not as part of the first test that asks for it."""
        if fixturedef.scope == "function":
            return (yield)
        began = cpu_seconds()
        self._inside.append(0.0)
        try:
            return (yield)
        finally:
            whole = cpu_seconds() - began
            own = whole - self._inside.pop()
            if self._inside:
                self._inside[-1] += whole
            self.costs.shared[f"{fixturedef.baseid}::{fixturedef.argname}"] += own
            self._in_shared += own

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Iterator[object]:
        self._began, self._in_shared = cpu_seconds(), 0.0
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
        report: pytest.TestReport = yield
        if call.when == "teardown":
            seconds = cpu_seconds() - self._began - self._in_shared
            self._in_tests += seconds
            report.user_properties.append(("cpu_seconds", seconds))
            report.user_properties.append(("tier", "slow" if item.get_closest_marker("slow") else "default"))
        return report

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.costs.rest = cpu_seconds() - self._in_tests - sum(self.costs.shared.values())
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["costs"] = {"rest": self.costs.rest, "shared": dict(self.costs.shared)}


class CpuReport:
    """Gathers what was measured, in the process that prints the summary; writes it, and compares it with the budget."""

    def __init__(self, costs: Costs, config: pytest.Config) -> None:
        self.costs, self.config = costs, config
        self.failures: list[str] = []
        self.slower = 1.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = dict(report.user_properties)
        if report.when == "teardown" and "cpu_seconds" in told:
            self.costs.tests[str(told["tier"])][report.nodeid] = float(told["cpu_seconds"])  # type: ignore[arg-type]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        if "costs" in getattr(node, "workeroutput", {}):
            self.costs.add_process(node.workeroutput["costs"])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        recorded = load_durations()["default"] if DURATIONS.is_file() else {}
        self.slower = slower(self.costs, recorded)
        if self.config.getoption("write_durations"):
            write_durations(self.costs)
        if self.config.getoption("cpu_budget"):
            self.failures = over_budget(self.costs, recorded)
            if self.failures and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("CPU seconds")
        default, rest = self.costs.total("default"), self.costs.rest
        line = f"all {default + sum(self.costs.tests['slow'].values()):.0f}"
        line += f" (the median test takes {self.slower:.2f} times as long as recorded), {rest:.0f} outside of tests"
        terminalreporter.line(line + f", {sum(self.costs.shared.values()):.0f} in what tests share; the ten most:")
        every = [*self.costs.tests["default"].items(), *self.costs.tests["slow"].items(), *self.costs.shared.items()]
        for name, seconds in sorted(every, key=lambda row: -row[1])[:10]:
            terminalreporter.line(f"{seconds:8.2f}  {name}")
        for line in self.failures:
            terminalreporter.line(f"FAILED {line}", red=True)


def slower(costs: Costs, recorded: Mapping[str, Mapping[str, float]]) -> float:
    """How many times as long as recorded the median default test takes on this machine; 1 where none is recorded."""
    before = {name: seconds for tests in recorded.values() for name, seconds in tests.items()}
    ratios = [seconds / before[name] for name, seconds in costs.tests["default"].items() if name in before]
    return statistics.median(ratios) if ratios else 1.0


def over_budget(costs: Costs, recorded: Mapping[str, Mapping[str, float]]) -> list[str]:
    """What of the default tier costs more than it may, a line each.

    Args:
        costs: of this run.
        recorded: CPU seconds of default tests by file and test, from which the speed of this machine is told.
    """
    allowed = max(1.0, slower(costs, recorded))
    lines = [
        f"{name}: {seconds:.2f} CPU seconds, more than {MOST_OF_ONE:g}: make it smaller, or mark it slow"
        for name, seconds in sorted(costs.tests["default"].items(), key=lambda row: -row[1])
        if seconds > MOST_OF_ONE * TOLERANCE * allowed
    ]
    most = MOST_OF_ALL * TOLERANCE_OF_ALL * allowed
    if (total := costs.total("default")) > most:
        lines.append(f"the default tier: {total:.0f} CPU seconds, more than {most:.0f}")
    return lines


def write_durations(costs: Costs) -> None:
    """Records what the tests of this run cost; of files that did not run, the record stays as it is."""
    old = load_durations() if DURATIONS.is_file() else {}
    here, scale = DURATIONS.parents[1], slower(costs, old.get("default", {}))
    record: dict[str, Any] = {
        "about": f"CPU seconds of tests, {date.today()}, Python {platform.python_version()}, {platform.machine()}; "
        f'divided by {scale:.2f}; made by: pytest -n auto -m "" --write-durations',
        "outside of tests": round(costs.rest / scale, 1),
        "shared": {name: round(s / scale, 2) for name, s in sorted(costs.shared.items()) if s / scale >= _LISTED},
    }
    for tier in TIERS:
        files: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for name, measured in costs.tests[tier].items():
            seconds = measured / scale
            files[name.split("::")[0]][name if seconds >= _LISTED else REST] += seconds
        kept = {name: tests for name, tests in old.get(tier, {}).items() if (here / name).is_file()}
        files = {name: {k: round(s, 2) for k, s in sorted(tests.items())} for name, tests in files.items()}
        record[tier] = dict(sorted((kept | files).items()))
    DURATIONS.write_text(json.dumps(record, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")


def register(config: pytest.Config) -> None:
    """Measures, where an option of the run asks for it."""
    if not (config.getoption("write_durations") or config.getoption("cpu_budget")):
        return
    costs = Costs()
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(CpuReport(costs, config))
    if not config.getoption("numprocesses", None) or hasattr(config, "workerinput"):
        config.pluginmanager.register(CpuTimer(costs))


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("CPU seconds of tests")
    group.addoption("--write-durations", action="store_true", help="record what tests cost in tests/durations.json")
    group.addoption("--cpu-budget", action="store_true", help="fail where default tests cost more than they may")
