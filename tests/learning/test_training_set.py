"""What a model is taught, and measured on."""

from __future__ import annotations

from pathlib import Path

from saved import build
from transformers import PreTrainedTokenizerBase

from headlens.corpora.sources import open_corpus
from headlens.learning.training_options import TextOptions
from headlens.learning.training_set import TrainingSet
from headlens.models.loading import LoadedModel
from headlens.tasks.examples import TextExample
from headlens.tasks.reader import Reader


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
