"""Text of anybody is shown, and commands nothing; and whatever prints goes through the one function."""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlens.errors import OptionError
from headlens.visible_text import visible_text

ROOT = Path(__file__).resolve().parents[1]
# What ends on a terminal, and what Rich makes of text.
SINKS = {
    *("print", "Text", "typer.echo", "typer.secho", "warnings.warn"),
    *("sys.stdout.write", "sys.stderr.write", "self.out.print", "self.err.print", "self.err.status", "bar.add_task"),
}
# What reads markup, or prints beside the sinks.
NEVER = (".print", ".from_markup", ".from_ansi", "Markdown")
SAFE = {"visible_text", "_line"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\rb\x08\x07\x7f\x9b", r"a\rb\x08\x07\x7f\x9b"),
        ("\u202egnp.exe \u2066\u200f\u061c", r"\u202egnp.exe \u2066\u200f\u061c"),
        ("\u2028\u2029\ud800\uffff\U0001ffff", r"\u2028\u2029\ud800\uffff\U0001ffff"),
        ("two\nlines\tand שלום، می‌خواهم 👩‍👧 [bold] :smile:", "two\nlines\tand שלום، می‌خواهم 👩‍👧 [bold] :smile:"),
    ],
)
def test_what_commands_is_spelled_out(text: str, shown: str) -> None:
    assert visible_text(text) == shown


def test_a_line_stays_a_line() -> None:
    assert visible_text("a\nnote: b\t", "") == r"a\nnote: b\t"


@given(st.text())
def test_nothing_is_left(text: str) -> None:
    shown = visible_text(text, "")
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
    assert visible_text(shown, "") == shown
    shown.encode()


def test_errors_are_so_in_python_too() -> None:
    error = OptionError("no \x1b[2J such", "see \u202eabc")
    assert str(error) == "no \\x1b[2J such\nsee \\u202eabc"


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def is_safe(node: ast.expr) -> bool:
    """Whether an argument is none of data: written here, a number, or through the function."""
    match node:
        case ast.Constant():
            return True
        case ast.Call():
            name = ast.unparse(node.func)
            return name in SAFE or name == "Text"  # which is a sink itself
        case ast.BinOp():
            return is_safe(node.left) and is_safe(node.right)
        case ast.IfExp():
            is_table = ast.unparse(node.test) == f"isinstance({ast.unparse(node.body)}, Table)"
            return (is_table or is_safe(node.body)) and is_safe(node.orelse)
        case ast.JoinedStr():
            fields = [part for part in node.values if isinstance(part, ast.FormattedValue)]
            return all(part.format_spec and ast.unparse(part.format_spec).endswith(("f'", "d'")) for part in fields)
    return False


def fed(name: str, call: ast.Call) -> list[ast.expr]:
    """What a call prints."""
    parts = [part.value if isinstance(part, ast.Starred) else part for part in call.args]
    parts = [part.elt if isinstance(part, ast.GeneratorExp | ast.ListComp) else part for part in parts]
    titles = [k.value for k in call.keywords if k.arg == "title"]
    return parts if name in SINKS or name.endswith((".add_column", ".add_row")) else titles if name == "Table" else []


def unsafe(source: str) -> list[str]:
    """The calls of a module that print what did not go through the function, or read markup."""
    bad = []
    for name, call in calls(ast.parse(source)):
        marked = {k.arg: ast.unparse(k.value) for k in call.keywords}.get("markup")
        reads_markup = marked == "True" or (name == "TextColumn" and "task" in ast.unparse(call) and marked is None)
        is_forbidden = name not in SINKS and name.endswith(NEVER)
        if reads_markup or is_forbidden or not all(map(is_safe, fed(name, call))):
            bad.append(ast.unparse(call))
    return bad


def test_everything_that_prints_goes_through_it() -> None:
    files = [path for part in ("headlens", "cli") for path in (ROOT / part).rglob("*.py")]
    sources = {str(path): path.read_text(encoding="utf-8") for path in files}
    # Most files do not even have the name of a call that prints, and need not be parsed.
    names = {name.rpartition(".")[2] for name in (*SINKS, *NEVER, "add_column", "add_row", "Table", "TextColumn")}
    found = re.compile("|".join(map(re.escape, sorted(names | {"markup"}))))
    assert {name: bad for name, text in sources.items() if found.search(text) and (bad := unsafe(text))} == {}


@pytest.mark.parametrize(
    "source",
    [
        "print(name)",
        "print(f'{name}')",
        "self.out.print(f'model {name}')",
        "self.err.status('reading ' + name)",
        "typer.echo(str(error))",
        "Text(name)",
        "Text.from_markup('a')",
        "sys.stdout.write(table)",
        "console.print(table)",
        "Table(title=name)",
        "table.add_row(*[cell for cell in row])",
        "TextColumn('{task.description}')",
        "Console(markup=True)",
    ],
)
def test_the_scan_finds(source: str) -> None:
    assert unsafe(source)
