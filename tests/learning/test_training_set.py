"""What a model is taught, and measured on."""

from __future__ import annotations

from pathlib import Path

import pytest
from saved import build
from transformers import PreTrainedTokenizerBase

from headlens.corpora.sources import open_corpus
from headlens.errors import OptionError
from headlens.learning.open_training_set import read_further
from headlens.learning.training_options import TextOptions
from headlens.learning.training_set import TrainingSet
from headlens.models.loading import LoadedModel
from headlens.tasks.catalogue import CATALOGUE
from headlens.tasks.examples import TextExample
from headlens.tasks.reader import Reader
from headlens.tasks.task_options import TaskData


def test_long_texts_are_measured_on_in_parts(wordpiece_tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    """Nothing of a paragraph is left out, and what is short stays as it is."""
    long = " ".join(["the cat sees a dog, but nobody sold it today"] * 5)
    (tmp_path / "text.txt").write_text(f"she sees it\n{long}\nthe dog\n", encoding="utf-8")
    loaded = LoadedModel("tiny", build("BertForMaskedLM", len(wordpiece_tokenizer)), wordpiece_tokenizer, None)
    corpus = open_corpus(str(tmp_path / "text.txt"))
    training_set = TrainingSet.of_text(loaded, corpus, corpus, TextOptions(longest=12))
    assert training_set.task.reported == ("accuracy", "loss")
    assert training_set.held is not None
    texts = [example.texts[0] for example in training_set.held.examples if isinstance(example, TextExample)]
    assert (texts[0], texts[-1]) == ("she sees it", "the dog")
    assert " ".join(texts[1:-1]) == long
    assert len(texts) > 6
    reader = Reader.of(loaded, (), 12)
    rows = [row for example in training_set.held.examples for row in training_set.task.prepare(example, reader)]
    assert len(rows) == len(texts)
    assert max(len(row.ids) for row in rows) <= 12


def test_further_development_sets_of_tasks_with_the_same_classes(tmp_path: Path) -> None:
    path = tmp_path / "mm.tsv"
    rows = "the cat\tthe dog\tneutral\nthe house\tthe man\t-\n"
    path.write_text(f"sentence1\tsentence2\tgold_label\n{rows}", encoding="utf-8")
    ((task, held),) = read_further((f"mnli-mm={path}",), TaskData("mnli"), offline=True)
    assert (task.name, task.labels) == ("mnli-mm", CATALOGUE["mnli"].task.labels)
    assert [example.label for example in held.examples if isinstance(example, TextExample)] == [1]
    assert held.notes == ("Left out: 1 example of mm, without a label, an answer or text.",)
    for wrong, message in (
        ((str(path),), "evaluated on mnli already"),
        ((f"mnli-mm={path}", f"mnli-mm={path}"), "evaluated on mnli-mm already"),
        ((f"rte={path}",), "rte does not have the classes of --task mnli"),
    ):
        with pytest.raises(OptionError, match=message):
            read_further(wrong, TaskData("mnli"), offline=True)
