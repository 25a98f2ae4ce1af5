"""What degrees are worth against least squares by hand; the figures of degrees."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest
from drawn_words import check_edges
from made_runs import HOSTILE
from scipy import stats

from headlens.analyses.masks.degree_figures import learned_degrees, learned_spans, quality_by_degrees
from headlens.analyses.masks.degree_tables import degree_effects, effects_markdown, unsettled_spans
from headlens.pages.formatting import value_text
from headlens.plots import style
from headlens.tables.mask_tables import EFFECTS


def masks(noise: float = 0.0, layers: tuple[str, ...] = ("all",), seeds: int = 2) -> pd.DataFrame:
    """A grid of BigBird in which every kind has its own worth, and a model without a mask."""
    random = np.random.default_rng(0)
    rows = [
        row(f"bigbird:tokens={g},keys={r},window={w}", seed, where, (g, r, w))
        | {"value": 0.4 + 0.05 * seed + 0.01 * g + 0.002 * r + 0.03 * w + noise * random.normal()}
        for where in layers
        for seed in range(seeds)
        for g, r, w in product((0, 2), (0, 3), (1, 2, 4))
    ]
    return pd.DataFrame([row("full", seed, "all", (None, None, None)) for seed in range(seeds)] + rows)


def row(pattern: str, seed: int, layers: str, degrees: tuple[int | None, ...]) -> dict[str, object]:
    known = [d or 0 for d in degrees]
    density = 0.02 * known[0] + 0.01 * known[1] + 0.05 * known[2]
    names = ("degree_global", "degree_random", "degree_neighbour")
    return {
        "model": "m",
        "task": "sst2",
        "metric": "accuracy",
        "pattern": pattern,
        "layers": layers,
        "control": "kept",
        "seed": seed,
        "value": 0.9,
        "ci_low": np.nan,
        "ci_high": np.nan,
        "sparsity": 0.9,
        "sparsity_texts": 0.0 if pattern == "full" else 0.8 - density,
        **dict(zip(names, degrees, strict=True)),
    }


def test_exact_effects_are_found_whatever_the_seeds_do() -> None:
    found = degree_effects(masks()).set_index("kind")
    assert list(found.index) == ["global", "random", "neighbour"]
    assert found["effect"].tolist() == pytest.approx([0.01, 0.002, 0.03])
    assert found["density"].tolist() == pytest.approx([0.02, 0.01, 0.05])
    assert found["effect_per_percent"].tolist() == pytest.approx([0.005, 0.002, 0.006])
    assert set(found["n"]) == {24}
    assert found["r_squared"].tolist() == pytest.approx([1.0] * 3)


def test_intervals_and_p_values_are_those_of_least_squares() -> None:
    """Against the normal equations and Student's t."""
    table = masks(noise=0.02)
    found = degree_effects(table).set_index("kind")
    own = table[table["pattern"] != "full"]
    seeds = np.stack([own["seed"] == s for s in (0, 1)], axis=1).astype(float)
    names = ["degree_global", "degree_random", "degree_neighbour"]
    x, y = np.hstack([own[names].to_numpy(float), seeds]), own["value"].to_numpy(float)
    inverse = np.linalg.inv(x.T @ x)
    b = inverse @ x.T @ y
    left = y - x @ b
    free = len(y) - x.shape[1]
    errors = np.sqrt(left @ left / free * np.diag(inverse))
    wide = stats.t.ppf(0.975, free)
    assert found["effect"].to_numpy() == pytest.approx(b[:3])
    assert found["ci_low"].to_numpy() == pytest.approx((b - wide * errors)[:3])
    assert found["ci_high"].to_numpy() == pytest.approx((b + wide * errors)[:3])
    assert found["p_value"].to_numpy() == pytest.approx(2 * stats.t.sf(np.abs(b / errors), free)[:3])
    assert found["r_squared"].iloc[0] == pytest.approx(1 - left @ left / ((y - y.mean()) @ (y - y.mean())))


def test_what_does_not_vary_has_no_effect() -> None:
    table = masks()
    narrow = table[(table["degree_global"] == 2) & (table["degree_random"] == 0)]
    found = degree_effects(narrow)
    assert list(found.columns) == EFFECTS.names
    assert found["kind"].tolist() == ["neighbour"]
    assert degree_effects(table[table["pattern"] == "full"]).empty
    few = degree_effects(narrow[(narrow["seed"] == 0) & (narrow["degree_neighbour"] < 4)])
    assert few["effect"].tolist() == pytest.approx([0.03])
    assert few[["ci_low", "p_value", "r_squared"]].isna().all(axis=None)
    assert "| sst2 | all | neighbour | 0.030 | – | 5.00 | 0.0060 |" in effects_markdown(few)


def test_degrees_that_vary_together_tell_nothing_of_each() -> None:
    rows = [
        row(f"p{n}", 0, "all", (n, n, 1 + 2 * n)) | {"value": value} for n, value in enumerate((0.5, 0.8, 0.9, 0.91))
    ]
    table = pd.DataFrame(rows)
    assert degree_effects(table).empty
    assert degree_effects(table.assign(degree_global=2, degree_random=0))["kind"].tolist() == ["neighbour"]


def test_zero_has_no_sign() -> None:
    assert value_text(-1e-9, -2e-4, 0.5) == "0.000 [0.000, 0.500]"
    assert "0.0000" in effects_markdown(degree_effects(masks().assign(value=0.5)))
    assert "-0.0" not in effects_markdown(degree_effects(masks().assign(value=0.5)))


def test_models_that_all_achieve_the_same() -> None:
    found = degree_effects(masks().assign(value=0.5))
    assert found["effect"].tolist() == pytest.approx([0.0] * 3, abs=1e-9)
    assert found[["p_value", "r_squared"]].isna().all(axis=None)
    texts = masks().assign(sparsity_texts=0.0)
    assert degree_effects(texts)["effect_per_percent"].isna().all(), "texts of a single token"


def test_layers_have_effects_of_their_own() -> None:
    table = masks(layers=("all", "last:3"))
    table.loc[table["layers"] == "last:3", "value"] = 0.7
    found = degree_effects(table).groupby("layers")["effect"].max()
    assert found["last:3"] == pytest.approx(0.0, abs=1e-9)
    assert found["all"] == pytest.approx(0.03)


def learned(strengths: tuple[float, ...] = (0.1, 1.0)) -> pd.DataFrame:
    rows = [row(f"degrees:mu={mu:g}", seed, "all", (None, None, 3)) for mu in strengths for seed in range(2)]
    return pd.DataFrame(rows)


def test_the_figure_has_a_point_for_each_combination_and_a_line_of_what_was_learned() -> None:
    paths = [f"runs/{run}/masks/penalty-0.1/mask.safetensors" for run in ("one", "two")]
    files = pd.DataFrame([row(path, seed, "all", (None, None, None)) for seed in range(2) for path in paths])
    table = pd.concat([masks(layers=("all", "last:3")), learned(), files], ignore_index=True)
    figure = quality_by_degrees(table)
    assert figure is not None
    figure.canvas.draw()
    panels = figure.axes
    assert [axes.get_title() for axes in panels] == ["", "layers last:3"]
    points = [line for line in panels[0].lines if line.get_marker() in "os" and len(line.get_xdata()) == 1]
    assert len(points) == 12
    assert len({str(line.get_color()) for line in points}) == 3
    assert sum(str(line.get_markerfacecolor()) == "white" for line in points) == 6
    (line,) = [line for line in panels[0].lines if line.get_marker() == "D"]
    assert len(line.get_xdata()) == 2
    assert [text.get_text() for text in panels[0].texts] == ["μ 0.1, 1"], "what comes to the same has one label"
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[:4] == ["1 neighbour per side", "2 neighbours per side", "4 neighbours per side", "0 global tokens"]
    assert legend[-3:] == ["one/penalty-0.1", "two/penalty-0.1", "no mask"]
    assert {line.get_marker() for line in panels[0].lines} >= {"P", "X"}
    box = figure.legends[0].get_window_extent()
    assert box.x1 <= figure.bbox.x1
    assert all(axes.get_tightbbox().x1 <= box.x0 for axes in panels)


def test_without_grid_and_learned_degrees_there_is_no_figure() -> None:
    table = masks()
    assert quality_by_degrees(table[table["pattern"] == "full"]) is None
    single = table[table["pattern"].isin(["full", "bigbird:tokens=2,keys=3,window=1"])]
    assert quality_by_degrees(single) is None


def test_spans_have_a_line_of_their_own() -> None:
    spans = [row(f"spans:mu={mu:g}", 0, "all", (None, None, None)) | {"sparsity_texts": mu / 10} for mu in (1.0, 0.1)]
    full = masks(seeds=1)[:1]
    alone = quality_by_degrees(pd.concat([full, pd.DataFrame(spans)]))
    assert alone is not None
    (line,) = (line for line in alone.axes[0].lines if line.get_linestyle() == "-")
    assert line.get_xdata() == pytest.approx([1, 10]), "from the weakest penalty on"
    both = quality_by_degrees(pd.concat([full, learned(), pd.DataFrame(spans)]))
    assert both is not None
    legend = [text.get_text() for text in both.legends[0].get_texts()]
    assert legend == ["learned degrees, by μ", "adaptive spans, by μ", "no mask"]
    assert len({line.get_color() for line in both.axes[0].lines if line.get_linestyle() == "-"}) == 2


def test_points_in_one_place_are_rims_and_their_labels_stand_apart() -> None:
    """Spans and degrees that learned nothing, of a model with one answer: each is seen, and framed."""
    same = {"sparsity_texts": 0.0, "value": 0.9, "same_answer": True}
    rows = [row(f"{kind}:mu=1", 0, "all", (None, None, None)) | same for kind in ("degrees", "spans")]
    figure = quality_by_degrees(pd.concat([masks(seeds=1)[:1].assign(**same), pd.DataFrame(rows)]))
    assert figure is not None
    figure.canvas.draw()
    (axes,) = figure.axes
    diamonds = [line for line in axes.lines if line.get_marker() == "D"]
    assert sorted(line.get_markersize() for line in diamonds) == [4.5, 4.5, 7.5]
    (rim,) = (line for line in diamonds if line.get_markersize() == 7.5)
    assert rim.get_zorder() < min(line.get_zorder() for line in diamonds if line is not rim)
    first, second = (text.get_window_extent() for text in axes.texts)
    assert not first.overlaps(second)
    frames = [line for line in axes.lines if line.get_label() == "≥ 95 % same answer"]
    assert len(frames) == 1
    assert "≥ 95 % same answer" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_spans_of_heads_are_means_over_seeds() -> None:
    rows = [
        ("m", "encoder", layer, head, pattern, "all", True, seed, 2.0 * layer + head + seed)
        for pattern in ("spans:mu=0.1", "spans:mu=1")
        for seed in (0, 1)
        for layer in (0, 1)
        for head in (0, 1, 2)
    ]
    columns = ["model", "stack", "layer", "head", "pattern", "layers", "diagonal", "seed", "span"]
    spans = pd.DataFrame(rows, columns=columns)
    figure = learned_spans(spans)
    assert figure is not None
    maps = [axes.collections[-1].get_array() for axes in figure.axes if axes.get_xlabel() == "head"]
    assert [np.asarray(m).reshape(2, 3).tolist() for m in maps] == [[[0.5, 1.5, 2.5], [2.5, 3.5, 4.5]]] * 2
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_xlabel() == "head"]
    assert [title.partition(": ")[2] for title in titles] == ["μ 0.1", "μ 1"]
    assert learned_spans(spans[:0]) is None
    shrunk = spans.assign(span=spans["span"].where(spans["pattern"] == "spans:mu=1", 12 + 0.1 * spans["span"]))
    for table, told in ((spans, ""), (shrunk, "2 of 4"), (spans.assign(span=12.25), "all")):
        drawn = learned_spans(table)
        assert drawn is not None
        note = f"({told} trainings: spans differ by less than a token, and tell nothing of single heads)"
        assert (note in drawn.texts[0].get_text().replace("\n", " ")) == bool(told)
        assert ("trainings" in drawn.texts[0].get_text()) == bool(told)


@pytest.mark.parametrize(
    ("changes", "share"),
    [([-1.7, -1.7, -1.7, -1.7], 1.0), ([-0.6, 0.6, 0.5, -0.1], 0.5), ([0.1, 0.0, -0.2, 0.3], 0.0), ([np.nan], 0.0)],
)
def test_spans_that_still_change_at_the_end_have_not_settled(changes: list[float], share: float) -> None:
    keys = {"model": "m", "stack": "encoder", "layer": 0, "layers": "all", "diagonal": True, "seed": 0}
    table = pd.DataFrame({**keys, "head": range(len(changes)), "span": 9.0, "pattern": "spans:mu=1", "change": changes})
    assert unsettled_spans(table) == share
    assert unsettled_spans(table.drop(columns="change")) == 0, "of older versions nothing is known"
    figure = learned_spans(table)
    assert figure is not None
    assert (f"{share:.0%} have not settled" in figure.texts[0].get_text().replace("\n", " ")) == bool(share)


def test_shares_of_heads_by_degree() -> None:
    rows = [
        {
            "model": "m",
            "pattern": f"degrees:mu={mu}",
            "layers": "all",
            "diagonal": True,
            "seed": seed,
            "layer": layer,
            "head": head,
            "degree": degree,
            "p": 0.25,
            "chosen": degree == (layer if seed else head),
        }
        for mu in ("0.1", "1")
        for seed in range(2)
        for layer in range(2)
        for head in range(4)
        for degree in range(4)
    ]
    figure = learned_degrees(pd.DataFrame(rows))
    assert figure is not None
    image = figure.axes[0].images[0].get_array()
    # Over both seeds: every degree of one head, and the number of the layer of four.
    assert np.asarray(image).tolist() == [[5 / 8, 1 / 8, 1 / 8, 1 / 8], [1 / 8, 5 / 8, 1 / 8, 1 / 8]]
    assert figure.axes[0].get_title(loc="left") == "μ 0.1: mean 1.0"
    assert learned_degrees(pd.DataFrame(rows)[:0]) is None


def test_strange_names_stay_in_the_figure() -> None:
    words = "".join(HOSTILE)
    table = pd.concat([masks(), masks().assign(model=words)], ignore_index=True).assign(task=words)
    figure = quality_by_degrees(table)
    assert figure is not None
    figure.canvas.draw()
    check_edges(figure)
    assert any("…" in axes.get_title() for axes in figure.axes)


def test_the_title_of_degrees_gives_the_chance_level() -> None:
    figure = quality_by_degrees(masks().assign(chance=0.509))
    assert figure is not None
    assert "; chance level 0.509)" in figure.texts[0].get_text().replace("\n", " ")


@pytest.mark.parametrize("width", ["full", "column"])
def test_long_names_of_patterns_stand_beside_the_points(width: str) -> None:
    names = ("block-sparse:size=4,window=1,tokens=1,keys=0", "longformer:window=1,tokens=1")
    others = [row(name, seed, "all", (None, None, None)) for name in names for seed in range(2)]
    with style.drawn_for(width):
        figure = quality_by_degrees(pd.concat([masks(), pd.DataFrame(others)]))
    assert figure is not None
    figure.canvas.draw()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert not any(box.overlaps(axes.get_window_extent()) for axes in figure.axes)
    assert figure.bbox.x0 - 1 <= box.x0
    assert box.x1 <= figure.bbox.x1 + 1
    assert figure.bbox.y0 - 1 <= box.y0
