"""Data is understood as `--data` and as `--corpus`, whether a task is named or chosen for the model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made_tasks import sentiment_table, text
from saved import build, save
from transformers import PreTrainedTokenizerBase

Headlens = Callable[..., Any]
SHORT = ("--steps", 1, "--lambdas", "0.1", "--batch-tokens", 150)
TASKS = {"GPT2LMHeadModel": "causal-lm", "BertForMaskedLM": "mlm"}


@pytest.fixture
def model(tmp_path: Path, tokenizer_of_made_texts: PreTrainedTokenizerBase) -> Callable[[str], str]:
    """A saved model by the name of its class."""
    tokenizer = tokenizer_of_made_texts

    def saved(kind: str) -> str:
        return save(build(kind, len(tokenizer)), tmp_path / kind, tokenizer)

    return saved


@pytest.fixture
def book(headlens: Headlens) -> str:
    """A file of text in the empty folder where the program is called, and a table of the same sentences."""
    lines = [f"{text(n)} {text(n, 3)}" for n in range(40)]
    Path("book.txt").write_text("\n".join(lines), encoding="utf-8")
    Path("book.csv").write_text("\n".join(["review,stars", *(f"{line},{n % 2}" for n, line in enumerate(lines))]))
    return "book.txt"


@pytest.mark.parametrize("kind", TASKS)
def test_gates_are_learned_of_text_by_either_name(
    headlens: Headlens, book: str, model: Callable[[str], str], kind: str
) -> None:
    ways = [("--data", book), ("--corpus", book), ("--task", TASKS[kind], "--data", book)]
    ways += [("--data", "book.csv", "--text", "review"), ("--corpus", "book.csv", "--column", "review")]
    values = []
    for number, way in enumerate(ways):
        done = headlens("prune", model(kind), *way, *SHORT, "--out", f"run-{number}", "--quiet")
        assert done.code == 0, done.err
        sweep = pd.read_csv(f"run-{number}/sweep.csv")
        values.append(sweep["value"].tolist())
        assert set(sweep["task"]) == {TASKS[kind]}
    assert all(found == values[0] for found in values)


def test_both_names_at_once_are_refused(headlens: Headlens, book: str, model: Callable[[str], str]) -> None:
    done = headlens("prune", model("GPT2LMHeadModel"), "--data", book, "--corpus", book, *SHORT, "--out", "run")
    assert done.code == 2
    assert "--data is not for --task causal-lm.\nName its data with --corpus." in done.err
    assert "No --task is given: causal-lm was chosen for a GPT2LMHeadModel and this data." in done.err


def test_new_models_learn_text_by_either_name(headlens: Headlens, book: str) -> None:
    few = ("--steps", 1, "--model-args", "vocabulary=300", "--quiet")
    ways = [("--corpus", book), ("--data", book), ("--data", "book.csv", "--text", "review"), ("--data", book)]
    models = ["new:bert-1x2x16", "new:bert-1x2x16", "new:bert-1x2x16", "new:gpt2-1x2x16"]
    losses = []
    for number, (name, way) in enumerate(zip(models, ways, strict=True)):
        done = headlens("train", name, *way, *few, "--out", f"run-{number}")
        assert done.code == 0, done.err
        losses.append(json.loads(Path(f"run-{number}/run.json").read_text())["corpus"]["sha256"])
    assert losses[0] == losses[1] == losses[3]


@pytest.mark.parametrize("command", ["ablate", "prune"])
def test_classifiers_read_labels_without_a_task(headlens: Headlens, made: Callable[..., str], command: str) -> None:
    table = sentiment_table().replace("sentence\tlabel", "review\tstars")
    Path("own.tsv").write_text(table.replace("\t0\n", "\tnegative\n").replace("\t1\n", "\tpositive\n"))
    more = SHORT if command == "prune" else ()
    done = headlens(
        command, made("judge"), "--data", "own.tsv", "--text", "review", "--label", "stars", *more, "--json"
    )
    assert done.code == 0, done.err
    tables = json.loads(done.out)
    assert Path(tables["out"], "run.json").exists()
    assert json.loads(Path(tables["out"], "run.json").read_text())["task"]["name"] == "classification"


@pytest.mark.parametrize("name", ["--data", "--corpus"])
def test_masked_words_are_measured_without_a_task(
    headlens: Headlens, book: str, model: Callable[[str], str], name: str
) -> None:
    done = headlens("ablate", model("BertForMaskedLM"), name, book, "--limit", 5, "--out", "run")
    assert done.code == 0, done.err
    assert set(pd.read_csv("run/ablation.csv")["task"]) == {"mlm"}


def test_what_does_not_fit_names_the_task_that_was_chosen(
    headlens: Headlens, book: str, made: Callable[..., str], tiny_marian: Path
) -> None:
    told = "No --task is given: {} was chosen for a {} and this data."
    classes = headlens("ablate", made("judge"), "--data", book, "--out", "run")
    assert classes.code == 2
    assert told.format("classification", "BertForSequenceClassification") in classes.err
    pairs = headlens("ablate", tiny_marian, "--data", book, "--out", "run")
    assert pairs.code == 2
    assert "Name the translations with --target FILE" in pairs.err
    assert told.format("translation-loss", "MarianMTModel") in pairs.err
    named = headlens("ablate", made("judge"), "--task", "sst2", "--data", book, "--out", "run")
    assert "No --task is given" not in named.err
