"""alpha-entmax on a GPU by Triton kernels, where these give the numbers of the package `entmax`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headlens.attention.kernels.row_attention import available, reason_against

Alpha = float | Tensor
MOST_KEYS = 4096  # a row is kept in registers
_AT_ONCE = 2048  # scores of a program, where rows are short
_CHECKED = 8  # queries of each head that are compared with the package
_STEPS = 24  # of Newton's method
# By alpha, or "learned", and device: why no kernel serves; nothing where one does.
_refusals: dict[tuple[str, str], str] = {}


def entmax_computed_by(alpha: str) -> str:
    """What computes entmax with an alpha, or "learned" ones: kernels, or the package and why; nothing before a pass."""
    reasons = [why for (name, _), why in _refusals.items() if name == alpha]
    return "" if not reasons else f"package entmax: {reasons[-1]}" if reasons[-1] else "Triton kernels"


def entmax_refusal(scores: Tensor, alpha: Alpha, by_package: Callable[[Tensor, Alpha], Tensor]) -> str:
    """Why the entmax of scores is not computed by the kernels; nothing if it is.

    Args:
        scores: `(..., key)`; with an alpha for each head `(batch, heads, query, key)`.
        alpha: of all rows, or `(heads, 1, 1)`; learned ones are at most 2.
        by_package: what gives the same weights.
    """
    if not isinstance(alpha, Tensor) and alpha > 2:
        return "an alpha above 2, where float32 has few digits"
    if scores.dtype != torch.float32 or not 0 < scores.shape[-1] <= MOST_KEYS or not scores.numel():
        return f"{scores.shape[-1]} keys and numbers of the type {str(scores.dtype).removeprefix('torch.')}"
    place = ("learned" if isinstance(alpha, Tensor) else f"{alpha:g}", str(scores.device))
    if place not in _refusals:
        agree = partial(_agree, scores.detach(), alpha, by_package)
        _refusals[place] = available(scores.device) or reason_against(agree, "the package gives other numbers")
    return _refusals[place]


def _agree(scores: Tensor, alpha: Alpha, by_package: Callable[[Tensor, Alpha], Tensor]) -> bool:
    """Compares weights and gradients of a few rows."""
    if isinstance(alpha, Tensor):
        few, alpha = scores[:1, :, -_CHECKED:], alpha.detach()
    else:
        few = scores.reshape(-1, scores.shape[-1])[-_CHECKED * _CHECKED :]
    given = torch.linspace(-1, 1, few.numel(), device=few.device).view_as(few).sin()
    results = []
    for function in (entmax_of_rows, by_package):
        with torch.enable_grad():
            leaves = [few.clone().requires_grad_()]
            leaves += [alpha.clone().requires_grad_()] if isinstance(alpha, Tensor) else []
            weights = function(leaves[0], leaves[1] if len(leaves) > 1 else alpha)
            results.append((weights.detach(), *torch.autograd.grad((weights * given).sum(), leaves)))
    return all(torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4) for ours, theirs in zip(*results, strict=True))


def entmax_of_rows(scores: Tensor, alpha: Alpha) -> Tensor:
    """Computes entmax over the last axis by the kernels, with its gradients; arguments as of `entmax_refusal`."""
    alphas, fixed = (alpha, None) if isinstance(alpha, Tensor) else (scores.new_full((1,), alpha), alpha)
    weights: Tensor = _EntmaxRows.apply(scores, alphas, fixed)  # type: ignore[no-untyped-call]
    return weights


def sizes_of(n_keys: int) -> dict[str, int]:
    """Rows and columns of a tile, and how many warps work on it."""
    block = max(16, 1 << (n_keys - 1).bit_length())
    return {"ROWS": max(1, _AT_ONCE // block), "BLOCK": block, "num_warps": 4 if block <= _AT_ONCE else 8}


class _EntmaxRows(torch.autograd.Function):
    """Runs both kernels; `fixed` is the alpha of all rows, None where heads have their own."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, alphas: Tensor, fixed: float | None) -> Tensor:
        from headlens.attention.kernels import entmax_kernels as kernels  # noqa: PLC0415 - heavy, and only on GPUs

        scores, flat = scores.contiguous(), alphas.detach().float().reshape(-1).contiguous()
        weights, sizes, shape = torch.empty_like(scores), sizes_of(scores.shape[-1]), _shape(scores, fixed)
        kernels.entmax_forward[(-(-shape[0] // sizes["ROWS"]),)](
            scores, flat, weights, *shape, **sizes, STEPS=_STEPS, SQUARE=fixed == 1.5
        )
        masked = (scores.amax(-1) <= torch.finfo(scores.dtype).min / 2).to(torch.int8)
        ctx.save_for_backward(weights, flat, masked)
        ctx.fixed, ctx.of_alphas = fixed, alphas.shape
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor | None, None]:
        from headlens.attention.kernels import entmax_kernels as kernels  # noqa: PLC0415 - heavy, and only on GPUs

        weights, flat, masked = ctx.saved_tensors
        shape, sizes = _shape(weights, ctx.fixed), sizes_of(weights.shape[-1])
        of_scores, of_rows = torch.empty_like(weights), weights.new_empty(weights.shape[:-1])
        kernels.entmax_backward[(-(-shape[0] // sizes["ROWS"]),)](
            weights, given.contiguous(), flat, masked, of_scores, of_rows, *shape, **sizes,
            SQUARE=ctx.fixed == 1.5, LEARNS=ctx.fixed is None,
        )  # fmt: skip
        return of_scores, None if ctx.fixed is not None else of_rows.sum((0, 2)).view(ctx.of_alphas), None


def _shape(scores: Tensor, fixed: float | None) -> tuple[int, int, int, int]:
    """Numbers of rows, keys, queries and heads as kernels count them; a fixed alpha is that of one head."""
    n_keys = scores.shape[-1]
    queries, heads = (1, 1) if fixed is not None else (scores.shape[2], scores.shape[1])
    return scores.numel() // n_keys, n_keys, queries, heads
