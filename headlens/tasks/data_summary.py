"""What the data of a task is, in a few numbers and a hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from headlens.tasks.example_sources import SourceCounts
from headlens.tasks.examples import TaskExample, TextExample


@dataclass(frozen=True)
class DataSummary:
    """The data of a task as `run.json` records it.

    Args:
        name: of the source.
        rows: examples it has, with those left out.
        unlabelled: left out because nobody says what is right, or because a text is empty.
        too_long: left out because the model does not read so many tokens, or because there is nothing to ask.
        examples: the rest.
        sha256: over the content of all labelled examples in order, whatever file or ids they have.
        too_short: left out because more words were asked for.
    """

    name: str
    rows: int
    unlabelled: int
    too_long: int
    examples: int
    sha256: str
    too_short: int = 0

    @classmethod
    def of(cls, name: str, counts: SourceCounts, sha256: str) -> DataSummary:
        """From the counts of a source that was read."""
        return cls(name, counts.rows, counts.unlabelled, counts.too_long, counts.examples, sha256, counts.too_short)


def fingerprint(examples: Iterable[TaskExample]) -> str:
    """Return the SHA-256 hex digest of the examples' texts and labels or answers, in order and without their ids."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(_content(example).encode("utf-8", "surrogatepass"))
        digest.update(b"\n")
    return digest.hexdigest()


def _content(example: TaskExample) -> str:
    if isinstance(example, TextExample):
        return json.dumps([example.texts, example.label], ensure_ascii=False)
    answers = [(answer.text, answer.start) for answer in example.answers]
    return json.dumps([example.question, example.context, answers], ensure_ascii=False)
