"""What a user meets first: help, version, completion; none of it may wait for torch."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
import typer

from headlens import __version__
from headlens.analyses.commands import commands as option_commands
from headlens_cli.app import app
from headlens_cli.command import COMMANDS

from .conftest import Headlens

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
        f"print('loaded:', [m for m in {HEAVY} if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage: headlens" in done.stdout
    assert done.stdout.strip().endswith("loaded: []")


def test_version(headlens: Headlens) -> None:
    assert headlens("--version").out == f"headlens {__version__}\n"


def test_no_arguments_shows_help(headlens: Headlens) -> None:
    assert "classify" in headlens().out


def commands() -> list[tuple[str, Any]]:
    group: Any = typer.main.get_command(app)
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
    code = f"import sys, headlens_cli.app\nprint([m for m in {HEAVY} if m in sys.modules])"
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


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_shows_what_most_people_need_and_help_all_the_rest(name: str, headlens: Headlens) -> None:
    declared = option_commands()[name]
    options, first = declared.options, declared.first
    assert bool(first) == (len(options) > 25)
    assert set(first) <= set(options)
    brief, flags = (
        headlens(name, "--help").out.rpartition(" Options ")[2],
        [own.flag.partition(" ")[0] for own in options.values() if not own.option.argument],
    )
    shown = {flag for flag in flags if re.search(rf"^[^\w-]{{0,4}}{flag}(?![\w-])", brief, re.MULTILINE)}
    if not first:
        assert "--help-all" not in brief
        assert headlens(name, "--help-all").out.endswith(brief), "it is taken everywhere"
        return
    assert len(first) <= 10
    assert shown - {flag for flag in flags if not flag.startswith("-")} == {options[own].flag for own in first} | {
        "--out"
    }
    whole = headlens(name, "--help-all")
    assert whole.code == 0
    assert not [flag for flag in flags if flag not in whole.out]
    words = " ".join(re.sub("[│╭╮╰╯─]", " ", whole.out).split())
    assert not [own.name for of in declared.groups.values() for own in of if own.name.replace("_", "-") not in words]
    assert headlens(name, "--help").out.endswith(brief), "showing all is no state that stays"
