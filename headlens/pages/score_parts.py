"""What attention weights are made of: queries, keys, their scaled products, and what the products leave unexplained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

ROOM = 1_500_000  # bytes of queries and keys that a page has at most: its size is about 1.3 times as much
_AGREES = 1e-5  # weights that the products alone give differ from the model's by no more

Numbers = npt.NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class ScoreParts:
    """What the weights of heads of one layer on a sentence are made of.

    Weights are the softmax over keys of `scaling` · query · key + `rest`, times what they add up to.

    Args:
        layer: number of the layer.
        heads: numbers of the heads.
        scaling: factor of the products.
        queries: (heads, query, d), as they are multiplied: after rotary embedding, where the model has one.
        keys: (heads, key, d), for every head, also where heads share them.
        shared_by: how many heads have the same keys, by their numbers: heads 0 to 3, then 4 to 7, where it is 4.
        rest: (heads, query, key), what scores have beside the products, up to a constant for each query: 0 for the key
            that gains most, and -inf where the weight is 0. Heads that have no more than the products have 0
            for all other keys.
        sums: (heads, query), what the weights add up to: 1, or less where a sink takes a part.
        off: of each head, the largest difference between these weights and the model's.
    """

    layer: int
    heads: Sequence[int]
    scaling: float
    queries: Numbers
    keys: Numbers
    shared_by: int = 1
    rest: Numbers = field(default_factory=lambda: np.zeros(0, np.float32))
    sums: Numbers = field(default_factory=lambda: np.zeros(0, np.float32))
    off: Sequence[float] = field(default_factory=list)

    def fitted(self, weights: Numbers, agrees: float = _AGREES) -> ScoreParts:
        """Returns these parts with the rest and the sums that make the model's weights of the products.

        Args:
            weights: (heads, query, key), the model's own.
            agrees: heads whose weights differ from the softmax of products by no more have no rest.
        """
        exact = weights.astype(np.float64)
        sums = exact.sum(-1)
        sums = np.where(np.abs(sums - 1) <= agrees, 1, sums)
        nothing = np.where(exact > 0, 0.0, -np.inf)
        plain = replace(self, rest=nothing, sums=sums)
        is_plain = (np.abs(plain.weights() - exact).max((1, 2)) <= agrees)[:, None, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            rest = np.log(exact) - self.products()
            rest -= rest.max(-1, keepdims=True)
        rest = np.where(is_plain | (exact == 0), nothing, rest).astype(np.float32)
        found = replace(self, rest=rest, sums=sums.astype(np.float32))
        return replace(found, off=np.abs(found.weights() - exact).max((1, 2)).tolist())

    def of_heads(self, places: Sequence[int]) -> ScoreParts:
        """Returns the parts of some of these heads, by their places."""
        if len(places) == len(self.heads):
            return self
        chosen: dict[str, Any] = {n: [getattr(self, n)[i] for i in places] for n in ("heads", "off")}
        chosen |= {n: getattr(self, n)[[*places]] for n in ("queries", "keys", "rest", "sums")}
        return replace(self, **chosen)

    def products(self) -> npt.NDArray[np.float64]:
        """Returns the scaled products of queries and keys, (heads, query, key)."""
        queries, keys = self.queries.astype(np.float64), self.keys.astype(np.float64)
        scores: npt.NDArray[np.float64] = self.scaling * np.matmul(queries, keys.swapaxes(1, 2))
        return scores

    def weights(self) -> npt.NDArray[np.float64]:
        """Returns the weights that these parts give, (heads, query, key)."""
        scores = self.products() + self.rest
        highest = scores.max(-1, keepdims=True)
        exponents = np.exp(scores - np.where(np.isfinite(highest), highest, 0))
        total = exponents.sum(-1, keepdims=True)
        shares: npt.NDArray[np.float64] = exponents / np.where(total > 0, total, 1)
        return shares * self.sums[..., None]

    def check(self, shape: Sequence[int]) -> None:
        """Checks that these are parts of weights of a shape, (layers, heads, query, key).

        Raises:
            ValueError: if they are not.
        """
        layers, most, queries, keys = shape
        if not {*map(type, [self.layer, self.shared_by, *self.heads])} <= {int}:
            raise ValueError("layers and heads are no whole numbers")
        if not 0 <= self.layer < layers or not all(0 <= head < most for head in self.heads) or self.shared_by < 1:
            raise ValueError(f"layer {self.layer} and heads {self.heads} do not fit {layers} x {most}")
        n, d = len(self.heads), self.queries.shape[-1]
        expected = (n, queries, d), (n, keys, d), (n, queries, keys), (n, queries)
        arrays = self.queries, self.keys, self.rest, self.sums
        if tuple(array.shape for array in arrays) != expected or len(self.off) != n or not n:
            raise ValueError(f"queries {self.queries.shape} and keys {self.keys.shape} do not fit {n} heads")
        finite = all(np.isfinite(array).all() for array in (self.queries, self.keys, self.sums, self.scaling, self.off))
        if not finite or np.isnan(self.rest).any() or self.rest.max() > 0:
            raise ValueError("queries and keys are not finite")
