"""Figures to files: PNG for the eye, SVG for print, the same bytes every time."""

from __future__ import annotations

import threading
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from headlens.report.files import atomic_path

DPI = 200
# matplotlib reads the salt of SVG ids from its global settings only
_SETTINGS = threading.Lock()


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
