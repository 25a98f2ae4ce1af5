"""What training makes smaller."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from headlens.corpora.batches import IGNORED
from headlens.errors import OptionError
from headlens.models.language_outputs import next_logits, token_logits

# In a group of an optimiser: the factor on the learning rate.
SCALE = "scale"
# In a batch: whether the second half of each row is another than what follows the first, 0 or 1.
NEXT = "next_sentence"
Inputs = Mapping[str, Any]


class Objective(Protocol):
    """A loss that adds up over units (tokens, examples), so that batches can be of any size and be accumulated."""

    def units(self, inputs: Inputs) -> int:
        """Returns the number of units (tokens, examples) in a batch, over which the loss is summed."""

    def loss(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """The sum of the loss over the units of a batch."""


@dataclass(frozen=True)
class TokenLoss(ABC):
    """A loss that adds up over tokens: those whose labels are not -100."""

    def units(self, inputs: Inputs) -> int:
        """Returns the number of tokens that count in a batch."""
        return int((inputs["labels"] != IGNORED).sum())

    @abstractmethod
    def loss(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """The sum of the loss over these tokens, in nats."""


@dataclass(frozen=True)
class MaskedTokenLoss(TokenLoss):
    """Cross-entropy of masked tokens. Only their logits are computed: a third of the work of small models is logits."""

    def loss(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """Sum over the tokens to be guessed, in nats."""
        return self._guessed(model, inputs)[0]

    def _guessed(self, model: nn.Module, inputs: Inputs) -> tuple[Tensor, Any]:
        """The loss, and the model's other outputs."""
        labels = inputs["labels"]
        counted = labels != IGNORED

        def chosen(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            # (rows, length, hidden) -> (1, tokens, hidden), as heads work on every position by itself
            return (args[0][counted][None], *args[1:])

        with _head(model).register_forward_pre_hook(chosen):
            outputs = model(**{k: v for k, v in inputs.items() if k not in ("labels", NEXT)})
        logits = token_logits(outputs)[0].float()
        return nn.functional.cross_entropy(logits, labels[counted], reduction="sum"), outputs


@dataclass(frozen=True)
class MaskedTokensAndNext(MaskedTokenLoss):
    """The same and whether the second half of a row follows the first: the sum of the two means (Devlin et al. 2019).

    Units are the tokens to be guessed; a batch's mean over rows counts as often as it has such tokens.
    """

    def loss(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """Computes the loss of masked tokens plus that of the second halves of rows, in nats, a scalar.

        The first is the sum of the cross-entropy over the tokens to be guessed; the second is the mean cross-entropy
        over the rows of the batch, multiplied by the number of these tokens.
        """
        guessed, outputs = self._guessed(model, inputs)
        follows = nn.functional.cross_entropy(next_logits(outputs).float(), inputs[NEXT])
        return guessed + follows * self.units(inputs)


def _head(model: nn.Module) -> nn.Module:
    """The part of a language model, perhaps wrapped for gates and processes, that makes logits of hidden states."""
    plain: Any = model
    while isinstance(inner := getattr(plain, "module", None), nn.Module):
        plain = inner
    last = plain.get_output_embeddings()
    module: nn.Module = next(child for child in plain.children() if any(m is last for m in child.modules()))
    return module


@dataclass(frozen=True)
class SmoothedTokens(TokenLoss):
    """Cross-entropy of target tokens with label smoothing (Szegedy et al. 2016), as translation models are trained.

    Args:
        smoothing: probability that is spread evenly over the vocabulary.
    """

    smoothing: float = 0.1

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


def parameter_groups(
    model: nn.Module, weight_decay: float, scales: Mapping[str, float] | None = None
) -> list[dict[str, Any]]:
    """Parameters that are trained, with weight decay for matrices and none for biases and norms.

    Args:
        model: those of its parameters that ask for gradients are trained.
        weight_decay: of matrices.
        scales: factors on the learning rate for parameters whose names begin so; they have no weight decay.

    Raises:
        OptionError: if all are frozen.
    """
    scales = scales or {}
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise OptionError("Nothing is left to be trained: all weights are frozen.", "Freeze less.")
    scaled = {prefix: [p for name, p in trained.items() if name.startswith(prefix)] for prefix in scales}
    usual = [p for name, p in trained.items() if not name.startswith(tuple(scales))]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in usual if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in usual if p.dim() < 2], "weight_decay": 0.0},
        *({"params": scaled[prefix], "weight_decay": 0.0, SCALE: scale} for prefix, scale in scales.items()),
    ]
    return [group for group in groups if group["params"]]


def moved(inputs: Inputs, device: torch.device) -> dict[str, Any]:
    """Tensors on a device; everything else as it is."""
    return {k: v.to(device) if isinstance(v, Tensor) else v for k, v in inputs.items()}
