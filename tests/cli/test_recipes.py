"""The recipes in examples/ that are shell scripts: every command of theirs runs, here on a few sentences."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pandas as pd
from conftest import SENTENCES

from .conftest import Headlens

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "voita2019_wmt_en_ru.sh"
SMALL = {
    "MODEL": "new:marian-tiny",
    "STEPS": "2",
    "VOCABULARY": "60",
    "LAMBDAS": "0.1",
    "ACCUMULATE": "1",
    "PRECISION": "no",
    "LONGEST": "60",
    "ROLES": "train.en",
    "OUT": "out",
}


def test_gates_on_wmt(headlens: Headlens, tmp_path: Path) -> None:
    for name, lines in (("train", SENTENCES[:60]), ("dev", SENTENCES[60:61])):
        for side in ("en", "ru"):
            (tmp_path / f"{name}.{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (tmp_path / "bin").mkdir()
    shim = tmp_path / "bin" / "headlens"
    shim.write_text('#!/bin/sh\nprintf "%s\\n" "$*" >> "$ASKED"\n')
    shim.chmod(0o755)
    path = f"{shim.parent}{os.pathsep}{os.environ['PATH']}"
    own = os.environ | SMALL | {"PATH": path, "ASKED": str(tmp_path / "asked")}
    subprocess.run(["bash", str(SCRIPT)], cwd=tmp_path, env=own, check=True)
    commands = [shlex.split(line) for line in (tmp_path / "asked").read_text().splitlines()]
    assert [command[0] for command in commands] == ["train", "prune", "prune", "report"]
    for command in commands:
        done = headlens(*command, *(() if command[0] == "report" else ("--no-figures", "--limit", 20)))
        assert done.code == 0, done.err
    assert set(pd.read_csv("out/wmt-encoder/gates.csv")["stack"]) == {"encoder"}
    assert set(pd.read_csv("out/wmt-all/gates.csv")["stack"]) == {"encoder", "decoder", "cross"}
    assert set(pd.read_csv("out/wmt-encoder/sweep.csv")["init"]) == {"trained", "scratch"}
    assert Path("out/wmt-report/report.html").exists()
