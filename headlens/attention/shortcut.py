"""The last layer of a classifier, of which only the first position is looked at."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headlens.attention.recording import Record, Recording


@dataclass(frozen=True, eq=False)
class FirstPosition:
    """How the last layer can be run for its first position alone: that one looks at the keys and values of all.

    Args:
        layer: the call of the last layer, whose first argument is what keys and values are made of.
        key, value: the modules that make them.
    """

    layer: Record
    key: nn.Module
    value: nn.Module

    def keys_and_values(self, hidden: Tensor, n_heads: int) -> tuple[Tensor, Tensor]:
        """Those of all positions, (rows, heads, key, d), from the layer's input, (rows, key, hidden)."""
        key, value = (m(hidden).view(*hidden.shape[:2], n_heads, -1).transpose(1, 2) for m in (self.key, self.value))
        return key, value

    @classmethod
    def of(cls, recording: Recording) -> FirstPosition | None:
        """Whether the last layer has that shape, as BERT's has; None if not.

        Layers that normalise their input first, and positions that turn queries and keys, are left to full passes. It
        does not tell whether anybody looks at other positions: a replay of the intact pass does.
        """
        records = recording.records
        last = max(i for i, r in enumerate(records) if r.attends)
        around = [i for i, r in enumerate(records[:last]) if r.stop > last]
        inside = range(around[-1] + 1, last) if around else range(0)
        made = [next((r for i in inside if (r := records[i]).made == pointer), None) for pointer in recording.made_of]
        if None in made or len({r.given for r in made if r is not None}) != 1:
            return None
        key, value = (r for r in made if r is not None)
        for i in around:
            alone = not any(r.attends for r in records[i:last])
            if alone and records[i].given == key.given and key.given:
                return cls(records[i], key.module, value.module)
        return None


def first_position(tensor: Tensor | None, axis: int) -> Tensor | None:
    """Only the first along an axis, which masks may not have spread out."""
    return tensor if tensor is None or tensor.shape[axis] == 1 else torch.narrow(tensor, axis, 0, 1)
