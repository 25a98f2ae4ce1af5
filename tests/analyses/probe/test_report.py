"""How probes are shown: scores, findings, the figure of weights and the cards of heads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from headlens.analyses.probe.report import REPORT, probe_records
from headlens.analyses.probe.tables import BEST_OFFSET, DISTANCES, EMBEDDED, PROBE, RIGHT_BRANCHING, UNIFORM
from headlens.errors import InputError
from headlens.runs.reading import RecordedRun

SCORES = pd.DataFrame(
    [
        ("m", PROBE, 100, 0.61, 0.55, 0.66, *[float("nan")] * 5),
        ("m", RIGHT_BRANCHING, 100, 0.2, 0.15, 0.25, 1, 0.41, 0.35, 0.45, 0.0009),
        ("m", BEST_OFFSET, 100, 0.26, 0.2, 0.3, -1, 0.35, 0.3, 0.4, 0.02),
        ("m", UNIFORM, 100, 0.1, 0.05, 0.15, float("nan"), 0.51, 0.45, 0.57, 0.0009),
    ],
    columns=[
        *("model", "method", "words", "uas", "ci_low", "ci_high", "baseline_offset"),
        *("delta", "delta_low", "delta_high", "p_value"),
    ],
)
WEIGHTS = pd.DataFrame(
    [("m", "encoder", layer, head, layer - head + 0.5, head) for layer in range(2) for head in range(3)],
    columns=["model", "stack", "layer", "head", "dep_to_head", "head_to_dep"],
)


# The same with word embeddings: the last columns are what these add.
WITH_EMBEDDINGS = pd.concat(
    [
        SCORES,
        pd.DataFrame(
            [
                ("m", EMBEDDED, 100, 0.77, 0.7, 0.8, float("nan"), -0.16, -0.2, -0.1, 0.001),
                ("m", DISTANCES, 100, 0.58, 0.5, 0.6, float("nan"), 0.03, -0.01, 0.06, 0.2),
            ],
            columns=SCORES.columns,
        ),
    ],
    ignore_index=True,
)
for _name, _numbers in (
    ("delta", (0.16, 0.57, 0.51, 0.67, float("nan"), 0.19)),
    ("delta_low", (0.1, 0.5, 0.5, 0.6, float("nan"), 0.15)),
    ("delta_high", (0.2, 0.6, 0.6, 0.7, float("nan"), 0.25)),
    ("p_value", (0.001, 0.001, 0.001, 0.001, float("nan"), 0.001)),
):
    WITH_EMBEDDINGS[f"embedded_{_name}"] = _numbers


def recorded(**tables: pd.DataFrame) -> RecordedRun:
    facts = {"command": "probe", "status": "finished"}
    return RecordedRun(Path("folder"), "run", facts, tables or {"probe": SCORES, "probe_weights": WEIGHTS})


def test_scores_beside_their_baselines() -> None:
    probe, following, best, uniform = probe_records(SCORES)
    assert probe["UAS"] == "0.610 [0.550, 0.660]"
    assert probe["probe − baseline"] == ""
    assert following["method"] == "right-branching (+1)"
    assert following["probe − baseline"] == "0.410 [0.350, 0.450], p < 0.001"
    assert best["method"] == "best offset (-1)"
    assert uniform["method"] == "uniform attention"
    (table,) = REPORT.overviews([recorded()])
    assert len(table.rows) == 4
    assert REPORT.overviews([]) == []


def test_embeddings_have_a_column_and_a_sentence_of_their_own() -> None:
    probe, *_, both, distances = probe_records(WITH_EMBEDDINGS)
    assert (probe["probe − this"], both["with embeddings − this"]) == ("", "")
    assert probe["with embeddings − this"] == "0.160 [0.100, 0.200], p 0.001"
    assert both["probe − this"] == "-0.160 [-0.200, -0.100], p 0.001"
    assert distances["with embeddings − this"] == "0.190 [0.150, 0.250], p 0.001"
    told = REPORT.findings(recorded(probe=WITH_EMBEDDINGS))
    assert told[0] == REPORT.findings(recorded())[0], "neither of them is a baseline of attention alone"
    assert told[1:] == [
        "m: attention and word embeddings together find the governor of 77.0 [70.0, 80.0] %; difference in percentage "
        "points: 16.0 [10.0, 20.0] to attention alone, 19.0 [15.0, 25.0] to distances and embeddings."
    ]


def test_the_finding_names_the_better_baseline() -> None:
    assert REPORT.findings(recorded()) == [
        "m: the attention of all heads together finds the governor of 61.0 [55.0, 66.0] % of 100 words (difference "
        "from best offset (-1): 35.0 [30.0, 40.0] percentage points)."
    ]
    unclear = SCORES.assign(delta_low=-0.01, sentences=1)
    assert REPORT.findings(recorded(probe=unclear))[0].startswith(
        "m: not significantly better than best offset (-1): the attention of all heads together finds the governor of "
        "61.0 [55.0, 66.0] % of 100 words of 1 held-out sentence (difference"
    )
    even = unclear.assign(delta=0.0, delta_high=0.01)
    told = "It is not significantly better than the same probe on uniform attention (0.0 [-1.0, 1.0])."
    assert REPORT.findings(recorded(probe=even))[0].endswith(f"percentage points). {told}")
    assert told[:10] not in REPORT.findings(recorded())[0]
    worse = unclear.assign(delta=-0.1, delta_low=-0.2, delta_high=-0.05)
    assert "It is significantly worse than the same probe on uniform" in REPORT.findings(recorded(probe=worse))[0]
    untested = unclear.assign(delta_low=np.nan, delta_high=np.nan)
    (told,) = REPORT.findings(recorded(probe=untested))
    assert "significantly" not in told
    assert told.startswith("m: not tested, on so few sentences, whether better than best offset (-1): the attention")
    assert "It is not tested, on so few sentences, whether better than the same probe on uniform attention" in told
    better = SCORES.assign(uas=SCORES["uas"].where(SCORES["method"] != UNIFORM, 0.27))
    assert "(difference from uniform attention: 51.0" in REPORT.findings(recorded(probe=better))[0]
    for method in (PROBE, [RIGHT_BRANCHING, BEST_OFFSET, UNIFORM]):
        lacking = SCORES[~SCORES["method"].isin([method] if isinstance(method, str) else method)]
        assert REPORT.findings(recorded(probe=lacking)) == []
    assert REPORT.findings(recorded(probe_weights=WEIGHTS)) == []


def test_both_directions_are_drawn_on_one_scale() -> None:
    ((name, figure),) = REPORT.figures(recorded())
    assert name == "probe_weights"
    assert not isinstance(figure, type(None))
    titles = [" ".join(axes.get_title(loc="left").split()) for axes in figure.axes]
    assert titles[:2] == ["m, encoder: dependent to governor", "m, encoder: governor to dependent"]
    assert len(figure.axes) == 3, "two panels and one bar"
    assert list(REPORT.figures(recorded(probe=SCORES))) == []
    assert REPORT.caption(name).title == "Weights of the attention probe"
    assert "significantly" not in figure.texts[0].get_text()


def test_the_title_says_of_a_probe_that_it_finds_no_more_than_its_baseline() -> None:
    unclear = recorded(probe=SCORES.assign(delta_low=-0.01), probe_weights=WEIGHTS)
    ((_, figure),) = REPORT.figures(unclear)
    assert figure is not None
    assert "\nm: not significantly better than best offset (-1)" in figure.texts[0].get_text()


def test_the_card_of_a_head_has_its_weights() -> None:
    series = REPORT.heads(recorded()).series
    assert [own.value for own in series] == ["dep_to_head", "head_to_dep"]
    assert REPORT.heads(recorded(probe=SCORES)).series == ()


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"probe": SCORES}, r"probe_weights\.csv is missing"),
        ({"probe": SCORES.assign(uas=2.0), "probe_weights": WEIGHTS}, "uas"),
        ({"probe": SCORES.assign(method="guess"), "probe_weights": WEIGHTS}, "method"),
        ({"probe": SCORES, "probe_weights": WEIGHTS.drop(columns="head_to_dep")}, "no column head_to_dep"),
    ],
)
def test_damaged_tables_are_refused(tables: dict[str, pd.DataFrame], message: str) -> None:
    REPORT.check(recorded())
    with pytest.raises(InputError, match=message):
        REPORT.check(recorded(**tables))
