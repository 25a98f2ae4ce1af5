"""Triton kernels of alpha-entmax over rows, forward and backward: every row is read once, and solved in registers."""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-1.7014117e38)  # half of the lowest number: what a mask leaves of a score
SMALLEST = tl.constexpr(1.1754943508222875e-38)  # whose logarithm is finite
# Scores so far below the largest get nothing; differences of them are finite.
FAR = tl.constexpr(-4.0)


@triton.jit
def _power(x, exponent):
    return tl.where(x > 0, tl.exp2(tl.log2(tl.maximum(x, SMALLEST)) * exponent), 0.0)


@triton.jit
def _alphas(ALPHAS, rows, n_rows, n_queries, n_heads):
    """The alpha of the head that each row is of; rows are ordered by batch, head and query."""
    return tl.load(ALPHAS + rows // n_queries % n_heads, mask=rows < n_rows, other=2.0)


@triton.jit(do_not_specialize=["n_rows", "n_keys", "n_queries", "n_heads"])
def entmax_forward(
    SCORES, ALPHAS, WEIGHTS, n_rows, n_keys, n_queries, n_heads,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STEPS: tl.constexpr, SQUARE: tl.constexpr,
):  # fmt: skip
    """Weights max(0, (alpha - 1) score - threshold) ^ (1 / (alpha - 1)) that add up to 1.

    Up to an alpha of 2 their sum is a convex function of the threshold, and Newton's steps from below never pass the
    solution. Rows that are masked throughout count as zeros.
    """
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    here = (rows < n_rows)[:, None] & (cols < n_keys)[None, :]
    place = rows[:, None] * n_keys + cols[None, :]
    s = tl.load(SCORES + place, mask=here, other=-float("inf"))
    most = tl.max(s, 1)
    masked = most <= LOWEST
    s = tl.where(masked[:, None], 0.0, s)
    most = tl.where(masked, 0.0, most)
    rest = _alphas(ALPHAS, rows, n_rows, n_queries, n_heads) - 1
    exponent = (1 / rest)[:, None]
    x = tl.where(here, tl.maximum((s - most[:, None]) * rest[:, None], FAR), FAR)
    # The largest score alone gets 1 here.
    threshold = tl.full([ROWS], -1.0, tl.float32)
    for _ in range(STEPS):
        z = tl.maximum(x - threshold[:, None], 0.0)
        if SQUARE:
            sums, slope = tl.sum(z * z, 1), 2 * tl.sum(z, 1)
        else:
            p = _power(z, exponent)
            sums = tl.sum(p, 1)
            slope = tl.sum(tl.where(z > 0, p / tl.maximum(z, SMALLEST), 0.0), 1) / rest
        threshold += (sums - 1) / slope
    z = tl.maximum(x - threshold[:, None], 0.0)
    if SQUARE:
        p = z * z
    else:
        p = _power(z, exponent)
    tl.store(WEIGHTS + place, p / tl.sum(p, 1)[:, None], mask=here)


@triton.jit(do_not_specialize=["n_rows", "n_keys", "n_queries", "n_heads"])
def entmax_backward(
    WEIGHTS, GRADIENT, ALPHAS, MASKED, OF_SCORES, OF_ALPHAS, n_rows, n_keys, n_queries, n_heads,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, SQUARE: tl.constexpr, LEARNS: tl.constexpr,
):  # fmt: skip
    """Gradients for scores (Peters, Niculae and Martins 2019, section 3), and for alphas (Correia et al. 2019)."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    here = (rows < n_rows)[:, None] & (cols < n_keys)[None, :]
    place = rows[:, None] * n_keys + cols[None, :]
    y = tl.load(WEIGHTS + place, mask=here, other=0.0)
    given = tl.load(GRADIENT + place, mask=here, other=0.0)
    alpha = _alphas(ALPHAS, rows, n_rows, n_queries, n_heads)
    if SQUARE:
        slope = tl.sqrt(y)
    else:
        slope = _power(y, (2 - alpha)[:, None])
    total = tl.where(rows < n_rows, tl.sum(slope, 1), 1.0)
    mean = tl.sum(slope * given, 1) / total
    # Where a mask closes a whole row, scores count as zeros.
    counts = tl.load(MASKED + rows, mask=rows < n_rows, other=1) == 0
    of_scores = tl.where(counts[:, None], slope * (given - mean[:, None]), 0.0)
    tl.store(OF_SCORES + place, of_scores, mask=here)
    if LEARNS:
        terms = tl.where(y > 0, y * tl.log(tl.maximum(y, SMALLEST)), 0.0)
        share = slope / total[:, None]
        rest = alpha - 1
        by_scale = tl.sum(given * (y - share), 1) / (rest * rest)
        by_power = tl.sum(given * (terms - share * tl.sum(terms, 1)[:, None]), 1) / rest
        tl.store(OF_ALPHAS + rows, tl.where(counts, by_scale - by_power, 0.0), mask=rows < n_rows)
