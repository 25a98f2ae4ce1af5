"""Role labels of heads, grouped into families with one colour each."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headlens.plots.style import BLUE, GREEN, INK, NO_ROLE, ORANGE, PURPLE, VERMILION, YELLOW

if TYPE_CHECKING:
    from matplotlib.lines import Line2D

NONE = "none"
# Places to rest are purple, positions blue, words green and orange, weight that is spread out brown. Where hues come
# close to a colour-blind reader, lightness tells families apart.
COLOURS = {
    "sink": "#5E3C78",
    "separator": PURPLE,
    "punctuation": "#EBC4D9",
    "positional": BLUE,
    "previous": "#4F9BD0",
    "next": "#A6CFEC",
    "self": YELLOW,
    "syntactic": GREEN,
    "same word": "#8CD3BC",
    "pair": "#2F7D7D",
    "coreference": "#B5CC7A",
    "rare": ORANGE,
    "broad": "#8C6D46",
    "other": VERMILION,
    NONE: NO_ROLE,
}
FAMILIES = tuple(COLOURS)
# Along the tree: from a dependent up to its head, from a head down to its dependent
ARROWS = {"dep->head": "↑", "head->dep": "↓"}
ARROW_WORDS = "↑ dependent to head, ↓ head to dependent"
_SHORT = {"separator": "sep", "punctuation": "punct", "previous": "prev", "same word": "same", "coreference": "coref"}
_ROLE = re.compile(r"(?P<family>[^(]+?)\s*(?:\((?P<detail>[^)]*)\))?\s*")


def family(role: object) -> str:
    """Returns the family of a role label: `positional` of `positional(-1)`, `none` of no label, else `other`."""
    if not isinstance(role, str) or not role.strip():
        return NONE
    match = _ROLE.fullmatch(role)
    name = match["family"].strip() if match else ""
    return name if name in COLOURS else "other"


def short(role: object) -> str:
    """Returns a role in a few letters: `-1`, `rare`, `sep`, `nsubj` with an arrow below it; empty for none."""
    if not isinstance(role, str) or not role.strip():
        return ""
    match = _ROLE.fullmatch(role)
    if match is None:
        return role.strip()
    if match["detail"]:
        if match["family"] == "pair":
            return "1>2" if match["detail"].startswith("first") else "2>1"
        name, _, direction = match["detail"].strip().partition(" ")
        arrow = ARROWS.get(direction.strip())
        return f"{name}\n{arrow}" if arrow else name.replace("-", "−")
    return _SHORT.get(match["family"], match["family"])


def families(roles: Iterable[object]) -> list[str]:
    """Returns the family of every role of a column."""
    return [family(role) for role in roles]


def legend_handles(present: set[str]) -> list[Line2D]:
    """Returns one coloured square per family that occurs, in fixed order."""
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], linestyle="", marker="s", markersize=7, color=COLOURS[name],
               label="no role" if name == NONE else name, markeredgecolor=INK, markeredgewidth=0.3)
        for name in FAMILIES
        if name in present
    ]  # fmt: skip
