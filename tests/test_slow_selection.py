"""Which slow tests a change reaches, and which of them fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from cpu_budget import REST
from slow_selection import CHEAP, UNKNOWN, Imports, changed_files, choose, expected

FILES = {
    "headlens/__init__.py": "",
    "headlens/low.py": "",
    "headlens/high.py": "def f():\n    from .low import x\n",
    "headlens/registry.py": "from importlib import import_module\nimport_module('headlens.' + 'low')\n",
    "headlens/parts/__init__.py": "",
    "headlens/parts/one.py": "",
    "headlens/parts/data/table.csv": "",
    "cli/__init__.py": "",
    "cli/app.py": "import headlens.registry\n",
    "tests/helper.py": "from headlens import high\n",
    "tests/deep/conftest.py": "from headlens_cli import app\n",
    "tests/deep/test_program.py": "",
    "tests/test_high.py": "import helper\n",
    "tests/test_low.py": "import headlens.low as low\n",
    "tests/test_one.py": "from headlens.parts.one import y\n",
}


@pytest.fixture
def imports(tmp_path: Path) -> Imports:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return Imports(tmp_path)


@pytest.mark.parametrize(
    ("changed", "reached"),
    [
        # The command line imports by name, so anything may be in it.
        ("headlens/low.py", {"test_low.py": 1, "test_high.py": 3, "deep/test_program.py": 4}),
        ("headlens/high.py", {"test_high.py": 2, "deep/test_program.py": 4}),
        ("tests/helper.py", {"test_high.py": 1}),
        ("tests/test_one.py", {"test_one.py": 0}),
        ("tests/deep/conftest.py", {"deep/test_program.py": 1}),
        # A file that is no module stands for those beside and above it.
        ("headlens/parts/data/table.csv", {"test_one.py": 1, "deep/test_program.py": 4}),
        ("docs/page.md", {}),
    ],
)
def test_what_a_change_reaches(imports: Imports, changed: str, reached: dict[str, int]) -> None:
    found = {name: near for name, near in imports.distances([changed]).items() if Path(name).name.startswith("test_")}
    assert found == {f"tests/{name}": near for name, near in reached.items()}


def test_the_nearest_that_fit_are_run_the_longest_first() -> None:
    seconds = {"a.py::1": 5.0, "a.py::2": 9.0, "b.py::1": 1.0, "b.py::2": 7.0, "c.py::1": 1.0}
    near = {"a.py": 0, "b.py": 2}
    assert choose(seconds, near, 100) == (["a.py::2", "b.py::2", "a.py::1", "b.py::1"], [])
    assert choose(seconds, near, 15) == (["a.py::2", "a.py::1", "b.py::1"], ["b.py::2"])
    assert choose(seconds, near, 6) == (["a.py::1", "b.py::1"], ["a.py::2", "b.py::2"])
    assert choose(seconds, {}, 100) == ([], [])


def test_what_is_not_listed_is_not_taken_for_cheap() -> None:
    """Files were measured in part, and repetitions of an expensive test are as expensive."""
    measured = {"a.py": {"a.py::f[1]": 90.0, "a.py::f[2]": 60.0}, "b.py": {"b.py::f": 2.0, REST: 1.0}}
    tests = ("a.py::f[3]", "a.py::g", "b.py::g", "c.py::g")
    assert [expected(test, measured) for test in tests] == [90.0, UNKNOWN, CHEAP, UNKNOWN]


def test_a_commit_that_there_is_not_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match="--changed-since: git diff"):
        changed_files("0123456789abcdef")
