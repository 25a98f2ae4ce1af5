"""Rules of single operations, worked by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headlens.errors import UnsupportedModelError
from headlens.relevance_propagation.epsilon_rule import (
    ConservationLedger,
    ConstantDeviation,
    GradientRules,
    Unchanged,
    run,
)
from headlens.relevance_propagation.tracing import Tracer


def times(ratio: Tensor, number: Tensor) -> Tensor:
    return ratio * number


def traced() -> tuple[ConservationLedger, Tracer]:
    ledger = ConservationLedger(times)
    return ledger, Tracer(nn.Identity(), GradientRules(ledger))


def test_two_neurons_by_hand() -> None:
    """v1 = 2·1 - 1·3 + 2 = 1, v2 = 1·1 + 1·3 = 4; relevance starts at R = v.

    v1 gives 2/1·1 = 2 to u1, -3/1·1 = -3 to u2 and 2 to its bias; v2 gives 1 to u1 and 3 to u2.
    Through y = 3·v1 + 0.5·v2 = 5: of R = 5 v1 gets 3 and v2 gets 2; u1 gets 3·2/1 + 2·1/4 = 6.5, u2 gets
    3·(-3)/1 + 2·3/4 = -7.5, the bias 3·2/1 = 6, together 5.
    """
    first, second = torch.tensor([[2.0, -1.0], [1.0, 1.0]]), torch.tensor([[3.0, 0.5]])
    ledger, tracer = traced()
    u = ledger.enter(torch.tensor([[1.0, 3.0]]))
    with tracer:
        y = functional.linear(functional.linear(u, first, torch.tensor([2.0, 0.0])), second)
    (ratio,) = torch.autograd.grad(y, u, torch.ones_like(y), retain_graph=True)
    assert y.tolist() == [[5.0]]
    assert (ratio * u).tolist() == [[6.5, -7.5]]
    inputs, biases = ledger.collect(y)
    assert (float(inputs), float(biases) / 2) == (-1.0, 6.0)  # the bias was passed twice: grad above, collect here


def test_a_sum_of_two_readers_by_hand() -> None:
    """u = 2 is read by a = relu(3u) = 6 and by b = u + 1: y = a + b = 9, of which the constant keeps 1."""
    ledger, tracer = traced()
    u = ledger.enter(torch.tensor([2.0]))
    with tracer:
        y = functional.relu(u * 3) + (u + 1)
    assert [float(part) for part in ledger.collect(y)] == [8.0, 1.0]


def test_differences_and_constants_on_either_side() -> None:
    ledger, tracer = traced()
    u = ledger.enter(torch.tensor([2.0, 5.0]))
    with tracer:
        y = torch.sub(u, 4.0) + torch.sub(torch.tensor([1.0, 2.0]), u * 3)
    inputs, biases = ledger.collect(y)
    assert float(inputs) == -14
    assert float(biases) == -8 + 3


def test_two_activations_share_their_product_in_halves() -> None:
    ledger, tracer = traced()
    x, y = (ledger.enter(t) for t in (torch.tensor([[2.0], [3.0]]), torch.tensor([5.0])))
    with tracer:
        product = x * y
    a, b = torch.autograd.grad(product, [x, y], torch.ones_like(product))
    assert (a * x).tolist() == [[5.0], [7.5]]
    assert (b * y).tolist() == [12.5]


@pytest.mark.parametrize(
    "function", [functional.gelu, functional.silu, functional.relu, torch.tanh, functional.mish, functional.leaky_relu]
)
def test_activations_hand_on_what_they_get_also_at_zero(function: object) -> None:
    ledger, tracer = traced()
    x = ledger.enter(torch.tensor([-2.0, -1e-40, 0.0, 0.5, 30.0]))
    with tracer:
        y = function(x)  # type: ignore[operator]
    (ratio,) = torch.autograd.grad(y, x, torch.full_like(y, 2.0))
    assert ratio.isfinite().all()
    assert torch.allclose(ratio * x, 2 * y, atol=1e-30)


def test_layer_norm_is_torchs_and_linear_with_a_constant_deviation() -> None:
    x = torch.randn(4, 7, 6, dtype=torch.float64, requires_grad=True)
    weight, bias = torch.randn(2, 6, dtype=torch.float64)
    y = run(ConstantDeviation, x, (6,), weight, bias, 1e-5)
    assert torch.equal(y, functional.layer_norm(x, (6,), weight, bias, 1e-5))
    ratio = torch.randn_like(y)
    (found,) = torch.autograd.grad(y, x, ratio)
    deviation = (x.var(dim=-1, unbiased=False, keepdim=True) + 1e-5).sqrt().detach()
    linear = (x - x.mean(dim=-1, keepdim=True)) / deviation * weight
    assert torch.allclose(found, torch.autograd.grad(linear, x, ratio)[0])


def test_a_function_in_place_of_a_module_is_computed_once() -> None:
    calls: list[int] = []

    def function(x: Tensor) -> Tensor:
        calls.append(1)
        return x * 2

    x = torch.ones(3, requires_grad=True)
    y = run(Unchanged, x, function)
    assert y.tolist() == [2, 2, 2]
    y.sum().backward()
    assert calls == [1]


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (lambda x: 1 / x, "__rtruediv__|reciprocal"),
        (lambda x: torch.ones(2) / x, r"Tensor\.(div|__truediv__) \(division by an activation\)"),
        (torch.softmax, "softmax"),
        (torch.exp, "exp"),
    ],
)
def test_what_stands_in_no_row_is_refused(operation: object, name: str) -> None:
    ledger, tracer = traced()
    x = ledger.enter(torch.ones(2))
    with tracer, pytest.raises(UnsupportedModelError, match=name):
        operation(x, dim=0) if operation is torch.softmax else operation(x)  # type: ignore[operator]


def test_what_does_not_depend_on_the_inputs_needs_no_rule() -> None:
    _, tracer = traced()
    with tracer:
        assert torch.exp(torch.zeros(2)).tolist() == [1, 1]
        assert torch.ones(2).softmax(0).sum() == 1
    ledger, tracer = traced()
    x = ledger.enter(torch.tensor([1.0, 2.0]))
    with tracer:
        assert x.argmax().item() == 1
        assert x.shape == (2,)
