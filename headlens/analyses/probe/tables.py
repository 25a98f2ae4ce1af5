"""The tables of `headlens probe`: scores of the probe and of its baselines, and its weights by head."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.heads import Head, HeadTable
from headlens.pages.formatting import DIFFERENCE
from headlens.statistics.bootstrap import Draws
from headlens.statistics.paired_tests import Comparison, interval_around, replicates_of, value_of
from headlens.tables.probe_tables import DIRECTIONS, EMBEDDED_METHODS, METHODS, SCORES

Floats = npt.NDArray[np.float64]
PROBE, RIGHT_BRANCHING, BEST_OFFSET, UNIFORM = METHODS
EMBEDDED, DISTANCES = EMBEDDED_METHODS


def score_table(right: Floats, offset: int, draws: Draws) -> pd.DataFrame:
    """Returns rows for the probe and its baselines: UAS with its 95 % interval, and by how much the probe is better.

    With word embeddings there are rows for the probe that reads them, and for distances, and by how much that probe is
    better than each.

    Args:
        right: words with the right governor by method, and all words that are scored, (sentences, 5); with word
            embeddings (sentences, 7).
        offset: of the second baseline.
        draws: of a bootstrap over sentences, the same for all rows.
    """
    methods = (*METHODS, *EMBEDDED_METHODS)[: right.shape[1] - 1]
    records = {method: right[:, [column, -1]] for column, method in enumerate(methods)}
    rows = []
    for method, record in records.items():
        uas = value_of(record, _share)
        low, high = interval_around(uas, replicates_of(record, _share, draws))
        row = {"method": method, "words": int(record[:, 1].sum()), "uas": uas, "ci_low": low, "ci_high": high}
        if method != PROBE:
            row |= {"baseline_offset": {RIGHT_BRANCHING: 1, BEST_OFFSET: offset}.get(method)}
        for better, before in ((PROBE, ""), (EMBEDDED, "embedded_")):
            if better in records and method != better:
                gain = Comparison(record, _share, draws).of(records[better])
                numbers = (gain.delta, gain.low, gain.high, gain.p_value)
                row |= {f"{before}{name}": value for name, value in zip(DIFFERENCE, numbers, strict=True)}
        rows.append(row)
    table = pd.DataFrame(rows).assign(sentences=len(right))
    return table[[name for name in SCORES.names if name in table]]


def _share(records: Floats, weights: Floats) -> Floats:
    """Computes UAS from records (sentences, 2) of right and all words, for every weighting (replicates, sentences)."""
    right, words = (weights @ records).T
    with np.errstate(invalid="ignore"):
        shares: Floats = right / words
    return shares


def weight_table(heads: Sequence[Head], weights: Floats) -> HeadTable:
    """Returns the probe's weights, one row per head.

    Args:
        heads: of all layers in their order.
        weights: by direction, (2, heads).
    """
    return HeadTable.from_columns(heads, **dict(zip(DIRECTIONS, weights, strict=True)))
