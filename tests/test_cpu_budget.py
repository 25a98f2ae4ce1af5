"""A test that takes more than its share fails the check, and the record keeps the budget."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cpu_budget
import pytest
from cpu_budget import (
    MOST_OF_ALL,
    MOST_OF_ONE,
    REST,
    TOLERANCE_OF_ALL,
    TOLERANCE_OF_RECORD,
    Costs,
    load_durations,
    over_budget,
    write_durations,
)

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import time
import pytest

def work(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

@pytest.fixture(scope="module")
def shared():
    work(0.1)

def test_cheap(shared):
    pass

def test_dear():
    work(0.1)

@pytest.mark.slow
def test_slow():
    work(0.1)
"""
HOOKS = SimpleNamespace(pytest_addoption=cpu_budget.add_options, pytest_configure=cpu_budget.register)


@pytest.fixture
def own_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two tests and a record of their own, and small limits."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: slow\n", encoding="utf-8")
    monkeypatch.setattr(cpu_budget, "DURATIONS", tmp_path / "tests" / "durations.json")
    monkeypatch.setattr(cpu_budget, "MOST_OF_ONE", 0.02)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "tests" / "durations.json"


def run(*options: str) -> int:
    words = ["tests", "-c", "pytest.ini", "--import-mode=importlib", "-p", "no:cacheprovider"]
    # It looks five times through all objects of the process.
    words += ["-p", "no:unraisableexception"]
    return pytest.main([*words, *options], plugins=[HOOKS])


def test_a_test_that_is_slow_on_purpose_fails_the_check(own_record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--cpu-budget") == pytest.ExitCode.TESTS_FAILED
    said = capsys.readouterr().out
    assert "FAILED tests/test_it.py::test_dear: 0.1" in said
    # Neither what several tests share is counted against the first of them, nor what is marked slow.
    assert "FAILED tests/test_it.py::test_cheap" not in said
    assert "FAILED tests/test_it.py::test_slow" not in said
    assert run() == pytest.ExitCode.OK


def test_the_record_is_written_and_kept_for_files_that_did_not_run(own_record: Path) -> None:
    (own_record.parent / "test_kept.py").touch()
    old = {name: {"x": 3.0} for name in ("tests/test_kept.py", "tests/test_gone.py", "tests/test_it.py")}
    own_record.write_text(json.dumps({"default": old, "slow": old}))
    assert run("--write-durations") == pytest.ExitCode.OK
    record = json.loads(own_record.read_text())
    assert record["default"].keys() == {"tests/test_kept.py", "tests/test_it.py"}
    own = record["default"]["tests/test_it.py"]
    assert own["tests/test_it.py::test_dear"] == pytest.approx(0.1, abs=0.05)
    assert own[REST] < 0.1
    assert record["slow"]["tests/test_it.py"]["tests/test_it.py::test_slow"] == pytest.approx(0.1, abs=0.05)
    assert record["shared"]["tests/test_it.py::shared"] == pytest.approx(0.1, abs=0.05)


def costs(**tests: float) -> Costs:
    own = Costs()
    own.tests["default"] = {f"a.py::{name}": seconds for name, seconds in tests.items()}
    return own


def test_of_a_slower_machine_more_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_budget, "MOST_OF_ONE", 1.0)
    recorded = {"a.py": {"a.py::one": 0.5, "a.py::two": 0.2, "a.py::three": 0.3}}
    slow = costs(one=3.2, two=1.2, three=1.8)
    assert over_budget(slow, recorded) == []
    assert [line.split(":")[2] for line in over_budget(slow, {})] == ["one"]
    (line,) = over_budget(costs(one=3.2, two=0.2, three=0.3), recorded)
    assert line.startswith("a.py::one: 3.20 CPU seconds")


def test_all_together_have_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    many = costs(**{f"n{n}": 0.9 for n in range(int(MOST_OF_ALL * TOLERANCE_OF_ALL / 0.9) + 2)})
    (line,) = over_budget(many, {})
    assert line.startswith("the default tier: ")
    many.rest = -3.0
    assert over_budget(many, {}) == []


def test_a_record_of_a_slower_machine_is_in_the_seconds_of_the_first(own_record: Path) -> None:
    (own_record.parent.parent / "a.py").touch()
    own_record.write_text(json.dumps({"default": {"a.py": {"a.py::one": 0.5, "a.py::two": 0.2}}, "slow": {}}))
    twice = costs(one=1.0, two=0.4, new=0.6, cheap=0.1)
    twice.rest = 8.0
    write_durations(twice)
    record = json.loads(own_record.read_text())
    assert record["default"]["a.py"] == {"(cheaper ones)": 0.05, "a.py::new": 0.3, "a.py::one": 0.5, "a.py::two": 0.2}
    assert record["outside of tests"] == 4.0


def test_the_record_keeps_the_budget() -> None:
    record: Any = json.loads(cpu_budget.DURATIONS.read_text(encoding="utf-8"))
    tests = {name: s for own in load_durations()["default"].values() for name, s in own.items() if name != REST}
    assert [name for name, seconds in tests.items() if seconds > MOST_OF_ONE * TOLERANCE_OF_RECORD] == []
    rest = sum(own.get(REST, 0.0) for own in load_durations()["default"].values())
    assert sum(tests.values()) + rest + record["outside of tests"] + sum(record["shared"].values()) < MOST_OF_ALL
    recorded = {*load_durations()["default"], *load_durations()["slow"]}
    assert [name for name in recorded if not (ROOT / name).is_file()] == []
