"""Write the reference pages from the declarations in the code: `python docs/make_reference.py`.

A test holds that they are as this script writes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin

from headlens.analyses.classify.metric_declarations import MetricDeclaration
from headlens.analyses.commands import commands
from headlens.metrics.metric_registry import registered_metrics
from headlens.options import DeclaredOption, without_none

FOLDER = Path(__file__).parent / "reference"
_MADE = "<!-- made by docs/make_reference.py: change the declarations in the code, and run it -->"


def options_page() -> str:
    """Every option of every command: how it is typed, its default, and what it does."""
    lines = [
        _MADE,
        "# Options",
        "",
        "The options of every command, as `headlens COMMAND --help` shows them. In Python they are the arguments of",
        "`headlens.COMMAND`, with underscores; `--config FILE.toml` and `run.json` hold them under the same names.",
    ]
    for name, command in sorted(commands().items()):
        lines += ["", f"## {name}"]
        panels: dict[str, list[DeclaredOption]] = {}
        for own in command.options.values():
            panels.setdefault(own.option.panel or "Arguments", []).append(own)
        for panel, options in panels.items():
            lines += ["", f"**{panel}**", "", "| option | default | what it does |", "|---|---|---|"]
            lines += [f"| {_typed(own)} | {_default(own)} | {_cell(own.option.help)} |" for own in options]
    return "\n".join(lines) + "\n"


def columns_page() -> str:
    """Every column of heads.csv that a metric fills, and the tables of their own that metrics have."""
    lines = [
        _MADE,
        "# Columns of heads.csv",
        "",
        "One row for each head. The columns `model`, `stack`, `layer`, `head` name it; `relevance` is filled by",
        "`classify --relevance`; `role` is the strongest role and `roles` lists all. Columns that end in `_ci_low` and",
        "`_ci_high` are the ends of 95 % intervals.",
        "",
        "| column | unit | what it is | metric |",
        "|---|---|---|---|",
    ]
    metrics = registered_metrics()
    lines += [
        f"| {', '.join(f'`{name}`' for name in column.names)} | {column.unit} | {_cell(column.about)} | {metric.name} |"
        for metric in metrics
        for column in metric.columns
    ]
    own = ", ".join(f"`{metric.name}.csv`" for metric in metrics if metric.own_table)
    lines += ["", f"Metrics with a table of their own: {own}.", "", "## Figures", ""]
    for declaration in map(MetricDeclaration.of, metrics):
        if declaration.title:
            lines += [f"**{declaration.name}.png** {_cell(declaration.caption)}", ""]
    return "\n".join(lines).rstrip() + "\n"


def pages() -> Iterator[tuple[Path, str]]:
    """Every page of the reference and its text."""
    yield FOLDER / "options.md", options_page()
    yield FOLDER / "columns.md", columns_page()


def _typed(own: DeclaredOption) -> str:
    option = own.option
    hint = without_none(own.hint)
    if option.argument:
        return f"`{option.metavar}`"
    if option.flags and "/" in option.flags[0]:
        return f"`{option.flags[0].replace('/', '`, `')}`"
    if hint is bool:
        return f"`{own.flag}`"
    values = "|".join(map(str, get_args(hint))) if get_origin(hint) is Literal and not option.metavar else ""
    return f"`{own.flag} {option.metavar or values or hint.__name__.upper()}`".replace("|", "\\|")


def _default(own: DeclaredOption) -> str:
    if own.option.shown is not None:
        return _cell(own.option.shown)
    value = own.default
    if isinstance(value, tuple):
        value = "" if own.repeated else ",".join(f"{v:g}" if isinstance(v, float) else str(v) for v in value)
    if own.option.flags and "/" in own.option.flags[0]:
        return f"`{own.option.flags[0].split('/')[not value]}`"
    return "" if value is None or value is False or value == "" else f"`{value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in pages():
        path.write_text(text, encoding="utf-8")
