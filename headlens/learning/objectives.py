"""What training makes smaller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from headlens.attention.edits_and_observers import to_device
from headlens.corpora.batches import IGNORED
from headlens.errors import OptionError
from headlens.models.language_outputs import next_logits, token_logits

# In a group of an optimiser: the factor on the learning rate.
SCALE = "scale"
# In a batch: whether the second half of each row is another than what follows the first, 0 or 1.
NEXT = "next_sentence"
# In a batch: places of the tokens to be guessed among all of its tokens, (tokens,), found before the batch is moved: a
# device would have to be waited for to tell how many they are.
GUESSED = "guessed"
# What of a batch of text a model does not take.
NO_ARGUMENTS = (NEXT, GUESSED)
Inputs = Mapping[str, Any]


class Objective(Protocol):
    """A loss that adds up over units (tokens, examples), so that batches can be of any size and be accumulated."""

    def units(self, inputs: Inputs) -> int | Tensor:
        """Returns the number of units (tokens, examples) in a batch, over which the loss is summed."""

    def loss(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """The sum of the loss over the units of a batch."""


class TokenLoss:
    """A loss that adds up over tokens: those whose labels are not -100."""

    def units(self, inputs: Inputs) -> Tensor:
        """Returns the number of tokens that count in a batch, a scalar on the device of the labels."""
        count: Tensor = (inputs["labels"] != IGNORED).sum()
        return count


class MaskedTokenLoss(TokenLoss):
    """Cross-entropy of masked tokens. Only their logits are computed: a third of the work of small models is logits.

    Where a batch says whether the second half of a row follows the first, that is learned, too: the loss is the sum of
    the two means (Devlin et al. 2019). Units are the tokens to be guessed; a batch's mean over rows counts as often as
    it has such tokens.
    """

    def loss(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """Computes the loss of masked tokens plus that of the second halves of rows, in nats, a scalar.

        The first is the sum of the cross-entropy over the tokens to be guessed; the second, of batches with halves, is
        the mean cross-entropy over the rows of the batch, multiplied by the number of these tokens.
        """
        labels = inputs["labels"].flatten()
        places = inputs[GUESSED] if GUESSED in inputs else places_to_guess(inputs["labels"])

        def chosen(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            # (rows, length, hidden) -> (1, tokens, hidden), as heads work on every position by itself
            return (args[0].flatten(0, 1).index_select(0, places)[None], *args[1:])

        with _head(model).register_forward_pre_hook(chosen):
            outputs = model(**{k: v for k, v in inputs.items() if k not in ("labels", *NO_ARGUMENTS)})
        logits = token_logits(outputs)[0].float()
        guessed = nn.functional.cross_entropy(logits, labels.index_select(0, places), reduction="sum")
        if NEXT not in inputs:
            return guessed
        follows = nn.functional.cross_entropy(next_logits(outputs).float(), inputs[NEXT])
        return guessed + follows * self.units(inputs)


def places_to_guess(labels: Tensor) -> Tensor:
    """Places of the tokens that count among all of a batch, (tokens,), of labels (rows, length)."""
    return (labels.flatten() != IGNORED).nonzero()[:, 0]


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
    if not (trained := {name: p for name, p in model.named_parameters() if p.requires_grad}):
        raise OptionError("There is nothing left to train: all weights are frozen.", "Freeze fewer parts.")
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
    return {k: to_device(v, device) if isinstance(v, Tensor) else v for k, v in inputs.items()}
