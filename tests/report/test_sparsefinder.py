"""Pareto curves as pictures."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from headlens.report.sparsefinder import LOOKS, pareto_curves


def curves() -> pd.DataFrame:
    rows = [
        (method, 0.2 * step, 1 - 0.01 * number - 0.15 * step, 30 - number - step if step % 2 else np.nan)
        for number, method in enumerate(LOOKS)
        for step in range(5)
    ]
    return pd.DataFrame(rows, columns=["method", "sparsity", "recall", "value"])


@pytest.mark.parametrize("metric", [None, "BLEU"])
def test_every_method_has_a_curve(metric: str | None) -> None:
    figure = pareto_curves(curves(), 0.85, metric)
    assert figure is not None
    assert len(figure.axes) == (1 if metric is None else 2)
    for axes, column in zip(figure.axes, ("recall", "value"), strict=False):
        lines = {str(line.get_label()): line for line in axes.lines}
        assert list(lines) == [*(label for _, _, label in LOOKS.values()), "entmax itself"]
        for method, (_, _, label) in LOOKS.items():
            own = curves()[lambda t, method=method, column=column: (t["method"] == method) & t[column].notna()]
            assert lines[label].get_xydata().tolist() == own[["sparsity", column]].to_numpy().tolist()
        assert lines["entmax itself"].get_xdata() == [0.85, 0.85]
    figure.canvas.draw()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert all(axes.get_tightbbox().y0 >= box.y1 - 1 for axes in figure.axes)


def test_without_points_there_is_no_figure() -> None:
    assert pareto_curves(curves()[:0], 0.5) is None
