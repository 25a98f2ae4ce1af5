"""Sentences to train on, and a place to keep the state of a training."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headlens.corpora.batches import IGNORED
from headlens.learning.batch_sampler import Indices
from headlens.learning.objectives import Inputs


@dataclass(frozen=True)
class Sentences:
    """Random sentences with labels that can be learned: whether a token occurs."""

    count: int = 60

    @property
    def lengths(self) -> Sequence[int]:
        return [3 + i % 6 for i in range(self.count)]

    def batch(self, indices: Indices, epoch: int) -> dict[str, Any]:
        del epoch
        sizes = [self.lengths[i] for i in indices]
        ids = torch.zeros(len(indices), max(sizes), dtype=torch.int64)
        for row, index in enumerate(indices):
            generator = torch.Generator().manual_seed(index)
            ids[row, : sizes[row]] = torch.randint(5, 40, (sizes[row],), generator=generator)
        real = torch.arange(ids.shape[1]) < torch.tensor(sizes)[:, None]
        return {"input_ids": ids, "attention_mask": real.long(), "labels": (ids == 7).any(1).long() + (ids[:, 0] > 20)}


@dataclass
class Folder:
    """Keeps the state after given steps, and stops the run after one."""

    path: Path
    every: int = 1
    stop_after: int | None = None
    calls: int = field(default=0)

    @property
    def found(self) -> Path | None:
        return self.path if self.path.exists() else None

    def due(self) -> bool:
        self.calls += 1
        return self.calls % self.every == 0 or self.calls == self.stop_after

    @contextmanager
    def saving(self) -> Iterator[Path]:
        fresh = self.path.with_name("fresh")
        fresh.mkdir()
        yield fresh
        if self.path.exists():
            shutil.rmtree(self.path)
        fresh.rename(self.path)

    def obey(self) -> None:
        if self.calls == self.stop_after:
            raise KeyboardInterrupt


def weights(trained: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in trained.named_parameters()}


def assert_equal(one: Mapping[str, torch.Tensor], two: Mapping[str, torch.Tensor]) -> None:
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, two[name]), name


@dataclass(frozen=True)
class ModelLoss:
    """The loss that the model itself computes from its labels, whatever its task.

    Units are the labels that count: one per example for classifiers, one per token for language models.
    """

    def units(self, inputs: Inputs) -> int:
        """Labels other than -100; rows where labels are no token ids."""
        labels = inputs.get("labels")
        if labels is None:  # question answering
            return len(inputs["start_positions"])
        return int((labels != IGNORED).sum()) if labels.dim() > 1 and not labels.is_floating_point() else len(labels)

    def loss(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """The model's mean loss times the units it is a mean of."""
        mean: Tensor = model(**inputs).loss
        return mean * self.units(inputs)
