"""Normalisers, functions from scores to attention weights, other than the model's own softmax."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headlens.attention.edits_and_observers import CallContext, repeat_groups
from headlens.attention.sites import file_function
from headlens.attention.supported_models import FAMILIES
from headlens.errors import OptionError, UnsupportedModelError
from headlens.weights.head_slicing import ALPHAS

# (scores of shape (..., keys)) -> weights of the same shape that sum to 1 over the keys.
Normalizer = Callable[[Tensor], Tensor]

# Those with exact algorithms: the names of their functions, which are also names of normalisers.
_EXACT = {1.5: "entmax15", 2.0: "sparsemax"}
_SPARSEST = 10.0  # alpha beyond which bisection has nothing left to tell apart
_DENSEST = 1.01  # learned alphas stay above, as in the authors' code: nearer to 1 their gradient is all rounding

# Arguments that models hand on to every attention function and that mean nothing to this core: the mask
# already holds what sliding_window, is_causal and the positions say.
_HARMLESS = {
    *("is_causal", "sliding_window", "position_ids", "cache_position", "token_type_ids", "use_cache", "return_dict"),
    *("output_attentions", "output_hidden_states", "num_items_in_batch", "logits_to_keep", "deterministic"),
}


class CallNormalizer(ABC):
    """A normaliser that depends on the call: on its layer, or on the sentences of its batch."""

    @abstractmethod
    def at(self, context: CallContext) -> Normalizer:
        """Returns the normaliser of one call: a function from scores `(..., key)` to weights of the same shape."""


def softmax(scores: Tensor) -> Tensor:
    """Computes the softmax of scores `(..., key)` over the keys: weights of the same shape that sum to 1."""
    return torch.softmax(scores, dim=-1)


@dataclass(frozen=True)
class Entmax:
    """alpha-entmax over the keys (Peters, Niculae and Martins 2019): exact zeros for alpha > 1.

    Args:
        alpha: above 1; 1.5 and 2 (sparsemax) have exact algorithms, others are found by bisection. The larger, the
            sparser.

    Raises:
        OptionError: if alpha is out of range.
    """

    alpha: float = 1.5

    def __post_init__(self) -> None:
        if not 1 < self.alpha <= _SPARSEST:
            raise OptionError(
                f"entmax with alpha {self.alpha:g} is not supported.",
                f"Use a number above 1 (1 would be softmax) and at most {_SPARSEST:g}: 1.5, or 2 for sparsemax.",
            )

    def __str__(self) -> str:
        return _EXACT.get(self.alpha, f"entmax:{self.alpha:g}")

    def __call__(self, scores: Tensor) -> Tensor:
        """Weights of shape (..., keys); rows whose keys are all masked become uniform, as under softmax."""
        return _entmax(scores, self.alpha)

    def of_module(self, module: nn.Module) -> Normalizer:
        """Returns the normaliser of an attention module, which is the same for all."""
        del module
        return self


@dataclass(frozen=True)
class LearnedEntmax:
    """alpha-entmax with an alpha that every head learns (Correia, Niculae and Martins 2019, section 3).

    Attention modules have a parameter `ALPHAS` for it, which `headlens.attention.model_normalizer.switch` gives them.
    """

    def __str__(self) -> str:
        return "entmax:learned"

    def of_module(self, module: nn.Module) -> Normalizer:
        """Returns the normaliser of an attention module, with the alphas that its heads have now."""
        return HeadEntmax(alphas_of(module))


@dataclass(frozen=True, eq=False)
class HeadEntmax:
    """alpha-entmax over the keys, with an alpha for each head.

    Args:
        alphas: `(heads,)`, above 1; gradients flow to them.
    """

    alphas: Tensor

    def __call__(self, scores: Tensor) -> Tensor:
        """Computes weights of scores `(batch, heads, query, key)`, of the same shape; masked rows as in `Entmax`."""
        return _entmax(scores, self.alphas.to(scores.dtype)[:, None, None])  # (heads, query, key)


ModelNormalizer = Entmax | LearnedEntmax


def alphas_of(module: nn.Module) -> Tensor:
    """The alphas 1 + sigmoid(a) of the heads of a module that learns them, from 1.01 to 2: `(heads,)`."""
    logits = module.get_parameter(ALPHAS)
    return (1 + torch.sigmoid(logits.to(torch.promote_types(logits.dtype, torch.float32)))).clamp(min=_DENSEST)


def _entmax(scores: Tensor, alpha: float | Tensor) -> Tensor:
    """Weights of scores; rows that are masked throughout, which would come out as NaN, count as zeros."""
    from headlens.attention.kernels.entmax_rows import entmax_of_rows, entmax_refusal  # noqa: PLC0415 - of few models

    if not entmax_refusal(scores, alpha, entmax_of_package):
        return entmax_of_rows(scores, alpha)
    return entmax_of_package(scores, alpha)


def entmax_of_package(scores: Tensor, alpha: float | Tensor) -> Tensor:
    """Computes entmax over the last axis by the package `entmax`, which kernels are compared with.

    Args:
        scores: `(..., key)`; rows that are masked throughout count as zeros.
        alpha: of all rows, or of every head, `(heads, 1, 1)`.
    """
    import entmax  # noqa: PLC0415 - heavy, and needed by few

    exact = None if isinstance(alpha, Tensor) else _EXACT.get(alpha)
    function = getattr(entmax, exact) if exact else partial(entmax.entmax_bisect, alpha=alpha)
    is_masked = (scores <= torch.finfo(scores.dtype).min / 2).all(dim=-1, keepdim=True)
    weights: Tensor = function(scores.masked_fill(is_masked, 0.0), dim=-1)
    return weights


def parse_normalizer(text: str) -> ModelNormalizer | None:
    """Reads `softmax` (None), `entmax15`, `sparsemax`, `entmax:learned` or `entmax:ALPHA`.

    Raises:
        OptionError: if it is none of these.
    """
    name, colon, alpha = (part.strip() for part in text.lower().partition(":"))
    if name + colon + alpha in _NAMED:
        return _NAMED[name + colon + alpha]
    try:
        if name != "entmax" or not colon:
            raise ValueError
        return Entmax(float(alpha))
    except ValueError as error:
        raise OptionError(
            f"--attention {text!r} is unknown.", f"Choose one of {', '.join(_NAMED)}, entmax:1.3."
        ) from error


_NAMED: dict[str, ModelNormalizer | None] = {
    "softmax": None,
    **{name: Entmax(alpha) for alpha, name in _EXACT.items()},
    str(LearnedEntmax()): LearnedEntmax(),
}


def attend_as(
    normalizer: Normalizer,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention with another normaliser, which gets scores of at least single precision.

    The arguments are those that models give to their attention functions.

    Args:
        normalizer: function from scores to weights.
        module: the attention module (its training flag decides about dropout).
        query: (batch, heads, query, d).
        key: (batch, key heads, key, d).
        value: (batch, key heads, key, d).
        attention_mask: additive, broadcastable to (batch, heads, query, key).
        **kwargs: further arguments of the model's attention function.

    Returns:
        Head outputs (batch, query, heads, d) and weights (batch, heads, query, key) before dropout.

    Raises:
        UnsupportedModelError: on an argument this core does not know; swallowing it would give wrong numbers.
    """
    if unknown := unknown_arguments(kwargs):
        raise _irreplaceable(
            f"The attention of {type(module).__name__}",
            f", and another normaliser would ignore its arguments {', '.join(unknown)}",
        )
    key, value = (repeat_groups(t, query.shape[1]) for t in (key, value))  # (batch, heads, key, d)
    scaling = kwargs.get("scaling")
    scores = torch.matmul(query, key.transpose(2, 3)) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    bias = kwargs.get("position_bias")
    scores = scores if bias is None else scores + bias
    weights = normalizer(scores if attention_mask is None else scores + lowest_kept(attention_mask, scores.dtype))
    dropped = nn.functional.dropout(weights, p=kwargs.get("dropout") or 0.0, training=module.training)
    return torch.matmul(dropped.to(value.dtype), value).transpose(1, 2).contiguous(), weights


def check_core(context: CallContext, module: nn.Module, mask: Tensor | None, **kwargs: Any) -> None:
    """Compares this core under softmax with the model's own attention.

    Raises:
        UnsupportedModelError: if they differ: the model does more between scores and output than its arguments say.
    """
    arguments = (module, context.query, context.key, context.value, mask)
    kwargs = {**kwargs, "dropout": 0.0}
    with torch.no_grad():
        ours, _ = attend_as(softmax, *arguments, **kwargs)
        theirs, _ = file_function(module)(*arguments, **kwargs)
    # What is not finite cannot be compared; `FiniteValues` tells where it began.
    if torch.isfinite(theirs).all() and not nearly_equal(ours, theirs):
        raise _irreplaceable(f"{context.site}: the attention of {type(module).__name__}", "")


def unknown_arguments(kwargs: Mapping[str, object]) -> list[str]:
    """Names of the arguments of a model's attention that the cores of headlens would lose."""
    known = _HARMLESS | {"scaling", "dropout", "position_bias"}
    return sorted(k for k, v in kwargs.items() if k not in known and v is not None and v is not False)


def _irreplaceable(subject: str, lost: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{subject} is not just a softmax of scaled scores{lost}.",
        "Its softmax cannot be replaced, neither by entmax nor for relevance by any rule but gradxact, taylor "
        "and logit-attribution; everything else works. Models whose softmax can be: "
        f"{', '.join(f.title for f in FAMILIES)}.",
    )


def nearly_equal(ours: Tensor, theirs: Tensor) -> bool:
    """Whether a result has the shape of another and differs from it by roundings of its largest number alone.

    Results that are not finite are equal to none.
    """
    if ours.shape != theirs.shape or not theirs.numel():
        return ours.shape == theirs.shape
    # Both at once: a device is waited for once.
    largest, apart = torch.stack([theirs.float().abs().max(), (ours.float() - theirs.float()).abs().max()]).tolist()
    tolerance = 100 * torch.finfo(theirs.dtype).eps * largest
    return math.isfinite(tolerance) and apart <= tolerance


def lowest_kept(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Casts an additive mask to another dtype; the lowest number of its own becomes the lowest of the other."""
    if mask.dtype == dtype:
        return mask
    return mask.to(dtype).masked_fill(mask <= torch.finfo(mask.dtype).min, torch.finfo(dtype).min)
