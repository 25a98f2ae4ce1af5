"""Plans of the commands that train."""

from __future__ import annotations

from dataclasses import dataclass

from headlens.analyses.dam.options import DamRequest
from headlens.analyses.masks.options import MasksRequest
from headlens.analyses.masks.recipe import study_cases
from headlens.analyses.planning.data_sizes import DataSize, updates
from headlens.analyses.planning.plan import Plan, Planner, Work
from headlens.analyses.planning.speed import Kind
from headlens.analyses.prune.options import PruneRequest
from headlens.analyses.sparsefinder.options import SparsefinderRequest
from headlens.analyses.training.options import TEXT, FineTuneRequest, TrainingSetOptions, TrainRequest
from headlens.attention.model_normalizer import SOFTMAX
from headlens.attention.normalizers import parse_normalizer
from headlens.corpora.corpus_options import CorpusOptions
from headlens.options import DEMO
from headlens.runs.progress import Reporter
from headlens.tasks.catalogue import find_task
from headlens.training.hyperparameters import LoopOptions

# What a step costs beside a plain one (tests/benchmarks/gates.py, dam.py).
GATED = 1.05
MASKED = 1.15
# Seconds of a core for each token and head, when projections are learned and all methods tried (tests/benchmarks).
_PROJECTED = 4e-4


@dataclass(frozen=True)
class _Loop:
    """Updates of a training and the tokens of each; None where the size of the data is not known."""

    steps: float | None
    batch: int
    length: int
    options: LoopOptions

    @classmethod
    def of(cls, options: LoopOptions, data: DataSize, length: int | None = None) -> _Loop:
        batch = options.batch_tokens * options.accumulate
        steps: float | None = options.steps
        if steps is None and data.tokens is not None:
            steps = updates(data.tokens, options.epochs, batch)
        return cls(steps, batch, length or data.length, options)

    def work(self, text: str, *, model: int = 0, each: float = 1.0, times: int = 1) -> Work:
        """Returns the work of all updates of a training that is run `times` times."""
        steps = None if self.steps is None else self.steps * times
        told = "updates not known" if steps is None else f"{steps:,.0f} updates of {self.batch:,} tokens"
        tokens = None if steps is None else steps * self.batch
        size = self.options.batch_tokens
        return Work(f"{text}: {told}", model, "backward", tokens, each, steps or 0.0, size, self.length)


def train_plan(request: TrainRequest, reporter: Reporter) -> Plan:
    """Text: masked tokens, or translation."""
    planner = Planner("train", reporter, request.training.precision)
    _switched(planner, request.attention)
    planner.model(
        request.model,
        request.model_options,
        vocabulary=request.text.vocabulary,
        longest=max(request.text.longest, 512),
    )
    corpus = planner.corpus(request.corpus, request.corpus_options)
    if request.dev is None:
        corpus, held = corpus.split(request.text.dev_share)
    else:
        held = planner.corpus(request.dev, request.corpus_options.held_out(request.dev_target))
    # Texts are put together in blocks for masked tokens; pairs are as long as they are.
    length = None if request.text.task == "translation" else request.text.longest
    loop = _Loop.of(request.training, corpus, length)
    planner.add(loop.work(f"train on {corpus.name}"))
    _evaluations(planner, request.training.evaluate_every, loop, held)
    if request.bleu:
        part = held.part(min(1.0, request.bleu / max(held.examples or 1, 1)))
        planner.add(Work("translate what is held out", 0, "written", part.tokens, length=held.length))
    return planner.plan()


def fine_tune_plan(request: FineTuneRequest, reporter: Reporter) -> Plan:
    """Plans the fine-tuning of a model on a task with examples: its model, data, training and evaluations."""
    planner = Planner("train", reporter, request.training.precision)
    _switched(planner, request.attention)
    longest = max(request.longest or 0, 512)
    planner.model(request.model, request.model_options, vocabulary=request.vocabulary, longest=longest)
    offline = request.model_options.offline
    learned = planner.task(request.data.for_training(), offline=offline)
    if request.dev_data is None:
        learned, held = learned.split(request.dev_share)
    else:
        held = planner.task(request.data.held_out(request.dev_data), offline=offline)
    loop = _Loop.of(request.training, learned)
    planner.add(loop.work(f"train on {learned.name}"))
    _evaluations(planner, request.training.evaluate_every, loop, held)
    return planner.plan()


def prune_plan(request: PruneRequest, reporter: Reporter) -> Plan:
    """A training with gates for each penalty, and others from random weights."""
    planner = Planner("prune", reporter, request.training.precision)
    planner.model(request.model, request.model_options)
    learned, held = _lesson(planner, request.lesson, offline=request.model_options.offline)
    loop = _Loop.of(request.training, learned)
    if request.gates.freeze:
        planner.notes.append("What is frozen is trained more quickly than this says.")
    runs = len(request.sweep.strengths)
    if request.sweep.target_heads is not None:
        runs = request.sweep.most_runs
        planner.notes.append(f"--target-heads {request.sweep.target_heads} may need fewer than {runs} trainings.")
    planner.add(loop.work(f"train with gates, {runs} penalties", each=GATED, times=runs))
    kind: Kind = "written" if find_task(request.lesson.data.task).task.generates else "forward"
    scratch = 0
    if request.sweep.from_scratch:
        own = _Loop.of(request.training.scratch(), learned)
        planner.add(own.work("train from random weights without the heads that went", times=runs + 1))
        scratch = runs + 1
    text = f"measure on {held.name}, {1 + runs + scratch} models"
    planner.add(Work(text, 0, kind, held.tokens, 1 + runs + scratch, length=held.length))
    if request.roles.roles_corpus is not None:
        options = CorpusOptions(request.roles.roles_target, offline=request.model_options.offline)
        corpus = planner.corpus(request.roles.roles_corpus, options)
        planner.add(Work(f"roles on {corpus.name}", tokens=corpus.tokens, each=1.1 * (1 + runs), length=corpus.length))
    return planner.plan()


def dam_plan(request: DamRequest, reporter: Reporter) -> Plan:
    """A training with a mask for each penalty, and one without where not the mask alone is trained."""
    planner = Planner("train-dam", reporter, request.training.precision)
    longest = request.lesson.longest or 128
    planner.model(request.model, request.model_options, vocabulary=request.vocabulary, longest=max(longest, 512))
    learned, held = _lesson(planner, request.lesson, offline=request.model_options.offline)
    length = longest if request.lesson.data.task in TEXT else None
    loop, runs = _Loop.of(request.training, learned, length), len(request.lambdas)
    planner.add(loop.work(f"train with a mask, {runs} penalties", each=MASKED, times=runs))
    measured = 1 + runs
    if "all" not in (request.learning.freeze or ()):
        planner.add(loop.work("train without a mask"))
        measured += 1
    planner.add(Work(f"measure on {held.name}", tokens=held.tokens, each=measured, length=held.length))
    return planner.plan()


def masks_plan(request: MasksRequest, reporter: Reporter) -> Plan:
    """Patterns are counted at once; each case of a study is a training."""
    study = request.study
    if study is None:
        planner = Planner("masks", reporter)
        planner.notes.append(f"Nothing is trained: {len(request.chosen())} patterns are counted and drawn in seconds.")
        return planner.plan()
    planner = Planner("masks", reporter, study.training.precision)
    planner.model(study.model, study.model_options)
    learned, held = _lesson(planner, study.lesson, offline=study.model_options.offline)
    loop, runs = _Loop.of(study.training, learned), len(study_cases(study, request.pattern))
    planner.add(loop.work(f"train {runs} cases", each=MASKED, times=runs))
    planner.add(Work(f"measure on {held.name}", tokens=held.tokens, each=runs, length=held.length))
    if study.parser != "gold":
        planner.notes.append(f"The time of {study.parser} is not in the estimate: it parses each text once, before.")
    return planner.plan()


def sparsefinder_plan(request: SparsefinderRequest, reporter: Reporter) -> Plan:
    """Queries and keys are gathered, every method is tried, then the task at points of each curve."""
    planner = Planner("sparsefinder", reporter)
    _switched(planner, request.attention or ("entmax15" if request.model == DEMO else None))
    model = planner.model(request.model, request.model_options)
    corpus = planner.corpus(request.corpus, request.corpus_options)
    if request.dev is None:
        corpus, held = corpus.split(request.dev_share)
    else:
        held = planner.corpus(request.dev, request.corpus_options.held_out(request.dev_target))
    size = request.batch_tokens
    for part, use in ((corpus, "learned from"), (held, "held out")):
        text = f"gather queries and keys of what is {use}: {part.name}"
        planner.add(Work(text, 0, "forward", part.tokens, 2.0, 0.0, size, part.length))
    fixed = 0.0 if corpus.tokens is None else _PROJECTED * corpus.tokens * model.heads
    planner.add(Work(f"projections, clusters and all methods, {model.heads} heads", length=corpus.length, fixed=fixed))
    if request.metric.task != "none":
        planner.add(
            Work(
                f"the task at {request.metric.points} points of nine curves",
                tokens=held.tokens,
                each=4.0 * 9 * request.metric.points,
                batch_tokens=size,
                length=held.length,
            )
        )
    return planner.plan()


def _switched(planner: Planner, attention: str | None) -> None:
    if attention is not None and attention != SOFTMAX:
        planner.attention = parse_normalizer(attention)


def _evaluations(planner: Planner, every: int, loop: _Loop, held: DataSize) -> None:
    times = 1.0
    if every and loop.steps is not None:
        times = max(1.0, loop.steps // every)
    elif loop.options.steps is None:
        times = max(1.0, loop.options.epochs)
    text = f"evaluate {times:.0f} times"
    planner.add(Work(text, tokens=held.tokens, each=times, batch_tokens=loop.options.batch_tokens, length=loop.length))


def _lesson(planner: Planner, lesson: TrainingSetOptions, *, offline: bool) -> tuple[DataSize, DataSize]:
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
