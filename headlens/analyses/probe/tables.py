"""The tables of `headlens probe`: scores of the probe and of its baselines, and its weights by head."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.heads import Head, HeadTable
from headlens.statistics.bootstrap import Draws
from headlens.statistics.paired_tests import Comparison, interval_around, replicates_of, value_of
from headlens.tables.probe_tables import DIRECTIONS, METHODS

Floats = npt.NDArray[np.float64]
PROBE, RIGHT_BRANCHING, BEST_OFFSET, UNIFORM = METHODS


def score_table(right: Floats, offset: int, draws: Draws) -> pd.DataFrame:
    """Returns rows for the probe and its baselines: UAS with its 95 % interval, and by how much the probe is better.

    Args:
        right: words with the right governor by method, and all words that are scored, (sentences, 5).
        offset: of the second baseline.
        draws: of a bootstrap over sentences, the same for all rows.
    """
    records = [right[:, [method, len(METHODS)]] for method in range(len(METHODS))]
    rows = []
    for method, record in zip(METHODS, records, strict=True):
        uas = value_of(record, _share)
        low, high = interval_around(uas, replicates_of(record, _share, draws))
        row = {"method": method, "words": int(record[:, 1].sum()), "uas": uas, "ci_low": low, "ci_high": high}
        if method != PROBE:
            gain = Comparison(record, _share, draws).of(records[0])
            row |= {"baseline_offset": {RIGHT_BRANCHING: 1, BEST_OFFSET: offset}.get(method)}
            row |= {"delta": gain.delta, "delta_low": gain.low, "delta_high": gain.high, "p_value": gain.p_value}
        rows.append(row)
    return pd.DataFrame(rows).assign(sentences=len(right))


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
