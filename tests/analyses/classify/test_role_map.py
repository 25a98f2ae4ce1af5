from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from drawn_maps import words_fit_their_cells
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from tiers import rest_slow

from headlens.analyses.classify.role_map import function_map
from headlens.plots.role_colours import COLOURS, family, short
from headlens.plots.style import FAINT

Make = Callable[..., pd.DataFrame]


def told(figure: Figure) -> str:
    """The note above the legend, on one line."""
    return figure.legends[0].get_title().get_text().replace("\n", " ")


def test_cells_have_the_colour_and_the_letters_of_their_role(make_heads: Make) -> None:
    frame = make_heads(shapes={"encoder": [8, 5, 8]})
    figure = function_map(frame)
    assert figure is not None
    (axes,) = figure.axes
    mesh = axes.collections[1]  # above the grey ground
    mesh.update_scalarmappable()
    colours = mesh.get_facecolor().reshape(3, 8, 4)
    words = {(int(t.get_position()[1]), int(t.get_position()[0])): t.get_text() for t in axes.texts}
    for layer, head, role in frame[["layer", "head", "role"]].itertuples(index=False):
        assert to_hex(colours[layer, head]) == COLOURS[family(role)].lower()
        assert words.pop((layer, head), "") == short(role)
    assert words == {}


def test_the_legend_lists_the_families_that_occur(make_heads: Make) -> None:
    frame = make_heads(shapes={"encoder": [3]}).assign(role=["rare", "positional(-1)", np.nan])
    figure = function_map(frame)
    assert figure is not None
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["positional", "rare", "no role"]


@pytest.mark.parametrize("role", ["", None, np.nan])
def test_where_no_head_has_a_role_the_empty_grid_says_so(make_heads: Make, role: object) -> None:
    figure = function_map(make_heads().assign(role=role))
    assert figure is not None
    assert told(figure) == "No head has a role"

    (axes,) = figure.axes
    mesh = axes.collections[1]  # above the grey ground
    mesh.update_scalarmappable()
    assert {to_hex(c) for c in mesh.get_facecolor()} == {COLOURS["none"].lower()}
    assert not axes.texts


def test_no_column_or_no_head_nothing_to_draw(make_heads: Make) -> None:
    assert function_map(make_heads().drop(columns="role")) is None
    assert function_map(make_heads().iloc[:0]) is None


@pytest.mark.usefixtures("laid_out")
def test_arrows_are_explained_where_there_are_any(make_heads: Make) -> None:
    frame = make_heads(shapes={"encoder": [3]})
    syntactic = function_map(frame.assign(role=["syntactic(obj dep->head)", "syntactic(obj head->dep)", ""]))
    assert syntactic is not None
    assert [t.get_text() for t in syntactic.axes[0].texts] == ["obj\n↑", "obj\n↓"]
    assert told(syntactic) == "↑ dependent to head, ↓ head to dependent"
    legend = syntactic.legends[0]
    syntactic.draw_without_rendering()  # text has its place only when it is drawn
    note = legend.get_title().get_window_extent()
    assert note.y0 >= max(t.get_window_extent().y1 for t in legend.get_texts())
    nearest = function_map(frame.assign(role="", nearest="syntactic(obj dep->head)"))
    assert nearest is not None
    assert told(nearest).startswith("No head has a role; ↑ dependent to head")
    rare = function_map(frame.assign(role="rare"))
    assert rare is not None
    assert "↑" not in told(rare)


@pytest.mark.usefixtures("laid_out")
@pytest.mark.parametrize(
    "shapes",
    [
        {"encoder": [2]},
        {"encoder": [12] * 6},
        {"encoder": [16] * 24},
        {"encoder": [8] * 6, "decoder": [8] * 6, "cross": [8] * 6},
    ],
)
@pytest.mark.parametrize("relation", rest_slow(["advmod", "amod", "obj"], ["advmod"]))
def test_words_stay_inside_their_cells(make_heads: Make, shapes: dict[str, list[int]], relation: str) -> None:
    frame = make_heads("a/b", shapes).assign(role=f"syntactic({relation} head->dep)")
    figure = function_map(frame)
    assert figure is not None
    assert len(figure.axes) == len(shapes)
    for axes in figure.axes:
        assert words_fit_their_cells(axes, 3)


def test_words_are_left_out_where_nobody_could_read_them(make_heads: Make) -> None:
    figure = function_map(make_heads(shapes={"decoder": [64] * 4}))
    assert figure is not None
    assert not figure.axes[0].texts


def test_long_words_lose_their_end_where_they_could_not_be_read(make_heads: Make) -> None:
    """An empty cell would say that a head is close to no role."""
    roles = ["syntactic(nsubj:pass dep->head)", "syntactic(obl:unmarked head->dep)", "syntactic(obj dep->head)"] * 24
    for role, frame in (
        ("role", make_heads().assign(role=roles)),
        ("nearest", make_heads().assign(role="", nearest=roles)),
    ):
        figure = function_map(pd.concat([frame, frame.assign(model="two")]))
        assert figure is not None
        for axes in figure.axes:
            assert len(axes.texts) == 72, role
            assert {text.get_text() for text in axes.texts} - {"even"} == {"nsub…\n↑", "obl:…\n↓", "obj\n↑"}
            assert min(text.get_fontsize() for text in axes.texts) > 4
    one = function_map(frame)
    assert one is not None
    assert {text.get_text() for text in one.axes[0].texts} - {"even"} == {"nsubj:pass\n↑", "obl:un…\n↓", "obj\n↑"}


def test_two_models_stand_side_by_side(make_heads: Make) -> None:
    figure = function_map(pd.concat([make_heads("one"), make_heads("two")]))
    assert figure is not None
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["one, encoder", "two, encoder"]
    assert len({round(axes.get_position().y0, 6) for axes in figure.axes}) == 1


def test_a_head_without_a_role_shows_the_nearest_in_grey(make_heads: Make) -> None:
    frame = make_heads(shapes={"encoder": [3]}).assign(role=["rare", "", np.nan], nearest=["rare", "broad", "sink"])
    figure = function_map(frame)
    assert figure is not None
    words = {t.get_text(): t.get_color() for t in figure.axes[0].texts}
    assert words["broad"] == words["sink"] == FAINT != words["rare"]
    assert told(figure) == "grey letters: the closest role of a head without one"


def test_a_role_that_changes_with_the_sentences_is_pale(make_heads: Make) -> None:
    frame = make_heads(shapes={"encoder": [4, 4]}).assign(role="rare", role_stability=[1, 1, 0.5, 1, 1, np.nan, 0, 1])
    figure = function_map(frame)
    assert figure is not None
    (axes,) = figure.axes
    veil = axes.collections[2].get_alpha()
    np.testing.assert_allclose(veil, [[0, 0, 0.425, 0], [0, 0, 0.85, 0]])
    assert "the paler, the more often the role changes when sentences are resampled" in told(figure)
    plain = function_map(frame.assign(role_stability=1.0))
    assert plain is not None
    assert len(plain.axes[0].collections) == 2


def test_places_without_a_head_are_explained(make_heads: Make) -> None:
    heads = make_heads(shapes={"encoder": [3, 3]}).assign(role="")
    for rows, gaps in ((heads, False), (heads.iloc[1:], True)):
        figure = function_map(rows)
        assert figure is not None
        assert ("hatched: no head" in told(figure)) is gaps
