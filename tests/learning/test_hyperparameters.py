"""Training options and the learning rate."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlens.errors import OptionError
from headlens.learning.hyperparameters import TrainingOptions, learning_rate


@pytest.mark.parametrize(
    "option",
    [
        {"epochs": 0.0},
        {"steps": 0},
        {"batch_tokens": -1},
        {"accumulate": 0},
        {"learning_rate": float("nan")},
        {"learning_rate": float("inf")},
        {"warmup": -0.1},
        {"clip": float("nan")},
        {"patience": -1},
    ],
)
def test_numbers_out_of_range(option: dict[str, Any]) -> None:
    name = next(iter(option)).replace("_", "-")
    with pytest.raises(OptionError, match=rf"--(training-args )?{name} "):
        TrainingOptions(**option)


def rates(total: int, **options: Any) -> list[float]:
    chosen = TrainingOptions(learning_rate=1.0, **options)
    return [learning_rate(chosen, step, total) for step in range(total)]


def test_linear() -> None:
    assert rates(8, warmup=2) == pytest.approx([0.5, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])
    assert rates(4, warmup=0.5) == rates(4, warmup=2)


def test_constant() -> None:
    assert rates(4, warmup=2, schedule="constant") == [0.5, 1, 1, 1]
    assert rates(2, warmup=0, schedule="constant") == [1, 1]


def test_inverse_square_root_is_that_of_vaswani() -> None:
    # min(step^-0.5, step · warmup^-1.5), scaled to 1 at its highest
    expected = [min(s**-0.5, s * 4**-1.5) * 4**0.5 for s in range(1, 21)]
    assert rates(20, warmup=4, schedule="inverse-sqrt") == pytest.approx(expected)


@given(st.integers(1, 300), st.floats(0, 50), st.sampled_from(["linear", "constant", "inverse-sqrt"]))
def test_the_rate_is_positive_and_never_above_the_highest(total: int, warmup: float, schedule: str) -> None:
    found = rates(total, warmup=warmup, schedule=schedule)
    assert all(0 < rate <= 1 + 1e-12 for rate in found)
