"""Figures to files: PNG for the eye, SVG for print, GIF for what moves; the same bytes every time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.animation import PillowWriter
from matplotlib.figure import Figure

from headlens.report.files import atomic_path

DPI = 200
MOVING_DPI = 110  # of a GIF: every frame is a picture of its own
_PER_SECOND, _HELD = 4, 10  # frames; how many the last one lasts, before all begins again
# matplotlib reads the salt of SVG ids, and whether margins are cut off, from its global settings only
_SETTINGS = threading.Lock()


@dataclass(frozen=True)
class Animation:
    """A figure that changes.

    Args:
        figure: drawn once, as large as it will be.
        frames: how many there are, at least one.
        draw: brings the figure to the state of a frame, counted from 0.
    """

    figure: Figure
    frames: int
    draw: Callable[[int], None]


class _HaltingWriter(PillowWriter):
    """Writes a GIF whose last frame lasts longer."""

    _frames: list[Any]

    def finish(self) -> None:
        # frames that are equal become one
        self._frames.extend(self._frames[-1:] * (_HELD - 1))
        super().finish()


def write_figure(figure: Figure, stem: str | Path) -> list[Path]:
    """Write `figure` as `<stem>.png` (200 dpi) and `<stem>.svg`; the same figure gives the same bytes.

    Returns:
        The two paths.

    Raises:
        OutputError: if the folder cannot be written or the disk is full.
    """
    paths = [Path(f"{stem}.png"), Path(f"{stem}.svg")]
    with atomic_path(paths[0]) as temporary:
        figure.savefig(temporary, format="png", dpi=DPI)
    with atomic_path(paths[1]) as temporary, _SETTINGS, mpl.rc_context({"svg.hashsalt": "headlens"}):
        figure.savefig(temporary, format="svg", metadata={"Date": None, "Creator": "headlens"})
    return paths


def write_animation(animation: Animation, path: str | Path) -> Path:
    """Write an animation as GIF that begins again at its end and halts there; the same frames give the same bytes.

    Raises:
        OutputError: if the folder cannot be written or the disk is full.
    """
    writer = _HaltingWriter(fps=_PER_SECOND)
    with atomic_path(path) as temporary, _SETTINGS, mpl.rc_context({"savefig.bbox": None}):
        writer.setup(animation.figure, str(temporary), dpi=MOVING_DPI)
        for number in range(animation.frames):
            animation.draw(number)
            writer.grab_frame()
        writer.finish()
    return Path(path)
