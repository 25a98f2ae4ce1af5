"""Wilson's interval against its formula and scipy."""

from __future__ import annotations

import naive_statistics
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from headlens.statistics.intervals import wilson

shares = st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(shares)
def test_wilson_against_its_formula(share: tuple[int, int]) -> None:
    low, high = wilson(np.array([share[0]]), np.array([share[1]]))
    assert (low[0], high[0]) == pytest.approx(naive_statistics.wilson(*share), abs=1e-12)


@settings(max_examples=20)
@given(shares, st.sampled_from([0.8, 0.99]))
def test_wilson_against_scipy(share: tuple[int, int], level: float) -> None:
    low, high = wilson(np.array([share[0]]), np.array([share[1]]), level)
    expected = stats.binomtest(*share).proportion_ci(level, "wilson")
    assert (low[0], high[0]) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_without_trials() -> None:
    low, high = wilson(np.array([0, 3]), np.array([0, 6]))
    assert np.isnan([low[0], high[0]]).all()
    assert (low[1], high[1]) == pytest.approx((0.1876, 0.8124), abs=1e-4)
