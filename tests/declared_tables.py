"""Which columns of a table nobody declared."""

from __future__ import annotations

import re

import pandas as pd

from headlens.analyses.classify.metric_declarations import MetricDeclaration, measured_columns
from headlens.metrics.metric_registry import registered_metrics
from headlens.tables.every_table import TABLES
from headlens.tables.shared_columns import MODEL_HEAD


def undeclared(command: str, name: str, frame: pd.DataFrame) -> list[str]:
    """Returns the columns of a table that its schema lacks; a part of a name in capitals stands for anything.

    Metrics declare the columns of heads.csv that they fill; their own tables without a schema have the same ones.
    """
    metrics = {metric.name: measured_columns([MetricDeclaration.of(metric)]) for metric in registered_metrics()}
    schema = TABLES[command].get(name)
    columns = (*MODEL_HEAD, *metrics[name]) if schema is None else schema.columns
    if (command, name) == ("classify", "heads"):
        columns += tuple(column for own in metrics.values() for column in own)
    declared = "|".join(re.sub("[A-Z]+", ".+", column.name) for column in columns)
    return [column for column in frame if not re.fullmatch(declared, column)]
