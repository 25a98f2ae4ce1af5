"""What a command would do, how large that is, and about how long it takes on this machine."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field, replace
from importlib import import_module
from typing import Any

import torch

from headlens.attention.normalizers import ModelNormalizer, parse_normalizer
from headlens.attention_masks.mask_options import MaskOptions
from headlens.attention_masks.model_mask import mask_record
from headlens.corpora.batches import batch_tokens_of
from headlens.corpora.corpus_options import CorpusOptions
from headlens.corpora.sources import open_corpus
from headlens.learning.hyperparameters import LoopOptions, Precision
from headlens.learning.open_training_set import suited_training_set
from headlens.learning.text_training import DEV_TARGET, TARGET_COLUMN, check_text_task, sentence_pairs
from headlens.learning.training_options import TEXT, TrainingSetOptions
from headlens.models.model_options import ModelOptions
from headlens.planning.planned_sizes import DataSize, PlannedModel, corpus_size, planned_model, task_size
from headlens.planning.speed import Kind, Speed, measure_speed
from headlens.runs.progress import Reporter
from headlens.tasks.task_options import TaskData

# Seconds in which programs are read, and tables and figures written.
START = 12.0
# Bytes of a process that has read torch, transformers and pandas, and drawn figures.
PROCESS = 750e6
# What relevance of all heads costs beside a forward and backward pass, and a step with a learned mask beside a plain
# one (benchmarks/dam.py).
RELEVANCE, MASKED = 0.75, 1.15
# Of weights that are trained: themselves, a gradient, and two moments of AdamW.
_TRAINED = 4


@dataclass(frozen=True)
class Work:
    """A part of what a command does.

    Args:
        text: description for the user.
        model: the place of its model among those of the plan.
        kind: what each token goes through.
        tokens: that go through, all together; None where the size of the data is not known.
        each: how often that is done, or how much more it costs than a plain pass.
        updates: of weights, all together.
        batch_tokens: of a batch.
        length: tokens of a text.
        fixed: seconds that depend on nothing of that.
    """

    text: str
    model: int = 0
    kind: Kind = "forward"
    tokens: float | None = 0.0
    each: float = 1.0
    updates: float = 0.0
    batch_tokens: int = 2048
    length: int = 32
    fixed: float = 0.0

    def seconds(self, speed: Speed) -> float | None:
        """About how long it takes; None where the size of the data is not known."""
        if self.tokens is None:
            return None
        return self.fixed + self.each * speed.seconds(self.kind, self.tokens) + self.updates * speed.update

    def bytes(self, model: PlannedModel, speed: Speed) -> float:
        """About how much memory it takes beside that of the process."""
        states = _TRAINED if self.updates else 1
        of_token = speed.backward_bytes if self.kind == "backward" else speed.forward_bytes
        return model.weight_bytes * states + self.batch_tokens * of_token


@dataclass
class Plan:
    """What a command would do.

    Args:
        command: its name.
        device: where, in words.
        models: that are read or trained.
        data: that is read.
        work: in order.
        speeds: of each part of the work.
        notes: what to know.
    """

    command: str
    _: KW_ONLY
    device: str = "cpu"
    models: list[PlannedModel] = field(default_factory=list)
    data: list[DataSize] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    speeds: list[Speed] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> list[float | None]:
        """Estimated seconds of each part of the work, in order; None where the size of its data is not known."""
        return [work.seconds(speed) for work, speed in zip(self.work, self.speeds, strict=True)]

    @property
    def total(self) -> float | None:
        """Seconds in all; None where the size of some data is not known."""
        known = [s for s in self.seconds if s is not None]
        return START + sum(known) if len(known) == len(self.work) else None

    @property
    def bytes(self) -> float:
        """Memory: of the device where that has its own, else of the process."""
        sizes = [w.bytes(self.models[w.model], s) for w, s in zip(self.work, self.speeds, strict=True) if self.models]
        return max(sizes, default=0.0) + (PROCESS if self.device.startswith("cpu") else 0.0)

    def summary(self) -> dict[str, Any]:
        """Returns the plan as JSON values: models, data, work with its seconds, and the total of time and memory."""
        models = [
            {"model": m.name, "parameters": m.parameters, "heads": m.heads, "source": m.source} for m in self.models
        ]
        data = [{"data": d.name, "examples": d.examples, "tokens": d.tokens, "source": d.source} for d in self.data]
        work = [
            {"work": w.text, "tokens": w.tokens, "updates": w.updates, "seconds": s}
            for w, s in zip(self.work, self.seconds, strict=True)
        ]
        total = {"seconds": self.total, "bytes": self.bytes, "device": self.device}
        return {"plan": self.command, "models": models, "data": data, "work": work, **total, "notes": self.notes}


@dataclass
class Planner(Plan):
    """Gathers a plan: sizes are counted as they are asked for, speeds measured at the end.

    Args:
        reporter: shows progress.
        precision: of trainings.
        attention: what the model's attention would be switched to.
    """

    reporter: Reporter = field(default_factory=Reporter)
    precision: Precision = "no"
    attention: ModelNormalizer | None = None

    def model(self, name: str, options: ModelOptions, *, vocabulary: int = 8000, longest: int = 128) -> PlannedModel:
        """A model of the plan, see `planned_model`."""
        with self.reporter.status(f"looking at {name}"):
            model = planned_model(name, options, vocabulary=vocabulary, longest=longest)
        self.models.append(model)
        return model

    @property
    def batch_tokens(self) -> int:
        """Tokens of a batch where the options do not say how many."""
        return batch_tokens_of(self.models[0].model.device)

    def corpus(self, spec: str, options: CorpusOptions) -> DataSize:
        """A corpus of the plan, in tokens of the first model."""
        self.data.append(corpus_size(spec, options, self.models[0], self.reporter))
        return self.data[-1]

    def parsing(self, parser: str) -> None:
        """Notes that the time of a parser is not known, where there is one."""
        if parser not in ("gold", "none"):
            self.notes.append(f"The time of {parser} is not in the estimate: it parses the corpus once, beforehand.")

    def task(self, data: TaskData, *, offline: bool) -> DataSize:
        """Data of a task, in tokens of the first model."""
        with self.reporter.status("reading data"):
            self.data.append(task_size(data, self.models[0], offline=offline))
        return self.data[-1]

    def training_set(self, training_set: TrainingSetOptions, *, offline: bool) -> tuple[DataSize, DataSize]:
        """What is learned, and what is measured on."""
        training_set = suited_training_set(training_set, self.models[0].model, offline=offline)
        if training_set.data.task in TEXT:
            options = training_set.corpus_options(offline=offline)
            dev = training_set.dev, training_set.dev_target
            return self.training_text(training_set.data.task, training_set.corpus, options, training_set.share, dev)
        return self.training_examples(
            training_set.training_data, training_set.dev_data, training_set.share, offline=offline
        )

    def training_text(
        self, task: str, corpus: str, options: CorpusOptions, share: float, dev: tuple[str | None, str | None]
    ) -> tuple[DataSize, DataSize]:
        """Text to learn, and text to measure on: as named with its translations, or a share held out.

        Raises:
            OptionError: if the model cannot learn the task.
            CorpusError: if there are no translations for it.
        """
        check_text_task(task, self.models[0].name, self.models[0].model)
        named = [(corpus, options)] + ([(dev[0], options.held_out(dev[1]))] if dev[0] is not None else [])
        for (spec, read), option in zip(named, (TARGET_COLUMN, DEV_TARGET), strict=False):
            # What a plan would have to fetch it does not read.
            if task == "translation" and not spec.startswith("hub:"):
                next(sentence_pairs(open_corpus(spec, read), option), None)
        sizes = [self.corpus(spec, read) for spec, read in named]
        return sizes[0].split(share) if len(sizes) < 2 else (sizes[0], sizes[1])

    def training_examples(
        self, learned: TaskData, dev_data: str | None, share: float, *, offline: bool
    ) -> tuple[DataSize, DataSize]:
        """Examples of a task to learn, and to measure on: as named, or a share held out."""
        size = self.task(learned, offline=offline)
        return size.split(share) if dev_data is None else (size, self.task(learned.held_out(dev_data), offline=offline))

    def measure(self, sizes: Iterable[DataSize], each: float = 1.0) -> None:
        """Adds that models are evaluated on data, each part by so many models."""
        for size in sizes:
            self.add(Work(f"measure on {size.name}", tokens=size.tokens, each=each, length=size.length))

    def further_sets(self, sources: Iterable[str], data: TaskData, *, offline: bool) -> list[DataSize]:
        """Held-out data of other tasks with the same classes, as `also-on` names them."""
        return [self.task(data.of_same_classes(text, "--data-args also-on"), offline=offline) for text in sources]

    def add(self, work: Work) -> None:
        """Adds a part of the work, its text length limited by the model's positions and the tokens of a batch."""
        limit = self.models[work.model].model.config.get_text_config()
        longest = int(getattr(limit, "max_position_embeddings", None) or work.length)
        self.work.append(replace(work, length=max(1, min(work.length, longest - 2, work.batch_tokens))))

    def plan(self) -> Plan:
        """The plan, when all work is known."""
        keys = [(w.model, w.length, w.batch_tokens) for w in self.work]
        kinds: dict[tuple[int, int, int], set[Kind]] = {key: set() for key in keys}
        for work, key in zip(self.work, keys, strict=True):
            kinds[key].add(work.kind)
        speeds = {}
        for (place, length, tokens), names in kinds.items():
            planned = self.models[place]
            with self.reporter.status(f"timing {planned.name}"):
                speeds[place, length, tokens] = measure_speed(
                    planned.model, length, tokens, frozenset(names), precision=self.precision, attention=self.attention
                )
        # More programs run than there are cores to run them.
        if self.models and hasattr(os, "getloadavg") and os.getloadavg()[0] > 1.3 * (os.cpu_count() or 1):
            self.notes.append("Other programs are using this machine; everything is faster when it is idle.")
        if self.models:
            self.device = _device(self.models[0].model.device)
        self.speeds = [speeds[key] for key in keys]
        return self


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return f"cpu ({torch.get_num_threads()} threads of {os.cpu_count()} cores)" if device.type == "cpu" else str(device)


def plan_of(request: Any, reporter: Reporter | None = None) -> Plan:
    """What would be done for a request, how large that is, and about how long it takes. Nothing is written.

    The plan of a request stands in `plan.py` beside its options.

    Args:
        request: of any command that runs a model.
        reporter: shows progress.

    Raises:
        InputError: whatever is wrong with models, files and options that can be seen before the work begins.
    """
    for options in vars(request).values():
        if isinstance(options, MaskOptions):
            mask_record(options)
    plans = import_module(f"{type(request).__module__.rpartition('.')[0]}.plan").PLANS
    plan: Plan = plans[type(request)](request, reporter or Reporter())
    return plan


@dataclass(frozen=True)
class TrainingSteps:
    """Updates of a training and the tokens of each, None where the size of the data is not known; and its epochs."""

    steps: float | None
    batch: int
    length: int
    options: LoopOptions
    epochs: float

    @classmethod
    def of(cls, options: LoopOptions, data: DataSize, length: int | None = None) -> TrainingSteps:
        """Returns the updates of a training on data whose texts have `length` tokens, by default those of the data."""
        batch = options.batch_tokens * options.accumulate
        steps: float | None = options.steps
        if steps is None and data.tokens is not None:
            steps = max(1, math.ceil(data.tokens * options.epochs / batch))
        epochs = options.epochs if options.steps is None else options.steps * batch / (data.tokens or math.inf)
        return cls(steps, batch, length or data.length, options, epochs)

    def work(self, text: str, *, each: float = 1.0, times: int = 1) -> Work:
        """Returns the work of all updates of a training that is run `times` times."""
        size = self.options.batch_tokens
        if self.steps is None:
            return Work(f"{text}: updates not known", 0, "backward", None, each, 0.0, size, self.length)
        steps = self.steps * times
        # Batches of an epoch are known when its texts are tokenised; padding makes more of them than these.
        number = f"{steps:,.0f}" if self.options.steps is not None else f"about {steps:,.0f} or more"
        words = f"{text}: {number} updates of up to {self.batch:,} tokens"
        return Work(words, 0, "backward", steps * self.batch, each, steps, size, self.length)


def plan_attention(planner: Planner, attention: str | None) -> None:
    """Plans for a model that `--attention` switches to another normaliser."""
    if attention is not None:
        planner.attention = parse_normalizer(attention)


def plan_evaluations(planner: Planner, every: int, loop: TrainingSteps, held_out: DataSize) -> None:
    """Plans the evaluations on held-out data, every so many updates; 0 for every epoch."""
    times = max(1.0, loop.steps // every if every and loop.steps is not None else math.ceil(loop.epochs))
    text, size = f"evaluate {times:.0f} times", loop.options.batch_tokens
    planner.add(Work(text, tokens=held_out.tokens, each=times, batch_tokens=size, length=loop.length))
