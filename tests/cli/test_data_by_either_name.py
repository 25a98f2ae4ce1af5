"""Data is understood as `--data` and as `--corpus`, whether a task is named or chosen for the model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from architectures import tokenizer_of
from made_tasks import sentiment_table, text
from saved import build, save
from transformers import PreTrainedTokenizerBase

from headlens.learning.training_options import named_by_task

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


def test_data_that_nobody_named_stays_unnamed() -> None:
    """A run that is resumed names every option, also the corpus that comes with headlens, which is no task's data."""
    resumed = {"task": "paraphrase", "corpus": "demo", "data": [], "text": [], "dev": None, "dev_data": []}
    assert named_by_task("paraphrase", resumed) == resumed
    assert named_by_task("sst2", resumed | {"corpus": "mine.tsv"})["data"] == ("mine.tsv",)
    assert named_by_task("mlm", {"corpus": "demo", "data": ["mine.txt"]}) == {"corpus": "demo", "data": ["mine.txt"]}


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


@pytest.mark.slow
def test_all_commands_read_the_white_space_of_a_text(headlens: Headlens, tmp_path: Path) -> None:
    """Space at the ends and runs of it are tokens of a byte-level decoder: the same file, and the same loss."""
    Path("odd.txt").write_text("".join(f"  word{n}   and\tmore words \n" for n in range(24)), encoding="utf-8")
    tokenizer = tokenizer_of("decoder")
    name = save(build("GPT2LMHeadModel", len(tokenizer)), tmp_path / "gpt2", tokenizer)
    lines = Path("odd.txt").read_text(encoding="utf-8").splitlines()
    tokens = str(sum(len(tokenizer(line)["input_ids"]) for line in lines))
    out = ("--quiet", "--no-figures", "--out")
    assert headlens("ablate", name, "--data", "odd.txt", "--metric", "loss", *out, "a").code == 0
    assert headlens("prune", name, "--data", "odd.txt", "--dev", "./odd.txt", *SHORT, *out, "p").code == 0
    assert headlens("compact", name, "--heads", "decoder.0.0", "--corpus", "odd.txt", *out, "c").code == 0
    rows, sweep = pd.read_csv("a/ablation.csv"), pd.read_csv("p/sweep.csv").set_index(["run", "metric"])
    loss = (rows["value"] - rows["delta"]).iloc[0]
    assert sweep.loc[("unpruned", "loss"), "value"] == pytest.approx(loss, rel=1e-6)
    told = [Path(f"{run}/run.json").read_text(encoding="utf-8") for run in "apc"]
    assert "24 occur word for word in the training data" in told[1], "by whatever name"
    assert {re.findall(r"among the ([\d,]+) evaluated", text)[0] for text in told} == {tokens}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "prune", "masks", "train-dam"])
def test_repeated_examples_are_told_wherever_a_model_is_evaluated(
    headlens: Headlens, model: Callable[[str], str], command: str
) -> None:
    """Ten copies of the same sentences had intervals as if they were ten times as many, in these four."""
    rows = sentiment_table(4).splitlines()
    Path("own.tsv").write_text("\n".join([rows[0], *rows[1:] * 10]) + "\n", encoding="utf-8")
    data = ("--task", "sst2", "--data", "own.tsv", "--dev-data", "own.tsv", "--steps", 1, "--batch-tokens", 150)
    more = {"masks": ("--pattern", "star", "--no-controls", "--seeds", 1), "train": ()}
    lambdas = ("--lambdas", "0.1")
    done = headlens(
        command,
        model("BertForSequenceClassification"),
        *data,
        *more.get(command, lambdas),
        "--no-figures",
        "--out",
        "run",
    )
    assert done.code == 0, done.err
    assert " ".join(done.out.split()).count("36 of 40 examples of own repeat the texts of others") == 1


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


@pytest.mark.parametrize(
    ("command", "typed", "name"),
    [
        ("train", "--source", "--corpus"),
        ("ablate", "--source", "--data"),
        ("classify", "--train-file", "--corpus"),
        ("train", "--translations", "--target"),
        ("train", "--validation-file", "--dev"),
        ("prune", "--src", "--corpus"),
    ],
)
def test_names_of_other_programs(headlens: Headlens, command: str, typed: str, name: str) -> None:
    done = headlens(command, "demo", typed, "x.txt")
    assert done.code == 2
    assert f"No such option: {typed}, which is {name} here." in " ".join(done.err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("command", "name", "found"),
    [
        (("train",), "bert-tiny", True),
        (("train", "--dry-run"), "gpt2-1x2x16", True),
        (("train", "--task", "sst2", "--data", "own.tsv"), "albert-small", True),
        (("train-dam", "--task", "mlm"), "bert-small", True),
        (("train",), "bert-unheard", False),
        (("train",), "bert-3x2x5", False),
    ],
)
def test_new_models_without_their_prefix(headlens: Headlens, command: tuple[str, ...], name: str, found: bool) -> None:
    Path("own.tsv").write_text(sentiment_table())
    done = headlens(command[0], name, *command[1:], "--offline")
    assert done.code == 2
    assert (f"A new model with random weights is new:{name}." in done.err) is found


@pytest.mark.parametrize(
    ("kind", "task"),
    [("BertForMaskedLM", "mlm"), ("BertForSequenceClassification", "classification"), ("BertForPreTraining", "mlm")],
)
def test_paraphrases_name_the_task_of_the_head(
    headlens: Headlens, model: Callable[[str], str], kind: str, task: str
) -> None:
    rows = [f"{text(n)}\t{text(n, 1)}\t{text(n, 2)}\t{'first' if n % 2 else 'second'}" for n in range(8)]
    Path("own.tsv").write_text("\n".join(["text\tfirst\tsecond\tlabel", *rows]))
    done = headlens("ablate", model(kind), "--data", "own.tsv", "--out", "run")
    assert done.code == 0, done.err
    notes = json.loads(Path("run/run.json").read_text())["notes"]
    assert any(note.endswith(f"is another --task: {task} with --data.") for note in notes)


def test_results_on_training_text_are_told(headlens: Headlens, book: str) -> None:
    learned = ("--steps", 1, "--model-args", "vocabulary=60", "--quiet")
    assert headlens("train", "new:bert-1x2x16", "--corpus", book, *learned, "--out", "run").code == 0
    Path("other.txt").write_text("\n".join(text(n, 2) for n in range(30)), encoding="utf-8")
    told = "book.txt is what the model was trained on (run/run.json)"
    for data, found in ((book, True), ("other.txt", False)):
        assert (
            headlens("ablate", "run/model", "--data", data, "--limit", 5, "--out", "ablated", "--overwrite").code == 0
        )
        assert (told in "".join(json.loads(Path("ablated/run.json").read_text())["notes"])) is found
    for dev, found in (((), True), (("--dev", "other.txt"), False)):
        done = headlens("prune", "run/model", "--corpus", book, *dev, *SHORT, "--out", "pruned", "--overwrite")
        assert done.code == 0, done.err
        assert (told in "".join(json.loads(Path("pruned/run.json").read_text())["notes"])) is found
