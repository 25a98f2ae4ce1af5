"""Single operations under `alpha-beta`: the backward passes carry relevance.

See `headlens.analyses.relevance.lrp.alpha_beta`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from headlens.analyses.relevance.lrp.gradient_rules import Function

ALPHA = BETA = 0.5
EPSILON = 1e-5
# Contributions that are held at a time.
_CHUNK = 1 << 24


class SameRelevance(torch.autograd.Function):
    """Elementwise function y = f(x), whose input receives the relevance of its output: R_x = R_y."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor, function: Function) -> Tensor:
        """Returns `function(x)`, which has the shape of x."""
        y: Tensor = function(x)
        if y.shape != x.shape:
            raise LookupError("a constant of another shape")
        return y

    @staticmethod
    def backward(_ctx: Any, relevance: Tensor) -> tuple[Tensor, None]:
        """Returns the relevance of the output unchanged, as that of the input."""
        return relevance, None


class HalfRelevance(torch.autograd.Function):
    """Product x · y of two activations, each of which receives half of the relevance."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, function: Function) -> Tensor:
        """Returns the product of both activations, of their broadcast shape."""
        ctx.shapes = x.shape, y.shape
        product: Tensor = function(x, y)
        return product

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor, Tensor, None]:
        """Returns half of the relevance for each factor, summed over axes that were broadcast."""
        half = relevance / 2
        return half.sum_to_size(ctx.shapes[0]), half.sum_to_size(ctx.shapes[1]), None


class ExplicitSum(torch.autograd.Function):
    """x + y or x - y; at every position the two vectors are one sample."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, function: Function) -> Tensor:
        """Returns the sum or difference of both activations, and keeps both terms for the backward pass."""
        total: Tensor = function(x, y)
        # Broadcast, and with the sign they have in the sum.
        ctx.save_for_backward(function(x, torch.zeros_like(y)), function(torch.zeros_like(x), y))
        ctx.shapes = x.shape, y.shape
        return total

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor | None, ...]:
        """Positive and negative parts apart."""
        contributions = torch.stack(ctx.saved_tensors, dim=-1)
        shares = distribute(contributions[..., None, :], relevance[..., None])
        scaled = rescale(shares, relevance, axes=(-2, -1), reference_axes=(-1,))
        return *(_summed(s, shape) for s, shape in zip(scaled.unbind(-1), ctx.shapes, strict=True)), None


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
        found = torch.zeros_like(tokens)
        rows = max(1, _CHUNK // max(1, weight.numel()))
        for part in torch.split(r.any(dim=1).nonzero()[:, 0], rows):
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
    def backward(ctx: Any, relevance: Tensor) -> tuple[Tensor | None, ...]:
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
