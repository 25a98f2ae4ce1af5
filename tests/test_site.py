"""What the configuration of the site does: notebooks are copied, those of a published site with a badge; formulas."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlencode

import conf
import nbformat
import numpy as np
import pytest
from open_page import OpenPage
from test_docs import PAGES, prose

import headlens

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
_FORMULA = re.compile(r"\$\$(?P<display>.+?)\$\$|(?<![\w$])\$(?P<inline>[^\s$](?:[^$]*?[^\s$])?)\$(?![\w$])", re.DOTALL)
# The formulas of a site with nothing else in it, drawn as the configuration of the real one says.
_CONF = f"""
import sys

sys.path.insert(0, {str(ROOT / "docs")!r})
from conf import html_math_renderer, myst_enable_extensions, myst_update_mathjax

extensions = ["myst_parser", "mathml_renderer"]
html_theme = "basic"
"""


def formulas(page: Path) -> list[tuple[str, bool]]:
    """The formulas of a page, and whether each stands in a line of its own."""
    text = re.sub(r"`[^`\n]*`", "", "\n".join(prose(page)))
    return [(match["display"] or match["inline"], bool(match["display"])) for match in _FORMULA.finditer(text)]


FORMULAS = {page: formulas(page) for page in PAGES}


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


@pytest.mark.parametrize("repository", ["", "Somebody/lens"])
def test_links_to_notebooks_go_to_the_copies(monkeypatch: pytest.MonkeyPatch, repository: str) -> None:
    monkeypatch.setattr(conf, "REPOSITORY", repository)
    source = ["[a tour](../../notebooks/tour.ipynb), [a page](../python.md)"]
    conf.link_copies(None, "tutorials/index", source)
    badge = " " + conf.colab_badge("tour.ipynb", repository) if repository else ""
    assert source == [f"[a tour](notebooks/tour.ipynb){badge}, [a page](../python.md)"]


def test_words_that_pages_are_searched_by_become_entries_of_the_index() -> None:
    source = ["# Mine\n\n<!-- search: my own BERT, BERT -->\n\nA <!-- search: b --> c <!-- not run: d -->"]
    conf.index_searched(None, "howto/classifier", source)
    assert source == ["# Mine\n\n```{index} ! my own bert, ! bert\n```\n\nA <!-- search: b --> c <!-- not run: d -->"]


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """The address of the whole site, built in a copy, with a page of attention in the place of that of a run."""
    pytest.importorskip("furo", reason="needs the extra `docs`")
    for name in ("docs", "notebooks", ".github"):
        made = shutil.ignore_patterns("api", "__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=made)
    out = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", str(tmp_path / "docs"), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    words = ["[CLS]", "The", "children", "who", "had", "lost", "their", "tricycles", "waited", "[SEP]"]
    page = headlens.attention_page(words, np.full((6, 12, 10, 10), 0.1))
    (out / "attention.html").write_text(page, encoding="utf-8")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(out)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


# What people type, and the page that answers it.
SEARCHED = {
    "p-value": "numbers.html",
    "my own BERT": "howto/classifier.html",
    "CSV": "howto/csv.html",
    "GPU memory": "howto/memory.html",
    "prune without loss": "howto/prune-without-loss.html",
    "out of memory": "howto/out-of-memory.html",
}


@pytest.mark.slow
def test_the_site_as_a_reader_has_it(site: str, new_context: Callable[..., Any]) -> None:
    context = new_context(offline=False, viewport={"width": 1280, "height": 800})
    for words, page in SEARCHED.items():
        found = OpenPage.at(f"{site}/search.html?{urlencode({'q': words})}", context)
        first = found.page.locator("#search-results ul.search > li a").first
        assert first.get_attribute("href").partition("#")[0] == page, words
        found.page.close()
    # Above the fold: the whole picture, and enough of the view of attention to see what it is.
    for width, height in ((1280, 800), (390, 844)):
        context = new_context(offline=False, viewport={"width": width, "height": height})
        opened = OpenPage.at(f"{site}/index.html", context)
        picture, frame = (opened.page.locator(f".first-look {tag}") for tag in ("img", "iframe"))
        assert picture.evaluate("(i) => i.naturalWidth") > 600
        drawn, view = picture.bounding_box(), frame.bounding_box()
        assert drawn["y"] + drawn["height"] <= view["y"] < height - 300, width
        inside = opened.page.frame_locator(".first-look iframe")
        assert inside.locator("td[data-head]").count() == 72
        assert inside.locator("td[aria-selected=true]").get_attribute("data-head") == "2 8"
        assert inside.locator("button.looking").first.text_content() == "their"
        assert not inside.locator("header").is_visible()  # the page around it has a title
        assert opened.page.evaluate("() => document.documentElement.scrollWidth") == width
        assert opened.troubles == []
        assert all(url.startswith((site, "data:")) for url in opened.requests)


def test_formulas_are_found() -> None:
    explained = [page for page, found in FORMULAS.items() if found]
    assert len(explained) > 6
    assert sum(map(len, FORMULAS.values())) > 150


@pytest.mark.parametrize("page", [p for p, found in FORMULAS.items() if found], ids=lambda p: str(p.relative_to(ROOT)))
def test_every_formula_becomes_mathml(page: Path) -> None:
    pytest.importorskip("sphinx", reason="needs the extra `docs`")
    from mathml_renderer import mathml

    for latex, display in FORMULAS[page]:
        assert mathml(latex, display=display).startswith("<math"), latex
        # Markdown elsewhere takes a backslash before punctuation for its own.
        assert not re.search(r"\\[^A-Za-z]", latex), latex


def built(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Builds a site of one page."""
    (folder / "conf.py").write_text(_CONF, encoding="utf-8")
    (folder / "index.md").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "sphinx", "-q", "-T", "-b", "html", str(folder), str(folder / "site")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_pages_with_formulas_fetch_nothing(tmp_path: Path) -> None:
    pytest.importorskip("myst_parser", reason="needs the extra `docs`")
    done = built(tmp_path, "# A page\n\nAn $a_{qk}$ and\n\n$$\n\\sum_k a_{qk} = 1\n$$\n")
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert '<span class="math notranslate"><math' in page
    assert '<div class="math notranslate"><math' in page
    assert not re.search(r"<script[^>]*src=\"(https?:)?//", page)
    assert "mathjax" not in page.lower()


@pytest.mark.slow
@pytest.mark.parametrize(
    "formula", [r"$\nonsense$", "$$\n\\frac{1}\n$$", "$a_{q$", r"$\left( a$", "$$\na = b\n$$ (named)"]
)
def test_a_formula_that_cannot_be_drawn_ends_the_build(tmp_path: Path, formula: str) -> None:
    pytest.importorskip("myst_parser", reason="needs the extra `docs`")
    done = built(tmp_path, f"# A page\n\nThis is\n\n{formula}\n")
    assert done.returncode
    assert re.search(r"index: '.+' (cannot be converted to MathML|has a label)", done.stderr), done.stderr
