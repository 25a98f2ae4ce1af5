"""How well a predicted graph covers attention: recall, sparsity and exact queries (Treviso et al. 2022), and weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# What `GraphMeans` tells of every head, in this order.
MEASURES = ("recall", "sparsity", "exact", "mass")


@dataclass(frozen=True, eq=False)
class GraphCounts:
    """What is counted of each example and head: (batch, heads), whole numbers but for `kept` and `weight`.

    Args:
        gold: pairs of a query and a key that have weight.
        found: those of them that were predicted.
        predicted: pairs that were predicted.
        allowed: pairs of real tokens, under causal attention of a query and the keys up to it.
        exact: queries of which all gold keys were predicted: their attention over the graph is the full one.
        queries: real ones.
        kept: the weight of predicted pairs.
        weight: that of all pairs.
    """

    gold: Tensor
    found: Tensor
    predicted: Tensor
    allowed: Tensor
    exact: Tensor
    queries: Tensor
    kept: Tensor
    weight: Tensor

    @classmethod
    def of(cls, weights: Tensor, predicted: Tensor, allowed: Tensor) -> GraphCounts:
        """Count.

        Args:
            weights: of attention, (batch, heads, query, key); as bool all that there are count alike.
            predicted: the pairs of a graph, bool; what is not allowed does not count in either.
            allowed: see `allowed_pairs`; bool, broadcastable to these.
        """
        allowed = allowed.expand_as(weights)
        weights = weights * allowed
        gold, predicted = weights > 0, predicted & allowed
        found = gold & predicted
        real = allowed.any(dim=-1)
        exact = (found == gold).all(dim=-1) & real
        golds, founds, predicteds, alloweds = (t.sum(dim=(2, 3)) for t in (gold, found, predicted, allowed))
        kept, weight = ((weights * pairs).sum(dim=(2, 3), dtype=torch.float64) for pairs in (predicted, allowed))
        return cls(golds, founds, predicteds, alloweds, exact.sum(dim=2), real.sum(dim=2), kept, weight)

    @property
    def recall(self) -> Tensor:
        """|G ∩ Ĝ| / |G|: (batch, heads), double; NaN where a head has no gold pair."""
        return self.found.double() / self.gold

    @property
    def sparsity(self) -> Tensor:
        """1 - |Ĝ| / pairs that are allowed: (batch, heads), double."""
        return 1 - self.predicted.double() / self.allowed

    @property
    def exact_share(self) -> Tensor:
        """The share of queries all of whose gold keys were predicted: (batch, heads), double."""
        return self.exact.double() / self.queries

    @property
    def mass(self) -> Tensor:
        """The share of the weight that is on predicted pairs: (batch, heads), double; NaN where there is none."""
        return self.kept / self.weight


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
        """Some more examples, with the graph of every point."""
        shares = torch.stack([torch.stack([own.recall, own.sparsity, own.exact_share, own.mass]) for own in points])
        self._sums = self._sums + shares.nansum(dim=2)
        self._counts = self._counts + (~shares.isnan()).sum(dim=2)
        self._sentences.append(shares[:, :2].nanmean(dim=3).permute(2, 0, 1))

    @property
    def heads(self) -> Tensor:
        """Recall, sparsity, exact share and mass of every head, means over examples: (points, 4, heads), double."""
        return self._sums / self._counts

    @property
    def examples(self) -> Tensor:
        """Recall and sparsity of every example, each the mean over heads: (examples, points, 2), double."""
        return torch.cat(self._sentences)


def allowed_pairs(queries: Tensor, keys: Tensor, *, causal: bool = False) -> Tensor:
    """Pairs of a real query and a real key, under causal attention up to the query's place.

    Args:
        queries: which are tokens, bool, (batch, query).
        keys: the same of keys, (batch, key).
        causal: whether a query looks at no key behind it.

    Returns:
        bool, (batch, 1, query, key).
    """
    found = queries[:, None, :, None] & keys[:, None, None, :]
    if causal:
        found = found & torch.ones(found.shape[-2:], dtype=torch.bool, device=found.device).tril()
    return found


def counts_by_window(weights: Tensor, base: Tensor, allowed: Tensor, windows: Sequence[int]) -> list[GraphCounts]:
    """What `GraphCounts.of` counts of a graph to which windows of several widths are added, for the price of one.

    What a window of width w adds are the pairs with |i - j| ≤ w that the graph does not have, so it is enough to know
    how many pairs of each offset are missing, and how much weight they have, and for each query how far away its
    farthest missing gold key is.

    Args:
        weights: of attention, (batch, heads, query, key).
        base: the graph without a window, broadcastable to these.
        allowed: see `allowed_pairs`.
        windows: widths; -1 adds nothing.

    Returns:
        The counts with each window.
    """
    allowed = allowed.expand_as(weights)
    weights, base = weights * allowed, base & allowed
    gold = weights > 0
    n, m = gold.shape[2:]
    offset = (torch.arange(n)[:, None] - torch.arange(m)).abs().to(gold.device)
    missing = gold & ~base
    reach = min(max(windows, default=0), max(n, m) - 1)
    # Of an offset there are at most n + m pairs, which float32 counts exactly; what no window reaches is left out.
    near = torch.nn.functional.one_hot(offset.flatten().clamp(max=reach + 1), reach + 2)[:, :-1].float()
    # (batch, heads, offsets): pairs that windows up to this width have and the graph has not
    more_found, more_predicted = (
        (pairs.flatten(2).float() @ near).long().cumsum(-1) for pairs in (missing, allowed & ~base)
    )
    more_kept = ((weights * missing).flatten(2).float() @ near).double().cumsum(-1)
    kept, weight = ((weights * pairs).sum(dim=(2, 3), dtype=torch.float64) for pairs in (base, allowed))
    farthest = torch.where(missing, offset, -1).amax(dim=-1)
    real = allowed.any(dim=-1)
    totals = [t.sum(dim=(2, 3)) for t in (gold, gold & base, base, allowed)]
    found = []
    for window in windows:
        place = min(window, reach)
        more = [t[..., place] if window >= 0 else 0 for t in (more_found, more_predicted, more_kept)]
        exact = ((farthest <= window) & real).sum(dim=2)
        counts = totals[0], totals[1] + more[0], totals[2] + more[1], totals[3], exact, real.sum(dim=2)
        found.append(GraphCounts(*counts, kept + more[2], weight))
    return found
