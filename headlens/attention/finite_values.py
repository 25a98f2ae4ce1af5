"""Whether what a model computes are numbers: attention of every layer and the outputs, once per forward pass."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput

from headlens.attention.sites import Site
from headlens.errors import NotFiniteError


class FiniteValues:
    """Remembers of every layer of a forward pass whether its attention was finite, and tells at the end of the pass.

    Nothing is copied to the CPU before that, so that a pass on a GPU waits once.

    Args:
        model: the model, for the error.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._seen: list[tuple[str, Tensor]] = []

    def note_site(self, site: Site, output: Tensor) -> None:
        """Remembers whether the head outputs of a layer, of any shape, are finite."""
        if output.numel():
            low, high = torch.aminmax(output.detach())
            # False for NaN, too.
            self._seen.append((f"the attention of {site} ({site.module})", (low > -math.inf) & (high < math.inf)))

    def forget(self) -> None:
        """Forgets a pass, after its end or where it failed."""
        self._seen = []

    def check(self, outputs: Any) -> None:
        """Checks what was remembered, and the outputs of the model.

        Args:
            outputs: of the model, as transformers gives them; -inf in logits is a token that cannot be, and allowed.

        Raises:
            NotFiniteError: naming the first layer that was not finite, or the output, and what helps.
        """
        seen, self._seen = self._seen, []
        if isinstance(outputs, ModelOutput):
            tensors = {name: t.detach() for name, t in outputs.items() if isinstance(t, Tensor) and t.numel()}
            highest = {n: t.amax() for n, t in tensors.items() if t.is_floating_point()}
            seen += [(f"the output {n}", (value > -math.inf) & (value < math.inf)) for n, value in highest.items()]
        if not seen:
            return
        device = seen[0][1].device
        finite = torch.stack([flag.to(device) for _, flag in seen]).cpu()
        if not finite.all():
            raise not_finite(self._model, seen[int((~finite).nonzero()[0])][0])


def not_finite(model: PreTrainedModel, where: str) -> NotFiniteError:
    """Returns the error for a model that gives NaN or infinity, with what helps.

    Args:
        model: the model.
        where: the first place that is known.
    """
    kind = str(model.dtype).removeprefix("torch.")
    advice = {
        "float16": "Numbers above 65,504 overflow in it: use --dtype float32, or bfloat16.",
        "bfloat16": "Use --dtype float32.",
    }
    return NotFiniteError(
        f"{type(model).__name__} gives NaN or infinity in {kind}, first in {where}.",
        advice.get(kind, "Its weights are too large, or were damaged in training: give another checkpoint."),
    )
