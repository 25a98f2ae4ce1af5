"""What pages of one file share: templates, a content security policy, data for scripts, and text that hides nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import unicodedata
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

# Letters that reorder the text around them
_REORDERING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def visible(value: Any) -> Any:
    """Returns text in which nothing hides: control characters and those that turn its direction are spelled out."""
    if isinstance(value, Markup):
        return value
    if (text := str(value)).isprintable():  # nearly all are, and pages have tens of thousands
        return text
    hidden = {c for c in {*text} - {*"\n\t"} if c in _REORDERING or unicodedata.category(c) in ("Cc", "Cs")}
    hidden |= {c for c in text if ord(c) & 0xFFFE == 0xFFFE}  # no characters
    return "".join(f"⟨U+{ord(c):04X}⟩" if c in hidden else c for c in text)


def page_environment(package: str, filters: dict[str, Callable[..., Any]] | None = None) -> Environment:
    """Returns the environment of the templates of a package, in which every text is escaped and made visible."""
    made = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(filters or {})
    return made


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


def script_data(data: Any) -> Markup:
    """Returns data for a script as JSON that ends no element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704 - nothing in it can end the element
