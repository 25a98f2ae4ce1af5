"""Decoders whose first layer has no heads left cannot use transformers' cache, which counts its length there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from headlens.errors import UnsupportedModelError
from headlens.weights.head_slicing import heads_left

_ATTRIBUTE = "headlens_cache_guard"


def guard_cache(model: PreTrainedModel, name: str) -> None:
    """Switch the cache off if a layer that counts it has lost all heads, and refuse it to those who ask for it.

    The cache tells its length by the keys of the first layer: of none there, every token would be the first one.
    Switched on again once the layer has its heads back.

    Args:
        model: the model.
        name: of the attention module that comes first.
    """
    module = model.get_submodule(name)
    empty, guarded = heads_left(module) == (), hasattr(module, _ATTRIBUTE)
    if empty and not guarded:
        setattr(module, _ATTRIBUTE, True)
        module.register_forward_pre_hook(_refuse_cache, with_kwargs=True)
    if empty or guarded:
        _use_cache(model, empty is False)


def _use_cache(model: PreTrainedModel, use: bool) -> None:  # noqa: FBT001
    owners = [m for m in model.modules() if isinstance(m, PreTrainedModel)]
    for config in [c for o in owners for c in (o.config, getattr(o, "generation_config", None))]:
        if config is not None and hasattr(config, "use_cache"):
            config.use_cache = use


def _refuse_cache(module: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    del inputs
    if kwargs.get("past_key_values") is not None and heads_left(module) == ():
        raise UnsupportedModelError(
            "The first layer of the decoder has no heads left, so that a cache could not count the tokens in it.",
            "Run the model with use_cache=False.",
        )
