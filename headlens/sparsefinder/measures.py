"""How well a predicted graph covers attention: recall, sparsity, exact queries (Treviso et al. 2022, section 5)."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class GraphCounts:
    """What is counted of each example and head, whole numbers: (batch, heads).

    Args:
        gold: pairs of a query and a key that have weight.
        found: those of them that were predicted.
        predicted: pairs that were predicted.
        allowed: pairs of real tokens, under causal attention of a query and the keys up to it.
        exact: queries of which all gold keys were predicted: their attention over the graph is the full one.
        queries: real ones.
    """

    gold: Tensor
    found: Tensor
    predicted: Tensor
    allowed: Tensor
    exact: Tensor
    queries: Tensor

    @classmethod
    def of(cls, gold: Tensor, predicted: Tensor, allowed: Tensor) -> GraphCounts:
        """Count.

        Args:
            gold: pairs with weight: bool, (batch, heads, query, key).
            predicted: the same of a graph; what is not allowed does not count in either.
            allowed: see `allowed_pairs`; bool, broadcastable to these.
        """
        allowed = allowed.expand_as(gold)
        gold, predicted = gold & allowed, predicted & allowed
        found = gold & predicted
        real = allowed.any(dim=-1)
        exact = (found == gold).all(dim=-1) & real
        golds, founds, predicteds, alloweds = (t.sum(dim=(2, 3)) for t in (gold, found, predicted, allowed))
        return cls(golds, founds, predicteds, alloweds, exact.sum(dim=2), real.sum(dim=2))

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

    @staticmethod
    def joined(parts: list[GraphCounts]) -> GraphCounts:
        """The counts of several batches."""
        names = [field.name for field in fields(GraphCounts)]
        return GraphCounts(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def averages(counts: GraphCounts) -> dict[str, Tensor]:
    """Recall, sparsity and exact share of every head, each the mean over examples: (heads,), double.

    As in the authors' code: pairs are counted together within an example and head, and examples have equal weight.
    Means over heads, and over layers, are what the paper prints. Examples without a real pair, or without a gold pair,
    do not count where they say nothing.
    """
    return {
        "recall": counts.recall.nanmean(dim=0),
        "sparsity": counts.sparsity.nanmean(dim=0),
        "exact": counts.exact_share.nanmean(dim=0),
    }


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
