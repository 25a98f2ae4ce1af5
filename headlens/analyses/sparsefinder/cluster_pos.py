"""What clusters of queries and keys hold: parts of speech (Treviso et al. 2022, section 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import entropy

from headlens.analyses.sparsefinder.candidate_pairs import clusters_of
from headlens.analyses.sparsefinder.fitting import FittedSite
from headlens.analyses.sparsefinder.query_key_store import SPECIAL, UNKNOWN, QueryKeyStore

CONTENT_COLUMNS = ["head", "cluster", "side", "tag", "count", "share"]


def all_contents(store: QueryKeyStore, fitted: Mapping[str, FittedSite], clusters: int) -> pd.DataFrame:
    """Counts the tags in the clusters of all heads, see `cluster_contents`.

    Args:
        store: sentences with tags; without them there are no rows.
        fitted: by site.
        clusters: which of their numbers of clusters.

    Returns:
        Columns stack, layer and `CONTENT_COLUMNS`.
    """
    tables = []
    for site, learned in fitted.items():
        stack, _, layer = site.partition(".")
        tables.append(cluster_contents(store, site, learned, clusters).assign(stack=stack, layer=int(layer)))
    return pd.concat(tables, ignore_index=True)[["stack", "layer", *CONTENT_COLUMNS]]


def cluster_contents(store: QueryKeyStore, site: str, fitted: FittedSite, clusters: int) -> pd.DataFrame:
    """Counts the queries and keys of every tag that are nearest to each centroid.

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
        for head, nearest in enumerate(groups.tolist()):
            counts.update((head, group, side, tag) for group, tag in zip(nearest, tags, strict=True))
    rows = [(*key, count) for key, count in sorted(counts.items())]
    table = pd.DataFrame(rows, columns=CONTENT_COLUMNS[:-1])
    return table.assign(share=table["count"] / table.groupby(["head", "cluster", "side"])["count"].transform("sum"))


def _tokens(
    store: QueryKeyStore, site: str, fitted: FittedSite, clusters: int
) -> Iterator[tuple[str, list[str], npt.NDArray[np.int64]]]:
    """Yields for every sentence and side the tags of its tokens and their clusters, `(heads, tokens)`."""
    tags = store.tags(site)
    for batch in store.batches(site):
        queries, keys = fitted.projections(batch.queries, batch.keys)
        sides = (("query", queries, batch.real_queries), ("key", keys, batch.real_keys))
        grouped = [(name, clusters_of(x, fitted.centroids[clusters]).squeeze(-1), real) for name, x, real in sides]
        for row in range(len(queries)):
            sentence_tags = next(tags, None)
            if sentence_tags is None:
                return
            for (name, groups, real), side_tags in zip(grouped, sentence_tags, strict=True):
                yield name, side_tags, groups[row][:, real[row]].numpy()


def information(contents: pd.DataFrame) -> pd.Series[float]:
    """Share of a token's tag that its cluster tells: I(tag; cluster) / H(tag) of every head, from 0 to 1.

    Queries and keys count together, without special tokens and those of which nobody says what they are. The mutual
    information is corrected for what chance gives in so few tokens, (tags - 1)(clusters - 1) / 2 n nats (Miller 1955),
    and not below 0.

    Args:
        contents: see `cluster_contents`.

    Returns:
        By head; NaN where all tokens have one tag, or none has any.
    """
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
