"""A model without heads, whatever its architecture: cut out where that can be done, else their outputs set to 0."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from torch import Tensor
from transformers import PreTrainedModel

from headlens.attention.attach_edit import attach_edit
from headlens.attention.edits_and_observers import CallContext, Edit
from headlens.attention.persistent_edit import persistent_edit_of
from headlens.heads import Head
from headlens.interventions.compacting import can_cut, without_heads
from headlens.interventions.gates import HeadGates


class _ThenGates(Edit):
    """An edit that stays with a model, and gates after it."""

    def __init__(self, first: Edit, gates: HeadGates) -> None:
        self.edits_mask, self._first, self._gates = first.edits_mask, first, gates

    def mask(self, context: CallContext, mask: Tensor | None) -> Tensor | None:
        return self._first.mask(context, mask)

    def output(self, context: CallContext, output: Tensor) -> Tensor:
        return self._gates.output(context, self._first.output(context, output))


@contextmanager
def pruned_model(model: PreTrainedModel, heads: Collection[Head]) -> Iterator[PreTrainedModel]:
    """Gives a model without heads inside `with`: a smaller copy, or the model itself with their outputs set to 0.

    Heads are cut out where headlens knows how the weights are laid out, see `without_heads`. Both compute the same.

    Args:
        model: the model, in no session. An edit that stays with it stays.
        heads: those that go; none leaves the model as it is.

    Raises:
        OptionError: on a head that the model does not have.
    """
    if not heads or can_cut(model, heads):
        yield without_heads(model, heads)
        return
    gates = HeadGates(dict.fromkeys(heads, 0.0))
    if (persistent := persistent_edit_of(model)) is None:
        with attach_edit(model, gates):
            yield model
        return
    first = persistent.edit
    persistent.edit = _ThenGates(first, gates)
    try:
        yield model
    finally:
        persistent.edit = first
