"""The plans of `headlens train`."""

from __future__ import annotations

from headlens.analyses.planning.plan import Plan, Planner, TrainingSteps, Work, plan_attention, plan_evaluations
from headlens.analyses.planning.planned_sizes import DataSize
from headlens.analyses.training.options import BLOCK, TEXT, FineTuneRequest, TrainingSetOptions, TrainRequest
from headlens.corpora.corpus_options import CorpusOptions
from headlens.runs.progress import Reporter
from headlens.tasks.task_options import TaskData


def train_plan(request: TrainRequest | FineTuneRequest, reporter: Reporter) -> Plan:
    """Plans a training on text (masked tokens, or translation) or on the examples of a task."""
    planner = Planner("train", reporter, request.training.precision)
    plan_attention(planner, request.attention)
    sizes = request.text if isinstance(request, TrainRequest) else request
    longest = max(sizes.longest or 0, 512)
    planner.model(request.model, request.model_options, vocabulary=sizes.vocabulary, longest=longest)
    length = None
    if isinstance(request, TrainRequest):
        dev = request.dev, request.dev_target
        learned, held_out = _of_text(planner, request.corpus, request.corpus_options, request.text.dev_share, dev)
        # Texts are put together in blocks for masked tokens; pairs are as long as they are.
        length = None if request.text.task == "translation" else request.text.longest or BLOCK
    else:
        data, offline = request.data.for_training(), request.model_options.offline
        learned, held_out = _of_examples(planner, data, request.dev_data, request.dev_share, offline=offline)
    loop = TrainingSteps.of(request.training, learned, length)
    planner.add(loop.work(f"train on {learned.name}"))
    plan_evaluations(planner, request.training.evaluate_every, loop, held_out)
    if isinstance(request, TrainRequest) and request.bleu:
        part = held_out.part(min(1.0, request.bleu / max(held_out.examples or 1, 1)))
        planner.add(Work("translate what is held out", 0, "written", part.tokens, length=held_out.length))
    return planner.plan()


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


PLANS = dict.fromkeys((TrainRequest, FineTuneRequest), train_plan)
