"""The tables that every command writes, by command and name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headlens.heads import KEY_COLUMNS
from headlens.tables.ablation_tables import ABLATE
from headlens.tables.classify_tables import CLASSIFY
from headlens.tables.mask_tables import DAM, MASK_STUDY, OVER_TASKS
from headlens.tables.probe_tables import PROBE
from headlens.tables.prune_tables import PRUNE
from headlens.tables.relevance_tables import RELEVANCE_RUN
from headlens.tables.reproduce_tables import REPRODUCE
from headlens.tables.shared_columns import HEAD, KV_GROUP, METRIC, MODEL, ROLE, ROLES, RUN, STACK, TASK
from headlens.tables.sparsefinder_tables import SPARSEFINDER
from headlens.tables.table_schema import TableSchema
from headlens.tables.training_tables import COMPACT, TRAIN


def _with_groups(schema: TableSchema) -> TableSchema:
    """The table with `kv_group` beside the head if it is about heads; `headlens.runs.kv_groups` fills the column."""
    if not set(KEY_COLUMNS) <= set(schema.names):
        return schema
    place = schema.names.index(HEAD.name) + 1
    return replace(schema, columns=(*schema.columns[:place], KV_GROUP, *schema.columns[place:]))


TABLES: Mapping[str, Mapping[str, TableSchema]] = {
    command: {schema.name: _with_groups(schema) for schema in schemas}
    for command, schemas in {
        "classify": CLASSIFY,
        "relevance": RELEVANCE_RUN,
        "ablate": ABLATE,
        "probe": PROBE,
        "prune": PRUNE,
        "compact": COMPACT,
        "masks": MASK_STUDY,
        "train-dam": DAM,
        "sparsefinder": SPARSEFINDER,
        "train": TRAIN,
        "report": (OVER_TASKS,),
        "reproduce": REPRODUCE,
    }.items()
}
# Columns that hold words in tables that nobody declared, too: a model may be called 12.
WORDS = [column.name for column in (MODEL, STACK, TASK, METRIC, ROLE, ROLES, RUN)]


def word_columns(command: object, table: str) -> list[str]:
    """Returns the names of the columns of a table that are read as text whatever they hold.

    Args:
        command: that wrote it.
        table: name of its file, without `.csv`.
    """
    schema = TABLES.get(str(command), {}).get(table)
    return [*WORDS, *(schema.words if schema else ())]
