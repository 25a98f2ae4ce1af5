"""Small spaces in which queries are near the keys they look at (Sparsefinder, Treviso et al. 2022, section 4)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class QueryKeyProjections(nn.Module):
    """A linear map to r dimensions for each head: q' = q W + b, k' = k V + c.

    Args:
        heads: number of heads, each with maps of its own.
        size: d of their queries and keys.
        dimensions: r.
        shared: whether W = V and b = c.
    """

    def __init__(self, heads: int, size: int, dimensions: int = 4, *, shared: bool = True) -> None:
        super().__init__()
        maps = 1 if shared else 2
        spread = 1 / math.sqrt(size)  # as in a linear layer
        self.weight = nn.Parameter(torch.empty(maps, heads, size, dimensions).uniform_(-spread, spread))
        self.bias = nn.Parameter(torch.empty(maps, heads, 1, dimensions).uniform_(-spread, spread))

    def forward(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Projects queries and keys `(batch, heads, tokens, d)`, each to `(batch, heads, tokens, r)`."""
        weight, bias = self.weight.to(queries.device), self.bias.to(queries.device)
        # The last map is the first one where both are shared.
        return queries @ weight[0] + bias[0], keys @ weight[-1] + bias[-1]


def margin_losses(
    queries: Tensor,
    keys: Tensor,
    gold: Tensor,
    allowed: Tensor,
    margin: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """max(0, m + Σ_pos ‖q' - k'‖² - Σ_neg ‖q' - k'‖²) of every query: `(batch, heads, query)`.

    Positives are a query's gold keys, negatives as many others, drawn anew each time, or all others where these are
    fewer. Queries that are padding, or have no gold key, have 0.

    Args:
        queries: q', `(batch, heads, query, r)`.
        keys: k', `(batch, heads, key, r)`.
        gold: pairs with weight, bool, `(batch, heads, query, key)`.
        allowed: pairs that could have weight, see `allowed_pairs`.
        margin: m.
        generator: of the negatives, on the processor or the device of the vectors.
    """
    # Not by cdist: its derivative at a distance of 0 is none.
    dots = queries @ keys.transpose(-1, -2)  # (batch, heads, query, key)
    squares = queries.square().sum(-1)[..., :, None] + keys.square().sum(-1)[..., None, :]
    distances = (squares - 2 * dots).clamp(min=0)
    positive = gold & allowed
    negative = drawn(~gold & allowed, positive.sum(dim=-1, keepdim=True), generator)
    near, far = ((distances * pairs).sum(dim=-1) for pairs in (positive, negative))
    return torch.relu(margin + near - far) * positive.any(dim=-1)


def drawn(candidates: Tensor, counts: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draws so many of the candidates of every row at random, or all where there are fewer.

    Args:
        candidates: bool, `(..., places)`.
        counts: how many are drawn, `(..., 1)`.
        generator: of the random numbers.

    Returns:
        bool, `(..., places)`.
    """
    device = candidates.device if generator is None else generator.device
    numbers = torch.rand(candidates.shape, generator=generator, device=device).to(candidates.device)
    # A random order in which those that cannot be drawn come last; argsort twice gives ranks.
    ranks = numbers.masked_fill(~candidates, 2.0).argsort(dim=-1).argsort(dim=-1)
    return candidates & (ranks < counts)
