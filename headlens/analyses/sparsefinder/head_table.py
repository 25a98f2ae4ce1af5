"""What is told of every head: how sparse it is, how well that is predicted, and what its clusters hold."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from headlens.analyses.sparsefinder.cluster_pos import CONTENT_COLUMNS, cluster_contents, information
from headlens.analyses.sparsefinder.pareto_curves import areas
from headlens.analyses.sparsefinder.pareto_points import GOLD, FittedSite
from headlens.analyses.sparsefinder.query_key_store import QueryKeyStore
from headlens.analyses.sparsefinder.sweep import SITE_COLUMNS
from headlens.heads import KEY_COLUMNS


def all_contents(store: QueryKeyStore, fitted: Mapping[str, FittedSite], clusters: int) -> pd.DataFrame:
    """What the clusters of all heads hold, see `cluster_contents`.

    Args:
        store: sentences with tags; without them nothing is told.
        fitted: by site.
        clusters: which of their numbers of clusters.

    Returns:
        Columns stack, layer and `CONTENT_COLUMNS`.
    """
    found = []
    for site, own in fitted.items():
        stack, _, layer = site.partition(".")
        contents = cluster_contents(store, site, own, clusters)
        found.append(contents.assign(stack=stack, layer=int(layer)))
    return pd.concat(found, ignore_index=True)[[*SITE_COLUMNS, *CONTENT_COLUMNS]]


def head_table(pareto: pd.DataFrame, contents: pd.DataFrame) -> pd.DataFrame:
    """A row for each head.

    Args:
        pareto: of all heads, see `SparsitySweep.run`.
        contents: see `all_contents`.

    Returns:
        Columns stack, layer, head, `sparsity` of entmax itself, `area_METHOD` under each method's curve of recall, and
        `information`, what the clusters tell about parts of speech, empty where nobody knows these.
    """
    told = {
        (*site, head): value
        for site, own in contents.groupby(SITE_COLUMNS, sort=False)
        for head, value in information(own).items()
    }
    rows = []
    for key, own in pareto.groupby(KEY_COLUMNS, sort=False):
        found = areas(own).set_index("method")["area"]
        by_method = {f"area_{method}": value for method, value in found.items() if method != GOLD}
        gold = float(own.loc[own["method"] == GOLD, "sparsity"].iloc[0])
        rows.append(
            {**dict(zip(KEY_COLUMNS, key, strict=True)), "sparsity": gold, **by_method, "information": told.get(key)}
        )
    return pd.DataFrame(rows).astype({"information": float})
