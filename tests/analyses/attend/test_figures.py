import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tiers import rest_slow

from headlens.analyses.attend.figures import drawn_names, layer_figures
from headlens.maps.map_figures import MapBlock, draw_blocks
from headlens.pages.head_cards import SentenceMap

TOKENS = ["[CLS]", "cost_of", "$5", "and", "$10", "^up", "注意", "\x07", "Ġno\n", "[SEP]"]
SHOWN = ["[CLS]", "cost_of", r"\$5", "and", r"\$10", "^up", "□□", "□", "Ġno↵", "[SEP]"]


def draw(heads: int, queries: list[str], keys: list[str]) -> tuple[Figure, list[Axes], np.ndarray]:
    weights = np.random.default_rng(0).dirichlet(np.ones(len(keys)), (heads, len(queries)))
    figure = draw_blocks([MapBlock(weights, queries, keys, [f"head {i}" for i in range(heads)])], "demo, $layer$ 3")
    assert figure is not None
    figure.canvas.draw()
    return figure, figure.axes[:heads], weights


def test_one_map_per_head_on_one_scale_with_the_first_query_on_top() -> None:
    figure, maps, weights = draw(6, list("abcde"), list("vwxyz"))
    assert [axes.get_title(loc="left") for axes in maps] == [f"head {i}" for i in range(6)]
    for axes, matrix in zip(maps, weights, strict=True):
        np.testing.assert_array_equal(np.asarray(axes.collections[0].get_array()), matrix)
        assert axes.collections[0].get_clim() == (0.0, weights.max())
        assert axes.get_ylim() == (5, 0)
    assert figure.axes[6].get_ylabel() == "attention weight"


def test_queries_label_the_first_column_and_keys_the_last_row() -> None:
    _, maps, _ = draw(6, list("abcde"), list("vwxyz"))
    queries = ["".join(t.get_text() for t in axes.get_yticklabels()) for axes in maps]
    keys = ["".join(t.get_text() for t in axes.get_xticklabels()) for axes in maps]
    assert queries == ["abcde", "", "", "", "abcde", ""]
    assert keys == ["", "", "vwxyz", "vwxyz", "vwxyz", "vwxyz"]
    assert [axes.get_ylabel() for axes in maps] == ["query", "", "", "", "query", ""]
    assert [axes.get_xlabel() for axes in maps] == ["", "", "key", "key", "key", "key"]


def test_odd_tokens_are_drawn_as_they_stand() -> None:
    _, (axes,), _ = draw(1, TOKENS, TOKENS)
    try:
        assert [t.get_text() for t in axes.get_yticklabels()] == SHOWN
    except AssertionError:
        # with a font for Chinese installed nothing needs a box
        assert [t.get_text() for t in axes.get_yticklabels()] == [s.replace("□□", "注意") for s in SHOWN]


@pytest.mark.parametrize("heads", rest_slow([1, 5, 12, 16]))
def test_thirty_tokens_all_have_labels_that_do_not_touch(heads: int) -> None:
    tokens = [f"word{i}" for i in range(30)]
    _, maps, _ = draw(heads, tokens, tokens)
    labels = maps[0].get_yticklabels()
    assert [t.get_text() for t in labels] == tokens
    places = maps[0].transData.transform([(0, i) for i in range(30)])[:, 1]
    distance = abs(places[1] - places[0]) / maps[0].figure.dpi * 72
    assert labels[0].get_fontsize() <= distance


def test_too_many_tokens_are_thinned_and_fit_a_page() -> None:
    tokens = [f"t{i}" for i in range(120)]
    figure, maps, _ = draw(4, tokens, tokens)
    labels = [t.get_text() for t in maps[0].get_yticklabels()]
    assert 10 <= len(labels) < 60
    assert labels[1] in {"t2", "t5"}
    assert figure.get_figwidth() <= 9


@pytest.mark.parametrize("sizes", rest_slow([(1, 1, 1), (12, 5, 12), (12, 12, 5), (16, 30, 30), (1, 40, 8)], 2))
def test_nothing_leaves_the_figure(sizes: tuple[int, int, int]) -> None:
    heads, queries, keys = sizes
    figure, maps, _ = draw(heads, ["internationalization"] * queries, ["Wachstumsbeschleunigung"] * keys)
    for axes in maps:
        box = axes.get_tightbbox()
        assert box is not None
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.width
        assert box.y1 <= figure.bbox.height


def test_nothing_to_draw() -> None:
    assert draw_blocks([MapBlock(np.zeros((0, 2, 2)), ["a", "b"], ["a", "b"], [])]) is None
    assert draw_blocks([MapBlock(np.full((1, 1, 1), np.nan), ["a"], ["a"], ["h"])]) is None


def test_labels_must_fit_the_weights() -> None:
    with pytest.raises(ValueError, match=r"weights \(1, 2, 2\) do not fit titles, query and key labels \(1, 2, 3\)"):
        MapBlock(np.ones((1, 2, 2)), ["a", "b"], ["a", "b", "c"], ["h"])


def test_titles_of_several_lines_have_their_room() -> None:
    titles = ["a", "predicted: recall 0.70, sparsity 0.51", "b"] * 2
    figure = draw_blocks([MapBlock(np.full((6, 12, 12), 0.5), "abcdefghijkl", "abcdefghijkl", titles)], across=3)
    assert figure is not None
    figure.canvas.draw()
    maps = [axes for axes in figure.axes if axes.get_title(loc="left")]
    words = [axes._left_title.get_window_extent() for axes in maps]
    assert any("\n" in axes.get_title(loc="left") for axes in maps)
    assert not any(w.overlaps(axes.get_window_extent()) for w in words for axes in maps)
    assert all(w.y1 <= figure.bbox.y1 for w in words)


def sentence_map(state: int, layers: int, heads: int, tokens: str) -> SentenceMap:
    weights = np.random.default_rng(state).dirichlet(np.ones(len(tokens)), (layers, heads, len(tokens)))
    return SentenceMap("1", "encoder", tuple(tokens), tuple(tokens), weights, "text", state)


def test_two_models_stand_on_one_figure_with_their_own_tokens_and_one_scale() -> None:
    bert, albert = sentence_map(0, 3, 6, "abcd"), sentence_map(1, 2, 8, "uvwxyz")
    drawn = dict(layer_figures([bert, albert], ["bert", "albert"], heads=range(5)))
    assert list(drawn) == [f"sentence1_encoder_layer{layer}" for layer in range(3)]
    figure = drawn["sentence1_encoder_layer0"]
    assert figure is not None
    maps = figure.axes[:10]
    titles = [axes.get_title(loc="left").replace("\n", " ") for axes in maps]
    assert titles == [f"{name}, encoder.0.{head}" for name in ("bert", "albert") for head in range(5)]
    for axes, weights in zip(maps, [*bert.weights[0, :5], *albert.weights[0, :5]], strict=True):
        np.testing.assert_array_equal(np.asarray(axes.collections[0].get_array()), weights)
        assert axes.collections[0].get_clim() == (0.0, max(m.weights[0, :5].max() for m in (bert, albert)))
    keys = ["".join(t.get_text() for t in axes.get_xticklabels()) for axes in maps]
    assert keys == ["abcd"] * 5 + ["uvwxyz"] * 5
    assert [axes.get_ylabel() for axes in maps] == ["query", *[""] * 4] * 2
    # Cells have one size, and nothing covers anything else.
    boxes = [axes.get_window_extent() for axes in maps]
    assert boxes[0].width / 4 == pytest.approx(boxes[5].width / 6)
    assert all(not one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])
    # The third layer of the one has none of the other beside it.
    last = drawn["sentence1_encoder_layer2"]
    assert last is not None
    assert len(last.axes) == 5 + 1


@pytest.mark.parametrize(
    ("change", "layers"),
    [("", 1), (" under star", 2), (" without encoder.0.1, encoder.0.2, encoder.0.3 and 9 more", 1)],
)
def test_titles_name_the_state_that_is_drawn(change: str, layers: int) -> None:
    maps = [sentence_map(0, layers, 2, "abc"), sentence_map(1, layers, 2, "abc")]
    names = drawn_names([f"bert{change}", "bert"][: 2 if change else 1], 1)
    for layer, (_, figure) in enumerate(layer_figures(maps, names)):
        assert figure is not None
        figure.canvas.draw()
        (title,) = figure.texts
        found = title.get_text().replace("\n", " ")
        assert found == f"Attention of bert{change} in sentence 1: encoder, layer {layer}"
        assert not any(title.get_window_extent().overlaps(a._left_title.get_window_extent()) for a in figure.axes[:2])
    assert drawn_names(["bert", "albert"], 2) == ["bert", "albert"]


def test_of_states_of_one_model_the_first_is_drawn_and_heads_that_are_gone_are_not() -> None:
    states = [sentence_map(0, 1, 3, "abc"), sentence_map(1, 1, 3, "abc")]
    ((_, both),) = layer_figures(states, ["bert", "albert"], heads=(1, 2))
    assert both is not None
    assert [axes.get_title(loc="left").split(",")[0] for axes in both.axes[:-1]] == ["bert"] * 2 + ["albert"] * 2
    states[0].weights[0, 1] = np.nan
    ((_, figure),) = layer_figures(states, ["bert"], heads=(1, 2))
    assert figure is not None
    assert [axes.get_title(loc="left") for axes in figure.axes[:-1]] == ["encoder.0.2"]
    states[0].weights[0] = np.nan
    assert list(layer_figures(states, ["bert"])) == [("sentence1_encoder_layer0", None)]
    ((_, figure),) = layer_figures(states, ["bert", "albert"])
    assert figure is not None
    assert len(figure.axes) == 3 + 1


def test_maps_that_do_not_fit_their_labels_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        draw_blocks([MapBlock(np.ones((1, 2, 2)), ["a", "b"], ["a"], ["h"])])


def test_the_colour_bar_begins_below_a_title_of_several_lines() -> None:
    figure = draw_blocks([MapBlock(np.full((1, 2, 2), 0.5), ["a", "b"], ["a", "b"], ["h"])], "a long title " * 12)
    assert figure is not None
    figure.canvas.draw()
    assert figure.axes[-1].get_window_extent().y1 < figure.texts[0].get_window_extent().y0
