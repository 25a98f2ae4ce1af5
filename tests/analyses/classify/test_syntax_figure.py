from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from drawn_words import check_edges, fits_a_page
from made_runs import HOSTILE
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from headlens.analyses.classify.syntax_figure import best_heads, best_heads_figure, is_marked, syntactic_map

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


def rows_of(figure: Figure | None, panel: int = 0) -> list[str]:
    assert figure is not None
    return [label.get_text() for label in figure.axes[panel].get_yticklabels()]


def test_the_best_heads_stand_beside_the_best_offset(make_syntax: Make) -> None:
    frame = make_syntax(relations="obj").assign(accuracy=0.2, significant=False, baseline=0.1)
    chosen = (frame["layer"] == 2) & (frame["head"] == 5) & (frame["direction"] == "head->dep")
    columns = ["accuracy", "baseline", "ci_low", "ci_high", "significant"]
    frame.loc[chosen, columns] = [0.812, 0.381, 0.79, 0.83, True]
    figure = best_heads_figure(frame)
    names = rows_of(figure)
    assert names[1] == "obj ↓ encoder.2.5*"
    assert names[0].startswith("obj ↑ encoder.")
    assert "*" not in names[0]
    assert figure is not None
    (axes,) = figure.axes
    drawn = {line.get_label(): line.get_xdata() for line in axes.lines}
    np.testing.assert_allclose(drawn["best head, 95 % interval"], [0.2, 0.812])
    np.testing.assert_allclose(drawn["best fixed offset"], [0.1, 0.381])


def test_relations_with_too_few_instances_are_marked(make_syntax: Make) -> None:
    frame = make_syntax(relations="nsubj vocative")
    frame.loc[frame["relation"] == "vocative", "n"] = 29
    marked = [name for name in rows_of(best_heads_figure(frame)) if "†" in name]
    assert len(marked) == 2
    assert all(name.startswith("vocative") for name in marked)
    assert not [name for name in rows_of(best_heads_figure(frame, min_instances=29)) if "†" in name]


def test_two_models_have_panels_of_their_own(make_syntax: Make) -> None:
    second = make_syntax("two")
    figure = best_heads_figure(pd.concat([make_syntax("one"), second[second["relation"] == "obj"]]))
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes] == ["one", "two"]
    assert (len(rows_of(figure)), len(rows_of(figure, 1))) == (4, 2)
    assert fits_a_page(figure)


def test_no_scores_no_figure(make_syntax: Make) -> None:
    assert best_heads_figure(make_syntax().assign(accuracy=np.nan)) is None
    assert best_heads(make_syntax().iloc[:0]).empty


def test_nothing_leaves_the_figure(make_syntax: Make) -> None:
    model = "an-organisation-with-a-name/a-model-with-a-name-that-does-not-end"
    figure = best_heads_figure(make_syntax(model, {"encoder": [16] * 24}, relations="nsubj:pass $x"))
    assert figure is not None
    figure.canvas.draw()
    edge = figure.bbox.width
    for text in [*figure.texts, *figure.axes[0].get_yticklabels(), figure.axes[0].title]:
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= edge
        assert box.y0 >= 0


def test_strange_names_are_cut_in_the_middle_and_leave_room_for_the_points(make_syntax: Make) -> None:
    words = "".join(HOSTILE)
    frame = make_syntax(words, relations="nsubj obj").assign(relation=words)
    figure = best_heads_figure(frame.drop_duplicates(["model", "layer", "head", "direction"]))
    assert figure is not None
    figure.canvas.draw()
    check_edges(figure)
    (axes,) = figure.axes
    assert axes.get_position().width * figure.get_figwidth() > 1.5
    assert all("encoder." in label.get_text() and "…" in label.get_text() for label in axes.get_yticklabels())
