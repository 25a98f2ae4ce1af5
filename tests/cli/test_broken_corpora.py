"""`--data-args skip-broken` for corpora: what was left out is told on the console and in run.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiers import rest_slow

Headlens = Callable[..., Any]
COMMANDS = {
    "relevance": ("relevance", "--no-figures", "--corpus"),
    "classify": ("classify", "--no-figures", "--corpus"),
    "train": ("train", "--task", "mlm", "--steps", "1", "--corpus"),
}


@pytest.mark.parametrize("command", rest_slow(COMMANDS))
def test_sentences_that_cannot_be_read(headlens: Headlens, tiny_bert: Path, command: str) -> None:
    name, *options = COMMANDS[command]
    lines = [f"She sleeps near the river {n} times, and he does not." for n in range(60)]
    Path("a.txt").write_bytes("\n".join(lines).encode() + b"\ncaf\xe9\n")
    done = headlens(name, tiny_bert, *options, "a.txt", "--out", "run")
    assert done.code == 2
    assert "a.txt:61: not UTF-8" in done.err
    assert "Or leave such rows out with --data-args skip-broken." in " ".join(done.err.split())
    done = headlens(name, tiny_bert, *options, "a.txt", "--out", "run", "--data-args", "skip-broken", "--overwrite")
    assert done.code == 0, done.err
    note = "a: Left out by --data-args skip-broken: 1 of 61 rows. a.txt:61: not UTF-8: byte 0xe9 at byte 4 of the line"
    assert note in " ".join(f"{done.out} {done.err}".split())
    run = json.loads(Path("run/run.json").read_text())
    assert note in run["notes"]
    assert run["arguments"]["skip_broken"] is True
