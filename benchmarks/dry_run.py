"""What `--dry-run` says before, beside what the same command takes: a table of seconds and megabytes.

    python benchmarks/dry_run.py

Each command runs in a process of its own, first with --dry-run --json, then for real; the figures are wall-clock
seconds and the peak of resident memory, from `run.json`. On a busy machine the ratios are those of its load.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

COMMANDS = (
    ("classify",),
    ("classify", "--relevance"),
    ("ablate",),
    ("ablate", "--prune", "3,10"),
    ("prune", "--lambdas", "0.1,0.3", "--steps", "40"),
    ("train", "--task", "mlm", "--steps", "30"),
    ("train", "new:bert-small", "--task", "mlm", "--steps", "60", "--model-args", "vocabulary=500"),
    ("train-dam", "--lambdas", "0.01,0.1", "--steps", "40", "--data-args", "longest=32"),
    ("masks", "--task", "paraphrase", "--pattern", "star", "--no-controls", "--steps", "20"),
    ("sparsefinder", "--limit", "100", "--task", "none"),
)


def headlens(*words: str) -> str:
    """Runs a command in a process of its own and returns what it prints, its summary as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "headlens_cli", *words, "--json"], capture_output=True, text=True, check=True
    )
    return done.stdout


def main() -> None:
    """Prints a row for each command: planned and measured seconds and megabytes, and the ratio of the seconds."""
    print(f"{'command':75} {'planned s':>9} {'took s':>7} {'ratio':>6} {'planned MB':>10} {'peak MB':>8}")
    for words in COMMANDS:
        plan = json.loads(headlens(*words, "--dry-run"))
        with TemporaryDirectory() as folder:
            headlens(*words, "--out", str(Path(folder) / "run"))
            run = json.loads((Path(folder) / "run" / "run.json").read_text())
        seconds, peak = run["wall_time_s"], run["peak_memory_bytes"] / 1e6
        planned, size = plan["seconds"], plan["bytes"] / 1e6
        text = " ".join(words)
        print(f"{text:75} {planned:9.0f} {seconds:7.0f} {planned / seconds:6.2f} {size:10.0f} {peak:8.0f}", flush=True)


if __name__ == "__main__":
    main()
