"""Attention masks as an edit: queries look only where a mask allows it, or their scores elsewhere are 0."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.attention.attach_edit import attach_edit
from headlens.attention.edits_and_observers import CallContext, Edit
from headlens.attention.model_normalizer import attention_of
from headlens.attention.normalizers import CallNormalizer, Normalizer, softmax
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site
from headlens.attention_masks.attention_mask import AnyMaskSource, Controlled, TextMaskSource
from headlens.errors import OptionError, counted
from headlens.heads import Stack
from headlens.interventions.removed_layers import check_layers


class MaskEdit(Edit):
    """Lets queries look only where a mask allows it, within what the model's own mask allows.

    Every sentence has the mask of its own length, placed on its own tokens: padding is left to the model's mask, and
    the model stays causal where it was. What is masked gets the dtype's lowest number, as padding does. A query that
    would be left without any key, such as that of a sentence of one token without the diagonal, looks where it would
    without the mask; `left_alone` tells whether there was any.

    Args:
        source: where queries may look, by the length of a sentence or by the text itself.
        layers: layers to which the mask applies; None for all. With shared weights (ALBERT) these are depths.
        stack: whose self-attention; None for that of the source, which is the encoder's if it does not say.
    """

    edits_mask = True

    def __init__(
        self, source: AnyMaskSource, layers: Collection[int] | None = None, stack: Stack | None = None
    ) -> None:
        self.layers = None if layers is None else frozenset(layers)
        self.stack: Stack = stack or source.stack or "encoder"
        # A control that masks what a decoder never sees would mask less than it is compared with.
        if self.stack == "decoder" and isinstance(source, Controlled):
            source = replace(source, causal=True)
        self.source = source
        # The mask of one call, for the calls of other layers with the same layer and heads of the source, the same
        # tokens and the same mask of the model: both tensors are kept, so that no other can have their identities.
        self._cached: tuple[tuple[object, ...], tuple[Tensor, Tensor | None], Tensor] | None = None
        # A scalar on the model's device: fetching it at every call would hold up the queue of a GPU.
        self._any_alone: Tensor | None = None

    @property
    def left_alone(self) -> bool:
        """Whether some query of some sentence was left without any key."""
        return self._any_alone is not None and bool(self._any_alone)

    def check(self, sites: Sequence[Site]) -> None:
        """Raises OptionError if the mask is for another stack, or other numbers of layers or heads."""
        masked = [s for s in sites if s.stack == self.stack]
        if not masked:
            stacks = ", ".join(dict.fromkeys(s.stack for s in sites))
            raise OptionError(
                f"The mask {self.source.name} is for the {self.stack}, which this model does not have.",
                f"It has: {stacks}. Masks apply to the self-attention of encoder or decoder.",
            )
        check_layers(self.layers or (), masked, "Layers of a mask")
        layers, heads = self.source.shape
        fits = layers in (1, max(s.layer for s in masked) + 1)
        for site in masked:
            # Of a model that lost heads the original number is not known: enough of them is all that can be asked.
            least = max((h.head for h in site.heads), default=0) + 1
            fits &= heads in (1, least) or (site.left is not None and heads > least)
        if not fits:
            raise OptionError(
                f"The mask {self.source.name} has the wrong shape for this model: {counted(layers, 'layer')} of "
                f"{counted(heads, 'head')}.",
                f"The {self.stack} has {counted(len(masked), 'layer')} of {counted(masked[0].n_heads, 'head')}; "
                "a mask with 1 layer or 1 head applies to all of them.",
            )

    def mask(self, context: CallContext, mask: Tensor | None) -> Tensor | None:
        """The additive mask: (batch, heads or 1, query, key).

        Raises:
            OptionError: where nobody declared which tokens are padding, or for a sentence longer than the mask.
        """
        if not self._holds(context.site):
            return mask
        real = _real(context)
        layer, heads = self._part(context.site)
        key = (layer, heads, id(real), id(mask))
        if self._cached is None or self._cached[0] != key:
            allowed = self._allowed(context, real, layer, heads)
            self._cached = key, (real, mask), self._within(allowed, mask, real, context.query.dtype)
        return self._cached[-1]

    def allowed(self, context: CallContext) -> Tensor | None:
        """Where the queries of a call may look, True also at padding: (batch, heads or 1, query, key).

        None where the mask does not hold. What the model itself masks is not in it.

        Raises:
            OptionError: as `mask` does.
        """
        return self._allowed(context, _real(context), *self._part(context.site)) if self._holds(context.site) else None

    def _holds(self, site: Site) -> bool:
        return site.stack == self.stack and (self.layers is None or site.layer in self.layers)

    def _part(self, site: Site) -> tuple[int, tuple[int, ...]]:
        """The layer and the heads of the source that are those of a site."""
        layers, n_heads = self.source.shape
        return site.layer if layers > 1 else 0, tuple(h.head for h in site.heads) if n_heads > 1 else (0,)

    def _allowed(self, context: CallContext, real: Tensor, layer: int, heads: tuple[int, ...]) -> Tensor:
        """The mask on the tokens of every sentence, True elsewhere: (batch, heads or 1, query, key)."""
        place = (real.long().cumsum(dim=1) - 1).clamp(min=0)  # of every token in its sentence, (batch, length)
        lengths = real.sum(dim=1).tolist()
        both_real = real[:, None, :, None] & real[:, None, None, :]  # (batch, 1, query, key)
        if isinstance(self.source, TextMaskSource):
            return self.source.rows(self._ids(context), real)[:, None] | ~both_real
        allowed = torch.ones(len(real), len(heads), *real.shape[1:] * 2, dtype=torch.bool, device=real.device)
        for length in {int(n) for n in lengths} - {0}:
            rows = torch.tensor([i for i, n in enumerate(lengths) if n == length], device=real.device)
            # (heads, length, length) -> (heads, rows, query, key)
            block = self.source.block(length)[layer, list(heads)].to(real.device)
            places = place[rows]
            allowed[rows] = block[:, places[:, :, None], places[:, None, :]].transpose(0, 1)
        return allowed | ~both_real

    def _ids(self, context: CallContext) -> Tensor:
        if context.queries is None or context.queries.ids is None:
            raise OptionError(
                f"{context.site}: the tokens of the batch were not declared, so {self.source.name} cannot be found "
                "for them.",
                "Give the model its input_ids and attention_mask, or declare tokens with ids in session.batch(...).",
            )
        return context.queries.ids

    def _within(self, allowed: Tensor, mask: Tensor | None, real: Tensor, dtype: torch.dtype) -> Tensor:
        """The model's own additive mask, closed where a position is not allowed: (batch, heads or 1, query, key)."""
        model_mask = torch.zeros((), dtype=dtype, device=real.device) if mask is None else mask
        lowest = torch.finfo(model_mask.dtype).min
        # Sums of lowest numbers are -inf; anything this low is 0 after a softmax.
        reaches = (allowed & (model_mask > lowest / 2)).any(dim=-1, keepdim=True)
        alone = (~reaches & real[:, None, :, None]).any()
        self._any_alone = alone if self._any_alone is None else self._any_alone.to(alone.device) | alone
        return torch.where(allowed | ~reaches, model_mask, lowest)


def _real(context: CallContext) -> Tensor:
    """Which queries are tokens: (batch, query)."""
    if context.queries is None:
        raise OptionError(
            f"{context.site}: it was not declared which tokens are padding, so the mask cannot be aligned with the "
            "sentences.",
            "Declare them with session.batch(...), or give the model its attention_mask (a decoder_attention_mask "
            "for a decoder). A decoder that generates token by token cannot be masked: choose a task scored in a "
            "single pass.",
        )
    return context.queries.real


@contextmanager
def zeroed_scores(model: PreTrainedModel, edit: MaskEdit) -> Iterator[None]:
    """Computes softmax(M ⊙ S) inside `with`, S the scores of a layer and M 1 where a mask allows to look, else 0.

    A masked score is 0 and not -∞: its key keeps the weight exp(0) / Σ exp(S), and a query whose keys are all masked
    looks at all of them alike. S has what the model adds to the scores, such as relative positions; what the model
    itself masks, padding and later tokens, stays masked.

    Args:
        model: a model that is in no session.
        edit: the mask.

    Raises:
        OptionError: if the mask does not fit the model, or its attention is no softmax.
        UnsupportedModelError: on running, if its attention is more than a softmax of scaled scores.
    """
    if attention_of(model) is not None:
        raise OptionError(
            f"--mask-rules zero-scores: the attention of this model is {attention_of(model)}, not softmax.",
            "Leave --mask-rules zero-scores out, or choose a model with softmax.",
        )
    form = _ZeroedScores(edit.source, edit.layers, edit.stack)
    # As an edit that stays with the model it is given the tokens of every pass.
    with attach_edit(model, form), AttentionSession(model, normalizer=form):
        yield


class _ZeroedScores(MaskEdit, CallNormalizer):
    """Takes the mask of every call as an edit, and applies it as the normaliser of the same call."""

    _of_call: Tensor | None = None

    def mask(self, context: CallContext, mask: Tensor | None) -> Tensor | None:
        """Returns the mask of the model as it is, and keeps where the call may look."""
        self._of_call = self.allowed(context)
        return mask

    def at(self, context: CallContext) -> Normalizer:
        """A softmax of scores that are 0 where the mask of the call allows nothing."""
        del context
        allowed, self._of_call = self._of_call, None
        if allowed is None:
            return softmax

        def normalizer(scores: Tensor) -> Tensor:
            # Sums of lowest numbers are -inf; anything this low is masked by the model itself.
            masked = ~allowed & (scores > torch.finfo(scores.dtype).min / 2)
            return softmax(scores.masked_fill(masked, 0.0))

        return normalizer
