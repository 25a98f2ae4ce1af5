"""What is declared of all tables holds together, and a table with a column that nobody declared is found."""

from __future__ import annotations

import pandas as pd
import pytest
from declared_tables import undeclared

from headlens.analyses.report.registry import reports
from headlens.tables.every_table import TABLES, word_columns
from headlens.tables.table_schema import TableSchema

SCHEMAS = {f"{command}/{name}": schema for command, tables in TABLES.items() for name, schema in tables.items()}


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_columns_are_declared_once_with_a_sentence(schema: TableSchema) -> None:
    names = schema.names
    assert len(set(names)) == len(names)
    assert set(schema.identity) <= set(names)
    for column in schema.columns:
        assert column.about[0].isupper() or column.about[0] in "`αλκ1"
        assert column.about.endswith(".")
        assert not column.words or column.kind == "word"


def test_reports_have_the_tables_of_their_commands() -> None:
    for command, report in reports().items():
        if reports().is_own(command) and command in TABLES:
            assert report.tables is TABLES[command]
            assert set(report.needed) <= set(report.tables)


def test_what_is_not_declared_is_found() -> None:
    frame = pd.DataFrame(columns=["model", "head", "dep_to_head", "more"])
    assert undeclared("probe", "probe_weights", frame) == ["more"]
    assert undeclared("sparsefinder", "heads", pd.DataFrame(columns=["area_window", "area"])) == ["area"]
    assert undeclared("classify", "heads", pd.DataFrame(columns=["role", "rare_top1_ci_low", "rarest"])) == ["rarest"]
    with pytest.raises(KeyError):
        undeclared("probe", "weights", pd.DataFrame())


def test_words_are_those_of_the_table() -> None:
    """The same column may hold words in one table and numbers in another."""
    assert "offset" in word_columns("classify", "positions")
    assert "offset" not in word_columns("train-dam", "positions")
    assert {"model", "stack", "task"} <= set(word_columns("somebody's", "table"))
