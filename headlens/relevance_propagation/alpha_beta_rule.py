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
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from headlens.attention.edits_and_observers import CallContext
from headlens.errors import UnsupportedModelError
from headlens.relevance_propagation.epsilon_rule import (
    Arguments,
    ConservationLedger,
    Function,
    GradientRules,
    Keywords,
    hooked,
    is_active,
    linear_parts,
    norm_parts,
    on_gradient,
    run,
)
from headlens.relevance_propagation.op_rules import OpKind

ALPHA = BETA = 0.5
EPSILON = 1e-5
# Contributions that are held at a time.
_CHUNK = 1 << 24


class AlphaBetaRules(GradientRules):
    """The rules of `alpha-beta`, by kind of operation.

    Args:
        ledger: records leaves; biases keep nothing here.
    """

    def __init__(self, ledger: ConservationLedger) -> None:
        super().__init__(ledger)
        # By identity; the tensor is held so that the identity stays its own.
        self._read: dict[int, tuple[Tensor, list[Tensor]]] = {}

    def apply(self, kind: OpKind, function: Function, args: Arguments, kwargs: Keywords) -> Any:
        """Run an operation on something active so that its backward follows the rule of its kind.

        Raises:
            LookupError: if there is no rule for it.
        """
        args = [self._metered(a) for a in args]
        if kind is OpKind.LINEAR:
            return run(ExplicitLinear, *linear_parts(function, args, kwargs))
        if kind is OpKind.NORM:
            return run(ExplicitNorm, *norm_parts(*args, **kwargs))
        if kind in (OpKind.KEEP, OpKind.SCALE):
            return self.keep(args[0], lambda x: function(x, *args[1:], **kwargs))
        if kind is OpKind.MOVE:
            moved = function(*args, **kwargs)
            # Some hand their argument back (`.float()`, dropout): what its readers are scaled by would then be noted
            # at the argument before they are scaled.
            return moved.view_as(moved) if any(moved is a for a in args) else moved
        if kind not in (OpKind.ADD, OpKind.MULTIPLY, OpKind.DIVIDE):
            raise LookupError(f"{kind.value} under alpha-beta")
        # Sums and products number by number.
        (left, right), by_number = args, partial(function, **kwargs)
        if kind is OpKind.DIVIDE and is_active(right):
            raise LookupError("division by an activation")
        if not is_active(right):
            return self.keep(left, lambda x: by_number(x, right))
        if not is_active(left):
            return self.keep(right, lambda x: by_number(left, x))
        return run(ExplicitSum if kind is OpKind.ADD else EqualShares, by_number, left, right)

    @staticmethod
    def keep(x: Tensor, function: Function) -> Tensor:
        """One function of x that hands relevance on unchanged."""
        return run(EqualShares, function, x)

    def _metered(self, value: Any) -> Any:
        """What is read once more: its relevance comes back together with that of its other readers."""
        if isinstance(value, list | tuple):
            return type(value)(self._metered(v) for v in value)
        if not is_active(value):
            return value
        if id(value) not in self._read:
            parts: list[Tensor] = []
            on_gradient(value, partial(_scaled, parts))
            self._read[id(value)] = value, parts
        readers = self._read[id(value)][1]
        return hooked(value, lambda relevance: readers.append(relevance.abs().sum()))


def _scaled(parts: list[Tensor], relevance: Tensor | None) -> Tensor | None:
    """The summed relevance of all readers of a number, with the sum of the magnitudes that came back from each."""
    if relevance is None or len(parts) < 2:  # None for one of several outputs that nobody read
        return relevance
    total = relevance.abs().sum()
    return relevance * (torch.stack(parts).sum() / total) if total else relevance


class EqualShares(torch.autograd.Function):
    """A function of one or two activations, number by number; each receives the same share of the relevance."""

    @staticmethod
    def forward(ctx: Any, function: Function, *inputs: Tensor) -> Tensor:
        """Returns what the function gives: of the shape of one activation, or of that to which two are broadcast."""
        ctx.shapes = [x.shape for x in inputs]
        y: Tensor = function(*inputs)
        if len(inputs) == 1 and y.shape != inputs[0].shape:
            raise LookupError("a constant of another shape")
        return y

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the share of each activation, summed over axes that were broadcast."""
        share = relevance / len(ctx.shapes)
        return None, *(share.sum_to_size(shape) for shape in ctx.shapes)


class ExplicitSum(torch.autograd.Function):
    """x + y or x - y; at every position the two vectors are one sample."""

    @staticmethod
    def forward(ctx: Any, function: Function, x: Tensor, y: Tensor) -> Tensor:
        """Returns the sum or difference of both activations, and keeps both terms for the backward pass."""
        total: Tensor = function(x, y)
        # Broadcast, and with the sign they have in the sum.
        ctx.save_for_backward(function(x, torch.zeros_like(y)), function(torch.zeros_like(x), y))
        ctx.shapes = x.shape, y.shape
        return total

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor | None, ...]:
        """Positive and negative parts apart."""
        shares = distribute(torch.stack(ctx.saved_tensors, dim=-1)[..., None, :], relevance[..., None])
        scaled = rescale(shares, relevance, axes=(-2, -1))
        parts = zip(scaled.unbind(-1), ctx.shapes, strict=True)
        # That of a tensor that was broadcast at the magnitude it had.
        return None, *(s if s.shape == shape else rescale_all(s.sum_to_size(shape), s) for s, shape in parts)


class ExplicitLinear(torch.autograd.Function):
    """Linear layer x W' + b under the alpha-beta rule, token by token; the bias is shared among the inputs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Returns x W' + b; x is (..., inputs), W (outputs, inputs)."""
        ctx.save_for_backward(x)
        ctx.weight, ctx.bias = weight, bias
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor, None, None]:
        """Positive and negative parts apart; outputs and tokens without relevance are left out."""
        (x,) = ctx.saved_tensors
        r, tokens = relevance.flatten(0, -2), x.flatten(0, -2)
        used = r.any(dim=0)
        weight = ctx.weight[used]
        share = torch.zeros(()) if ctx.bias is None else ctx.bias[used, None] / x.shape[-1]
        distributed = torch.zeros_like(tokens)
        rows = max(1, _CHUNK // max(1, weight.numel()))
        for part in torch.split(r.any(dim=1).nonzero()[:, 0], rows):
            distributed[part] = distribute(weight * tokens[part, None, :] + share.to(x), r[part][:, used])
        return rescale_all(rescale(distributed, r), r).view_as(x), None, None


class ExplicitNorm(torch.autograd.Function):
    """LayerNorm over the last axis, token by token, with its whole Jacobian."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        """The same as torch's layer_norm."""
        if len(shape) != 1:
            raise LookupError("LayerNorm over several axes")
        y, mean, inverse = torch.native_layer_norm(x, shape, weight, bias, eps)
        ctx.save_for_backward(x, mean, inverse)
        ctx.weight, ctx.bias = weight, bias
        return y

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor | None, ...]:
        """Positive and negative parts apart."""
        x, mean, inverse = (t.flatten(0, -2) for t in ctx.saved_tensors)
        r, n = relevance.flatten(0, -2), x.shape[-1]
        normed = (x - mean) * inverse
        # dy_i / dx_j = weight_i · inverse · (delta_ij - 1/n - normed_i normed_j / n)
        jacobian = torch.eye(n).to(x) - 1 / n - normed[:, :, None] * normed[:, None, :] / n
        jacobian = jacobian * (inverse if ctx.weight is None else inverse * ctx.weight)[:, :, None]
        share = torch.zeros(()).to(x) if ctx.bias is None else ctx.bias[:, None] / n
        distributed = distribute(jacobian * x[:, None, :] + share, r)
        return rescale_all(rescale(distributed, r), r).view_as(ctx.saved_tensors[0]), None, None, None, None


def distribute(contributions: Tensor, relevance: Tensor) -> Tensor:
    """R_u from z_uv, (..., outputs, inputs), and R_v, (..., outputs): (..., inputs)."""
    positive, negative = contributions.clamp(min=0), contributions.clamp(max=0)
    for_positive = ALPHA * relevance / (positive.sum(dim=-1) + EPSILON)
    for_negative = BETA * relevance / (negative.sum(dim=-1) - EPSILON)
    return (for_positive[..., None, :] @ positive + for_negative[..., None, :] @ negative)[..., 0, :]


def rescale(relevance: Tensor, reference: Tensor, axes: tuple[int, ...] = (-1,)) -> Tensor:
    """Relevance with the magnitude of a reference, summed over these axes and over the last one of the reference."""
    factor = reference.abs().sum(dim=-1) / (relevance.abs().sum(dim=axes) + EPSILON)
    return relevance * factor[(..., *(None for _ in axes))]


def rescale_all(relevance: Tensor, reference: Tensor) -> Tensor:
    """Relevance with the magnitude of a reference, both summed over everything."""
    return relevance * (reference.abs().sum() / (relevance.abs().sum() + EPSILON))


class ExplicitAttention(torch.autograd.Function):
    """Attention as one function of queries, keys and values, head by head."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, computed: Sequence[Tensor]) -> Tensor:
        """The head outputs, computed before: the one element of `computed`, with the graph behind it."""
        ctx.inputs, ctx.output = (query, key, value), computed[0]
        return computed[0].detach().clone()

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor | None, ...]:
        """Positive and negative parts apart: one row of the Jacobian at a time, for all heads at once."""
        values = _by_head(ctx.inputs).detach()
        total = torch.zeros_like(values)
        for query, neuron in relevance.ne(0).any(dim=2).any(dim=0).nonzero().tolist():
            chosen = torch.zeros_like(ctx.output)
            chosen[:, query, :, neuron] = 1
            # How this neuron of every row and head changes with the inputs of the same head.
            rows = torch.autograd.grad(ctx.output, ctx.inputs, chosen, retain_graph=True, materialize_grads=True)
            total += distribute((_by_head(rows) * values)[:, None, :], relevance[:, query, :, neuron].reshape(-1, 1))
        outputs = relevance.transpose(1, 2).flatten(0, 1).flatten(1)
        scaled = rescale_all(rescale(total, outputs), outputs)
        parts = torch.split(scaled, [prod(t.shape[2:]) for t in ctx.inputs], dim=1)
        return *(p.reshape(t.shape) for p, t in zip(parts, ctx.inputs, strict=True)), None


def explicit_attention(context: CallContext, output: Tensor) -> Tensor:
    """The same head outputs, (batch, query, heads, d), with the backward of `alpha-beta`.

    Raises:
        UnsupportedModelError: if several heads share their keys, whose Jacobians could not be told apart.
    """
    if context.key.shape[1] != context.query.shape[1]:
        raise UnsupportedModelError(
            f"{context.site}: alpha-beta has no rule for heads that share keys.", "Use the rule epsilon."
        )
    return run(ExplicitAttention, context.query, context.key, context.value, [output])


def _by_head(tensors: Sequence[Tensor]) -> Tensor:
    """Queries, keys and values, each (batch, heads, tokens, d), as the inputs of heads: (batch · heads, inputs)."""
    return torch.cat([t.flatten(0, 1).flatten(1) for t in tensors], dim=1)
