"""The attention and mask functions headlens registers with transformers.

Every name is registered for both. A name registered only for attention would get no mask at all: models would
lose their padding and causal masks in silence.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from headlens.attention.edits_and_observers import CallContext
from headlens.attention.normalizers import unknown_arguments
from headlens.attention.sites import OWN, eager_function, sdpa_function
from headlens.errors import SelfCheckError

Kernel = Literal["eager", "sdpa", "fast"]
EAGER = "headlens"
SDPA = "headlens_sdpa"
# Eager attention of a model that also has sdpa: it gets no mask where sdpa gets none.
FAST = "headlens_fast"
NAMES = (EAGER, SDPA, FAST)
# The attention that a model was switched to, see `model_normalizer.switch`.
SWITCHED = "headlens_switched"
# Where a session leaves its link for the registered functions to find: on the modules of its own model, so
# that nothing is global and two sessions on two models do not meet.
ATTRIBUTE = "_headlens_link"
# On the processor scaled_dot_product_attention of torch 2.11 divides by the number of heads, which ends the process.
FIXED_IN = "2.13"

Attend = Callable[..., tuple[Tensor, Tensor | None]]


def own_attention(kernel: Kernel, module: nn.Module) -> Attend:
    """The function that the model itself computes the attention of this module with."""
    return sdpa_function(module) if kernel == "sdpa" else eager_function(module)


def uses_sdpa(module: nn.Module) -> bool:
    """Whether the sdpa attention of this module is transformers' own, as that of most models."""
    return inspect.unwrap(sdpa_function(module)) is sdpa_attention_forward


def is_plain_sdpa(module: nn.Module, context: CallContext, kwargs: Mapping[str, Any]) -> bool:
    """Whether the sdpa attention of a call is no more than a softmax of scores and a mask, with keys of every head."""
    drops = module.training and kwargs.get("dropout")
    is_grouped = context.key.shape[1] != context.query.shape[1]
    has_more = unknown_arguments(kwargs) or kwargs.get("position_bias") is not None
    is_cast = torch.is_autocast_enabled(context.query.device.type)
    return not (drops or is_grouped or has_more or is_cast) and uses_sdpa(module)


def _attention(kernel: Kernel, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    link = getattr(module, ATTRIBUTE, None)
    # No link: a deep copy made inside a session, or another model built from the same config object.
    attend: Attend = own_attention(kernel, module) if link is None else link.attend
    return attend(module, *args, **kwargs)


def _fast(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    linked = getattr(module, ATTRIBUTE, None) is not None
    if not linked and is_causal(module, query, attention_mask, kwargs):
        attention_mask = additive(causal_mask(query, key), query.dtype)
    return _attention("fast", module, query, key, value, attention_mask, **kwargs)


def _switched(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    # A model that was built from the configuration of a switched one would be a softmax in silence.
    if OWN not in vars(module) and getattr(module, ATTRIBUTE, None) is None:
        raise SelfCheckError(
            f"{type(module).__name__} no longer has the attention to which its model was switched.",
            "Switch the model again: headlens.attention.model_normalizer.restore_attention.",
        )
    return _attention("eager", module, *args, **kwargs)


@wraps(sdpa_attention_forward)
def sdpa_or_nothing(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Transformers' sdpa attention; for layers that lost all their heads the empty tensor, (batch, query, 0, d)."""
    if query.shape[1] == 0:
        return value.new_empty(query.shape[0], query.shape[2], 0, value.shape[3]), None
    return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)


def register_empty_layer_kernel() -> None:
    """Registers `sdpa_or_nothing` as the sdpa attention of all models, if this torch needs it."""
    if torch.__version__ < FIXED_IN:
        AttentionInterface.register("sdpa", sdpa_or_nothing)


def register_attention() -> None:
    """Registers the attention and mask functions with transformers; a second call changes nothing."""
    AttentionInterface.register(EAGER, partial(_attention, "eager"))
    AttentionMaskInterface.register(EAGER, eager_mask)
    register_empty_layer_kernel()
    AttentionInterface.register(SDPA, partial(_attention, "sdpa"))
    AttentionMaskInterface.register(SDPA, sdpa_mask)
    AttentionInterface.register(FAST, _fast)
    AttentionMaskInterface.register(FAST, fast_mask)
    AttentionInterface.register(SWITCHED, _switched)
    AttentionMaskInterface.register(SWITCHED, eager_mask)


def additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A mask to add to scores: 0 where a query may look, the dtype's lowest number where not.

    Masks that are additive already are handed on. Eager attention would add a boolean one as 0 and 1.
    """
    if mask is None or mask.is_floating_point():
        return mask
    return torch.where(mask.bool(), torch.zeros((), dtype=dtype, device=mask.device), torch.finfo(dtype).min)


def fast_mask(*args: Any, dtype: torch.dtype = torch.float32, **kwargs: Any) -> Tensor | None:
    """The mask of sdpa as an additive one: None where it is causal and no more, or masks nothing."""
    return additive(sdpa_mask(*args, **kwargs), dtype)


def is_causal(module: nn.Module, query: Tensor, mask: Tensor | None, kwargs: Mapping[str, Any]) -> bool:
    """Whether the missing mask of a call stands for a causal one, as sdpa reads it."""
    if mask is not None or query.shape[2] <= 1:
        return False
    given = kwargs.get("is_causal")
    return bool(getattr(module, "is_causal", True) if given is None else given)


def causal_mask(query: Tensor, key: Tensor, start: int = 0) -> Tensor:
    """The mask that sdpa's `is_causal` stands for, from query `start` on: (query, key), True where a query may look."""
    return query.new_ones(query.shape[2], key.shape[2], dtype=torch.bool).tril(start)


register_attention()
