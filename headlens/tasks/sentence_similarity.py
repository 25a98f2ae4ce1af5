"""Tasks that need no training: how near the embeddings of sentences are to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize
from transformers import PreTrainedModel

from headlens.tasks.classification import CorrelationTask, class_numbers, label_of
from headlens.tasks.examples import TaskExample, TextExample
from headlens.tasks.multiple_choice import ChoiceTask, chosen_records
from headlens.tasks.reader import Reader, TokenRow
from headlens.tasks.task import Floats, HeadKind, Task, TaskBatch, record_columns, require_output


class EmbeddingTask(Task):
    """Base of tasks on embeddings of sentences, which every encoder makes without a task head."""

    head: ClassVar[HeadKind] = "embedding"

    def prepare(self, example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
        """Tokenises every text of an example as one row, in order; returns no rows if one of the texts is too long."""
        assert isinstance(example, TextExample)
        return reader.whole_rows([(text,) for text in example.texts])

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

    def read(self, outputs: Any, batch: TaskBatch) -> Floats:
        """Computes the records, (n, 2): the score `gold` that people gave, and the cosine similarity `predicted`."""
        return record_columns(self._gold(batch), self._cosines(outputs, batch))

    def losses(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Computes (cosine - score / scale)², the regression objective of Reimers and Gurevych (2019), (n,)."""
        cosines = self._cosines(outputs, batch)
        return (cosines - self._gold(batch).to(cosines) / self.scale) ** 2

    def _cosines(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Computes the cosine of the two embeddings of every example, (n,)."""
        embeddings = self.embeddings(outputs, batch)
        return (embeddings[0::2] * embeddings[1::2]).sum(dim=-1)  # rows of a pair stand side by side

    def _gold(self, batch: TaskBatch) -> Tensor:
        """Returns the scores that people gave, float64, (n,)."""
        return torch.tensor([label_of(p) for p in batch.prepared], dtype=torch.float64)


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

    def read(self, outputs: Any, batch: TaskBatch) -> Floats:
        """Computes the records `label`, `predicted` and `margin` from the cosines of the candidates, (n, 3)."""
        return chosen_records(self._cosines(outputs, batch), batch)

    def losses(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Computes the cross-entropy of the right candidate, of cosines over the temperature, in nats, (n,)."""
        cosines = self._cosines(outputs, batch)
        right = class_numbers(batch.prepared, cosines.device)
        return cross_entropy(cosines / self.temperature, right, reduction="none")

    def _cosines(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Computes the cosine of the sentence's embedding with that of each candidate, (n, candidates)."""
        embeddings = self.embeddings(outputs, batch)
        groups = embeddings.view(-1, 1 + self.candidates, embeddings.shape[1])  # (n, sentence and candidates, d)
        return (groups[:, :1] * groups[:, 1:]).sum(dim=-1)
