from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from drawn_words import check_edges, fits_a_page
from made_runs import HOSTILE
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from headlens.analyses.classify.report import classify_figures
from headlens.analyses.classify.syntax_figure import best_head_name, best_heads, best_heads_figure, syntactic_map
from headlens.heads import KEY_COLUMNS
from headlens.roles.syntax_verdicts import is_marked

Make = Callable[..., pd.DataFrame]


def panels(figure: Figure | None) -> list[Axes]:
    assert figure is not None
    return [axes for axes in figure.axes if axes.get_xlabel().startswith("layer")]


def framed(axes: Axes) -> set[tuple[int, int]]:
    boxes = [p for p in axes.patches if isinstance(p, Rectangle)]
    return {(int(b.get_y() + 0.5), int(b.get_x() + 0.5)) for b in boxes}


def test_relations_are_rows_and_heads_are_columns(make_syntax: Make) -> None:
    frame = make_syntax(relations="nsubj obj amod advmod")
    frame["gain"] = frame["accuracy"] - frame["baseline"]
    (axes,) = panels(syntactic_map(frame))
    best = frame.groupby(["relation", "direction"])["gain"].max().sort_values(ascending=False)
    best = best[best > 0]
    arrows = {"dep->head": "↑", "head->dep": "↓"}
    rows = [f"{relation} {arrows[direction]}" for relation, direction in best.index]
    assert [label.get_text() for label in axes.get_yticklabels()] == rows
    mesh = axes.collections[0]
    assert mesh.get_clim() == (0.0, best.max())
    drawn = np.asarray(mesh.get_array()).reshape(len(rows), -1)
    frames = framed(axes)
    assert frames
    for place, (relation, direction) in enumerate(best.index):
        part = frame[(frame["relation"] == relation) & (frame["direction"] == direction)]
        np.testing.assert_allclose(drawn[place], part.sort_values(["layer", "head"])["gain"])
        chosen = (part["syntactic"] & part["significant"]).to_numpy()
        assert {column for row, column in frames if row == place} == set(np.flatnonzero(chosen))
    (beside,) = axes.child_axes
    top = frame.loc[frame["gain"].idxmax()]
    assert beside.get_yticklabels()[0].get_text() == (
        f"{top['layer']}.{top['head']}: {top['accuracy']:.2f} ({top['baseline']:.2f})"
    )


def test_what_no_head_follows_better_than_an_offset_is_left_out(make_syntax: Make) -> None:
    frame = make_syntax(relations="nsubj obj").assign(accuracy=0.3, baseline=0.4)
    assert syntactic_map(frame) is None, "an empty panel tells nothing"
    frame.loc[frame.index[frame["relation"] == "obj"][0], "accuracy"] = 0.5
    assert len(panels(syntactic_map(frame))[0].get_yticklabels()) == 1


def test_small_gains_stay_pale_and_panels_of_best_heads_share_their_axis(make_syntax: Make) -> None:
    frame = make_syntax(relations="nsubj").assign(accuracy=0.45, baseline=0.4)
    (mesh,) = panels(syntactic_map(frame))[0].collections[:1]
    assert mesh.get_clim() == (0.0, 0.2)
    both = pd.concat([frame, frame.assign(model="b", accuracy=0.9, ci_low=0.85, ci_high=0.95)])
    figure = best_heads_figure(both)
    assert figure is not None
    assert len({axes.get_xlim() for axes in figure.axes}) == 1


@pytest.mark.slow
def test_models_and_stacks_have_panels_of_their_own(make_syntax: Make) -> None:
    frame = pd.concat([make_syntax("one", {"encoder": [6] * 4, "decoder": [2]}), make_syntax("two")])
    figure = syntactic_map(frame)
    names = [axes.get_title(loc="left").partition(" (")[0] for axes in panels(figure)]
    assert names == ["one, encoder", "one, decoder", "two, encoder"]
    assert figure is not None
    figure.canvas.draw()
    check_edges(figure)


def test_stacks_without_trees_and_missing_heads(make_syntax: Make) -> None:
    frame = make_syntax(shapes={"encoder": [3, 2], "cross": [2]}, relations="obj").assign(baseline=0.0)
    frame.loc[frame["stack"] == "cross", "accuracy"] = np.nan
    frame.loc[(frame["layer"] == 1) & (frame["stack"] == "encoder"), "accuracy"] = np.nan
    assert len(panels(syntactic_map(frame))) == 1
    assert syntactic_map(frame.assign(accuracy=np.nan)) is None
    assert syntactic_map(frame.iloc[:0]) is None


def test_a_syntactic_head_is_better_than_a_more_accurate_one_that_is_not(make_syntax: Make) -> None:
    frame = make_syntax(relations="obj").assign(accuracy=0.5, significant=False, syntactic=True, accuracy_null=0.1)
    for head, accuracy, sure in ((1, 0.7, False), (3, 0.6, True), (4, 0.65, True)):
        place = (frame["layer"] == 1) & (frame["head"] == head)
        frame.loc[place, ["accuracy", "ci_low", "significant"]] = [accuracy, accuracy - 0.05, sure]
    for best in best_heads(frame).itertuples():
        assert (best.layer, best.head, best.accuracy) == (1, 4, 0.65)
    none = best_heads(frame.assign(significant=False))
    assert set(none["accuracy"]) == {0.7}


def test_the_best_head_is_the_most_accurate(make_syntax: Make) -> None:
    frame = pd.concat([make_syntax("one"), make_syntax("two", {"encoder": [2], "decoder": [3]})])
    frame = frame.assign(significant=False)
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
    frame = make_syntax(relations="obj").assign(accuracy=0.2, significant=False, syntactic=False, baseline=0.1)
    chosen = (frame["layer"] == 2) & (frame["head"] == 5) & (frame["direction"] == "head->dep")
    columns = ["accuracy", "baseline", "ci_low", "ci_high", "significant", "syntactic"]
    frame.loc[chosen, columns] = [0.812, 0.381, 0.79, 0.83, True, True]
    figure = best_heads_figure(frame)
    names = rows_of(figure)
    assert names[1] == "obj ↓ encoder.2.5"
    assert names[0].startswith("obj ↑ encoder.")
    assert figure is not None
    (axes,) = figure.axes
    drawn = {line.get_label(): line.get_xdata() for line in axes.lines}
    np.testing.assert_allclose(drawn["best head, 95 % interval: syntactic"], [0.812])
    np.testing.assert_allclose(drawn["not syntactic (too little, or n.s.)"], [0.2])
    np.testing.assert_allclose(drawn["best fixed offset"], [0.1, 0.381])
    assert "uniform attention" not in drawn, "of a table of an earlier version"
    beside = best_heads_figure(frame.assign(accuracy_null=np.where(chosen, 0.25, 0.15)))
    assert beside is not None
    (ticks,) = (line.get_xdata() for line in beside.axes[0].lines if line.get_label() == "uniform attention")
    np.testing.assert_allclose(ticks, [0.15, 0.25])


def test_no_head_is_best_where_none_is_right_and_ties_are_counted(make_syntax: Make) -> None:
    frame = make_syntax(relations="obj iobj nsubj").assign(accuracy=0.2, significant=False, syntactic=False)
    frame.loc[frame["relation"] == "iobj", ["accuracy", "ci_low"]] = 0.0
    alone = (frame["relation"] == "nsubj") & (frame["layer"] == 1) & (frame["head"] == 3)
    frame.loc[alone, "accuracy"] = 0.4
    best = best_heads(frame)
    names = {row["relation"]: best_head_name(row) for row in best.to_dict("records")}
    heads = len(frame[frame["relation"] == "obj"]) // 2
    assert names == {"obj": f"encoder.0.0 ({heads} heads tie)", "iobj": "none", "nsubj": "encoder.1.3"}
    assert {name for name in rows_of(best_heads_figure(frame)) if "iobj" in name} == {"iobj ↓ none", "iobj ↑ none"}


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


def test_of_models_whose_heads_all_attend_evenly_none_is_named(make_syntax: Make, make_heads: Make) -> None:
    # Without other columns few other figures are drawn.
    few = ["model", *KEY_COLUMNS, "role"]
    heads = [make_heads(name)[few].assign(entropy_norm=even) for name, even in (("one", 0.5), ("two", 0.995))]
    syntax, offsets = (
        pd.concat([make_syntax("one"), make_syntax("two")]),
        make_syntax("two").assign(offset="-1", share=1),
    )
    note = "two, encoder: attention is nearly even, no head is named"
    tables = {"heads": pd.concat(heads), "syntax": syntax, "relation_offsets": offsets}
    figures = {name: figure for name, figure in classify_figures(tables) if figure is not None}
    best = figures["best_heads"]
    assert [axes.get_title() for axes in best.axes] == ["one"]
    assert best.get_suptitle().replace("\n", " ").endswith(note)
    assert "syntax" in figures
    assert "syntax_2" not in figures
    assert note not in figures["syntax"].get_suptitle()
    offset = figures["relation_offsets"]
    assert offset.get_suptitle().endswith(note)
    assert not [text for axes in offset.axes for text in axes.texts if "." in text.get_text()]
    assert "accuracy of the best head" not in str([text.get_text() for text in offset.legends[0].get_texts()])


def test_of_a_model_with_one_even_stack_only_heads_of_others_are_named(make_syntax: Make, make_heads: Make) -> None:
    shapes = {"encoder": [4] * 2, "decoder": [4] * 2}
    heads, syntax = make_heads(shapes=shapes)[["model", *KEY_COLUMNS, "role"]], make_syntax(shapes=shapes)
    heads = heads.assign(entropy_norm=np.where(heads["stack"] == "encoder", 1.0, 0.5))
    figures = dict(classify_figures({"heads": heads, "syntax": syntax}))
    names = rows_of(figures["best_heads"])
    assert names
    assert all("decoder." in name for name in names)
    (axes,) = panels(figures["syntax"])
    assert axes.get_title(loc="left") == "demo, decoder"
    for name in ("best_heads", "syntax"):
        figure = figures[name]
        assert figure is not None
        assert "demo, encoder: attention is nearly even" in figure.get_suptitle().replace("\n", " ")


def test_no_scores_no_figure(make_syntax: Make) -> None:
    assert best_heads_figure(make_syntax().assign(accuracy=np.nan)) is None
    assert best_heads(make_syntax().iloc[:0]).empty


@pytest.mark.usefixtures("laid_out")
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


@pytest.mark.usefixtures("laid_out")
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
