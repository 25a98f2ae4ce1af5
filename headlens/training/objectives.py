"""What training makes smaller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from headlens.corpora.padding import IGNORED

Inputs = Mapping[str, Any]


class Objective(Protocol):
    """A loss that adds up over units (tokens, examples), so that batches can be of any size and be accumulated."""

    def units(self, inputs: Inputs) -> int:
        """How many units a batch has."""

    def loss(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """The sum of the loss over the units of a batch."""


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


@dataclass(frozen=True)
class MaskedTokens:
    """Cross-entropy of masked tokens. Only their logits are computed: a third of the work of small models is logits."""

    def units(self, inputs: Inputs) -> int:
        """Tokens to be guessed."""
        return int((inputs["labels"] != IGNORED).sum())

    def loss(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """Sum over the tokens to be guessed, in nats."""
        labels = inputs["labels"]
        counted = labels != IGNORED

        def chosen(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            # (rows, length, hidden) -> (1, tokens, hidden), as heads work on every position by itself
            return (args[0][counted][None], *args[1:])

        with _head(model).register_forward_pre_hook(chosen):
            logits: Tensor = model(**{k: v for k, v in inputs.items() if k != "labels"}).logits
        return nn.functional.cross_entropy(logits[0].float(), labels[counted], reduction="sum")


def _head(model: nn.Module) -> nn.Module:
    """The part of a language model, perhaps wrapped for several processes, that makes logits of hidden states."""
    plain: Any = getattr(model, "module", model)
    last = plain.get_output_embeddings()
    found: nn.Module = next(child for child in plain.children() if any(m is last for m in child.modules()))
    return found


@dataclass(frozen=True)
class SmoothedTokens:
    """Cross-entropy of target tokens with label smoothing (Szegedy et al. 2016), as translation models are trained.

    Args:
        smoothing: probability that is spread evenly over the vocabulary.
    """

    smoothing: float = 0.1

    def units(self, inputs: Inputs) -> int:
        """Target tokens."""
        return int((inputs["labels"] != IGNORED).sum())

    def loss(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """Sum over target tokens, in nats."""
        logits: Tensor = model(**inputs).logits
        return nn.functional.cross_entropy(
            logits.flatten(0, 1).float(),
            inputs["labels"].flatten(),
            ignore_index=IGNORED,
            label_smoothing=self.smoothing,
            reduction="sum",
        )


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameters that are trained, with weight decay for matrices and none for biases and norms."""
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices, vectors = [p for p in trained if p.dim() > 1], [p for p in trained if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def moved(inputs: Inputs, device: torch.device) -> dict[str, Any]:
    """Tensors on a device; everything else as it is."""
    return {k: v.to(device) if isinstance(v, Tensor) else v for k, v in inputs.items()}
