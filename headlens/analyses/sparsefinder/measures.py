"""How well a predicted graph covers attention: recall, sparsity and exact queries (Treviso et al. 2022), and weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from headlens.tables import sparsefinder_tables
from headlens.tables.table_schema import names_of

# What `GraphMeans` tells of every head, in this order.
MEASURES = names_of(sparsefinder_tables.MEASURES)


class GraphCounts(NamedTuple):
    """Counts of pairs and queries by example and head, one for each of `MEASURES`: `(4, batch, heads)`, float64.

    Args:
        counted: gold pairs that were predicted; pairs that were predicted; queries of which all gold keys were
            predicted, whose attention over the graph is the full one; the weight of predicted pairs.
        totals: what these are parts of: pairs of a query and a key that have weight; pairs of real tokens, under causal
            attention of a query and the keys up to it; real queries; the weight of all pairs.
    """

    counted: Tensor
    totals: Tensor

    @property
    def shares(self) -> Tensor:
        """The `MEASURES`: recall |G ∩ Ĝ| / |G| and so on, and 1 - |Ĝ| / allowed pairs; NaN where a head has none."""
        recall, open_pairs, exact, mass = self.counted / self.totals
        return torch.stack([recall, 1 - open_pairs, exact, mass])


def graph_counts(weights: Tensor, predicted: Tensor, allowed: Tensor) -> GraphCounts:
    """Counts the pairs of a graph beside those that have weight.

    Args:
        weights: of attention, `(batch, heads, query, key)`; as bool all that there are count alike.
        predicted: the pairs of a graph, bool; what is not allowed does not count in either.
        allowed: see `allowed_pairs`; bool, broadcastable to these.
    """
    allowed = allowed.expand_as(weights)
    weights = weights * allowed
    gold, predicted = weights > 0, predicted & allowed
    hits, real = gold & predicted, allowed.any(dim=-1, keepdim=True)
    exact = (hits == gold).all(dim=-1, keepdim=True) & real
    counted, totals = (hits, predicted, exact, weights * predicted), (gold, allowed, real, weights)
    # In double precision: float32 sums over long texts would lose small weights.
    return GraphCounts(
        *(torch.stack([t.sum((2, 3), dtype=torch.float64) for t in counts]) for counts in (counted, totals))
    )


class GraphMeans:
    """Recall, sparsity, exact share and mass at some points, as sentences come; counts are not kept.

    As in the authors' code: pairs are counted together within an example and head, and examples have equal weight.
    Means over heads, and over layers, are what the paper prints. Examples without a real pair, or without a gold pair,
    do not count where they say nothing.
    """

    def __init__(self) -> None:
        self._sums = torch.zeros((), dtype=torch.float64)
        self._counts = torch.zeros((), dtype=torch.float64)
        self._sentences: list[Tensor] = []

    def add(self, points: Sequence[GraphCounts]) -> None:
        """Adds some more examples, with their counts at every point."""
        shares = torch.stack([point.shares for point in points])  # (points, measures, batch, heads)
        self._sums = self._sums + shares.nansum(dim=2)
        self._counts = self._counts + (~shares.isnan()).sum(dim=2)
        self._sentences.append(shares[:, :2].nanmean(dim=3).permute(2, 0, 1))

    @property
    def heads(self) -> Tensor:
        """Recall, sparsity, exact share and mass of every head, means over examples: `(points, 4, heads)`, double."""
        return self._sums / self._counts

    @property
    def examples(self) -> Tensor:
        """Recall and sparsity of every example, each the mean over heads: `(examples, points, 2)`, double."""
        return torch.cat(self._sentences)


def allowed_pairs(queries: Tensor, keys: Tensor, *, causal: bool = False) -> Tensor:
    """Pairs of a real query and a real key, under causal attention up to the query's place.

    Args:
        queries: which queries are tokens, bool, `(batch, query)`.
        keys: which keys are tokens, bool, `(batch, key)`.
        causal: whether a query looks at no key behind it.

    Returns:
        bool, `(batch, 1, query, key)`.
    """
    pairs = queries[:, None, :, None] & keys[:, None, None, :]
    return pairs.tril() if causal else pairs


def counts_by_window(
    weights: Tensor, base: Tensor, allowed: Tensor, windows: Sequence[int], size: int = 1
) -> list[GraphCounts]:
    """Counts, as `graph_counts`, of a graph to which windows of several widths are added, for the price of one.

    What a window of width w adds are the pairs with |i - j| ≤ w that the graph does not have, so it is enough to know
    how many pairs of each offset are missing, and how much weight they have, and for each query how far away its
    farthest missing gold key is.

    Args:
        weights: of attention, `(batch, heads, query, key)`.
        base: the graph without a window, broadcastable to these.
        allowed: see `allowed_pairs`.
        windows: widths; -1 adds nothing.
        size: tokens of the blocks that windows are made of, at i // size and j // size.

    Returns:
        The counts with each window.
    """
    counted, totals = graph_counts(weights, base, allowed)
    allowed = allowed.expand_as(weights)
    weights, base = weights * allowed, base & allowed
    n, m = weights.shape[2:]
    offset = (torch.arange(n)[:, None] // size - torch.arange(m) // size).abs().to(weights.device)
    missing = (weights > 0) & ~base
    reach = min(max(windows, default=0), max(n, m) - 1)
    # Of an offset there are at most (n + m) size pairs, exact in float32; what no window reaches is left out.
    near = functional.one_hot(offset.flatten().clamp(max=reach + 1), reach + 2)[:, :-1].float()
    # Sums over pairs at most -1, 0, 1 … apart: (batch, heads, offsets).
    hits, predicted, mass = (
        functional.pad((pairs.flatten(2).float() @ near).double().cumsum(-1), (1, 0))
        for pairs in (missing, allowed & ~base, weights * missing)
    )
    farthest, real = torch.where(missing, offset, -1).amax(dim=-1), allowed.any(dim=-1)
    counts_of_windows = []
    for window in windows:
        more = [sums[..., min(window, reach) + 1] for sums in (hits, predicted, mass)]
        exact = ((farthest <= window) & real).sum(dim=2) - counted[2]
        counts_of_windows.append(GraphCounts(counted + torch.stack([*more[:2], exact, more[2]]), totals))
    return counts_of_windows
