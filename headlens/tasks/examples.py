"""Examples of tasks: texts with a label, and questions with their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class TextExample:
    """Texts and a number: classification, regression, choice, similarity; without a number masking and translation.

    Args:
        id: what tells the example from others in its source.
        texts: one or two sentences; a context and its endings; an anchor and candidates; a source and its translation.
        label: class from 0, index of the right ending, or a score.
    """

    id: str
    texts: tuple[str, ...]
    label: float | None = None

    @property
    def key(self) -> str:
        """Key by which bootstrap samples draw the example, its id; see `headlens.statistics.bootstrap.Draws`."""
        return self.id


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """A stretch of a context; `start` is its first character, None if the data does not give it."""

    text: str
    start: int | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a paragraph.

    Args:
        id: what tells the example from others in its source.
        question: in one sentence.
        context: where the answer is, if there is one.
        answers: what counts as right; empty if there is no answer.
    """

    id: str
    question: str
    context: str
    answers: tuple[AnswerSpan, ...]

    @property
    def key(self) -> str:
        """Key by which samples draw the question, its paragraph: questions about one paragraph are not independent."""
        return self.context


TaskExample: TypeAlias = TextExample | Question
LabelCounts: TypeAlias = Mapping[int, int]  # how often each token was to be predicted


def texts_of(example: TaskExample) -> tuple[str, ...]:
    """Returns all texts of an example; for a question these are the question and its context."""
    return example.texts if isinstance(example, TextExample) else (example.question, example.context)


def words_of(example: TaskExample) -> int:
    """Counts the words of all texts of an example together, as white space parts them."""
    return sum(len(text.split()) for text in texts_of(example))
