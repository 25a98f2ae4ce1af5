"""Figures of learned masks: what is drawn, of which numbers, and what is left out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from drawn_words import check_edges
from made_runs import HOSTILE
from safetensors.torch import save_file
from tiers import rest_slow_rows

from headlens.analyses.dam.figures import (
    IMPORTANCE,
    KEPT,
    dam_figures,
    importance_by_place,
    importance_over_training,
    known_positions,
    mask_picture,
    quality_by_sparsity,
)
from headlens.analyses.dam.report import (
    DIAGONAL_DIFFERENCE,
    REPORT,
    dam_markdown,
    dam_sentences,
    penalty_sentences,
    write_dam,
)
from headlens.analyses.report.registry import reports
from headlens.attention_masks.named_masks import PROBABILITIES
from headlens.errors import InputError
from headlens.runs.folder import RunFolder
from headlens.runs.reading import RecordedRun
from headlens.tables.mask_tables import CLASSES


def made(layers: int = 1, heads: int = 3, n: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """P, and which positions stay."""
    torch.manual_seed(0)
    p = torch.rand(layers, heads, n, n)
    return p, p > 0.5


def sweep() -> pd.DataFrame:
    rows = [("plain", None, 0.0, 0.9), ("penalty-0.1", 0.1, 0.7, 0.8), ("penalty-1", 1.0, 0.95, 0.6)]
    frame = pd.DataFrame(rows, columns=["run", "penalty", "sparsity", "value"])
    return (
        frame.assign(sparsity_texts=frame["sparsity"] / 2)
        .assign(ci_low=frame["value"] - 0.1, ci_high=frame["value"] + 0.1, metric="accuracy", task="rte", model="m")
        .assign(
            delta=[np.nan, -0.1, -0.3],
            delta_low=[np.nan, -0.2, -0.4],
            delta_high=[np.nan, 0.0, -0.2],
            p_value=[np.nan, 0.04, 0.0],
        )
    )


def positions() -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for penalty, p in ((0.1, 0.6), (1.0, 0.2)):
        for head in range(2):
            own = {"mask": f"penalty-{penalty:g}", "penalty": penalty, "head": head, "kept": p > 0.5}
            rows += [{**own, "class": name, "offset": None, "p": p + 0.1 * head} for name in CLASSES]
            rows += [{**own, "class": "offset", "offset": k, "p": p / (1 + k)} for k in range(4)]
    return pd.DataFrame(rows)


def importance() -> pd.DataFrame:
    rows = [
        {"run": f"penalty-{penalty:g}{end}", "penalty": penalty, "step": step, "class": name}
        | {"p": 0.5 - penalty / 10 * step - 0.1 * bool(end)}
        for penalty in (0.1, 1.0)
        for end in ("", "-no-diagonal")
        for step in range(3)
        for name in CLASSES
    ]
    return pd.DataFrame(rows)


def controlled() -> pd.DataFrame:
    """The sweep with a control of the first mask."""
    control = sweep().iloc[1:2].assign(run="penalty-0.1-no-diagonal", sparsity=0.71, sparsity_texts=0.4, value=0.85)
    both = pd.concat([sweep(), control], ignore_index=True)
    for name, value in zip(DIAGONAL_DIFFERENCE, (0.05, -0.02, 0.12, 0.2), strict=True):
        both[name] = [np.nan, np.nan, np.nan, value]
    return both


def test_every_figure_is_drawn_and_has_a_caption() -> None:
    without = positions().assign(mask=lambda rows: rows["mask"] + "-no-diagonal")
    both = pd.concat([positions(), without], ignore_index=True)
    tables = {"sweep": sweep(), "positions": both, "importance": importance()}
    drawn = dict(dam_figures(tables, [("penalty-0.1", *made())]))
    names = ["quality", "importance", "importance_over_training", "mask_penalty-0.1", "p_penalty-0.1"]
    assert list(drawn) == names
    assert [REPORT.caption(name).title for name in names[1:3]] == [
        "Importance of positions",
        "Importance of positions, over training",
    ]
    assert all(figure is not None for figure in drawn.values())
    titles = [(figure._suptitle or figure.texts[0]).get_text() for figure in drawn.values() if figure is not None]
    assert all(re.search(r"\bm\b", title) for title in titles), titles
    assert "(masks learned with the diagonal)" in titles[1]
    assert all(REPORT.caption(name) in REPORT.captions.values() for name in drawn)
    assert reports()["train-dam"] is REPORT


def test_quality_shows_the_masks_by_sparsity_and_the_plain_model() -> None:
    figure = quality_by_sparsity(sweep())
    assert figure is not None
    (axes,) = figure.axes
    points = {line.get_label(): line.get_xydata().tolist() for line in axes.lines if "λ" in str(line.get_label())}
    assert points == {"penalty λ 0.1": [[35.0, 0.8]], "penalty λ 1": [[47.5, 0.6]]}
    assert [line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == "--"] == [0.9]


def test_quality_shows_the_same_training_without_a_mask() -> None:
    rows = sweep()
    other = rows.iloc[:1].assign(run="unmasked", value=0.95)
    figure = quality_by_sparsity(pd.concat([rows, other], ignore_index=True))
    assert figure is not None
    (axes,) = figure.axes
    levels = {line.get_label(): line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == "--"}
    known = {"before training, no mask": 0.9, "trained without a mask": 0.95}
    assert levels == {f"{name} (band: 95 %)": value for name, value in known.items()}


def test_one_answer_of_models_without_a_mask_stands_in_the_legend_and_not_where_no_mask_is() -> None:
    rows = pd.concat([sweep(), sweep().iloc[:1].assign(run="unmasked", value=0.85)], ignore_index=True)
    figure = quality_by_sparsity(rows.assign(answer_share=[1.0, 0.5, 0.99, 0.5]))
    (axes,) = figure.axes
    assert [line.get_xdata().tolist() for line in axes.lines if line.get_marker() == "s"] == [[47.5]]
    labels = [" ".join(text.get_text().split()) for text in figure.legends[0].get_texts()]
    assert "before training, no mask: the same answer to all examples (band: 95 %)" in labels
    assert "trained without a mask (band: 95 %)" in labels


def test_quality_shows_controls_as_crosses() -> None:
    figure = quality_by_sparsity(controlled())
    assert figure is not None
    (axes,) = figure.axes
    points = [line for line in axes.lines if line.get_marker() in {"o", "x"} and len(line.get_xdata())]
    assert [line.get_xydata().tolist() for line in points] == [[[35.0, 0.8]], [[40.0, 0.85]], [[47.5, 0.6]]]
    assert [line.get_marker() for line in points] == ["o", "x", "o"]
    assert np.array_equal(points[0].get_color(), points[1].get_color())


def test_quality_shows_every_mask_in_one_place_and_the_chance_level() -> None:
    """Of three masks with the same numbers each has a mark of its own size, and guesses have a line."""
    rows = pd.concat([sweep(), *[sweep().iloc[2:].assign(penalty=p, run=f"penalty-{p}") for p in (5.0, 9.0)]])
    figure = quality_by_sparsity(rows.assign(chance=0.55))
    assert figure is not None
    (axes,) = figure.axes
    last = [line for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata())][1:]
    assert {tuple(line.get_xydata()[0]) for line in last} == {(47.5, 0.6)}
    # The points themselves, and a rim for each that lies below others.
    assert sorted(line.get_markersize() for line in last) == [4.0, 4.0, 4.0, 7.0, 10.0]
    order = sorted(last, key=lambda line: line.get_zorder())
    assert [line.get_markersize() for line in order[:2]] == [10.0, 7.0]
    # None hides another one, and all are filled: hollow points are undecided in other figures.
    assert all(np.array_equal(line.get_markerfacecolor(), line.get_color()) for line in last)
    assert [line.get_ydata()[0] for line in axes.lines if line.get_label() == "chance level"] == [0.55]


def test_differences_far_below_the_margin_do_not_fill_the_axis() -> None:
    ends = {"value": 0.6001, "ci_low": 0.6, "ci_high": 0.6002}
    figure = quality_by_sparsity(sweep().assign(**ends, margin=0.05))
    assert figure is not None
    assert np.diff(figure.axes[0].get_ylim()) == pytest.approx(0.05)


def test_a_chance_level_that_is_not_in_the_picture_stands_in_the_legend() -> None:
    figure = quality_by_sparsity(sweep().assign(chance=0.05))
    assert figure is not None
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "chance level 0.05 (below the axis)" in labels
    check_edges(figure)


@pytest.mark.parametrize("verdict", [None, "not needed"])
def test_masks_under_which_a_model_gives_one_answer_say_so(verdict: str | None) -> None:
    """A constant model's unchanged metric does not mean that its masked positions cost nothing."""
    known = {"p_margin": 0.01, "p_margin_holm": 0.01, "margin": 0.01, "p_holm": 1.0, "n_to_decide": np.nan, "n": 50}
    rows = sweep().assign(verdict=[None, verdict, verdict], same_answer=[verdict is None, True, True], **known)
    whole, *told = dam_sentences(rows)
    if verdict is None:
        start = "with and without the mask the model gives the same answer to all 50 evaluation examples"
        assert whole.endswith(" It gives the same answer to all examples.")
        assert all(start in text and "nothing can be measured about masked positions" in text for text in told)
    else:
        assert all(text.endswith(" It gives the same answer to all examples.") for text in told)


@pytest.mark.parametrize(("whole", "share"), [(False, 0.997), (True, 0.95), (False, 0.6)])
def test_one_answer_is_that_of_both_or_of_the_mask_alone(whole: bool, share: float) -> None:
    """A model without skill has no verdicts; what it answers under a mask says nothing of it without one."""
    rows = sweep().assign(verdict=None, p_margin=np.nan, margin=0.01, p_holm=np.nan, n_to_decide=np.nan, n=50)
    shares = {"same_answer": [whole, share == 1, share == 1], "answer_share": [1.0 if whole else 0.997, share, share]}
    told = dam_sentences(rows.assign(**shares))
    assert not any("with and without the mask" in text for text in told)
    assert dam_sentences(rows.assign(same_answer=[False, True, True], answer_share=[0.997, 1, 1]))[1].endswith(
        " It gives the same answer to all examples."
    )


def test_masks_that_close_all_or_nothing_say_so() -> None:
    """Positions that nobody learned, such as the first and last token of the structured form, tell nothing."""
    table = positions().assign(kept=[0.0] * 8 + [1.0] * 8 + [0.5] * 8 + [0.0] * 8)
    held = table["class"] == "special"
    table = table.assign(p=table["p"].mask(held), kept=table["kept"].mask(held, 1.0))
    table["mask"] = ["penalty-1"] * 8 + ["penalty-0"] * 8 + ["penalty-0.1"] * 16
    closed, opened = penalty_sentences(table)
    assert closed.startswith("In penalty-1 every position that can be closed is closed, so that the final mask")
    assert opened.startswith("In penalty-0 no position is closed")
    assert "try larger penalties with --lambdas" in opened
    (every,) = penalty_sentences(table.assign(kept=0.0))
    assert every.startswith("In every mask every position that can be closed")
    assert penalty_sentences(table.assign(kept=0.4)) == penalty_sentences(table.iloc[:0]) == []


def test_importance_over_the_training_by_class_and_penalty() -> None:
    figure = importance_over_training(importance())
    assert figure is not None
    assert len(figure.axes) == len(CLASSES)
    for axes in figure.axes:
        drawn = [line for line in axes.lines if len(line.get_xdata())]
        lines = {(*line.get_color(), line.get_linestyle()): line.get_ydata().tolist() for line in drawn}
        assert sorted(lines.values()) == [
            pytest.approx(ys) for ys in ([0.4, 0.3, 0.2], [0.4, 0.39, 0.38], [0.5, 0.4, 0.3], [0.5, 0.49, 0.48])
        ]
    assert importance_over_training(importance().iloc[:0]) is None


def test_a_line_in_the_place_of_another_one_is_seen_as_its_rim() -> None:
    figure = importance_over_training(importance().assign(p=lambda rows: 0.5 - 0.2 * (rows["penalty"] > 0.5)))
    assert figure is not None
    looks = [(line.get_linewidth(), line.get_alpha()) for line in figure.axes[0].lines if len(line.get_xdata())]
    assert looks == [(2.5, 0.35), (1, 1.0)] * 2, "a line and its control, for each penalty"
    assert "pale: lies below another line" in figure.axes[0].get_legend_handles_labels()[1]


def test_markdown_compares_masks_with_and_without_the_diagonal() -> None:
    found = dam_markdown(controlled(), positions()).splitlines()
    start = found.index("With the diagonal and without it, as in the last table of Shi et al. (2021):")
    assert found[start + 2 : start + 6] == [
        "| run | masked, % | without it | accuracy | without it | difference from the mask with it [paired] |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| penalty-0.1 | 70.0 | 71.0 | 0.800 [0.700, 0.900] | 0.850 [0.700, 0.900] | 0.050 [-0.020, 0.120], p 0.2 |",
        "",
    ]
    assert "difference from the mask with it" not in dam_markdown(sweep(), positions())


def test_masks_that_became_denser_without_the_diagonal_are_compared_too() -> None:
    """The two are learned apart: of three pairs one was shown, since the other controls happened to mask less."""
    denser = controlled().assign(sparsity=[0.0, 0.7, 0.95, 0.65])
    found = dam_markdown(denser, positions())
    assert "| penalty-0.1 | 70.0 | 65.0 |" in found
    assert "the diagonal in every head" not in found


def test_a_mask_that_closes_the_diagonal_anyway_is_named() -> None:
    closed = positions().astype({"kept": float})
    closed.loc[closed["class"] == "diagonal", "kept"] = 0.0
    found = dam_markdown(controlled(), closed)
    assert "\npenalty-0.1 closes the diagonal in every head: the two differ by how they were trained alone.\n" in found
    assert "every head" not in dam_markdown(sweep(), closed)


def test_a_strange_task_stays_in_the_figure() -> None:
    figure = quality_by_sparsity(sweep().assign(task="".join(HOSTILE)))
    assert figure is not None
    figure.canvas.draw()
    check_edges(figure)


def test_importance_is_the_mean_over_heads() -> None:
    figure = importance_by_place(positions())
    assert figure is not None
    classes, offsets = figure.axes
    assert sorted({round(bar.get_height(), 6) for bar in classes.patches}) == [0.25, 0.65]
    for line, p in zip(offsets.lines, (0.6, 0.2), strict=True):
        assert line.get_ydata().tolist() == pytest.approx([p / (1 + k) for k in range(4)])


def test_what_was_not_learned_is_hatched_and_named() -> None:
    rows = positions()
    unknown = (rows["class"] == "special") | (rows["offset"] >= 2)
    figure = importance_by_place(rows.assign(p=rows["p"].mask(unknown)))
    assert figure is not None
    classes, offsets = figure.axes
    hatched = [bar for bar in classes.patches if bar.get_hatch()]
    assert len(hatched) == 2, "a bar for each λ"
    assert {round(bar.get_x() + bar.get_width() / 2) for bar in hatched} == {0}
    ends = [(span.get_x(), span.get_x() + span.get_width()) for span in offsets.patches if span.get_hatch()]
    assert ends[:2] == [(1.5, 2.5), (2.5, 3)], "up to the last distance"
    assert "not learned" in " ".join(text.get_text() for text in figure.legends[0].get_texts())
    without = importance_by_place(rows.assign(p=rows["p"].mask(rows["offset"] == 0)))
    assert without is not None
    ends = [(span.get_x(), span.get_x() + span.get_width()) for span in without.axes[1].patches if span.get_hatch()]
    assert set(ends) == {(-0.5, 0.5)}, "not what lies between it and what is beyond the texts"
    far = importance_by_place(rows.assign(p=rows["p"].mask(rows["offset"] >= 2)))
    assert far is not None
    for drawn in (figure, far):
        assert [patch.get_hatch() for patch in drawn.legends[0].get_patches()] == ["////"], "as it is drawn"
    whole = importance_by_place(positions())
    assert whole is not None
    assert not any(bar.get_hatch() for axes in whole.axes for bar in axes.patches)
    assert whole.legends[0].get_patches() == []
    table = dam_markdown(sweep(), rows.assign(p=rows["p"].mask(unknown)))
    assert table.count("| not learned |") == 2


def test_distances_that_few_texts_have_are_dotted() -> None:
    rows = positions()
    figure = importance_by_place(rows.assign(texts=np.where(rows["offset"] >= 2, 0.4, 1.0)))
    assert figure is not None
    solid, dotted, *_ = figure.axes[1].lines
    assert np.isfinite(solid.get_ydata()).tolist() == [True, True, False, False]
    assert dotted.get_linestyle() == ":"
    assert dotted.get_xdata().tolist() == [1, 2, 3]
    assert dotted.get_ydata().tolist() == pytest.approx([0.6 / (1 + k) for k in (1, 2, 3)])
    assert "fewer than half" in " ".join(text.get_text() for text in figure.legends[0].get_texts())


def test_pictures_of_p_show_what_was_learned_up_to_the_longest_text() -> None:
    """Texts have at most 5 of 12 tokens; the first and the last one are held open."""
    rows = positions()
    rows.loc[rows["class"] == "special", "p"] = np.nan
    learned = known_positions(rows, "penalty-0.1", 12)
    assert np.flatnonzero(learned.any(axis=0)).tolist() == [1, 2, 3, 4]
    assert np.array_equal(learned, np.logical_and.outer(learned.any(axis=0), learned.any(axis=0)))
    rows.loc[rows["class"] == "diagonal", "p"] = np.nan
    assert not known_positions(rows, "penalty-0.1", 12).diagonal().any()
    drawn = dict(dam_figures({"positions": rows}, [("penalty-0.1", *made(n=12))]))
    figure = drawn["p_penalty-0.1"]
    assert figure is not None
    shown = np.ma.getmaskarray(figure.axes[0].images[0].get_array())
    assert shown.shape == (5, 5)
    assert np.array_equal(shown[1:, 1:], np.eye(4, dtype=bool))
    assert shown[0].all()
    mask = drawn["mask_penalty-0.1"]
    assert mask is not None
    assert mask.axes[0].images[0].get_array().shape == (5, 5)
    for titled in (figure, mask):
        assert "up to position 4 of 11, the last that was learned" in titled.texts[0].get_text()
    nothing = rows.assign(p=np.nan)
    figure = dict(dam_figures({"positions": nothing}, [("penalty-0.1", *made(n=12))]))["p_penalty-0.1"]
    assert figure is not None
    assert np.ma.getmaskarray(figure.axes[0].images[0].get_array()).shape == (12, 12)


@pytest.mark.parametrize(("layers", "hatched"), [((1,), [0, 2]), ((0, 2), [1]), ((0, 1, 2), []), ((), [])])
def test_layers_that_have_no_mask_are_hatched(layers: tuple[int, ...], hatched: list[int]) -> None:
    """Layers outside of --layers were drawn as if they had learned that all positions stay; () is one mask for all."""
    parts = [positions().assign(layer=layer) for layer in layers] or [positions().assign(layer=np.nan)]
    drawn = dict(dam_figures({"positions": pd.concat(parts)}, [("penalty-0.1", *made(layers=3, n=5))]))
    for name in ("mask_penalty-0.1", "p_penalty-0.1"):
        figure = drawn[name]
        assert figure is not None
        empty = [np.ma.getmaskarray(axes.images[0].get_array()).all() for axes in figure.axes if axes.images]
        assert np.flatnonzero(np.reshape(empty[:9], (3, 3)).all(axis=1)).tolist() == hatched
    mask = drawn["mask_penalty-0.1"]
    assert mask is not None
    assert ("hatched: layers without a mask" in mask.texts[0].get_text().replace("\n", " ")) == bool(hatched)


def test_offsets_that_were_read_from_a_file_stand_in_the_order_of_numbers() -> None:
    rows = positions()
    far = [rows[rows["class"] == "offset"].assign(offset=k, p=0.1) for k in (10, 100, 20)]
    figure = importance_by_place(pd.concat([rows, *far]).astype({"offset": str}).replace({"offset": {"nan": ""}}))
    assert figure is not None
    for line in figure.axes[1].lines:
        assert line.get_xdata().tolist() == [0, 1, 2, 3, 10, 20, 100]


def test_tables_without_rows_give_no_figure() -> None:
    assert quality_by_sparsity(sweep().iloc[:0]) is None
    assert importance_by_place(positions().iloc[:0]) is None


@pytest.mark.parametrize(("layers", "heads"), rest_slow_rows([(3, 2), (1, 12), (1, 3), (2, 12), (1, 16)], 2))
def test_a_picture_has_a_map_for_every_head(layers: int, heads: int) -> None:
    """White where attention stays, first position at the upper left."""
    probabilities, stays = made(layers, heads)
    figure = mask_picture(stays.numpy().astype(float), "title", KEPT)
    assert len(figure.axes) == layers * heads
    names = [axes.get_title() for axes in figure.axes]
    expected = [f"head {h}" if layers == 1 else f"{layer}.{h}" for layer in range(layers) for h in range(heads)]
    assert names == expected
    for axes, kept in zip(figure.axes, stays.flatten(0, 1), strict=True):
        (image,) = axes.images
        assert np.array_equal(image.get_array(), kept.numpy().astype(float))
        assert image.to_rgba(1.0)[:3] == (1.0, 1.0, 1.0)
        assert axes.yaxis_inverted()
    assert [label.get_text() for label in figure.axes[-1].get_xticklabels()] == ["0", "4"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["0", "4"]
    for axes in figure.axes:
        box = axes.get_position()
        assert 0 <= box.x0 < box.x1 <= 1
        assert 0 <= box.y0 < box.y1 <= 1
    assert len(mask_picture(probabilities.numpy(), "title", IMPORTANCE).axes) == layers * heads + 1


def test_without_masks_tables_alone_are_written(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", command="train-dam", model="m") as run:
        run.start({"arguments": {}})
        write_dam(run, {"sweep": sweep(), "positions": positions()}, [], ["P of *most* is unsettled.", "Frozen: all."])
        run.finish({})
    assert (tmp_path / "run" / "sweep.csv").exists()
    notes = "\n## Notes\n\n- P of \\*most\\* is unsettled.\n- Frozen: all.\n"
    written = (tmp_path / "run" / "results.md").read_text(encoding="utf-8")
    assert written == dam_markdown(sweep(), positions()) + notes
    assert not (tmp_path / "run" / "figures").exists()


def test_markdown_has_a_line_for_every_run_and_p_by_class() -> None:
    unknown = dict.fromkeys(("ci_low", "ci_high", "delta_low", "delta_high", "p_value"), np.nan)
    loss = sweep().assign(metric="loss", value=[2.0, 3.0, 4.0], delta=[np.nan, 1.0, 2.0], **unknown)
    found = dam_markdown(pd.concat([sweep(), loss], ignore_index=True), positions()).splitlines()
    assert found[2] == "## rte by m [95 % interval over examples]"
    assert found[4:9] == [
        "| run | masked, % | masked in texts, % | accuracy | difference from plain [paired] | loss "
        "| difference from plain [paired] |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| plain | – | – | 0.900 [0.800, 1.000] | – | 2.000 | – |",
        "| penalty-0.1 | 70.0 | 35.0 | 0.800 [0.700, 0.900] | -0.100 [-0.200, 0.000], p 0.04 | 3.000 | 1.000 |",
        "| penalty-1 | 95.0 | 47.5 | 0.600 [0.500, 0.700] | -0.300 [-0.400, -0.200], p < 0.001 | 4.000 | 2.000 |",
    ]
    assert found[-2:] == [
        "| penalty-0.1 | 0.650 (100%) | 0.650 (100%) | 0.650 (100%) | 0.650 (100%) |",
        "| penalty-1 | 0.250 (0%) | 0.250 (0%) | 0.250 (0%) | 0.250 (0%) |",
    ]


def test_the_overview_has_a_row_for_every_run() -> None:
    recorded = RecordedRun(Path("folder"), "run", {"command": "train-dam"}, {"sweep": sweep()})
    (table,) = REPORT.overviews([recorded])
    assert len(table.rows) == 3
    assert REPORT.overviews([]) == []


def test_pictures_of_the_masks_that_lie_in_the_folder(tmp_path: Path) -> None:
    p, allowed = made()
    for name in ("penalty-0.1", "penalty-1"):
        (tmp_path / name).mkdir()
        save_file({"allowed": allowed}, tmp_path / name / "mask.safetensors")
    save_file({"p": p}, tmp_path / "penalty-0.1" / PROBABILITIES)
    masks = {"penalty-0.1": "penalty-0.1/mask.safetensors", "penalty-1": "penalty-1/mask.safetensors"}
    tables = {"sweep": sweep().assign(mask=lambda t: t["run"].map(masks))}
    run = RecordedRun(folder=tmp_path, label="dam", record={"command": "train-dam"}, tables=tables)
    drawn = {name for name, figure in REPORT.figures(run) if figure is not None}
    # One mask has no probabilities beside it, and the run without a mask has neither.
    assert {name for name in drawn if "penalty" in name} == {"mask_penalty-0.1", "p_penalty-0.1"}
    (tmp_path / "penalty-0.1" / PROBABILITIES).write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"penalty-0\.1 does not hold a mask"):
        list(REPORT.figures(run))
