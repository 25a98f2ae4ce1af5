"""Classes and scores of sentences and pairs: GLUE, SNLI and their like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from headlens.errors import OptionError
from headlens.statistics import weighted_means as statistics
from headlens.tasks.examples import TaskExample, TextExample
from headlens.tasks.model_outputs import columns, taken
from headlens.tasks.reader import Reader, TokenRow
from headlens.tasks.task import Floats, HeadKind, PreparedExample, Task, TaskBatch


def text_row(example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
    """One text, or a pair in one sequence; nothing if it is too long."""
    assert isinstance(example, TextExample)
    row = reader.sequence(*example.texts)
    return () if row is None else (row,)


def label_of(prepared: PreparedExample) -> float:
    """Return the label of a text example as a number: the index of a class or of a candidate, or a score."""
    assert isinstance(prepared.example, TextExample)
    assert prepared.example.label is not None
    return prepared.example.label


@dataclass(frozen=True)
class SequenceClassification(Task):
    """Which class a sentence or a pair is of.

    Records: `label`, `predicted` (numbers of the task's classes, whatever order the model has them in) and `nll`, the
    negative log-likelihood of the label in nats.

    Args:
        name: of the task.
        classes: their names, in the order of their numbers.
        scores: the metrics, the main one first: `accuracy`, `f1` (of class 1), `matthews`, `loss`.
    """

    name: str
    classes: tuple[str, ...]
    scores: tuple[str, ...] = ("accuracy",)
    head: ClassVar[HeadKind] = "sequence-classification"

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics given as `scores`, the main metric first."""
        return self.scores

    @property
    def columns(self) -> tuple[str, ...]:
        """What was right, what was said, how likely the right one was."""
        return "label", "predicted", "nll"

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the task's class numbers."""
        return self.classes

    def prepare(self, example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
        """Tokenise the text or the pair of texts as one row; no row is returned if the text is too long."""
        return text_row(example, reader)

    def targets(self, prepared: Sequence[PreparedExample], reader: Reader, device: torch.device) -> dict[str, Tensor]:
        """Class numbers as the model has them, (n,)."""
        order = reader.classes or tuple(range(len(self.classes)))
        return {"labels": torch.tensor([order[int(label_of(p))] for p in prepared], device=device)}

    def read(self, outputs: Any, batch: TaskBatch) -> Floats:
        """Compute the records `label`, `predicted` and `nll` (nats) from the logits, (n, 3).

        Raises:
            OptionError: if the model has no logits for classes, or another number of classes than the task.
        """
        logits = taken(outputs, "logits", 2, self.name, f"{len(self.classes)} classes")
        if logits.shape[1] != len(self.classes):
            raise OptionError(
                f"The task {self.name} has {len(self.classes)} classes ({', '.join(self.classes)}), the model "
                f"{logits.shape[1]}.",
                f"Give a model that was trained for it, or train one: headlens train MODEL --task {self.name}.",
            )
        if batch.reader.classes is not None:
            logits = logits[:, torch.tensor(batch.reader.classes, device=logits.device)]
        labels = torch.tensor([int(label_of(p)) for p in batch.prepared], device=logits.device)
        nll = torch.logsumexp(logits, dim=1) - logits.gather(1, labels[:, None])[:, 0]
        return columns(labels, logits.argmax(dim=1), nll)

    def right(self, records: Floats, metric: str) -> Floats | None:
        """Return 1 for every example whose class is predicted right, else 0, (n,); None unless `metric` is accuracy."""
        return (records[:, 0] == records[:, 1]).astype(np.float64) if metric == "accuracy" else None

    def chance(self, records: Floats) -> float | None:
        """The best of those who say the same of every example."""
        if self.scores[0] == "loss":
            return None
        label, _, nll = records.T
        always = (np.full_like(label, number) for number in range(len(self.classes)))
        return max(self.value(np.column_stack((label, said, nll))) for said in always)

    def finer(self, records: Floats) -> float:
        """Return the negative mean loss in nats, which ranks models whose main metric is equal."""
        return -float(records[:, 2].mean())

    def losses(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Compute the cross-entropy of every example in nats, (n,)."""
        logits = taken(outputs, "logits", 2, self.name, f"{len(self.classes)} classes")
        return torch.nn.functional.cross_entropy(logits, batch.labels["labels"], reduction="none")

    def statistic(self, metric: str, records: Floats, weights: Floats) -> Floats:
        """Compute F1 of class 1, Matthews correlation, accuracy or loss (nats) under every weighting, (replicates,)."""
        labels, predicted, nll = records.T
        if metric == "f1":
            return statistics.f1(labels, predicted, weights)
        if metric == "matthews":
            return statistics.matthews(labels, predicted, weights)
        return statistics.mean(nll if metric == "loss" else (labels == predicted).astype(float), weights)


class Correlated(Task):
    """Records are `gold` and `predicted`; metrics their correlations."""

    @property
    def columns(self) -> tuple[str, ...]:
        """What people said, and what the model did."""
        return "gold", "predicted"

    def statistic(self, metric: str, records: Floats, weights: Floats) -> Floats:
        """Compute Pearson's or Spearman's correlation of gold and predicted under every weighting, (replicates,)."""
        gold, predicted = records.T
        correlation = statistics.pearson if metric == "pearson" else statistics.weighted_spearman
        return correlation(gold, predicted, weights)


@dataclass(frozen=True)
class Regression(Correlated):
    """A score of a sentence or a pair, from a model with one output.

    Args:
        name: of the task.
    """

    name: str
    head: ClassVar[HeadKind] = "sequence-classification"

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics: Pearson's correlation, the main metric, and Spearman's."""
        return "pearson", "spearman"

    def prepare(self, example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
        """Tokenise the text or the pair of texts as one row; no row is returned if the text is too long."""
        return text_row(example, reader)

    def losses(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Compute the squared error of the predicted score of every example, (n,)."""
        logits = taken(outputs, "logits", 2, self.name, "one output")
        return (logits[:, 0] - batch.labels["labels"]) ** 2

    def targets(self, prepared: Sequence[PreparedExample], reader: Reader, device: torch.device) -> dict[str, Tensor]:
        """Scores, (n,); of type float, which transformers takes for regression."""
        del reader
        return {"labels": torch.tensor([label_of(p) for p in prepared], dtype=torch.float32, device=device)}

    def read(self, outputs: Any, batch: TaskBatch) -> Floats:
        """Compute the records `gold` and `predicted` from the model's single output, (n, 2).

        Raises:
            OptionError: if the model has more than one output, or no logits.
        """
        logits = taken(outputs, "logits", 2, self.name, "one output")
        if logits.shape[1] != 1:
            raise OptionError(
                f"The task {self.name} is a score, but the model has {logits.shape[1]} classes.",
                f"Give a model with one output, or train one: headlens train MODEL --task {self.name}.",
            )
        gold = torch.tensor([label_of(p) for p in batch.prepared], dtype=torch.float64)
        return columns(gold, logits[:, 0])
