from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from drawn_words import fits_a_page
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from headlens.analyses.classify.best_heads import best_heads_table
from headlens.analyses.classify.syntax_figure import best_heads, is_marked, syntactic_map
from headlens.plots.style import FAINT

Make = Callable[..., pd.DataFrame]


def panels(figure: Figure | None) -> list[Axes]:
    assert figure is not None
    return [axes for axes in figure.axes if axes.get_xlabel() == "head"]


def framed(axes: Axes) -> set[tuple[int, int]]:
    boxes = [p for p in axes.patches if isinstance(p, Rectangle)]
    return {(int(b.get_y() + 0.5), int(b.get_x() + 0.5)) for b in boxes}


def words(figure: Figure | None) -> list[str]:
    assert figure is not None
    return [t.get_text() for t in figure.texts]


def test_one_panel_per_relation_and_direction_with_frames(make_syntax: Make) -> None:
    frame = make_syntax(relations="nsubj obj amod advmod")
    drawn = panels(syntactic_map(frame))
    assert len(drawn) == 8
    gains = (frame["accuracy"] - frame["baseline"]).abs().max()
    rows = frame.groupby(["relation", "direction"], sort=False)
    for axes, ((relation, direction), part) in zip(drawn, rows, strict=True):
        title = axes.get_title(loc="left").split("\n")
        assert title == [f"encoder: {relation}, {direction}", f"n = 812, baseline {part['baseline'].iloc[0]:.2f}"]
        mesh = axes.collections[-1]
        assert mesh.get_clim() == (-gains, gains)
        np.testing.assert_allclose(np.asarray(mesh.get_array()).ravel(), part["accuracy"] - part["baseline"])
        chosen = part[part["syntactic"] & part["significant"]]
        assert framed(axes) == set(chosen[["layer", "head"]].itertuples(index=False, name=None))
    assert any(framed(axes) for axes in drawn)


def test_relations_can_be_chosen_and_ordered(make_syntax: Make) -> None:
    frame = make_syntax(relations="nsubj obj amod")
    assert len(panels(syntactic_map(frame, "obj"))) == 2
    titles = [axes.get_title(loc="left") for axes in panels(syntactic_map(frame, ["amod", "nsubj"]))]
    assert ["amod" in t for t in titles] == [True, True, False, False]
    assert syntactic_map(frame, "vocative") is None


def test_two_models_stand_side_by_side(make_syntax: Make) -> None:
    shapes = {"encoder": [12] * 12}
    frame = pd.concat([make_syntax("one", shapes), make_syntax("two", shapes)])
    drawn = panels(syntactic_map(frame))
    assert len(drawn) == 8
    first_row = [a for a in drawn if a.get_position().y0 == pytest.approx(drawn[0].get_position().y0)]
    assert [axes.get_title(loc="left").split(",")[0] for axes in first_row] == ["one", "one", "two", "two"]


def test_stacks_without_trees_and_missing_heads(make_syntax: Make) -> None:
    frame = make_syntax(shapes={"encoder": [3, 2], "cross": [2]}, relations="obj")
    frame.loc[frame["stack"] == "cross", "accuracy"] = np.nan
    frame.loc[(frame["layer"] == 1) & (frame["stack"] == "encoder"), "accuracy"] = np.nan
    drawn = panels(syntactic_map(frame))
    assert len(drawn) == 2
    # the layer without values is still there
    assert drawn[0].get_ylim() == (-0.5, 1.5)
    assert syntactic_map(frame.assign(accuracy=np.nan)) is None
    assert syntactic_map(frame.iloc[:0]) is None


def test_the_best_head_is_the_most_accurate(make_syntax: Make) -> None:
    frame = pd.concat([make_syntax("one"), make_syntax("two", {"encoder": [2], "decoder": [3]})])
    best = best_heads(frame)
    assert len(best) == 8
    for row in best.itertuples():
        same = frame["relation"].eq(row.relation) & frame["direction"].eq(row.direction) & frame["model"].eq(row.model)
        rivals = frame[same].sort_values("accuracy", ascending=False).iloc[0]
        assert (row.stack, row.layer, row.head) == tuple(rivals[["stack", "layer", "head"]])
        assert row.accuracy == rivals["accuracy"]


def test_truth_values_from_a_file_or_from_memory() -> None:
    column = pd.Series([True, "true", "True", 1, 1.0, False, "false", np.nan, None, 0], dtype=object)
    assert is_marked(column).tolist() == [True] * 5 + [False] * 5


def test_the_table_reads_as_in_the_paper(make_syntax: Make) -> None:
    frame = make_syntax(relations="obj").assign(accuracy=0.2, significant=False)
    chosen = (frame["layer"] == 2) & (frame["head"] == 5) & (frame["direction"] == "head->dep")
    columns = ["accuracy", "baseline", "ci_low", "ci_high", "significant"]
    frame.loc[chosen, columns] = [0.812, 0.381, 0.79, 0.83, True]
    found = words(best_heads_table(frame))
    for word in ("obj", "head->dep", "dep->head", "81* / 38", "encoder.2.5", "812", "79–83", "demo"):
        assert word in found
    assert not any("*" in w for w in found if w.startswith("20"))


def test_relations_with_too_few_instances_are_marked(make_syntax: Make) -> None:
    frame = make_syntax(relations="nsubj vocative")
    few = frame["relation"] == "vocative"
    frame.loc[few, "n"] = 29
    figure = best_heads_table(frame)
    found = words(figure)
    assert found.count("29†") == 2
    assert found.count("812") == 2
    assert "fewer than 30 instances" in found[-1].replace("\n", " ")
    assert figure is not None
    marked = {t.get_position()[1] for t in figure.texts if t.get_text() == "29†"}
    faint = {t.get_position()[1] for t in figure.texts if t.get_color() == FAINT}
    assert faint == marked
    assert not [w for w in words(best_heads_table(frame, min_instances=29)) if "†" in w or "dagger" in w]


def test_two_models_have_columns_of_their_own(make_syntax: Make) -> None:
    second = make_syntax("two")
    frame = pd.concat([make_syntax("one"), second[second["relation"] == "obj"]])
    figure = best_heads_table(frame)
    found = words(figure)
    assert found.count("best / baseline") == 2
    assert found.count("obj") == 2
    # one relation is missing in the second model: its cells stay empty
    assert sum(w.startswith("encoder.") for w in found) == 4 + 2
    assert figure is not None
    assert fits_a_page(figure)


def test_no_scores_no_table(make_syntax: Make) -> None:
    assert best_heads_table(make_syntax().assign(accuracy=np.nan)) is None
    assert best_heads(make_syntax().iloc[:0]).empty


def test_nothing_in_the_table_leaves_the_figure(make_syntax: Make) -> None:
    model = "an-organisation-with-a-name/a-model-with-a-name-that-does-not-end"
    figure = best_heads_table(make_syntax(model, {"encoder": [16] * 24}, relations="nsubj:pass $x"))
    assert figure is not None
    edge = figure.bbox.width
    for text in figure.texts:
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= edge
        assert box.y0 >= 0
