"""What a model was called with, as far as it tells which tokens are real."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from headlens.attention.contract import Tokens


def named_arguments(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, those that were given by position, too."""
    # Of the class: on an instance training may have put something around it that takes anything.
    names = list(inspect.signature(type(model).forward).parameters)[1:]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def real_tokens(mask: object, ids: object = None) -> Tokens | None:
    """Which tokens are real by an attention mask (batch, tokens), of multiple choice (n, choices, tokens).

    Masks of other shapes, such as those that are added to scores, tell nothing: None.

    Args:
        mask: what the model was called with.
        ids: vocabulary ids of the same shape, if it was called with any.
    """
    if not isinstance(mask, Tensor) or mask.dim() not in (2, 3):
        return None
    given = ids.flatten(0, -2) if isinstance(ids, Tensor) and ids.shape == mask.shape else None
    return Tokens.only_real(mask.flatten(0, -2), given)
