"""The base of tasks: examples become rows of input, outputs become one record per example, records a metric."""

from __future__ import annotations

import inspect
import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.corpora.batches import padded_inputs
from headlens.errors import OptionError
from headlens.tables.same_answers import NEARLY_ALL
from headlens.tasks.examples import LabelCounts, TaskExample
from headlens.tasks.reader import Reader, TokenRow
from headlens.tasks.task_options import LOWER_IS_BETTER

Floats = npt.NDArray[np.float64]
# What a model needs on top: which of transformers' automatic classes makes one for the task.
HeadKind = Literal[
    "sequence-classification",
    "multiple-choice",
    "question-answering",
    "masked-lm",
    "causal-lm",
    "language-model",  # causal-lm of decoders, masked-lm of encoders
    "seq2seq-lm",
    "embedding",
]
NO_TRAITS: Mapping[Any, int] = MappingProxyType({})
# Columns of records that change with every change of a model, while answers stay.
_READ_BY_LOSSES = frozenset({"nll", "margin"})
# Columns that say something of an example or an answer and count in no metric.
_BESIDE = frozenset({"written", "longer"})


@dataclass(frozen=True, slots=True)
class PreparedExample:
    """An example as a model reads it.

    Args:
        index: place of the example in its source, from 0; examples that cannot be read have none.
        example: the example itself.
        rows: rows of input, at least one.
    """

    index: int
    example: TaskExample
    rows: tuple[TokenRow, ...]

    @property
    def length(self) -> int:
        """Number of tokens of the longest row; what a decoder writes counts, too."""
        return max(row.length for row in self.rows)


@dataclass(frozen=True, slots=True)
class TaskBatch:
    """Examples that go through a model together.

    Args:
        inputs: arguments of the model, padded on the right; (rows, length) each, of multiple choice (n, choices,
            length).
        labels: further arguments with which the model computes a loss; empty where the task computes it.
        prepared: the examples in order, each with one row of input or more.
        reader: tokenizer and limits of the model that the inputs are for.
    """

    inputs: dict[str, Tensor]
    labels: dict[str, Tensor]
    prepared: Sequence[PreparedExample]
    reader: Reader

    def __len__(self) -> int:
        return len(self.prepared)

    @property
    def example_of_row(self) -> Tensor:
        """Which of the examples every row of input is of, (rows,), on the CPU."""
        return torch.repeat_interleave(torch.tensor([len(p.rows) for p in self.prepared]))

    @property
    def with_labels(self) -> dict[str, Tensor]:
        """Arguments of the model's forward pass in training: the padded inputs and the labels."""
        return {**self.inputs, **self.labels}

    @property
    def examples(self) -> list[TaskExample]:
        """Task examples of the batch, in the order of `prepared`."""
        return [p.example for p in self.prepared]


class Task(ABC):
    """Base of all tasks; subclasses are frozen dataclasses of parameters.

    An evaluation is `batch = task.collate(...)`, `outputs = task.run(model, batch)`, `records = task.read(outputs,
    batch)` for every batch, and `task.value(records)`. Code that runs the model itself calls `network` and `read`.
    """

    name: str
    head: ClassVar[HeadKind]
    # What the loss of training is of each example, where it is no cross-entropy.
    loss_name: ClassVar[str] = ""
    # Whether `run` generates token by token, so that one forward pass cannot take its place.
    generates: ClassVar[bool] = False

    @property
    @abstractmethod
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics, the main one first."""

    @property
    def reported(self) -> tuple[str, ...]:
        """Names of the metrics that a study of many models reports of each model."""
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

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the classes in the order of the model's outputs, where a user says so; else empty."""
        return ()

    def notes(self, reader: Reader, traits: Mapping[Any, int] = NO_TRAITS) -> list[str]:
        """Returns what to know about how a model with that reader is measured; nothing by default.

        Args:
            reader: tokenizer and limits of the model.
            traits: how many examples have which `trait`, as soon as they are known.

        Raises:
            OptionError: if it cannot be measured on this machine.
        """
        del reader, traits
        return []

    def trait(self, prepared: PreparedExample) -> Any:
        """Returns what `notes` counts of an example, hashable; None by default."""
        del prepared

    @abstractmethod
    def prepare(self, example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
        """Tokenises an example to rows; none if it is longer than the model reads, or has nothing to predict."""

    @abstractmethod
    def read(self, outputs: Any, batch: TaskBatch) -> Floats:
        """Computes the records, (n, k), from the outputs of `run` or of another forward pass over the batch.

        Raises:
            OptionError: if the outputs are not of a model for this task.
        """

    @abstractmethod
    def statistic(self, metric: str, records: Floats, weights: Floats) -> Floats:
        """Computes a metric of records, (n, k), under every weighting, (replicates, n): (replicates,)."""

    def right(self, records: Floats, metric: str) -> Floats | None:
        """Returns 1 for right examples and 0 for others, (n,), where the metric is their share; else None."""

    def changed(self, records: Floats, baseline: Floats, metric: str) -> npt.NDArray[np.bool_]:
        """Returns which examples count differently in a metric by two sets of records, (n, k) each: (n,).

        By default those of which any column differs, without columns that only losses and thresholds read unless the
        metric is a loss.
        """
        if (right := self.right(records, metric)) is not None:
            return np.asarray(right != self.right(baseline, metric))
        left_out = _BESIDE if metric in LOWER_IS_BETTER else _BESIDE | _READ_BY_LOSSES
        columns = [name not in left_out for name in self.columns]
        return np.asarray((records[:, columns] != baseline[:, columns]).any(axis=1))

    def answer_share(self, records: Floats, metric: str | None = None) -> float:
        """Returns the share of the examples that get the most frequent answer of a model.

        NaN for a single example, for losses, which change with every change of a model, and where records, (n, k), do
        not hold the answers, as `predicted`, or as a number for every text that is `written`.
        """
        answers = next((name for name in ("predicted", "written") if name in self.columns), None)
        if answers is None or metric in LOWER_IS_BETTER or len(records) < 2:
            return math.nan
        _, counts = np.unique(records[:, self.columns.index(answers)], return_counts=True, equal_nan=False)
        return float(counts.max() / len(records))

    def constant(self, records: Floats, metric: str | None = None) -> bool:
        """Returns whether a model gives every example the same answer, so that a metric of answers shows nothing of it.

        Texts that a model writes share words by chance, whatever they say: nearly all of them being the same is enough.
        False where `answer_share` is not known.
        """
        return self.answer_share(records, metric) >= (NEARLY_ALL if "written" in self.columns else 1)

    def chance(self, records: Floats, metric: str | None = None, labels: LabelCounts | None = None) -> float | None:
        """Returns a metric of the best guesses made without reading an example; None where that is not known.

        Args:
            records: of the examples, (n, k).
            metric: its name; None for the main one.
            labels: how often each token was to be predicted, of tasks that predict tokens.
        """

    def chance_loss(self, prepared: Sequence[PreparedExample]) -> float:
        """Returns the lowest mean loss of training with the same answer for all of these examples; NaN if not known."""
        del prepared
        return math.nan

    def finer(self, records: Floats) -> float:
        """Returns a score, higher for better, that ranks models whose main metric is equal; 0 if there is none."""
        del records
        return 0.0

    def collate(self, prepared: Sequence[PreparedExample], reader: Reader, device: torch.device | str) -> TaskBatch:
        """Pads the rows of prepared examples to one length and gathers them as a batch on a device.

        Args:
            prepared: the examples of the batch.
            reader: tokenizer and limits of the model, with which the examples were prepared.
            device: where the tensors of the batch are put.
        """
        rows = [row for p in prepared for row in p.rows]
        inputs = padded_inputs([row.ids for row in rows], [row.segments for row in rows], reader.pad_id)
        inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
        return TaskBatch(inputs, self.targets(prepared, reader, torch.device(device)), prepared, reader)

    def targets(self, prepared: Sequence[PreparedExample], reader: Reader, device: torch.device) -> dict[str, Tensor]:
        """Returns the arguments with which a model computes its loss, such as `labels`; none by default."""
        del prepared, reader, device
        return {}

    def network(self, model: PreTrainedModel) -> PreTrainedModel:
        """Returns the part of a model that the task runs: the whole model by default."""
        return model

    def run(self, model: PreTrainedModel, batch: TaskBatch) -> Any:
        """Runs the model on a batch without gradients and returns its outputs."""
        with torch.inference_mode():
            return self.network(model)(**self.inputs(model, batch))

    def inputs(self, model: PreTrainedModel, batch: TaskBatch) -> dict[str, Any]:
        """Returns what the forward pass over a batch is given, without labels.

        Decoders that can compute the logits of the last positions alone are asked for those that are read: the product
        with a large vocabulary costs as much as several layers.
        """
        network, first = self.network(model), first_place(self.read_positions(batch))
        kept = {"logits_to_keep": batch.inputs["input_ids"].shape[1] - first} if first else {}
        known = inspect.signature(type(network).forward).parameters.keys()
        return {**batch.inputs, **self.arguments(model), **{name: kept[name] for name in kept.keys() & known}}

    def read_positions(self, batch: TaskBatch) -> Tensor | None:
        """Returns at which positions of a decoder's batch logits are read, (rows, length); None, at all, by default."""
        del batch
        return None

    def arguments(self, model: PreTrainedModel) -> dict[str, Any]:
        """Returns further arguments of the forward pass."""
        # A cache would only cost memory: every example is read once.
        network = self.network(model)
        return {"use_cache": False} if network.can_generate() or getattr(network.config, "is_decoder", False) else {}

    def units(self, batch: TaskBatch) -> int:
        """Returns the number of items, be they examples, rows or tokens, over which `loss` is the mean."""
        return len(batch)

    def loss(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Returns the loss that training minimises, a scalar, from the outputs for `batch.with_labels`.

        Raises:
            OptionError: if the model computed none.
        """
        del batch
        if not isinstance(loss := getattr(outputs, "loss", None), Tensor):
            raise OptionError(f"The model computed no loss for the task {self.name}.", f"It needs a {self.head} head.")
        return loss

    @property
    def differentiable(self) -> Task:
        """Task whose outputs have `losses`: this one, unless it generates token by token."""
        return self

    def losses(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Computes the loss of every example from the outputs for `batch.inputs`: (n,), with gradients.

        Raises:
            OptionError: if the task has none, or the outputs are not of a model for this task.
        """
        del outputs, batch
        raise OptionError(f"The task {self.name} has no loss for each example.", "Choose another task.")

    def value(self, records: Floats, weights: Floats | None = None, metric: str | None = None) -> float:
        """Computes a metric of records.

        Args:
            records: (n, k); any examples in any order.
            weights: how often each example counts, (n,); None counts each once.
            metric: name of the metric; None is the main one.
        """
        counts = np.ones(len(records)) if weights is None else np.asarray(weights, dtype=np.float64)
        return float(self.replicates(records, counts[None], metric)[0])

    def replicates(self, records: Floats, weights: Floats, metric: str | None = None) -> Floats:
        """Computes a metric of records, (n, k), for many weightings, (replicates, n), at once: (replicates,).

        Raises:
            OptionError: if the task has no such metric.
        """
        if (name := metric or self.metrics[0]) not in self.metrics:
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


def require_output(outputs: Any, name: str, dimensions: int, task: str, head: str, learned: str = "") -> Tensor:
    """Returns a tensor of a model's outputs, in float32 at least.

    Args:
        outputs: outputs of a model.
        name: attribute of the outputs.
        dimensions: number of dimensions that the tensor must have.
        task: name of the task, for errors.
        head: what a model that has this output has, for errors.
        learned: name of the task that models are trained on for this one, where it is another.

    Raises:
        OptionError: if the outputs have none, or one of another shape.
    """
    output = getattr(outputs, name, None)
    if not isinstance(output, Tensor) or output.dim() != dimensions:
        actual = f"{name} of shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"no {name}"
        raise OptionError(
            f"The task {task} needs a model with {head}; this one gives {actual}.",
            f"Give a model that was trained for it, or train one: headlens train MODEL --task {learned or task}.",
        )
    # Softmaxes and sums of half precision would lose what tells candidates apart.
    return output.float() if output.dtype in (torch.float16, torch.bfloat16) else output


def text_number(text: str) -> float:
    """Returns a number that is the same for the same text, and nearly always another for another one (CRC-32)."""
    return float(zlib.crc32(text.encode()))


def record_columns(*parts: Tensor | Floats) -> Floats:
    """Puts columns of records, each (n,), side by side in float64: (n, k)."""
    arrays = [p.detach().double().cpu().numpy() if isinstance(p, Tensor) else np.asarray(p, np.float64) for p in parts]
    return np.stack(arrays, axis=1)


def first_place(positions: Tensor | None) -> int:
    """Returns the first position that any row has of those chosen, (rows, length); 0 for None."""
    return 0 if positions is None else int(positions.any(dim=0).int().argmax())


def length_preference(task: Task, records: Floats) -> float:
    """Returns how much more often the right one of two candidates has more tokens than fewer, from -1 to 1.

    Args:
        task: 0 for tasks without the record `longer`.
        records: of the examples, (n, k).
    """
    return float(np.sign(records[:, task.columns.index("longer")]).mean()) if "longer" in task.columns else 0.0
