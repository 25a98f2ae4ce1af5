"""Relevance as a gradient: the backward pass carries c = R / v, the relevance of every number over the number.

For v = sum_u W_uv u + b the rule R_u = sum_v W_uv u / v · R_v says c_u = sum_v W_uv c_v: the ordinary gradient, without
any division, so that no epsilon has to keep a denominator from zero. A number read by several operations adds up what
comes back, as gradients do. Three operations are not linear: LayerNorm and functions number by number have a backward
of their own, and of the relevance of a product each factor gets half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import mul
from typing import Any

import torch
from torch import Tensor

from headlens.relevance_propagation.op_rules import OpKind

Arguments = Sequence[Any]
Keywords = Mapping[str, Any]
Function = Callable[..., Any]
_INPUTS, _BIASES = "inputs", "biases"
# From what the backward pass brings to a tensor, and the tensor, to its relevance.
Read = Callable[[Tensor, Tensor], Tensor]


class ConservationLedger:
    """The leaves of one pass, and the relevance that biases kept.

    Args:
        read: how relevance is read off at the leaves.
    """

    def __init__(self, read: Read) -> None:
        self.leaves: list[Tensor] = []
        # After `collect`: what arrived at leaves and stayed that are neither embeddings nor biases, by what they are.
        self.others: dict[str, float] = {}
        self._read = read
        self._parts: list[str] = []
        self._kept: dict[str, list[Tensor]] = {}

    def enter(self, tensor: Tensor, part: str = _INPUTS) -> Tensor:
        """A tensor at which relevance arrives, and what it is: an embedding, unless told otherwise."""
        self.leaves.append(tensor.requires_grad_())
        self._parts.append(part)
        return tensor

    def keep(self, output: Tensor, bias: Tensor | float, part: str = _BIASES) -> None:
        """A bias that was added to an output takes part in its relevance; ratios c = R / v come by in the backward."""
        on_gradient(output, lambda ratio: self._kept.setdefault(part, []).append(_product(ratio, bias)))

    def collect(self, start: Tensor, gradient: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run the backward pass from `start`; the relevance of all leaves and of all biases, each one number.

        Args:
            start: what relevance starts from.
            gradient: what starts at each of its elements; ones by default.
        """
        begun = torch.ones_like(start) if gradient is None else gradient
        gradients = torch.autograd.grad(start, self.leaves, begun, allow_unused=True)
        for part, leaf, ratio in zip(self._parts, self.leaves, gradients, strict=True):
            if ratio is not None:
                self._kept.setdefault(part, []).append(self._read(ratio, leaf.detach()).sum())
        inputs, biases = (_total(self._kept.get(part, [])) for part in (_INPUTS, _BIASES))
        self.others = {part: float(_total(kept)) for part, kept in self._kept.items() if part not in (_INPUTS, _BIASES)}
        return inputs, biases


class PlainGradient:
    """No rules: the gradient as it is.

    Args:
        ledger: records leaves, and the biases that rules add.
    """

    def __init__(self, ledger: ConservationLedger) -> None:
        self.ledger = ledger


class GradientRules(PlainGradient):
    """The rules of `epsilon` and `attnlrp`, by kind of operation."""

    def apply(self, kind: OpKind, function: Function, args: Arguments, kwargs: Keywords) -> Any:
        """Run an operation on something active so that its backward follows the rule of its kind.

        Raises:
            LookupError: if there is no rule for it after all.
        """
        if kind in (OpKind.KEEP, OpKind.SCALE):
            pass_on = self.keep if kind is OpKind.SCALE else self.activate
            return pass_on(args[0], lambda x: function(x, *args[1:], **kwargs))
        if kind is OpKind.MULTIPLY and all(map(is_active, args)):
            # Half of the relevance goes to each (Achtibat et al. 2024, proposition 3.2).
            return function(*(hooked(x, partial(mul, 0.5)) for x in args), **kwargs)
        if kind is OpKind.DIVIDE and is_active(args[1]):
            raise LookupError("division by an activation")
        bias: Tensor | float | None = None
        if kind is OpKind.LINEAR:
            bias = linear_parts(function, args, kwargs)[2]
        elif kind is OpKind.ADD and not all(map(is_active, args)):
            left, right = args
            factor = kwargs.get("alpha", 1) * (-1 if function in (Tensor.sub, torch.sub) else 1)
            bias = left if is_active(right) else factor * right
        elif kind is OpKind.NORM:
            function, args, kwargs = partial(run, ConstantDeviation), norm_parts(*args, **kwargs), {}
            bias = args[3]
        output = function(*args, **kwargs)
        if bias is not None:
            self.ledger.keep(output, bias)
        return output

    @staticmethod
    def keep(x: Tensor, function: Function) -> Tensor:
        """One function of x, number by number, that hands relevance on unchanged."""
        return run(Unchanged, x, function)

    def activate(self, x: Tensor, function: Function) -> Tensor:
        """An activation function: by these rules it hands relevance on unchanged, too."""
        return self.keep(x, function)


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
        """Multiplies the incoming ratio by y / x, which gives that of x."""
        return ratio * ctx.saved_tensors[0], None


def norm_parts(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> tuple[Tensor, Sequence[int], Tensor | None, Tensor | None, float]:
    """Returns all arguments of `layer_norm`, from those that a call gives."""
    return x, shape, weight, bias, eps


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


def on_gradient(tensor: Tensor, hook: Callable[[Tensor], Tensor | None]) -> None:
    """Call a hook with what the backward pass brings to a tensor; what it returns, if anything, goes on instead."""
    untyped: Any = tensor
    untyped.register_hook(hook)


def _total(parts: list[Tensor]) -> Tensor:
    # On the CPU, in double precision, which not every device has.
    return torch.stack(parts).cpu().double().sum() if parts else torch.zeros((), dtype=torch.float64)


def _product(ratio: Tensor, bias: Tensor | float) -> Tensor:
    """The sum of c · b over all elements; a bias over the last axis costs one reading of c."""
    ratio = ratio.to(torch.promote_types(ratio.dtype, torch.float32))
    if not isinstance(bias, Tensor):
        return ratio.sum() * bias
    bias = bias.to(ratio.dtype)
    return (ratio @ bias if bias.dim() == 1 and bias.shape[0] == ratio.shape[-1] else ratio * bias).sum()


def hooked(x: Tensor, hook: Callable[[Tensor], Tensor | None]) -> Tensor:
    """An alias of a tensor for one of the operations that read it, with a hook on its gradient."""
    view = x.view_as(x)
    on_gradient(view, hook)
    return view


def times(ratio: Tensor, number: Tensor) -> Tensor:
    """Relevance from c = R / v and v, in single precision at least."""
    dtype = torch.promote_types(ratio.dtype, torch.float32)
    return ratio.to(dtype) * number.to(dtype)
