"""Pictures inside a page, as data URIs."""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass
from pathlib import Path

from headlens.report.images import DPI

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CSS_PIXELS = 114  # of an inch of a figure: somewhat larger than in print


@dataclass(frozen=True)
class Picture:
    """A picture on a page.

    Args:
        name: of the figure.
        run: label of the run.
        uri: the PNG file as a data URI.
        width: CSS pixels.
        height: CSS pixels.
    """

    name: str
    run: str
    uri: str
    width: int
    height: int


def picture(path: Path, name: str, run: str) -> Picture | None:
    """A PNG file for a page, under the name of its figure and the label of its run; None if it is none."""
    data = path.read_bytes()
    if not data.startswith(_SIGNATURE) or len(data) < 33 or data[-12:] != b"\0\0\0\0IEND\xaeB`\x82":
        return None
    width, height = struct.unpack(">II", data[16:24])
    scale = _CSS_PIXELS / DPI
    uri = "data:image/png;base64," + base64.b64encode(data).decode("ascii")
    return Picture(name, run, uri, round(width * scale), round(height * scale))
