"""White space around the texts of tasks: what `datasets` reads from the file, and a tokenizer makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from saved import build
from transformers import PreTrainedTokenizerBase

from headlens.models.loading import LoadedModel
from headlens.tasks.example_sources import SourceCounts
from headlens.tasks.examples import Question, TaskExample, TextExample, texts_of
from headlens.tasks.open_task import DataOptions, open_task
from headlens.tasks.reader import Reader


def read(task: str, path: Path, columns: dict[str, str] | None = None) -> list[TaskExample]:
    return list(open_task(task, path, DataOptions(columns or {}))[1].read(SourceCounts()))


@pytest.fixture(scope="module")
def bytes_reader(bytebpe_tokenizer: PreTrainedTokenizerBase) -> Reader:
    return Reader.of(LoadedModel("gpt", build("GPT2Model", len(bytebpe_tokenizer)), bytebpe_tokenizer, None))


TEXTS = ["a fine film ", "  led by a star", "two  spaces", "no-break\u00a0", "plain"]


@pytest.mark.parametrize("name", ["d.tsv", "d.csv", "d.jsonl", "d.json"])
def test_one_text(tmp_path: Path, name: str, bytes_reader: Reader) -> None:
    rows = [{"sentence": text, "label": 1} for text in TEXTS]
    if name.endswith(("tsv", "csv")):
        mark = "\t" if name == "d.tsv" else ","
        lines = [mark.join(rows[0]), *(f"{row['sentence']}{mark}1" for row in rows)]
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    else:
        whole = json.dumps(rows) if name == "d.json" else "\n".join(map(json.dumps, rows))
        (tmp_path / name).write_text(whole, encoding="utf-8")
    examples = read("sst2", tmp_path / name)
    assert [texts_of(example) for example in examples] == [(text,) for text in TEXTS]
    prepared = [bytes_reader.whole_rows([texts_of(example)])[0].ids for example in examples]
    assert prepared == [tuple(bytes_reader.tokenizer(text)["input_ids"]) for text in TEXTS]


@pytest.mark.parametrize(
    ("task", "row", "expected"),
    [
        ("mrpc", {"sentence1": "a ", "sentence2": " b", "label": 1}, ("a ", " b")),
        ("translation", {"source": " ein Wort ", "target": "a word "}, (" ein Wort ", "a word ")),
        ("translation-loss", {"source": "x ", "target": " y"}, ("x ", " y")),
        ("stsb", {"sentence1": "a\u2003", "sentence2": "b", "score": 2.5}, ("a\u2003", "b")),
        ("mlm", {"text": " a b "}, (" a b ",)),
    ],
)
def test_texts_of_other_tasks(tmp_path: Path, task: str, row: dict[str, Any], expected: tuple[str, ...]) -> None:
    (tmp_path / "d.jsonl").write_text(json.dumps(row), encoding="utf-8")
    (example,) = read(task, tmp_path / "d.jsonl")
    assert texts_of(example) == expected


def test_endings_as_the_script_of_transformers_joins_them(tmp_path: Path) -> None:
    ends = {f"ending{n}": f"end {n} " for n in range(4)}
    row = {"sent1": "First. ", "sent2": "", **ends, "label": 0}
    (tmp_path / "d.jsonl").write_text(json.dumps(row), encoding="utf-8")
    (example,) = read("swag", tmp_path / "d.jsonl")
    assert isinstance(example, TextExample)
    assert example.texts == ("First. ", *(f" end {n} " for n in range(4)))


def test_a_question_keeps_the_offsets_of_its_context(
    tmp_path: Path, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    context = "  \n Cats sleep.  "
    answers = {"text": ["Cats"], "answer_start": [context.index("Cats")]}
    row = {"id": "1", "question": "  Who sleeps? ", "context": context, "answers": answers}
    (tmp_path / "d.jsonl").write_text(json.dumps(row), encoding="utf-8")
    (example,) = read("squad", tmp_path / "d.jsonl")
    assert isinstance(example, Question)
    assert (example.question, example.context) == (row["question"], context)
    loaded = LoadedModel("qa", build("BertForQuestionAnswering", len(wordpiece_tokenizer)), wordpiece_tokenizer, None)
    task = open_task("squad", tmp_path / "d.jsonl", DataOptions({}))[0]
    (tokens,) = task.prepare(example, Reader.of(loaded))
    assert context.index("Cats") in {start for start, _ in tokens.spans}


@pytest.mark.parametrize("blank", ["", " ", "\u00a0", "\t"])
def test_blank_texts_are_left_out(tmp_path: Path, blank: str) -> None:
    rows = [{"sentence": blank, "label": 1}, {"sentence": "a film", "label": 0}]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert [texts_of(example) for example in read("sst2", tmp_path / "d.jsonl")] == [("a film",)]
