"""The figures of Sparsefinder."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tiers import rest_slow

from headlens.analyses.commands import commands
from headlens.analyses.sparsefinder.figures import (
    LOOKS,
    cluster_pictures,
    example_maps,
    pareto_curves,
    pos_pair_maps,
    sparse_heads,
    sparsefinder_figures,
)
from headlens.analyses.sparsefinder.fitting import fit_site
from headlens.analyses.sparsefinder.options import FitOptions, ParameterGrid
from headlens.analyses.sparsefinder.pareto_points import pareto
from headlens.analyses.sparsefinder.query_key_store import StoredBatch
from headlens.analyses.sparsefinder.report import (
    REPORT,
    method_areas,
    sparsefinder_findings,
    task_sentences,
    task_tables,
)
from headlens.heads import KEY_COLUMNS
from headlens.pages.head_cards import HeadFacts
from headlens.plots import style
from headlens.tables.sparsefinder_tables import GOLD


def test_names_are_those_of_the_tables() -> None:
    """The figures stand below the package that writes the tables, and have the names a second time."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, 4, 8, generator=generator) for _ in range(2))
    gold, real = torch.eye(4, dtype=torch.bool)[None, None], torch.ones(1, 4, dtype=torch.bool)
    one, grid = StoredBatch(q, k, real, real, weights=gold), ParameterGrid((0, 3), (1.0,), (2,), block_size=2)
    found = pareto(lambda: [one], grid, fit_site(lambda: [one], grid, FitOptions(epochs=1))).table
    assert set(found["method"]) == {GOLD, *LOOKS}


def points(*, metric: bool = True) -> pd.DataFrame:
    rows = [
        (
            method,
            0.2 * step,
            1 - 0.01 * number - 0.15 * step,
            step < 4,
            30 - number - step if step % 2 and metric else np.nan,
        )
        for number, method in enumerate(LOOKS)
        for step in range(5)
    ]
    rows.append((GOLD, 0.85, 1.0, True, 33 if metric else np.nan))
    found = pd.DataFrame(rows, columns=["method", "sparsity", "recall", "on_curve", "value"])
    words = {"model": "m", "stack": "encoder", "head": np.nan, "metric": "bleu", "task": "translation"}
    low, high = found["value"] - 1, found["value"] + 1
    return found.assign(**words, ci_low=low, ci_high=high, task_sparsity=0.9 * found["sparsity"])


@pytest.mark.parametrize(
    ("stacks", "told"),
    [
        (["encoder"], ["all heads"]),
        (["decoder"], ["all heads"]),
        (["all", "encoder", "cross"], ["all heads", "heads of the encoder stack", "heads of the cross stack"]),
    ],
)
def test_curves_name_the_heads_that_they_are_of(stacks: list[str], told: list[str]) -> None:
    """Those of the encoder of a translation model were called those of all heads, as those of all were."""
    table = pd.concat([points(metric=False).assign(stack=stack) for stack in stacks])
    drawn = [figure for name, figure in sparsefinder_figures({"pareto": table}) if figure and name.startswith("pareto")]
    assert [figure.axes[0].get_title(loc="left") for figure in drawn] == told


@pytest.mark.usefixtures("laid_out")
@pytest.mark.parametrize("metric", rest_slow([False, True], [True]))
def test_every_method_has_a_curve(metric: bool) -> None:
    table = points(metric=metric)
    figure = pareto_curves(table, "all")
    assert figure is not None
    assert len(figure.axes) == 1 + metric
    for axes, column in zip(figure.axes, ("recall", "value"), strict=False):
        lines = {str(line.get_label()): line for line in axes.lines if not str(line.get_label()).startswith("_")}
        others = [
            "sparsity of entmax",
            "entmax itself (band: 95 %)" if column == "value" else "recall of random graphs",
        ]
        place = "task_sparsity" if column == "value" else "sparsity"
        assert list(lines) == [*(label for _, _, label in LOOKS.values()), *others]
        for method, (_, _, label) in LOOKS.items():
            own = table[(table["method"] == method) & table[column].notna() & table["on_curve"]]
            assert lines[label].get_xydata().tolist() == own[[place, column]].to_numpy().tolist()
        assert lines["sparsity of entmax"].get_xdata() == pytest.approx([0.85 * (0.9 if column == "value" else 1)] * 2)
        if column == "value":
            assert lines["entmax itself (band: 95 %)"].get_ydata() == [33, 33]
            assert axes.get_ylabel() == "BLEU of translations"
    figure.canvas.draw()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert all(axes.get_tightbbox().y0 >= box.y1 - 1 for axes in figure.axes)


def test_the_axis_names_the_metric_of_the_task() -> None:
    figure = pareto_curves(points(metric=True).assign(task="sst2", metric="accuracy"), "encoder")
    assert figure.axes[1].get_ylabel() == "accuracy on sst2"


def test_chance_of_the_task_and_random_graphs_are_lines_of_their_own() -> None:
    """Under one name the legend would explain one of the two lines only."""
    figure = pareto_curves(points().assign(chance=25.0), "encoder")
    told = [text.get_text() for text in figure.legends[0].get_texts()]
    drawn = {str(line.get_label()) for axes in figure.axes for line in axes.lines} & {"chance level", *told}
    assert {"chance level", "recall of random graphs"} <= drawn == set(told)
    (level,) = (line for line in figure.axes[1].lines if line.get_label() == "chance level")
    assert level.get_ydata()[0] == 25.0


@pytest.mark.parametrize(
    ("answer", "low", "words"),
    [
        (True, 0.4, "gives the same answer to all 101 evaluation examples"),
        (False, 0.4, "is not shown to be better than guessing on 101 evaluation examples"),
        (False, 0.7, ""),
    ],
)
def test_a_model_that_answers_or_guesses_alike_is_told_whatever_its_graphs_do(
    answer: bool, low: float, words: str
) -> None:
    """Graphs that change some of the answers of a constant model must not hide that it is one."""
    rows = tried().assign(model="m", metric="accuracy", task="sst2", n=101, chance=0.55, ci_low=low, ci_high=0.9)
    rows = rows.assign(verdict=None, same_answer=[answer] + [False] * (len(rows) - 1))
    told = " ".join(task_sentences(rows))
    assert words in told
    assert bool(told) == bool(words)


def test_models_of_one_answer_are_framed() -> None:
    table = points(metric=True)
    tried = int(table["value"].notna().sum())
    figure = pareto_curves(table.assign(answer_share=np.where(table["value"].notna(), 0.96, np.nan)), "encoder")
    frames = [line for line in figure.axes[1].lines if line.get_label() == "≥ 95 % same answer"]
    assert sum(len(line.get_xdata()) for line in frames) == tried
    assert "≥ 95 % same answer" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_metric_that_is_the_same_everywhere_has_an_axis() -> None:
    table = points(metric=True)
    figure = pareto_curves(
        table.assign(**dict.fromkeys(("value", "ci_low", "ci_high"), table["value"] * 0 - 1e-17)), "all"
    )
    low, high = figure.axes[1].get_ylim()
    assert high - low == pytest.approx(0.01)
    assert low < 0 < high


def test_without_points_there_is_no_figure() -> None:
    assert pareto_curves(points()[:0], "encoder") is None


def heads() -> pd.DataFrame:
    rows = [
        ("m", "encoder", layer, head, 0.8, 0.7, 0.6, 0.8, 0.1 * (head + 2 * layer))
        for layer in (0, 1)
        for head in (0, 1)
    ]
    columns = ["model", *KEY_COLUMNS, "sparsity", "area_distance", "area_bucket", "area_cluster", "information"]
    return pd.DataFrame(rows, columns=columns)


def test_heads_by_their_best_method() -> None:
    figure = sparse_heads(heads())
    assert figure is not None
    sparsity, predicted = (axes.collections[-1].get_array() for axes in figure.axes[:2])
    assert np.asarray(sparsity).ravel() == pytest.approx(0.8)
    assert np.asarray(predicted).ravel() == pytest.approx(0.75)
    # A head that looks everywhere, or nearly so, has no sparsity to be predicted.
    dense = sparse_heads(heads().assign(sparsity=[0.0, 0.009, 0.8, 0.8], area_cluster=0.9))
    assert dense is not None
    known = np.ma.masked_invalid(dense.axes[1].collections[-1].get_array())
    assert known.compressed() == pytest.approx([1, 1])


def clusters() -> pd.DataFrame:
    rows = [
        ("m", "encoder", layer, head, cluster, side, tag, 10 + cluster, 0.5)
        for layer in (0, 1)
        for head in (0, 1)
        for cluster in range(2)
        for side in ("query", "key")
        for tag in ("NOUN", "VERB")
    ]
    return pd.DataFrame(rows, columns=["model", *KEY_COLUMNS, "cluster", "side", "tag", "count", "share"])


def test_clusters_of_the_heads_that_tell_most() -> None:
    figure = cluster_pictures(clusters(), heads())
    assert figure is not None
    panels = [axes for axes in figure.axes if axes.get_title(loc="left") or axes.texts or axes.collections]
    assert len(panels) >= 6
    told = " ".join(text.get_text() for axes in figure.axes for text in (axes.title, axes._left_title, *axes.texts))
    assert told.index("encoder.1.1") < told.index("encoder.1.0") < told.index("encoder.0.1")
    assert "encoder.0.0" not in told
    first = " ".join(told.split()).partition("encoder.1.0")[0]
    told = "(clusters of both sides explain 30 % of the entropy of parts of speech)"
    assert f"encoder.1.1: queries {told} keys" in first
    assert cluster_pictures(clusters(), heads().assign(information=np.nan)) is None


def test_a_cluster_of_few_tokens_is_grey() -> None:
    few = clusters()
    few.loc[few["cluster"] == 1, "count"] = 4  # of either tag
    figure = cluster_pictures(few, heads())
    assert figure is not None
    meshes = [np.ma.getmaskarray(axes.collections[0].get_array()) for axes in figure.axes if axes.collections]
    assert all(mesh.tolist() == [[False, False], [True, True]] for mesh in meshes[:6])


def test_a_cluster_that_holds_nothing_is_grey_and_not_zero() -> None:
    whole = clusters()
    first = whole["cluster"].min()
    gone = whole[(whole["head"] != 1) | (whole["layer"] != 1) | (whole["side"] != "key") | (whole["cluster"] != first)]
    assert len(gone) < len(whole)
    figure = cluster_pictures(gone, heads())
    assert figure is not None
    meshes = [np.ma.getmaskarray(axes.collections[0].get_array()) for axes in figure.axes if axes.collections]
    queries, keys = meshes[0], meshes[1]
    assert not queries.any()
    assert keys[0].all()
    assert not keys[1:].any()


def pos_pairs() -> pd.DataFrame:
    """Two heads; determiners meet few determiners, and special tokens do not count."""
    rows = [
        ("m", "encoder", 0, head, query, key, pairs, gold, predicted)
        for head in (0, 1)
        for query, key, pairs, gold, predicted in (
            ("NOUN", "NOUN", 60, 30 * head, 6),
            ("NOUN", "DET", 40, 2, 8),
            ("DET", "NOUN", 40, 6, 0),
            ("DET", "DET", 10, 9, 9),
            ("special", "NOUN", 50, 50, 50),
        )
    ]
    columns = ["model", *KEY_COLUMNS, "query_tag", "key_tag", "pairs", "gold", "predicted"]
    return pd.DataFrame(rows, columns=columns)


@pytest.mark.parametrize("width", ["full", "column"])
def test_parts_of_speech_that_attend_to_each_other(width: str) -> None:
    with style.drawn_for(width):
        figure = pos_pair_maps(pos_pairs())
    assert figure is not None
    panels = [axes for axes in figure.axes if axes.get_xlabel() == "part of speech of the key"]
    gold, predicted = (np.ma.masked_invalid(axes.collections[0].get_array()).reshape(2, 2) for axes in panels)
    all_pairs, all_gold, all_predicted = 300, 30 + 2 * (2 + 6 + 9), 2 * (6 + 8 + 9)
    of_gold = np.array([[30 / 120, 4 / 80], [12 / 80, np.nan]]) / (all_gold / all_pairs)
    assert gold.filled(np.nan) == pytest.approx(of_gold, nan_ok=True)
    of_predicted = np.array([[12 / 120, 16 / 80], [0, np.nan]]) / (all_predicted / all_pairs)
    assert predicted.filled(np.nan) == pytest.approx(of_predicted, nan_ok=True)
    assert [t.get_text() for t in panels[0].get_yticklabels()] == ["noun", "det"], "the most frequent query first"
    assert panels[0].get_ylabel() == "part of speech of the query"
    highest = max(np.nanmax(of_gold), np.nanmax(of_predicted))
    assert [axes.collections[0].get_clim() for axes in panels] == [pytest.approx((0.0, highest))] * 2, "one scale"
    assert pos_pair_maps(pos_pairs()[:0]) is None


def examples() -> pd.DataFrame:
    rows = [
        ("m", stack, 0, 1, i, j, "ab"[i], "cde"[j], i / 2, 1.0, j / 3)
        for stack in ("encoder", "cross")
        for i in range(2)
        for j in range(3)
    ]
    columns = ["model", *KEY_COLUMNS, "query", "key", "query_token", "key_token", "weight", "predicted", "restricted"]
    return pd.DataFrame(rows, columns=columns).assign(method="distance", value_of_parameter=1.5, window=3)


def test_maps_of_a_head() -> None:
    figure = example_maps(examples()[lambda t: t["stack"] == "cross"])
    assert figure is not None
    maps = [np.asarray(axes.collections[0].get_array()).reshape(2, 3) for axes in figure.axes[:3]]
    assert maps[0].tolist() == [[0, 0, 0], [0.5, 0.5, 0.5]]
    assert (maps[1] == 1).all()
    assert maps[2][0] == pytest.approx([0, 1 / 3, 2 / 3])
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["a", "b"]
    assert example_maps(examples()[:0]) is None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"recall": 0.66, "sparsity": 0.68},
            "distance, threshold 1.5, window of 3 keys; over all sentences: recall 0.66, sparsity 0.68",
        ),
        ({"method": "bucket", "window": 0, "global_tokens": 1}, "bucket, buckets 1.5, no window, 1 global token"),
        ({"value_of_parameter": np.nan, "window": np.nan}, "distance"),  # as of older runs
    ],
)
def test_maps_name_the_parameters_and_say_what_numbers_are_of(more: dict[str, Any], words: str) -> None:
    figure = example_maps(examples()[lambda t: t["stack"] == "cross"].assign(**more))
    assert figure is not None
    title = " ".join(figure.axes[1].get_title(loc="left").split())
    assert title == f"predicted (dark): {words}"


@pytest.mark.parametrize(("sparsity", "told"), [(0.49, True), (0.5, False)])
def test_maps_say_that_no_setting_is_sparse(sparsity: float, told: bool) -> None:
    drawn = examples()[lambda t: t["stack"] == "encoder"]
    both = pd.concat([drawn.assign(sparsity=sparsity), drawn.assign(head=0, sparsity=0.9)]).assign(recall=0.9)
    figure = example_maps(both, "m")
    assert figure is not None
    title = " ".join((figure.get_suptitle() or figure.texts[0].get_text()).split())
    dense = "encoder.0.1: no setting predicts at most half of the pairs; shown is the sparsest tried"
    assert title == f"Attention over predicted positions, method distance {dense * told}{' ' * told}m"


def test_all_figures_by_name() -> None:
    tables = {
        "pareto": pd.concat([points().assign(stack="all"), points()]),
        "heads": heads(),
        "clusters": clusters(),
        "pos_pairs": pos_pairs(),
        "examples": examples(),
    }
    found = dict(sparsefinder_figures(tables))
    maps = ["clusters", "pos_pairs", "examples_encoder", "examples_cross"]
    assert list(found) == ["pareto", "pareto_encoder", "heads", *maps]
    assert all(figure is not None for figure in found.values())
    assert list(sparsefinder_figures({})) == []


@pytest.mark.parametrize("attention", rest_slow(["switched to 1.5-entmax", None]))
def test_all_titles_name_the_model_and_switched_attention(attention: str | None) -> None:
    rows = {"clusters": clusters(), "pos_pairs": pos_pairs(), "examples": examples(), "heads": heads()}
    tables = {"pareto": points().assign(model="demo", attention=attention), **rows}
    for figure in dict(sparsefinder_figures(tables)).values():
        assert figure is not None
        title = figure.get_suptitle() or figure.texts[0].get_text()
        assert title.split("\n")[-1] == ("demo, switched to 1.5-entmax" if attention else "demo")
    # As where a run was stopped.
    assert dict(sparsefinder_figures({"heads": heads()}))["heads"] is not None


def test_methods_in_order() -> None:
    rows = [
        ("m", "all", "window", "recall", 0.6, 0.33, 0.3, 0.1),
        ("m", "all", "entmax", "recall", 0.8, 1.0, np.nan, np.nan),
        ("m", "all", "distance", "recall", 0.7, 0.4, 0.35, 0.2),
        ("m", "all", "distance", "BLEU", 20.0, 0.44, 0.42, 1.0),
    ]
    columns = ["model", "stack", "method", "quality", "area", "share", "share_ci_low", "at_90"]
    areas = pd.DataFrame(rows, columns=columns).assign(share_ci_high=0.45, ci_low=0.1, ci_high=0.9)
    areas.loc[areas["method"] == "window", "share_ci_high"] = 0.34
    ((key, found),) = method_areas(areas)
    assert key == ("m", "all")
    assert [row["method"] for row in found] == ["entmax itself", "Sparsefinder, distance", "window"]
    assert [row["recall at sparsity 0.9"] for row in found] == ["–", "0.200", "0.100"]
    assert [row["normalised area"] for row in found] == ["1.000", "0.400 [0.350, 0.450]", "0.330 [0.300, 0.340]"]
    assert [row["BLEU: normalised area"] for row in found] == ["", "0.440 [0.420, 0.450]", ""]
    run = SimpleNamespace(tables={"areas": areas}, record={})
    (told,) = REPORT.findings(run)
    # The intervals that are compared are those that are printed, not those of the area as it is.
    assert told == (
        "m: entmax leaves 60.0% of the pairs without weight. Best predicted by Sparsefinder, distance (normalised area "
        "under the recall-sparsity curve 0.400 [0.350, 0.450]); lowest is window (0.330 [0.300, 0.340])."
    )
    near = areas.assign(share_ci_low=0.3)
    (told,) = REPORT.findings(SimpleNamespace(tables={"areas": near}, record={}))
    assert "Among the best is the prediction by Sparsefinder, distance" in told
    overlap = "the intervals of 1 other method overlap with its own"
    assert f"0.400 [0.300, 0.450]; {overlap}); lowest is window (0.330 [0.300, 0.340]; {overlap})." in told
    few = areas.assign(share_ci_low=np.nan, share_ci_high=np.nan)
    (told,) = REPORT.findings(SimpleNamespace(tables={"areas": few}, record={}))
    assert told.endswith(
        "0.400); lowest is window (0.330); of so few sentences there are no intervals, and no difference is tested."
    )


def test_a_method_is_best_of_the_few_points_that_were_tried() -> None:
    request = commands()["sparsefinder"].request({})
    table = pd.DataFrame({"method": ["entmax", "window", "routing"], "area": [0.9, 0.6, 0.7], "share": [1, 0.2, 0.5]})
    table = table.assign(quality="recall", model="m", stack="all", ci_low=np.nan, ci_high=np.nan)
    assert request.coarse_grid
    assert commands()["sparsefinder"].request({"windows": (0, 3)}).coarse_grid, "few sizes that somebody named, too"
    named = {"windows": (0, 3, 5, 7, 9), "thresholds": (1.0, 2.0, 3.0, 4.0), "groups": (2, 4, 6, 8)}
    assert not commands()["sparsefinder"].request(named).coarse_grid
    (told,) = REPORT.findings(SimpleNamespace(tables={"areas": table}, record={"coarse_grid": True}))
    assert ". Of the few points tried, best predicted by clusters as in Routing (normalised area under" in told
    (told,) = REPORT.findings(SimpleNamespace(tables={"areas": table}, record={}))
    assert ". Best predicted by clusters as in Routing" in told


def test_what_was_tried_in_part_is_named() -> None:
    def notes(bundled: bool = False, task: bool = True, **values: Any) -> list[str]:
        given: list[str] = commands()["sparsefinder"].request(values).few_notes(bundled=bundled, task=task)
        return given

    sizes, data = notes()
    assert sizes.startswith("Few sizes were tried (windows, thresholds, groups, points): curves are coarse")
    assert notes(task=False)[0].startswith("Few sizes were tried (windows, thresholds, groups): ")
    assert "can move the area of a method by more than its interval" in sizes
    assert data.startswith("Of the bundled data a part was read")
    (sizes,) = notes(corpus="own.conllu", windows=(3,), groups=(4, 6, 8, 10), points=2)
    assert "(windows, thresholds, points)" in sizes
    named = {"windows": (0, 3, 5, 7, 9), "groups": (4, 6, 8, 10), "thresholds": (1.0, 2.0, 3.0, 4.0), "points": 4}
    assert notes(corpus="own.conllu", **named) == []
    assert notes(corpus="own.conllu", bundled=True, **named) == [data]
    assert notes(thorough=True) == []


@pytest.mark.parametrize(("count", "words"), [(1, " from 1 point"), (2, " from 2 points"), (3, ""), (np.nan, "")])
def test_areas_of_a_task_say_how_few_points_they_are_from(count: float, words: str) -> None:
    rows = [
        ("entmax", "recall", 1.0, 1.0),
        ("window", "recall", 0.1, 2.0),
        ("entmax", "accuracy", 1.0, 1.0),
        ("window", "accuracy", 0.4, count),
    ]
    table = pd.DataFrame(rows, columns=["method", "quality", "share", "points"]).assign(
        model="m", stack="all", area=0.7
    )
    table = table.assign(**dict.fromkeys(("ci_low", "ci_high", "share_ci_low", "share_ci_high", "at_90"), np.nan))
    ((_, (itself, window)),) = method_areas(table)
    assert [itself["accuracy: normalised area"], window["accuracy: normalised area"]] == ["1.000", f"0.400{words}"]
    assert window["normalised area"] == "0.100"
    run = SimpleNamespace(tables={"areas": table}, folder=Path("run"))
    (page,) = REPORT.overviews([run])
    assert [row[5].text for row in page.rows] == ["1.000", "0.100", "1.000", f"0.400{words}"]


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([0.5996, 0.6004, 0.8], "0.800); lowest is window (0.600; tied with BigBird and with Longformer); of so few"),
        (
            [0.7996, 0.61, 0.8],
            "Among the best is the prediction by clusters as in Routing (normalised area under the recall-sparsity "
            "curve 0.800; tied with BigBird); lowest is window (0.600); of so few sentences",
        ),
        ([0.5999, 0.6, 0.6001], "Predicted by window, BigBird, Longformer, clusters as in Routing equally well (norm"),
    ],
)
def test_areas_that_are_printed_alike_tie_where_there_are_no_intervals(others: list[float], words: str) -> None:
    methods = ["entmax", "window", "bigbird", "longformer", "routing"]
    table = pd.DataFrame({"method": methods, "area": 0.9, "share": [1, 0.5995, *others], "quality": "recall"})
    (told,) = sparsefinder_findings({"areas": table.assign(model="m", stack="all")})
    assert words in told


def tried() -> pd.DataFrame:
    """The task without a graph, over one of a method, and over sparser ones that are drawn at random."""
    rows = [
        (GOLD, "none", np.nan, 0.5, 0.8, np.nan, None),
        ("random", "keys", 2.0, 0.9, 0.7, -0.1, "not decided"),
        ("distance", "threshold", 1.5, 0.6, 0.78, -0.02, "not decided"),
        ("window", "window", 0.0, 0.7, 0.3, -0.5, "needed"),
    ]
    columns = ["method", "parameter", "value_of_parameter", "task_sparsity", "value", "delta", "verdict"]
    ends = {"ci_low": 0.2, "ci_high": 0.9, "delta_low": -0.6, "delta_high": 0.1}
    about = {"model": "m", "task": "sst2", "metric": "accuracy", "margin": 0.01, "n_to_decide": 900.0, "n": 100}
    return pd.DataFrame(rows, columns=columns).assign(**about, **ends, window=0)


def test_the_table_of_the_task_has_verdicts_in_the_order_of_sparsity() -> None:
    ((title, rows),) = task_tables(pd.concat([tried(), tried().assign(metric="loss")]))
    assert title == "sst2 over predicted graphs, m, n = 100"
    assert [row["sparsity on the task"] for row in rows] == ["0.500", "0.600", "0.700", "0.900"]
    assert [row["verdict"] for row in rows[1:]] == ["not decided", "needed", "not decided"]
    assert rows[1]["graph"] == "Sparsefinder, distance, threshold 1.5, no window"
    assert rows[1]["accuracy"] == "0.780 [0.200, 0.900]"
    assert rows[1]["difference from entmax itself"].startswith("-0.020 [-0.600, 0.100]")


def test_the_main_metric_is_told_also_where_the_figure_shows_another() -> None:
    """By its accuracy a decoder needed few of 18 graphs, by its loss, which ablate reports, most of them."""
    loss = tried().assign(metric="loss", delta=-tried()["delta"], verdict=[None, *["needed"] * 3])
    both = pd.concat([loss, tried()])
    (told,) = task_sentences(both)
    assert told.startswith("m: all 3 graphs lose significantly; of these, the densest that is not random: ")
    assert ": loss 0." in told
    assert ["loss" in rows[1] for _, rows in task_tables(both)] == [True, False]
    silent = loss.assign(verdict=None, chance=0.5)
    assert "not shown to be better than guessing" in task_sentences(silent)[0]


def test_graphs_that_are_drawn_at_random_count_but_are_not_told() -> None:
    (told,) = sparsefinder_findings({"metrics": tried()})
    first = (
        "m: 1 of 3 graphs loses significantly, 2 are not decided; of these, the sparsest that is not random: whether "
    )
    assert told.startswith(f"{first}sst2 needs the 60.0% of the pairs left out (Sparsefinder, distance")
    undecided = tried()["method"] != "random"
    (told,) = sparsefinder_findings({"metrics": tried().where(undecided, tried().assign(verdict="needed"))})
    assert told.startswith("m: 2 of 3 graphs lose significantly, 1 is not decided: whether ")


@pytest.mark.parametrize(("gold", "nothing"), [(0.5, True), (0.5002, True), (0.5004, False)])
def test_where_entmax_leaves_next_to_nothing_out_no_method_is_best(gold: float, nothing: bool) -> None:
    columns = ["model", "stack", "method", "quality", "area", "share", "ci_low", "ci_high"]
    rows = [
        ("m", "all", "entmax", gold, 1.0),
        ("m", "all", "window", gold - 0.1, 0.4),
        ("m", "all", "bucket", 0.1, 0.2),
    ]
    table = pd.DataFrame([(*row[:3], "recall", *row[3:], np.nan, np.nan) for row in rows], columns=columns)
    (told,) = sparsefinder_findings({"areas": table})
    assert told.endswith("of the pairs without weight: nothing to predict.") == nothing
    assert ("Best predicted" in told) != nothing


def test_words_of_the_heads_that_are_shown_are_declared() -> None:
    """A column that is not declared as words holds numbers when a run is read back."""
    (method,) = (column for column in REPORT.tables["examples"].columns if column.name == "method")
    assert set(method.words) == {GOLD, *LOOKS}


def test_pages_show_heads_by_sparsity_and_by_every_method_that_was_tried() -> None:
    heads = pd.DataFrame([("m", "encoder", 0, 0, 0.8, 0.6)], columns=["model", *KEY_COLUMNS, "sparsity", "area_window"])
    facts = REPORT.heads(SimpleNamespace(tables={"heads": heads}))
    assert [series.key for series in facts.series] == ["sparsity", "area window"]
    assert REPORT.heads(SimpleNamespace(tables={})).series == HeadFacts().series
