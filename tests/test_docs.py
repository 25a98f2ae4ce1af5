"""Documents name what there is."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def test_numbers_are_columns_that_are_written() -> None:
    """Every column that docs/numbers.md explains is one of a table, and every module it names is there."""
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "headlens").rglob("*.py"))
    rows = [
        line.split("|")[1:-1]
        for line in (DOCS / "numbers.md").read_text(encoding="utf-8").splitlines()
        if line[:3] == "| `"
    ]
    names = [name for row in rows for name in re.findall(r"`([a-z_0-9]+)`", row[0])]
    assert len(names) > 40
    assert [name for name in names if f'"{name}"' not in source] == []
    modules = [name for row in rows for name in re.findall(r"`([a-z_/]+\.py)`", row[-1])]
    assert modules
    assert [name for name in modules if not (ROOT / "headlens" / name).is_file()] == []


def test_pictures_of_documents_are_there() -> None:
    for path in (ROOT / "README.md", *DOCS.glob("*.md")):
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).is_file(), f"{path.name}: {target}"
