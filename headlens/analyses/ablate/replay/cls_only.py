"""The last layer of a classifier, of which only the first position is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from headlens.analyses.ablate.replay.activation_cache import ActivationCache, ModuleCall
from headlens.attention.interface import additive
from headlens.attention.normalizers import unknown_arguments
from headlens.errors import SelfCheckError


@dataclass(frozen=True, eq=False)
class ClsOnlyLayer:
    """How the last layer can be run for its first position alone: that one looks at the keys and values of all.

    Args:
        layer: the call of the last layer, whose first argument is what keys and values are made of.
        key, value: the modules that make them.
    """

    layer: ModuleCall
    key: nn.Linear
    value: nn.Linear

    def attend(self, query: Tensor, hidden: Tensor, mask: Tensor | None, kwargs: Mapping[str, Any]) -> Tensor:
        """Head outputs of the first position, without computing a key or value of any other.

        A score q·(Kx) is (Kᵀq)·x, and a mean of values Vx is V times the mean of the x. What the bias of keys adds is
        the same for all scores of a query, which a softmax does not see.

        Args:
            query: (rows, heads, 1, d).
            hidden: the layer's input, (rows, key, hidden).
            mask: boolean or additive, (rows or 1, heads or 1, query or 1, key); None for no mask.
            kwargs: further arguments of the attention call.

        Returns:
            (rows, 1, heads, d).

        Raises:
            SelfCheckError: if the attention is more than a softmax of scaled scores, or heads share keys.
        """
        n_heads, size = query.shape[1], query.shape[3]
        if unknown_arguments(kwargs) or any(m.out_features != n_heads * size for m in (self.key, self.value)):
            raise SelfCheckError("The attention of the last layer is of a kind that cannot be restricted to [CLS].")
        # (heads, d, hidden) each.
        key, value = (m.weight.view(n_heads, size, m.in_features) for m in (self.key, self.value))
        scaling = kwargs.get("scaling")
        products = torch.einsum("rhd,hdk->rhk", query[:, :, 0] * (size**-0.5 if scaling is None else scaling), key)
        # (rows, heads, hidden) times (rows, hidden, key).
        scores = products @ hidden.transpose(1, 2)
        added = additive(mask, query.dtype)
        weights = torch.softmax(scores if added is None else scores + added[:, :, 0], dim=-1)
        output = torch.einsum("rhk,hdk->rhd", weights @ hidden, value)
        if self.value.bias is not None:
            output = output + self.value.bias.view(n_heads, size)
        return output[:, None]

    @classmethod
    def of(cls, recording: ActivationCache) -> ClsOnlyLayer | None:
        """Whether the last layer has that shape, as BERT's has; None if not.

        Layers that normalise their input first, and positions that turn queries and keys, are left to full passes. It
        does not tell whether anybody looks at other positions: a replay of the intact pass does.
        """
        records = recording.records
        last = max(i for i, r in enumerate(records) if r.attends)
        around = [i for i, r in enumerate(records[:last]) if r.stop > last]
        inside = range(around[-1] + 1, last) if around else range(0)
        makers = [next((r for i in inside if (r := records[i]).made == pointer), None) for pointer in recording.made_of]
        if None in makers or len({r.given for r in makers if r is not None}) != 1:
            return None
        key, value = (r for r in makers if r is not None)
        if not (_plain(key.module) and _plain(value.module)):
            return None
        for i in around:
            alone = not any(r.attends for r in records[i:last])
            if alone and records[i].given == key.given and key.given:
                return cls(records[i], key.module, value.module)
        return None


def _plain(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether all a module does is to be read from its weights; subclasses and hooks may do more."""
    return type(module) is nn.Linear and not module._forward_hooks and not module._forward_pre_hooks
