"""What a task is: examples become rows of a model's input, outputs become one record per example, records a metric."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.corpora.direction import LOWER_IS_BETTER
from headlens.errors import OptionError
from headlens.tasks.examples import TaskExample
from headlens.tasks.reader import Reader, TokenRow, inputs_of

Floats = npt.NDArray[np.float64]
# What a model needs on top: which of transformers' automatic classes makes one for the task.
HeadKind = Literal[
    "sequence-classification", "multiple-choice", "question-answering", "masked-lm", "seq2seq-lm", "embedding"
]


@dataclass(frozen=True, slots=True)
class PreparedExample:
    """An example as a model reads it.

    Args:
        index: its place in the source, from 0; examples that cannot be read have none.
        example: itself.
        rows: rows of input, at least one.
    """

    index: int
    example: TaskExample
    rows: tuple[TokenRow, ...]

    @property
    def length(self) -> int:
        """Tokens of the longest row, of what a decoder writes, too."""
        return max(max(len(row.ids), len(row.labels)) for row in self.rows)


@dataclass(frozen=True, slots=True)
class TaskBatch:
    """Examples that go through a model together.

    Args:
        inputs: arguments of the model, padded on the right; (rows, length) each, of multiple choice (n, choices,
            length).
        labels: further arguments with which the model computes a loss; empty where the task computes it.
        prepared: the examples in order; each has as many rows as it says.
        reader: whose inputs these are.
    """

    inputs: dict[str, Tensor]
    labels: dict[str, Tensor]
    prepared: Sequence[PreparedExample]
    reader: Reader

    def __len__(self) -> int:
        return len(self.prepared)

    @property
    def with_labels(self) -> dict[str, Tensor]:
        """Arguments of the model's forward pass in training: the padded inputs and the labels."""
        return {**self.inputs, **self.labels}

    @property
    def examples(self) -> list[TaskExample]:
        """Task examples of the batch, in the order of `prepared`."""
        return [p.example for p in self.prepared]

    @property
    def indices(self) -> npt.NDArray[np.int64]:
        """Index in the source of every example of the batch, from 0: int64, (n,)."""
        return np.array([p.index for p in self.prepared], dtype=np.int64)


class Task(ABC):
    """Base of all tasks; subclasses are frozen dataclasses of parameters.

    An evaluation is `batch = task.collate(...)`, `outputs = task.run(model, batch)`, `records = task.read(outputs,
    batch)` for every batch, and `task.value(records)`. Whoever runs the model otherwise calls `network` and `read`.
    """

    name: str
    head: ClassVar[HeadKind]
    # Whether `run` writes token by token, so that one forward pass cannot take its place.
    generates: ClassVar[bool] = False

    @property
    @abstractmethod
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics, the main one first."""

    @property
    def reported(self) -> tuple[str, ...]:
        """Those of the metrics that a study of many models tells of each."""
        return self.metrics[:1]

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Names of the k columns of the records, which are (n, k)."""

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher value of the main metric, the first of `metrics`, is better."""
        return self.metrics[0] not in LOWER_IS_BETTER

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes; empty for tasks without."""
        return ()

    @abstractmethod
    def prepare(self, example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
        """The rows of an example; none if it is longer than the model reads, or nothing can be asked about it."""

    @abstractmethod
    def read(self, outputs: Any, batch: TaskBatch) -> Floats:
        """Records (n, k) from what `run` gave, or from what a model like it gave otherwise.

        Raises:
            OptionError: if the outputs are not of a model for this task.
        """

    @abstractmethod
    def statistic(self, metric: str, records: Floats, weights: Floats) -> Floats:
        """A metric of records (n, k) under every weighting (replicates, n): (replicates,)."""

    def right(self, records: Floats, metric: str) -> Floats | None:
        """For metrics that are the share of examples that are right: 1 for those and 0 for others, (n,); else None."""
        del records, metric
        return None

    def chance(self, records: Floats) -> float | None:
        """The main metric of who guesses without reading; None where nobody can."""
        del records
        return None

    def finer(self, records: Floats) -> float:
        """Tells models apart whose metric on some examples is the same: the larger, the better; 0 if nothing does."""
        del records
        return 0.0

    def collate(self, prepared: Sequence[PreparedExample], reader: Reader, device: torch.device | str) -> TaskBatch:
        """Pads the rows of prepared examples to one length and gathers them as a batch on a device.

        Args:
            prepared: the examples of the batch.
            reader: tokenizer and limits of the model, with which the examples were prepared.
            device: where the tensors of the batch are put.
        """
        place = torch.device(device)
        inputs = inputs_of([row for p in prepared for row in p.rows], reader, place)
        return TaskBatch(inputs, self.targets(prepared, reader, place), prepared, reader)

    def targets(self, prepared: Sequence[PreparedExample], reader: Reader, device: torch.device) -> dict[str, Tensor]:
        """The arguments with which a model computes its loss."""
        del prepared, reader, device
        return {}

    def network(self, model: PreTrainedModel) -> PreTrainedModel:
        """The part of a model that the task runs."""
        return model

    def run(self, model: PreTrainedModel, batch: TaskBatch) -> Any:
        """Outputs for a batch, without gradients."""
        with torch.inference_mode():
            return self.network(model)(**batch.inputs, **self.arguments(model))

    def arguments(self, model: PreTrainedModel) -> dict[str, Any]:
        """Further arguments of the forward pass."""
        # A cache would only cost memory: every example is read once.
        return {"use_cache": False} if getattr(self.network(model).config, "is_decoder", False) else {}

    def units(self, batch: TaskBatch) -> int:
        """Of how many things `loss` is the mean: examples, rows or tokens."""
        return len(batch)

    def loss(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """What training makes small: a scalar, from the outputs for `batch.with_labels`.

        Raises:
            OptionError: if the model computed none.
        """
        del batch
        found = getattr(outputs, "loss", None)
        if not isinstance(found, Tensor):
            raise OptionError(f"The model computed no loss for the task {self.name}.", f"It needs a {self.head} head.")
        return found

    @property
    def differentiable(self) -> Task:
        """The task whose outputs have `losses`: this one, unless it writes token by token."""
        return self

    def losses(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """The loss of every example, from the outputs for `batch.inputs`: (n,), through which gradients flow.

        Raises:
            OptionError: if the task has none, or the outputs are not of a model for this task.
        """
        del outputs, batch
        raise OptionError(f"The task {self.name} has no loss for each example.", "Choose another task.")

    def value(self, records: Floats, weights: Floats | None = None, metric: str | None = None) -> float:
        """A metric of records.

        Args:
            records: (n, k); any examples in any order.
            weights: how often each counts, (n,); None counts each once.
            metric: its name; None is the main one.
        """
        counts = np.ones(len(records)) if weights is None else np.asarray(weights, dtype=np.float64)
        return float(self.replicates(records, counts[None], metric)[0])

    def replicates(self, records: Floats, weights: Floats, metric: str | None = None) -> Floats:
        """The same for many weightings (replicates, n) at once: (replicates,)."""
        name = metric or self.metrics[0]
        if name not in self.metrics:
            raise OptionError(f"The task {self.name} has no metric {name!r}.", f"It has {', '.join(self.metrics)}.")
        return self.statistic(name, records, weights)

    def values(self, records: Floats, weights: Floats | None = None) -> Mapping[str, float]:
        """Computes all metrics of records.

        Args:
            records: (n, k).
            weights: how often each record counts, (n,); None counts each once.

        Returns:
            The value of every metric by its name.
        """
        return {name: self.value(records, weights, name) for name in self.metrics}
