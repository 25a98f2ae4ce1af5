"""The rule of Voita et al.'s own code, with every contribution written out: a slow reference for small inputs.

The backward pass carries relevance itself. An operation with the outputs v gives its inputs u

    R_u = sum_v R_v (alpha z+_uv / (sum_u z+_uv + eps) + beta z-_uv / (sum_u z-_uv - eps)),   alpha = beta = 0.5

with z_uv = (dv / du) u + f(0)_v / n: of n inputs each takes an equal share of the bias. Then the inputs' relevance is
scaled so that the sum of its magnitudes is that of the outputs: per token, position or head, then for the example as a
whole. A number read by several operations adds up what comes back, scaled to the sum of the magnitudes. Attention
is one function of queries, keys and values with its whole Jacobian; LayerNorm is taken with its Jacobian, too.

A head whose output projection is zero has its share of the bias, therefore, and not nothing.

What differs from that code: queries, keys and values come from three linear layers, whose magnitudes are kept apart,
not from one joined; the Jacobian of LayerNorm has its epsilon in all places; a constant that is added outside of a
linear layer gets nothing; relevance starts at the value of the logit, not at 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headlens.analyses.relevance.lrp.alpha_beta_ops import (
    ExplicitLinear,
    ExplicitNorm,
    ExplicitSum,
    HalfRelevance,
    SameRelevance,
)
from headlens.analyses.relevance.lrp.conservation import ConservationLedger, on_gradient
from headlens.analyses.relevance.lrp.gradient_rules import Arguments, Function, Keywords, is_active, linear_parts, run
from headlens.analyses.relevance.lrp.op_rules import OpKind


class AlphaBetaRules:
    """The rules of `alpha-beta`, by kind of operation.

    Args:
        ledger: told of leaves; biases keep nothing here.
    """

    def __init__(self, ledger: ConservationLedger) -> None:
        self.ledger = ledger
        # By identity; the tensor is held so that the identity stays its own.
        self._read: dict[int, tuple[Tensor, _Meter]] = {}

    def apply(self, kind: OpKind, function: Function, args: Arguments, kwargs: Keywords) -> Any:
        """Run an operation on something active so that its backward follows the rule of its kind.

        Raises:
            LookupError: if there is no rule for it.
        """
        args = [self._metered(a) for a in args]
        if kind is OpKind.LINEAR:
            return run(ExplicitLinear, *linear_parts(function, args, kwargs))
        if kind is OpKind.NORM:
            return run(ExplicitNorm, *_norm_arguments(*args, **kwargs))
        if kind is OpKind.KEEP:
            return self.keep(args[0], lambda x: function(x, *args[1:], **kwargs))
        if kind in (OpKind.ADD, OpKind.MULTIPLY, OpKind.DIVIDE):
            return self._by_number(kind, partial(function, **kwargs), args)
        if kind is OpKind.MOVE:
            return function(*args, **kwargs)
        raise LookupError(f"{kind.value} under alpha-beta")

    @staticmethod
    def keep(x: Tensor, function: Function) -> Tensor:
        """One function of x that hands relevance on unchanged."""
        return run(SameRelevance, x, function)

    def _by_number(self, kind: OpKind, function: Function, args: Arguments) -> Tensor:
        """Sums and products number by number."""
        left, right = args
        if kind is OpKind.DIVIDE and is_active(right):
            raise LookupError("division by an activation")
        if not is_active(right):
            return run(SameRelevance, left, lambda x: function(x, right))
        if not is_active(left):
            return run(SameRelevance, right, lambda x: function(left, x))
        return run(ExplicitSum if kind is OpKind.ADD else HalfRelevance, left, right, function)

    def _metered(self, value: Any) -> Any:
        """What is read once more: its relevance comes back together with that of its other readers."""
        if isinstance(value, list | tuple):
            return type(value)(self._metered(v) for v in value)
        if not is_active(value):
            return value
        if id(value) not in self._read:
            meter = _Meter()
            on_gradient(value, meter.scale)
            self._read[id(value)] = value, meter
        return run(Branch, value, self._read[id(value)][1])


class _Meter:
    """The magnitudes of what comes back from each reader of a number."""

    def __init__(self) -> None:
        self.parts: list[Tensor] = []

    def scale(self, relevance: Tensor | None) -> Tensor | None:
        """Returns the summed relevance of all readers, rescaled to the sum of the magnitudes of their parts."""
        if relevance is None:  # one of several outputs that nobody read
            return None
        total = relevance.abs().sum()
        if len(self.parts) < 2 or not total:
            return relevance
        return relevance * (torch.stack(self.parts).sum() / total)


class Branch(torch.autograd.Function):
    """Identity whose backward pass notes the magnitude of the relevance that one reader of a tensor sends back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, meter: _Meter) -> Tensor:
        """Returns a view of the tensor, any shape, for one of the operations that read it."""
        ctx.meter = meter
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor, None]:
        """Notes the sum of absolute relevance of this reader, and passes the relevance on unchanged."""
        ctx.meter.parts.append(relevance.abs().sum())
        return relevance, None


def _norm_arguments(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor | None, Tensor | None, float]:
    if len(shape) != 1:
        raise LookupError("LayerNorm over several axes")
    return x, weight, bias, eps
