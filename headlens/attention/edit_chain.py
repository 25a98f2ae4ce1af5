"""Edits applied in order; the result of each is checked before anything is computed with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from headlens.attention.edits_and_observers import CallContext, Edit
from headlens.attention.interface import EAGER, SDPA, additive, causal_mask, is_causal
from headlens.attention.kernels.differentiable_mask import floored
from headlens.errors import OptionError


class Floor:
    """Raises values below a dtype's lowest number in a mask, and keeps the result for layers with the same mask."""

    def __init__(self) -> None:
        # The mask, its version and the dtype, and what they gave.
        self._last: tuple[Tensor, tuple[int, torch.dtype], Tensor] | None = None

    def of(self, mask: Tensor, name: str, query: Tensor) -> Tensor:
        """The mask to add to scores; four axes for sdpa.

        Args:
            mask: additive, at most four axes.
            name: what transformers calls the attention.
            query: (batch, heads, query, d).
        """
        # Changes in place are not counted in inference mode; `Edit.mask` says that there are none.
        state = 0 if mask.is_inference() else mask._version, query.dtype
        if self._last is not None and self._last[0] is mask and self._last[1] == state:
            return self._last[2]
        # Two lowest numbers add up to -inf, and a row of those to NaN.
        lowest = torch.finfo(query.dtype).min
        raised = floored(mask, lowest) if mask.requires_grad else mask.clamp(min=lowest)
        if name == SDPA or not torch.is_autocast_enabled(query.device.type):
            # Without autocast weights of another dtype could not be multiplied with the values; sdpa wants two axes.
            raised = raised.to(query.dtype)[(None,) * (4 - mask.dim())]
        if not raised.requires_grad:  # else it belongs to one backward pass
            self._last = mask, state, raised
        return raised

    def forget(self) -> None:
        """Drops the references to the last mask and its floored version, so that their memory can be freed."""
        self._last = None


def mask_to_use(
    edits: Iterable[Edit],
    name: str,
    module: nn.Module,
    context: CallContext,
    call: tuple[Tensor | None, Mapping[str, Any]],
    floor: Floor,
) -> Tensor | None:
    """The mask for a kernel after all edits that change one; that of the call if none does.

    Args:
        edits: edits of the session, in order.
        name: what transformers calls the attention, see `headlens.attention.interface.NAMES`.
        module: the attention module.
        context: the call.
        call: the mask of the call, boolean or additive, and its other arguments.
        floor: floor that the edited mask goes through.
    """
    mask, kwargs = call
    if not (edits := [e for e in edits if e.edits_mask]):
        return mask
    query, key = context.query, context.key
    # sdpa's shortcut "no mask, is_causal" would lose causality with the first thing added.
    if name != EAGER and is_causal(module, query, mask, kwargs):
        mask = causal_mask(query, key)
    mask = edited_mask(edits, context, mask)
    if name == SDPA and is_causal(module, query, mask, kwargs):
        # No mask at all, by an edit: sdpa would take it for a causal one.
        mask = query.new_zeros(1, 1, 1, 1).expand(1, 1, query.shape[2], key.shape[2])
    return None if mask is None else floor.of(mask, name, query)


def allowed_keys(edits: Iterable[Edit], context: CallContext, mask: Tensor | None) -> Tensor | None:
    """Keys that queries may attend to under an edited mask or in a window, see `CallContext.allowed`; else None."""
    if not any(edit.edits_mask for edit in edits):
        if mask is None or not _exceeds_window(context):
            return None
    elif mask is None:
        return torch.ones(
            1, 1, context.query.shape[2], context.key.shape[2], dtype=torch.bool, device=context.key.device
        )
    return _open(mask)


def _exceeds_window(context: CallContext) -> bool:
    """Whether a text may be longer than what a query of a layer sees of it."""
    # Some encoders count both sides of a query, others one; where nothing is hidden, only time is lost.
    return context.window is not None and context.key.shape[2] > context.window // (1 if context.causal else 2)


def sees_later(
    name: str, module: nn.Module, context: CallContext, mask: Tensor | None, kwargs: Mapping[str, Any]
) -> bool | None:
    """Whether queries of self-attention attend to keys after them; None where the mask of a call does not tell.

    Args:
        name: what transformers calls the attention, see `headlens.attention.interface.NAMES`.
        module: the attention module.
        context: the call.
        mask: of the call, boolean or additive, before any edit.
        kwargs: other arguments of the call.
    """
    n_queries, n_keys = context.query.shape[2], context.key.shape[2]
    if n_queries == 1 or n_queries != n_keys:  # with keys of earlier passes
        return None
    if mask is None and name == EAGER:  # the model's function may hide them itself
        return True if kwargs.get("is_causal") is False else None
    if mask is None:
        return not is_causal(module, context.query, mask, kwargs)
    if mask.dim() != 4 or mask.shape[3] != n_keys:
        return None
    # Padding may attend to anything; what the last token sees is none.
    pairs = _open(mask).expand(-1, -1, n_queries, -1)
    seen = pairs[..., -1, :]
    later = (seen[..., None] & seen[..., None, :]).triu(1)
    return bool((pairs & later).any()) if later.any() else None


def _open(mask: Tensor) -> Tensor:
    """Which pairs a mask leaves open: bool, of its shape."""
    return mask > torch.finfo(mask.dtype).min / 2 if mask.is_floating_point() else mask.bool()


def own_window(module: nn.Module, kwargs: Mapping[str, Any]) -> int | None:
    """How many tokens a layer with local attention sees, see `CallContext.window`.

    Args:
        module: the attention module.
        kwargs: what it gives its attention function.
    """
    if (window := kwargs.get("sliding_window")) is not None:
        return int(window)
    config, layer = cast("Any", getattr(module, "config", None)), getattr(module, "layer_idx", None)
    kinds = getattr(config, "layer_types", None) or ()
    is_chunked = isinstance(layer, int) and layer < len(kinds) and kinds[layer] == "chunked_attention"
    return int(config.attention_chunk_size) if is_chunked else None


def edited_mask(edits: Iterable[Edit], context: CallContext, mask: Tensor | None) -> Tensor | None:
    """The additive mask after all edits.

    Raises:
        OptionError: if an edit gives no mask, or one that does not fit the scores of this call.
    """
    dtype, expected = context.query.dtype, (*context.query.shape[:3], context.key.shape[2])
    mask = additive(mask, dtype)
    for edit in edits:
        edited = edit.mask(context, mask)
        # The shape that the model gave its own mask is right, whatever it is.
        if edited is not None and edited is not mask and not _fits(edited, mask, expected):
            raise OptionError(
                f"{context.site}: the edit {type(edit).__name__} gave {_described(edited)} for a mask; expected one "
                f"that can be broadcast to {expected} (batch, heads, query, key).",
                "Edit.mask gives a floating-point tensor to add to the scores, or a boolean one (True where a query "
                "may look), or None for no mask.",
            )
        mask = additive(edited, dtype)
    return mask


def edited_output(edits: Iterable[Edit], context: CallContext, output: Tensor) -> Tensor:
    """The head outputs after all edits, (batch, query, heads, d).

    Raises:
        OptionError: if an edit gives something else than head outputs of this shape.
    """
    for edit in edits:
        edited = edit.output(context, output)
        if not isinstance(edited, Tensor) or edited.shape != output.shape or not edited.is_floating_point():
            raise OptionError(
                f"{context.site}: the edit {type(edit).__name__} gave {_described(edited)} for head outputs; expected "
                f"a floating-point tensor of the shape {tuple(output.shape)} (batch, query, heads, d).",
                "Edit.output gives the head outputs back in the shape they came in.",
            )
        output = edited
    return output


def _fits(mask: object, before: Tensor | None, expected: tuple[int, ...]) -> bool:
    """Whether a value is a mask of the shape of the one before, or of one that can be expanded to what is expected."""
    if not isinstance(mask, Tensor) or not (mask.is_floating_point() or mask.dtype is torch.bool):
        return False
    if before is not None and mask.shape == before.shape:
        return True
    # Axes are compared from the last one; none may be larger than expected.
    sizes = zip(reversed(mask.shape), reversed(expected), strict=False)
    return mask.dim() <= len(expected) and all(size in (1, target) for size, target in sizes)


def _described(value: object) -> str:
    if not isinstance(value, Tensor):
        return f"{type(value).__name__} instead of a tensor"
    return f"a {str(value.dtype).removeprefix('torch.')} tensor of the shape {tuple(value.shape)}"
