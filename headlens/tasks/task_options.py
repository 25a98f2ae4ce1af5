"""The options that name a task and its examples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from headlens.options import (
    CORPUS,
    EXAMPLE_COLUMNS,
    EXAMPLE_SOURCES,
    EXAMPLE_SPLIT,
    LIMIT,
    TARGET_FILE,
    TASK,
    option,
)

# All of headlens.tasks.catalogue, which takes seconds to import.
TaskName = Literal[
    "mlm",
    "translation",
    "sst2",
    "cola",
    "mrpc",
    "qqp",
    "stsb",
    "mnli",
    "mnli-mm",
    "qnli",
    "rte",
    "snli",
    "squad",
    "squad2",
    "swag",
    "similarity",
    "paraphrase",
    "translation-loss",
]
DEFAULT_TASK: TaskName = "paraphrase"


@dataclass(frozen=True)
class TaskData:
    """A task by name, and its examples: files or data sets, their columns, split and limit."""

    task: TaskName = option(
        DEFAULT_TASK,
        "mlm, translation, translation-loss, or a task with --data: sst2, cola, mrpc, qqp, stsb, mnli, mnli-mm, qnli, "
        "rte, snli, squad, squad2, swag, similarity, paraphrase.",
        TASK,
        metavar="NAME",
    )
    data: tuple[str, ...] = option((), EXAMPLE_SOURCES)
    columns: tuple[str, ...] = option((), EXAMPLE_COLUMNS)
    data_split: str | None = option(None, EXAMPLE_SPLIT)
    target: str | None = option(None, TARGET_FILE)
    limit: int | None = option(None, LIMIT)
    min_words: int = option(
        0, "Leave out examples of fewer words, all texts together.", CORPUS, metavar="N", at_least=0
    )

    def for_training(self) -> TaskData:
        """The same, to learn from: of data sets the part for training, where no part is named."""
        return replace(self, data_split=self.data_split or "train")

    def held_out(self, source: str) -> TaskData:
        """Data of its own that is measured on: read alike, and all of it."""
        return replace(self, data=(source,), data_split=None, limit=None)
