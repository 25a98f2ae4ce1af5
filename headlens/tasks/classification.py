"""Tasks on texts with a label: classes and scores (GLUE, SNLI), choices (SWAG), and how near sentences are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize
from transformers import PreTrainedModel

from headlens.errors import OptionError
from headlens.statistics import weighted_means
from headlens.statistics.paired_tests import out_of_order
from headlens.tasks.examples import LabelCounts, TaskExample, TextExample, texts_of
from headlens.tasks.reader import Reader, TokenRow
from headlens.tasks.task import Floats, HeadKind, PreparedExample, Task, TaskBatch, record_columns, require_output
from headlens.tasks.task_options import OWN_CLASSES


def labels_of(
    prepared: Sequence[PreparedExample], device: torch.device | None = None, dtype: torch.dtype = torch.int64
) -> Tensor:
    """Returns the labels of text examples, (n,): numbers of classes or candidates, or scores with another `dtype`."""
    labels = [cast("TextExample", p.example).label for p in prepared]
    return torch.tensor(labels, dtype=dtype, device=device)


def is_right(records: Floats) -> Floats:
    """Returns 1 for every example whose records `label` and `predicted`, the first two, are the same, else 0, (n,)."""
    right: Floats = (records[:, 0] == records[:, 1]).astype(np.float64)
    return right


class TextTask(Task):
    """Base of tasks on a text, or a pair of texts as one sequence, for models with a classification head."""

    head: ClassVar[HeadKind] = "sequence-classification"

    def prepare(self, example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
        """Tokenises the text or the pair of texts as one row; no row is returned if the sequence is too long."""
        return reader.whole_rows([texts_of(example)])


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
        order = reader.order.places or tuple(range(len(self.classes)))
        return {"labels": torch.tensor(order, device=device)[labels_of(prepared, device)]}

    def read(self, outputs: Any, batch: TaskBatch) -> Floats:
        """Computes the records `label`, `predicted` and `nll` (nats) from the logits, (n, 3).

        Raises:
            OptionError: if the model has no logits for classes, or another number of classes than the task.
        """
        if (logits := self._logits(outputs)).shape[1] != len(self.classes):
            raise OptionError(
                f"The task {self.name} has {len(self.classes)} classes ({', '.join(self.classes)}), the model "
                f"{logits.shape[1]} ({', '.join(batch.reader.order.names)}).",
                f"Give a model that was trained for it, or train one: headlens train MODEL --task {self.name}.",
            )
        if (places := batch.reader.order.places) is not None:
            # The model may name the same classes in another order: columns in the order of the task.
            logits = logits[:, torch.tensor(places, device=logits.device)]
        labels = labels_of(batch.prepared, logits.device)
        # -log softmax at the label, (n,)
        nll = torch.logsumexp(logits, dim=1) - logits.gather(1, labels[:, None])[:, 0]
        return record_columns(labels, logits.argmax(dim=1), nll)

    def _logits(self, outputs: Any) -> Tensor:
        """Returns the logits of the model's classes, (n, classes)."""
        return require_output(outputs, "logits", 2, self.name, f"{len(self.classes)} classes")

    def right(self, records: Floats, metric: str) -> Floats | None:
        """Returns 1 for each example whose class is predicted right, else 0, (n,); None unless `metric` is accuracy."""
        return is_right(records) if metric == "accuracy" else None

    def chance(self, records: Floats, metric: str | None = None, labels: LabelCounts | None = None) -> float | None:
        """Returns the best main metric of a predictor that gives every example the same class; None for other ones."""
        del labels
        if self.scores[0] == "loss" or metric not in (None, self.scores[0]):
            return None
        label, _, nll = records.T
        constant = (np.full_like(label, number) for number in range(len(self.classes)))
        return max(self.value(np.column_stack((label, predicted, nll))) for predicted in constant)

    def chance_loss(self, prepared: Sequence[PreparedExample]) -> float:
        """Returns the entropy of the classes in nats, the loss of predicting them by their frequency."""
        counts = np.unique(labels_of(prepared).numpy(), return_counts=True)[1]
        return float(np.log(len(prepared)) - (counts * np.log(counts)).sum() / len(prepared))

    def finer(self, records: Floats) -> float:
        """Returns the negative mean loss in nats, which ranks models whose main metric is equal."""
        return -float(records[:, 2].mean())

    def losses(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Computes the cross-entropy of every example in nats, (n,)."""
        return cross_entropy(self._logits(outputs), batch.labels["labels"], reduction="none")

    def statistic(self, metric: str, records: Floats, weights: Floats) -> Floats:
        """Computes F1 of class 1, Matthews correlation, accuracy or loss (nats) for all weightings, (replicates,)."""
        labels, predicted, nll = records.T
        if (of_classes := {"f1": weighted_means.f1, "matthews": weighted_means.matthews}.get(metric)) is not None:
            return of_classes(labels, predicted, weights)
        return weighted_means.mean(nll if metric == "loss" else is_right(records), weights)


@dataclass(frozen=True)
class OwnClassification(SequenceClassification):
    """Classes that the data names, see `name_classes`; a model says by the names of its outputs which is which."""

    name: str = OWN_CLASSES
    classes: tuple[str, ...] = ()


class CorrelationTask(Task):
    """Base of tasks that score texts; their metrics are correlations of the records `gold` and `predicted`."""

    columns = ("gold", "predicted")
    loss_name: ClassVar[str] = "squared error"
    scale: float = 1.0  # by which scores are divided for the loss

    def chance_loss(self, prepared: Sequence[PreparedExample]) -> float:
        """Returns the variance of the scores, the squared error of always giving their mean."""
        return float(labels_of(prepared, dtype=torch.float64).var(correction=0)) / self.scale**2

    def statistic(self, metric: str, records: Floats, weights: Floats) -> Floats:
        """Computes Pearson's or Spearman's correlation of gold and predicted under every weighting, (replicates,)."""
        gold, predicted = records.T
        correlation = weighted_means.pearson if metric == "pearson" else weighted_means.weighted_spearman
        return correlation(gold, predicted, weights)

    def changed(self, records: Floats, baseline: Floats, metric: str) -> npt.NDArray[np.bool_]:
        """Returns which examples count differently: for Spearman's correlation those that have other places, (n,)."""
        if metric != "spearman":
            return super().changed(records, baseline, metric)
        return out_of_order(records[:, 1], baseline[:, 1])

    def chance(self, records: Floats, metric: str | None = None, labels: LabelCounts | None = None) -> float | None:
        """Returns 0, the correlation of scores that have nothing to do with the texts."""
        del records, metric, labels
        return 0.0

    def read(self, outputs: Any, batch: TaskBatch) -> Floats:
        """Computes the records, (n, 2): the score `gold` that people gave, and the score `predicted`.

        Raises:
            OptionError: if the outputs are not of a model for this task.
        """
        return record_columns(labels_of(batch.prepared, dtype=torch.float64), self._scores(outputs, batch))

    @abstractmethod
    def _scores(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Returns the predicted score of every example, (n,)."""


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
        return {"labels": labels_of(prepared, device, torch.float32)}

    def _scores(self, outputs: Any, batch: TaskBatch) -> Tensor:
        del batch
        if (logits := self._logits(outputs)).shape[1] != 1:
            raise OptionError(
                f"The task {self.name} predicts a score, but the model has {logits.shape[1]} classes.",
                f"Give a model with one output, or train one: headlens train MODEL --task {self.name}.",
            )
        return logits[:, 0]


class ChoiceTask(Task):
    """Base of tasks that choose one of several candidates; the metric is the share of right choices.

    Records: `label`, `predicted` and `margin`, the score of the right candidate above the best other one.
    """

    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    columns: ClassVar[tuple[str, ...]] = ("label", "predicted", "margin")

    candidates: int  # of every example, one of which is right
    temperature: float = 1.0  # of the softmax over scores, for the loss

    def right(self, records: Floats, metric: str) -> Floats:
        """Returns 1 for every example whose right candidate is chosen, else 0, (n,)."""
        del metric
        return is_right(records)

    def chance(self, records: Floats, metric: str | None = None, labels: LabelCounts | None = None) -> float | None:
        """Returns the expected accuracy of uniformly random choice, one over the number of candidates."""
        del records, metric, labels
        return 1 / self.candidates

    def chance_loss(self, prepared: Sequence[PreparedExample]) -> float:
        """Returns the loss of finding all candidates alike, in nats."""
        del prepared
        return float(np.log(self.candidates))

    def finer(self, records: Floats) -> float:
        """Returns the mean margin of the right candidate, which ranks models whose accuracy is equal."""
        return float(records[:, 2].mean())

    def statistic(self, metric: str, records: Floats, weights: Floats) -> Floats:
        """Computes the accuracy of the choices under every weighting, (replicates,)."""
        del metric
        return weighted_means.mean(is_right(records), weights)

    def read(self, outputs: Any, batch: TaskBatch) -> Floats:
        """Computes the records `label`, `predicted` and `margin` from the scores of the candidates, (n, 3)."""
        scores = self._scores(outputs, batch)
        labels = labels_of(batch.prepared, scores.device)
        right = scores.gather(1, labels[:, None])[:, 0]
        # Without the right candidate, whose score becomes the lowest.
        best_other = scores.scatter(1, labels[:, None], -torch.inf).amax(dim=1)
        return record_columns(labels, scores.argmax(dim=1), right - best_other)

    def losses(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Computes the cross-entropy of the right candidate, of scores over the temperature, in nats, (n,)."""
        scores = self._scores(outputs, batch)
        return cross_entropy(scores / self.temperature, labels_of(batch.prepared, scores.device), reduction="none")

    @abstractmethod
    def _scores(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Returns the scores of the candidates of every example, (n, candidates)."""


@dataclass(frozen=True)
class MultipleChoice(ChoiceTask):
    """Which of some endings follows, from a model with a multiple-choice head.

    Texts of an example are the first sentence, then the endings, each with what all of them begin with; its label is
    the index of the right ending.

    Args:
        name: name of the task.
        candidates: number of endings of every example.
    """

    name: str = "swag"
    candidates: int = 4
    head: ClassVar[HeadKind] = "multiple-choice"

    def prepare(self, example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
        """Tokenises the first sentence with each ending as one row; no row is returned if one is too long."""
        first, *endings = texts_of(example)
        return reader.whole_rows([(first, ending) for ending in endings])

    def collate(self, prepared: Sequence[PreparedExample], reader: Reader, device: torch.device | str) -> TaskBatch:
        """Gathers prepared examples as a batch whose inputs are (n, candidates, length)."""
        flat = super().collate(prepared, reader, device)  # inputs (n * candidates, length)
        inputs = {name: tensor.view(-1, self.candidates, tensor.shape[1]) for name, tensor in flat.inputs.items()}
        return replace(flat, inputs=inputs)

    def targets(self, prepared: Sequence[PreparedExample], reader: Reader, device: torch.device) -> dict[str, Tensor]:
        """Returns the index of the right ending of every example as `labels`, (n,)."""
        del reader
        return {"labels": labels_of(prepared, device)}

    def _scores(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Returns the logits of the endings of every example, (n, candidates).

        Raises:
            OptionError: if the outputs have none, or logits of another shape.
        """
        logits = require_output(outputs, "logits", 2, self.name, "a multiple-choice head")
        if logits.shape != (len(batch), self.candidates):
            raise OptionError(
                f"The task {self.name} has {self.candidates} endings, but the model's scores have the shape "
                f"{tuple(logits.shape)} for {len(batch)} examples.",
                "Give a model with a multiple-choice head.",
            )
        return logits


class EmbeddingTask(Task):
    """Base of tasks on embeddings of sentences, which every encoder makes without a task head and without training."""

    head: ClassVar[HeadKind] = "embedding"

    def prepare(self, example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
        """Tokenises every text of an example as one row, in order; returns no rows if one of the texts is too long."""
        return reader.whole_rows([(text,) for text in texts_of(example)])

    def network(self, model: PreTrainedModel) -> PreTrainedModel:
        """Returns the part of the model that computes embeddings: the encoder or base model, without task head."""
        embedder = model.get_encoder() if model.config.is_encoder_decoder else model.base_model
        assert isinstance(embedder, PreTrainedModel)
        return embedder

    def embeddings(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Returns the mean of the token states of every row, scaled to length 1: (rows, d)."""
        states = require_output(outputs, "last_hidden_state", 3, self.name, "embeddings")  # (rows, length, d)
        real = batch.inputs["attention_mask"][..., None].to(states.dtype)
        return normalize((states * real).sum(dim=1) / real.sum(dim=1), dim=-1)

    def loss(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Computes the mean of `losses` over the batch, a scalar: no model computes the loss of embeddings itself."""
        return self.losses(outputs, batch).mean()


@dataclass(frozen=True)
class SentenceSimilarity(EmbeddingTask, CorrelationTask):
    """How alike two sentences are, from the cosine of their mean-pooled embeddings; needs no training.

    Args:
        name: name of the task.
        scale: highest score that people could give, for the loss.
    """

    name: str = "similarity"
    scale: float = 5.0
    # Spearman's correlation comes first: cosines are on no scale.
    metrics = ("spearman", "pearson")

    def losses(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Computes (cosine - score / scale)², the regression objective of Reimers and Gurevych (2019), (n,)."""
        cosines = self._scores(outputs, batch)
        return (cosines - labels_of(batch.prepared, dtype=torch.float64).to(cosines) / self.scale) ** 2

    def _scores(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Computes the cosine of the two embeddings of every example, (n,)."""
        embeddings = self.embeddings(outputs, batch)
        return (embeddings[0::2] * embeddings[1::2]).sum(dim=-1)  # rows of a pair stand side by side


@dataclass(frozen=True)
class ParaphraseChoice(EmbeddingTask, ChoiceTask):
    """Which of some candidates says the same as a sentence: the one whose embedding is nearest.

    Texts of an example are the sentence, then the candidates; its label is the index of the right candidate.

    Args:
        name: name of the task.
        candidates: number of candidates of every example.
        temperature: temperature of the softmax over cosines, for the loss.
    """

    name: str = "paraphrase"
    candidates: int = 2
    temperature: float = 0.05

    def _scores(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Computes the cosine of the sentence's embedding with that of each candidate, (n, candidates)."""
        embeddings = self.embeddings(outputs, batch)
        groups = embeddings.view(-1, 1 + self.candidates, embeddings.shape[1])  # (n, sentence and candidates, d)
        return (groups[:, :1] * groups[:, 1:]).sum(dim=-1)
