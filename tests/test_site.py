"""What the configuration of the site does: notebooks are copied, those of a published site with a badge."""

from __future__ import annotations

from pathlib import Path

import conf
import nbformat

import headlens

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_notebooks_are_copied_as_they_are(tmp_path: Path) -> None:
    conf.copy_notebooks(tmp_path / "copies", "")
    assert sorted(path.name for path in (tmp_path / "copies").iterdir()) == [path.name for path in NOTEBOOKS]
    for path in NOTEBOOKS:
        copy = nbformat.read(tmp_path / "copies" / path.name, as_version=4)
        assert copy.cells == nbformat.read(path, as_version=4).cells


def test_published_notebooks_open_on_colab_and_install_the_wheel(tmp_path: Path) -> None:
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


def test_code_in_docstrings_becomes_a_literal_block() -> None:
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


def test_links_to_notebooks_go_to_the_copies() -> None:
    source = ["[a tour](../../notebooks/tour.ipynb), [a page](../python.md)"]
    conf.link_copies(None, "tutorials/index", source)
    assert source == ["[a tour](notebooks/tour.ipynb), [a page](../python.md)"]
