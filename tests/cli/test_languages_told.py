"""`--model-args source-language` and `--model-args target-language` as a user gives them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made_translators import MODELS, SOURCE, TARGET, saved_translator
from tiers import rest_slow

Headlens = Callable[..., Any]


@pytest.fixture(params=rest_slow(MODELS))
def name(request: pytest.FixtureRequest, headlens: Headlens) -> str:
    """One of the models, in the empty working folder beside pairs of sentences."""
    del headlens  # which goes to that folder
    pairs = [(" ".join(SOURCE.split()[n % 3 :]), " ".join(TARGET.split()[n % 2 :])) for n in range(12)]
    Path("p.fr.txt").write_text("".join(f"{s}\n" for s, _ in pairs))
    Path("p.de.txt").write_text("".join(f"{t}\n" for _, t in pairs))
    Path("pairs.tsv").write_text("source\ttarget\n" + "".join(f"{s}\t{t}\n" for s, t in pairs))
    saved_translator(request.param, Path())
    return str(request.param)


BOTH, PLAIN = ("--corpus", "p.fr.txt", "--target", "p.de.txt"), ("--out", "run", "--overwrite")
LOSS = ("--task", "translation-loss", "--data", "pairs.tsv", "--replicates", 100, *PLAIN)
COMMANDS: dict[str, tuple[object, ...]] = {
    "classify": ("classify", "model", *BOTH, *PLAIN),
    "relevance": ("relevance", "model", *BOTH, *PLAIN),
    "relevance of what it writes": ("relevance", "model", "--corpus", "p.fr.txt", *PLAIN),
    "ablate": ("ablate", "model", *LOSS),
    "train": ("train", "model", *BOTH, "--task", "translation", "--steps", 1, "--out", "run"),
}


@pytest.mark.parametrize("command", rest_slow(COMMANDS, ("train",)))
def test_every_command_asks_and_is_told(headlens: Headlens, name: str, command: str) -> None:
    _, source, target, _ = MODELS[name]
    told = ("--model-args", f"source-language={source}", "--model-args", f"target-language={target}")
    for given, side in ((), "source"), (told[:2], "target"), (told[2:], "source"):
        done = headlens(*COMMANDS[command], *given)
        assert done.code == 2, given
        said = " ".join(done.err.split())
        assert (
            f"model needs to know the language of its {side}: --model-args {side}-language=CODE." in said or not given
        )
        assert "-language=CODE. Languages: " in said
    done = headlens(*COMMANDS[command], *told)
    assert done.code == 0, done.err
    assert json.loads(Path("run/run.json").read_text())["arguments"]["target_language"] == target


def test_what_was_trained_says_its_languages_by_itself(headlens: Headlens, name: str) -> None:
    _, source, target, _ = MODELS[name]
    told = ("--model-args", f"source-language={source}", "--model-args", f"target-language={target}")
    done = headlens("train", "model", *BOTH, "--task", "translation", "--steps", 1, "--out", "trained", *told)
    assert done.code == 0, done.err
    losses = []
    for more in ((), told):
        done = headlens("ablate", "trained/model", *LOSS, *more)
        assert done.code == 0, done.err
        losses.append(pd.read_csv("run/ablation.csv")["baseline"].iloc[0])
    assert losses[0] == losses[1]
