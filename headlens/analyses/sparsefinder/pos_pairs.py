"""Attention by part of speech x part of speech: of entmax itself, and of the graph that clusters predict.

Treviso et al. (2022, section 6) look at what clusters hold; which parts of speech attend to each other follows.
"""

from __future__ import annotations

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional

from headlens.analyses.sparsefinder.predictors import Predictor
from headlens.analyses.sparsefinder.query_key_store import QueryKeyStore, StoredBatch

PAIR_COLUMNS = ["head", "query_tag", "key_tag", "pairs", "gold", "predicted", "found", "weight"]


def pos_pairs(store: QueryKeyStore, site: str, predictor: Predictor) -> pd.DataFrame:
    """Counts pairs of tokens by the tags of query and key, and which of them have weight or are predicted.

    Args:
        store: collected sentences, with tags.
        site: such as `encoder.0`.
        predictor: whose graphs are counted.

    Returns:
        Columns `PAIR_COLUMNS`, a row for each head and two tags of which there are pairs: how many `pairs` a query and
        a key of these tags are that attention allows, how many have weight (`gold`), are `predicted`, and both
        (`found`); `weight` is the sum of their weights, where those of a query sum to 1. Empty without tags.
    """
    tags = sorted({tag for sides in store.tags(site) for side in sides for tag in side})
    counts, weight = torch.zeros(()), torch.zeros(())  # (measures, heads, query tag, key tag) and without measures
    sentences = store.tags(site)
    for batch in store.batches(site) if tags else ():
        sides = zip(*(next(sentences) for _ in batch.queries), strict=True)
        queries, keys = (_one_hot(own, tags) for own in sides)
        found = _counted(batch, predictor.graph(batch), queries, keys)
        # Counts of a batch are exact in float32; sums over batches are in double precision.
        counts, weight = counts + found[:-1].double(), weight + found[-1].double()
    if not tags:
        return pd.DataFrame(columns=PAIR_COLUMNS)
    rows = [
        (head, tags[i], tags[j], *map(int, counts[:, head, i, j]), float(weight[head, i, j]))
        for head, i, j in counts[0].nonzero().tolist()
    ]
    return pd.DataFrame(rows, columns=PAIR_COLUMNS)


def _one_hot(sentences: tuple[list[str], ...], tags: list[str]) -> Tensor:
    """1 where a token has a tag: float, `(batch, tokens, tags)`, 0 for padding."""
    numbers = {tag: number for number, tag in enumerate(tags)}
    longest = max(map(len, sentences))
    padded = [[numbers[tag] for tag in own] + [len(tags)] * (longest - len(own)) for own in sentences]
    return functional.one_hot(torch.tensor(padded), len(tags) + 1)[..., :-1].float()


def _counted(batch: StoredBatch, graph: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """Pairs, pairs with weight, predicted ones and both, and weights: `(measures, heads, query tag, key tag)`."""
    allowed = batch.allowed.expand_as(batch.weights)
    graph, gold = graph & allowed, batch.gold & allowed
    # of shape (measures, batch, heads, query, key)
    pairs = torch.stack([x.float() for x in (allowed, gold, graph, gold & graph, batch.weights * allowed)])
    return (queries.mT[:, None] @ pairs @ keys[:, None]).sum(dim=1)
