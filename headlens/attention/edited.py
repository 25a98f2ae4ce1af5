"""Edits applied in order, and what each gives back looked at before anything is computed with it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from headlens.attention.contract import CallContext, Edit
from headlens.attention.interface import additive
from headlens.errors import OptionError

_MASK_ADVICE = (
    "Edit.mask gives a floating-point tensor to add to the scores, or a boolean one (True where a query may look), "
    "or None for no mask."
)
_OUTPUT_ADVICE = "Edit.output gives the head outputs back in the shape they came in."


def edited_mask(edits: Iterable[Edit], context: CallContext, mask: Tensor | None) -> Tensor | None:
    """The additive mask after all edits.

    Raises:
        OptionError: if an edit gives no mask, or one that does not fit the scores of this call.
    """
    dtype = context.query.dtype
    mask = additive(mask, dtype)
    for edit in edits:
        edited = edit.mask(context, mask)
        _check_mask(edit, context, mask, edited)
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
                _OUTPUT_ADVICE,
            )
        output = edited
    return output


def _check_mask(edit: Edit, context: CallContext, before: Tensor | None, after: Tensor | None) -> None:
    # What the model itself made of its mask is its own affair, and so is whatever has that shape.
    if after is None or after is before:
        return
    expected = (*context.query.shape[:3], context.key.shape[2])
    if isinstance(after, Tensor) and (after.is_floating_point() or after.dtype is torch.bool):
        own = before is not None and after.shape == before.shape
        if own or _broadcasts(after.shape, expected):
            return
    raise OptionError(
        f"{context.site}: the edit {type(edit).__name__} gave {_described(after)} for a mask; expected one that can be "
        f"broadcast to {expected} (batch, heads, query, key).",
        _MASK_ADVICE,
    )


def _broadcasts(shape: torch.Size, to: tuple[int, ...]) -> bool:
    """Whether a shape can be expanded to another, which it must not enlarge."""
    last = to[len(to) - len(shape) :]
    return len(shape) <= len(to) and all(own in (1, wanted) for own, wanted in zip(shape, last, strict=True))


def _described(value: object) -> str:
    if not isinstance(value, Tensor):
        return f"{type(value).__name__} instead of a tensor"
    return f"a {str(value.dtype).removeprefix('torch.')} tensor of the shape {tuple(value.shape)}"
