"""The plans of `headlens train`."""

from __future__ import annotations

from headlens.analyses.planning.data_sizes import DataSize
from headlens.analyses.planning.plan import Plan, Planner, TrainingSteps, Work, plan_attention, plan_evaluations
from headlens.analyses.training.options import TEXT, FineTuneRequest, TrainingSetOptions, TrainRequest
from headlens.runs.progress import Reporter


def train_plan(request: TrainRequest, reporter: Reporter) -> Plan:
    """Text: masked tokens, or translation."""
    planner = Planner("train", reporter, request.training.precision)
    plan_attention(planner, request.attention)
    planner.model(
        request.model, request.model_options, vocabulary=request.text.vocabulary, longest=max(request.text.longest, 512)
    )
    corpus = planner.corpus(request.corpus, request.corpus_options)
    if request.dev is None:
        corpus, held_out = corpus.split(request.text.dev_share)
    else:
        held_out = planner.corpus(request.dev, request.corpus_options.held_out(request.dev_target))
    # Texts are put together in blocks for masked tokens; pairs are as long as they are.
    length = None if request.text.task == "translation" else request.text.longest
    loop = TrainingSteps.of(request.training, corpus, length)
    planner.add(loop.work(f"train on {corpus.name}"))
    plan_evaluations(planner, request.training.evaluate_every, loop, held_out)
    if request.bleu:
        part = held_out.part(min(1.0, request.bleu / max(held_out.examples or 1, 1)))
        planner.add(Work("translate what is held out", 0, "written", part.tokens, length=held_out.length))
    return planner.plan()


def fine_tune_plan(request: FineTuneRequest, reporter: Reporter) -> Plan:
    """Plans the fine-tuning of a model on a task with examples: its model, data, training and evaluations."""
    planner = Planner("train", reporter, request.training.precision)
    plan_attention(planner, request.attention)
    longest = max(request.longest or 0, 512)
    planner.model(request.model, request.model_options, vocabulary=request.vocabulary, longest=longest)
    offline = request.model_options.offline
    learned = planner.task(request.data.for_training(), offline=offline)
    if request.dev_data is None:
        learned, held_out = learned.split(request.dev_share)
    else:
        held_out = planner.task(request.data.held_out(request.dev_data), offline=offline)
    loop = TrainingSteps.of(request.training, learned)
    planner.add(loop.work(f"train on {learned.name}"))
    plan_evaluations(planner, request.training.evaluate_every, loop, held_out)
    return planner.plan()


def training_set_sizes(planner: Planner, lesson: TrainingSetOptions, *, offline: bool) -> tuple[DataSize, DataSize]:
    """What is learned, and what is measured on."""
    if lesson.data.task in TEXT:
        options = lesson.corpus_options(offline=offline)
        learned = planner.corpus(lesson.corpus, options)
        if lesson.dev is None:
            return learned.split(lesson.share)
        return learned, planner.corpus(lesson.dev, options.held_out(lesson.dev_target))
    learned = planner.task(lesson.training_data, offline=offline)
    if lesson.dev_data is None:
        return learned.split(lesson.share)
    return learned, planner.task(lesson.data.held_out(lesson.dev_data), offline=offline)


PLANS = {TrainRequest: train_plan, FineTuneRequest: fine_tune_plan}
