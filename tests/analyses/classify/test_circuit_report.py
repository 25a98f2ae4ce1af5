"""Sentences, tables, maps and cards of what weights do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from headlens.analyses.classify.circuit_report import (
    circuit_figures,
    circuit_overviews,
    circuit_sentences,
    circuit_series,
    circuit_words,
    composition_map,
    composition_records,
    copying_map,
    copying_records,
)
from headlens.plots.style import named_after
from headlens.runs.reading import RecordedRun
from headlens.tables.circuit_tables import COMPOSITION, HEAD_CIRCUITS, LAYER_COMPOSITION, SINGULAR_DIRECTIONS


def circuits(model: str = "m", scores: tuple[float, ...] = (0.9, -0.2, 0.05, 0.3)) -> pd.DataFrame:
    """Two layers of two heads, with 0.1 as the bound of random ones."""
    keys = {"model": model, "stack": "decoder", "copying_random": 0.1, "matching_random": 0.1, "copying_top": 0.25}
    rows = [{**keys, "layer": n // 2, "head": n % 2, "copying": s, "matching": -s} for n, s in enumerate(scores)]
    return HEAD_CIRCUITS.frame(rows)


def pairs(model: str = "m") -> pd.DataFrame:
    other = {"other_stack": "decoder", "other_layer": 0, "random": 0.125}
    rows = [
        {"model": model, "stack": "decoder", "layer": 1, "head": head, "kind": kind, "other_head": n, **other}
        | {"composition": value}
        for head, kind, n, value in ((0, "Q", 1, 0.01), (1, "K", 0, 0.5), (0, "V", 1, 0.2))
    ]
    return COMPOSITION.frame(rows)


def layers(*names: str) -> pd.DataFrame:
    """Three layers of a decoder, and of a translation model also cross-attention."""
    rows = [
        {"model": name, "stack": stack, "layer": later, "kind": kind, "other_stack": "decoder", "other_layer": earlier}
        | {"pairs": 4, "mean": 0.0, "largest": 0.1 * later + 0.01 * earlier}
        for name in names
        for stack in ("decoder", "cross")
        for kind in ("QKV" if stack == "decoder" else "Q")
        for later in range(3)
        for earlier in range(later)
    ]
    return LAYER_COMPOSITION.frame(rows)


def directions() -> pd.DataFrame:
    keys = {"model": "m", "stack": "decoder", "layer": 0, "head": 1, "direction": 0, "share": 0.25}
    tokens = {"from_tokens": "a b", "to_tokens": "c <d>"}
    return SINGULAR_DIRECTIONS.frame([{**keys, **tokens, "circuit": c, "sign": s} for c in ("OV", "QK") for s in "+-"])


def run(**tables: pd.DataFrame) -> RecordedRun:
    return RecordedRun(Path("run"), "run", {"command": "classify", "status": "finished"}, tables)


def test_sentences_name_the_head_that_copies_most_and_the_pair_that_composes_most() -> None:
    assert circuit_sentences({"circuits": circuits(), "composition": pairs()}) == [
        "m: 2 of 4 heads have scores of copying above 0.10, as that of one in forty heads with random weights: on the "
        "whole, they write in the direction of what they read, 1 against it (below -0.10). The largest score is that "
        "of decoder.0.0, 0.90; of all logits of frequent tokens, it raises that of the token itself most for 25% of "
        "these.",
        "m: of all pairs of heads, the keys of decoder.1.1 read most of what another head writes, decoder.0.0: 0.50 "
        "above 0.12 of random directions (the largest of all; how large that is by chance was not tested).",
    ]
    (single,) = circuit_sentences({"circuits": circuits(scores=(0.9, 0.0))})
    assert "1 of 2 heads has a score of copying above 0.10" in single
    assert circuit_sentences({"circuits": circuits(scores=(np.nan, np.nan))}) == []
    assert circuit_sentences({}) == []


@pytest.mark.parametrize(("scores", "count"), [((0.103, 0.0, 0.05, 0.03), "1 of 4"), ((0.05, -0.2, 0, 0), "none of 4")])
def test_as_many_heads_as_by_chance_copy_nothing(scores: tuple[float, ...], count: str) -> None:
    (told,) = circuit_sentences({"circuits": circuits(scores=scores)})
    assert told.startswith(f"m: {count} heads ha")
    assert "which is no more than chance gives. The largest score is that of decoder.0.0" in told
    assert "they write" not in told
    assert ("above 0.1000" in told) == (scores[0] == 0.103), "scores that look alike have more digits"


@pytest.mark.parametrize(
    ("scores", "against"),
    [
        ((0.05, -0.2, -0.3, 0), "; 2 have one below -0.10, which is more, and write against what is read."),
        ((0.05, -0.2), "; 1 has one below -0.10, which is more, and writes against what is read."),
    ],
)
def test_heads_that_write_against_what_they_read_are_told_where_none_copies(
    scores: tuple[float, ...], against: str
) -> None:
    (told,) = circuit_sentences({"circuits": circuits(scores=scores)})
    assert f"which is no more than chance gives{against} The largest score" in told


def test_tables_have_the_highest_first_model_by_model() -> None:
    both = pd.concat([circuits(), circuits("other", (0.1, 0.2))], ignore_index=True)
    records = copying_records(both, 2)
    assert [(r["model"], r["head"]) for r in records] == [
        ("m", "decoder.0.0"),
        ("m", "decoder.1.1"),
        ("other", "decoder.0.1"),
        ("other", "decoder.0.0"),
    ]
    assert [r["reads with its"] for r in composition_records(pairs())] == ["keys", "values", "queries"]
    copying, composing = circuit_overviews([run(circuits=circuits(), composition=pairs())])
    assert (len(copying.rows), len(composing.rows)) == (4, 3)
    assert [len(table.rows) for table in circuit_overviews([run()])] == [0, 0]


@pytest.mark.figures(blank=True)
def test_maps_name_no_corpus_and_pale_what_random_heads_have() -> None:
    tables = {"circuits": circuits(), "layer_composition": layers("m")}
    drawn = dict(named_after("some corpus", circuit_figures(tables)))
    copying, composition = drawn["copying"], drawn["composition"]
    assert copying is not None
    assert composition is not None
    for figure in (copying, composition):
        assert "some corpus" not in figure.get_suptitle()
    assert "95 % of heads with random weights" in copying.get_supxlabel().replace("\n", " ")
    titles = [axes.get_title(loc="left").replace("\n", " ") for axes in composition.axes if axes.get_title(loc="left")]
    assert titles == ["m: queries of decoder", "m: keys of decoder", "m: values of decoder", "m: queries of cross"]
    assert copying_map(circuits(scores=(np.nan, np.nan))) is None
    assert composition_map(layers()) is None
    assert composition_map(layers("m", "other")) is not None
    assert dict(circuit_figures({})) == {}


@pytest.mark.figures
def test_cells_of_two_layers_hold_the_largest_composition() -> None:
    figure = composition_map(layers("m"))
    assert figure is not None
    panel = next(axes for axes in figure.axes if "keys" in axes.get_title(loc="left"))
    assert panel.get_xlabel() == "earlier layer, decoder"
    told = {(text.get_position()[0] // 1, text.get_position()[1] // 1): text.get_text() for text in panel.texts}
    assert {place: text for place, text in told.items() if text} == {(0, 1): ".10", (0, 2): ".20", (1, 2): ".21"}


def test_hundredths_of_composition_do_not_look_like_much() -> None:
    for largest, end in ((0.02, 0.1), (0.4, 0.4)):
        table = layers("m")
        figure = composition_map(table.assign(largest=table["largest"] * largest / table["largest"].max()))
        assert figure is not None
        (bar,) = (axes for axes in figure.axes if axes.get_label() == "<colorbar>")
        assert bar.get_ylim() == (0, pytest.approx(end))
        assert "by chance was not tested" in figure.texts[-1].get_text().replace("\n", " ")


def test_cards_have_scores_and_directions() -> None:
    copying, matching = circuit_series({"circuits": circuits()})
    assert (copying.value, matching.value) == ("copying", "matching")
    assert copying.diverging
    # noise is not drawn as strong as what is as large as can be
    assert (copying.high, matching.high) == (1, 1)
    assert copying.rows["sure"].tolist() == (circuits()["copying"].abs() > circuits()["copying_random"]).tolist()
    assert set(copying.beside.values()) == {"copying_random"}
    assert [s.key for s in circuit_series({"circuits": circuits().assign(copying=np.nan)})] == ["matching"]
    table = pd.concat([directions(), directions().assign(direction=1)], ignore_index=True)
    (words,) = circuit_words({"circuit_directions": table})
    assert len(words.rows) == 4
    assert words.rows["text"].tolist()[:3] == [
        "OV + (25% of all): attends to a b → writes c <d>",
        "OV - (25% of all): attends to a b → writes c <d>",
        "QK + (25% of all): queries a b → keys c <d>",
    ]
    assert circuit_series({}) == circuit_words({}) == []
