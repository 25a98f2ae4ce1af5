"""Where words stand in a text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class SurfaceToken(NamedTuple):
    """A stretch of text without a gap, and the syntactic words in it (one, or several of a multiword token)."""

    surface: str
    forms: tuple[str, ...]
    space_after: bool


def join_tokens(tokens: Iterable[SurfaceToken]) -> tuple[str, list[tuple[int, int]]]:
    """Join tokens to a text, one space between them unless `space_after` says no.

    Returns:
        The text (without a space at its end) and the span (start, end) of every word.
    """
    pieces: list[str] = []
    spans: list[tuple[int, int]] = []
    position = 0
    for token in tokens:
        spans += split_surface(token.surface, token.forms, position)
        piece = token.surface + (" " if token.space_after else "")
        pieces.append(piece)
        position += len(piece)
    return "".join(pieces).rstrip(" "), spans


def split_surface(surface: str, forms: Sequence[str], start: int) -> list[tuple[int, int]]:
    """Spans of the words of one surface token that starts at `start`.

    If the forms joined spell the surface (case aside), each word has its own part: "don't" is "do" and "n't".
    If not (German "zum" is "zu" and "dem", French "au" is "à" and "le"), all share the span of the surface.
    """
    if len("".join(forms)) != len(surface) or "".join(forms).lower() != surface.lower():
        return [(start, start + len(surface))] * len(forms)
    spans = []
    for form in forms:
        spans.append((start, start + len(form)))
        start += len(form)
    return spans
