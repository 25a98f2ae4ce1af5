"""What the configuration of the site does: notebooks are copied, those of a published site with a badge."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

import headlens

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def conf() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_conf", ROOT / "docs" / "conf.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_notebooks_are_copied_as_they_are(conf: ModuleType, tmp_path: Path) -> None:
    conf.copy_notebooks(tmp_path / "copies", "")
    assert sorted(path.name for path in (tmp_path / "copies").iterdir()) == [path.name for path in NOTEBOOKS]
    for path in NOTEBOOKS:
        copy = nbformat.read(tmp_path / "copies" / path.name, as_version=4)
        assert copy.cells == nbformat.read(path, as_version=4).cells


def test_published_notebooks_open_on_colab_and_install_the_wheel(conf: ModuleType, tmp_path: Path) -> None:
    conf.copy_notebooks(tmp_path / "copies", "Somebody/lens")
    for path in NOTEBOOKS:
        copy = nbformat.read(tmp_path / "copies" / path.name, as_version=4)
        nbformat.validate(copy)
        title, badge, install, *rest = copy.cells
        original = nbformat.read(path, as_version=4).cells
        assert [cell.source for cell in (title, *rest)] == [cell.source for cell in original]
        notebook = f"https://colab.research.google.com/github/Somebody/lens/blob/gh-pages/notebooks/{path.name}"
        assert badge.source.endswith(f"({notebook})")
        wheel = f"headlens-{headlens.__version__}-py3-none-any.whl"
        assert f'%pip install -q "headlens[demo] @ https://somebody.github.io/lens/wheels/{wheel}"' in install.source


def test_code_in_docstrings_becomes_a_literal_block(conf: ModuleType) -> None:
    lines = [
        "Does it inside `with`.",
        "",
        "    with it():",
        "        run()",
        "",
        "Args:",
        "    model: one.",
        "- a",
        "",
        "    b",
    ]
    conf.mark_code(None, "", "", None, None, lines)
    assert lines[:5] == ["Does it inside `with`.", "", "::", "", "    with it():"]
    assert lines.count("::") == 1


def test_links_to_notebooks_go_to_the_copies(conf: ModuleType) -> None:
    source = ["[a tour](../../notebooks/tour.ipynb), [a page](../python.md)"]
    conf.link_copies(None, "tutorials/index", source)
    assert source == ["[a tour](notebooks/tour.ipynb), [a page](../python.md)"]
