"""Distributions of learned masks against what is known of logistic and Gumbel noise."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiers import rest_slow, rest_slow_rows

from headlens.attention.sites import Site
from headlens.attention_masks.learned_mask import LearnedAttentionMask, LearnedMaskOptions, Scope
from headlens.attention_masks.mask_distributions import GumbelDegrees, GumbelSigmoid, at_least
from headlens.errors import OptionError


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
    with pytest.raises(OptionError, match=r"--law temperature=0 is not a positive number"):
        GumbelSigmoid(0)
    with pytest.raises(OptionError, match=r"--law final-temperature=-1 is not a positive number"):
        GumbelSigmoid(final_temperature=-1)


SITES = [Site("encoder", layer, 2, "somewhere") for layer in range(3)]
numbers = st.lists(st.floats(-9, 9), min_size=2, max_size=12)


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_degrees_are_drawn_with_their_probabilities(temperature: float) -> None:
    """The mass of every degree, at any temperature."""
    law, draws = GumbelDegrees(largest=3), 60_000
    alpha = torch.tensor([0.5, -1.0, 1.2, 0.0])
    torch.manual_seed(0)
    many = alpha.expand(draws, 4)
    found = law.sample(many, law.noise(many), temperature)
    assert set(found.unique().tolist()) == {0.0, 1.0}
    degree = found.sum(dim=1).long() - 1
    wanted = np.exp(alpha.numpy()) / np.exp(alpha.numpy()).sum()
    shares = torch.bincount(degree, minlength=4).numpy() / draws
    assert np.abs((shares - wanted) / np.sqrt(wanted * (1 - wanted) / draws)).max() < 4
    assert law.distribution(alpha).numpy() == pytest.approx(wanted, rel=1e-6)


@given(numbers, st.floats(0.1, 4), st.integers(0, 99), st.booleans())
def test_a_draw_falls_from_one_and_never_rises(alpha: list[float], temperature: float, seed: int, hard: bool) -> None:
    law, values = GumbelDegrees(largest=len(alpha) - 1, straight_through=hard), torch.tensor(alpha).double()
    torch.manual_seed(seed)
    for found in (law.sample(values, law.noise(values), temperature), law.settled(values, temperature)):
        assert float(found[0]) == pytest.approx(1.0)
        assert bool((found.diff() <= 1e-9).all())
        assert bool((found >= 0).all())
        if hard:
            assert set(found.tolist()) <= {0.0, 1.0}


@given(numbers)
def test_offsets_up_to_the_median_stay(alpha: list[float]) -> None:
    law = GumbelDegrees(largest=len(alpha) - 1)
    values = torch.tensor(alpha).double()
    mass = torch.softmax(values, dim=0).numpy()
    kept = law.kept(values)
    degree = int(kept.sum()) - 1
    assert kept.tolist() == [k <= degree for k in range(len(alpha))]
    # At least half of the mass on either side, and the largest degree of which that is so.
    assert mass[: degree + 1].sum() >= 0.5 - 1e-9
    assert degree == 0 or mass[degree:].sum() > 0.5
    assert torch.equal(law.settled(values), kept.double())


@given(numbers, st.integers(0, 99), st.floats(0.3, 3))
def test_straight_through_keeps_the_slope(alpha: list[float], seed: int, temperature: float) -> None:
    torch.manual_seed(seed)
    values = torch.tensor(alpha).double().requires_grad_()
    weights, noise = torch.randn(len(alpha)).double(), GumbelDegrees().noise(values.detach())
    slopes = []
    for hard in (True, False):
        law = GumbelDegrees(largest=len(alpha) - 1, straight_through=hard)
        (slope,) = torch.autograd.grad((law.sample(values, noise, temperature) * weights).sum(), values)
        slopes.append(slope)
    assert torch.allclose(*slopes)


@pytest.mark.parametrize("draws", rest_slow([600, 4000]))
@pytest.mark.parametrize(
    ("diagonal", "per_head"), rest_slow_rows(product([True, False], repeat=2), [(True, True), (False, False)])
)
def test_expected_density_is_the_mean_of_sampled_densities(diagonal: bool, per_head: bool, draws: int) -> None:
    """Counted position by position in masks that were drawn, against the penalty."""
    n = 9
    torch.manual_seed(3)
    options = LearnedMaskOptions(n, structured=True, per_layer=True, diagonal=diagonal)
    mask = LearnedAttentionMask(SITES, options, GumbelDegrees(largest=5), scope=Scope(per_head=per_head))
    with torch.no_grad():
        mask.alpha.copy_(torch.randn_like(mask.alpha))
    mask.train()
    places = torch.arange(n)
    offset = (places[:, None] - places).abs()
    inner = (offset < n) & (places[:, None] % (n - 1) > 0) & (places % (n - 1) > 0)
    inner &= diagonal | (offset > 0)
    shares = []
    for _ in range(draws):
        mask.draw()
        # (layers, heads or 1, offsets) -> positions
        shares.append(float((mask.values.detach()[..., offset] * inner).sum()) / (mask.alpha[..., 0].numel() * n * n))
    error = np.std(shares) / np.sqrt(draws)
    assert abs(float(mask.penalty("mean").detach()) - np.mean(shares)) < 4 * error
    assert error > 0
    assert float(mask.penalty("sum").detach()) == pytest.approx(
        float(mask.penalty("mean").detach()) * mask.alpha[..., 0].numel() * n * n
    )


def test_offsets_beyond_the_largest_degree_are_never_open() -> None:
    mask = LearnedAttentionMask(SITES, LearnedMaskOptions(8, structured=True), GumbelDegrees(largest=2))
    assert mask.alpha.shape == (1, 2, 3)
    with torch.no_grad():
        mask.alpha[..., 2] = 30.0
    inner = mask.kept()[0, 0, 1:-1, 1:-1]
    places = torch.arange(6)
    assert torch.equal(inner, (places[:, None] - places).abs() <= 2)


def test_masks_of_some_layers_leave_the_others_open() -> None:
    for per_layer in (True, False):
        options = LearnedMaskOptions(8, structured=True, per_layer=per_layer)
        mask = LearnedAttentionMask(SITES, options, GumbelDegrees(largest=2), scope=Scope(layers=(1,)))
        with torch.no_grad():
            mask.alpha[..., 0] = 30.0
        kept = mask.kept()
        assert kept.shape == (3, 2, 8, 8)
        assert bool(kept[[0, 2]].all())
        assert torch.equal(kept[1, 0, 1:-1, 1:-1], torch.eye(6, dtype=torch.bool))


def test_tails_by_hand() -> None:
    assert at_least(torch.tensor([0.1, 0.2, 0.3, 0.4])).tolist() == pytest.approx([1.0, 0.9, 0.7, 0.4])


def test_what_cannot_be() -> None:
    with pytest.raises(OptionError, match=r"--law largest-degree 0 leaves nothing to learn"):
        GumbelDegrees(largest=0)
    with pytest.raises(OptionError, match=r"--law temperature=0 is not a positive number"):
        GumbelDegrees(0)
    with pytest.raises(OptionError, match=r"--law largest-degree 8 is too large for texts of 8 tokens"):
        LearnedAttentionMask(SITES, LearnedMaskOptions(8, structured=True), GumbelDegrees(largest=8))
    with pytest.raises(OptionError, match=r"Degrees are defined over offsets"):
        LearnedAttentionMask(SITES, LearnedMaskOptions(8), GumbelDegrees())
    with pytest.raises(OptionError, match=r"there is no layer 3 with heads in the encoder"):
        LearnedAttentionMask(SITES, LearnedMaskOptions(8), scope=Scope(layers=(1, 3)))
