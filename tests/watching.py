"""Observers and edits that remember what they met."""

from collections import Counter
from typing import Any

import torch
from transformers import PreTrainedModel

from headlens.attention.edits_and_observers import AttentionCall, CallContext, Edit, Observer
from headlens.attention.sites import Site


class Watch(Observer):
    """Keeps every committed call."""

    def __init__(self, *, needs_weights: bool = True) -> None:
        self.needs_weights = needs_weights
        self.calls: list[AttentionCall] = []
        self.pending: list[AttentionCall] = []
        self.discarded = 0

    def observe(self, call: AttentionCall) -> None:
        self.pending.append(call)

    def commit(self) -> None:
        self.calls += self.pending
        self.pending = []

    def discard(self) -> None:
        self.discarded += 1
        self.pending = []

    def weights(self) -> dict[Site, torch.Tensor]:
        return {c.site: c.weights for c in self.calls}

    def counts(self) -> Counter[str]:
        return Counter(str(c.site) for c in self.calls)


class AddToMask(Edit):
    """Adds a tensor to the mask, at one site or at all."""

    edits_mask = True

    def __init__(self, amount: torch.Tensor, site: str | None = None) -> None:
        self.amount, self.site = amount, site
        self.seen: list[tuple[CallContext, torch.Tensor | None]] = []

    def mask(self, context: CallContext, mask: torch.Tensor | None) -> torch.Tensor | None:
        self.seen.append((context, mask))
        if self.site not in (None, str(context.site)):
            return mask
        return self.amount if mask is None else mask + self.amount


def run(model: PreTrainedModel, inputs: dict[str, Any]) -> torch.Tensor:
    """The first output."""
    with torch.no_grad():
        return model(**inputs)[0]
