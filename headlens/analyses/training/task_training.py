"""Fine-tuning on a task: what the training loop reads, makes smaller and measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headlens.corpora.sources import held_out_of, is_held_out
from headlens.models.loading import LoadedModel
from headlens.tasks.evaluation import budget_batches, no_examples_error, prepare_all
from headlens.tasks.example_sources import DataSummary, MemoryExamples, SourceCounts, fingerprint, split
from headlens.tasks.reader import Reader
from headlens.tasks.task import PreparedExample, Task, TaskBatch
from headlens.training.batch_sampler import Indices
from headlens.training.loop import Evaluate
from headlens.training.objectives import Inputs, Objective


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
        reader = Reader.of(loaded, task.labels, longest)
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
        before = before or SourceCounts()
        counts.unlabelled, counts.too_short = before.unlabelled, before.too_short
        counts.rows += before.unlabelled + before.too_short
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
