"""Text from anybody as it is shown: what would command a terminal, or hide, is spelled out."""

from __future__ import annotations

import unicodedata
import warnings

# Letters that reorder the text around them
_REORDERING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# Control characters, halves of surrogate pairs, and separators of lines and paragraphs
_HIDDEN = ("Cc", "Cs", "Zl", "Zp")


def visible_text(text: str, allowed: str = "\n\t") -> str:
    r"""Returns text in which nothing commands, hides or turns its direction: such letters become `\x1b` or `\u202e`.

    Args:
        text: any text.
        allowed: control characters that stay; none for text that is to stay in its line.
    """
    if text.isprintable():  # nearly all are, and pages have tens of thousands
        return text
    return "".join(c.encode("unicode_escape").decode("ascii") if _hides(c) and c not in allowed else c for c in text)


def _hides(letter: str) -> bool:
    is_none = ord(letter) & 0xFFFE == 0xFFFE  # a code that is no character
    return is_none or letter in _REORDERING or unicodedata.category(letter) in _HIDDEN


def warn_visibly(text: str) -> None:
    """Warns as Python does, of untrusted text."""
    warnings.warn(visible_text(text), stacklevel=2)
