"""One version: the package's, the changelog's and the citation's agree."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import headlens

ROOT = Path(__file__).resolve().parents[1]


def test_versions_agree() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    entries = re.findall(r"^## (\d+\.\d+\.\d+) \((unreleased|\d{4}-\d\d-\d\d)\)$", changelog, re.MULTILINE)
    assert len(entries) == changelog.count("\n## "), "every heading is a version with its date"
    version, when = entries[0]
    assert headlens.__version__ == (f"{version}.dev0" if when == "unreleased" else version)
    released = next(number for number, date in entries if date != "unreleased")
    assert f"\nversion: {released}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert metadata.version("headlens") == headlens.__version__, "install again: the version has changed"


def test_entries_of_the_changelog_are_lines() -> None:
    for number, line in enumerate((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines(), start=1):
        assert not line or line.startswith(("#", "- ")), f"line {number} is neither a heading nor an entry"
        assert len(line) <= 120, f"line {number} has {len(line)} characters"


def test_hooks_are_the_versions_of_ci() -> None:
    """What pre-commit installs for itself is what `constraints.txt` names, so that a hook says what CI will say."""
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    pinned = set(re.findall(r"additional_dependencies: \[(\S+==\S+)\]", hooks))
    assert len(pinned) >= 4
    tested = {line.replace("_", "-") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()}
    assert pinned - tested == set()
