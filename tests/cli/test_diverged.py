"""Every command that trains, at a learning rate at which no training succeeds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from every_command import CASES
from forks import Forks

TRAIN = [case for case, words in CASES.items() if words[0] in ("prune", "train", "train-dam", "sparsefinder")]
TRAIN += ["masks --task", "masks --graph"]


@pytest.mark.slow
@pytest.mark.parametrize("case", TRAIN)
def test_a_training_that_diverges_says_so(
    forks: Forks, command: Callable[[str], list[str]], tmp_path: Path, case: str
) -> None:
    for more in ([], [] if case == "sparsefinder" else ["--steps", "1"]):  # seen in the next update, or in none
        rate = ("--projections", "learning-rate=1e30") if case == "sparsefinder" else ("--learning-rate", "1e30")
        code = forks.run(tmp_path, *command(case), *more, *rate, "--overwrite")
        told = (tmp_path / "stderr").read_text()
        assert code == 2, told
        assert "diverged" in told
        name = "--projections learning-rate" if case == "sparsefinder" else "--learning-rate"
        assert f"a smaller {name} (it was 1e+30)" in told
        assert "--resume" not in told
