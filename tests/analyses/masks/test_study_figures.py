"""Tables and figure of models trained under masks."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from drawn_words import check_edges
from made_runs import HOSTILE
from matplotlib.figure import Figure
from matplotlib.text import Text
from scipy import stats
from tiers import rest_slow

from headlens.analyses.masks.study_figures import (
    is_grid,
    means,
    quality_by_pattern,
    quality_figure,
    study_markdown,
    titled,
)
from headlens.plots.curves import CHANCE_LABEL
from headlens.plots.mask_points import draw_masks, name_masks, short_names, sweeps
from headlens.plots.style import FULL_WIDTH, TICK_SIZE, one_line
from headlens.tables.mask_tables import GRID


def masks(seeds: int = 3, tasks: tuple[str, ...] = ("sst2",)) -> pd.DataFrame:
    cases = [("full", "kept", 0.0), ("full", "random", 0.01), ("full", "dropped", 0.01), ("star", "kept", 0.9)]
    rows = [
        {
            "pattern": pattern,
            "layers": "all",
            "control": control,
            "sparsity": sparsity,
            "sparsity_texts": sparsity / 2,
            "task": task,
            "metric": "accuracy",
            "seed": seed,
            "value": 0.5 + 0.1 * number + 0.01 * seed,
            "ci_low": 0.4,
            "ci_high": 0.99,
            "model": "m",
        }
        for task in tasks
        for number, (pattern, control, sparsity) in enumerate([*cases, ("star", "dropped", 0.91)])
        for seed in range(seeds)
    ]
    return pd.DataFrame(rows)


def test_intervals_are_those_of_seeds_where_there_are_several() -> None:
    found = means(masks()).iloc[0]
    values = [0.5, 0.51, 0.52]
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert found[["value", "ci_low", "ci_high"]].tolist() == pytest.approx([0.51, low, high])
    assert found["seeds"] == 3
    alone = means(masks(1)).iloc[0]
    assert alone[["value", "ci_low", "ci_high", "seeds"]].tolist() == [0.5, 0.4, 0.99, 1]


def test_seeds_that_agree_have_the_intervals_of_their_examples() -> None:
    """What does not vary over seeds says nothing of how much they would, and is no exact number either."""
    table = masks(2).assign(value=0.8, delta=0.0, delta_low=-0.04, delta_high=0.05)
    table.loc[table["seed"] == 1, ["ci_low", "delta_low"]] = [0.39, -0.06]
    star = means(table).iloc[3]
    assert star[["value", "ci_low", "ci_high"]].tolist() == [0.8, 0.39, 0.99]
    assert star[["delta", "delta_low", "delta_high"]].tolist() == [0, -0.06, 0.05]
    assert star["seeds_agree"]
    assert not means(masks(2))["seeds_agree"].any()
    assert not means(masks(1))["seeds_agree"].any(), "one seed agrees with none"
    assert "[95 % interval over means of seeds, over examples where these agree]" in study_markdown(table)
    assert "means of 2 seeds, over examples where these agree" in titled("Quality", means(table), means(table).iloc[:1])


def test_deltas_are_paired_by_seed() -> None:
    table = masks()
    dropped = (table["pattern"] == "full") & (table["control"] == "dropped")
    table.loc[dropped, "value"] = [0.52, 0.50, 0.56]  # all positions: .50, .51, .52
    table = table[~((table["pattern"] == "star") & (table["control"] == "kept") & (table["seed"] > 0))]
    whole, _, without, star, _ = means(table)[["delta", "delta_low", "delta_high"]].to_numpy()
    low, high = stats.t.interval(0.95, 2, 0.05 / 3, stats.sem([0.02, -0.01, 0.04]))
    assert without.tolist() == pytest.approx([0.05 / 3, low, high])
    assert np.isnan([whole, star]).all(), "nothing to compare with, and one seed alone"
    lines = study_markdown(table).splitlines()
    less = "difference from unmasked"
    assert f"| task | all | random positions instead | {less} | no diagonal | {less} |" in lines
    (shown,) = (line for line in lines if line.startswith("| sst2 | 0.510"))
    assert shown.split(" | ")[3] == "0.100", "seeds that are all the same have no interval"
    assert shown.endswith(f"| 0.017 [{low:.3f}, {high:.3f}] |")
    reordered = means(table.iloc[::-1])
    assert reordered.loc[reordered["control"] == "dropped", "delta"].iloc[-1] == pytest.approx(0.05 / 3)
    assert means(table[table["pattern"] == "star"])["delta"].isna().all(), "the model without a mask is not among these"
    assert means(masks(1))["delta"].isna().all()
    alone = masks(1).assign(delta=0.2, delta_low=0.1, delta_high=0.4)
    assert means(alone)[["delta", "delta_low", "delta_high"]].iloc[3].tolist() == [0.2, 0.1, 0.4], "that of examples"
    assert "| 0.800 [0.400, 0.990] | 0.200 [0.100, 0.400] | 45.5 |" in study_markdown(alone)
    assert (
        f"| masked, % | masked in texts, % | the mask as it is | {less} | masked in texts, % | without the diagonal | "
        f"{less} |" in (study_markdown(alone))
    )


def test_markdown_has_both_tables_of_the_paper() -> None:
    lines = study_markdown(masks(1, ("sst2", "rte"))).splitlines()
    assert "| task | all | random positions instead | no diagonal |" in lines
    assert "| rte | 0.500 [0.400, 0.990] | 0.600 [0.400, 0.990] | 0.700 [0.400, 0.990] |" in lines
    assert "| sst2 | star | all | 90.0 | 45.0 | 0.800 [0.400, 0.990] | 45.5 | 0.900 [0.400, 0.990] |" in lines
    only = masks(1)
    without = study_markdown(only[only["control"] == "kept"])
    assert "| sst2 | star | all | 90.0 | 45.0 | 0.800 [0.400, 0.990] | – | – |" in without
    assert "random" not in without


def test_the_figure_has_a_panel_per_task_and_a_point_per_mask() -> None:
    figure = quality_by_pattern(masks(1, ("sst2", "rte", "cola")))
    assert figure is not None
    assert len(figure.axes) == 3
    for axes in figure.axes:
        points = {line.get_label(): line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "o"}
        assert points["the mask as it is"] == [[45.0, pytest.approx(0.8)]]
        assert points["without the diagonal"] == [[45.5, pytest.approx(0.9)]]
        levels = [line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == "--"]
        assert levels == [0.5]
        assert [text.get_text() for text in axes.texts] == ["star"]
    figure.canvas.draw()
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    assert all(b.x0 >= 0 and b.x1 <= figure.bbox.x1 and b.y0 >= 0 and b.y1 <= figure.bbox.y1 for b in boxes if b)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i] if a and b)


def test_differences_far_below_the_margin_do_not_fill_the_axis() -> None:
    figure = quality_by_pattern(masks(1).assign(value=0.6001, ci_low=0.6, ci_high=0.6002, margin=0.05))
    assert figure is not None
    assert np.diff(figure.axes[0].get_ylim()) == pytest.approx(0.05)


def test_intervals_end_at_what_a_metric_can_be_and_titles_say_what_they_are_of() -> None:
    table = masks(2)
    table.loc[table["pattern"] == "star", "value"] = [0.9, 0.99] * (int((table["pattern"] == "star").sum()) // 2)
    assert means(table)["ci_high"].max() > 1
    figure = quality_by_pattern(table)
    assert figure is not None
    figure.canvas.draw()
    ends = [path.vertices[:, 1].max() for axes in figure.axes for bars in axes.collections for path in bars.get_paths()]
    assert max(ends) <= 1
    assert figure.texts[0].get_text() == "Quality under masks, m\n(95 % intervals, means of 2 seeds)"


def test_masks_of_one_share_have_their_names_above_each_other() -> None:
    star = masks(1).query("pattern == 'star'")
    both = [masks(1), star.assign(layers="last:3", value=star["value"] + 0.05)]
    figure = quality_by_pattern(pd.concat(both, ignore_index=True))
    assert figure is not None
    assert [text.get_text() for text in figure.axes[0].texts] == ["from the top:\nstar last:3\nstar"]


def test_without_patterns_there_is_no_figure() -> None:
    table = masks()
    assert quality_by_pattern(table[table["pattern"] == "full"]) is None


def learned(runs: tuple[str, ...] = ("runs/dam-s", "runs/dam-u"), seeds: int = 1) -> pd.DataFrame:
    star = masks(seeds).query("pattern == 'star'")
    found = [
        star.assign(
            pattern=f"{run}/masks/penalty-{strength}/mask.safetensors",
            sparsity_texts=star["sparsity_texts"] - 0.3 + 0.1 * number,
        )
        for run in runs
        for number, strength in enumerate(("0.01", "0.1"))
    ]
    return pd.concat(found, ignore_index=True)


def test_masks_that_a_sweep_learned_are_a_curve() -> None:
    figure = quality_by_pattern(pd.concat([masks(1), learned()], ignore_index=True))
    assert figure is not None
    (axes,) = figure.axes
    curves = {line.get_label(): line.get_xydata().round(6).tolist() for line in axes.lines if "λ" in line.get_label()}
    assert curves == {name: [[15.0, 0.8], [25.0, 0.8]] for name in ("dam-s, by λ", "dam-u, by λ")}
    crosses = [line for line in axes.lines if line.get_marker() == "x"]
    assert [line.get_xydata().round(6).tolist() for line in crosses] == [[[15.5, 0.9], [25.5, 0.9]]] * 2
    assert [text.get_text() for text in axes.texts] == [*("0.01", "0.1") * 2, "star"]
    figure.canvas.draw()
    (legend,) = figure.legends
    extent = legend.get_window_extent()
    assert extent.x0 >= 0
    assert extent.x1 <= figure.bbox.x1
    assert not extent.overlaps(axes.get_tightbbox())


def test_which_masks_are_of_a_sweep() -> None:
    own = {"d/masks/penalty-1/mask.safetensors": "1", "d/masks/penalty-1e-05": "1e-05"}
    assert sweeps([*own, "star", "e/masks/penalty-1/mask.safetensors", "f/penalty.safetensors"]) == {"d": own}
    kept = {"d/masks/penalty-1@most=0.3": "0.3", "d/masks/penalty-1@most=0.5": "0.5"}
    other = {name.replace("most", "least"): share for name, share in kept.items()}
    assert sweeps([*kept, *other, "e/m@most=0.5"]) == {"penalty-1@most": kept, "penalty-1@least": other}
    lines = study_markdown(pd.concat([masks(1), learned()], ignore_index=True))
    assert "| sst2 | dam-s/penalty-0.01 | all | 90.0 | 15.0 | 0.800 [0.400, 0.990] | 15.5 | 0.900" in lines


def test_a_grid_of_degrees_is_left_to_its_own_figure() -> None:
    """Its points have more names than there is room for; what else was trained keeps its own."""
    table = masks().assign(**dict.fromkeys(GRID, np.nan))
    first = table[table["pattern"] == "star"].iloc[0]
    degrees = [(g, r, w) for g in (0, 1) for r in (0, 2) for w in (1, 3)]
    rows = [
        {**first, "pattern": f"bigbird:{g}{r}{w}", "control": "kept", **dict(zip(GRID, (g, r, w), strict=True))}
        for g, r, w in degrees
    ]
    both = pd.concat([table, pd.DataFrame(rows)], ignore_index=True)
    assert is_grid(both)
    figure = quality_by_pattern(both)
    assert figure is not None
    assert [text.get_text() for axes in figure.axes for text in axes.texts] == ["star"]
    # Some patterns that have degrees, too, are no grid.
    assert not is_grid(both[~both["pattern"].isin(["bigbird:001", "bigbird:123"])])
    assert not is_grid(table)


def test_mask_files_by_what_tells_them_apart() -> None:
    names = ["runs/a/masks/penalty-1/mask.safetensors", "runs/a/masks/penalty-2/mask.safetensors", "star"]
    assert list(short_names(names).values()) == ["penalty-1", "penalty-2", "star"]
    files = ["a/x/mask.safetensors", "b/x/mask.safetensors"]
    assert short_names([*files, *files]) == dict(zip(files, ["a/x", "b/x"], strict=True))
    table = masks().replace({"pattern": {"star": names[0]}})
    figure = quality_by_pattern(table)
    assert figure is not None
    assert [text.get_text() for text in figure.axes[0].texts] == ["penalty-1"]


@pytest.mark.parametrize(("chance", "drawn"), [(0.45, True), (0.1, False), (np.nan, False)])
def test_guessing_is_drawn_where_it_is_near(chance: float, drawn: bool) -> None:
    table = masks(1).assign(chance=chance)
    figure = quality_by_pattern(table)
    assert figure is not None
    dotted = [line.get_ydata()[0] for line in figure.axes[0].lines if line.get_label() == CHANCE_LABEL]
    assert dotted == ([chance] if drawn else [])
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert ("chance level 0.1 (below the axis)" in legend) == (chance == 0.1)
    check_edges(figure)
    for task, guess in (("sst2", "Always giving the most frequent answer"), ("paraphrase", "Choosing at random")):
        told = f"\n{guess} has {chance:.3f} (accuracy of {task}): the chance level."
        assert (told in study_markdown(table.assign(task=task))) == bool(np.isfinite(chance))


@pytest.mark.parametrize(
    ("shares", "groups"),
    [
        ((0.395, 0.401, 0.7), ["from the top:\na-mask-of-a-long-name\nanother-of-a-long-name", "star"]),
        ((0.395, 0.45, 0.7), ["from the top:\na-mask-of-a-long-name\nanother-of-a-long-name", "star"]),
        ((0.3, 0.5, 0.7), ["a-mask-of-a-long-name", "another-of-a-long-name", "star"]),
        ((0.1, 0.25, 0.7), ["a-mask-of-a-long-name", "another-of-a-long-name", "star"]),
    ],
)
def test_names_hide_neither_each_other_nor_points_of_others(shares: tuple[float, ...], groups: list[str]) -> None:
    """Points nearer to each other than half a name is wide share one place, in the order of what they achieve."""
    rows = means(masks(1))
    full, star = (rows[(rows["pattern"] == name) & (rows["control"] == "kept")] for name in ("full", "star"))
    table = pd.concat([star] * 3, ignore_index=True).assign(value=[0.74, 0.72, 0.7], sparsity_texts=shares)
    table = table.assign(ci_low=table["value"] - 0.03, ci_high=table["value"] + 0.03)
    table["pattern"] = ["a-mask-of-a-long-name", "another-of-a-long-name", "star"]
    figure = quality_figure(pd.concat([full, table], ignore_index=True))
    assert figure is not None
    figure.canvas.draw()
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == groups
    boxes = [Text.get_window_extent(text) for text in axes.texts]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert max(box.y1 for box in boxes) <= axes.bbox.y1 + 1
    for row in table.to_dict("records"):
        foot, top = axes.transData.transform([(100 * row["sparsity_texts"], row[end]) for end in ("ci_low", "ci_high")])
        for text, box in zip(axes.texts, boxes, strict=True):
            is_own = row["pattern"] in text.get_text()
            assert is_own or not (box.x0 < foot[0] < box.x1 and foot[1] < box.y1 and top[1] > box.y0)


def test_names_stay_in_the_panel_and_apart() -> None:
    """Masks that come out alike share a place; names at the ends run inwards."""
    rows = means(masks(1))
    star = rows[(rows["pattern"] == "star") & (rows["control"] == "kept")]
    table = pd.concat([star.assign(pattern=name) for name in ("star", "window:1|global:1", "left", "middle")])
    table["sparsity_texts"] = [0.9, 0.9, 0.1, 0.5]
    axes = Figure().add_subplot()
    draw_masks(axes, table)
    name_masks(axes, table)
    assert {t.get_text(): t.get_ha() for t in axes.texts} == {
        "star, window:1|global:1": "right",
        "left": "left",
        "middle": "center",
    }
    axes = Figure().add_subplot()
    draw_masks(axes, star)
    name_masks(axes, star)
    assert [t.get_ha() for t in axes.texts] == ["center"]


def test_strange_names_stay_in_the_figure() -> None:
    words = "".join(HOSTILE)
    table = masks().assign(task=words, metric=words)
    figure = quality_by_pattern(pd.concat([table, table.assign(model=words)], ignore_index=True))
    assert figure is not None
    figure.canvas.draw()
    check_edges(figure)
    assert {axes.get_title() for axes in figure.axes} == {"m", one_line(words, 0.78 * FULL_WIDTH / 2, TICK_SIZE)}


@pytest.mark.parametrize("runs", rest_slow([("dam",), ("a-long-name-of-a-run", "another-run"), ("r" * 60,)]))
@pytest.mark.parametrize("tasks", rest_slow([("sst2",), ("sst2", "mnli")], [("sst2", "mnli")]))
def test_legend_and_names_of_orders_stay_apart_and_within_the_figure(
    runs: tuple[str, ...], tasks: tuple[str, ...]
) -> None:
    """The same share of the most and of the least important positions masks and achieves nearly the same."""
    full = masks(2, tasks).query("pattern == 'full' and control == 'kept'")
    orders = [(run, order, share) for run in runs for order in ("most", "least") for share in ("0.3", "0.1")]
    kept = [
        full.assign(pattern=f"{run}/masks/penalty-0.1@{order}={share}", sparsity=0.9, sparsity_texts=1 - float(share))
        for run, order, share in orders
    ]
    figure = quality_by_pattern(pd.concat([full, *kept], ignore_index=True))
    assert figure is not None
    figure.draw_without_rendering()
    check_edges(figure)
    legend = figure.legends[0].get_window_extent()
    assert figure.bbox.x0 <= legend.x0 < legend.x1 <= figure.bbox.x1
    assert all(axes.get_window_extent().y0 > legend.y1 for axes in figure.axes)
    for axes in figure.axes if len(runs) == 1 else ():
        boxes = [text.get_window_extent() for text in axes.texts]
        assert len(boxes) == 4
        assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
