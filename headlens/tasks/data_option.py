"""The data of a task as a command names it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headlens.tasks.catalogue import DEFAULT_TASK
from headlens.tasks.example_parsers import parse_columns
from headlens.tasks.example_sources import TaskSource
from headlens.tasks.open_task import DataOptions, open_all
from headlens.tasks.task import Task


@dataclass(frozen=True)
class TaskData:
    """A task and its examples; fields are called as the options are.

    Args:
        task: its name.
        data: files, or data sets of the hub, one after the other; none for the task's own.
        columns: columns by role, each `ROLE=NAME` or several with commas between them.
        data_split: of data sets; None for the task's own.
        target: translations, where they are a text file of their own.
        limit: read only the first examples.
        min_words: leave out examples whose texts have fewer words together; before the limit.
    """

    task: str = DEFAULT_TASK
    data: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    data_split: str | None = None
    target: str | None = None
    limit: int | None = None
    min_words: int = 0

    def taught(self) -> TaskData:
        """The same, to learn from: of data sets the part for training, where no part is named."""
        return replace(self, data_split=self.data_split or "train")

    def held_out(self, source: str) -> TaskData:
        """Data of its own that is measured on: read alike, and all of it."""
        return replace(self, data=(source,), data_split=None, limit=None)

    def open(self, *, offline: bool = False) -> tuple[Task, TaskSource]:
        """The task and its examples; errors as in `open_task`."""
        columns = parse_columns(",".join(self.columns)) if self.columns else {}
        options = DataOptions(columns, self.data_split, self.limit, self.target, offline, self.min_words)
        return open_all(self.task, self.data, options)
