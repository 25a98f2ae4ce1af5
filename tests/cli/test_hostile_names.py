"""Names that would command a terminal: every command shows them, and reads nothing in them as markup."""

from __future__ import annotations

import json
import logging
import re
import shutil
import sys
import unicodedata
import warnings
from pathlib import Path

import pytest
from tiers import rest_slow

from headlens.errors import HeadlensError
from headlens.pages.page_tables import summary_table
from headlens_cli.command import COMMANDS
from headlens_cli.screen import Screen

from .conftest import Headlens, Outcome

# Markup that closes nothing, a title of the window, colours, a deleted line, an emoji's name, turned text.
NAME = "m[-b]x[b]\x1b]0;t\x07\x1b[31m\r\x9b2K:bomb:\u202e\u2066\x7f"
SHOWN = r"m[-b]x[b]\x1b]0;t\x07\x1b[31m\r\x9b2K:bomb:\u202e\u2066\x7f"
SHOWN_END = r"2K:bomb:\u202e\u2066"
MARKUP = NAME.replace("[-b]", "[/b]")  # what is no name of a file
TREE = (
    "1\tThe\t_\tDET\t_\t_\t2\t{}\t_\t_\n"
    "2\tdog\t_\tNOUN\t_\t_\t3\tnsubj\t_\t_\n3\tsleeps\t_\tVERB\t_\t_\t0\troot\t_\t_\n\n"
)


def raw(text: str) -> set[str]:
    """What a terminal would obey, or what turns text around."""
    bidi = {*"\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"}
    return {c for c in text if c != "\n" and (c in bidi or unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp"))}


def check(done: Outcome, code: int) -> None:
    text = done.out + done.err
    assert done.code == code, text
    assert not raw(text)
    # Messages are wrapped in the boxes of Typer.
    assert SHOWN_END in text or SHOWN_END in "".join(c for c in text if c not in " │\n"), text


def quoted(text: str) -> str:
    """A string of TOML, which may hold as much raw as that allows."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


@pytest.fixture
def hostile(tiny_bert: Path, headlens: Headlens) -> Headlens:
    """A model, a treebank, a table and a recipe with such names, in the folder where the program is called."""
    shutil.copytree(tiny_bert, NAME)
    Path(f"{NAME}.conllu").write_text(TREE.format(NAME.replace("\r", "")) * 4, encoding="utf-8")
    Path(f"{NAME}.tsv").write_text(f"{MARKUP.replace(chr(13), '')}\tlabel\na b\t{NAME[:9]}\n", encoding="utf-8")
    step = f'[[steps]]\nname = {quoted(NAME)}\ncommand = "classify"\nwhy = {quoted(MARKUP)}\nlimit = 3\n'
    paper = "".join(f"{key} = {quoted(MARKUP)}\n" for key in ("title", "citation", "setting"))
    Path(f"{NAME}.toml").write_text(f"[paper]\n{paper}\n{step}", encoding="utf-8")
    return headlens


RELATION = NAME.replace("\r", "")
FILES = {kind: f"{NAME}.{kind}" for kind in ("conllu", "tsv", "toml", "txt")}
DONE: dict[str, tuple[int, list[str]]] = {
    "classify": (
        0,
        [NAME, "--corpus", FILES["conllu"], "--relations", RELATION, "--no-figures", "--out", f"run{NAME}"],
    ),
    "attend": (0, [NAME, "--text", f"a {NAME}", "--out", f"run{NAME}"]),
    "models": (0, ["check", NAME]),
    "reproduce": (0, [FILES["toml"], "--show"]),
    "ablate": (2, [NAME, "--task", "sst2", "--data", FILES["tsv"]]),
    "compact": (2, [NAME, "--from", FILES["tsv"]]),
    "report": (2, [NAME]),
    "train": (2, [NAME, "--task", NAME]),
    "probe": (2, [NAME, "--corpus", FILES["conllu"], "--dev", NAME]),
    "prune": (2, [NAME, "--data", NAME]),
    "masks": (2, [NAME, "--pattern", NAME]),
    "train-dam": (2, [NAME, "--task", "mlm", "--corpus", FILES["txt"]]),
    "sparsefinder": (2, [NAME, "--corpus", FILES["tsv"], "--column", NAME]),
    "relevance": (2, [NAME, "--corpus", FILES["conllu"], "--relevance-target", f"class:{NAME}"]),
}


@pytest.mark.parametrize("command", rest_slow(DONE, ("classify", "models")))
def test_every_command_shows_names(command: str, hostile: Headlens) -> None:
    code, words = DONE[command]
    check(hostile(command, *words), code)


def test_these_are_all_commands() -> None:
    assert {*DONE} == {*COMMANDS} - {"serve"}


@pytest.mark.parametrize(
    "words",
    [
        [NAME],
        [f"--{NAME}"],
        ["classify", f"--{NAME}"],
        ["classify", "--data-args", f"level={NAME}"],
        ["classify", "--config", FILES["txt"]],
        ["classify", "--config", f"{FILES['toml']}:{NAME}x"],
        ["classify", "--resume", NAME],
        pytest.param(["classify", "--parser", f"spacy:{NAME}"], marks=pytest.mark.slow),
        ["classify", "--parser", f"stanza:{NAME}"],
        ["classify", "--frequency", NAME],
        ["classify", "--corpus", FILES["txt"]],
        ["models", NAME],
        ["models", "check", FILES["txt"]],
        ["reproduce", NAME],
    ],
)
def test_errors_quote_them(words: list[str], hostile: Headlens) -> None:
    check(hostile(*words), 2)


def test_json_is_told_as_json(hostile: Headlens) -> None:
    told = hostile("models", "check", NAME, "--json")
    assert not raw(told.out)
    assert json.loads(told.out)["name"] == NAME


def test_help_shows_no_defaults_of_a_file(hostile: Headlens) -> None:
    Path("own.toml").write_text(f"corpus = {json.dumps(NAME[:20])}\n", encoding="utf-8")
    told = hostile("classify", "--config", "own.toml", "--help")
    assert told.code == 0
    assert not raw(told.out)


def test_what_other_packages_write(hostile: Headlens, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        logging.getLogger("transformers").error("Some weights of %s", NAME)
        sys.stderr.write(warnings.formatwarning(NAME, UserWarning, NAME, 1, NAME))
        raise ZeroDivisionError(NAME)

    monkeypatch.setattr("headlens.analyses.classify.recipe.run_classify", broken)
    told = hostile("classify")
    check(told, 1)
    assert told.err.count(SHOWN) >= 3


def test_a_traceback(hostile: Headlens, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(HeadlensError) as raised:
        hostile("classify", NAME, "--corpus", NAME, "--debug")
    capsys.readouterr()
    sys.excepthook(raised.type, raised.value, raised.tb)
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback")
    assert SHOWN in shown
    assert not raw(shown)


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    screen = Screen(json=False, quiet=False)
    with screen.status(MARKUP):
        pass
    with screen.progress(MARKUP, 2) as advance:
        advance(1)
    screen.warn(MARKUP)
    screen.notes([f"a\nError: {MARKUP}"])
    screen.show(MARKUP, summary_table(MARKUP, [{MARKUP: MARKUP}]))
    screen.finish({}, [Path(f"{NAME}/{NAME}.csv")], MARKUP)
    shown = capsys.readouterr()
    text = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", shown.err + shown.out).replace("\r", "")  # what Rich writes itself
    assert not raw(text)
    assert text.count(SHOWN.replace("[-b]", "[/b]").replace(r"\n", "")) >= 8
    assert r"note: a\nError:" in text
