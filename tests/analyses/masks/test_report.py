"""Pictures of fixed patterns."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from tiers import rest_slow

from headlens.analyses.masks.options import PAPER, MasksRequest
from headlens.analyses.masks.recipe import sparsity_table
from headlens.analyses.masks.report import REPORT, mask_figures, mask_sentences, pattern_pictures
from headlens.analyses.report.registry import reports
from headlens.attention_masks.patterns import parse_pattern
from headlens.errors import OptionError
from headlens.statistics.intervals import wilson
from headlens.tables.mask_tables import SPARSITY


def table(*texts: str, n: int = 12) -> pd.DataFrame:
    return sparsity_table({text: parse_pattern(text) for text in texts}, n)


def test_commands_know_their_kind() -> None:
    assert reports()["masks"] is REPORT
    names = [name for name, _ in mask_figures({"sparsity": table("star")})]
    assert names == ["patterns"]
    assert all(name in REPORT.captions for name in names)
    assert list(mask_figures({})) == []


@pytest.mark.usefixtures("laid_out")
@pytest.mark.parametrize("texts", [("star",), ("star", "window:3")])
def test_the_title_leaves_room_for_names_of_patterns(texts: tuple[str, ...]) -> None:
    figure = pattern_pictures(table(*texts))
    assert figure is not None
    figure.draw_without_rendering()
    (title,) = figure.texts
    names = [axes.title if axes.title.get_text() else axes._left_title for axes in figure.axes]
    assert all(name.get_text() for name in names)
    assert all(name.get_window_extent().y1 <= title.get_window_extent().y0 for name in names)


@pytest.mark.parametrize("texts", [("star",), ("star", "window:3"), tuple(PAPER)])
@pytest.mark.parametrize("n", rest_slow([1, 2, 12, 128], [1, 12]))
def test_white_is_where_a_query_may_look(texts: tuple[str, ...], n: int) -> None:
    figure = pattern_pictures(table(*texts, n=n))
    assert figure is not None
    assert len(figure.axes) == len(texts)
    for axes, text in zip(figure.axes, texts, strict=True):
        image = np.asarray(axes.images[0].get_array())
        assert np.array_equal(image.astype(bool), parse_pattern(text).allowed(n))
        assert axes.images[0].to_rgba(1.0)[:3] == (1.0, 1.0, 1.0)
        # the first query is on top
        assert axes.images[0].get_extent() == [-0.5, n - 0.5, n - 0.5, -0.5]
        assert axes.get_title(loc="left").startswith(text)
    assert figure.axes[0].get_ylabel() == "query"


@pytest.mark.parametrize("text", ["full", "star", "window:2"])
def test_patterns_of_a_decoder_are_counted_and_drawn_below_the_diagonal(text: str) -> None:
    n, pattern = 9, parse_pattern(text)
    rows = sparsity_table({text: pattern}, n, causal=True)
    seen = np.tril(pattern.allowed(n))
    assert rows["allowed"].tolist() == [seen.sum(), seen.sum() - n]
    assert rows["sparsity"].tolist() == pytest.approx([1 - allowed / 45 for allowed in rows["allowed"]])
    assert rows["paper_sparsity"].isna().all()
    figure = pattern_pictures(rows)
    assert figure is not None
    image = figure.axes[0].images[0].get_array()
    assert np.array_equal(np.ma.getmaskarray(image), ~np.tri(n, dtype=bool))
    assert np.array_equal(image.filled(0).astype(bool), seen)
    assert "grey: later tokens" in figure.texts[0].get_text().replace("\n", " ")


def test_titles_tell_both_sparsities() -> None:
    figure = pattern_pictures(table("star", n=128))
    assert figure is not None
    assert figure.axes[0].get_title(loc="left") == "star\n96.1 % masked (96.9 no diagonal)"


def test_masks_without_a_pattern_are_not_drawn() -> None:
    rows = table("star").assign(pattern=None)
    assert pattern_pictures(rows) is None
    assert pattern_pictures(rows.drop(columns="pattern")) is None


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("constant", [True, False])
def test_a_model_of_one_answer_is_not_called_alike_under_masks(constant: bool, seeds: int) -> None:
    about = {"model": "m", "task": "sst2", "metric": "accuracy", "layers": "all", "control": "kept", "n": 50}
    rows = [
        about
        | {"pattern": pattern, "seed": seed, "sparsity": 0.5, "sparsity_texts": 0.5, "same_answer": constant}
        | dict.fromkeys(("value", "ci_low", "ci_high"), 0.52)
        | dict.fromkeys(("delta", "delta_low", "delta_high"), 0.0)
        for pattern in ("full", "star", "window:3")
        for seed in range(seeds)
    ]
    told = mask_sentences({"masks": pd.DataFrame(rows)})
    assert ("the model gives the same answer to all 50 examples" in told[1]) == constant
    assert ("all alike" in told[1]) != constant
    assert ("nothing can be measured about masked positions with accuracy." in told[1]) == constant


@pytest.mark.parametrize(
    ("metric", "chance", "told"),
    [
        *(("accuracy", 0.5, True), ("accuracy", 0.7, False), ("accuracy", np.nan, True)),
        *(("loss", 0.7, False), ("loss", 0.9, True)),
    ],
)
def test_a_model_no_better_than_guesses_has_nothing_to_lose(metric: str, chance: float, told: bool) -> None:
    about = {"model": "m", "task": "sst2", "metric": metric, "layers": "all", "control": "kept", "n": 50, "seed": 0}
    about |= {"sparsity": 0.5, "sparsity_texts": 0.5, "same_answer": False, "chance": chance}
    numbers = {"value": 0.7, "ci_low": 0.6, "ci_high": 0.8, "delta": -0.02, "delta_low": -0.2, "delta_high": 0.1}
    rows = [about | numbers | {"pattern": pattern} for pattern in ("full", "star", "window:3")]
    text = mask_sentences({"masks": pd.DataFrame(rows)})[1]
    assert "a change of -0.02" in text
    assert (("may lose up to" in text) or ("may rise by" in text)) == told


@pytest.mark.parametrize(
    ("right", "constant", "told"),
    [
        (
            (28, 28, 30),
            (True, True, False),
            "In 3 of 3 seeds it is not shown to be better than guessing (in 2, it ",
        ),
        (
            (28, 45, 44),
            (False, False, False),
            "In 1 of 3 seeds it is not shown to be better than guessing, so that",
        ),
        ((44, 45, 44), (False, False, False), ""),
        ((28,), (False,), ""),  # whose note comes first
    ],
)
def test_seeds_in_which_a_model_guesses_are_told(right: tuple[int, ...], constant: tuple[bool, ...], told: str) -> None:
    """A model that had collapsed in two of three seeds was said to change by 0.000 under a mask."""
    about = {"model": "m", "task": "sst2", "metric": "accuracy", "layers": "all", "control": "kept", "n": 50}
    about |= {"sparsity": 0.5, "sparsity_texts": 0.5, "chance": 0.56, "delta": 0.0, "delta_low": 0.0, "delta_high": 0.0}
    rows = []
    for seed, (count, same) in enumerate(zip(right, constant, strict=True)):
        low, high = (float(end) for end in wilson(np.array(count), np.array(50)))
        numbers = {"value": count / 50, "ci_low": low, "ci_high": high, "same_answer": same, "seed": seed}
        rows += [about | numbers | {"pattern": pattern} for pattern in ("full", "star")]
    (first, *_) = mask_sentences({"masks": pd.DataFrame(rows)})
    assert ("not shown to be better than guessing" in first) == bool(told)
    assert told in first


def test_the_table_is_the_contract() -> None:
    rows = table("star", "random:3", n=128)
    assert rows.columns.tolist() == SPARSITY.names
    assert SPARSITY.names[:6] == ["mask", "layer", "head", "diagonal", "n", "sparsity"]
    assert rows["diagonal"].tolist() == [True, False] * 2
    assert rows["allowed"].tolist() == [634, 506, 384, 384]
    assert (rows["masked"] + rows["allowed"] == 128**2).all()
    assert (rows["sparsity"] == rows["masked"] / 128**2).all()
    assert rows["paper_sparsity"].tolist()[:2] == [0.961, 0.969]
    assert rows["paper_sparsity"].isna().tolist() == [False, False, True, True]
    assert table("star", n=64)["paper_sparsity"].isna().all()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"length": 0}, "--length 0 is out of range"),
        ({"length": 4096}, "--length 4096 is out of range"),
        ({"no_diagonal": True}, "--mask-rules no-diagonal only applies together with --pattern"),
        ({"pattern": ("sta",)}, "Did you mean star"),
    ],
)
def test_requests_that_cannot_be_meant(request_: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        MasksRequest(**request_)  # type: ignore[arg-type]
