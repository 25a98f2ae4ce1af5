"""What widens trust is given on the command line only: files with options may come from anyone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tiers import rest_slow

from headlens.analyses.commands import commands

from .conftest import Headlens

pytestmark = pytest.mark.usefixtures("small_demo")
TRUSTING = {"trust_remote_code": "--trust remote-code", "allow_pickle": "--trust pickle"}
QUICK = ("--text", "It is.", "--out", "done")


def of_toml(headlens: Headlens, name: str) -> tuple[str, ...]:
    del headlens
    Path("mine.toml").write_text(f"{name.replace('_', '-')} = true\n")
    return ("--config", "mine.toml")


def of_table(headlens: Headlens, name: str) -> tuple[str, ...]:
    del headlens
    Path("mine.toml").write_text(f"[attend]\n{name} = true\n")
    return ("--config", "mine.toml")


def edited(headlens: Headlens, changes: dict[str, Any], arguments: dict[str, Any]) -> None:
    headlens("attend", "demo", "--text", "It is.", "--out", "run")
    record = json.loads(Path("run/run.json").read_text())
    record |= changes
    record["arguments"] |= arguments
    Path("run/run.json").write_text(json.dumps(record))


def of_record(headlens: Headlens, name: str) -> tuple[str, ...]:
    edited(headlens, {}, {name: True, "out": None})
    return ("--config", "run/run.json")


def of_recipe(headlens: Headlens, name: str) -> tuple[str, ...]:
    del headlens
    step = f'[[steps]]\nname = "roles"\ncommand = "attend"\nwhy = "roles"\n{name.replace("_", "-")} = true\n'
    Path("own.toml").write_text(f'[paper]\ntitle = "A"\ncitation = "B"\nsetting = "C"\n\n{step}')
    return ("--config", "own.toml:roles")


@pytest.mark.parametrize("name", TRUSTING)
@pytest.mark.parametrize("source", [of_toml, of_table, of_record, of_recipe])
def test_a_file_gives_no_consent(headlens: Headlens, name: str, source: Any) -> None:
    given = source(headlens, name)
    told = headlens("attend", "demo", *given, *QUICK)
    assert told.code == 2
    assert f"{given[0]} {given[1]} asks for {TRUSTING[name]}, and a file may come from anyone" in told.err
    assert not Path("done").exists()
    assert headlens("attend", "demo", *given, *TRUSTING[name].split(), *QUICK).code == 0


@pytest.mark.parametrize("name", TRUSTING)
def test_a_run_folder_gives_no_consent(headlens: Headlens, name: str) -> None:
    edited(headlens, {"status": "interrupted"}, {name: True})
    told = headlens("attend", "--resume", "run")
    assert told.code == 2
    assert f"--resume run asks for {TRUSTING[name]}" in told.err
    assert headlens("attend", "--resume", "run", *TRUSTING[name].split()).code == 0


@pytest.mark.parametrize("name", rest_slow(TRUSTING))
def test_a_recipe_gives_no_consent(headlens: Headlens, name: str) -> None:
    of_recipe(headlens, name)
    assert TRUSTING[name] in headlens("reproduce", "own.toml", "--dry-run").err
    told = headlens("reproduce", "own.toml", "--out", "paper")
    assert told.code != 0
    assert not list(Path("paper").rglob("attention.safetensors"))


def test_every_option_that_widens_trust_is_known() -> None:
    words = re.compile(r"trust|pickle|remote|unsafe|any code")
    for command in commands().values():
        trusting = {n for n, declared in command.options.items() if declared.option.trusts}
        named = {n for n, declared in command.options.items() if words.search(f"{n} {declared.option.help}")}
        assert trusting == named == set(TRUSTING) & set(command.options), command.name
        # A file could switch them on by their default only if they were no plain switches.
        assert all(command.options[n].default is False for n in trusting)
