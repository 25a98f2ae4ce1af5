"""What pages of one file share: templates, a content security policy, data for scripts, and text that hides nothing."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from headlens.visible_text import visible_text

LARGE_PAGE = 5_000_000  # bytes from which there is a note on the size of a page: it opens slowly on a phone


def visible(value: Any) -> Any:
    """Returns text in which nothing hides, see `visible_text`; what is markup on purpose stays."""
    return value if isinstance(value, Markup) else visible_text(str(value))


def self_contained_page(
    package: str, template: str, style: str, script: str, more_policy: str = "", **content: Any
) -> str:
    """Returns a page as HTML in which every text is escaped and made visible.

    Args:
        package: has the template in its folder `templates`.
        template: extends `page.html`.
        style: of the page, a file of headlens.
        script: of the page, a file of headlens.
        more_policy: what the page may do beside showing itself, in words of its content security policy.
        content: variables of the template; those of `page.html` are `title`, `command` and `wide`: whether the
            page takes the width of the window.
    """
    files = {"style": Markup(style), "script": Markup(script)}  # noqa: S704 - of this package
    made = _environment(package).get_template(template)
    return made.render(policy=policy(style, script, more_policy), **files, **content)


@cache
def _environment(package: str) -> Environment:
    return Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("headlens.pages")]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def template_part(package: str, name: str) -> str:
    """Returns a style or a script among the templates of a package."""
    text = resources.files(package).joinpath("templates", name).read_text(encoding="utf-8")
    # The hash of the policy is over what the browser sees, which has plain line feeds
    return text.replace("\r\n", "\n")


def policy(style: str, script: str, more: str = "") -> str:
    """Returns a content security policy: nothing is fetched, and only the given style and script are used."""
    of_style, of_script = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)
    )
    return (
        f"default-src 'none'; img-src data:; style-src 'sha256-{of_style}'; script-src 'sha256-{of_script}'; "
        f"base-uri 'none'; form-action 'none'{more}"
    )


def notebook_frame(page: str, title: str) -> str:
    """Returns a page as a notebook shows it: in a frame of an origin of its own, where scripts see nothing of it."""
    frame = 'sandbox="allow-scripts" style="width: 100%; height: 48rem; border: 0"'
    return f'<iframe title="{escape(visible_text(title))}" {frame} srcdoc="{escape(str(page))}"></iframe>'


def script_data(data: Any) -> Markup:
    """Returns data for a script as JSON that ends no element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704 - nothing in it can end the element
