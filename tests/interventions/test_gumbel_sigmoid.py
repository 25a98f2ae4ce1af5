"""The law of learned masks against what is known of logistic noise."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headlens.errors import OptionError
from headlens.interventions.gumbel_sigmoid import GumbelSigmoid


@pytest.mark.parametrize("alpha", [-2.0, 0.0, 0.7])
@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_a_mask_is_open_with_probability_sigmoid(alpha: float, temperature: float) -> None:
    """P(M > 1/2) = sigmoid(α), at any temperature."""
    law = GumbelSigmoid()
    torch.manual_seed(0)
    values = torch.full((40_000,), alpha)
    drawn = law.sample(values, law.noise(values), temperature)
    expected = 1 / (1 + torch.e ** (-alpha))
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    assert float(drawn.mean()) == pytest.approx(expected, abs=4 * (expected * (1 - expected) / 40_000) ** 0.5)


def test_noise_is_the_difference_of_two_gumbel_variables() -> None:
    torch.manual_seed(0)
    noise = GumbelSigmoid().noise(torch.empty(60_000))
    first, second = -torch.log(-torch.log(torch.rand(2, 60_000, dtype=torch.float64)))
    places = torch.linspace(0.02, 0.98, 25, dtype=torch.float64)
    difference = noise.double().quantile(places) - (first - second).quantile(places)
    # The standard error of a quantile q of n logistic numbers is 1 / √(n q (1 - q)).
    errors = (2 / (60_000 * places * (1 - places))).sqrt()
    assert float((difference / errors).abs().max()) < 4


@given(st.floats(-8, 8), st.floats(-6, 6), st.floats(0.2, 3))
def test_straight_through_rounds_and_keeps_the_slope(alpha: float, noise: float, temperature: float) -> None:
    at = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    soft = GumbelSigmoid(straight_through=False).sample(at, noise, temperature)
    (slope,) = torch.autograd.grad(soft, at)
    hard = GumbelSigmoid().sample(at, noise, temperature)
    (straight,) = torch.autograd.grad(hard, at)
    assert float(hard.detach()) == float(soft.detach() > 0.5)
    assert float(straight) == float(slope)
    value = float(soft.detach())
    assert float(slope) == pytest.approx(value * (1 - value) / temperature, rel=1e-9, abs=1e-12)


def test_temperature_falls_in_a_geometric_series() -> None:
    law = GumbelSigmoid(4.0, final_temperature=0.25)
    found = [float(law.temperature_at(torch.tensor(share))) for share in (0.0, 0.5, 1.0)]
    assert found == pytest.approx([4.0, 1.0, 0.25], rel=1e-6)
    assert float(GumbelSigmoid(0.7).temperature_at(torch.tensor(0.9))) == pytest.approx(0.7)


def test_temperatures_that_cannot_be() -> None:
    with pytest.raises(OptionError, match=r"--temperature 0 is not a positive number"):
        GumbelSigmoid(0)
    with pytest.raises(OptionError, match=r"--final-temperature -1 is not a positive number"):
        GumbelSigmoid(final_temperature=-1)
