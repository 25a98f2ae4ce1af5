"""Questions about a paragraph: SQuAD 1.1 and 2.0, compared by its official rules (Rajpurkar et al. 2016, 2018)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headlens.errors import ModelError, OptionError
from headlens.statistics import weighted_means
from headlens.statistics.paired_tests import out_of_order
from headlens.tasks.examples import Question, TaskExample
from headlens.tasks.reader import Reader, TokenRow
from headlens.tasks.task import Floats, HeadKind, PreparedExample, Task, TaskBatch, require_output, text_number

NOWHERE = (-1, -1)
NO_ANSWER = 0  # place of the token that stands for "no answer": the first, [CLS] or <s>
NO_ANSWER_AT_ALL = 1e30  # margin of a question for which no stretch of text can be proposed
ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


class AnswerCandidate(NamedTuple):
    """A proposed answer: its text, its score, and by how much the score of "no answer" is higher."""

    text: str
    score: float
    margin: float


@dataclass(frozen=True)
class QuestionAnswering(Task):
    """Where in a paragraph the answer is.

    A paragraph that is longer than the model reads goes through it in windows that overlap; the best of the `n_best`
    starts and ends of all windows is the answer. With `no_answer` (SQuAD 2.0) the answer is empty where the score of
    the first token, the lowest over the windows, is more than `threshold` above it.

    Records: `exact` and `f1` of the proposed stretch of text, `exact_none` and `f1_none` of the empty answer, and
    `margin`, how far the score of the empty answer is above; `written` is the same number for the same answer.

    Args:
        name: name of the task.
        no_answer: whether questions without an answer occur.
        threshold: margin above which the answer is empty.
        window: most tokens of a window.
        stride: tokens that neighbouring windows share.
        n_best: number of starts and of ends that are tried.
        max_answer: most tokens of an answer.
    """

    name: str = "squad"
    no_answer: bool = False
    threshold: float = 0.0
    window: int = 384
    stride: int = 128
    n_best: int = 20
    max_answer: int = 30
    head: ClassVar[HeadKind] = "question-answering"
    columns = ("exact", "f1", "exact_none", "f1_none", "margin", "written")
    reported = ("f1", "exact")  # papers print both

    @property
    def metrics(self) -> tuple[str, ...]:
        """F1 and exact match; with `no_answer` also under the best threshold for the examples, as in SQuAD's script."""
        return ("f1", "exact", "best_f1", "best_exact") if self.no_answer else ("f1", "exact")

    def prepare(self, example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
        """Tokenises a question with each window of its paragraph; no rows if the question leaves no room for one.

        Raises:
            ModelError: if the tokenizer is a slow one.
        """
        assert isinstance(example, Question)
        if not reader.tokenizer.is_fast:
            raise ModelError(
                f"{type(reader.tokenizer).__name__} is a slow tokenizer: it does not say which part of the text a "
                "token covers.",
                "Use a model with a fast tokenizer (a tokenizer.json next to the weights).",
            )
        # SQuAD has questions with much white space before them: taken off as in the script of transformers (run_qa.py).
        question = example.question.lstrip()
        length = self.window if reader.limit is None else min(self.window, reader.limit)
        question_length = len(reader.encode(question, add_special_tokens=False)["input_ids"])
        room = length - question_length - reader.tokenizer.num_special_tokens_to_add(pair=True)
        if room < 1 or not example.context.strip():
            return ()
        encoding = reader.encode(
            question,
            example.context,
            truncation="only_second",
            max_length=length,
            stride=min(self.stride, room // 2),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        rows = []
        for number, (ids, offsets) in enumerate(zip(encoding["input_ids"], encoding["offset_mapping"], strict=True)):
            sides = encoding.sequence_ids(number)  # only tokens of the paragraph have spans
            spans = tuple((a, b) if side == 1 else NOWHERE for side, (a, b) in zip(sides, offsets, strict=True))
            segments = tuple(encoding["token_type_ids"][number]) if "token_type_ids" in encoding else ()
            rows.append(TokenRow(tuple(ids), segments, spans=spans))
        return tuple(rows)

    def targets(self, prepared: Sequence[PreparedExample], reader: Reader, device: torch.device) -> dict[str, Tensor]:
        """Returns places of the first and last token of the answer, `NO_ANSWER` in windows without it: (rows,)."""
        del reader
        places = [_answer_place(row, p.example) for p in prepared for row in p.rows]
        starts, ends = torch.tensor(places, device=device).T
        return {"start_positions": starts, "end_positions": ends}

    def units(self, batch: TaskBatch) -> int:
        """Returns the number of windows in the batch, over which the model's loss is the mean."""
        return sum(len(p.rows) for p in batch.prepared)

    def read(self, outputs: Any, batch: TaskBatch) -> Floats:
        """Computes the records of every question from the start and end logits, (n, 6).

        The columns are `exact`, `f1`, `exact_none`, `f1_none`, `margin` (in logits) and `written`, the same number for
        the same answer.

        Raises:
            OptionError: if the outputs are not of a question-answering model, or not of this batch.
        """
        rows = []
        for answer, example in zip(self.answers(outputs, batch), batch.examples, strict=True):
            assert isinstance(example, Question)
            gold = [span.text for span in example.answers]
            written = "" if self.no_answer and answer.margin > self.threshold else answer.text
            scores = *squad_scores(answer.text, gold), *squad_scores("", gold)
            rows.append([*scores, answer.margin, text_number(written)])
        return np.array(rows, dtype=np.float64)

    def losses(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Computes the cross-entropy of start and end in nats, their mean over the windows of a question: (n,)."""
        starts, ends = (
            cross_entropy(logits, batch.labels[f"{side}_positions"], reduction="none")
            for side, logits in zip(("start", "end"), self._logits(outputs), strict=True)
        )
        windows = [len(p.rows) for p in batch.prepared]
        return torch.stack([losses.mean() for losses in torch.split((starts + ends) / 2, windows)])

    def _logits(self, outputs: Any) -> list[Tensor]:
        """Returns the start logits and the end logits, (rows, length) each."""
        names = ("start_logits", "end_logits")
        return [require_output(outputs, name, 2, self.name, "a question-answering head") for name in names]

    def answers(self, outputs: Any, batch: TaskBatch) -> list[AnswerCandidate]:
        """Finds the best stretch of text for every question, whether or not the empty answer scores higher.

        Raises:
            OptionError: if the outputs are not of a question-answering model, or not of this batch.
        """
        starts, ends = (logits.detach().double().cpu().numpy() for logits in self._logits(outputs))
        if len(starts) != sum(len(p.rows) for p in batch.prepared):
            raise OptionError(
                "The outputs do not belong to this batch: the number of windows differs.", "Run the whole batch."
            )
        firsts = np.cumsum([len(p.rows) for p in batch.prepared])[:-1]
        return list(map(self._best, batch.prepared, np.split(starts, firsts), np.split(ends, firsts)))

    def _best(self, prepared: PreparedExample, starts: Floats, ends: Floats) -> AnswerCandidate:
        """Returns the best stretch over all windows of a question, from logits (windows, length)."""
        # As in BERT's run_squad: one window that sees an answer speaks against the empty one for all windows.
        assert isinstance(prepared.example, Question)
        no_answer = float((starts[:, NO_ANSWER] + ends[:, NO_ANSWER]).min())
        if (best := max(filter(None, map(self._stretch, prepared.rows, starts, ends)), default=None)) is None:
            return AnswerCandidate("", -NO_ANSWER_AT_ALL, NO_ANSWER_AT_ALL)
        score, first, last = best
        return AnswerCandidate(prepared.example.context[first:last], score, no_answer - score)

    def _stretch(self, row: TokenRow, starts: Floats, ends: Floats) -> tuple[float, int, int] | None:
        """Returns score, first and last character of the best stretch in a window; None if there is none."""
        inside = np.array([place for place, span in enumerate(row.spans) if span != NOWHERE], dtype=np.int64)
        first, last = (inside[np.argsort(-side[inside], kind="stable")[: self.n_best]] for side in (starts, ends))
        length = last[None, :] - first[:, None] + 1  # (starts, ends)
        scores = np.where((length >= 1) & (length <= self.max_answer), starts[first][:, None] + ends[last], -np.inf)
        if not np.isfinite(scores).any():
            return None
        start, end = np.unravel_index(int(scores.argmax()), scores.shape)
        return float(scores[start, end]), row.spans[first[start]][0], row.spans[last[end]][1]

    def statistic(self, metric: str, records: Floats, weights: Floats) -> Floats:
        """Computes a metric under every weighting, as a share between 0 and 1 and not in per cent, (replicates,)."""
        if metric.startswith("best"):
            answered, empty = _answer_scores(records, metric)
            return weighted_means.best_threshold(records[:, 4], empty, answered, weights)
        return weighted_means.mean(self._scores(records, metric), weights)

    def right(self, records: Floats, metric: str) -> Floats | None:
        """Returns 1 for every question with an exact match, else 0, (n,); None unless `metric` is `exact`."""
        return self._scores(records, metric) if metric == "exact" else None

    def changed(self, records: Floats, baseline: Floats, metric: str) -> npt.NDArray[np.bool_]:
        """Returns which questions have another score, or for the best threshold another place, (n,)."""
        if not metric.startswith("best"):
            return np.asarray(self._scores(records, metric) != self._scores(baseline, metric))
        ours, theirs = (np.stack(_answer_scores(each, metric)) for each in (records, baseline))
        return np.asarray((ours != theirs).any(axis=0) | out_of_order(records[:, 4], baseline[:, 4]))

    def _scores(self, records: Floats, metric: str) -> Floats:
        """Returns the exact match or F1 of every question, (n,).

        With `no_answer`, a question whose margin is above `threshold` gets the score of the empty answer.
        """
        answered, empty = _answer_scores(records, metric)
        return np.where((records[:, 4] > self.threshold) & self.no_answer, empty, answered)


def _answer_scores(records: Floats, metric: str) -> tuple[Floats, Floats]:
    """Returns the scores of the proposed stretch and of the empty answer, (n,) each."""
    return (records[:, 0], records[:, 2]) if metric.endswith("exact") else (records[:, 1], records[:, 3])


def _answer_place(row: TokenRow, example: TaskExample) -> tuple[int, int]:
    """Returns places of the first and last token of the first answer; `NO_ANSWER` where a window lacks a part of it."""
    assert isinstance(example, Question)
    if not example.answers:
        return NO_ANSWER, NO_ANSWER
    answer = example.answers[0]
    start = example.context.find(answer.text) if answer.start is None else answer.start
    end = start + len(answer.text)
    tokens = [i for i, (a, b) in enumerate(row.spans) if (a, b) != NOWHERE and a < end and b > start]
    # An answer that another window cuts off here is none in this window.
    is_whole = tokens and row.spans[tokens[0]][0] <= start and row.spans[tokens[-1]][1] >= end
    return (tokens[0], tokens[-1]) if is_whole and start >= 0 else (NO_ANSWER, NO_ANSWER)


def normalized(text: str) -> str:
    """Returns a text in lower case, without ASCII punctuation and English articles, with single spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def squad_scores(predicted: str, answers: Sequence[str]) -> tuple[float, float]:
    """Computes exact match and F1 of words, each the best over the answers that count as right.

    Without any answer the right prediction is the empty one; so it is where normalising leaves nothing of them.
    """
    words = normalized(predicted).split()
    golds = [gold for text in answers if (gold := normalized(text).split())] or [[]]
    return float(words in golds), max(_f1(words, gold) for gold in golds)


def _f1(words: Sequence[str], gold: Sequence[str]) -> float:
    """Computes F1 of two bags of words; two empty ones are equal."""
    if not words or not gold:
        return float(words == gold)
    return 2 * (Counter(words) & Counter(gold)).total() / (len(words) + len(gold))
