"""Whether a model is shown to be better than guesses, in figures as in notes."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from headlens.findings.without_skill import within_guesses
from headlens.statistics.intervals import wilson
from headlens.statistics.non_inferiority import LEVEL


@pytest.mark.parametrize(
    ("metric", "chance", "low", "guesses"),
    [
        ("accuracy", [0.5, 0.5], [0.5, 0.4], True),
        ("accuracy", [0.5, 0.5], [0.51, 0.4], False),
        ("spearman", [0.0], [-0.1], True),
        ("loss", [0.7], [0.6], False),  # losses are tested by example
        ("accuracy", [np.nan], [0.4], False),
        ("accuracy", [0.9], [np.nan], False),
    ],
)
def test_models_within_guesses(metric: str, chance: list[float], low: list[float], guesses: bool) -> None:
    assert within_guesses(pd.DataFrame({"metric": metric, "chance": chance, "ci_low": low})) == guesses
    assert not within_guesses(pd.DataFrame({"metric": [metric], "ci_low": [0.0]}))


def test_a_model_without_any_right_answer_is_within_guesses() -> None:
    """No resample differs from another there, so that it has no interval: why there are no verdicts went untold."""
    row = {"metric": ["accuracy"], "chance": [0.04], "ci_low": [math.nan], "value": [0.0]}
    assert within_guesses(pd.DataFrame(row))
    assert not within_guesses(pd.DataFrame(row | {"value": [0.5]})), "of too few examples for an interval"


@given(right=st.integers(0, 60), n=st.integers(1, 60), chance=st.sampled_from([0.25, 0.5, 0.9]))
def test_figures_and_notes_agree_on_shares_within_guesses(right: int, n: int, chance: float) -> None:
    """Of 60 right answers of 100 the interval begins at .502, and the exact test does not show more than .5."""
    for count, size in ((min(right, n), n), (60, 100)):
        low, high = map(float, wilson(np.array(count), np.array(size)))
        row = {"metric": "accuracy", "value": count / size, "ci_low": low, "ci_high": high, "chance": chance, "n": size}
        better = stats.binomtest(count, size, chance, alternative="greater").pvalue < LEVEL / 2
        assert within_guesses(pd.DataFrame([row])) == (not better)
        # Over seeds the interval is another one.
        assert within_guesses(pd.DataFrame([row | {"ci_low": low - 0.01}])) == (low - 0.01 <= chance)
