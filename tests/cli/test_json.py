"""What `--json` prints and run.json holds of every command, against the schemas that headlens ships."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from every_command import CASES
from jsonschema import Draft202012Validator

from headlens.analyses.commands import commands

RECIPE = """
[paper]
title = "A paper"
citation = "Nobody, nowhere"
setting = "Everything is ours."
[[steps]]
name = "counted"
command = "masks"
why = "a table"
pattern = ["star"]
length = 16
figures = false
[[tables]]
title = "Masked"
step = "counted"
file = "sparsity.csv"
[[tables.columns]]
name = "sparsity"
value = "sparsity"
[[tables.rows]]
label = "star"
where = { pattern = "star" }
"""


def schema(name: str) -> dict[str, Any]:
    text = files("headlens.runs").joinpath(f"{name}.schema.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


SUMMARY, RUN = schema("summary"), schema("run")


def check(document: dict[str, Any], of: dict[str, Any]) -> None:
    """The document must be valid, and have nothing that the schema leaves out."""
    Draft202012Validator(of).validate(document)
    own = of["$defs"].get(document["command"], {}).get("properties", {})
    assert set(document) - {*of["properties"], *own} == set()


def check_run(printed: str, name: str) -> dict[str, Any]:
    """Checks what a command printed, and the record in the folder that it names."""
    summary: dict[str, Any] = json.loads(printed)
    check(summary, SUMMARY)
    assert summary["command"] == name
    folder = Path(summary["out"])
    assert all(Path(path).is_file() for path in summary["files"])
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    check(record, RUN)
    for model in record.get("models", ()):
        assert set(model) <= set(RUN["$defs"]["model"]["properties"])
    assert summary["rows"] == record.get("rows", {})
    for table, count in summary["rows"].items():
        assert len(pd.read_csv(folder / table)) == count
    if name != "report":
        assert summary["notes"] == record.get("notes", [])
    return summary


@pytest.mark.parametrize("name", ["summary", "run"])
def test_the_schemas_are_schemas(name: str) -> None:
    own = schema(name)
    Draft202012Validator.check_schema(own)
    assert {part["if"]["properties"]["command"]["const"] for part in own["allOf"]} <= set(commands())
    if name == "summary":
        assert set(commands()) - {"models", "serve"} <= set(own["$defs"])


def test_a_small_run_is_as_its_schema_says(headlens: Callable[..., Any]) -> None:
    done = headlens("masks", "--pattern", "star", "--length", 8, "--json", "--out", "run")
    assert (done.code, done.err) == (0, "")
    summary = check_run(done.out, "masks")
    assert summary["rows"] == {"sparsity.csv": 2}
    assert summary["sparsity"][0]["mask"] == "star"
    for missing in ("command", "findings", "rows", "sparsity"):
        less = {name: value for name, value in summary.items() if name != missing}
        assert not Draft202012Validator(SUMMARY).is_valid(less), missing


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case != "masks"])
def test_every_command_is_as_its_schema_says(
    case: str, command: Callable[[str], list[str]], headlens: Callable[..., Any]
) -> None:
    done = headlens(*command(case), "--json")
    assert done.code == 0, done.err
    check_run(done.out, case.partition(" ")[0])


@pytest.mark.slow
def test_a_recipe_is_as_its_schema_says(headlens: Callable[..., Any]) -> None:
    Path("recipe.toml").write_text(RECIPE, encoding="utf-8")
    done = headlens("reproduce", "recipe.toml", "--json", "--out", "run")
    assert done.code == 0, done.err
    assert check_run(done.out, "reproduce")["comparison"][0]["table"] == "Masked"
