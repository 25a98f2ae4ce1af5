"""Relevance as a gradient: the backward pass carries c = R / v, the relevance of every number over the number.

For v = sum_u W_uv u + b the rule R_u = sum_v W_uv u / v · R_v says c_u = sum_v W_uv c_v: the ordinary gradient, without
any division, so that no epsilon has to keep a denominator from zero. A number read by several operations adds up what
comes back, as gradients do. Three operations are not linear, and have a backward of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headlens.analyses.relevance.lrp.conservation import ConservationLedger
from headlens.analyses.relevance.lrp.op_rules import OpKind

Arguments = Sequence[Any]
Keywords = Mapping[str, Any]
Function = Callable[..., Any]


class GradientRules:
    """The rules of `epsilon` and `attnlrp`, by kind of operation.

    Args:
        ledger: told of leaves and biases.
    """

    def __init__(self, ledger: ConservationLedger) -> None:
        self.ledger = ledger

    def apply(self, kind: OpKind, function: Function, args: Arguments, kwargs: Keywords) -> Any:
        """Run an operation on something active so that its backward follows the rule of its kind.

        Raises:
            LookupError: if there is no rule for it after all.
        """
        if kind is OpKind.LINEAR:
            return self._linear(function, args, kwargs)
        if kind is OpKind.ADD:
            return self._add(function, args, kwargs)
        if kind is OpKind.NORM:
            return self._norm(*args, **kwargs)
        if kind is OpKind.KEEP:
            return self.keep(args[0], lambda x: function(x, *args[1:], **kwargs))
        if kind is OpKind.MULTIPLY and all(map(is_active, args)):
            return run(HalfEach, *args)
        if kind is OpKind.DIVIDE and is_active(args[1]):
            raise LookupError("division by an activation")
        return function(*args, **kwargs)

    @staticmethod
    def keep(x: Tensor, function: Function) -> Tensor:
        """One function of x, number by number, that hands relevance on unchanged."""
        return run(Unchanged, x, function)

    def _linear(self, function: Function, args: Arguments, kwargs: Keywords) -> Tensor:
        _, _, bias = linear_parts(function, args, kwargs)
        output: Tensor = function(*args, **kwargs)
        if bias is not None:
            self.ledger.keep(output, bias)
        return output

    def _add(self, function: Function, args: Arguments, kwargs: Keywords) -> Tensor:
        output: Tensor = function(*args, **kwargs)
        left, right = args
        factor = kwargs.get("alpha", 1) * (-1 if function in (Tensor.sub, torch.sub) else 1)
        if not is_active(left):
            self.ledger.keep(output, left)
        elif not is_active(right):
            self.ledger.keep(output, right if factor == 1 else factor * right)
        return output

    def _norm(
        self,
        x: Tensor,
        shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        output = run(ConstantDeviation, x, shape, weight, bias, eps)
        if bias is not None:
            self.ledger.keep(output, bias)
        return output


class ConstantDeviation(torch.autograd.Function):
    """LayerNorm whose standard deviation is a constant in the backward (Ali et al. 2022).

    Its mean is a sum like others, so that without a shift nothing is lost.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        """The same as torch's layer_norm."""
        y, _, inverse = torch.native_layer_norm(x, shape, weight, bias, eps)
        ctx.save_for_backward(inverse)
        ctx.weight, ctx.axes = weight, tuple(range(-len(shape), 0))
        return y

    @staticmethod
    def backward(ctx: Any, ratio: Tensor) -> tuple[Tensor | None, ...]:
        """Through the scale, then through x - mean(x)."""
        (inverse,) = ctx.saved_tensors
        scaled = ratio * inverse if ctx.weight is None else (ratio * ctx.weight).mul_(inverse)
        return (scaled - scaled.mean(ctx.axes, keepdim=True)).to(ratio.dtype), None, None, None, None


class Unchanged(torch.autograd.Function):
    """Elementwise function y = f(x) whose relevance passes unchanged: R_x = R_y, so that c_x = c_y · y / x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Function) -> Tensor:
        """Returns `function(x)`, which has the shape of x."""
        y: Tensor = function(x)
        # At x = 0 nothing passes whatever the ratio; it must only be finite. A NaN in y shows in the outputs.
        ctx.save_for_backward((y / x).nan_to_num_(0.0, 0.0, 0.0))
        return y

    @staticmethod
    def backward(ctx: Any, ratio: Tensor) -> tuple[Tensor, None]:
        """Times the factor the numbers changed by."""
        return ratio * ctx.saved_tensors[0], None


class HalfEach(torch.autograd.Function):
    """x · y of two activations: half of the relevance goes to each (Achtibat et al. 2024, proposition 3.2)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        """Returns the product of both activations, of their broadcast shape."""
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, ratio: Tensor) -> tuple[Tensor, Tensor]:
        """Returns half of the gradient of the product for each factor, so that each receives half of the relevance."""
        x, y = ctx.saved_tensors
        half = ratio / 2
        return (half * y).sum_to_size(x.shape), (half * x).sum_to_size(y.shape)


def linear_parts(
    function: Function, args: Arguments, settings: Keywords
) -> tuple[Tensor, Tensor, Tensor | float | None]:
    """Returns x, W and b of x W' + b, from the arranged arguments of torch's `linear` or `addmm`.

    Raises:
        LookupError: if weights or bias depend on the model's inputs: relevance passes through x alone.
    """
    if function is torch.addmm:
        bias, x, weight = args
        beta, alpha = settings.get("beta", 1), settings.get("alpha", 1)
        weight, bias = weight.T if alpha == 1 else alpha * weight.T, bias if beta == 1 else beta * bias
    else:
        x, weight, bias = (*args, None)[:3]
    if is_active(weight) or is_active(bias):
        raise LookupError("whose weights depend on the inputs")
    return x, weight, bias


def run(function: type[torch.autograd.Function], *args: Any) -> Tensor:
    """Apply a function with a backward of its own."""
    untyped: Any = function
    result: Tensor = untyped.apply(*args)
    return result


def is_active(value: object) -> bool:
    """Whether a value depends on the model's inputs, so that relevance can pass through it."""
    return isinstance(value, Tensor) and value.requires_grad
