"""Figures whose letters are TrueType fonts in PDF and PostScript, whoever writes them."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl  # noqa: TID253 - imported where a figure is made
from matplotlib.figure import Figure  # noqa: TID253

from headlens.plots.export import SETTINGS, TRUE_TYPE


class EmbeddedFontFigure(Figure):
    """A figure that is written with TrueType letters; the settings of matplotlib are then as they were."""

    def savefig(self, fname: Any, **options: Any) -> None:
        """Writes the figure as `matplotlib.figure.Figure.savefig` does, with the same options."""
        with SETTINGS, mpl.rc_context(TRUE_TYPE):
            super().savefig(fname, **options)
