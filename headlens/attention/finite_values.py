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

    Nothing is copied to the CPU before that, so that a pass on a GPU waits once, or once in several passes.

    Args:
        model: the model, for the error.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        # Of every place its name, and its smallest and largest number: of the pass under way, and of those before.
        self._seen: list[tuple[str, Tensor, Tensor]] = []
        self._earlier: list[tuple[str, Tensor, Tensor]] = []
        self._passes = 0

    def note_site(self, site: Site, output: Tensor) -> None:
        """Remembers the ends of the head outputs of a layer, of any shape."""
        if output.numel():
            self._seen.append((f"the attention of {site} ({site.module})", *torch.aminmax(output.detach())))

    def forget(self) -> None:
        """Forgets a pass, after its end or where it failed."""
        self._seen = []

    def check(self, outputs: Any, passes: int = 1) -> None:
        """Checks what was remembered, and the outputs of the model.

        Args:
            outputs: of the model, as transformers gives them; -inf in logits is a token that cannot be, and allowed.
            passes: after how many passes the device is waited for.

        Raises:
            NotFiniteError: naming the first layer that was not finite, or the output, and what helps.
        """
        self._earlier, self._seen, self._passes = self._earlier + self._seen, [], self._passes + 1
        if isinstance(outputs, ModelOutput):
            tensors = {name: t.detach() for name, t in outputs.items() if isinstance(t, Tensor) and t.numel()}
            highest = {n: t.amax() for n, t in tensors.items() if t.is_floating_point()}
            self._earlier += [(f"the output {name}", value, value) for name, value in highest.items()]
        if self._passes >= passes:
            self.settle()

    def settle(self) -> None:
        """Checks all passes that were not checked yet.

        Raises:
            NotFiniteError: see `check`.
        """
        seen, self._earlier, self._passes = self._earlier, [], 0
        if not seen:
            return
        ends = [end for _, *both in seen for end in both]
        kind = torch.float64 if any(end.dtype == torch.float64 for end in ends) else torch.float32
        numbers = torch.stack([end.to(ends[0].device, kind) for end in ends])
        # False for NaN, too.
        finite = ((numbers > -math.inf) & (numbers < math.inf)).view(-1, 2).all(1).cpu()
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
