"""A Sphinx extension that writes formulas as MathML, which browsers draw themselves.

Sphinx's own renderer has every page with a formula fetch MathJax from another host, and this site fetches nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.errors import SphinxError

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# What comes in pairs; docutils draws a formula without one of a pair as if nothing were missing.
_PAIRS = ((r"{", r"}"), (r"\\left(?![A-Za-z])", r"\\right(?![A-Za-z])"), (r"\\begin\b", r"\\end\b"))


def mathml(latex: str, *, display: bool = False) -> str:
    """Returns the MathML of a formula.

    Args:
        latex: the formula, without its dollars.
        display: whether it stands in a line of its own.

    Raises:
        ValueError: if it cannot be converted.
    """
    for opening, closing in _PAIRS:
        if len(re.findall(opening, latex)) != len(re.findall(closing, latex)):
            raise ValueError(f"{latex!r} cannot be converted to MathML: it opens and closes something unequally often.")
    try:
        converted: str = tex2mathml(latex, as_block=display)
    # docutils raises MathError, a ValueError, for what it does not know, and trips elsewhere over half a formula.
    except Exception as error:
        raise ValueError(f"{latex!r} cannot be converted to MathML: {error}") from error
    return converted


def _write(translator: Any, node: Any, tag: str, *, display: bool) -> None:
    page, latex = translator.builder.current_docname, node.astext()
    # Errors, since after a warning the page would be published without its formula.
    if node.get("number"):
        raise SphinxError(f"{page}: {latex!r} has a label, but formulas are not numbered here.")
    try:
        converted = mathml(latex, display=display)
    except ValueError as error:
        raise SphinxError(f"{page}: {error}") from error
    translator.body.append(f'<{tag} class="math notranslate">{converted}</{tag}>')
    raise nodes.SkipNode


def write_inline(translator: Any, node: Any) -> None:
    """Writes a formula that stands in a line of text."""
    _write(translator, node, "span", display=False)


def write_display(translator: Any, node: Any) -> None:
    """Writes a formula that stands by itself; one that is wider than the page scrolls, see `site.css`."""
    _write(translator, node, "div", display=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the renderer `mathml`, which `html_math_renderer` names."""
    app.add_html_math_renderer("mathml", (write_inline, None), (write_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
