"""Which slow tests CI runs on a change: those that it can reach, nearest first, as far as they fit into some minutes.

`pytest -n auto -m slow --slow-minutes 12` runs them, the longest first, and says what is left to the night, which runs
all. What a change reaches is found from imports, wherever they stand in a file; how long a test takes is recorded in
`durations.json`.
"""

from __future__ import annotations

import ast
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cpu_budget import REST, load_durations

ROOT = Path(__file__).resolve().parents[1]
UNKNOWN = 10.0  # CPU seconds of a test that nobody has measured yet
CHEAP = 0.25  # of one that is not listed, with its part of what its file sets up
_BUSY = 0.85  # of the time, a process of pytest computes
_DYNAMIC = {"import_module", "iter_modules"}
_PACKAGES = {"headlens": "headlens", "headlens_cli": "cli"}


def changed_files(since: str | None) -> set[str]:
    """Files that differ from a commit, by default the last one that is a day older than the newest.

    Raises:
        pytest.UsageError: if git does not know the commit.
    """
    if since is None:
        newest = _git("log", "-1", "--format=%ct")[0]
        since = next(iter(_git("rev-list", "-1", f"--before={int(newest) - 86400}", "HEAD")), None)
    return set(_git("diff", "--name-only", since) if since else _git("ls-files"))


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise pytest.UsageError(f"--changed-since: git {' '.join(words)} says: {done.stderr.strip()}")
    return done.stdout.splitlines()


class Imports:
    """Which file imports which, of the package, the command line, the tests and what they share."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        every = [p for part in ("headlens", "cli", "tests", "docs") for p in sorted((root / part).rglob("*.py"))]
        self.files = {path.relative_to(root).as_posix() for path in every}
        self._importers: dict[str, set[str]] = defaultdict(set)
        for path in every:
            name = path.relative_to(root).as_posix()
            for target in self._imported(path):
                self._importers[target].add(name)
            for folder in path.relative_to(root).parents:  # pytest imports these for every test below them
                if path.name.startswith("test_"):
                    self._importers[(folder / "conftest.py").as_posix()].add(name)

    def distances(self, changed: Iterable[str]) -> dict[str, int]:
        """How many imports each file that is reached lies from a changed one.

        A file that is not Python, such as a template, is taken for what lies beside it or in the folder above.
        """
        distances: dict[str, int] = {}
        front = set()
        for name in changed:
            near = Path(name).parent
            places = {near.as_posix(), near.parent.as_posix()}
            front |= {name} if name in self.files else {f for f in self.files if Path(f).parent.as_posix() in places}
        while front:
            distances |= dict.fromkeys(front, len(set(distances.values())))
            front = {importer for name in front for importer in self._importers[name]} - distances.keys()
        return distances

    def _imported(self, path: Path) -> Iterator[str]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                package = path.relative_to(self.root).parts[: -node.level] if node.level else ()
                base = ".".join([*package, *([node.module] if node.module else [])])
                names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
            elif (
                isinstance(node, ast.Name | ast.Attribute)
                and getattr(node, "id", getattr(node, "attr", "")) in _DYNAMIC
            ):
                # What is imported by a name that is made cannot be told: it may be anything of the package.
                yield from (name for name in self.files if name.startswith("headlens/"))
                continue
            else:
                continue
            for name in names:
                yield from self._files_of(name)

    @cache  # noqa: B019 - one object in a run
    def _files_of(self, module: str) -> tuple[str, ...]:
        first, _, rest = module.partition(".")
        stem = "/".join([_PACKAGES.get(first, first), *rest.split(".")]).rstrip("/")
        places = [f"{folder}{stem}" for folder in ("", "tests/", "tests/oracles/", "docs/")]
        return tuple(f for place in places for f in (f"{place}.py", f"{place}/__init__.py") if f in self.files)


def expected(test: str, measured: Mapping[str, Mapping[str, float]]) -> float:
    """Returns the CPU seconds of a test that is not listed: those of its like, or of a cheap one of its file.

    Args:
        test: its id.
        measured: by file, CPU seconds by the id of the test, and of the cheaper ones of the file together.
    """
    listed = measured.get(test.split("::", maxsplit=1)[0], {})
    alike = [seconds for name, seconds in listed.items() if name.split("[")[0] == test.split("[", maxsplit=1)[0]]
    return max(alike, default=CHEAP if REST in listed else UNKNOWN)


def choose(seconds: Mapping[str, float], distances: Mapping[str, int], most: float) -> tuple[list[str], list[str]]:
    """Returns the tests to run, the longest first, and those that are reached and left to the night.

    Args:
        seconds: CPU seconds by the id of the test.
        distances: how near each test file is to a change; tests of other files are not reached.
        most: CPU seconds that all may take. Nearer tests come first, of equally near ones the shorter.
    """
    reached = {name: near for name in seconds if (near := distances.get(name.split("::")[0])) is not None}
    taken, left, spent = [], [], 0.0
    for name in sorted(reached, key=lambda test: (reached[test], seconds[test], test)):
        fits = spent + seconds[name] <= most
        (taken if fits else left).append(name)
        spent += seconds[name] if fits else 0.0
    return sorted(taken, key=lambda test: (-seconds[test], test)), left


class SlowSelection:
    """Deselects what is not run, in every process alike, and says so in the one that prints the summary."""

    def __init__(self, config: pytest.Config, minutes: float) -> None:
        self.config, self.minutes = config, minutes
        self.told = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        processes = int(getattr(self.config, "workerinput", {}).get("workercount", 1))
        measured = load_durations()["slow"]
        known = {name: s for tests in measured.values() for name, s in tests.items() if name != REST}
        seconds = {item.nodeid: known.get(item.nodeid, expected(item.nodeid, measured)) for item in items}
        distances = Imports().distances(changed_files(self.config.getoption("changed_since")))
        taken, left = choose(seconds, distances, self.minutes * 60 * processes * _BUSY)
        by_name = {item.nodeid: item for item in items}
        chosen = set(taken)
        self.config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
        items[:] = [by_name[name] for name in taken]
        files = ", ".join(sorted({name.split("::")[0] for name in left})) or "none"
        self.told = (
            f"{len(taken)} slow tests that the change can reach; left to the night: {len(left)} more of at most "
            f"{sum(seconds[name] for name in left) / 60:.0f} CPU minutes ({files}), "
            f"and {len(by_name) - len(taken) - len(left)} that it cannot reach"
        )

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["slow_selection"] = self.told

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.told = getattr(node, "workeroutput", {}).get("slow_selection") or self.told

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.line(self.told)


def register(config: pytest.Config) -> None:
    if config.getoption("slow_minutes"):
        config.pluginmanager.register(SlowSelection(config, config.getoption("slow_minutes")))


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("slow tests of a change")
    group.addoption("--slow-minutes", type=float, metavar="N", help="run slow tests that a change reaches, N minutes")
    group.addoption("--changed-since", metavar="COMMIT", help="what the change is counted from; a day by default")
