"""What clusters and graphs hold: tags in clusters, pairs of tags in graphs, mentions and their antecedents.

Treviso et al. (2022, section 6) look at what clusters hold by parts of speech; which of these attend to each other
follows, in the graph of entmax itself and in the one that clusters predict.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional

from headlens.analyses.sparsefinder.fitting import FittedSite
from headlens.analyses.sparsefinder.predictors import Predictor, clusters_of
from headlens.analyses.sparsefinder.query_key_store import SPECIAL, UNKNOWN, QueryKeyStore, StoredBatch
from headlens.tables.sparsefinder_tables import ANTECEDENTS, CLUSTERS, POS_PAIRS

_BATCH = 16


def _tagged(store: QueryKeyStore, site: str, tags: list[str]) -> Iterator[tuple[StoredBatch, Tensor, Tensor]]:
    """Batches, and 1 where a query or a key has a tag: float, `(batch, tokens, tags)`, 0 for padding."""
    numbers, sentences = {tag: number for number, tag in enumerate(tags)}, store.tags(site)
    for batch in store.batches(site) if tags else ():
        sides = zip(*(next(sentences) for _ in batch.queries), strict=True)
        padded = (
            [
                [numbers[tag] for tag, _ in zip(side_tags, range(n), strict=True)] + [len(tags)] * (real.shape[1] - n)
                for side_tags, n in zip(side, real.sum(1).tolist(), strict=True)
            ]
            for side, real in zip(sides, (batch.real_queries, batch.real_keys), strict=True)
        )
        queries, keys = (functional.one_hot(torch.tensor(p), len(tags) + 1)[..., :-1].float() for p in padded)
        yield batch, queries, keys


def _tags(store: QueryKeyStore, site: str) -> list[str]:
    return sorted({tag for sides in store.tags(site) for side in sides for tag in side})


def cluster_contents(store: QueryKeyStore, site: str, fitted: FittedSite, clusters: int) -> pd.DataFrame:
    """Counts the queries and keys of every tag that are nearest to each centroid.

    Args:
        store: collected sentences, with tags.
        site: such as `encoder.0`.
        fitted: its projections and centroids.
        clusters: which of its numbers of clusters.

    Returns:
        Rows of clusters.csv: `side` is `query` or `key`, `share` that of the tag in its cluster and side. Empty
        where the store has no tags.
    """
    tags, counts = _tags(store, site), torch.zeros(1, 1, 1, 1, dtype=torch.float64)  # (heads, clusters, side, tag)
    for batch, *tags_of_sides in _tagged(store, site, tags):
        counts_of_sides = []
        for vectors, side_tags in zip(fitted.projections(batch.queries, batch.keys), tags_of_sides, strict=True):
            nearest = clusters_of(vectors, fitted.centroids[clusters]).squeeze(-1)  # (batch, heads, tokens)
            counts_of_sides.append((functional.one_hot(nearest, clusters).float().mT @ side_tags[:, None]).sum(dim=0))
        counts = counts + torch.stack(counts_of_sides[::-1], dim=2)
    rows = [
        (head, cluster, ("key", "query")[side], tags[tag], int(counts[head, cluster, side, tag]))
        for head, cluster, side, tag in counts.nonzero().tolist()
    ]
    table = pd.DataFrame(rows, columns=CLUSTERS.names[3:-2])
    return table.assign(share=table["count"] / table.groupby(["head", "cluster", "side"])["count"].transform("sum"))


def information(contents: pd.DataFrame) -> pd.Series[float]:
    """Share of a token's tag that its cluster tells: I(tag; cluster) / H(tag) of every head, from 0 to 1.

    Queries and keys count together, without special tokens and tokens of no known part of speech. The mutual
    information is corrected for what chance gives in so few tokens, (tags - 1)(clusters - 1) / 2 n nats (Miller 1955),
    and not below 0.

    Args:
        contents: see `cluster_contents`.

    Returns:
        By head; NaN where all tokens have one tag, or none has any.
    """
    from scipy.stats import entropy

    known = contents[~contents["tag"].isin([SPECIAL, UNKNOWN])]
    shares = dict.fromkeys(sorted(contents["head"].unique()), np.nan)
    for head, rows in known.groupby("head"):
        table = rows.pivot_table(index="tag", columns="cluster", values="count", aggfunc="sum", fill_value=0)
        joint = table.to_numpy(np.float64)  # tokens, (tags, clusters)
        if len(joint) > 1:
            of_tags = entropy(joint.sum(axis=1))
            mutual = of_tags + entropy(joint.sum(axis=0)) - entropy(joint, axis=None)
            chance = (joint.shape[0] - 1) * (joint.shape[1] - 1) / (2 * joint.sum())
            shares[head] = max(mutual - chance, 0.0) / of_tags
    return pd.Series(shares, dtype=np.float64)


def pos_pairs(store: QueryKeyStore, site: str, predictor: Predictor) -> pd.DataFrame:
    """Counts pairs of tokens by the tags of query and key, and which of them have weight or are predicted.

    Args:
        store: collected sentences, with tags.
        site: such as `encoder.0`.
        predictor: whose graphs are counted.

    Returns:
        Rows of pos_pairs.csv, one for each head and two tags of which there are pairs: how many `pairs` a query and
        a key of these tags are that attention allows, how many have weight (`gold`), are `predicted`, and both
        (`found`); `weight` is the sum of their weights, where those of a query sum to 1. Empty without tags.
    """
    tags, counts = _tags(store, site), torch.zeros(5, 1, 1, 1, dtype=torch.float64)  # (measures, heads, query, key)
    for batch, queries, keys in _tagged(store, site, tags):
        allowed = batch.allowed.expand_as(batch.weights)
        graph, gold = predictor.graph(batch) & allowed, batch.gold & allowed
        # of shape (measures, batch, heads, query, key)
        pairs = torch.stack([x.float() for x in (allowed, gold, graph, gold & graph, batch.weights * allowed)])
        # Counts of a batch are exact in float32; sums over batches are in double precision.
        counts = counts + (queries.mT[:, None] @ pairs @ keys[:, None]).sum(dim=1).double()
    rows = [
        (head, tags[i], tags[j], *map(int, counts[:-1, head, i, j]), float(counts[-1, head, i, j]))
        for head, i, j in counts[0].nonzero().tolist()
    ]
    return pd.DataFrame(rows, columns=POS_PAIRS.names[3:-3])


def antecedents(store: QueryKeyStore, site: str, predictor: Predictor) -> pd.DataFrame:
    """Whether each head looks, and is predicted to look, from each mention to its nearest antecedent.

    Of words of several tokens any pair of tokens counts.

    Args:
        store: collected sentences.
        site: such as `encoder.0`; cross-attention has no antecedents.
        predictor: whose graphs are asked.

    Returns:
        Rows of antecedents.csv, one for each head and mention that has an antecedent in its sentence: the number
        of the `sentence` from 0, the head words of both, how many tokens apart they begin, the largest `weight` of a
        pair of their tokens, whether it is above 0 (`gold`), and whether a pair is `predicted`, both 0 or 1.
    """
    by_batch = defaultdict(list)
    for pair in store.antecedents(site):
        by_batch[pair.sentence // _BATCH].append(pair)
    rows = []
    for number, batch in enumerate(store.batches(site, _BATCH) if by_batch else ()):
        if number not in by_batch:
            continue
        graph = predictor.graph(batch).expand_as(batch.weights)
        for pair in by_batch[number]:
            (first, last), (key_first, key_last) = pair.query, pair.key
            weight, predicted = (
                every[pair.sentence % _BATCH, :, first : last + 1, key_first : key_last + 1].amax(dim=(1, 2))
                for every in (batch.weights, graph)
            )
            columns = (pair.sentence, pair.mention, pair.antecedent, first - key_first)
            for head, value in enumerate(weight.tolist()):
                rows.append((head, *columns, value, int(value > 0), int(predicted[head])))
    return pd.DataFrame(rows, columns=ANTECEDENTS.names[3:-1])
