"""What clusters of queries and keys hold: parts of speech (Treviso et al. 2022, section 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.analyses.sparsefinder.candidate_pairs import clusters_of
from headlens.analyses.sparsefinder.pareto_points import FittedSite
from headlens.analyses.sparsefinder.query_key_store import SPECIAL, UNKNOWN, QueryKeyStore

CONTENT_COLUMNS = ["head", "cluster", "side", "tag", "count", "share"]
Integers = npt.NDArray[np.int64]


def cluster_contents(store: QueryKeyStore, site: str, fitted: FittedSite, clusters: int) -> pd.DataFrame:
    """How many queries and keys of every tag are nearest to each centroid.

    Args:
        store: collected sentences, with tags.
        site: such as `encoder.0`.
        fitted: its projections and centroids.
        clusters: which of its numbers of clusters.

    Returns:
        Columns `CONTENT_COLUMNS`: `side` is `query` or `key`, `share` that of the tag in its cluster and side. Empty
        where the store has no tags.
    """
    counts: Counter[tuple[int, int, str, str]] = Counter()
    for side, tags, groups in _tokens(store, site, fitted, clusters):
        for head, own in enumerate(groups):
            counts.update((head, int(group), side, tag) for group, tag in zip(own, tags, strict=True))
    rows = [(*key, count) for key, count in sorted(counts.items())]
    found = pd.DataFrame(rows, columns=CONTENT_COLUMNS[:-1])
    found["share"] = found["count"] / found.groupby(["head", "cluster", "side"])["count"].transform("sum")
    return found


def _tokens(
    store: QueryKeyStore, site: str, fitted: FittedSite, clusters: int
) -> Iterator[tuple[str, list[str], Integers]]:
    """Of every sentence and side the tags of its tokens and their clusters, (heads, tokens)."""
    tags = store.tags(site)
    for pairs in store.batches(site):
        queries, keys = fitted.projections(pairs.queries, pairs.keys)
        sides = (("query", queries, pairs.real_queries), ("key", keys, pairs.real_keys))
        grouped = [(name, clusters_of(x, fitted.centroids[clusters]).squeeze(-1), real) for name, x, real in sides]
        for row in range(len(queries)):
            known = next(tags, None)
            if known is None:
                return
            for (name, groups, real), own in zip(grouped, known, strict=True):
                yield name, own, groups[row][:, real[row]].numpy()


def information(contents: pd.DataFrame) -> pd.Series[float]:
    """How much of what a token is its cluster tells: I(tag; cluster) / H(tag) of every head, from 0 to 1.

    Queries and keys count together, without special tokens and those of which nobody says what they are. The mutual
    information is corrected for what chance gives in so few tokens, (tags - 1)(clusters - 1) / 2 n nats (Miller 1955),
    and not below 0.

    Args:
        contents: see `cluster_contents`.

    Returns:
        By head; NaN where all tokens have one tag, or none has any.
    """
    found = {}
    for head, rows in contents.groupby("head"):
        own = rows[~rows["tag"].isin([SPECIAL, UNKNOWN])]
        if own["tag"].nunique() < 2:
            found[head] = np.nan
            continue
        table = own.pivot_table(index="tag", columns="cluster", values="count", aggfunc="sum", fill_value=0)
        joint = table.to_numpy(np.float64)
        total = joint.sum()
        entropy = _entropy(joint.sum(axis=1) / total)
        shared = entropy + _entropy(joint.sum(axis=0) / total) - _entropy(joint.ravel() / total)
        chance = (joint.shape[0] - 1) * (joint.shape[1] - 1) / (2 * total)
        found[head] = max(shared - chance, 0.0) / entropy
    return pd.Series(found, dtype=np.float64)


def _entropy(shares: npt.NDArray[np.float64]) -> float:
    """Computes the entropy -Σ p ln p of a distribution in nats; shares of 0 add nothing."""
    shares = shares[shares > 0]
    return float(-(shares * np.log(shares)).sum())
