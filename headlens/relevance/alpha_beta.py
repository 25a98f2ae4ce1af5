"""The rule of Voita et al.'s own code, with every contribution written out: a slow reference for small inputs.

The backward pass carries relevance itself. An operation with the outputs v gives its inputs u

    R_u = sum_v R_v (alpha z+_uv / (sum_u z+_uv + eps) + beta z-_uv / (sum_u z-_uv - eps)),   alpha = beta = 0.5

with z_uv = (dv / du) u + f(0)_v / n: of n inputs each takes an equal share of the bias. Then the inputs' relevance is scaled
so that the sum of its magnitudes is that of the outputs (per token, per position or per head, and for the whole example).
A number read by several operations adds up what comes back, scaled to the sum of the parts' magnitudes. Attention is
one operation of queries, keys and values with its full Jacobian, LayerNorm too.

What differs from that code: queries, keys and values come from three linear layers, whose magnitudes are kept apart, not from
one joined; the Jacobian of LayerNorm has its epsilon in all places; a constant that is added outside of a linear layer gets
nothing; relevance starts at the value of the logit, not at 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn import functional

from headlens.attention.contract import CallContext
from headlens.errors import UnsupportedModelError
from headlens.relevance.ledger import Ledger
from headlens.relevance.ratios import Arguments, Function, Keywords, is_active
from headlens.relevance.table import Kind

ALPHA = BETA = 0.5
EPSILON = 1e-5
# Contributions that are held at a time.
_CHUNK = 1 << 24


class Shares:
    """The rules of `alpha-beta`, by kind of operation.

    Args:
        ledger: told of leaves; biases keep nothing here.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        # By identity; the tensor is held so that the identity stays its own.
        self._read: dict[int, tuple[Tensor, _Meter]] = {}

    def apply(self, kind: Kind, function: Function, args: Arguments, kwargs: Keywords) -> Any:
        """Run an operation on something active so that its backward follows the rule of its kind.

        Raises:
            LookupError: if there is no rule for it.
        """
        args = [self._metered(a) for a in args]
        if kind is Kind.LINEAR:
            return self._linear(function, args, kwargs)
        if kind is Kind.NORM:
            return ExplicitNorm.apply(*_norm_arguments(*args, **kwargs))
        if kind is Kind.KEEP:
            return self.keep(args[0], lambda x: function(x, *args[1:], **kwargs))
        if kind in (Kind.ADD, Kind.MULTIPLY, Kind.DIVIDE):
            return self._by_number(kind, function, args)
        if kind is Kind.MOVE:
            return function(*args, **kwargs)
        raise LookupError(f"{kind.value} under alpha-beta")

    @staticmethod
    def keep(x: Tensor, function: Function) -> Tensor:
        """One function of x that hands relevance on unchanged."""
        kept: Tensor = SameRelevance.apply(x, function)
        return kept

    def _linear(self, function: Function, args: Arguments, kwargs: Keywords) -> Tensor:
        if function is functional.linear:
            x, weight, bias = (*args, *kwargs.values(), None)[:3]
        else:
            bias, x, weight = args[0], args[1], args[2].T
        output: Tensor = ExplicitLinear.apply(x, weight, bias)
        return output

    def _by_number(self, kind: Kind, function: Function, args: Arguments) -> Tensor:
        """Sums and products number by number."""
        left, right = args
        output: Tensor
        if is_active(left) and is_active(right):
            if kind is Kind.DIVIDE:
                raise LookupError("division by an activation")
            output = (ExplicitSum if kind is Kind.ADD else HalfRelevance).apply(left, right, function)
        elif is_active(left):
            output = SameRelevance.apply(left, lambda x: function(x, right))
        elif kind is Kind.DIVIDE:
            raise LookupError("division by an activation")
        else:
            output = SameRelevance.apply(right, lambda x: function(left, x))
        return output

    def _metered(self, value: Any) -> Any:
        """What is read once more: its relevance comes back together with that of its other readers."""
        if isinstance(value, list | tuple):
            return type(value)(self._metered(v) for v in value)
        if not is_active(value):
            return value
        if id(value) not in self._read:
            meter = _Meter()
            value.register_hook(meter.scale)
            self._read[id(value)] = value, meter
        return Branch.apply(value, self._read[id(value)][1])


class _Meter:
    """The magnitudes of what comes back from each reader of a number."""

    def __init__(self) -> None:
        self.parts: list[Tensor] = []

    def scale(self, relevance: Tensor) -> Tensor:
        """The sum of all parts, at the magnitude of all parts."""
        total = relevance.abs().sum()
        if len(self.parts) < 2 or not total:
            return relevance
        return relevance * (torch.stack(self.parts).sum() / total)


class Branch(torch.autograd.Function):
    """One reader of a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, meter: _Meter) -> Tensor:
        """The number."""
        ctx.meter = meter
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """Tells its magnitude."""
        ctx.meter.parts.append(relevance.abs().sum())
        return relevance, None


class SameRelevance(torch.autograd.Function):
    """y = f(x), number by number: R_x = R_y."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, function: Function) -> Tensor:
        """`function(x)`."""
        y: Tensor = function(x)
        if y.shape != x.shape:
            raise LookupError("a constant of another shape")
        return y

    @staticmethod
    def backward(ctx: FunctionCtx, relevance: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """As it is."""
        return relevance, None


class HalfRelevance(torch.autograd.Function):
    """x · y of two activations."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, function: Function) -> Tensor:
        """The product."""
        ctx.shapes = x.shape, y.shape
        product: Tensor = function(x, y)
        return product

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        """Half each."""
        half = relevance / 2
        return half.sum_to_size(ctx.shapes[0]), half.sum_to_size(ctx.shapes[1]), None


class ExplicitSum(torch.autograd.Function):
    """x + y or x - y; at every position the two vectors are one sample."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, function: Function) -> Tensor:
        """The sum."""
        total: Tensor = function(x, y)
        # Broadcast, and with the sign they have in the sum.
        ctx.save_for_backward(function(x, torch.zeros_like(y)), function(torch.zeros_like(x), y))
        ctx.shapes = x.shape, y.shape
        return total

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Positive and negative parts apart."""
        contributions = torch.stack(ctx.saved_tensors, dim=-1)
        shares = distribute(contributions[..., None, :], relevance[..., None])
        scaled = rescale(shares, relevance, axes=(-2, -1), reference_axes=(-1,))
        return *(_summed(s, shape) for s, shape in zip(scaled.unbind(-1), ctx.shapes, strict=True)), None


class ExplicitLinear(torch.autograd.Function):
    """x W' + b, token by token."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """A fully connected layer."""
        ctx.save_for_backward(x)
        ctx.weight, ctx.bias = weight, bias
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        """Positive and negative parts apart; outputs and tokens without relevance are left out."""
        (x,) = ctx.saved_tensors
        r, tokens = relevance.flatten(0, -2), x.flatten(0, -2)
        used = r.any(dim=0)
        weight = ctx.weight[used]
        share = torch.zeros(()) if ctx.bias is None else ctx.bias[used, None] / x.shape[-1]
        found = torch.zeros_like(tokens)
        rows = max(1, _CHUNK // max(1, weight.numel()))
        for part in r.any(dim=1).nonzero()[:, 0].split(rows):
            contributions = weight * tokens[part, None, :] + share.to(x)
            found[part] = distribute(contributions, r[part][:, used])
        found = rescale(found, r, axes=(-1,), reference_axes=(-1,))
        return rescale_all(found, r).view_as(x), None, None


class ExplicitNorm(torch.autograd.Function):
    """LayerNorm over the last axis, token by token, with its whole Jacobian."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        """The same as torch's layer_norm."""
        y, mean, inverse = torch.native_layer_norm(x, x.shape[-1:], weight, bias, eps)
        ctx.save_for_backward(x, mean, inverse)
        ctx.weight, ctx.bias = weight, bias
        return y

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Positive and negative parts apart."""
        x, mean, inverse = (t.flatten(0, -2) for t in ctx.saved_tensors)
        r, n = relevance.flatten(0, -2), x.shape[-1]
        normed = (x - mean) * inverse
        # dy_i / dx_j = weight_i · inverse · (delta_ij - 1/n - normed_i normed_j / n)
        jacobian = torch.eye(n).to(x) - 1 / n - normed[:, :, None] * normed[:, None, :] / n
        jacobian = jacobian * (inverse if ctx.weight is None else inverse * ctx.weight)[:, :, None]
        share = torch.zeros(()).to(x) if ctx.bias is None else ctx.bias[:, None] / n
        found = distribute(jacobian * x[:, None, :] + share, r)
        found = rescale(found, r, axes=(-1,), reference_axes=(-1,))
        return rescale_all(found, r).view_as(ctx.saved_tensors[0]), None, None, None


class ExplicitAttention(torch.autograd.Function):
    """Attention as one function of queries, keys and values, head by head."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, computed: Sequence[Tensor]) -> Tensor:
        """The head outputs, computed before: the one element of `computed`, with the graph behind it."""
        ctx.save_for_backward(query, key, value)
        ctx.inputs, ctx.output = (query, key, value), computed[0]
        return computed[0].detach().clone()

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Positive and negative parts apart: one row of the Jacobian at a time, for all heads at once."""
        found = [torch.zeros_like(t) for t in ctx.inputs]
        heads = relevance.shape[2]
        for query, neuron in relevance.ne(0).any(dim=2)[0].nonzero().tolist():
            rows = _jacobian_row(ctx.output, ctx.inputs, query, neuron)
            contributions = torch.cat([(j * t.detach())[0].flatten(1) for j, t in zip(rows, ctx.inputs, strict=True)], 1)
            shares = distribute(contributions[:, None, :], relevance[0, query, :, neuron, None])
            parts = shares.split([prod(t.shape[2:]) for t in ctx.inputs], dim=1)
            for total, part in zip(found, parts, strict=True):
                total += part.view_as(total)
        joined = torch.cat([f[0].flatten(1) for f in found], dim=1)  # (heads, inputs of a head)
        by_head = relevance[0].transpose(0, 1).reshape(heads, -1)
        scaled = rescale_all(rescale(joined, by_head, axes=(-1,), reference_axes=(-1,)), by_head)
        parts = scaled.split([prod(t.shape[2:]) for t in ctx.inputs], dim=1)
        return *(p.reshape(t.shape) for p, t in zip(parts, ctx.inputs, strict=True)), None


def explicit_attention(context: CallContext, output: Tensor) -> Tensor:
    """The same head outputs, (1, query, heads, d), with the backward of `alpha-beta`.

    Raises:
        UnsupportedModelError: if several heads share their keys, whose Jacobians could not be told apart.
    """
    if context.key.shape[1] != context.query.shape[1]:
        raise UnsupportedModelError(
            f"{context.site}: alpha-beta has no rule for heads that share keys.", "Use the rule epsilon."
        )
    explicit: Tensor = ExplicitAttention.apply(context.query, context.key, context.value, [output])
    return explicit


def distribute(contributions: Tensor, relevance: Tensor) -> Tensor:
    """R_u from z_uv, (..., outputs, inputs), and R_v, (..., outputs): (..., inputs)."""
    positive, negative = contributions.clamp(min=0), contributions.clamp(max=0)
    for_positive = ALPHA * relevance / (positive.sum(dim=-1) + EPSILON)
    for_negative = BETA * relevance / (negative.sum(dim=-1) - EPSILON)
    shares = for_positive[..., None, :] @ positive + for_negative[..., None, :] @ negative
    return shares[..., 0, :]


def rescale(relevance: Tensor, reference: Tensor, axes: tuple[int, ...], reference_axes: tuple[int, ...]) -> Tensor:
    """Relevance with the magnitude of a reference, both summed over their axes."""
    wanted = reference.abs().sum(dim=reference_axes)
    factor = wanted / (relevance.abs().sum(dim=axes) + EPSILON)
    return relevance * factor[(..., *(None for _ in axes))]


def rescale_all(relevance: Tensor, reference: Tensor) -> Tensor:
    """Relevance with the magnitude of a reference, both summed over everything."""
    return relevance * (reference.abs().sum() / (relevance.abs().sum() + EPSILON))


def _summed(relevance: Tensor, shape: torch.Size) -> Tensor:
    """Relevance of a tensor that was broadcast, at the magnitude it had."""
    if relevance.shape == shape:
        return relevance
    return rescale_all(relevance.sum_to_size(shape), relevance)


def _jacobian_row(output: Tensor, inputs: Sequence[Tensor], query: int, neuron: int) -> tuple[Tensor, ...]:
    """d output[0, query, head, neuron] / d inputs of the same head, for every head; heads do not meet."""
    chosen = torch.zeros_like(output)
    chosen[0, query, :, neuron] = 1
    rows = torch.autograd.grad(output, inputs, chosen, retain_graph=True, allow_unused=True)
    return tuple(torch.zeros_like(t) if r is None else r for r, t in zip(rows, inputs, strict=True))


def _norm_arguments(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor | None, Tensor | None, float]:
    if len(shape) != 1:
        raise LookupError("LayerNorm over several axes")
    return x, weight, bias, eps
