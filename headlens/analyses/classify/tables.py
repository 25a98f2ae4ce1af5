"""The tables of `classify`, put together from what the metrics measured."""

from __future__ import annotations

import pandas as pd

from headlens.analyses.classify.options import Thresholds
from headlens.analyses.classify.roles import label, mark_syntactic
from headlens.heads import KEY_COLUMNS, HeadTable
from headlens.metrics.metric import Statistics
from headlens.metrics.positions import Positions, positional
from headlens.metrics.similarity import HeadSimilarity

# The order of heads.csv; other columns follow.
HEAD_COLUMNS = [
    *("tokens", "confidence", "confidence_all", "entropy", "entropy_norm", "positional_offset", "positional_share"),
    *("to_cls", "to_sep", "to_bos", "to_eos", "to_punct", "to_self", "to_prev", "to_next", "distance"),
    *("rare_top1", "rare_top2", "rare_chance", "relevance", "role", "roles"),
]
SYNTAX_COLUMNS = [
    *("relation", "direction", "n", "correct", "accuracy", "ci_low", "ci_high", "baseline_offset", "baseline"),
    *("p_value", "p_holm", "syntactic", "significant"),
]
RARE_COLUMNS = [
    *("rare_words", "rare_top1", "rare_top1_ci_low", "rare_top1_ci_high", "rare_top2", "rare_top2_ci_low"),
    *("rare_top2_ci_high", "rare_chance", "rare_chance2"),
]


def head_tables(
    statistics: Statistics, similarity: HeadSimilarity | None, thresholds: Thresholds
) -> dict[str, HeadTable]:
    """Tables by the name of their CSV, `heads` first; those without any measurement are left out.

    Args:
        statistics: measured over a corpus.
        similarity: measured over the same corpus; None if it was not asked for.
        thresholds: from where on a head holds a role.
    """
    measured = statistics.tables()
    tables = {"positions": measured["positions"]}
    if "rare" in measured:
        tables["rare"] = _ordered(measured["rare"], RARE_COLUMNS)
    if "syntax" in measured:
        tables["syntax"] = _ordered(mark_syntactic(measured["syntax"], thresholds), SYNTAX_COLUMNS)
    heads = measured["confidence"].join(_positional_columns(statistics))
    for name in ("entropy", "mass", "monotonicity", "rare"):
        if name in measured:
            heads = heads.join(measured[name])
    heads = label(heads, tables.get("syntax"), thresholds)
    pairs, embedding = (None, None) if similarity is None else (similarity.table(), similarity.embedding())
    if pairs is not None and embedding is not None:
        tables["similarity"] = pairs
        heads = heads.join(embedding)
    return {"heads": _ordered(heads, HEAD_COLUMNS), **tables}


def add_relevance(heads: HeadTable, relevance: HeadTable) -> HeadTable:
    """Fill the column `relevance` of `heads`; heads that relevance does not know stay empty."""
    return _ordered(HeadTable(heads.rows.drop(columns="relevance")).join(relevance), HEAD_COLUMNS)


def _positional_columns(statistics: Statistics) -> HeadTable:
    found = []
    for site, sums in statistics.sums(Positions()).items():
        offset, share, diagonal = positional(sums["count"])
        columns = {"positional_offset": offset, "positional_share": share, "self_share": diagonal}
        found.append(HeadTable.from_columns(site.heads, **columns).rows)
    return HeadTable(pd.concat(found, ignore_index=True))


def _ordered(table: HeadTable, columns: list[str]) -> HeadTable:
    """The columns of the contract first, empty where nothing was measured; others follow."""
    own = [c for c in table.rows.columns if c not in [*KEY_COLUMNS, *columns]]
    return HeadTable(table.rows.reindex(columns=[*KEY_COLUMNS, *columns, *own]))
