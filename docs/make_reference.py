"""Write the reference pages from the declarations in the code: `python docs/make_reference.py`.

A test holds that they are as this script writes them.
"""

from __future__ import annotations

import html
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin

from error_messages import KINDS, Catalogue, Message

import headlens
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


# Where the public names are at home, from what most people need to what few do.
_API_PARTS = {
    "api": "One function for every command",
    "result": "What they return",
    "models": "Models",
    "corpora": "Corpora",
    "runs": "Corpora",
    "tasks": "Tasks",
    "analyses": "Passes without run folder and figures",
    "attention": "Attention: observers and edits",
    "interventions": "Edits and masks",
    "metrics": "Metrics",
    "heads": "Heads",
    "statistics": "Statistics",
    "errors": "Errors",
}


def api_page() -> str:
    """Every public name, by what it is for; Sphinx writes a page for each from its docstring."""
    parts: dict[str, list[str]] = {title: [] for title in _API_PARTS.values()}
    for name in headlens.__all__:
        parts[_API_PARTS[getattr(headlens, name).__module__.split(".")[1]]].append(name)
    lines = [
        _MADE,
        "# Python API",
        "",
        "Everything that `import headlens` offers. [From Python](../python.md) begins with examples.",
    ]
    for title, names in parts.items():
        listed = [f"   {name}" for name in sorted(names, key=str.casefold)]
        lines += ["", f"## {title}", "", "```{eval-rst}", ".. currentmodule:: headlens", "", ".. autosummary::"]
        lines += ["   :toctree: api", "   :nosignatures:", "", *listed, "```"]
    return "\n".join(lines) + "\n"


def errors_page() -> str:
    """Every message of an error and what it advises, by the part of the program that it comes from."""
    lines = [
        _MADE,
        "# Errors",
        "",
        "Every message that headlens ends with on purpose, and what to do. `…` stands for what is known only then: a",
        "file, a name, a number. An error that you can mend ends with exit code 2; in Python each is a",
        "`headlens.HeadlensError`. Your browser finds a message on this page by any of its words; on the site the",
        "field below takes a message as it was printed.",
        "",
        "```{raw} html",
        '<input id="message" type="search" placeholder="Paste a message" aria-label="Paste a message">',
        '<p id="matches" role="status"></p>',
        '<script defer src="../_static/errors.js"></script>',
        "```",
    ]
    parts: dict[str, list[Message]] = defaultdict(list)
    for message in Catalogue().messages():
        folder, *inner = message.module.split("/")
        place = inner[0].removesuffix(".py") if folder == "analyses" else folder.removesuffix(".py")
        parts["Self-checks" if message.kind == "SelfCheckError" else place].append(message)
    own = parts.pop("Self-checks")
    for place, messages in sorted(parts.items()):
        lines += ["", f"## {place}", "", "| message | what to do | kind |", "|---|---|---|"]
        lines += [f"| {_plain(one.text)} | {_advice(one)} | `{one.kind}` |" for one in messages]
    lines += [
        "",
        "## Self-checks",
        "",
        "headlens found itself wrong, or a model that does something else than it says. Please report it with the",
        "command and the model.",
        "",
        "| message | what to do |",
        "|---|---|",
    ]
    lines += [f"| {_plain(one.text)} | {_advice(one)} |" for one in own]
    lines += ["", "## Kinds", "", "| kind | what is wrong |", "|---|---|"]
    lines += [f"| `{name}` | {_cell((inspect.getdoc(kind) or '').splitlines()[0])} |" for name, kind in KINDS.items()]
    return "\n".join(lines) + "\n"


def _advice(message: Message) -> str:
    return " / ".join(map(_plain, message.advice.split(" / "))) if message.advice != "…" else ""


def _plain(text: str) -> str:
    """Escapes what Markdown or HTML would read as markup, so that a page shows a text as it is."""
    return re.sub(r"([\\`*_\[\]|$~#{}])", r"\\\1", html.escape(text, quote=False))


def pages() -> Iterator[tuple[Path, str]]:
    """Every page of the reference and its text."""
    yield FOLDER / "options.md", options_page()
    yield FOLDER / "columns.md", columns_page()
    yield FOLDER / "api.md", api_page()
    yield FOLDER / "errors.md", errors_page()


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
