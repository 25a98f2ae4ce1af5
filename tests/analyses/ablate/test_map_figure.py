from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from drawn_maps import dots, mesh, pale, panels, words
from drawn_words import check_words, fits_a_page
from made_runs import HOSTILE
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from tiers import rest_slow, rest_slow_rows

from headlens.analyses.ablate.figures import ablation_map, side_by_side

Make = Callable[..., pd.DataFrame]
SMALL = {"encoder": [4] * 2}
MARIAN = {"encoder": [8] * 6, "decoder": [8] * 6, "cross": [8] * 6}


def colour(axes: Axes, value: float) -> tuple[float, ...]:
    """Red, green and blue of a value."""
    return mesh(axes).to_rgba(np.array([value]))[0][:3].tolist()


def is_red(axes: Axes, value: float) -> bool:
    red, _, blue = colour(axes, value)
    return red > 2 * blue


def test_cells_hold_the_changes_of_the_table(make_ablation: Make) -> None:
    frame = make_ablation(shapes={"encoder": [4, 3, 4]})
    figure = ablation_map(frame)
    (axes,) = panels(figure)
    drawn, found, marked = np.ma.asarray(mesh(axes).get_array()), words(axes), dots(axes)
    for row in frame.itertuples():
        assert drawn[row.layer, row.head] == row.delta
        value, half = f"{row.delta:.3f}", f"{(row.ci_high - row.ci_low) / 2:.3f}"
        assert found.pop((row.layer, row.head)) == f"{value}\n±{half}".replace("-", "−").replace("−0.000", "0.000")
        assert ((row.layer, row.head) in marked) == (row.p_holm < 0.05) == ((row.layer, row.head) not in pale(axes))
    assert found == {}
    assert 0 < len(marked) < len(frame)
    assert figure is not None
    assert figure.texts[0].get_text().replace("\n", " ") == (
        "Ablation: change in accuracy on sst2 without each head, n = 872"
    )
    note = figure.texts[1].get_text().replace("\n", " ")
    assert note.endswith("Dot: p < 0.05 after Holm's correction for all heads; heads without a dot are pale.")
    assert axes.get_title(loc="left") == "demo, encoder\n0.910 with all heads"
    assert "change in accuracy" in {own.get_ylabel().replace("\n", " ") for own in figure.axes}


def test_a_change_that_is_not_significant_is_pale_though_its_interval_leaves_0_out(make_ablation: Make) -> None:
    frame = make_ablation(shapes={"encoder": [3]}).assign(delta=0.08, ci_low=[0.001, 0.001, -0.1], ci_high=0.16)
    (axes,) = panels(ablation_map(frame.assign(p_holm=[1.0, 0.01, np.nan])))
    assert pale(axes) == {(0, 0), (0, 2)}


VERDICTS = ("needed", "not needed", "not decided")


@pytest.mark.parametrize("verdicts", [VERDICTS, *combinations(VERDICTS, 2), *((v,) for v in VERDICTS)])
def test_marks_agree_with_verdicts_and_the_note_tells_those_that_are_drawn(
    make_ablation: Make, verdicts: tuple[str, ...]
) -> None:
    frame = make_ablation(shapes={"encoder": [len(verdicts)]}).assign(verdict=verdicts)
    frame["p_holm"] = [0.01 if one == "needed" else 1.0 for one in verdicts]
    figure = ablation_map(frame)
    (axes,) = panels(figure)
    found: dict[str, set[int]] = {"needed": set(), "not needed": set()}
    for marks in (own for own in axes.collections if isinstance(own, PathCollection)):
        ring = not len(marks.get_facecolors())
        found["not needed" if ring else "needed"] |= {int(x) for x, _ in np.asarray(marks.get_offsets())}
    for name, places in found.items():
        assert places == {place for place, one in enumerate(verdicts) if one == name}
    assert figure is not None
    note = figure.texts[1].get_text().replace("\n", " ")
    for mark, name in (
        ("Dot: ", "needed"),
        ("Ring: not needed", "not needed"),
        ("No mark: not decided", "not decided"),
    ):
        assert (mark in note) == (name in verdicts)
    assert ("pale" in note.lower()) == (set(verdicts) != {"needed"} or "Dot: " in note)


@pytest.mark.parametrize("metric", rest_slow(["accuracy", "f1", "matthews", "pearson", "bleu"], ["accuracy", "bleu"]))
def test_red_is_worse_where_higher_is_better(make_ablation: Make, metric: str) -> None:
    (axes,) = panels(ablation_map(make_ablation(shapes=SMALL, metric=metric)))
    assert is_red(axes, -0.05)
    assert not is_red(axes, 0.05)


@pytest.mark.parametrize("metric", ["loss", "perplexity"])
def test_red_is_worse_where_lower_is_better(make_ablation: Make, metric: str) -> None:
    (axes,) = panels(ablation_map(make_ablation(shapes=SMALL, metric=metric)))
    assert is_red(axes, 0.05)
    assert not is_red(axes, -0.05)


def test_colours_have_zero_in_their_middle_and_hold_the_largest_change(make_ablation: Make) -> None:
    frame = make_ablation()
    frame.loc[7, "delta"] = -0.8
    (axes,) = panels(ablation_map(frame))
    assert mesh(axes).get_clim() == (-0.8, 0.8)
    assert colour(axes, 0.0) == pytest.approx([0.97, 0.97, 0.97], abs=0.02)


def test_a_loss_that_explodes_does_not_wash_out_the_rest(make_ablation: Make) -> None:
    frame = make_ablation(metric="perplexity")
    frame.loc[7, "delta"] = 1e6
    (axes,) = panels(ablation_map(frame))
    assert mesh(axes).get_clim()[1] < 0.2
    assert words(axes)[0, 7].startswith("1e+06\n")


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_changes_far_below_the_margin_are_all_but_white(make_ablation: Make, metric: str) -> None:
    frame = make_ablation(shapes=SMALL, metric=metric).assign(delta=0.0003, ci_low=0.0002, ci_high=0.0004)
    figure = ablation_map(frame.assign(margin=0.03))
    (axes,) = panels(figure)
    assert mesh(axes).get_clim() == (-0.03, 0.03)
    assert set(words(axes).values()) == {"0.300\n±0.100"}
    assert figure is not None
    note = figure.texts[1].get_text().replace("\n", " ")
    assert note.startswith("Numbers are in units of 10⁻³. Margin, the smallest loss that matters: 0.03.")


def test_the_largest_margin_is_the_least_end_of_the_scale_of_several_models(make_ablation: Make) -> None:
    one, other = (make_ablation(name, SMALL).assign(margin=size) for name, size in (("a", 0.9), ("b", 0.5)))
    figure = ablation_map(pd.concat([one, other, other.assign(model="c", margin=np.nan)]))
    assert {mesh(axes).get_clim() for axes in panels(figure)} == {(-0.9, 0.9)}
    assert figure is not None
    assert "that matters: 0.5 to 0.9." in figure.texts[1].get_text().replace("\n", " ")


@pytest.mark.parametrize(
    ("mode", "title"),
    [
        ("zero", "Ablation: change in accuracy on sst2 without each head"),
        ("mean", "Ablation: change in accuracy on sst2 with each head's output replaced by its mean"),
        ("uniform", "Ablation: change in accuracy on sst2 with uniform attention in each head"),
    ],
)
def test_titles_say_how_heads_were_taken_out(make_ablation: Make, mode: str, title: str) -> None:
    figure = ablation_map(make_ablation(shapes=SMALL, mode=mode))
    assert figure is not None
    assert figure.texts[0].get_text().replace("\n", " ") == f"{title}, n = 872"


def test_each_head_alone_is_another_figure(make_ablation: Make) -> None:
    zero, alone = make_ablation(shapes=SMALL), make_ablation(shapes=SMALL, mode="keep-only", seed=1)
    both = pd.concat([zero, alone], ignore_index=True)
    for frame, keep_only in ((zero, False), (alone, True)):
        figure = ablation_map(both, keep_only=keep_only)
        (axes,) = panels(figure)
        np.testing.assert_array_equal(np.asarray(mesh(axes).get_array()).ravel(), frame["delta"])
        assert figure is not None
        assert ("as the only one in its layer" in figure.texts[0].get_text().replace("\n", " ")) == keep_only
    assert ablation_map(zero, keep_only=True) is None


@pytest.mark.parametrize(
    ("baseline", "shown"),
    rest_slow_rows([(0.9123, "0.912"), (-0.05, "-0.050"), (33.214, "33.21"), (1234.5, "1234")], 2),
)
def test_panels_say_what_all_heads_give(make_ablation: Make, baseline: float, shown: str) -> None:
    (axes,) = panels(ablation_map(make_ablation(shapes=SMALL).assign(baseline=baseline)))
    assert axes.get_title(loc="left") == f"demo, encoder\n{shown} with all heads"
    (axes,) = panels(ablation_map(make_ablation(shapes=SMALL).assign(baseline=np.nan)))
    assert axes.get_title(loc="left") == "demo, encoder"


def test_models_stand_side_by_side_with_one_scale(make_ablation: Make) -> None:
    bert, albert = make_ablation("bert"), make_ablation("albert", {"encoder": [8] * 12}, seed=1)
    albert.loc[5, "delta"] = -0.3
    figure = side_by_side(pd.concat([bert, albert, make_ablation(mode="keep-only")]))
    first, second = panels(figure)
    left, right = (axes.get_position() for axes in (first, second))
    assert left.x1 < right.x0
    assert left.y1 == pytest.approx(right.y1)
    for axes, frame in ((first, bert), (second, albert)):
        np.testing.assert_array_equal(np.asarray(mesh(axes).get_array()).ravel(), frame["delta"])
        assert mesh(axes).get_clim() == (-0.3, 0.3)
        expected = frame[frame["p_holm"] < 0.05]
        assert dots(axes) == set(zip(expected["layer"], expected["head"], strict=True))
        assert not axes.texts
    assert figure is not None
    assert fits_a_page(figure)
    assert (
        figure.texts[1].get_text()
        == "Dot: p < 0.05 after Holm's correction for all heads; heads without a dot are pale."
    )


def test_a_model_that_always_says_the_same_has_no_marks_and_says_so(make_ablation: Make) -> None:
    frames = [
        make_ablation(name, {"encoder": [4]}).assign(p_holm=1.0, verdict=verdict, baseline_answer_share=share)
        for name, verdict, share in (
            ("one", None, 1),
            ("other", "not decided", 0.9),
            ("nearly", "not decided", 0.98),
            ("guesses", None, 0.6),
        )
    ]
    titles = [axes.get_title(loc="left") for axes in panels(ablation_map(pd.concat(frames)))]
    assert titles == [
        "one, encoder\n0.910 with all heads\nthe same answer to all examples",
        "other, encoder\n0.910 with all heads",
        "nearly, encoder\n0.910 with all heads\nthe same answer to 98 % of the\nexamples",
        "guesses, encoder\n0.910 with all heads\nnot shown to be better than\nguessing",
    ]
    figure = ablation_map(frames[0])
    assert figure is not None
    assert "decided" not in figure.texts[1].get_text()


def test_places_without_a_head_look_otherwise_than_heads_without_effect(make_ablation: Make) -> None:
    rows = make_ablation("a", {"encoder": [4] * 4})
    gone = (rows["layer"] == 2) & rows["head"].isin([1, 3])
    axes = panels(ablation_map(rows[~gone]))[0]
    hatched = sorted((p.get_y(), p.get_x()) for p in axes.patches if p.get_hatch())
    assert hatched == [(2, 1), (2, 3)]


def test_small_models_stand_side_by_side_anyway(make_ablation: Make) -> None:
    small = pd.concat([make_ablation(name, {"encoder": [4] * 4}) for name in ("a", "b")])
    assert len({axes.get_position().y1 for axes in panels(ablation_map(small))}) == 1
    assert side_by_side(small) is None


@pytest.mark.slow
def test_three_stacks_and_large_models_fit_a_line(make_ablation: Make) -> None:
    assert len({axes.get_position().y1 for axes in panels(side_by_side(make_ablation(shapes=MARIAN)))}) == 1
    large = pd.concat([make_ablation(name, {"encoder": [16] * 12}) for name in ("a", "b")])
    figure = side_by_side(large)
    assert len(panels(figure)) == 2
    assert figure is not None
    assert fits_a_page(figure)


def test_one_model_is_beside_nothing(make_ablation: Make) -> None:
    assert side_by_side(make_ablation()) is None
    assert side_by_side(make_ablation().iloc[:0]) is None
    wide = pd.concat([make_ablation(name, {"encoder": [40] * 2}) for name in ("a", "b")])
    assert side_by_side(wide) is None
    both = pd.concat([make_ablation("a"), make_ablation("b")])
    assert side_by_side(both) is not None
    assert side_by_side(both.assign(delta=np.nan)) is None


def test_nothing_to_draw(make_ablation: Make) -> None:
    assert ablation_map(make_ablation().assign(delta=np.nan)) is None
    assert ablation_map(make_ablation().iloc[:0]) is None


def test_a_model_whose_heads_do_nothing(make_ablation: Make) -> None:
    frame = make_ablation(shapes={"encoder": [2]}).assign(delta=0.0, ci_low=0.0, ci_high=0.0, p_holm=1.0)
    (axes,) = panels(ablation_map(frame))
    assert words(axes) == dict.fromkeys([(0, 0), (0, 1)], "0.000\n±0.000")
    assert dots(axes) == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", rest_slow(HOSTILE))
def test_any_name_can_be_drawn(make_ablation: Make, name: str) -> None:
    frames = [make_ablation(name + more, {"encoder": [8]}, name, name).assign(task=name) for more in "12"]
    for figure in (ablation_map(pd.concat(frames)), side_by_side(pd.concat(frames))):
        assert figure is not None
        figure.canvas.draw()
        check_words(figure, name)


def test_models_without_verdicts_have_neither_margin_nor_marks(make_ablation: Make) -> None:
    judged = make_ablation("good", SMALL).assign(margin=0.01, verdict="not decided", p_holm=1.0)
    silent = make_ablation("guesses", SMALL).assign(margin=0.0025, verdict=None, baseline_answer_share=0.975)
    figure = ablation_map(pd.concat([judged, silent]))
    assert figure is not None
    note = " ".join(figure.texts[1].get_text().split())
    assert "matters: 0.01." in note
    assert (
        "No mark: not decided. Heads of a model that is not shown to be better than guessing have no verdicts" in note
    )
    titles = [axes.get_title(loc="left") for axes in panels(figure)]
    assert any("97.5 % of the examples; not shown to be better" in " ".join(title.split()) for title in titles)
    alone = ablation_map(silent)
    assert alone is not None
    assert not any("argin" in text.get_text() or "not decided" in text.get_text() for text in alone.texts)
