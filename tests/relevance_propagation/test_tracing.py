"""Calls of one operation in every form that torch allows: the rules read the same numbers, or refuse."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import Identity, functional

from headlens.errors import UnsupportedModelError
from headlens.relevance_propagation.alpha_beta_rule import AlphaBetaRules
from headlens.relevance_propagation.epsilon_rule import ConservationLedger, GradientRules
from headlens.relevance_propagation.tracing import Tracer

X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]])
OTHER = torch.tensor([[2.0, 1.0, -3.0], [1.0, 5.0, 0.25]])
WEIGHT = torch.tensor([[1.0, 2.0, -1.0], [0.5, -3.0, 2.0]])
BIAS = torch.tensor([4.0, -7.0])
Call = Callable[[Tensor], Tensor]

CALLS: dict[str, tuple[Call, Call]] = {
    # As a call may be written, and the same as it is written most.
    "alpha of add": (lambda x: torch.add(x, OTHER, alpha=3), lambda x: x + 3 * OTHER),
    "alpha of sub": (lambda x: torch.sub(OTHER, x, alpha=2), lambda x: OTHER - x * 2),
    "alpha of a method": (lambda x: x.add(OTHER, alpha=-2), lambda x: x - 2 * OTHER),
    "other of add": (lambda x: torch.add(x, other=OTHER), lambda x: x + OTHER),
    "input and other": (lambda x: torch.add(other=x, input=OTHER), lambda x: OTHER + x),
    "other of mul": (lambda x: torch.mul(input=x, other=OTHER), lambda x: x * OTHER),
    "other of div": (lambda x: torch.div(x, other=OTHER), lambda x: x / OTHER),
    "linear out of order": (
        lambda x: functional.linear(bias=BIAS, weight=WEIGHT, input=x),
        lambda x: functional.linear(x, WEIGHT, BIAS),
    ),
    "linear without bias": (
        lambda x: functional.linear(x, weight=WEIGHT, bias=None),
        lambda x: functional.linear(x, WEIGHT),
    ),
    "addmm": (
        lambda x: torch.addmm(BIAS, mat1=x, mat2=WEIGHT.T, beta=0.5, alpha=2),
        lambda x: functional.linear(x, 2 * WEIGHT, BIAS / 2),
    ),
    "shift without scale": (
        lambda x: functional.layer_norm(x, (3,), bias=OTHER[0]),
        lambda x: functional.layer_norm(x, (3,), torch.ones(3), OTHER[0]),
    ),
    "input of an activation": (
        lambda x: functional.gelu(input=x, approximate="tanh"),
        lambda x: functional.gelu(x, approximate="tanh"),
    ),
    "a list by name": (lambda x: torch.cat(tensors=[x, x * 2], dim=1), lambda x: torch.cat([x, x * 2], 1)),
    "in place": (lambda x: (x * 1).add_(OTHER), lambda x: x * 1 + OTHER),
    "in place into a constant": (lambda x: OTHER.clone().add_(x, alpha=2), lambda x: OTHER + x * 2),
    "a factor in place": (lambda x: OTHER.clone().mul_(x), lambda x: OTHER * x),
    "two activations in place": (lambda x: (x * 2).mul_(x * 3), lambda x: (x * 2) * (x * 3)),
}


def booked(rules: type, call: Call) -> tuple[Tensor, Tensor, float]:
    """The output, what the backward pass brings to the input, and what biases keep."""
    arrived: list[Tensor] = []

    def read(gradient: Tensor, leaf: Tensor) -> Tensor:
        arrived.append(gradient)
        return gradient * leaf

    ledger = ConservationLedger(read)
    x = ledger.enter(X.clone())
    with Tracer(Identity(), rules(ledger)):
        y = call(x)
    _, kept = ledger.collect(y, None if rules is GradientRules else y.detach())
    return y.detach(), arrived[0], float(kept)


@pytest.mark.parametrize("rules", [GradientRules, AlphaBetaRules])
@pytest.mark.parametrize("name", CALLS)
def test_however_a_call_is_written(name: str, rules: type) -> None:
    call, usual = CALLS[name]
    y, arrived, kept = booked(rules, call)
    expected, expected_arrived, expected_kept = booked(rules, usual)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(arrived, expected_arrived, rtol=1e-4, atol=1e-4)
    assert kept == pytest.approx(expected_kept, rel=1e-4)


LINEAR = [n for n in CALLS if n not in {"input of an activation", "shift without scale", "a list by name"}]


@pytest.mark.parametrize("name", LINEAR)
def test_nothing_is_lost(name: str) -> None:
    """What arrives at the inputs and what biases keep is what was there: the sum of the outputs."""
    y, arrived, kept = booked(GradientRules, CALLS[name][0])
    assert float((arrived * X).sum()) + kept == pytest.approx(float(y.sum()), rel=1e-5)


def _read_again(x: Tensor) -> Tensor:
    changed = x * 1
    changed.add_(OTHER)
    return changed * 2


REFUSED: dict[str, tuple[Call, str]] = {
    "rounding": (lambda x: torch.div(x, 2.0, rounding_mode="floor"), "with rounding_mode"),
    "an activation in place": (lambda x: functional.relu(x * 1, inplace=True), "which writes into one of its tensors"),
    "by place": (lambda x: functional.leaky_relu(x * 1, 0.1, True), "which writes into one of its tensors"),
    "an output": (lambda x: torch.add(x, 1.0, out=torch.zeros(2, 3)), "which writes into one of its tensors"),
    "read again": (_read_again, "reads a tensor that was changed in place"),
    "weights from the inputs": (lambda x: functional.linear(OTHER, x), "weights depend on the inputs"),
    "a bias from the inputs": (lambda x: torch.addmm(x, torch.eye(2), OTHER), "weights depend on the inputs"),
    "a divisor from the inputs": (lambda x: torch.div(OTHER, other=x), "division by an activation"),
}


@pytest.mark.parametrize("rules", [GradientRules, AlphaBetaRules])
@pytest.mark.parametrize("name", REFUSED)
def test_what_no_rule_can_read_is_refused(name: str, rules: type) -> None:
    call, message = REFUSED[name]
    with pytest.raises(UnsupportedModelError, match=message):
        booked(rules, call)


def test_a_new_pass_knows_nothing_of_the_last_ones_tensors() -> None:
    rules = GradientRules(ConservationLedger(lambda ratio, number: ratio * number))
    tracer, x = Tracer(Identity(), rules), X.clone().requires_grad_()
    with tracer:
        changed = x * 1
        changed.add_(1.0)
        tracer.start(rules)
        assert changed.mul(2).shape == X.shape
