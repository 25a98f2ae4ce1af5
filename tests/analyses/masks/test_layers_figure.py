"""Quality under masks by ranges of layers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from headlens.analyses.masks.study_figures import means, quality_by_layers, quality_by_pattern, study_markdown, titled

MASKS = [("graph:syntax", "all"), ("graph:syntax", "last:3"), ("graph:random", "all"), ("star", "last:3")]


def masks(chosen: list[tuple[str, str]] = MASKS, tasks: tuple[str, ...] = ("sst2",)) -> pd.DataFrame:
    rows = [("full", "all", "kept"), ("full", "all", "dropped")]
    rows += [(pattern, layers, control) for pattern, layers in chosen for control in ("kept", "dropped")]
    return pd.DataFrame(
        [
            {
                "pattern": pattern,
                "layers": layers,
                "control": control,
                "sparsity": np.nan if pattern.startswith("graph:") else 0.9,
                "sparsity_texts": 0.5,
                "task": task,
                "metric": "accuracy",
                "seed": 0,
                "value": 0.5 + 0.01 * number,
                "ci_low": 0.4,
                "ci_high": 0.9,
                "model": "m",
            }
            for task in tasks
            for number, (pattern, layers, control) in enumerate(rows)
        ]
    )


@pytest.mark.usefixtures("laid_out")
def test_a_row_per_mask_and_a_colour_per_range() -> None:
    figure = quality_by_layers(masks(tasks=("sst2", "a task with a long name")))
    assert figure is not None
    assert len(figure.axes) == 2
    for axes in figure.axes:
        assert [label.get_text() for label in axes.get_yticklabels()] == ["graph:syntax", "graph:random", "star"]
        points = {
            line.get_label(): line.get_xydata().round(2).tolist() for line in axes.lines if line.get_marker() == "o"
        }
        assert points == {
            "all layers": [[0.52, -0.15], [0.56, 0.85]],
            "layers last:3": [[0.54, 0.15], [0.58, 2.15]],
        }
        assert [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"] == [0.5]
        assert axes.yaxis_inverted()
    figure.canvas.draw()
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    assert all(b.x0 >= 0 and b.x1 <= figure.bbox.x1 and b.y0 >= 0 and b.y1 <= figure.bbox.y1 for b in boxes if b)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i] if a and b)
    (legend,) = figure.legends
    assert not any(legend.get_window_extent().overlaps(b) for b in boxes if b)


@pytest.mark.parametrize("chosen", [[], [("star", "all"), ("strided", "all")]])
def test_patterns_in_all_layers_are_shown_elsewhere(chosen: list[tuple[str, str]]) -> None:
    assert quality_by_layers(masks(chosen)) is None


def test_titles_give_the_chance_level() -> None:
    both = masks(tasks=("sst2", "rte"))
    known = both["task"].map({"sst2": 0.5, "rte": 0.531})
    lossy = pd.concat([masks().assign(chance=0.056), masks().assign(chance=4.85, metric="loss")], ignore_index=True)
    titles = (titled("T", rows, rows.iloc[:0], with_chance=True) for rows in (lossy, lossy.assign(chance=0.5)))
    assert [title.split("chance level ")[1] for title in titles] == ["accuracy 0.056, loss 4.85)", "0.5)"]
    for rows, level in ((both.assign(chance=known), "sst2 0.5, rte 0.531"), (masks().assign(chance=0.5), "0.5")):
        figure = quality_by_layers(rows)
        assert figure is not None
        first, second, third = figure.get_suptitle().splitlines()
        assert second.endswith(f"; chance level {level})"), first
        assert third.startswith("no mask: not shown to be better than guessing")
    figure = quality_by_layers(both)
    assert figure is not None
    assert figure.get_suptitle().endswith("(95 % intervals)")


def test_a_task_without_masks_has_no_panel() -> None:
    bare = masks([], tasks=("rte",))
    figure = quality_by_layers(pd.concat([masks(), bare]))
    assert figure is not None
    figure.canvas.draw()
    assert [axes.get_xlabel() for axes in figure.axes] == ["accuracy on sst2"]


def test_graphs_are_compared_by_the_texts() -> None:
    table = masks()
    assert means(table)["sparsity_texts"].eq(0.5).all()
    assert "| sst2 | graph:syntax | last:3 | – | 50.0 |" in study_markdown(table)
    # all mask alike: a plot over sparsity would be a line
    assert quality_by_pattern(masks([("graph:syntax", "all")])) is None
    figure = quality_by_pattern(table)
    assert figure is not None
    assert "masked share of their layers alone" in " ".join(text.get_text() for text in figure.texts).replace("\n", " ")
    everywhere = quality_by_pattern(table.assign(layers="all"))
    assert everywhere is not None
    assert "layers alone" not in " ".join(text.get_text() for text in everywhere.texts).replace("\n", " ")
    assert figure is not None
    assert [text.get_text() for text in figure.axes[0].texts] == ["star last:3"]
