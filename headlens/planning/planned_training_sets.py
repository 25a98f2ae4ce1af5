"""How large training sets are."""

from __future__ import annotations

from headlens.corpora.corpus_options import CorpusOptions
from headlens.learning.training_options import TEXT, TrainingSetOptions
from headlens.planning.plan import Planner
from headlens.planning.planned_sizes import DataSize
from headlens.tasks.task_options import TaskData


def training_set_sizes(planner: Planner, lesson: TrainingSetOptions, *, offline: bool) -> tuple[DataSize, DataSize]:
    """What is learned, and what is measured on."""
    if lesson.data.task in TEXT:
        options = lesson.corpus_options(offline=offline)
        return _of_text(planner, lesson.corpus, options, lesson.share, (lesson.dev, lesson.dev_target))
    return _of_examples(planner, lesson.training_data, lesson.dev_data, lesson.share, offline=offline)


def _of_text(
    planner: Planner, corpus: str, options: CorpusOptions, share: float, dev: tuple[str | None, str | None]
) -> tuple[DataSize, DataSize]:
    """Of text, what is learned, and what is measured on: as named with its translations, or a share held out."""
    learned = planner.corpus(corpus, options)
    return learned.split(share) if dev[0] is None else (learned, planner.corpus(dev[0], options.held_out(dev[1])))


def _of_examples(
    planner: Planner, learned: TaskData, dev_data: str | None, share: float, *, offline: bool
) -> tuple[DataSize, DataSize]:
    """Of the examples of a task, what is learned, and what is measured on: as named, or a share held out."""
    size = planner.task(learned, offline=offline)
    return size.split(share) if dev_data is None else (size, planner.task(learned.held_out(dev_data), offline=offline))
