"""The page of errors has the messages that the code gives, and finds one that was pasted."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from error_messages import KINDS, VALUE, Catalogue, Message
from saved import read_conllu

import headlens
from headlens.analyses.sparsefinder.options import ParameterGrid
from headlens.errors import HeadlensError
from headlens.interventions.patterns import parse_pattern
from headlens.option_values import share

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

ROOT = Path(__file__).resolve().parents[1]


@cache
def catalogue() -> list[Message]:
    return Catalogue().messages()


def matches(pattern: str, text: str) -> bool:
    """Whether a message of the page, with `…` for anything, is one that was given."""
    pattern = re.sub(r"^FILE(:LINE)?: ", f"{VALUE}: ", pattern)
    return (
        re.fullmatch(".*".join(map(re.escape, re.split(rf"{VALUE}|\(s\)", pattern))), " ".join(text.split()))
        is not None
    )


def listed(error: HeadlensError) -> list[Message]:
    """The messages of the page that an error is, with its advice and its kind."""
    return [
        one
        for one in catalogue()
        if matches(one.text, error.message)
        and any(matches(told, error.advice) for told in one.advice.split(" / "))
        and one.kind == type(error).__name__
    ]


ERRORS: dict[str, Callable[[Path], object]] = {
    "a name in the text": lambda _: parse_pattern("widow:3"),
    "two assignments": lambda _: parse_pattern("window:"),
    "a constant for the advice": lambda _: parse_pattern("window:a"),
    "a message with a place": lambda _: ParameterGrid(windows=(2,)),
    "a message of a function's parameter": lambda _: ParameterGrid(top=0),
    "a file and a line": lambda folder: list(read_conllu(broken_treebank(folder))),
    "a corpus that is not there": lambda folder: headlens.classify("demo", str(folder / "none.conllu")),
    "what a function returns": lambda folder: list(read_conllu(cyclic_treebank(folder))),
    "a model that is not there": lambda folder: headlens.load(str(folder / "none")),
}


def broken_treebank(folder: Path) -> Path:
    path = folder / "broken.conllu"
    path.write_text("1\tA\tb\n\n", encoding="utf-8")
    return path


def cyclic_treebank(folder: Path) -> Path:
    path = folder / "cyclic.conllu"
    words = [(1, "A", 2), (2, "b", 1), (3, "c", 0)]
    lines = [f"{number}\t{form}\t_\t_\t_\t_\t{head}\tdep\t_\t_" for number, form, head in words]
    path.write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("fail", ERRORS.values(), ids=ERRORS)
def test_errors_that_are_raised_are_on_the_page(fail: Callable[[Path], object], tmp_path: Path) -> None:
    with pytest.raises(HeadlensError) as caught:
        fail(tmp_path)
    assert listed(caught.value), caught.value


def test_messages_of_options_values_are_on_the_page() -> None:
    with pytest.raises(ValueError, match="is not a number from 0 to 1") as caught:
        share("2")
    assert [one for one in catalogue() if matches(one.text, f"--margin: {caught.value}")]


def test_no_message_that_stands_in_the_code_is_missing() -> None:
    """Every literal first argument of an error, found by nothing but its place, is in a message of its file."""
    missing = []
    for path in (ROOT / "headlens").rglob("*.py"):
        texts = [one.text for one in catalogue() if one.module == path.relative_to(ROOT / "headlens").as_posix()]
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Name) and call.func.id in KINDS and call.args:
                first = call.args[0]
                parts = first.values if isinstance(first, ast.JoinedStr) else [first]
                literals = [str(part.value).strip() for part in parts if isinstance(part, ast.Constant)]
                longest = " ".join(max(literals, key=len, default="").split())
                if re.search("[a-z]{3}", longest) and not any(longest in text for text in texts):
                    missing.append((path.name, call.lineno, longest))
    assert missing == []


def test_the_page_finds_a_message_that_was_pasted(new_context: Callable[..., BrowserContext], tmp_path: Path) -> None:
    script = (ROOT / "docs" / "_static" / "errors.js").read_text(encoding="utf-8")
    rows = [
        "There is no attention pattern '…'.",
        "FILE:LINE: there is no column '…'.",
        "FILE:LINE: … column(s) instead of …",
    ]
    table = "".join(f"<tr><td>{row}</td><td></td></tr>" for row in rows)
    page = tmp_path / "errors.html"
    page.write_text(
        '<meta charset="utf-8"><article><section><input id="message"><p id="matches"></p>'
        "<section><table><thead><tr><th>message"
        f"</th></tr></thead><tbody>{table}</tbody></table></section></section></article><script>{script}</script>",
        encoding="utf-8",
    )
    tab = new_context().new_page()
    tab.goto(page.as_uri())

    def shown(pasted: str) -> list[str]:
        tab.fill("#message", pasted)
        return [row for row in tab.locator("td:first-child:visible").all_inner_texts() if row]

    assert shown("") == rows
    assert shown('There is no attention pattern "widow".') == rows[:1]
    assert shown("reviews.csv:1: there is no column 'text'.\nColumns: review, stars.") == rows[1:2]
    assert shown("x.conllu:1: 3 columns instead of 10 between tabs") == rows[2:]
    assert shown("x.conllu:1: 1 column instead of 10 between tabs") == rows[2:]
    assert shown("instead of") == rows[2:]
    assert shown("nothing like it anywhere") == []
    assert tab.inner_text("#matches") == "0 of 3 messages"
