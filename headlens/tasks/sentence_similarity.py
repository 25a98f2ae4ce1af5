"""Tasks that need no training: how near the embeddings of sentences are to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.tasks.classification import Correlated, label_of
from headlens.tasks.examples import TaskExample, TextExample
from headlens.tasks.model_outputs import columns, taken
from headlens.tasks.multiple_choice import ChoiceTask, chosen_records
from headlens.tasks.reader import Reader, TokenRow
from headlens.tasks.task import Floats, HeadKind, TaskBatch


def separate_rows(texts: Sequence[str], reader: Reader) -> tuple[TokenRow, ...]:
    """A row for every text; none at all if one is too long."""
    rows = [reader.sequence(text) for text in texts]
    found = tuple(row for row in rows if row is not None)
    return found if len(found) == len(rows) else ()


def embeddings(outputs: Any, batch: TaskBatch, task: str) -> Tensor:
    """Mean-pooled embeddings of length 1, (rows, d)."""
    states = taken(outputs, "last_hidden_state", 3, task, "embeddings")
    real = batch.inputs["attention_mask"][..., None].to(states.dtype)
    means = (states * real).sum(dim=1) / real.sum(dim=1)
    return torch.nn.functional.normalize(means, dim=-1)


def embedder(model: PreTrainedModel) -> PreTrainedModel:
    """The part of a model that makes embeddings: without its task head, of an encoder-decoder the encoder."""
    if model.config.is_encoder_decoder:
        encoder: PreTrainedModel = model.get_encoder()
        return encoder
    base = model.base_model
    assert isinstance(base, PreTrainedModel)
    return base


@dataclass(frozen=True)
class SentenceSimilarity(Correlated):
    """How alike two sentences are, from the cosine of their mean-pooled embeddings; needs no training.

    Args:
        name: of the task.
        scale: highest score that people could give, for the loss.
    """

    name: str = "similarity"
    scale: float = 5.0
    head: ClassVar[HeadKind] = "embedding"

    @property
    def metrics(self) -> tuple[str, ...]:
        """Spearman's is the usual one: cosines are on no scale."""
        return "spearman", "pearson"

    def prepare(self, example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
        """Tokenises the two sentences of an example as one row each; returns no rows if either is too long."""
        assert isinstance(example, TextExample)
        return separate_rows(example.texts, reader)

    def network(self, model: PreTrainedModel) -> PreTrainedModel:
        """Returns the part of the model that computes embeddings: the encoder or base model, without task head."""
        return embedder(model)

    def read(self, outputs: Any, batch: TaskBatch) -> Floats:
        """Computes the records, (n, 2): the score `gold` that people gave, and the cosine similarity `predicted`."""
        return columns(self._gold(batch), self._cosines(outputs, batch))

    def losses(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Square of cosine minus score / scale (Reimers and Gurevych 2019, regression objective)."""
        cosines = self._cosines(outputs, batch)
        return (cosines - self._gold(batch).to(cosines) / self.scale) ** 2

    def loss(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Computes the mean over the batch of the squared errors of `losses`, a scalar."""
        return self.losses(outputs, batch).mean()

    def _cosines(self, outputs: Any, batch: TaskBatch) -> Tensor:
        found = embeddings(outputs, batch, self.name)
        return (found[0::2] * found[1::2]).sum(dim=-1)

    def _gold(self, batch: TaskBatch) -> Tensor:
        return torch.tensor([label_of(p) for p in batch.prepared], dtype=torch.float64)


@dataclass(frozen=True)
class ParaphraseChoice(ChoiceTask):
    """Which of some candidates says the same as a sentence: the one whose embedding is nearest.

    Texts of an example are the sentence, then the candidates; its label is the index of the right candidate.

    Args:
        name: of the task.
        candidates: of every example.
        temperature: of the softmax over cosines, for the loss.
    """

    name: str = "paraphrase"
    candidates: int = 2
    temperature: float = 0.05
    head: ClassVar[HeadKind] = "embedding"

    @property
    def options(self) -> int:
        """Number of candidate sentences of every example, `candidates`."""
        return self.candidates

    def prepare(self, example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
        """Tokenises the sentence and its candidates as one row each, the sentence first.

        Returns:
            1 + candidates rows, or none if any of the texts is too long.
        """
        assert isinstance(example, TextExample)
        return separate_rows(example.texts, reader)

    def network(self, model: PreTrainedModel) -> PreTrainedModel:
        """Returns the part of the model that computes embeddings: the encoder or base model, without task head."""
        return embedder(model)

    def read(self, outputs: Any, batch: TaskBatch) -> Floats:
        """Computes the records `label`, `predicted` and `margin` from the cosines of the candidates, (n, 3)."""
        return chosen_records(self._cosines(outputs, batch), batch)

    def losses(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Cross-entropy of the right candidate."""
        cosines = self._cosines(outputs, batch)
        labels = torch.tensor([int(label_of(p)) for p in batch.prepared], device=cosines.device)
        return torch.nn.functional.cross_entropy(cosines / self.temperature, labels, reduction="none")

    def loss(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Computes the mean over the batch of the cross-entropies of `losses` in nats, a scalar."""
        return self.losses(outputs, batch).mean()

    def _cosines(self, outputs: Any, batch: TaskBatch) -> Tensor:
        """Computes the cosine of the sentence's embedding with that of each candidate, (n, candidates)."""
        found = embeddings(outputs, batch, self.name)
        groups = found.view(-1, 1 + self.candidates, found.shape[1])
        return (groups[:, :1] * groups[:, 1:]).sum(dim=-1)
