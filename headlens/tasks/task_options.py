"""Names of tasks, and the options that name a task and its examples; imports neither torch nor pandas."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from headlens.options import CORPUS, EXAMPLE_COLUMNS, EXAMPLE_SOURCES, EXAMPLE_SPLIT, LIMIT, TARGET_FILE, TASK, option

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
# Metrics of tasks of which a lower value is better; of all others a higher one is.
LOWER_IS_BETTER = frozenset({"loss", "perplexity"})


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
        """Returns the data for training: the split `train` of data sets, unless a split is named."""
        return replace(self, data_split=self.data_split or "train")

    def held_out(self, source: str) -> TaskData:
        """Returns the options of held-out data: read alike, but all of it, and from the task's split of data sets.

        Args:
            source: file or data set of the held-out data.
        """
        return replace(self, data=(source,), data_split=None, limit=None)
