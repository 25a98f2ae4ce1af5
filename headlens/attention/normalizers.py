"""What turns scores into attention weights when it is not the model's own softmax."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headlens.attention.contract import CallContext
from headlens.attention.sites import eager_function
from headlens.errors import OptionError, UnsupportedModelError
from headlens.models.known import FAMILIES

# (scores of shape (..., keys)) -> weights of the same shape that sum to 1 over the keys.
Normalizer = Callable[[Tensor], Tensor]

# Arguments that models hand on to every attention function and that mean nothing to this core: the mask
# already holds what sliding_window, is_causal and the positions say.
_HARMLESS = {
    "is_causal",
    "output_attentions",
    "output_hidden_states",
    "use_cache",
    "cache_position",
    "position_ids",
    "sliding_window",
    "return_dict",
    "num_items_in_batch",
    "logits_to_keep",
    "token_type_ids",
    "deterministic",
}


class CallNormalizer(ABC):
    """A normaliser that is another one for every call: by layer, or by the sentences of the batch."""

    @abstractmethod
    def at(self, context: CallContext) -> Normalizer:
        """That of a call."""


def softmax(scores: Tensor) -> Tensor:
    """Softmax over the keys."""
    return torch.softmax(scores, dim=-1)


@dataclass(frozen=True)
class Entmax:
    """alpha-entmax over the keys (Peters, Niculae and Martins 2019): exact zeros for alpha > 1.

    Args:
        alpha: 1.5 or 2 (sparsemax); both have exact algorithms.

    Raises:
        OptionError: for any other alpha.
    """

    alpha: float = 1.5

    def __post_init__(self) -> None:
        if self.alpha not in (1.5, 2.0):
            raise OptionError(f"entmax with alpha {self.alpha} is not offered.", "Use 1.5, or 2 for sparsemax.")

    def __call__(self, scores: Tensor) -> Tensor:
        """Weights of shape (..., keys); rows whose keys are all masked become uniform, as under softmax."""
        from entmax import entmax15, sparsemax  # noqa: PLC0415 - heavy, and needed by few

        function = entmax15 if self.alpha == 1.5 else sparsemax
        # Rows that are masked throughout would come out as NaN.
        lowest = torch.finfo(scores.dtype).min
        dead = (scores <= lowest / 2).all(dim=-1, keepdim=True)
        weights: Tensor = function(scores.masked_fill(dead, 0.0), dim=-1)
        return weights


def attend_with(
    normalizer: Normalizer | CallNormalizer,
    context: CallContext,
    module: nn.Module,
    mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention with another normaliser, which gets scores of at least single precision.

    Args:
        normalizer: scores to weights.
        context: the call.
        module: the attention module (its training flag decides about dropout).
        mask: additive, broadcastable to (batch, heads, query, key).
        **kwargs: what the model handed to its attention function.

    Returns:
        Head outputs (batch, query, heads, d) and weights (batch, heads, query, key) before dropout.

    Raises:
        UnsupportedModelError: on an argument this core does not know; swallowing it would give wrong numbers.
    """
    _refuse_unknown(module, kwargs)
    query, value = context.query, context.value
    # (batch, heads, key, d) from (batch, key heads, key, d)
    groups = query.shape[1] // max(1, value.shape[1])
    key, value = (t.repeat_interleave(groups, dim=1) if groups > 1 else t for t in (context.key, value))
    scaling = kwargs.get("scaling")
    scores = torch.matmul(query, key.transpose(2, 3)) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    bias = kwargs.get("position_bias")
    scores = scores if bias is None else scores + bias
    if isinstance(normalizer, CallNormalizer):
        normalizer = normalizer.at(context)
    weights = normalizer(scores if mask is None else scores + lowest_kept(mask, scores.dtype))
    dropped = nn.functional.dropout(weights, p=kwargs.get("dropout") or 0.0, training=module.training)
    return torch.matmul(dropped.to(value.dtype), value).transpose(1, 2).contiguous(), weights


def check_core(context: CallContext, module: nn.Module, mask: Tensor | None, **kwargs: Any) -> None:
    """Compare this core under softmax with the model's own attention.

    Raises:
        UnsupportedModelError: if they differ: the model does more between scores and output than its arguments say.
    """
    kwargs = {**kwargs, "dropout": 0.0}
    with torch.no_grad():
        ours, _ = attend_with(softmax, context, module, mask, **kwargs)
        theirs, _ = eager_function(module)(module, context.query, context.key, context.value, mask, **kwargs)
    largest = theirs.abs().max() if theirs.numel() else 0.0
    if not torch.allclose(ours.float(), theirs.float(), rtol=0, atol=100 * torch.finfo(ours.dtype).eps * largest):
        raise _irreplaceable(f"{context.site}: the attention of {type(module).__name__}", "")


def unknown_arguments(kwargs: Mapping[str, object]) -> list[str]:
    """Arguments of a model's attention that a core of our own would lose."""
    known = _HARMLESS | {"scaling", "dropout", "position_bias"}
    return sorted(k for k, v in kwargs.items() if k not in known and v is not None and v is not False)


def _refuse_unknown(module: nn.Module, kwargs: Mapping[str, object]) -> None:
    unknown = unknown_arguments(kwargs)
    if unknown:
        raise _irreplaceable(
            f"The attention of {type(module).__name__}",
            f": another normaliser would lose what it is given as {', '.join(unknown)}",
        )


def _irreplaceable(whose: str, lost: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{whose} is more than a softmax of scaled scores{lost}.",
        "Its softmax cannot be replaced, neither by entmax nor for relevance by any rule but gradxact and taylor; "
        f"everything else works. Models whose softmax can be: {', '.join(f.title for f in FAMILIES)}.",
    )


def lowest_kept(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask in another dtype, whose lowest number still means masked."""
    if mask.dtype == dtype:
        return mask
    return mask.to(dtype).masked_fill(mask <= torch.finfo(mask.dtype).min, torch.finfo(dtype).min)
