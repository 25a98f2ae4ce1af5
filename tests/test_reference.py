"""The pages of the reference name what there is; that they are as their script writes them, `.ci/docs` checks."""

from __future__ import annotations

from pathlib import Path

from headlens.analyses.commands import commands
from headlens.metrics.metric_registry import registered_metrics
from headlens.tables.every_table import TABLES

ROOT = Path(__file__).resolve().parents[1]


def test_every_option_and_every_column_is_documented() -> None:
    options, columns = ((ROOT / "docs" / "reference" / name).read_text() for name in ("options.md", "columns.md"))
    for name, command in commands().items():
        assert f"\n## {name}\n" in options, f"{name} is missing. Run: python docs/make_reference.py"
        section = options.split(f"\n## {name}\n")[1].split("\n## ")[0]
        for own in command.options.values():
            assert (own.option.metavar or own.flag) in section if own.option.argument else own.flag in section, own.name
    for command, schemas in TABLES.items():
        section = columns.split(f"\n## {command}\n")[1].split("\n## ")[0]
        for table, schema in schemas.items():
            assert f"`{table}.csv`" in section
            assert all(f"`{column.name}`" in columns and column.about.endswith(".") for column in schema.columns)
    for metric in registered_metrics():
        for column in metric.columns:
            assert f"`{column.name}`" in columns
