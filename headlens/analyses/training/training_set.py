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

from headlens.analyses.training.options import TextOptions
from headlens.analyses.training.text_training import objective_of, read_data
from headlens.corpora.encoding import SentenceEncoder
from headlens.corpora.sentence import Corpus, Example
from headlens.corpora.sources import held_out_of, is_held_out
from headlens.errors import CorpusError
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
from headlens.tasks.masked import MaskedLM
from headlens.tasks.reader import Reader
from headlens.tasks.task import PreparedExample, Task, TaskBatch
from headlens.tasks.translation import Translation
from headlens.training.batch_sampler import BatchSampler, Indices
from headlens.training.hyperparameters import TrainingOptions
from headlens.training.loop import Evaluate, Trainer, TrainingCheckpoint, TrainingData, total_updates
from headlens.training.objectives import Inputs, Objective, moved


@dataclass(frozen=True)
class TaskForward:
    """How a model is asked a task.

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
        """How a loaded model is asked.

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

    def loss(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """The sum of the loss over the units of a batch."""
        return self.task.loss(outputs, batch) * self.task.units(batch)

    def outputs(self, network: nn.Module, batch: TaskBatch) -> Any:
        """What a network says to a batch with labels."""
        return network(**batch.with_labels, **self.arguments)


@dataclass(frozen=True)
class TaskRows:
    """Examples of a task for the training loop, whose inputs hold nothing but a batch of the task.

    Args:
        asker: makes batches.
        prepared: the examples as the model reads them.
        summary: what became of the source.
        examples: all of the source, read or not.
    """

    asker: TaskForward
    prepared: Sequence[PreparedExample]
    summary: DataSummary
    examples: MemoryExamples

    @classmethod
    def of(cls, asker: TaskForward, source: MemoryExamples, before: SourceCounts | None = None) -> TaskRows:
        """Examples as a model reads them.

        Args:
            asker: how it is asked.
            source: labelled examples.
            before: what was left out when they were gathered.

        Raises:
            CorpusError: if the model can read none of them.
        """
        counts = SourceCounts()
        prepared = list(prepare_all(asker.task, source, asker.reader, counts))
        if not prepared:
            raise no_examples_error(source, asker.reader, counts)
        counts.take_over(before or SourceCounts())
        return cls(asker, prepared, DataSummary.of(source.name, counts, fingerprint(source.examples)), source)

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of every example, with padding between its rows."""
        return [len(p.rows) * p.length for p in self.prepared]

    def batch(self, indices: Indices, epoch: int) -> dict[str, Any]:
        """A batch of the task; the same in every epoch."""
        del epoch
        return {"batch": self.asker.batch([self.prepared[i] for i in indices])}


@dataclass(frozen=True)
class TaskLoss:
    """Training objective that computes a task's own loss, summed over the units of a batch."""

    asker: TaskForward

    def units(self, inputs: Inputs) -> int:
        """What the task's loss is a mean of."""
        return self.asker.task.units(inputs["batch"])

    def loss(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """Computes the task's loss of a network on a batch, summed over the units of the batch: a scalar."""
        return self.asker.loss(self.asker.outputs(model, inputs["batch"]), inputs["batch"])


def hold_out(source: MemoryExamples, share: float) -> tuple[MemoryExamples, MemoryExamples | None]:
    """What is trained on and what is held out: nothing of fewer than 1 / share examples."""
    count = len(source.examples)
    if not held_out_of(share, count):
        return source, None
    parts: list[list[int]] = [[], []]
    for index in range(count):
        parts[is_held_out(index + 1, share)].append(index)
    kept, held_out = split(source, parts)
    return kept, held_out


def task_evaluation(rows: TaskRows, batch_tokens: int) -> Evaluate:
    """The mean loss and the task's own metrics."""
    asker = rows.asker
    batches = list(budget_batches(rows.prepared, batch_tokens))

    @torch.no_grad()
    def evaluate(network: nn.Module) -> dict[str, float]:
        records, loss, units = [], 0.0, 0
        for prepared in batches:
            batch = asker.batch(prepared)
            outputs = asker.outputs(network, batch)
            loss += float(asker.loss(outputs, batch))
            units += asker.task.units(batch)
            records.append(asker.task.read(outputs, batch))
        return {"loss": loss / units, **asker.task.values(np.concatenate(records))}

    return evaluate


def freeze_unused(network: nn.Module, objective: Objective, inputs: Inputs) -> None:
    """Leave parameters as they are that a loss does not depend on, such as a pooler under mean-pooled embeddings.

    Processes that train together wait for the gradients of all parameters that are trained.
    """
    trained = [p for p in network.parameters() if p.requires_grad]
    if not trained:
        return
    gradients = torch.autograd.grad(objective.loss(network, inputs), trained, allow_unused=True)
    for parameter, gradient in zip(trained, gradients, strict=True):
        parameter.requires_grad_(gradient is not None)


@dataclass(frozen=True)
class TrainingCallbacks:
    """How a training is followed.

    Args:
        keeper: where its state is kept; None keeps nothing.
        progress: called with the number of updates done.
        processes: how many train together.
    """

    keeper: TrainingCheckpoint | None = None
    progress: Callable[[int], None] = lambda _: None
    processes: int = 1

    def updates(self, data: TrainingData, training: TrainingOptions) -> int:
        """Returns the number of updates that a training on this data will take, see `total_updates`."""
        order = BatchSampler.of_training(data.lengths, training, 0, self.processes)
        return total_updates(training, order)


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
    """

    task: Task
    data: TrainingData
    objective: Objective
    held: MemoryExamples | None
    facts: dict[str, Any]

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
            given, kept = hold_out(given, held)
        else:
            kept = None if held is None else gather(held)
        asker = TaskForward.of(task, loaded, longest)
        rows = TaskRows.of(asker, given, counts)
        return cls(task, rows, TaskLoss(asker), kept, {"data": asdict(rows.summary)})

    @classmethod
    def of_text(
        cls, loaded: LoadedModel, corpus: Corpus, held: Corpus | None, options: TextOptions, seed: int = 0
    ) -> TrainingSet:
        """Builds a training set from text: masked tokens, or translations.

        Args:
            loaded: the model, with a head for that.
            corpus: what is learned.
            held: what is measured on; None measures nothing. Of `mlm` texts that are longer than the longest are cut
                into windows between words.
            options: task, masking, longest texts.
            seed: of the masks.

        Raises:
            CorpusError: if nothing of a corpus can be used.
            OptionError: as in `Task.notes`.
        """
        data = read_data(loaded, corpus, options, seed)
        two_sided = options.task == "translation"
        task: Task = Translation(tokenizer=options.bleu_tokenizer) if two_sided else MaskedLM()
        task.notes(Reader.of(loaded))  # what cannot be measured is refused before anything is learned
        if held is None:
            examples = None
        else:
            examples = given_pairs(held) if two_sided else given_texts(held, loaded, options.longest)
        return cls(task, data, objective_of(options), examples, {"corpus": corpus.name, "examples": len(data.lengths)})

    def prepared(self) -> Iterator[PreparedExample]:
        """The examples that are learned, then those that are measured on, as the model reads them; none of text."""
        if isinstance(self.data, TaskRows):
            yield from self.data.prepared
            if self.held is not None:
                yield from prepare_all(self.task, self.held, self.data.asker.reader, SourceCounts())

    @property
    def longest(self) -> int:
        """Tokens of the longest text that is learned."""
        return max((p.length for p in self.data.prepared) if isinstance(self.data, TaskRows) else self.data.lengths)

    def text_lengths(self) -> Counter[int]:
        """How many different texts of these examples have how many tokens; of text, how many of what is learned."""
        texts = {row.ids for example in self.prepared() for row in example.rows}
        return Counter(map(len, texts)) or Counter(self.data.lengths)

    def teach(
        self, model: PreTrainedModel, training: TrainingOptions, callbacks: TrainingCallbacks | None = None
    ) -> None:
        """Train a model itself, what of it is not frozen and the loss depends on; its last state counts.

        Args:
            model: with the head that the task needs.
            training: length, step size, rhythm.
            callbacks: progress, and what is kept for going on after an interruption.
        """
        callbacks, before = callbacks or TrainingCallbacks(), [p.requires_grad for p in model.parameters()]
        network = self.task.network(model)
        self.freeze_unused(model)
        Trainer(training, self.objective, keeper=callbacks.keeper, progress=callbacks.progress).fit(network, self.data)
        for parameter, trained in zip(model.parameters(), before, strict=True):
            parameter.requires_grad_(trained)
        model.eval()

    def freeze_unused(self, model: PreTrainedModel) -> None:
        """Leave what the loss does not depend on as it is, see `freeze_unused` of `task_training`."""
        inputs = moved(self.data.batch((0,), 0), model.device)
        freeze_unused(self.task.network(model).eval(), self.objective, inputs)


def given_pairs(corpus: Corpus) -> MemoryExamples:
    """The sentences of a corpus with their translations as examples, numbered from 1.

    Raises:
        CorpusError: if there are no translations.
    """
    return MemoryExamples(tuple(_numbered(_pair(example, corpus.name) for example in corpus)), corpus.name)


def given_texts(corpus: Corpus, loaded: LoadedModel, longest: int | None = None) -> MemoryExamples:
    """The sentences of a corpus as examples, numbered from 1; those that are too long in windows, cut between words.

    Args:
        corpus: sentences.
        loaded: the model that is to read them.
        longest: a limit of tokens below the model's own.
    """
    limit = Reader.of(loaded, (), longest).limit
    encoder = SentenceEncoder(tokenizer_of(loaded), limit, long_sentences="window")
    return MemoryExamples(tuple(_numbered(_windows(corpus, encoder))), corpus.name)


def _windows(corpus: Corpus, encoder: SentenceEncoder) -> Iterator[tuple[str]]:
    for example in corpus:
        if encoder.encode(example) is not None:
            yield (example.source.text,)
        else:
            for window in encoder.windows(example)[0]:
                yield (window.source.sentence.text,)


def _numbered(texts: Iterable[tuple[str, ...]]) -> Iterator[TextExample]:
    return (TextExample(str(number), text) for number, text in enumerate(texts, 1))


def _pair(example: Example, name: str) -> tuple[str, ...]:
    if example.target is None:
        raise CorpusError("there are no translations.", "Name them with --target or --dev-target.", path=name)
    return example.source.text, example.target.text
