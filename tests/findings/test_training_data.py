"""A model that is measured on what it learned from is told, whatever folder it lies in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headlens.findings.training_data import training_data_notes

TRAINED = {"command": "train", "arguments": {"task": "mlm", "corpus": "a.txt", "split": "train"}}
TUNED = {"command": "train", "arguments": {"task": "sst2", "data": ["a.csv", "hub:x/y"], "data_split": None}}
BUNDLED = {"command": "train", "arguments": {"task": "paraphrase", "data": []}}
PRUNED = {"command": "prune", "arguments": {"task": "auto", "data": ["b.txt"], "corpus": "demo", "model": "run/model"}}
SMALL = {"command": "compact", "arguments": {"model": "run/model", "corpus": "b.txt"}}


def record(folder: str, content: dict[str, Any]) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, "run.json").write_text(json.dumps({"directory": str(Path.cwd()), **content}), encoding="utf-8")


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of each kind of run, and files of data."""
    monkeypatch.chdir(tmp_path)
    for folder in ("run/model", "run/checkpoints/checkpoint-5", "tuned/model", "bundled/model", "pruned/models/p-1"):
        Path(folder).mkdir(parents=True)
    for name in ("a.txt", "b.txt", "a.csv", "sub/a.txt"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(name, encoding="utf-8")
    for folder, content in {
        "run": TRAINED,
        "tuned": TUNED | {"depends_on": {"the data": "abc"}},
        "bundled": BUNDLED,
        "pruned": PRUNED,
        "small": SMALL,
        "other": {"command": "ablate", "arguments": {"model": "run/model", "data": ["a.txt"]}},
    }.items():
        record(folder, content)


@pytest.mark.parametrize(
    ("model", "sources", "split", "found"),
    [
        ("run/model", ["a.txt"], None, "run"),
        ("run/model", ["sub/../a.txt"], None, "run"),
        ("run/model", ["b.txt", "a.txt"], None, "run"),
        ("run/model", ["b.txt"], None, None),
        ("run/model", ["sub/a.txt"], None, None),  # another file of that name
        ("run/checkpoints/checkpoint-5", ["a.txt"], None, "run"),
        ("tuned/model", ["a.csv"], "train", "tuned"),
        ("tuned/model", ["hub:x/y"], "train", "tuned"),
        ("tuned/model", ["hub:x/y"], None, None),  # the part that is for evaluation
        ("tuned/model", ["sst2"], None, None),
        ("bundled/model", ["paraphrase"], None, "bundled"),
        ("pruned/models/p-1", ["b.txt"], None, "pruned"),
        ("pruned/models/p-1", ["a.txt"], None, "run"),  # before it was pruned
        ("small", ["a.txt"], None, "run"),
        ("small", ["b.txt"], None, None),  # compacted, but not trained on it
        ("other", ["a.txt"], None, None),
        ("nowhere", ["a.txt"], None, None),
        ("org/name", ["a.txt"], None, None),
    ],
)
def test_what_was_learned(model: str, sources: list[str], split: str | None, found: str | None) -> None:
    notes = training_data_notes(model, sources, split, "Name others.")
    assert len(notes) == (found is not None)
    if found is not None:
        assert f"{found}/run.json)" in notes[0]
        assert notes[0].endswith("Name others.")
        assert ("are what" in notes[0]) is (len(sources) > 1)


def test_examples_are_known_by_their_content() -> None:
    assert training_data_notes("tuned/model", ["copy.csv"], None, "", sha256="abc")
    assert not training_data_notes("tuned/model", ["copy.csv"], None, "", sha256="abd")
    assert not training_data_notes("run/model", ["copy.csv"], None, "")


def test_runs_that_name_each_other_end() -> None:
    record("loop", {"command": "compact", "arguments": {"model": "loop"}})
    assert training_data_notes("loop", ["a.txt"], None, "") == []


@pytest.mark.parametrize("content", ["no json", "[]", '{"command": "train"}', '{"command": "train", "arguments": 5}'])
def test_records_that_anybody_edited(content: str) -> None:
    Path("run/run.json").write_text(content, encoding="utf-8")
    assert training_data_notes("run/model", ["a.txt"], None, "") == []


def test_the_run_was_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("sub")
    assert training_data_notes("../run/model", ["../a.txt"], None, "")
    assert not training_data_notes("../run/model", ["a.txt"], None, "")
