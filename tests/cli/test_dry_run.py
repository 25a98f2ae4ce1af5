"""`--dry-run`: every command tells what it would do, and writes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headlens.planning import plan as plan_module
from headlens.planning.speed import Speed
from headlens_cli.screen import duration

from .conftest import Headlens

FEW = ("--limit", "40")  # sentences, which plans read to count their tokens


@pytest.fixture(autouse=True)
def _known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    def known(*_: Any, **__: Any) -> Speed:
        return Speed(1e-3, 4e-3, 1e-2, 0.1, 1e4, 2e5)

    monkeypatch.setattr(plan_module, "measure_speed", known)


@pytest.mark.parametrize(
    "words",
    [
        ["classify", "--shard", "1/2", *FEW],
        ["relevance", *FEW],
        ["attend"],
        ["ablate", "--prune", "2", *FEW],
        ["compact", "--heads", "encoder.0.1", *FEW],
        ["probe", *FEW],
        ["prune", "--task", "mlm", "--steps", "4", *FEW],
        ["train-dam", "--task", "mlm", "--steps", "4", *FEW],
        ["masks", "--task", "mlm", "--steps", "4", "--pattern", "star", *FEW],
        ["sparsefinder", "--attention", "entmax15", *FEW],
        ["train", "--task", "mlm", "--steps", "4", *FEW],
    ],
)
def test_nothing_is_written(words: list[str], headlens: Headlens, tiny_bert: Path, tmp_path: Path) -> None:
    command, *options = words
    asked = headlens(command, tiny_bert, *options, "--dry-run", "--json")
    assert asked.code == 0, asked.err
    plan = json.loads(asked.out)
    assert plan["plan"] == command
    assert plan["models"][0]["heads"] == 6
    assert plan["seconds"] > 0
    assert plan["bytes"] > 0
    assert list(tmp_path.iterdir()) == []
    shown = headlens(command, tiny_bert, *options, "--dry-run")
    assert shown.code == 0
    assert "Planned steps" in shown.out
    assert "of memory" in shown.out
    assert f"Next: headlens {command}" in shown.out
    assert "--dry-run" not in shown.out
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_not_here_is_told_without_a_network(headlens: Headlens) -> None:
    asked = headlens("classify", "bert-base-uncased", "--limit", 20, "--offline", "--dry-run")
    assert asked.code == 2
    assert "bert-base-uncased" in asked.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["classify", "--corpus", "nowhere.conllu"], "no such file"),
        (["classify", "./nowhere"], "./nowhere: no such model folder"),
        (["train", "new:bert-huge"], "is not a known model"),
        (["ablate", "--task", "unheard"], "unheard"),
        (["compact", "--heads", "encoder.0.12"], "no head encoder.0.12"),
        (["compact"], "No heads to cut out were given"),
        (["compact", "--from", "nowhere.txt"], "nowhere.txt"),
        (["sparsefinder", "--heads", "encoder.6.0"], "no head encoder.6.0"),
    ],
)
def test_what_is_wrong_is_told_before(words: list[str], message: str, headlens: Headlens) -> None:
    asked = headlens(*words, "--dry-run")
    assert asked.code == 2
    assert message in asked.err


def test_a_finished_run_is_not_gone_on_with(headlens: Headlens, tiny_bert: Path) -> None:
    assert headlens("masks", "--pattern", "star", "--length", 8, "--out", "run", "--no-figures").code == 0
    asked = headlens("masks", "--resume", "run", "--dry-run")
    assert asked.code == 2
    assert "holds a finished run" in asked.err


def test_durations() -> None:
    assert [duration(s) for s in (0.2, 40, 89, 91, 3600, 6 * 3600, 3 * 86400)] == [
        *("1 s", "40 s", "89 s", "2 min", "60 min", "6.0 h", "3 days"),
    ]


@pytest.mark.parametrize(
    ("command", "model", "options", "message"),
    [
        ("train", "new:marian-tiny", ("--corpus", "a.txt"), "there are no translations.\nName them with --target"),
        (
            "train",
            "tiny-bert",
            ("--task", "translation", "--corpus", "a.txt"),
            "--task translation needs a translation",
        ),
        ("train", "tiny-bert", ("--task", "causal-lm", "--corpus", "a.txt"), "--task causal-lm needs a decoder"),
        ("train", "new:bert-tiny", ("--training-args", "bleu=3"), "--training-args bleu is not for --task mlm"),
        ("relevance", "tiny-bert", ("--relevance-target", "class:0"), "does not classify sentences"),
        ("relevance", "tiny-marian", ("--corpus", "a.txt", "--relevance-target", "masked"), "generates text"),
        (
            "relevance",
            "tiny-bert",
            ("--corpus", "a.txt", "--target", "b.txt", "--relevance-target", "embedding"),
            "pairs",
        ),
        ("probe", "tiny-bert", ("--limit", "3"), "none of 3 sentences can be held out"),
        ("sparsefinder", "tiny-bert", ("--attention", "entmax15", "--limit", "3", "--task", "none"), "can be held out"),
        ("relevance", "tiny-bert", ("--mask", "window:x"), "which is not a whole number"),
        ("ablate", "tiny-bert", ("--mask", "no-such-mask"), "no-such-mask"),
        ("classify", "tiny-bert", ("--frequency", "nowhere.txt"), "'nowhere.txt' is not a file"),
        ("classify", "tiny-bert", ("--corpus", "a.txt", "--column", "text"), "a.txt has no columns"),
        ("train", "tiny-bert", ("--task", "mlm", "--corpus", "a.txt", "--column", "text"), "a.txt has no columns"),
        ("classify", "tiny-bert", ("--relations", "nsubj,nsub"), "nsub does not occur in the trees of demo"),
        ("classify", "tiny-bert", ("--relevance", "--relevance-target", "class:0"), "does not classify sentences"),
        ("classify", "tiny-bert", ("--corpus", "a.txt", "--data-args", "split-at=;"), "split-at"),
        ("prune", "tiny-marian", ("--data", "a.txt"), "there are no translations."),
        (
            "prune",
            "tiny-marian",
            ("--data", "a.txt", "--target", "b.txt", "--dev", "a.txt"),
            "a: there are no translations.\nName them with --target or --data-args dev-target.",
        ),
    ],
)
def test_what_the_run_would_refuse_is_refused(
    command: str,
    model: str,
    options: tuple[str, ...],
    message: str,
    headlens: Headlens,
    tiny_bert: Path,
    tiny_marian: Path,
) -> None:
    for name in ("a.txt", "b.txt"):
        Path(name).write_text("The cat sleeps.\n" * 30, encoding="utf-8")
    words = (command, {"tiny-bert": tiny_bert, "tiny-marian": tiny_marian}.get(model, model), *options)
    planned, done = headlens(*words, "--dry-run"), headlens(*words, "--out", "run")
    assert (planned.code, done.code) == (2, 2), planned.out + done.out
    assert message in planned.err
    assert done.err.splitlines()[0] == planned.err.splitlines()[0]
