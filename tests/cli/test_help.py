"""What a user meets first: help, version, completion; none of it may wait for torch."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
import typer
from built_commands import command_line
from typer.core import TyperCommand

from headlens import __version__
from headlens.analyses.commands import commands as option_commands
from headlens.options import GROUPS
from headlens_cli.app import app
from headlens_cli.command import COMMANDS, PROGRAM

from .conftest import Headlens

LINES = 50  # of a help, in a terminal of 80 columns
HEAVY = ("torch", "transformers", "numpy", "pandas", "matplotlib", "spacy", "stanza")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        pytest.param(["classify", "--help"], marks=pytest.mark.slow),
        pytest.param(["relevance", "--help"], marks=pytest.mark.slow),
        pytest.param(["attend", "-h"], marks=pytest.mark.slow),
        pytest.param(["compact", "-h"], marks=pytest.mark.slow),
        pytest.param(["ablate", "--help"], marks=pytest.mark.slow),
        pytest.param(["prune", "--help"], marks=pytest.mark.slow),
        pytest.param(["train-dam", "--help"], marks=pytest.mark.slow),
        pytest.param(["models", "--help"], marks=pytest.mark.slow),
    ],
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        f"sys.argv = ['headlens', *{arguments}]\n"
        "from headlens_cli.app import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        # Nor the options of other commands.
        f"heavy = [m for m in {HEAVY} if m in sys.modules]\n"
        "print('loaded:', heavy, sum(m.endswith('.options') and 'analyses' in m for m in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage: headlens" in done.stdout
    assert done.stdout.strip().endswith(f"loaded: [] {arguments[0] not in ('--help', 'models'):d}")


def test_the_list_of_commands_says_of_each_what_its_own_help_says() -> None:
    shown = typer.main.get_command(app)
    for name, entry in COMMANDS.items():
        built = command_line().commands[name]
        assert built.name == name
        assert built.get_short_help_str(200) == TyperCommand(name, help=entry.help).get_short_help_str(200)
    assert shown.list_commands(None) == command_line().list_commands(None)


def test_version(headlens: Headlens) -> None:
    assert headlens("--version").out == f"headlens {__version__}\n"


def test_no_arguments_shows_help(headlens: Headlens) -> None:
    assert "classify" in headlens().out


def commands() -> list[tuple[str, Any]]:
    group: Any = command_line()
    found = []
    for name, command in group.commands.items():
        found.append((name, command))
        found += [(f"{name} {n}", c) for n, c in getattr(command, "commands", {}).items()]
    return found


@pytest.mark.parametrize(("name", "command"), commands())
def test_every_option_has_a_help_line_and_a_group(name: str, command: Any) -> None:
    for parameter in command.params:
        if parameter.name in {"help", "everything"} or parameter.param_type_name == "argument":
            continue
        assert parameter.help, f"{name}: --{parameter.name} has no help"
        assert parameter.rich_help_panel, f"{name}: --{parameter.name} belongs to no group"


def test_the_command_line_imports_nothing_heavy() -> None:
    code = (
        "import sys, headlens_cli.app\nfrom headlens.analyses.commands import commands\n"
        "assert all(command.options for command in commands().values())\n"  # also those of every command
        f"print([m for m in {HEAVY} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_shell_completion_knows_the_commands() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headlens_cli"],
        env={"_HEADLENS_CLI_COMPLETE": "complete_bash", "COMP_WORDS": "headlens cl", "COMP_CWORD": "1", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "classify" in done.stdout


@pytest.mark.parametrize("name", option_commands())
def test_help_shows_what_most_people_need_and_help_all_the_rest(name: str, headlens: Headlens) -> None:
    declared = option_commands()[name]
    options, first = declared.options, declared.first
    assert set(first) <= {own.name for own in options.values() if own.typed_alone}
    brief, whole = (headlens(name, asked) for asked in ("--help", "--help-all"))
    assert brief.code == whole.code == 0
    assert bool(first) == (whole.out.count("\n") > LINES)
    flags = [own.flag for own in options.values() if own.typed_alone and not own.option.argument]
    assert not [flag for flag in flags if flag not in whole.out]
    words = " ".join(re.sub("[│╭╮╰╯─]", " ", whole.out).split())
    alone = [group for group in declared.groups if not GROUPS[group].of_program]
    assert not [
        own.name_in_group for group in alone for own in declared.groups[group] if own.name_in_group not in words
    ]
    if not first:
        assert whole.out == brief.out, "it is taken everywhere"
        return
    assert len(first) <= 10
    shown = {
        flag
        for flag in flags
        if re.search(rf"^[^\w-]{{0,4}}{flag}(?![\w-])", brief.out.rpartition(" Options ")[2], re.M)
    }
    assert shown == {options[own].flag for own in first} | {"--out"}
    assert headlens(name, "--help").out == brief.out, "showing all is no state that stays"


@pytest.mark.parametrize("words", [*[(name,) for name in (*COMMANDS, "serve", "models")], ("models", "check")])
def test_help_fits_a_terminal(words: tuple[str, ...], headlens: Headlens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert headlens(*words, "--help").out.count("\n") <= LINES


def test_options_of_the_program_are_understood_anywhere(headlens: Headlens) -> None:
    told = [headlens(*words).out for words in (("--json", "models"), ("models", "--json"))]
    assert told[0] == told[1]
    assert told[0].startswith("{")
    assert headlens("--help-all", "classify").out == headlens("classify", "--help-all").out
    everywhere = headlens("--help").out
    assert not [name for name in PROGRAM if f"--{name.replace('_', '-')}" not in everywhere]


def test_a_command_without_models_trusts_nothing(headlens: Headlens) -> None:
    for words in (("--trust", "pickle", "reproduce"), ("reproduce", "--trust", "pickle")):
        done = headlens(*words)
        assert (done.code, done.out) == (2, "")
        assert "--trust: headlens reproduce loads no model" in done.err


def test_what_the_command_line_asks_for_does_not_grow() -> None:
    """So many names, and so many pairs of a command and an option, were enough."""
    group: Any = command_line()
    own = [p.opts[0] for command in group.commands.values() for p in command.params if p.opts[0].startswith("-")]
    assert len({*own, *(p.opts[0] for p in group.params)}) <= 101
    assert len(own) <= 328
