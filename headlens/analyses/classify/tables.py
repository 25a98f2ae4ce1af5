"""The tables of `classify`, put together from what the metrics measured."""

from __future__ import annotations

from functools import reduce

from headlens.analyses.classify.options import Thresholds
from headlens.analyses.classify.roles import label, mark_syntactic
from headlens.heads import KEY_COLUMNS, HeadTable
from headlens.metrics.metric import Statistics
from headlens.metrics.metric_registry import registered_metrics
from headlens.metrics.similarity import HeadSimilarity


def head_tables(
    statistics: Statistics, similarity: HeadSimilarity | None, thresholds: Thresholds
) -> dict[str, HeadTable]:
    """Tables by the name of their CSV, `heads` first; those without any measurement are left out.

    Every metric's columns are in `heads`, and its own table, if it has one, is among the others.

    Args:
        statistics: measured over a corpus.
        similarity: measured over the same corpus; None if it was not asked for.
        thresholds: from where on a head holds a role.
    """
    measured = statistics.tables()
    tables = {m.name: measured[m.name] for m in statistics.metrics if m.own_table and m.name in measured}
    if "syntax" in tables:
        tables["syntax"] = mark_syntactic(tables["syntax"], thresholds)
    heads = label(reduce(HeadTable.join, statistics.head_tables()), tables.get("syntax"), thresholds)
    pairs, embedding = (None, None) if similarity is None else (similarity.table(), similarity.embedding())
    if pairs is not None and embedding is not None:
        tables["similarity"] = pairs
        heads = heads.join(embedding)
    return {"heads": _ordered(heads), **tables}


def head_columns() -> list[str]:
    """The columns that every heads.csv begins with, after those that name the head; others follow."""
    columns = [column.name for metric in registered_metrics() for column in metric.columns if column.contract]
    return [*columns, "relevance", "role", "roles"]


def add_relevance(heads: HeadTable, relevance: HeadTable) -> HeadTable:
    """Fill the column `relevance` of `heads`; heads that relevance does not know stay empty."""
    return _ordered(HeadTable(heads.rows.drop(columns="relevance")).join(relevance))


def _ordered(heads: HeadTable) -> HeadTable:
    """The columns of the contract first, empty where nothing was measured; others follow."""
    first = [*KEY_COLUMNS, *head_columns()]
    return HeadTable(heads.rows.reindex(columns=[*first, *(c for c in heads.rows.columns if c not in first)]))
