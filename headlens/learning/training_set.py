"""What a model is taught, and on what it is measured afterwards: of a task's examples, or of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.corpora.encoding import SentenceEncoder
from headlens.corpora.sentence import Corpus, Example
from headlens.corpora.sources import held_out_of, is_held_out
from headlens.learning.batch_sampler import BatchSampler, Indices
from headlens.learning.hyperparameters import TrainingOptions
from headlens.learning.loop import Evaluate, Trainer, TrainingCheckpoint, TrainingData, total_updates
from headlens.learning.objectives import Inputs, Objective, moved
from headlens.learning.text_training import DEV_TARGET, objective_of, read_data, sentence_pairs
from headlens.learning.training_options import TextOptions
from headlens.models.loading import LoadedModel, tokenizer_of
from headlens.tasks.evaluation import budget_batches, no_examples_error, prepare_all
from headlens.tasks.example_sources import (
    DataSummary,
    MemoryExamples,
    SourceCounts,
    TaskSource,
    fingerprint,
    gather,
    split,
)
from headlens.tasks.examples import TextExample
from headlens.tasks.language_modeling import CausalLM
from headlens.tasks.masked import MaskedLM
from headlens.tasks.reader import Reader
from headlens.tasks.task import PreparedExample, Task, TaskBatch
from headlens.tasks.translation import Translation


@dataclass(frozen=True)
class TaskForward:
    """The forward pass of a task: a training objective, the task's own loss summed over the units of a batch.

    Args:
        task: the task.
        reader: how the model reads.
        device: where it is.
        arguments: of its forward pass, besides the batch.
    """

    task: Task
    reader: Reader
    device: torch.device
    arguments: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, task: Task, loaded: LoadedModel, longest: int | None = None) -> TaskForward:
        """Builds the forward pass of a task for a loaded model.

        Args:
            task: the task.
            loaded: the model, with its head.
            longest: a limit of tokens below the model's own.
        """
        reader = Reader.of(loaded, task.labels, longest, task.outputs)
        return cls(task, reader, loaded.device, task.arguments(loaded.model))

    def batch(self, prepared: Sequence[PreparedExample]) -> TaskBatch:
        """Collates prepared examples into a batch of tensors on the model's device."""
        return self.task.collate(prepared, self.reader, self.device)

    def forward(self, network: nn.Module, batch: TaskBatch) -> tuple[Any, Tensor]:
        """Returns the outputs for a batch with labels, and the sum of the loss over the units of the batch."""
        outputs = network(**batch.with_labels, **self.arguments)
        return outputs, self.task.loss(outputs, batch) * self.task.units(batch)

    def units(self, inputs: Inputs) -> int:
        """What the task's loss is a mean of."""
        return self.task.units(inputs["batch"])

    def loss(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """Computes the task's loss of a network on a batch, summed over the units of the batch: a scalar."""
        return self.forward(model, inputs["batch"])[1]


@dataclass(frozen=True)
class TaskRows:
    """Examples of a task for the training loop, whose inputs hold nothing but a batch of the task.

    Args:
        task_forward: makes batches of the task.
        prepared: the examples as the model reads them.
        summary: what became of the source.
        examples: all of the source, read or not.
    """

    task_forward: TaskForward
    prepared: Sequence[PreparedExample]
    summary: DataSummary
    examples: MemoryExamples

    @classmethod
    def of(cls, task_forward: TaskForward, source: MemoryExamples, before: SourceCounts | None = None) -> TaskRows:
        """Examples as a model reads them.

        Args:
            task_forward: the forward pass of the task.
            source: labelled examples.
            before: what was left out when they were gathered.

        Raises:
            CorpusError: if the model can read none of them.
        """
        counts = SourceCounts()
        if not (prepared := list(prepare_all(task_forward.task, source, task_forward.reader, counts))):
            raise no_examples_error(source, task_forward.reader, counts)
        counts.take_over(before or SourceCounts())
        summary = DataSummary.of(source.name, counts, fingerprint(source.examples))
        return cls(task_forward, prepared, summary, source)

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of every example, with padding between its rows."""
        return [len(p.rows) * p.length for p in self.prepared]

    @property
    def chance_loss(self) -> float:
        """The lowest mean loss with the same answer for all examples; NaN if that is not known."""
        return self.task_forward.task.chance_loss(self.prepared)

    def batch(self, indices: Indices, epoch: int) -> dict[str, Any]:
        """A batch of the task; the same in every epoch."""
        del epoch
        return {"batch": self.task_forward.batch([self.prepared[i] for i in indices])}


def hold_out(source: MemoryExamples, share: float) -> tuple[MemoryExamples, MemoryExamples | None]:
    """What is trained on and what is held out: nothing of fewer than 1 / share examples."""
    numbers = range(len(source.examples))
    if not held_out_of(share, len(numbers)):
        return source, None
    parts = ([i for i in numbers if is_held_out(i + 1, share) == held] for held in (False, True))
    remaining, held_out = split(source, parts)
    return remaining, held_out


def task_evaluation(rows: TaskRows, batch_tokens: int) -> Evaluate:
    """The mean loss and the task's own metrics."""
    task_forward, batches = rows.task_forward, list(budget_batches(rows.prepared, batch_tokens))

    @torch.no_grad()
    def evaluate(network: nn.Module) -> dict[str, float]:
        records, loss, units = [], 0.0, 0
        for prepared in batches:
            batch = task_forward.batch(prepared)
            outputs, summed = task_forward.forward(network, batch)
            loss += float(summed)
            units += task_forward.task.units(batch)
            records.append(task_forward.task.read(outputs, batch))
        return {"loss": loss / units, **task_forward.task.values(np.concatenate(records))}

    return evaluate


def freeze_unused(network: nn.Module, objective: Objective, inputs: Inputs) -> None:
    """Leave parameters as they are that a loss does not depend on, such as a pooler under mean-pooled embeddings.

    Processes that train together wait for the gradients of all parameters that are trained.
    """
    if trained := [p for p in network.parameters() if p.requires_grad]:
        gradients = torch.autograd.grad(objective.loss(network, inputs), trained, allow_unused=True)
        for parameter, gradient in zip(trained, gradients, strict=True):
            parameter.requires_grad_(gradient is not None)


@dataclass(frozen=True)
class TrainingCallbacks:
    """Callbacks of a training.

    Args:
        checkpoint: where its state is kept; None keeps nothing.
        progress: called with the number of updates done.
        processes: how many train together.
    """

    checkpoint: TrainingCheckpoint | None = None
    progress: Callable[[int], None] = lambda _: None
    processes: int = 1

    def updates(self, data: TrainingData, training: TrainingOptions) -> int:
        """Returns the number of updates that a training on this data will take, see `total_updates`."""
        return total_updates(training, BatchSampler.of_training(data.lengths, training, 0, self.processes))


@dataclass(frozen=True)
class TrainingSet:
    """Examples to learn from and others to be measured on, as one model reads them.

        task, source = headlens.open_task("sst2", "train.tsv")
        lesson = headlens.TrainingSet.of_task(loaded, task, source)

    Args:
        task: determines which part of the model runs, and which metrics are measured.
        data: the training data.
        objective: the loss that is minimised.
        held: the held-out data; None evaluates nothing.
        facts: what became of the data, for run.json.
        further: other tasks with the same classes, and the examples on which the model is measured as well.
    """

    task: Task
    data: TrainingData
    objective: Objective
    held: MemoryExamples | None
    facts: dict[str, Any]
    further: tuple[tuple[Task, MemoryExamples], ...] = ()

    @classmethod
    def of_task(
        cls,
        loaded: LoadedModel,
        task: Task,
        source: TaskSource,
        held: TaskSource | float | None = 0.5,
        longest: int | None = None,
        counts: SourceCounts | None = None,
    ) -> TrainingSet:
        """Builds a training set from labelled examples.

        Args:
            loaded: the model, with the head that the task needs.
            task: the task.
            source: what is learned.
            held: what is measured on, or the share of the source that is kept for that; None measures nothing.
            longest: a limit of tokens below the model's own; longer examples are left out.
            counts: what was left out of the source when it was gathered before.

        Raises:
            CorpusError: broken data, or nothing that the model can read.
            OptionError: if the task has no loss that can be trained.
        """
        counts = counts or SourceCounts()
        given = gather(source, counts)
        if isinstance(held, float):
            given, held_out = hold_out(given, held)
        else:
            held_out = None if held is None else gather(held)
        task_forward = TaskForward.of(task, loaded, longest)
        rows = TaskRows.of(task_forward, given, counts)
        return cls(task, rows, task_forward, held_out, {"data": asdict(rows.summary)})

    @classmethod
    def of_text(
        cls, loaded: LoadedModel, corpus: Corpus, held: Corpus | None, options: TextOptions, seed: int = 0
    ) -> TrainingSet:
        """Builds a training set from text: masked tokens, or translations.

        Args:
            loaded: the model, with a head for that.
            corpus: what is learned.
            held: what is measured on; None measures nothing. Texts that are longer than the longest, but not
                translations, are cut into windows between words.
            options: task, masking, longest texts.
            seed: of the masks.

        Raises:
            CorpusError: if nothing of a corpus can be used.
            OptionError: as in `Task.notes`.
        """
        data = read_data(loaded, corpus, options, seed)
        two_sided = options.task == "translation"
        one_sided = CausalLM() if options.task == "causal-lm" else MaskedLM()
        task: Task = Translation(tokenizer=options.bleu_tokenizer) if two_sided else one_sided
        task.notes(Reader.of(loaded))  # what cannot be measured is refused before anything is learned
        examples = None
        if held is not None:
            examples = given_pairs(held) if two_sided else given_texts(held, loaded, options.longest)
        return cls(task, data, objective_of(options), examples, {"corpus": corpus.name, "examples": len(data.lengths)})

    @property
    def measured_on(self) -> list[tuple[Task, MemoryExamples]]:
        """Tasks and the examples on which the model is measured, its own task first."""
        return [*([] if self.held is None else [(self.task, self.held)]), *self.further]

    def prepared(self) -> Iterator[PreparedExample]:
        """The examples that are learned, then those that are measured on, as the model reads them; none of text."""
        if isinstance(self.data, TaskRows):
            yield from self.data.prepared
            for task, held in self.measured_on:
                yield from prepare_all(task, held, self.data.task_forward.reader, SourceCounts())

    @property
    def longest(self) -> int:
        """Tokens of the longest text that is learned."""
        return max(self.learned_lengths)

    @property
    def learned_lengths(self) -> Counter[int]:
        """How many texts that are learned have how many tokens; an example may be several, each read by itself."""
        if not isinstance(self.data, TaskRows):
            return Counter(self.data.lengths)
        return Counter(row.length for example in self.data.prepared for row in example.rows)

    def text_lengths(self) -> Counter[int]:
        """How many different texts of these examples have how many tokens; of text, how many of what is learned."""
        texts = {row.ids for example in self.prepared() for row in example.rows}
        return Counter(map(len, texts)) or Counter(self.data.lengths)

    def teach(
        self, model: PreTrainedModel, training: TrainingOptions, callbacks: TrainingCallbacks | None = None
    ) -> None:
        """Train a model in place: the parameters that are not frozen and that the loss depends on.

        Args:
            model: with the head that the task needs.
            training: length, step size, rhythm.
            callbacks: progress, and what is kept for going on after an interruption.
        """
        callbacks, before = callbacks or TrainingCallbacks(), [p.requires_grad for p in model.parameters()]
        network = self.task.network(model)
        self.freeze_unused(model)
        Trainer(training, self.objective, checkpoint=callbacks.checkpoint, progress=callbacks.progress).fit(
            network, self.data
        )
        for parameter, trained in zip(model.parameters(), before, strict=True):
            parameter.requires_grad_(trained)
        model.eval()

    def freeze_unused(self, model: PreTrainedModel) -> None:
        """Freeze what the loss does not depend on, see `freeze_unused`."""
        freeze_unused(self.task.network(model).eval(), self.objective, moved(self.data.batch((0,), 0), model.device))


def given_pairs(corpus: Corpus) -> MemoryExamples:
    """The sentences of a corpus with their translations as examples, numbered from 1.

    Raises:
        CorpusError: if there are no translations.
    """
    return _numbered(corpus, sentence_pairs(corpus, DEV_TARGET))


def given_texts(corpus: Corpus, loaded: LoadedModel, longest: int | None = None) -> MemoryExamples:
    """The sentences of a corpus as examples, numbered from 1; those that are too long in windows, cut between words.

    Args:
        corpus: sentences.
        loaded: the model that is to read them.
        longest: a limit of tokens below the model's own.
    """
    encoder = SentenceEncoder(tokenizer_of(loaded), Reader.of(loaded, (), longest).limit, long_sentences="window")
    return _numbered(corpus, ((text,) for example in corpus for text in _windows(example, encoder)))


def _windows(example: Example, encoder: SentenceEncoder) -> list[str]:
    if encoder.encode(example) is not None:
        return [example.source.text]
    return [window.source.sentence.text for window in encoder.windows(example)[0]]


def _numbered(corpus: Corpus, texts: Iterable[tuple[str, ...]]) -> MemoryExamples:
    return MemoryExamples(tuple(TextExample(str(n), text) for n, text in enumerate(texts, 1)), corpus.name)
