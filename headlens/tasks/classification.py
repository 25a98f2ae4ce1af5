"""Classes and scores of sentences and pairs: GLUE, SNLI and their like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headlens.errors import OptionError
from headlens.statistics import weighted_means
from headlens.tasks.examples import TaskExample, TextExample
from headlens.tasks.reader import Reader, TokenRow
from headlens.tasks.task import Floats, HeadKind, PreparedExample, Task, TaskBatch, record_columns, require_output
from headlens.tasks.task_options import OWN_CLASSES


def label_of(prepared: PreparedExample) -> float:
    """Returns the label of a text example as a number: the index of a class or of a candidate, or a score."""
    assert isinstance(prepared.example, TextExample)
    assert prepared.example.label is not None
    return prepared.example.label


def class_numbers(prepared: Sequence[PreparedExample], device: torch.device | None = None) -> Tensor:
    """Returns the labels of text examples as numbers of classes or candidates: int64, (n,)."""
    return torch.tensor([int(label_of(p)) for p in prepared], device=device)


def is_right(records: Floats) -> Floats:
    """Returns 1 for every example whose records `label` and `predicted`, the first two, are the same, else 0, (n,)."""
    right: Floats = (records[:, 0] == records[:, 1]).astype(np.float64)
    return right


class TextTask(Task):
    """Base of tasks on a text, or a pair of texts as one sequence, for models with a classification head."""

    head: ClassVar[HeadKind] = "sequence-classification"

    def prepare(self, example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
        """Tokenises the text or the pair of texts as one row; no row is returned if the sequence is too long."""
        assert isinstance(example, TextExample)
        return reader.whole_rows([example.texts])


@dataclass(frozen=True)
class SequenceClassification(TextTask):
    """The class of a sentence or of a pair of sentences.

    Records: `label`, `predicted` (numbers of the task's classes, whatever order the model has them in) and `nll`, the
    negative log-likelihood of the label in nats.

    Args:
        name: name of the task.
        classes: names of the classes, in the order of their numbers.
        scores: the metrics, the main one first: `accuracy`, `f1` (of class 1), `matthews`, `loss`.
        outputs: names of the classes in the order of the model's outputs; empty: as the model names them.
    """

    name: str
    classes: tuple[str, ...]
    scores: tuple[str, ...] = ("accuracy",)
    outputs: tuple[str, ...] = ()
    columns = ("label", "predicted", "nll")

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics given as `scores`, the main metric first."""
        return self.scores

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the task's class numbers."""
        return self.classes

    def targets(self, prepared: Sequence[PreparedExample], reader: Reader, device: torch.device) -> dict[str, Tensor]:
        """Returns the class numbers of the model, not those of the task, as `labels`, (n,)."""
        order = reader.classes or tuple(range(len(self.classes)))
        return {"labels": torch.tensor(order, device=device)[class_numbers(prepared, device)]}

    def read(self, outputs: Any, batch: TaskBatch) -> Floats:
        """Computes the records `label`, `predicted` and `nll` (nats) from the logits, (n, 3).

        Raises:
            OptionError: if the model has no logits for classes, or another number of classes than the task.
        """
        logits = self._logits(outputs)
        if logits.shape[1] != len(self.classes):
            raise OptionError(
                f"The task {self.name} has {len(self.classes)} classes ({', '.join(self.classes)}), the model "
                f"{logits.shape[1]} ({', '.join(batch.reader.order.names)}).",
                f"Give a model that was trained for it, or train one: headlens train MODEL --task {self.name}.",
            )
        if batch.reader.classes is not None:
            # The model may name the same classes in another order: columns in the order of the task.
            logits = logits[:, torch.tensor(batch.reader.classes, device=logits.device)]
        labels = class_numbers(batch.prepared, logits.device)
        # -log softmax at the label, (n,)
        nll = torch.logsumexp(logits, dim=1) - logits.gather(1, labels[:, None])[:, 0]
        return record_columns(labels, logits.argmax(dim=1), nll)

    def _logits(self, outputs: Any) -> Tensor:
        """Returns the logits of the model's classes, (n, classes)."""
        return require_output(outputs, "logits", 2, self.name, f"{len(self.classes)} classes")

    def right(self, records: Floats, metric: str) -> Floats | None:
        """Returns 1 for each example whose class is predicted right, else 0, (n,); None unless `metric` is accuracy."""
        return is_right(records) if metric == "accuracy" else None

    def chance(self, records: Floats) -> float | None:
        """Returns the best value of the main metric of a predictor that gives every example the same class."""
        if self.scores[0] == "loss":
            return None
        label, _, nll = records.T
        constant = (np.full_like(label, number) for number in range(len(self.classes)))
        return max(self.value(np.column_stack((label, predicted, nll))) for predicted in constant)

    def finer(self, records: Floats) -> float:
        """Returns the negative mean loss in nats, which ranks models whose main metric is equal."""
        return -float(records[:, 2].mean())

    def losses(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Computes the cross-entropy of every example in nats, (n,)."""
        return cross_entropy(self._logits(outputs), batch.labels["labels"], reduction="none")

    def statistic(self, metric: str, records: Floats, weights: Floats) -> Floats:
        """Computes F1 of class 1, Matthews correlation, accuracy or loss (nats) for all weightings, (replicates,)."""
        labels, predicted, nll = records.T
        if metric == "f1":
            return weighted_means.f1(labels, predicted, weights)
        if metric == "matthews":
            return weighted_means.matthews(labels, predicted, weights)
        return weighted_means.mean(nll if metric == "loss" else is_right(records), weights)


@dataclass(frozen=True)
class OwnClassification(SequenceClassification):
    """Classes that the data names, see `own_classes`; a model says by the names of its outputs which is which."""

    name: str = OWN_CLASSES
    classes: tuple[str, ...] = ()


class CorrelationTask(Task):
    """Base of tasks that score texts; their metrics are correlations of the records `gold` and `predicted`."""

    columns = ("gold", "predicted")

    def statistic(self, metric: str, records: Floats, weights: Floats) -> Floats:
        """Computes Pearson's or Spearman's correlation of gold and predicted under every weighting, (replicates,)."""
        gold, predicted = records.T
        correlation = weighted_means.pearson if metric == "pearson" else weighted_means.weighted_spearman
        return correlation(gold, predicted, weights)


@dataclass(frozen=True)
class Regression(TextTask, CorrelationTask):
    """A score of a sentence or a pair, from a model with one output.

    Args:
        name: name of the task.
    """

    name: str
    metrics = reported = ("pearson", "spearman")  # papers print either

    def _logits(self, outputs: Any) -> Tensor:
        """Returns the outputs of the model's head, (n, outputs)."""
        return require_output(outputs, "logits", 2, self.name, "one output")

    def losses(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Computes the squared error of the predicted score of every example, (n,)."""
        return (self._logits(outputs)[:, 0] - batch.labels["labels"]) ** 2

    def targets(self, prepared: Sequence[PreparedExample], reader: Reader, device: torch.device) -> dict[str, Tensor]:
        """Returns the scores as `labels`, (n,): of type float, which transformers takes for regression."""
        del reader
        return {"labels": torch.tensor([label_of(p) for p in prepared], dtype=torch.float32, device=device)}

    def read(self, outputs: Any, batch: TaskBatch) -> Floats:
        """Computes the records `gold` and `predicted` from the model's single output, (n, 2).

        Raises:
            OptionError: if the model has more than one output, or no logits.
        """
        logits = self._logits(outputs)
        if logits.shape[1] != 1:
            raise OptionError(
                f"The task {self.name} predicts a score, but the model has {logits.shape[1]} classes.",
                f"Give a model with one output, or train one: headlens train MODEL --task {self.name}.",
            )
        gold = torch.tensor([label_of(p) for p in batch.prepared], dtype=torch.float64)
        return record_columns(gold, logits[:, 0])
