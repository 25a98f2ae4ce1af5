"""A mask as plain loops, and models run under it by their own eager attention with a 4-D mask of floats."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

Rule = Callable[[int, int, int], bool]


def float_mask(lengths: Sequence[int], rule: Rule, *, causal: bool = False) -> Tensor:
    """0 where a query may look and the lowest number elsewhere: (sentences, 1, longest, longest).

    A query without any key looks where it would without the rule; queries of padding look at all tokens.

    Args:
        lengths: tokens of every sentence, padded on the right.
        rule: of query, key, and number of tokens, whether the query may look at the key.
        causal: whether queries do not look ahead.
    """
    longest = max(lengths)
    found = np.full((len(lengths), 1, longest, longest), np.finfo(np.float32).min, dtype=np.float32)
    for number, n in enumerate(lengths):
        for i in range(longest):
            seen = [j for j in range(n) if not (causal and j > i)]
            kept = [j for j in seen if rule(i, j, n)] if i < n else seen
            found[number, 0, i, kept or seen] = 0.0
    return torch.tensor(found)


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> np.ndarray:
    """Softmax attention with loops: (batch, heads, query, d), (…, key, d), a mask that broadcasts to the scores."""
    q, k, v = (t.double().numpy() for t in (query, key, value))
    batch, heads, n, d = q.shape
    allowed = np.broadcast_to(mask.numpy() == 0, (batch, heads, n, k.shape[2]))
    out = np.zeros((batch, n, heads, d))
    for b in range(batch):
        for h in range(heads):
            for i in range(n):
                keys = np.flatnonzero(allowed[b, h, i])
                scores = np.array([q[b, h, i] @ k[b, h, j] for j in keys]) / np.sqrt(d)
                weights = np.exp(scores - scores.max())
                out[b, i, h] = (weights / weights.sum()) @ v[b, h, keys]
    return out
