"""`headlens train --task` as a user runs it, on small files in the formats that data sets come in."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tiers import rest_slow
from transformers import AutoModelForSequenceClassification

from headlens.models.loading import load
from headlens.tasks.catalogue import CATALOGUE
from headlens.tasks.evaluation import EvaluationOptions, evaluate
from headlens.tasks.open_task import DataOptions, open_task
from headlens.tasks.task_options import AUTO, TASK_NAMES

Headlens = Callable[..., Any]
SMALL = ("--steps", 6, "--batch-tokens", 200, "--training-args", "log-every=2,evaluate-every=3", "--no-figures")
NOUNS, VERBS = ["cat", "dog", "teacher", "river"], ["sleeps", "sings", "waits", "runs", "stays"]
SENTENCES = [f"The {noun} {verb} in the house." for verb in VERBS for noun in NOUNS]
PAIRS = list(zip(SENTENCES, SENTENCES[3:], range(99), strict=False))
NLI = ("entailment", "neutral", "contradiction")


def sst2(rows: int = 20) -> str:
    return "sentence\tlabel\n" + "".join(f"{s}\t{i % 2}\n" for i, s in enumerate(SENTENCES[:rows]))


def squad() -> str:
    context = "The cat sleeps in the house. The dog sings."
    ask = [("Who sleeps?", "cat", 4), ("Where?", "the house", 18), ("Who sings?", "The dog", 29)]
    qas = [
        {"id": f"{n}.{i}", "question": q, "answers": [{"text": a, "answer_start": start}]}
        for n in range(4)
        for i, (q, a, start) in enumerate(ask)
    ]
    return json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": qas}]}]})


def swag() -> str:
    header = "video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
    ends = ",".join(f"{v} there." for v in VERBS[:4])
    return header + "".join(f"v{i},{i},x,{s},The {s.split()[1]},gold,{ends},{i % 4}\n" for i, s in enumerate(SENTENCES))


def stsb() -> str:
    return "".join(f"main\tfile\t2012\t{i:04}\t{i % 5}.200\t{a}\t{b}\n" for a, b, i in PAIRS)


def snli() -> str:
    rows = [{"gold_label": (*NLI, "-")[i % 4], "sentence1": a, "sentence2": b, "pairID": str(i)} for a, b, i in PAIRS]
    return "".join(json.dumps(row) + "\n" for row in rows)


def mnli() -> str:
    names = ["index", "promptID", "pairID", "genre", "sentence1", "sentence2", "label1", "gold_label"]
    rows = ["\t".join([str(i), "9", f"{i}n", "fiction", a, b, NLI[i % 3], NLI[i % 3]]) for a, b, i in PAIRS]
    return "\n".join(["\t".join(names), *rows]) + "\n"


def cola() -> str:
    return "".join(f"gj04\t{i % 2}\t\t{s}\n" for i, s in enumerate(SENTENCES))


TEST = "index\tsentence\n" + "".join(f"{i}\t{s}\n" for i, s in enumerate(SENTENCES[7:]))
FILES = {
    "sst2": ("train.tsv", sst2, ["accuracy"]),
    "cola": ("in_domain_train.tsv", cola, ["matthews", "accuracy"]),
    "stsb": ("sts-train.csv", stsb, ["pearson", "spearman"]),
    "snli": ("snli_1.0_train.jsonl", snli, ["accuracy"]),
    "mnli": ("train.tsv", mnli, ["accuracy"]),
    "squad": ("train-v1.1.json", squad, ["f1", "exact"]),
    "squad2": ("train-v2.0.json", squad, ["f1", "exact", "best_f1", "best_exact"]),
    "swag": ("train.csv", swag, ["accuracy"]),
    "similarity": ("sts-train.csv", stsb, ["spearman", "pearson"]),
}


def written(task: str) -> str:
    name, content, _ = FILES[task]
    Path(name).write_text(content(), encoding="utf-8")
    return name


def test_all_tasks_can_be_named() -> None:
    assert set(TASK_NAMES) == {AUTO, *CATALOGUE}


@pytest.mark.parametrize("task", rest_slow(FILES, ("squad2", "swag")))
def test_every_kind_of_task(headlens: Headlens, tiny_bert: Path, task: str) -> None:
    name = written(task)
    done = headlens(
        "train", tiny_bert, "--task", task, "--data", name, "--data-args", "dev-share=0.3", *SMALL, "--out", "run"
    )
    assert done.code == 0, done.err
    metrics, evaluations = pd.read_csv("run/metrics.csv"), pd.read_csv("run/evaluations.csv")
    assert metrics["metric"].tolist() == FILES[task][2]
    # Every metric can be computed again from what is kept of every example.
    examples, known = pd.read_csv("run/examples.csv"), CATALOGUE[task].task
    assert examples.columns.tolist() == ["model", "task", "example", "id", *known.columns]
    assert len(examples) == metrics["n"].iloc[0]
    again = known.values(examples[list(known.columns)].to_numpy())
    assert metrics["value"].tolist() == pytest.approx(list(again.values()), nan_ok=True)
    assert metrics.columns.tolist() == ["model", "task", "data", "metric", "n", "value", "ci_low", "ci_high"]
    assert evaluations.columns.tolist() == ["step", "epoch", "loss", *FILES[task][2]]
    record = json.loads(Path("run/run.json").read_text())
    assert record["task"]["name"] == task
    rows, held = record["data"], record["dev_data"]
    assert rows["examples"] + held["examples"] == rows["rows"] + held["rows"] - rows["unlabelled"]
    assert metrics["n"].iloc[0] == held["examples"]
    assert "95 % CI" in done.out
    told = re.findall(r"best constant prediction has a held-out loss( \(squared error\))? of [\d.]+ ", done.out)
    assert told == [f" ({known.loss_name})" * bool(known.loss_name)] * ("chance_loss" in record)
    assert ("chance_loss" in record) == (known.head != "question-answering")
    _, source = open_task(task, name)
    whole = evaluate(CATALOGUE[task].task, load("run/model"), source, EvaluationOptions(replicates=0))
    assert list(whole.metrics) == FILES[task][2]


def test_the_saved_model_is_the_one_that_was_measured(headlens: Headlens, tiny_bert: Path) -> None:
    Path("train.tsv").write_text(sst2())
    Path("dev.tsv").write_text(sst2(13))
    data = ("--data", "train.tsv", "--dev-data", "dev.tsv", "--seed", 3)
    done = headlens("train", tiny_bert, "--task", "sst2", *data, *SMALL, "--learning-rate", "1e-2", "--out", "run")
    assert done.code == 0, done.err
    task, source = open_task("sst2", "dev.tsv")
    found = evaluate(task, load("run/model"), source, EvaluationOptions(seed=3)).metrics["accuracy"]
    row = pd.read_csv("run/metrics.csv").iloc[0]
    assert (row["value"], row["ci_low"], row["ci_high"]) == (found.value, found.ci_low, found.ci_high)
    evaluations = pd.read_csv("run/evaluations.csv")
    assert row["value"] == evaluations["accuracy"].max()
    best = evaluations["step"][evaluations["accuracy"].idxmax()]
    equal = int((evaluations["accuracy"] == row["value"]).sum())
    one = "the one" if equal == 1 else f"the first of {equal}"
    told = f"The checkpoint is that of update {best}, {one} with the highest held-out accuracy ({row['value']:.3f})."
    assert told in " ".join(done.out.split())
    assert "New weights, random before training: classifier." in done.out
    record = json.loads(Path("run/run.json").read_text())
    assert record["labels"] == ["negative", "positive"]
    assert record["only_in_training_loss"] == ["dropout"]
    assert any("13 occur word for word in the training data" in note for note in record["notes"])
    assert record["models"][0]["steps"] == 6
    assert record["checkpoint"] == best
    assert (record["arguments"]["task"], record["arguments"]["data"]) == ("sst2", ["train.tsv"])
    model = AutoModelForSequenceClassification.from_pretrained("run/model")
    assert model.config.id2label == {0: "negative", 1: "positive"}
    again = headlens("train", "--config", "run/run.json", "--out", "again", "-q")
    assert again.code == 0, again.err
    for name in ("log.csv", "evaluations.csv", "metrics.csv", "examples.csv", "model/model.safetensors"):
        assert Path("run", name).read_bytes() == Path("again", name).read_bytes(), name


@pytest.mark.parametrize("command", rest_slow(["train", "prune"]))
def test_heads_with_classes_in_another_spelling(
    headlens: Headlens, made: Callable[..., str], sentiment: tuple[str, ...], command: str
) -> None:
    shutil.copytree(made("judge"), "own")
    config = json.loads(Path("own/config.json").read_text())
    few = ("--steps", 1, "--batch-tokens", 200, "--overwrite", "--out", "run")
    for names, kept in ((("POS", "NEG"), True), (("glad", "sad"), False)):
        config |= {"id2label": dict(enumerate(names)), "label2id": None}
        Path("own/config.json").write_text(json.dumps(config))
        done = headlens(command, "own", *sentiment, *few)
        assert done.code == 0, done.err
        notes = json.loads(Path("run/run.json").read_text())["notes"]
        assert (
            any("The head of the checkpoint was replaced. own calls its outputs glad" in n for n in notes) is not kept
        )
        assert any("classifier" in note for note in notes) is not kept
        assert any("The classes of train are numbers without names" in note for note in notes)


def test_several_files_and_what_is_left_out(headlens: Headlens, tiny_bert: Path) -> None:
    files = written("snli"), written("mnli")
    data = [part for name in files for part in ("--data", name)]
    options = ("--task", "snli", *data, "--data-args", "longest=18", "--limit", 25)
    done = headlens("train", tiny_bert, *options, *SMALL, "--out", "run", "--json")
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    assert summary["metrics"][0]["data"] == "snli_1.0_train+train"
    record = json.loads(Path("run/run.json").read_text())
    assert record["data"]["unlabelled"] == 4
    assert record["data"]["rows"] + record["dev_data"]["rows"] == 29
    assert record["labels"] == list(NLI)


def test_broken_rows_of_both_parts_are_told(headlens: Headlens, tiny_bert: Path) -> None:
    Path("train.tsv").write_text(sst2() + "cut\n")
    Path("dev.tsv").write_text("sentence\tlabel\ncut\n" + sst2(6).partition("\n")[2])
    data = ("--task", "sst2", "--data", "train.tsv", "--dev-data", "dev.tsv")
    done = headlens("train", tiny_bert, *data, *SMALL, "--out", "run")
    assert done.code == 2
    assert "--data-args skip-broken" in done.err
    done = headlens("train", tiny_bert, *data, *SMALL, "--data-args", "skip-broken", "--out", "run")
    assert done.code == 0, done.err
    record = json.loads(Path("run/run.json").read_text())
    for part, rows, place in (("data", 21, "train.tsv:22"), ("dev_data", 7, "dev.tsv:2")):
        note = f"Left out by --data-args skip-broken: 1 of {rows} rows. {place}: 1 column where there should be 2."
        assert note in record["notes"]
        assert note in " ".join(done.out.split())
        assert (record[part]["rows"], record[part]["broken"]) == (rows, 1)


@pytest.mark.slow
def test_columns_of_other_names(headlens: Headlens, tiny_bert: Path) -> None:
    Path("r.csv").write_text("review,stars\n" + "".join(f"{s},{i % 2}\n" for i, s in enumerate(SENTENCES)))
    data = ("--task", "sst2", "--data", "r.csv", "--out", "run", "--quiet", *SMALL, "--steps", 1)
    done = headlens("train", tiny_bert, *data)
    assert done.code == 2
    assert "which columns are text, label?" in done.err
    for columns in (("text=review,label=stars",), ("text=review", "--columns", "label=stars")):
        done = headlens("train", tiny_bert, *data, "--columns", *columns, "--overwrite")
        assert done.code == 0, done.err
    assert headlens("train", "--config", "run/run.json", "--out", "again", "-q").code == 0


@pytest.mark.slow
def test_random_weights_and_the_data_that_comes_along(headlens: Headlens) -> None:
    written("snli")
    options = ("--model-args", "vocabulary=200", *SMALL, "--quiet")
    done = headlens("train", "new:albert-tiny", "--task", "snli", "--data", FILES["snli"][0], *options, "--out", "run")
    assert done.code == 0, done.err
    assert AutoModelForSequenceClassification.from_pretrained("run/model").config.model_type == "albert"
    done = headlens("train", "new:bert-tiny", "--task", "paraphrase", *options, "--out", "embedder")
    assert done.code == 0, done.err
    assert pd.read_csv("embedder/metrics.csv")["data"].tolist() == ["paraphrases"]
    task, source = open_task(options=DataOptions(limit=10))
    assert 0 <= evaluate(task, load("embedder/model"), source).value <= 1


def test_too_few_examples_to_hold_any_out(headlens: Headlens, tiny_bert: Path) -> None:
    Path("train.tsv").write_text(sst2(5))
    done = headlens("train", tiny_bert, "--task", "sst2", "--data", "train.tsv", *SMALL, "--out", "run")
    assert done.code == 0, done.err
    assert "Nothing was held out, so nothing was evaluated: name held-out examples with --dev-data." in done.out
    assert not Path("run/metrics.csv").exists()
    assert Path("run/model/model.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (("--task", "sst2", "--corpus", "x.txt"), ("x.txt: no such file",)),
        (("--task", "sst2", "--data", "train.tsv", "--corpus", "x.txt"), ("--corpus is not for --task sst2", "--data")),
        (("--task", "sst2", "--data", "train.tsv", "--dev", "x.txt"), ("x.txt: no such file",)),
        (("--task", "sst2", "--training-args", "bleu=3"), ("--training-args bleu is not for --task sst2",)),
        (
            ("--task", "sst2", "--training-args", "label-smoothing=0.2"),
            ("--training-args label-smoothing is not for --task sst2",),
        ),
        (
            ("--task", "sst2", "--training-args", "mask-share=0.3"),
            ("--training-args mask-share is not for --task sst2",),
        ),
        (
            ("--task", "sst2", "--training-args", "next-sentence"),
            ("--training-args next-sentence is not for --task sst2",),
        ),
        (("--data", "train.tsv"), ("--data is not for --task mlm", "--corpus")),
        (("--dev-data", "train.tsv"), ("--dev-data is not for --task mlm",)),
        (("--training-args", "bleu=3"), ("--training-args bleu is not for --task mlm",)),
        (
            ("--task", "translation-loss"),
            ("translation-loss can only be evaluated, not trained on", "--task translation"),
        ),
        (("--task", "sst3"), ("sst3",)),
        (("--task", "sst2", "--data", "none.tsv"), ("none.tsv: no such file",)),
        (("--task", "sst2", "--data", "train.tsv", "--data-args", "dev-share=1"), ("--data-args dev-share 1.0",)),
        (("--task", "sst2", "--data", "train.tsv", "--columns", "text"), ("--columns text: not understood",)),
        (("--task", "rte", "--data", "train.tsv"), ("train.tsv:2: which columns are text, second, label?",)),
        (("--task", "sst2", "--data", "broken.tsv"), ("broken.tsv:3: 'label' has the unknown label '7'",)),
    ],
)
def test_what_is_refused(
    headlens: Headlens, tiny_bert: Path, arguments: tuple[str, ...], messages: tuple[str, ...]
) -> None:
    Path("train.tsv").write_text(sst2())
    Path("broken.tsv").write_text("sentence\tlabel\nyes\t1\nno\t7\n")
    done = headlens("train", tiny_bert, *arguments, "--out", "run")
    assert done.code == 2, done.out + done.err
    assert all(m in " ".join(done.err.split()) for m in messages), done.err
    assert not Path("run/model").exists()


def test_translation_models_classify_nothing(headlens: Headlens, tiny_marian: Path) -> None:
    Path("train.tsv").write_text(sst2())
    done = headlens("train", tiny_marian, "--task", "sst2", "--data", "train.tsv", "--out", "run")
    assert done.code == 2
    assert "needs a sequence-classification head" in done.err


@pytest.mark.slow
def test_predictions_for_a_test_set(headlens: Headlens, made: Callable[..., str]) -> None:
    """Of the model that was trained, and the same of its checkpoint, under the same mask."""
    for name, content in (("train.tsv", sst2()), ("dev.tsv", sst2(8)), ("test.tsv", TEST)):
        Path(name).write_text(content, encoding="utf-8")
    plain = ("--task", "sst2", "--mask-rules", "no-diagonal")
    task = (*plain, "--predict", "test.tsv")
    learn = ("train", made("judge"), *plain, "--data", "train.tsv")
    done = headlens(*learn, "--predict", "test.tsv", "--dev-data", "dev.tsv", *SMALL, "--out", "run")
    assert done.code == 0, done.err
    lines = Path("run/SST-2.tsv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "index\tprediction"
    assert [line.split("\t")[0] for line in lines[1:]] == [str(i) for i in range(13)]
    assert {line.split("\t")[1] for line in lines[1:]} <= {"0", "1"}
    assert "SST-2.tsv" in json.loads(Path("run/run.json").read_text())["files"]
    measured = headlens("ablate", "run/model", *task, "--data", "dev.tsv", "--no-figures", "--out", "measured")
    assert measured.code == 0, measured.err
    assert Path("measured/SST-2.tsv").read_bytes() == Path("run/SST-2.tsv").read_bytes()
    Path("empty.tsv").write_text("index\tsentence\n0\t\n", encoding="utf-8")
    Path("bare.tsv").write_text("index\ttext\n0\tthe cat\n", encoding="utf-8")
    two = ("ablate", "run/model", "run/model", *task, "--data", "dev.tsv")
    for arguments, words in (
        (two, "--predict writes the predictions of one model"),
        (("train", "demo", "--task", "mlm", "--predict", "test.tsv"), "--predict is not for --task mlm"),
        ((*learn, "--predict", "none.tsv"), "no such file"),
        ((*learn, "--predict", "bare.tsv"), "which columns are text?"),
        ((*learn, "--predict", "empty.tsv"), "empty.tsv:2: there is no text to make predictions for"),
    ):
        refused = headlens(*arguments, "--out", "none")
        assert refused.code == 2, arguments
        assert words in refused.err
        assert not Path("none").exists()


@pytest.mark.slow
def test_one_model_is_scored_on_both_development_sets(
    headlens: Headlens, made: Callable[..., str], entailment: str
) -> None:
    """The rows are those of `ablate`, which loads the checkpoint; each set has a table, and a note names its task."""
    also = ("--data-args", "also-on=mnli-mm=mm.tsv", "--predict", "mnli-mm=mm.tsv")
    learn = ("train", made("nli", task="mnli"), "--task", "mnli", "--data", entailment, "--dev-data", "m.tsv")
    done = headlens(*learn, *also, *SMALL, "--out", "run")
    assert done.code == 0, done.err
    assert "mnli on m\n" in done.out
    assert "mnli-mm on mm\n" in done.out
    assert "note: mnli-mm: Always giving the most frequent answer" in done.out
    metrics = pd.read_csv("run/metrics.csv")
    assert metrics[["task", "data", "n"]].values.tolist() == [["mnli", "m", 13], ["mnli-mm", "mm", 14]]
    assert pd.read_csv("run/examples.csv")["task"].tolist() == ["mnli"] * 13 + ["mnli-mm"] * 14
    assert sorted(path.name for path in Path("run").glob("MNLI*")) == ["MNLI-mm.tsv"]
    for row in metrics.to_dict("records"):
        words = ("--task", row["task"], "--data", f"{row['data']}.tsv", "--no-figures", "--out", row["task"])
        measured = headlens("ablate", "run/model", *words)
        assert measured.code == 0, measured.err
        assert pd.read_csv(f"{row['task']}/ablation.csv")["baseline"].iloc[0] == row["value"]
    of_text = ("train", "demo", "--task", "mlm")
    for words, wrong, message in (
        (learn, "m.tsv", "the model is evaluated on mnli already"),
        (learn, "sst2=m.tsv", "sst2 does not have the classes of --task mnli"),
        (of_text, "mnli=m.tsv", "--data-args also-on is not for --task mlm"),
    ):
        refused = headlens(*words, "--data-args", f"also-on={wrong}", "--out", "none")
        assert refused.code == 2
        assert message in refused.err
