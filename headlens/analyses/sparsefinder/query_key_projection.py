"""Small spaces in which queries are near the keys they look at (Sparsefinder, Treviso et al. 2022, section 4)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class QueryKeyProjections(nn.Module):
    """A linear map to r dimensions for each head: q' = q W + b, k' = k V + c.

    Args:
        heads: how many heads there are, each with maps of its own.
        size: d of their queries and keys.
        dimensions: r.
        shared: whether W = V and b = c.
    """

    def __init__(self, heads: int, size: int, dimensions: int = 4, *, shared: bool = True) -> None:
        super().__init__()
        self.shared = shared
        maps = 1 if shared else 2
        spread = 1 / math.sqrt(size)  # as in a linear layer
        self.weight = nn.Parameter(torch.empty(maps, heads, size, dimensions).uniform_(-spread, spread))
        self.bias = nn.Parameter(torch.empty(maps, heads, 1, dimensions).uniform_(-spread, spread))

    def forward(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Projected vectors, (batch, heads, tokens, r), of vectors (batch, heads, tokens, d)."""
        last = 0 if self.shared else 1
        weight, bias = self.weight.to(queries.device), self.bias.to(queries.device)
        return queries @ weight[0] + bias[0], keys @ weight[last] + bias[last]


def margin_losses(
    queries: Tensor,
    keys: Tensor,
    gold: Tensor,
    allowed: Tensor,
    margin: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """max(0, m + Σ_pos ‖q' - k'‖² - Σ_neg ‖q' - k'‖²) of every query: (batch, heads, query).

    Positives are a query's gold keys, negatives as many others, drawn anew each time, or all others where these are
    fewer. Queries that are padding, or have no gold key, have 0.

    Args:
        queries: q', (batch, heads, query, r).
        keys: k', (batch, heads, key, r).
        gold: pairs with weight, bool, (batch, heads, query, key).
        allowed: pairs that could have, see `allowed_pairs`.
        margin: m.
        generator: of the draws, on the processor or the device of the vectors.
    """
    apart = _squared_distances(queries, keys)
    positive = gold & allowed
    negative = drawn(~gold & allowed, positive.sum(dim=-1, keepdim=True), generator)
    near, far = ((apart * own).sum(dim=-1) for own in (positive, negative))
    asked = positive.any(dim=-1)
    return torch.relu(margin + near - far) * asked


def drawn(free: Tensor, wanted: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """As many of the free places of every row as are wanted, at random, or all: bool, of the shape of `free`.

    Args:
        free: bool, (..., places).
        wanted: how many, (..., 1).
        generator: of the draws.
    """
    device = free.device if generator is None else generator.device
    draws = torch.rand(free.shape, generator=generator, device=device).to(free.device).masked_fill(~free, 2.0)
    ranks = draws.argsort(dim=-1).argsort(dim=-1)
    return free & (ranks < wanted)


def _squared_distances(queries: Tensor, keys: Tensor) -> Tensor:
    # Not by cdist: its derivative at a distance of 0 is none.
    dots = queries @ keys.transpose(-1, -2)
    squares = queries.square().sum(-1)[..., :, None] + keys.square().sum(-1)[..., None, :]
    return (squares - 2 * dots).clamp(min=0)
