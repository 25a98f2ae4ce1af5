"""What a page tells about single heads, as it is handed to the browser."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_gates import Made, gate_tables, write_prune
from made_runs import ablation_tables, classify_tables, write_ablation, write_classification, write_relevance

from headlens.analyses.attend.report import REPORT
from headlens.analyses.report.registry import report_of
from headlens.errors import InputError
from headlens.maps.stored_maps import LABELS, WEIGHTS, read_maps, write_maps
from headlens.pages.head_cards import LONGEST, HeadFacts, HeadSeries, HeadShares, HeadWords, SentenceMap, head_page
from headlens.relevance_propagation.shares import layer_signs
from headlens.runs.folder import RunFolder
from headlens.runs.reading import RecordedRun, read_recorded

ROWS = pd.DataFrame(
    [("m", "encoder", 0, 0, 0.123456, 0.1), ("m", "encoder", 1, 2, -3.0, np.nan), ("m", "cross", 0, 1, np.nan, 0.5)],
    columns=["model", "stack", "layer", "head", "value", "low"],
)
SERIES = HeadSeries("v", "value <b>", "about", ROWS, "value", ("low", "low"))


def facts(folder: Path) -> HeadFacts:
    run = read_recorded(folder, "run")
    return report_of(run.command).heads(run)


def test_what_numbers_are_compared_with_goes_with_them() -> None:
    """Shares say little without those of uniform attention, and colours are those of the figure: to the same end."""
    rows = ROWS.assign(words=[12345, 7, 9])
    series = HeadSeries("v", "v", "about", rows, "value", high=1.0, count="words", beside={"uniform attention": "low"})
    (model,) = head_page([("run", HeadFacts([series]))])["models"]
    (shown,) = model["series"]
    assert shown["counts"]["encoder"][0][0] == 12345, "not rounded as measures are"
    assert shown["high"] == 1.0
    assert shown["beside"] == [
        ["uniform attention", {"encoder": [[0.1, None, None], [None, None, None]], "cross": [[None, 0.5]]}]
    ]


def test_series_as_grids() -> None:
    hiding = HeadSeries("v", "value <b>\x1b", "about", ROWS.assign(model="m\x1b"), "value", ("low", "low"))
    page = head_page([("run\x1b", HeadFacts([hiding]))])
    (model,) = page["models"]
    assert (model["name"], model["stacks"]) == (r"m\x1b", {"encoder": [2, 3], "cross": [1, 2]})
    (series,) = model["series"]
    assert (series["title"], series["run"]) == (r"value <b>\x1b", r"run\x1b")
    # six digits, more than the page shows; None where there is no head or no number
    assert series["values"]["encoder"] == [[0.123456, None, None], [None, None, -3.0]]
    assert series["lows"]["encoder"] == series["highs"]["encoder"] == [[0.1, None, None], [None, None, None]]
    assert series["values"]["cross"] == [[None, None]]
    assert len(page["scales"]["diverging"]) == 17
    assert page["scales"]["sequential"][-1] == "#fde725"
    json.dumps(page, allow_nan=False)


@pytest.mark.parametrize(
    ("findings", "first"),
    [
        ([], ["encoder", 1, 2]),  # the largest number
        (["m: all rest.", "m, encoder: encoder.0.0 finds it, encoder.1.1 too."], ["encoder", 0, 0]),
        (["mm: encoder.0.0 does.", "m: encoder.7.7 is not there, cross.0.1 is."], ["cross", 0, 1]),
    ],
)
def test_the_head_that_is_shown_at_first(findings: list[str], first: list[object]) -> None:
    (model,) = head_page([("run", HeadFacts([SERIES]))], findings=findings)["models"]
    assert model["first"] == first


def test_nothing_without_a_number() -> None:
    empty = HeadSeries("v", "v", "", ROWS.assign(value=np.nan), "value")
    words = HeadWords("w", ROWS.assign(text="t"))
    assert head_page([]) == head_page([("run", HeadFacts([empty], [words]))]) == {}


def test_words_shares_and_maps_of_the_models_that_are_there() -> None:
    words = HeadWords("w", pd.concat([ROWS.assign(text=["a", "b", "c"]), ROWS[:1].assign(text="d")]))
    shares = pd.DataFrame({"category": ["<-8", "0", "0"], "share": [0.12345, 1.0, np.nan]})
    shares = pd.concat(
        [ROWS.iloc[[0, 0, 1]][["model", "stack", "layer", "head"]].reset_index(drop=True), shares], axis=1
    )
    weights = np.full((1, 2, 2, 3), 0.5)
    weights[0, 0, 1] = [0, 1, 1 / 3]
    weights[0, 1] = np.nan
    maps = [SentenceMap("m", "encoder", "ab", "abc", weights), SentenceMap("other", "encoder", "ab", "abc", weights)]
    long = SentenceMap("m", "encoder", "a", "k" * (LONGEST + 1), np.zeros((1, 1, 1, LONGEST + 1)))
    found = HeadFacts([SERIES], [words], [HeadShares("s", shares)], [*maps, long])
    (model,) = head_page([("run", found)])["models"]
    assert model["words"][0]["heads"] == {"encoder.0.0": ["a", "d"], "encoder.1.2": ["b"], "cross.0.1": ["c"]}
    assert model["shares"][0]["categories"] == ["<-8", "0"]
    assert model["shares"][0]["heads"] == {"encoder.0.0": [0.123, 1.0], "encoder.1.2": [0.0, 0.0]}
    (shown,) = model["maps"]
    # A head that was cut out of the model has no map.
    assert list(shown["heads"]) == ["encoder.0.0"]
    assert list(base64.b64decode(shown["heads"]["encoder.0.0"])) == [128, 128, 128, 0, 255, 85]
    assert (shown["queries"], shown["keys"]) == (["a", "b"], ["a", "b", "c"])


def test_of_a_classification(tmp_path: Path) -> None:
    found = facts(write_classification(tmp_path / "run"))
    role, confidence, *_ = found.series
    assert [list(role.categories)[int(code)] for code in role.rows["code"]] == [
        *("positional", "syntactic", "no role", "no role", "rare", "no role")
    ]
    assert role.rows["letters"].tolist() == ["−1", "nsubj↑", "", "", "rare", ""]
    assert confidence.rows["confidence"].tolist() == classify_tables()["heads"]["confidence"].tolist()
    (margin,) = [s for s in found.series if s.key == "margin"]
    assert margin.rows["gain"].iloc[1] == pytest.approx(0.8 - 0.4)
    assert margin.beside == {"uniform attention": "even_gain"}, "of the same relation, from the same offset"
    roles, relations = found.words
    assert roles.rows["text"].tolist()[:3] == ["positional(-1)", "syntactic(nsubj dep->head)", "none"]
    best = relations.rows[(relations.rows["layer"] == 0) & (relations.rows["head"] == 1)]["text"].tolist()
    assert best[0] == "nsubj ↑ 80.0 % [79.0, 81.0] of 812 cases, a fixed offset 40.0 %, significant"
    assert len(best) == 4
    assert found.maps == []


def test_of_an_ablation_the_change_as_on_the_map(tmp_path: Path) -> None:
    zero, alone = facts(write_ablation(tmp_path / "run")).series
    table = ablation_tables()["ablation"]
    assert zero.title == "sst2: change in accuracy when it is removed"
    assert alone.title == "sst2: change in accuracy when it is the only one"
    own = table[table["mode"] == "zero"]
    assert zero.rows[zero.value].tolist() == own["delta"].tolist()
    assert zero.bounds == ("ci_low", "ci_high")
    assert zero.rows[zero.sure].tolist() == (own["p_holm"] < 0.05).astype(float).tolist()
    assert not zero.worse
    # Of a metric that is better when it is low, what is added is red.
    less = facts(write_ablation(tmp_path / "loss", metric="perplexity")).series[0]
    assert less.rows[less.value].tolist() == own["delta"].tolist()
    assert less.worse


def test_of_relevance_and_gates(tmp_path: Path) -> None:
    found = facts(write_relevance(tmp_path / "relevance"))
    shares = ["relevance (epsilon)", "relevance (taylor)"]
    assert [s.title for s in found.series] == [name for t in shares for name in (f"{t}, contribution", t)]
    assert [len(s.rows) for s in found.series] == [6] * 4
    (layers,) = found.words
    assert layers.title == "Its layer as a whole, by relevance (epsilon)", "taylor gives magnitudes"
    of_epsilon = found.series[0].rows
    assert [line.split(":")[0] for line in layers.rows["text"]] == list(layer_signs(of_epsilon))
    sums = of_epsilon.groupby("layer")["raw"].transform("sum")
    assert all((total < 0) == line.startswith("opposes") for total, line in zip(sums, layers.rows["text"], strict=True))
    made = Made(shapes={"encoder": (2, 3)}, penalties=(0.01, 0.1), steps=(0, 5, 10))
    found = facts(write_prune(tmp_path / "prune", made))
    assert len(found.series) == 2
    assert all(len(s.rows) == 6 for s in found.series)
    assert set(found.series[0].rows["step"]) == {10}
    (before,) = found.words
    roles = gate_tables(made)["roles"].drop_duplicates(["layer", "head"])["role"]
    assert before.rows["text"].tolist() == [role or "none" for role in roles]


def recorded(folder: Path) -> RecordedRun:
    return RecordedRun(folder, "run", {"command": "attend", "models": [{"model": "m"}]}, {})


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    maps = [
        SentenceMap("1", "encoder", "abc", "abc", np.eye(3)[None, None]),
        SentenceMap("2", "encoder", "ab", "ab", np.zeros((1, 1, 2, 2)), state=1, sentence=2),
    ]
    with RunFolder.create(tmp_path / "run", command="attend", model="m") as run:
        run.start({})
        write_maps(run, maps)
        run.finish({})
    return tmp_path / "run"


def test_of_sentences(sentences: Path) -> None:
    (first,) = REPORT.heads(recorded(sentences)).maps
    _, second = read_maps(recorded(sentences), str)
    assert (second.model, second.state, second.sentence) == ("2", 1, 2)
    assert (first.model, first.stack, first.queries) == ("m", "encoder", ("a", "b", "c"))
    assert np.array_equal(first.weights, np.eye(3)[None, None])
    assert second.weights.shape == (1, 1, 2, 2)
    assert [own.model for own in read_maps(recorded(sentences), "x".__add__)] == ["x1", "x2"]
    assert read_maps(recorded(sentences.parent), str) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (LABELS, b"{"),
        (LABELS, b"[1]"),
        (LABELS, b'{"1": {"encoder": {"queries": ["a"], "keys": ["a"]}}}'),
        (LABELS, b'{"3": {"encoder": {"queries": ["a"], "keys": ["a"]}}}'),
        (LABELS, b'{"1": {"encoder": ["a"]}}'),
        (WEIGHTS, b"x" * 20),
    ],
)
def test_files_that_hold_no_maps(sentences: Path, name: str, content: bytes) -> None:
    (sentences / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"{WEIGHTS} and {LABELS} do not hold attention on sentences"):
        REPORT.heads(recorded(sentences))
