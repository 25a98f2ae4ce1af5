"""Questions about a paragraph: SQuAD 1.1 and 2.0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headlens.errors import ModelError, OptionError
from headlens.statistics import weighted_means as statistics
from headlens.tasks.examples import Question, TaskExample
from headlens.tasks.model_outputs import taken
from headlens.tasks.reader import Reader, TokenRow
from headlens.tasks.squad_metrics import compare
from headlens.tasks.task import Floats, HeadKind, PreparedExample, Task, TaskBatch

NOWHERE = (-1, -1)
NO_ANSWER = 0  # the token that stands for it: the first, [CLS] or <s>
NO_ANSWER_AT_ALL = 1e30  # margin of a question for which no stretch of text can be proposed


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
    `margin`, how far the score of the empty answer is above.

    Args:
        name: of the task.
        no_answer: whether questions without an answer occur.
        threshold: of the margin.
        window: most tokens of a window.
        stride: tokens that neighbouring windows share.
        n_best: starts and ends that are tried.
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

    @property
    def metrics(self) -> tuple[str, ...]:
        """With `no_answer` also under the best threshold for the very examples, as SQuAD's script reports it."""
        return ("f1", "exact", "best_f1", "best_exact") if self.no_answer else ("f1", "exact")

    @property
    def columns(self) -> tuple[str, ...]:
        """Scores of both possible answers and which of them is more likely."""
        return "exact", "f1", "exact_none", "f1_none", "margin"

    def prepare(self, example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
        """A row for every window; none if the question leaves no room for the paragraph.

        Raises:
            ModelError: if the tokenizer is a slow one.
        """
        assert isinstance(example, Question)
        if not reader.tokenizer.is_fast:
            raise ModelError(
                f"{type(reader.tokenizer).__name__} is a slow tokenizer: it does not tell which text a token stands "
                "for.",
                "Use a model with a fast tokenizer (a tokenizer.json beside the weights).",
            )
        question = example.question.strip()
        length = self.window if reader.limit is None else min(self.window, reader.limit)
        asked = len(reader.encode(question, add_special_tokens=False)["input_ids"])
        room = length - asked - reader.tokenizer.num_special_tokens_to_add(pair=True)
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
        return tuple(_row(encoding, number) for number in range(len(encoding["input_ids"])))

    def targets(self, prepared: Sequence[PreparedExample], reader: Reader, device: torch.device) -> dict[str, Tensor]:
        """First and last token of the first answer, the first token of all where a window lacks it: (rows,)."""
        del reader
        places = [_place(row, p.example) for p in prepared for row in p.rows]
        starts, ends = torch.tensor(places, device=device).T
        return {"start_positions": starts, "end_positions": ends}

    def units(self, batch: TaskBatch) -> int:
        """Return the number of windows in the batch, over which the model's loss is the mean."""
        return sum(len(p.rows) for p in batch.prepared)

    def read(self, outputs: Any, batch: TaskBatch) -> Floats:
        """Compute the records of every question from the start and end logits, (n, 5).

        The columns are `exact`, `f1`, `exact_none`, `f1_none` and `margin` (in logits).

        Raises:
            OptionError: if the outputs are not of a question-answering model, or not of this batch.
        """
        rows = []
        for found, example in zip(self.answers(outputs, batch), batch.examples, strict=True):
            assert isinstance(example, Question)
            wanted = [answer.text for answer in example.answers]
            rows.append([*compare(found.text, wanted), *compare("", wanted), found.margin])
        return np.array(rows, dtype=np.float64)

    def losses(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Cross-entropy in nats of first and last token, the mean of both and over the windows of a question."""
        starts, ends = (
            torch.nn.functional.cross_entropy(
                taken(outputs, f"{side}_logits", 2, self.name, "a question-answering head"),
                batch.labels[f"{side}_positions"],
                reduction="none",
            )
            for side in ("start", "end")
        )
        windows = [len(p.rows) for p in batch.prepared]
        return torch.stack([part.mean() for part in torch.split((starts + ends) / 2, windows)])

    def answers(self, outputs: Any, batch: TaskBatch) -> list[AnswerCandidate]:
        """What the model proposes, whether or not it thinks that there is an answer."""
        starts, ends = (
            taken(outputs, name, 2, self.name, "a question-answering head").detach().double().cpu().numpy()
            for name in ("start_logits", "end_logits")
        )
        if len(starts) != sum(len(p.rows) for p in batch.prepared):
            raise OptionError("The outputs are not of this batch: another number of windows.", "Run the whole batch.")
        found, row = [], 0
        for p in batch.prepared:
            here = slice(row, row + len(p.rows))
            found.append(self._best(p, starts[here], ends[here]))
            row += len(p.rows)
        return found

    def _best(self, prepared: PreparedExample, starts: Floats, ends: Floats) -> AnswerCandidate:
        """The best stretch over all windows."""
        assert isinstance(prepared.example, Question)
        none = min(float(s[NO_ANSWER] + e[NO_ANSWER]) for s, e in zip(starts, ends, strict=True))
        proposals = [self._stretch(r, s, e) for r, s, e in zip(prepared.rows, starts, ends, strict=True)]
        best = max((p for p in proposals if p is not None), default=None)
        if best is None:
            return AnswerCandidate("", -NO_ANSWER_AT_ALL, NO_ANSWER_AT_ALL)
        score, first, last = best
        return AnswerCandidate(prepared.example.context[first:last], score, none - score)

    def _stretch(self, row: TokenRow, starts: Floats, ends: Floats) -> tuple[float, int, int] | None:
        """Score and characters of the best stretch in a window; None if there is none."""
        inside = np.array([place for place, span in enumerate(row.spans) if span != NOWHERE], dtype=np.int64)
        first = inside[np.argsort(-starts[inside], kind="stable")[: self.n_best]]
        last = inside[np.argsort(-ends[inside], kind="stable")[: self.n_best]]
        length = last[None, :] - first[:, None] + 1
        scores = np.where((length >= 1) & (length <= self.max_answer), starts[first][:, None] + ends[last], -np.inf)
        if not np.isfinite(scores).any():
            return None
        one, two = np.unravel_index(int(scores.argmax()), scores.shape)
        return float(scores[one, two]), row.spans[first[one]][0], row.spans[last[two]][1]

    def statistic(self, metric: str, records: Floats, weights: Floats) -> Floats:
        """Compute a metric under every weighting, as a share between 0 and 1 and not in per cent, (replicates,)."""
        if metric.startswith("best"):
            answered, empty = _both(records, metric)
            return statistics.best_threshold(records[:, 4], empty, answered, weights)
        return statistics.mean(self._scores(records, metric), weights)

    def right(self, records: Floats, metric: str) -> Floats | None:
        """Return 1 for every question with an exact match, else 0, (n,); None unless `metric` is `exact`."""
        return self._scores(records, metric) if metric == "exact" else None

    def _scores(self, records: Floats, metric: str) -> Floats:
        """Return the exact match or F1 of every question, (n,).

        With `no_answer`, a question whose margin is above `threshold` gets the score of the empty answer.
        """
        answered, empty = _both(records, metric)
        says_none = (records[:, 4] > self.threshold) & self.no_answer
        return np.where(says_none, empty, answered)


def _both(records: Floats, metric: str) -> tuple[Floats, Floats]:
    """Scores of the proposed stretch and of the empty answer, (n,) each."""
    return (records[:, 0], records[:, 2]) if metric.endswith("exact") else (records[:, 1], records[:, 3])


def _row(encoding: Any, number: int) -> TokenRow:
    """One window; spans of tokens of the paragraph alone."""
    sides = encoding.sequence_ids(number)
    offsets = encoding["offset_mapping"][number]
    spans = tuple((int(a), int(b)) if side == 1 else NOWHERE for side, (a, b) in zip(sides, offsets, strict=True))
    segments = tuple(encoding["token_type_ids"][number]) if "token_type_ids" in encoding else ()
    return TokenRow(tuple(encoding["input_ids"][number]), segments, spans=spans)


def _place(row: TokenRow, example: TaskExample) -> tuple[int, int]:
    assert isinstance(example, Question)
    if not example.answers:
        return NO_ANSWER, NO_ANSWER
    answer = example.answers[0]
    start = example.context.find(answer.text) if answer.start is None else answer.start
    end = start + len(answer.text)
    touched = [i for i, (a, b) in enumerate(row.spans) if (a, b) != NOWHERE and a < end and b > start]
    # The window must hold all of it.
    whole = touched and row.spans[touched[0]][0] <= start and row.spans[touched[-1]][1] >= end
    return (touched[0], touched[-1]) if whole and start >= 0 else (NO_ANSWER, NO_ANSWER)
