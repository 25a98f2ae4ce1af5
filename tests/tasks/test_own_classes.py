"""Data of one's own, whose classes no task of headlens has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from saved import build
from transformers import PreTrainedTokenizerBase

from headlens.errors import CorpusError, ModelError, OptionError
from headlens.learning.open_training_set import read_examples
from headlens.models.loading import LoadedModel
from headlens.tasks.classification import OwnClassification
from headlens.tasks.example_sources import SourceCounts
from headlens.tasks.examples import TextExample
from headlens.tasks.open_task import DataOptions, open_examples, open_task
from headlens.tasks.task_heads import check_head, classifier_names, with_task_head
from headlens.tasks.task_options import TaskData

NAMES = {"text": ("review",), "label": "stars"}


def opened(path: Path, known: Sequence[str] = (), **options: Any) -> tuple[tuple[str, ...], list[tuple[str, float]]]:
    """The classes of a file, and its texts with their numbers of classes."""
    data = TaskData("classification", (str(path),), **{**NAMES, **options})
    task, source = open_examples(data, known=known)
    examples = [e for e in source.read(SourceCounts()) if isinstance(e, TextExample)]
    return task.labels, [(" / ".join(e.texts), e.label) for e in examples if e.label is not None]


def table(path: Path, labels: Sequence[Any], **columns: Sequence[Any]) -> Path:
    frame = pd.DataFrame({"review": [f"Text {n}" for n in range(len(labels))], "stars": labels, **columns})
    match path.suffix:
        case ".jsonl":
            frame.to_json(path, orient="records", lines=True)
        case ".parquet":
            frame.to_parquet(path)
        case _:
            frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return path


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_classes_come_from_the_data(tmp_path: Path, kind: str) -> None:
    path = table(tmp_path / f"reviews.{kind}", ["good", None, "Bad", " good "])
    assert opened(path) == (("Bad", "good"), [("Text 0", 1), ("Text 2", 0), ("Text 3", 1)])
    numbers = table(tmp_path / f"stars.{kind}", [10, 2, 1.5, None, -1])
    assert opened(numbers)[0] == ("-1", "1.5", "2", "10")
    assert opened(table(tmp_path / f"truth.{kind}", [True, False]))[0] == ("False", "True")


def test_pairs_and_several_files(tmp_path: Path) -> None:
    first = table(tmp_path / "a.csv", ["yes", "yes"], reply=["One", "Two"])
    second = table(tmp_path / "b.csv", ["no"], reply=["Three"])
    data = TaskData("classification", (str(first), str(second)), text=("review", "reply"), label="stars")
    task, source = open_examples(data)
    assert task.labels == ("no", "yes")
    found = [(e.texts, e.label) for e in source.read(SourceCounts()) if isinstance(e, TextExample)]
    assert found == [(("Text 0", "One"), 1), (("Text 1", "Two"), 1), (("Text 0", "Three"), 0)]
    columns = {"text": "review", "second": "reply", "label": "stars"}
    _, alone = open_task("classification", first, DataOptions(columns, labels={"data": ("no", "yes")}))
    assert [e.label for e in alone.read(SourceCounts()) if isinstance(e, TextExample)] == [1, 1]


def test_a_data_set_names_its_numbers(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"review": datasets.Value("string"), "stars": datasets.ClassLabel(names=["poor", "fine"])}
    )
    rows = {"review": ["A", "B", "C"], "stars": [1, 0, -1]}
    datasets.Dataset.from_dict(rows, features).to_parquet(tmp_path / "own.parquet")
    assert opened(tmp_path / "own.parquet") == (("fine", "poor"), [("A", 0), ("B", 1)])


def test_known_classes_that_the_data_lacks(tmp_path: Path) -> None:
    """Of a model or of training data, in their order; others are those of the data."""
    path = table(tmp_path / "r.csv", ["good", "good"])
    assert opened(path, ("good", "fair", "bad")) == (("good", "fair", "bad"), [("Text 0", 0), ("Text 1", 0)])
    told = TaskData("classification", (str(path),), labels=("model=fair,good",), **NAMES)  # type: ignore[arg-type]
    task, _ = open_examples(told, known=("bad", "good"))
    assert (task.labels, task.outputs) == (("fair", "good"), ("fair", "good"))
    assert opened(table(tmp_path / "s.csv", ["good", "odd"]), ("bad", "good"))[0] == ("good", "odd")
    assert opened(path, labels=("data=good,bad",))[0] == ("good", "bad")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["good", "good"], r"reviews: all its labels are good; a task needs two classes\.\nName the column .* --label"),
        ([n / 7 for n in range(60)], r"reviews: 60 examples have 60 labels \(0, 0\.14.*, 0\.28.*, …\): .* scores or"),
        ([n % 120 for n in range(999)], r"reviews: 999 examples have 120 labels \(0, 1, 2, …\): these look like"),
        (["good", "Good", "bad"], r"reviews: its labels Good, good differ only in case\.\nSpell each class in one"),
        ([None, None], r"reviews\.csv: no examples: none of its 2 rows has a label and text"),
    ],
)
def test_labels_that_are_no_classes(tmp_path: Path, labels: Sequence[Any], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        opened(table(tmp_path / "reviews.csv", labels))


def test_labels_outside_the_named_classes_are_refused_at_their_line(tmp_path: Path) -> None:
    path = table(tmp_path / "reviews.csv", ["good", "odd"])
    message = r"reviews\.csv:3: 'stars' has the label 'odd', which is none of the classes\.\nClasses: bad, good\."
    with pytest.raises(CorpusError, match=message):
        opened(path, labels=("data=bad,good",))
    for named in ("bad", "bad,bad"):
        with pytest.raises(OptionError, match=f"--labels data={named}: fewer than two different classes"):
            opened(path, labels=(f"data={named}",))
    with pytest.raises(OptionError, match=r"--labels bad,good: its classes are bad, good, and those of the task good"):
        opened(path, labels=("model=bad,good",))
    (tmp_path / "lists.jsonl").write_text(json.dumps({"review": "A", "stars": ["good"]}), encoding="utf-8")
    with pytest.raises(CorpusError, match=r"lists\.jsonl:1: 'stars' holds a list, not a class"):
        opened(tmp_path / "lists.jsonl")


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("classification", {"text": ("a", "b", "c")}, "--text names 3 columns, but --task classification reads text"),
        ("mnli", {"text": ("a",)}, r"--text names 1 column, but --task mnli reads text, second\.\nName one column for"),
        ("mlm", {"label": "stars"}, "--label is not for --task mlm, which has no labels"),
        ("sst2", {"label": "a", "columns": ("label=b",)}, "--columns label=… and --label name the same column"),
        ("sst2", {"text": ("a",), "columns": ("text=b",)}, "--columns text=… and --text name the same column"),
        ("classification", {}, r"--task classification needs data of your own\.\nName it with --data FILE"),
    ],
)
def test_options_that_cannot_be_meant(task: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        open_examples(TaskData(task, **options))


def test_text_and_label_are_columns_of_every_task(tmp_path: Path) -> None:
    path = table(tmp_path / "r.csv", ["neutral"], reply=["B"])
    task, source = open_examples(TaskData("mnli", (str(path),), text=("review", "reply"), label="stars"))
    assert [e.texts for e in source.read(SourceCounts()) if isinstance(e, TextExample)] == [("Text 0", "B")]
    assert task.name == "mnli"


def test_what_is_measured_on_has_no_further_classes(tmp_path: Path) -> None:
    """Classes that nothing is learned of are told."""
    learned = TaskData("classification", (str(table(tmp_path / "a.csv", ["good", "bad"])),), **NAMES)  # type: ignore[arg-type]
    measured = str(table(tmp_path / "b.csv", ["good"]))
    counts = SourceCounts(), SourceCounts()
    task, given, other = read_examples(learned, measured, 0.1, counts, offline=False)
    assert (task.labels, given.notes, other and other.examples[0].label) == (("bad", "good"), (), 1)
    given = read_examples(learned, measured, 0.1, counts, offline=False, known=("bad", "fair", "good"))[1]
    assert given.notes == ("No training example has the class fair.",)
    measured = str(table(tmp_path / "c.csv", ["good", "odd"]))
    with pytest.raises(CorpusError, match=r"c: its labels odd are not among the classes that are learned: bad, good"):
        read_examples(learned, measured, 0.1, counts, offline=False)


def test_a_model_has_these_classes_by_name(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    def model(*names: str, kind: str = "BertForSequenceClassification") -> LoadedModel:
        labels = {"id2label": dict(enumerate(names)), "label2id": {name: n for n, name in enumerate(names)}}
        return LoadedModel("tiny", build(kind, len(wordpiece_tokenizer), **labels), wordpiece_tokenizer, None)

    words, numbers = OwnClassification(classes=("bad", "good")), OwnClassification(classes=("0", "1"))
    assert classifier_names(model("good", "bad")) == ("good", "bad")
    assert classifier_names(model("good", "bad", kind="BertModel")) == ()
    for fitting, task in ((("good", "bad"), words), (("0", "1"), numbers), (("LABEL_0", "LABEL_1"), numbers)):
        check_head(model(*fitting), task)
    kept = with_task_head(model("0", "1"), numbers, 0)
    assert (kept.fresh, kept.notes) == ((), ())
    both = "tiny calls its outputs {}, and the task has the classes bad, good: {}"
    for other, reason in (
        (("LABEL_0", "LABEL_1"), "numbers do not show which class is which"),
        (("x", "bad"), "'x' is not one of"),
    ):
        message = both.format(", ".join(other), reason)
        with pytest.raises(ModelError, match=f"{message}.*\n.*--labels model=NAME,NAME"):
            check_head(model(*other), words)
        replaced = with_task_head(model(*other), words, 0)
        assert (replaced.fresh, replaced.model.config.id2label) == (("classifier",), {0: "bad", 1: "good"})
        assert message in replaced.notes[0]
    check_head(model("LABEL_0", "LABEL_1"), replace(words, outputs=("good", "bad")))
    contradictory = model("bad", "good")
    contradictory.model.config.label2id = {"good": 0, "bad": 1}
    assert classifier_names(contradictory) == ()
