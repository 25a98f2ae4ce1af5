"""Hard Concrete gates against a million samples, against formulas of their own, and finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, special
from tiers import rest_slow

from headlens.interventions.hard_concrete import HardConcrete

LAW = HardConcrete()
LEVELS = [-4.0, -2.5, -1.0, 0.0, 0.7, 2.0, 3.5]
SAMPLES = 1_000_000


def drawn(log_alpha: float) -> np.ndarray:
    """Samples by the formula of the paper, from numpy's own noise."""
    noise = np.random.default_rng(7).uniform(1e-6, 1 - 1e-6, SAMPLES)
    s = special.expit((np.log(noise) - np.log(1 - noise) + log_alpha) / 0.33)
    return np.minimum(1, np.maximum(0, s * 1.2 - 0.1))


@pytest.mark.parametrize("level", rest_slow(LEVELS, LEVELS[::3]))
def test_closed_forms_are_those_of_a_million_samples(level: float) -> None:
    torch.manual_seed(3)
    log_alpha = torch.full((SAMPLES,), level, dtype=torch.float64)
    found = LAW.sample(log_alpha, LAW.noise(log_alpha)).numpy()
    one = torch.tensor(level, dtype=torch.float64)
    # The mean is the integral of P(g > t) over t from 0 to 1.
    above = lambda t: special.expit(level - 0.33 * special.logit((t + 0.1) / 1.2))  # noqa: E731
    expected = {
        "mean": (found, integrate.quad(above, 0, 1, epsabs=1e-13)[0]),
        "closed": (found == 0, 1 - float(LAW.open_probability(one))),
        "whole": (found == 1, special.expit(level - 0.33 * math.log(11))),
    }
    for name, (samples, value) in expected.items():
        error = max(samples.std() / math.sqrt(SAMPLES), 1e-6)
        assert abs(samples.mean() - value) < 3 * error, name


@pytest.mark.parametrize("level", rest_slow(LEVELS, LEVELS[::3]))
def test_samples_are_those_of_the_paper(level: float) -> None:
    noise = torch.from_numpy(np.random.default_rng(7).uniform(1e-6, 1 - 1e-6, SAMPLES))
    found = LAW.sample(torch.tensor(level, dtype=torch.float64), noise)
    np.testing.assert_allclose(found.numpy(), drawn(level), atol=1e-12)


@given(level=st.floats(-20, 20, width=32))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gates_of_evaluation_are_closed_from_one_log_alpha_on(dtype: torch.dtype, level: float) -> None:
    gate = float(LAW.gate(torch.tensor(level, dtype=dtype)))
    assert (gate == 0.0) == (level <= math.log(1 / 11))
    plain = min(1.0, max(0.0, 1.2 / (1 + math.exp(-level)) - 0.1))
    assert gate == pytest.approx(plain, abs=1e-6)


def test_ends_of_the_range() -> None:
    assert LAW.closed_below == pytest.approx(-2.3979, abs=1e-4)
    assert float(LAW.gate(torch.tensor(2.5))) == 1.0
    probability = LAW.open_probability(torch.tensor([0.0], dtype=torch.float64))
    assert float(probability) == pytest.approx(1 / (1 + math.exp(-0.7913)), abs=1e-5)


def test_gradients_by_finite_differences() -> None:
    log_alpha = torch.tensor([-1.5, -0.3, 0.1, 0.9], dtype=torch.float64, requires_grad=True)
    noise = torch.tensor([0.7, 0.5, 0.6, 0.4], dtype=torch.float64)
    samples = LAW.sample(log_alpha.detach(), noise)
    assert ((samples > 0) & (samples < 1)).all()
    assert torch.autograd.gradcheck(lambda a: LAW.sample(a, noise), log_alpha)
    assert torch.autograd.gradcheck(LAW.open_probability, log_alpha)


def test_noise_stays_away_from_the_ends() -> None:
    law = HardConcrete(epsilon=0.2)
    noise = law.noise(torch.zeros(10_000))
    assert 0.2 <= float(noise.min()) < 0.21
    assert 0.79 < float(noise.max()) <= 0.8


@pytest.mark.parametrize("wrong", [{"low": 0.0}, {"high": 1.0}, {"temperature": 0.0}, {"epsilon": 0.5}])
def test_what_is_no_such_distribution(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="is not a Hard Concrete distribution"):
        HardConcrete(**wrong)
