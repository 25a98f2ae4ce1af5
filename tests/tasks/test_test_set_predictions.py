"""Predictions of test sets without labels, in GLUE's form, against the model row by row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from made_tasks import TASKS, WORDS, text
from saved import build
from tiers import rest_slow
from transformers import PreTrainedTokenizerBase

from headlens.errors import CorpusError, OptionError
from headlens.models.loading import LoadedModel
from headlens.tasks import test_set_predictions
from headlens.tasks.classification import SequenceClassification
from headlens.tasks.evaluation import EvaluationOptions
from headlens.tasks.example_sources import DataOptions
from headlens.tasks.task_heads import with_task_head
from headlens.tasks.task_options import TaskData
from headlens.tasks.test_set_predictions import predict, predicted_rows, read_test_sets

OPTIONS = EvaluationOptions(batch_tokens=60)
ENTAILED = ["entailment", "not_entailment"]
THREE = ["entailment", "neutral", "contradiction"]
# Task: GLUE's file, the header of its test set, which of the columns are texts, and what a submission has for classes.
GLUE: dict[str, tuple[str, str, tuple[str, ...], list[str]]] = {
    "sst2": ("SST-2.tsv", "index\tsentence", ("sentence",), ["0", "1"]),
    "cola": ("CoLA.tsv", "index\tsentence", ("sentence",), ["0", "1"]),
    "mrpc": ("MRPC.tsv", "index\t#1 ID\t#2 ID\t#1 String\t#2 String", ("#1 String", "#2 String"), ["0", "1"]),
    "qqp": ("QQP.tsv", "id\tquestion1\tquestion2", ("question1", "question2"), ["0", "1"]),
    "stsb": ("STS-B.tsv", "index\tgenre\tfile\tsentence1\tsentence2", ("sentence1", "sentence2"), []),
    "mnli": ("MNLI-m.tsv", "index\tpairID\tsentence1\tsentence2", ("sentence1", "sentence2"), THREE),
    "mnli-mm": ("MNLI-mm.tsv", "index\tpairID\tsentence1\tsentence2", ("sentence1", "sentence2"), THREE),
    "qnli": ("QNLI.tsv", "index\tquestion\tsentence", ("question", "sentence"), ENTAILED),
    "rte": ("RTE.tsv", "index\tsentence1\tsentence2", ("sentence1", "sentence2"), ENTAILED),
    "snli": ("predictions.tsv", "sentence1\tsentence2", ("sentence1", "sentence2"), THREE),
}


def model_of(task: str, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    loaded = LoadedModel("tiny", build("BertModel", len(tokenizer), max_position_embeddings=60), tokenizer, None)
    model = with_task_head(loaded, TASKS[task], 0).model
    loaded, head = replace(loaded, model=model.eval()), model.get_submodule("classifier")
    with torch.no_grad():  # outputs of a new model are all alike; these are apart, around 0
        head.weight.normal_(std=50.0, generator=torch.Generator().manual_seed(1))
        head.bias.zero_()
        texts = [(text(n), text(n, 3))[: len(GLUE[task][2])] for n in range(9)]
        head.bias.copy_(-torch.stack([naive(loaded, own) for own in texts]).mean(dim=0))
    return loaded


def naive(loaded: LoadedModel, texts: tuple[str, ...]) -> torch.Tensor:
    tokenizer: Any = loaded.tokenizer
    with torch.no_grad():
        logits: torch.Tensor = loaded.model(**tokenizer(*texts, return_tensors="pt")).logits[0]
    return logits


@pytest.mark.parametrize("name", rest_slow(GLUE, ["sst2", "stsb"]))
def test_every_row_as_glue_takes_it(name: str, tmp_path: Path, wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    file, header, columns, classes = GLUE[name]
    cells = [{c: text(n, shift) for shift, c in enumerate(header.split("\t"))} for n in range(9)]
    for number, row in enumerate(cells):
        row |= {c: str(number) for c in ("index", "id") if c in row}
    lines = [header, *("\t".join(row.values()) for row in cells)]
    (tmp_path / "test.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    loaded, data = model_of(name, wordpiece_tokenizer), TaskData(name)
    found = predict(TASKS[name], loaded, predicted_rows(str(tmp_path / "test.tsv"), data), OPTIONS)
    assert found.file == file
    assert found.notes == ()
    first, *rows = found.text.splitlines()
    assert first == "index\tprediction"
    assert [row.split("\t")[0] for row in rows] == [str(number) for number in range(9)]
    for row, own in zip(rows, cells, strict=True):
        logits = naive(loaded, tuple(own[c] for c in columns))
        written = row.split("\t")[1]
        if classes:
            assert written == classes[int(logits.argmax())]
        else:
            assert float(written) == pytest.approx(min(max(float(logits[0]), 0.0), 5.0), abs=6e-4)
            assert len(written) == len("0.000")
    assert len({row.split("\t")[1] for row in rows}) > 1


def test_classes_that_the_model_has_in_another_order(
    tmp_path: Path, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    path = tmp_path / "test.tsv"
    path.write_text(
        "sentence1\tsentence2\n" + "".join(f"{text(n)}\t{text(n, 2)}\n" for n in range(8)), encoding="utf-8"
    )
    loaded, task = model_of("rte", wordpiece_tokenizer), TASKS["rte"]
    rows = predicted_rows(str(path), TaskData("rte"))
    assert isinstance(task, SequenceClassification)
    turned = predict(replace(task, outputs=("not_entailment", "entailment")), loaded, rows, OPTIONS).rows
    other = {"entailment": "not_entailment", "not_entailment": "entailment"}
    assert [(index, other[name]) for index, name in predict(task, loaded, rows, OPTIONS).rows] == list(turned)


def test_rows_that_are_too_long_are_cut_and_told(tmp_path: Path, wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    """Every row needs a prediction: that of its first tokens, between the special ones."""
    long = " ".join(WORDS * 6)
    path = tmp_path / "test.tsv"
    path.write_text(f"index\tsentence\n7\tthe cat\n3\t{long}\n5\tthe house\n", encoding="utf-8")
    loaded = model_of("sst2", wordpiece_tokenizer)
    limit = 20
    found = predict(
        TASKS["sst2"], loaded, predicted_rows(str(path), TaskData("sst2")), replace(OPTIONS, max_length=limit)
    )
    assert [index for index, _ in found.rows] == ["7", "3", "5"]
    assert found.notes == (
        "Of test, 1 row longer than 20 tokens had its end cut off for the prediction, as every row needs one.",
    )
    ids = wordpiece_tokenizer(long)["input_ids"]
    kept = torch.tensor([[*ids[: limit - 1], ids[-1]]])
    with torch.no_grad():
        assert found.rows[1][1] == str(int(loaded.model(input_ids=kept).logits[0].argmax()))


def test_columns_that_the_user_names_and_labels_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"review": "the cat", "class": "?"}\n{"review": " the dog ", "class": ""}\n', encoding="utf-8")
    rows = predicted_rows(str(path), TaskData("sst2", columns=("text=review,label=class",)))
    assert [(e.id, e.texts) for e in rows.examples] == [("0", ("the cat",)), ("1", (" the dog ",))]
    assert rows.name == "rows"


@pytest.mark.parametrize(
    ("task", "content", "message"),
    [
        ("sst2", "index\ttext\n0\tthe cat\n", r"which columns are text\?\nName them with --columns text=COLUMN"),
        ("rte", "index\tsentence1\n0\tthe cat\n", r"which columns are text, second\?"),
        ("mrpc", "index\t#1 String\n0\tthe cat\n", r"which columns are text, second\?"),
        ("sst2", "index\tsentence\n0\tthe cat\n1\n", r"test.tsv:3: 1 column where there should be 2"),
        ("sst2", "index\tsentence\n", "there is nothing to predict: it is empty"),
    ],
)
def test_test_sets_that_are_refused(task: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text(content, encoding="utf-8")
    with pytest.raises(CorpusError, match=message):
        predicted_rows(str(tmp_path / "test.tsv"), TaskData(task))


@pytest.mark.parametrize("task", ["squad", "swag", "paraphrase", "similarity", "mlm", "translation"])
def test_tasks_without_classes_or_scores_are_refused(task: str, tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text("a\tb\nc\td\n", encoding="utf-8")
    with pytest.raises(OptionError, match=rf"--predict is not for --task {task}.\nIt is for classes and scores: sst2,"):
        predicted_rows(str(tmp_path / "test.tsv"), TaskData(task))


def test_rows_without_text_are_refused(tmp_path: Path, wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    """One of the two texts of a pair may be empty, as in the test set of QQP."""
    path = tmp_path / "test.tsv"
    path.write_text("id\tquestion1\tquestion2\n0\tthe cat\t\n", encoding="utf-8")
    loaded = model_of("qqp", wordpiece_tokenizer)
    (row,) = predict(TASKS["qqp"], loaded, predicted_rows(str(path), TaskData("qqp")), OPTIONS).rows
    assert row == ("0", str(int(naive(loaded, ("the cat", "")).argmax())))
    path.write_text("index\tsentence\n0\tthe cat\n1\t\n", encoding="utf-8")
    with pytest.raises(CorpusError, match=r"test.tsv:3: there is no text to make predictions for"):
        predicted_rows(str(path), TaskData("sst2"))
    path.write_text("index\tsentence\n0\tthe cat\n1\t\u200b\n", encoding="utf-8")
    rows = predicted_rows(str(path), TaskData("sst2"))
    with pytest.raises(CorpusError, match="1 row without any text to read, and every row needs a prediction"):
        predict(TASKS["sst2"], model_of("sst2", wordpiece_tokenizer), rows, OPTIONS)


def test_test_sets_of_tasks_with_the_same_classes(tmp_path: Path) -> None:
    for name, texts in (("m", "the cat\tthe dog"), ("mm", "the house\tthe man")):
        (tmp_path / f"{name}.tsv").write_text(f"sentence1\tsentence2\n{texts}\n", encoding="utf-8")
    first, second = str(tmp_path / "m.tsv"), f"mnli-mm={tmp_path / 'mm.tsv'}"
    read = read_test_sets((first, second), TaskData("mnli"))
    assert {name: [e.texts for e in rows.examples] for name, rows in read.items()} == {
        "mnli": [("the cat", "the dog")],
        "mnli-mm": [("the house", "the man")],
    }
    with pytest.raises(OptionError, match=r"two test sets of mnli-mm, whose predictions would have the same file"):
        read_test_sets((second, second), TaskData("mnli"))
    with pytest.raises(OptionError, match=r"rte does not have the classes of --task mnli.\n.*: mnli-mm, snli\."):
        read_test_sets(("rte=x.tsv",), TaskData("mnli"))
    with pytest.raises(OptionError, match=r"sst2 does not have the classes of --task stsb.\n.*: none\."):
        read_test_sets(("sst2=x.tsv",), TaskData("stsb"))


@pytest.mark.parametrize(
    ("task", "split"), [("mnli", "test_matched"), ("mnli-mm", "test_mismatched"), ("sst2", "test"), ("stsb", "test")]
)
def test_the_part_of_a_data_set_that_is_for_tests(task: str, split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As GLUE names them on the hub."""
    asked: list[str | None] = []

    def rows(entry: Any, source: str, options: DataOptions) -> Any:
        asked.append(options.split)
        raise CorpusError("no network", path=source)

    monkeypatch.setattr(test_set_predictions, "open_rows", rows)
    with pytest.raises(CorpusError):
        predicted_rows("hub:nyu-mll/glue", TaskData(task))
    assert asked == [split]
