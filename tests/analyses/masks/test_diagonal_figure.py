"""What the diagonal is worth, as a figure."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from tiers import rest_slow

from headlens.analyses.masks.study_figures import quality_by_layers, worth_of_diagonal
from headlens.plots.curves import SAME_ANSWER
from headlens.plots.style import COLUMN_WIDTH, drawn_for

# less than all positions, in one seed
LESS = {"kept": 0.0, "random": -0.02, "dropped": 0.03}


def masks(
    tasks: dict[str, str], controls: tuple[str, ...] = tuple(LESS), models: tuple[str, ...] = ("m",)
) -> pd.DataFrame:
    rows = [
        {
            "pattern": pattern,
            "layers": layers,
            "control": control,
            "sparsity": 0.1,
            "sparsity_texts": 0.1,
            "task": task,
            "metric": metric,
            "seed": seed,
            "value": 0.5 + LESS[control] + 0.1 * seed + (0.01 * seed if control == "dropped" else 0.0),
            "ci_low": 0.4,
            "ci_high": 0.9,
            "model": model,
        }
        for model in models
        for task, metric in tasks.items()
        for pattern in ("full", "star")
        for layers in ("all", "last:3")
        for control in controls
        if (pattern, control) != ("star", "random") and (pattern, layers, control) != ("full", "last:3", "kept")
        for seed in range(2)
    ]
    return pd.DataFrame(rows)


def points(axes: Axes) -> dict[str, list[list[float]]]:
    lines = [line for line in axes.lines if line.get_marker() == "o"]
    return {str(line.get_label()): line.get_xydata().round(3).tolist() for line in lines}


def test_differences_task_by_task_and_a_panel_per_metric() -> None:
    figure = worth_of_diagonal(masks({"sst2": "accuracy", "rte": "accuracy", "cola": "matthews"}))
    assert figure is not None
    first, second = figure.axes
    assert first.get_xlabel() == "accuracy minus that with full attention"
    assert second.get_xlabel() == "matthews minus that with full attention"
    names = ["sst2", "sst2, layers last:3", "rte", "rte, layers last:3"]
    assert [label.get_text() for label in first.get_yticklabels()] == names
    # the mean over seeds of .03 and .04
    assert points(first) == {
        "as many random positions masked": [[-0.02, row - 0.15] for row in range(4)],
        "diagonal masked": [[0.035, row + 0.15] for row in range(4)],
    }
    assert [line.get_xdata()[0] for line in first.lines if line.get_linestyle() == "--"] == [0.0]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "nothing masked",
        "as many random positions masked",
        "diagonal masked",
    ]


def test_models_of_one_answer_are_named_and_framed() -> None:
    """No difference is no finding where a model has one answer to everything anyway."""
    table = masks({"sst2": "accuracy"})
    figure = worth_of_diagonal(table.assign(answer_share=1.0))
    assert figure.get_suptitle().endswith("\nno mask: the same answer to all examples")
    frames = [line.get_xydata().tolist() for line in figure.axes[0].lines if line.get_label() == SAME_ANSWER]
    assert np.concatenate(frames) == pytest.approx(np.concatenate(list(points(figure.axes[0]).values())))
    masked = np.where(table["control"] == "kept", 0.6, 0.97)
    assert "answer" not in worth_of_diagonal(table.assign(answer_share=masked)).get_suptitle()
    several = masks({"sst2": "accuracy", "cola": "matthews", "rte": "accuracy"})
    shares = several["task"].map({"sst2": 0.98, "cola": 0.98, "rte": 0.5})
    title = worth_of_diagonal(several.assign(answer_share=shares)).get_suptitle()
    assert " ".join(title.split()).endswith("no mask: the same answer to 98 % of the examples (sst2; cola)")
    assert "no mask: the same answer" in quality_by_layers(table.assign(answer_share=1.0)).get_suptitle()


@pytest.mark.slow
@pytest.mark.parametrize("width", rest_slow(["full", "column"], ["column"]))
def test_nothing_is_cut_off(width: str) -> None:
    with drawn_for(width):
        figure = worth_of_diagonal(masks({"sst2": "accuracy", "cola": "matthews"}, models=("one", "another")))
    assert figure is not None
    assert len(figure.axes) == 4
    assert [axes.get_title() for axes in figure.axes] == ["one", "one", "another", "another"]
    assert width == "full" or figure.get_figwidth() <= COLUMN_WIDTH
    figure.canvas.draw()
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    assert all(b.x0 >= 0 and b.x1 <= figure.bbox.x1 and b.y0 >= 0 and b.y1 <= figure.bbox.y1 for b in boxes if b)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i] if a and b)


def test_nothing_is_drawn_without_a_difference() -> None:
    tasks = {"sst2": "accuracy"}
    assert worth_of_diagonal(masks(tasks, ("kept",))) is None
    assert worth_of_diagonal(masks(tasks, ("kept", "random"))) is None
    # tables of runs that compared nothing
    assert worth_of_diagonal(masks(tasks, ("dropped",))) is None
    alone = masks(tasks)
    alone = alone[alone["seed"] == 0]
    assert worth_of_diagonal(alone) is None
    told = worth_of_diagonal(alone.assign(delta=-0.1, delta_low=-0.2, delta_high=0.05))
    assert told is not None, "one seed has the difference over its examples"
    assert points(told.axes[0])["diagonal masked"] == [[-0.1, 0.15], [-0.1, 1.15]]


def test_a_metric_is_no_formula() -> None:
    figure = worth_of_diagonal(masks({"t": "$\\frac{1$ $x$"}))
    assert figure is not None
    figure.draw_without_rendering()
    assert any("frac" in axes.get_xlabel() for axes in figure.axes)
