"""The original files of data sets, as many rows as they are known to have."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiers import rest_slow_rows
from transformers import PreTrainedTokenizerBase

from headlens.tasks.example_sources import SourceCounts
from headlens.tasks.examples import Question, TaskExample, TextExample
from headlens.tasks.open_task import DataOptions, open_task
from headlens.tasks.question_answering import QuestionAnswering
from headlens.tasks.reader import Reader
from headlens.tasks.task import PreparedExample

pytestmark = pytest.mark.shared_data
# Task, file, rows, and how many of them have no label.
FILES = [
    ("sst2", "sst2_glue/test.tsv", 872, 0),
    ("cola", "cola/in_domain_train.tsv", 8551, 0),
    ("cola", "cola/in_domain_dev.tsv", 527, 0),
    ("cola", "cola/out_of_domain_dev.tsv", 516, 0),
    ("mrpc", "mrpc/msr_paraphrase_train.txt", 4076, 0),
    ("mrpc", "mrpc/msr_paraphrase_test.txt", 1725, 0),
    ("rte", "rte_glue/train.tsv", 2490, 0),
    ("rte", "rte_glue/dev.tsv", 277, 0),
    ("stsb", "stsbenchmark/sts-train.csv", 5749, 0),
    ("stsb", "stsbenchmark/sts-dev.csv", 1500, 0),
    ("similarity", "stsbenchmark/sts-test.csv", 1379, 0),
    ("snli", "snli_dev_test/snli_1.0_dev.jsonl.gz", 10000, 158),
    ("snli", "snli_dev_test/snli_1.0_test.jsonl.gz", 10000, 176),
    ("mnli", "taxinli/taxinli10k.tsv", 10071, 0),
    ("mnli", "conjnli/adversarial_train_15k.tsv", 15000, 0),
    ("mnli", "conjnli/conj_dev.tsv", 623, 0),
    ("squad", "xquad/xquad.en.json", 1190, 0),
    ("squad", "xquad/xquad.de.json", 1190, 0),
    ("squad2", "xquad/xquad.ru.json", 1190, 0),
]
# A small one of each format.
FAST = [FILES[i] for i in (2, 5, 7, 9, 11, 15, 18)]


@pytest.fixture(scope="module")
def data(shared: Path) -> Path:
    return shared / "data"


@pytest.fixture(scope="module")
def examples(data: Path) -> Callable[[str, str], list[TaskExample]]:
    return lambda task, path: list(open_task(task, data / path)[1].read(SourceCounts()))


@pytest.mark.parametrize(("task", "path", "rows", "unlabelled"), rest_slow_rows(FILES, FAST))
def test_rows(data: Path, task: str, path: str, rows: int, unlabelled: int) -> None:
    counts = SourceCounts()
    found = list(open_task(task, data / path)[1].read(counts))
    assert counts == SourceCounts(rows=rows, unlabelled=unlabelled)
    assert len(found) == rows - unlabelled
    labels = {e.label for e in found if isinstance(e, TextExample)}
    kinds = open_task(task)[0].labels
    assert not kinds or labels == set(range(len(kinds)))


@pytest.mark.slow
def test_sst2_of_both_parts(examples: Callable[[str, str], list[TaskExample]]) -> None:
    assert sum(len(examples("sst2", f"sst2_glue/{part}.tsv")) for part in ("train", "dev")) == 67349


@pytest.mark.slow
def test_quotes_and_tabs(examples: Callable[[str, str], list[TaskExample]]) -> None:
    scored = [e for e in examples("stsb", "stsbenchmark/sts-train.csv") if isinstance(e, TextExample)]
    assert all(0 <= (e.label or 0) <= 5 and "\t" not in text for e in scored for text in e.texts)
    assert any(text.startswith('"') for e in scored for text in e.texts)
    tagged = [e for e in examples("mnli", "taxinli/taxinli10k.tsv") if isinstance(e, TextExample)]
    assert tagged[228].texts[0].startswith("\"This is one of the reasons we're growing too weak")
    news = [e for e in examples("mrpc", "mrpc/msr_paraphrase_train.txt") if isinstance(e, TextExample)]
    assert news[0].texts[0] == (
        'Amrozi accused his brother, whom he called "the witness", of deliberately distorting his evidence.'
    )


def test_answers_are_where_they_are_said_to_be(examples: Callable[[str, str], list[TaskExample]]) -> None:
    for question in examples("squad", "xquad/xquad.ru.json"):
        assert isinstance(question, Question)
        for answer in question.answers:
            assert answer.start is not None
            assert question.context[answer.start : answer.start + len(answer.text)] == answer.text


def test_parallel_captions(data: Path) -> None:
    folder = data / "multi30k" / "raw"
    options = DataOptions(target=folder / "test_2016_flickr.de.gz")
    source = open_task("translation", folder / "test_2016_flickr.en.gz", options)[1]
    found = list(source.read(SourceCounts()))
    assert len(found) == 1000
    assert source.name == "test_2016_flickr.en+test_2016_flickr.de"


def test_answers_survive_windows(data: Path, wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    task, source = open_task("squad", data / "xquad" / "xquad.en.json", DataOptions(limit=200))
    small = QuestionAnswering(window=96, stride=32)
    reader, same, windows = Reader(wordpiece_tokenizer, limit=512), 0, 0
    for question in source.read(SourceCounts()):
        assert isinstance(question, Question)
        rows = small.prepare(question, reader)
        windows += len(rows)
        labels = small.targets([PreparedExample(0, question, rows)], reader, torch.device("cpu"))
        places = zip(rows, *(labels[f"{side}_positions"].tolist() for side in ("start", "end")), strict=True)
        texts = {question.context[row.spans[i][0] : row.spans[j][1]] for row, i, j in places if i}
        same += texts == {question.answers[0].text}
    assert windows > 300
    assert same >= 195  # some answers begin or end inside a token
    assert task.name == "squad"
