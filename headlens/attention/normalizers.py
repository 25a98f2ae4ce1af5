"""What turns scores into attention weights when it is not the model's own softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import repeat_kv

from headlens.attention.contract import CallContext
from headlens.errors import SelfCheckError

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
    "layer_head_mask",
    "num_items_in_batch",
    "logits_to_keep",
    "token_type_ids",
    "deterministic",
}


def softmax(scores: Tensor) -> Tensor:
    """Softmax over the keys."""
    return torch.softmax(scores, dim=-1)


@dataclass(frozen=True)
class Entmax:
    """alpha-entmax over the keys (Peters, Niculae and Martins 2019): exact zeros for alpha > 1.

    Args:
        alpha: 1.5 or 2 (sparsemax); both have exact algorithms.
    """

    alpha: float = 1.5

    def __call__(self, scores: Tensor) -> Tensor:
        """Weights of shape (..., keys); rows whose keys are all masked become uniform, as under softmax."""
        from entmax import entmax15, sparsemax  # noqa: PLC0415 - heavy, and needed by few

        if self.alpha not in (1.5, 2.0):
            raise ValueError(f"alpha must be 1.5 or 2, not {self.alpha}")
        function = entmax15 if self.alpha == 1.5 else sparsemax
        # Rows that are masked throughout would come out as NaN.
        lowest = torch.finfo(scores.dtype).min
        dead = (scores <= lowest / 2).all(dim=-1, keepdim=True)
        weights: Tensor = function(scores.masked_fill(dead, 0.0), dim=-1)
        return weights


def attend_with(
    normalizer: Normalizer,
    context: CallContext,
    module: nn.Module,
    mask: Tensor | None,
    **kwargs: object,
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention with another normaliser.

    Args:
        normalizer: scores to weights.
        context: the call.
        module: the attention module (its training flag decides about dropout).
        mask: additive, broadcastable to (batch, heads, query, key).
        **kwargs: what the model handed to its attention function.

    Returns:
        Head outputs (batch, query, heads, d) and weights (batch, heads, query, key) before dropout.

    Raises:
        SelfCheckError: on an argument this core does not know; swallowing it would give wrong numbers.
    """
    scaling = kwargs.pop("scaling", None)
    dropout = kwargs.pop("dropout", 0.0)
    bias = kwargs.pop("position_bias", None)
    unknown = sorted(k for k, v in kwargs.items() if k not in _HARMLESS and v is not None)
    if unknown:
        raise SelfCheckError(
            f"{type(module).__name__} hands arguments to its attention that another normaliser would lose: "
            f"{', '.join(unknown)}.",
            "This model's attention can be watched, but its softmax cannot be replaced.",
        )
    groups = context.query.shape[1] // context.key.shape[1]
    key, value = repeat_kv(context.key, groups), repeat_kv(context.value, groups)
    scale = context.query.shape[-1] ** -0.5 if scaling is None else float(scaling)  # type: ignore[arg-type]
    scores = torch.matmul(context.query, key.transpose(2, 3)) * scale
    for term in (bias, mask):
        if isinstance(term, Tensor):
            scores = scores + term
    weights = normalizer(scores)
    dropped = nn.functional.dropout(weights, p=float(dropout), training=module.training)  # type: ignore[arg-type]
    return torch.matmul(dropped, value).transpose(1, 2).contiguous(), weights
