"""Kernels of entmax against the package in float64 and finite differences, in Triton's interpreter without a GPU."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from entmax import entmax_bisect
from tiers import rest_slow
from torch import Tensor

from headlens.attention.kernels import entmax_rows
from headlens.attention.kernels.entmax_rows import (
    MOST_KEYS,
    Alpha,
    entmax_computed_by,
    entmax_of_rows,
    entmax_refusal,
)
from headlens.attention.normalizers import Entmax, HeadEntmax, entmax_of_package

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LOWEST = torch.finfo(torch.float32).min


@pytest.fixture(autouse=True)
def nothing_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entmax_rows, "_refusals", {})


def scores_of(shape: tuple[int, ...], sharp: float = 2.0) -> Tensor:
    """Scores of which a mask closes some at the end, and all of the first row."""
    scores = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * sharp
    scores[..., shape[-1] - shape[-1] // 3 :] = LOWEST
    scores[(0,) * (len(shape) - 1)] = LOWEST
    return scores


def in_float64(scores: Tensor, alpha: Alpha) -> Tensor:
    """The package in float64, with what headlens says of rows that are masked throughout."""
    alpha = alpha.double() if isinstance(alpha, Tensor) else alpha
    masked = (scores <= LOWEST / 2).all(-1, keepdim=True)
    weights: Tensor = entmax_bisect(scores.double().masked_fill(masked, 0), alpha=alpha, dim=-1, n_iter=60)
    return weights


SHAPES = [(2, 3, 5, 7), (1, 2, 3, 1), (1, 2, 9, 129), (1, 1, 3, 300), (4, 33), (3, 1, 2, 16)]


@pytest.mark.parametrize("shape", rest_slow(SHAPES), ids=str)
@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.01, 1.2, 1.8])
@pytest.mark.parametrize("sharp", [0.1, 2.0, 30.0])
def test_weights_and_gradients_against_the_package(alpha: float, shape: tuple[int, ...], sharp: float) -> None:
    check_against_float64(alpha, shape, sharp)


def check_against_float64(alpha: float, shape: tuple[int, ...], sharp: float) -> None:
    """Asserts that weights and gradients are those of the package, and that masked rows have none."""
    scores = scores_of(shape, sharp)
    ours, theirs = scores.clone().to(DEVICE).requires_grad_(), scores.double().requires_grad_()
    given = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    found, expected = entmax_of_rows(ours, alpha), in_float64(theirs, alpha)
    # Near 1 the threshold is taken to the power of 100, and with it its rounding.
    near = 2e-6 * max(1, 0.2 / (alpha - 1)) * max(1, sharp)
    torch.testing.assert_close(found.detach().cpu().double(), expected.detach(), atol=near, rtol=near)
    torch.testing.assert_close(found.sum(-1).cpu(), torch.ones(shape[:-1]), atol=1e-5, rtol=0)
    found.backward(given.to(DEVICE))
    expected.backward(given.double())
    assert ours.grad is not None
    assert theirs.grad is not None
    torch.testing.assert_close(ours.grad.cpu().double(), theirs.grad, atol=100 * near, rtol=1e-3)
    assert not ours.grad.flatten()[: shape[-1]].any(), "a row that is masked throughout counts as zeros"


def test_alphas_that_heads_learn() -> None:
    alphas = torch.tensor([1.02, 1.3, 1.5, 1.99])
    scores, given = scores_of((2, 4, 6, 11)), torch.randn(2, 4, 6, 11, generator=torch.Generator().manual_seed(2))
    ours = [t.clone().to(DEVICE).requires_grad_() for t in (scores, alphas[:, None, None])]
    theirs = [t.double().requires_grad_() for t in (scores, alphas[:, None, None])]
    found, expected = entmax_of_rows(ours[0], ours[1]), in_float64(theirs[0], theirs[1].expand(2, 4, 6, 1))
    torch.testing.assert_close(found.detach().cpu().double(), expected.detach(), atol=2e-5, rtol=2e-5)
    found.backward(given.to(DEVICE))
    expected.backward(given.double())
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(mine.grad.cpu().double(), other.grad, atol=2e-4, rtol=2e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.01, 1.3])
@pytest.mark.parametrize("shape", [(4, 6, 128, 128), (1, 2, 50, 512), (2, 1, 3, MOST_KEYS)], ids=str)
def test_weights_and_gradients_on_a_card(alpha: float, shape: tuple[int, ...]) -> None:
    check_against_float64(alpha, shape, sharp=2.0)


@pytest.mark.parametrize("alpha", [1.5, 1.25, None])
def test_gradients_by_finite_differences(alpha: float | None) -> None:
    """Differences of weights in float64, of rows none of whose weights begins or ends there."""
    scores = torch.tensor([[[[0.3, 0.1, -0.2, -5.0], [1.0, 0.9, 0.5, 0.4]]]])
    given = torch.tensor([[[[1.0, -2.0, 0.5, 3.0], [0.2, 0.4, -1.0, 2.0]]]])
    alphas = torch.tensor([[[1.4]]])
    leaf, learned = scores.clone().to(DEVICE).requires_grad_(), alphas.clone().to(DEVICE).requires_grad_()
    (entmax_of_rows(leaf, learned if alpha is None else alpha) * given.to(DEVICE)).sum().backward()
    step = 1e-5

    def value(at: Tensor, alphas_at: Tensor) -> float:
        one = alphas_at.expand(1, 1, 2, 1) if alpha is None else alpha
        return float((in_float64(at, one) * given).sum())

    assert leaf.grad is not None
    for place in range(8):
        change = torch.zeros(8, dtype=torch.float64)
        change[place] = step
        change = change.view(1, 1, 2, 4)
        slope = (value(scores + change, alphas.double()) - value(scores - change, alphas.double())) / (2 * step)
        assert float(leaf.grad.flatten()[place]) == pytest.approx(slope, abs=2e-5)
    if alpha is None:
        assert learned.grad is not None
        ends = [value(scores.double(), alphas.double() + change) for change in (step, -step)]
        assert float(learned.grad) == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=2e-4)


def test_the_kernel_serves_where_it_agrees_and_tells_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = scores_of((2, 2, 4, 9))
    expected = [Entmax(1.5)(scores), HeadEntmax(torch.tensor([1.3, 1.7]))(scores)]
    if DEVICE == "cpu":
        why = "package entmax: the device is a cpu"
        assert entmax_computed_by("1.5") == entmax_computed_by("learned") == why
    monkeypatch.setattr(entmax_rows, "_refusals", {})
    monkeypatch.setattr(entmax_rows, "available", lambda _: "")
    calls: list[Alpha] = []
    kernel = entmax_rows.entmax_of_rows
    monkeypatch.setattr(entmax_rows, "entmax_of_rows", lambda s, a: (calls.append(a), kernel(s, a))[1])
    for normalizer, weights in zip((Entmax(1.5), HeadEntmax(torch.tensor([1.3, 1.7]))), expected, strict=True):
        torch.testing.assert_close(normalizer(scores.to(DEVICE)).cpu(), weights, atol=1e-5, rtol=1e-4)
    assert len(calls) == 4, "once to be compared, once to serve, of both"
    assert entmax_computed_by("1.5") == entmax_computed_by("learned") == "Triton kernels"
    assert entmax_computed_by("1.3") == ""


@pytest.mark.parametrize(
    ("shape", "dtype", "why"),
    [
        ((2, MOST_KEYS + 1), torch.float32, f"{MOST_KEYS + 1} keys"),
        ((2, 3), torch.float64, "numbers of the type float64"),
        ((0, 3), torch.float32, "3 keys"),
    ],
)
def test_what_the_kernel_does_not_serve(
    shape: tuple[int, ...], dtype: torch.dtype, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entmax_rows, "available", lambda _: "")
    assert why in entmax_refusal(torch.zeros(shape, dtype=dtype), 1.5, entmax_of_package)
    assert "above 2" in entmax_refusal(torch.zeros(2, 3), 2.5, entmax_of_package)


def test_a_kernel_that_fails_or_disagrees_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entmax_rows, "available", lambda _: "")
    scores = scores_of((3, 5))
    assert entmax_refusal(scores, 1.5, lambda s, _: torch.softmax(s, -1)) == "the package gives other numbers"
    errors: list[Exception] = [ValueError("no such instruction"), torch.OutOfMemoryError("no memory")]

    def fail(*_: Any) -> Tensor:
        raise errors.pop(0)

    monkeypatch.setattr(entmax_rows, "entmax_of_rows", fail)
    for _ in range(2):
        assert entmax_refusal(scores, 1.3, entmax_of_package) == "the kernel failed, ValueError"
    with pytest.raises(torch.OutOfMemoryError):
        entmax_refusal(scores, 1.4, entmax_of_package)
    torch.testing.assert_close(Entmax(1.3)(scores), in_float64(scores, 1.3).float(), atol=1e-6, rtol=1e-5)
    assert math.isclose(float(Entmax(1.3)(scores).sum()), 3, abs_tol=1e-5)
