"""Figures to files: PNG for the eye, SVG and PDF for print; the same bytes every time."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headlens.errors import OptionError
from headlens.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 200
FORMATS = ("png", "svg", "pdf")
TRUE_TYPE: dict[Any, Any] = {"pdf.fonttype": 42, "ps.fonttype": 42}  # some publishers refuse Type 3
_REPEATABLE: dict[Any, Any] = {"svg.hashsalt": "headlens", **TRUE_TYPE}
# Metadata without dates, which would differ from time to time.
_METADATA: dict[str, dict[str, str | None]] = {
    "png": {},
    "svg": {"Date": None, "Creator": "headlens"},
    "pdf": {"CreationDate": None, "Creator": "headlens", "Producer": None},
}
# Matplotlib reads fonts, the salt of SVG ids, and whether margins are cut off, from its global settings only
SETTINGS = threading.RLock()


def check_formats(formats: Sequence[str]) -> None:
    """Refuses formats that a figure cannot be written in.

    Raises:
        OptionError: for an unknown format, or none.
    """
    advice = f"Choose among {', '.join(FORMATS)}."
    if wrong := [name for name in formats if name not in FORMATS]:
        raise OptionError(f"--format {wrong[0]!r} is not a format of figures.", advice)
    if not formats:
        raise OptionError("--format is empty.", advice)


def write_figure(figure: Figure, stem: str | Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Writes `figure` as `<stem>.png` (200 dpi), `<stem>.svg`, `<stem>.pdf`; the same figure gives the same bytes.

    Text in a PDF stays text, in TrueType fonts, as publishers ask for.

    Args:
        figure: the figure.
        stem: path without the ending.
        formats: which of `FORMATS`.

    Returns:
        The paths, in the order of `FORMATS`.

    Raises:
        OptionError: for an unknown format.
        OutputError: if the folder cannot be written or the disk is full.
    """
    import matplotlib as mpl

    check_formats(formats)
    paths = []
    for name in [name for name in FORMATS if name in formats]:
        path = Path(f"{stem}.{name}")
        with atomic_path(path) as temporary, SETTINGS, mpl.rc_context(_REPEATABLE):
            figure.savefig(temporary, format=name, dpi=DPI if name == "png" else None, metadata=_METADATA[name])
        paths.append(path)
    return paths
