"""The one command for a GPU runs through at tiny sizes on any machine, and says what failed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.py"


def run(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(SCRIPT), "--out", str(out), *options]
    return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_all_parts_run_at_tiny_sizes(tmp_path: Path) -> None:
    done = run(tmp_path, "--tiny")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert list(found["parts"]) == [
        "tests",
        "statistics",
        "graphs",
        "long",
        "sweep",
        "relevance",
        "steps",
        "kernels",
        "masks",
        "blocks",
        "translation",
        "dam",
    ]
    tables = [table for part in found["parts"].values() for table in part["tables"]]
    checks = [check for table in tables for check in table["checks"]]
    assert len(checks) > 10
    assert all(difference <= most for _, difference, most in checks)
    text = (tmp_path / "gpu.md").read_text()
    assert all(f"### {table['title']}" in text for table in tables)


@pytest.mark.slow
def test_a_part_that_fails_is_told_and_the_next_goes_on(tmp_path: Path) -> None:
    done = run(tmp_path, "--tiny", "--parts", "translation,sweep", "--source", "none.txt", "--target", "none.txt")
    assert done.returncode == 1
    assert "Failed: translation" in done.stderr
    assert "### translation: failed" in done.stdout
    assert "none.txt" in (tmp_path / "translation.error").read_text()
    assert "Every head ablated once" in (tmp_path / "gpu.md").read_text()


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_timed_at_full_size(tmp_path: Path) -> None:
    done = run(tmp_path / "out")
    assert done.returncode == 1
    assert "No GPU" in done.stderr
    assert not (tmp_path / "out").exists()
