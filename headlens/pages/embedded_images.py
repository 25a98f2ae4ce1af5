"""Pictures inside a page, as data URIs."""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass
from pathlib import Path

from headlens.plots.export import DPI, MOVING_DPI

_PNG, _GIF = b"\x89PNG\r\n\x1a\n", b"GIF89a"
_CSS_PIXELS = 114  # of an inch of a figure: somewhat larger than in print


@dataclass(frozen=True)
class Picture:
    """A picture on a page.

    Args:
        name: name of the figure.
        run: label of the run.
        uri: the file as a data URI.
        width: CSS pixels.
        height: CSS pixels.
        moving: whether it is an animation.
    """

    name: str
    run: str
    uri: str
    width: int
    height: int
    moving: bool = False

    @property
    def inches(self) -> float:
        """Width of the figure in inches, converted from its width in CSS pixels."""
        return self.width / _CSS_PIXELS


def picture(path: Path, name: str, run: str) -> Picture | None:
    """Reads a PNG or GIF file for a page, under the name of its figure and its run; None for other files."""
    data = path.read_bytes()
    if data.startswith(_PNG) and len(data) >= 33 and data[-12:] == b"\0\0\0\0IEND\xaeB`\x82":
        kind, moving, size, dpi = "png", False, struct.unpack(">II", data[16:24]), DPI
    elif data.startswith(_GIF) and len(data) > 13 and data.endswith(b";"):
        kind, moving, size, dpi = "gif", True, struct.unpack("<HH", data[6:10]), MOVING_DPI
    else:
        return None
    width, height = (round(side * _CSS_PIXELS / dpi) for side in size)
    uri = f"data:image/{kind};base64," + base64.b64encode(data).decode("ascii")
    return Picture(name, run, uri, width, height, moving)
