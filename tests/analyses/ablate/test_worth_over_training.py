"""What heads are worth by step, counted again with pandas, and what of it is drawn and said."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_runs import ablation_tables

from headlens.analyses.ablate.ablation_findings import findings_of
from headlens.analyses.ablate.report import ablation_figures
from headlens.analyses.ablate.worth_over_training import worth_by_step, worth_over_training
from headlens.tables.shared_columns import VERDICTS

STEPS = (0, 50, 100)
MODELS: list[Mapping[str, Any]] = [
    {
        "model": f"checkpoint-{step}",
        "name": f"run/checkpoint-{step}",
        "chance": {"accuracy": 0.5},
        "evaluation": {
            "accuracy": {"value": 0.5 + step / 400, "ci_low": 0.4 + step / 400, "ci_high": 0.6 + step / 400}
        },
    }
    for step in STEPS
]


@pytest.fixture
def ablation() -> pd.DataFrame:
    """Of the first model nothing is said: it guesses."""
    found = pd.concat([ablation_tables(model["model"], seed=n)["ablation"] for n, model in enumerate(MODELS)])
    found.loc[found["model"] == "checkpoint-0", "verdict"] = None
    last = (found["model"] == "checkpoint-100") & (found["mode"] == "zero") & (found["layer"] == 1)
    found.loc[last, "verdict"] = "needed"
    return found.reset_index(drop=True)


def test_heads_are_counted_by_verdict_where_there_are_any(ablation: pd.DataFrame) -> None:
    records = worth_by_step(ablation, MODELS[::-1])
    assert [row["step"] for row in records] == [0, 50, 100]
    assert all(math.isnan(records[0][name]) for name in VERDICTS)
    swept = ablation[ablation["mode"] == "zero"]
    for row in records[1:]:
        counts = swept[swept["model"] == row["model"]]["verdict"].value_counts()
        assert {name: row[name] for name in VERDICTS} == counts.reindex(VERDICTS, fill_value=0).to_dict()
    assert records[2]["needed"] == 4
    assert [row["value"] for row in records] == [0.5, 0.625, 0.75]
    assert worth_by_step(ablation, MODELS[:1]) == []


def test_what_is_drawn(ablation: pd.DataFrame) -> None:
    figure = worth_over_training(ablation, MODELS)
    assert figure is not None
    metric, verdicts = figure.axes
    np.testing.assert_allclose(metric.lines[-3].get_xydata(), [(0, 0.5), (50, 0.625), (100, 0.75)])
    (chance,) = [line for line in metric.lines if line.get_label() == "chance level"]
    assert list(chance.get_ydata()) == [0.5, 0.5]
    drawn = {str(line.get_label()): np.asarray(line.get_xydata()) for line in verdicts.lines}
    # What is not known is no 0.
    assert math.isnan(drawn["needed"][0, 1])
    np.testing.assert_array_equal(drawn["needed"][1:], [(50, 1), (100, 4)])
    marks = [line for line in verdicts.lines if "not shown to be better than guessing" in str(line.get_label())]
    assert [line.get_xdata()[0] for line in marks] == [0]
    assert verdicts.get_xscale() == "linear"


def test_without_any_verdict_the_metric_stands_alone(ablation: pd.DataFrame) -> None:
    figure = worth_over_training(ablation.assign(verdict=None), MODELS)
    assert figure is not None
    assert len(figure.axes) == 1


def test_other_figures_show_both_ends(ablation: pd.DataFrame) -> None:
    drawn = dict(ablation_figures({"ablation": ablation}, MODELS))
    assert next(iter(drawn)) == "over_training"
    titles = " ".join(axes.get_title(loc="left") for axes in drawn["ablation"].axes)
    assert ("checkpoint-0" in titles, "checkpoint-50" in titles, "checkpoint-100" in titles) == (True, False, True)
    assert next(ablation_figures({"ablation": ablation}))[0] == "ablation"


def test_what_is_said_first(ablation: pd.DataFrame) -> None:
    first, *others = findings_of({"ablation": ablation}, MODELS)
    assert first == (
        "Over the training (3 checkpoints): accuracy with all heads 0.500 at update 0 and 0.750 at update 100; 1 "
        "checkpoint without verdicts; of 6 heads at update 50: 1 needed, 1 not needed, 4 not decided; of 6 heads at "
        "update 100: 4 needed, 0 not needed, 2 not decided. This is one training: it does not show that another seed "
        "would give the same."
    )
    assert [sentence.partition(":")[0] for sentence in others] == ["checkpoint-100"]
    assert len(findings_of({"ablation": ablation})) == 3
