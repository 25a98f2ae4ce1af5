"""Softmax attention of a few sentences at a time, for observers of weights.

Eager attention writes all weights of a layer to memory several times before observers see them. This core hands them on
while they are in the processor's cache, and never holds more than a block of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headlens.attention.edits_and_observers import CallContext, Tokens, repeat_groups
from headlens.attention.interface import additive, causal_mask
from headlens.attention.normalizers import lowest_kept, nearly_equal, unknown_arguments
from headlens.attention.sites import eager_function

# Weights of a block: small enough for the caches of a processor, large enough for other devices.
BLOCK = {"cpu": 2**22, "other": 2**25}
# On a CUDA device there is one weight for so many bytes of its memory, of which all that is made of it takes 30.
_MOST, _BYTES_OF_EACH = 2**28, 512
# A part of a sentence has so many queries at least: what metrics do for each part grows with the sentence.
FEWEST_QUERIES = 64
# Number of queries of a sentence that are compared with eager attention.
CHECKED = 32


class BlockedSoftmax:
    """Decides for every call whether this core computes what the model does, and computes it.

    A module is trusted when, at its first call, two sentences come out as from the model's own eager attention.
    """

    def __init__(self) -> None:
        self._trusted: dict[nn.Module, bool] = {}
        self._mask: Tensor | None = None
        self._mask_is_zero = False
        self._room: Tensor | None = None

    def serves(
        self, module: nn.Module, context: CallContext, mask: Tensor | None, kwargs: Mapping[str, Any], *, causal: bool
    ) -> bool:
        """Whether this call can be computed here: no gradients, no dropout, nothing but a softmax of scores."""
        tensors = (context.query, context.key, context.value)
        learns = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        autocast = torch.is_autocast_enabled(context.query.device.type)
        if learns or autocast or module.training or kwargs.get("output_attentions") or unknown_arguments(kwargs):
            return False
        if module not in self._trusted:
            self._trusted[module] = agrees(module, context, mask, kwargs, causal=causal)
        return self._trusted[module]

    def needed(self, mask: Tensor | None) -> Tensor | None:
        """The mask, or None where it adds nothing, as in a batch without padding."""
        # Looked at on a CPU only: on a GPU the answer would wait for the queue, and adding costs little.
        if mask is None or mask.device.type != "cpu":
            return mask
        if mask is not self._mask:
            self._mask, self._mask_is_zero = mask, not mask.any()
        return None if self._mask_is_zero else mask

    def room(self, context: CallContext) -> Tensor | None:
        """Memory for the weights of a call that the next one uses again: new memory costs more than filling it."""
        query = context.query
        if query.device.type != "cpu" or query.dtype.itemsize < 4:
            return None
        size = query.shape[:3].numel() * context.key.shape[2]
        if self._room is None or self._room.dtype != query.dtype or len(self._room) < size:
            self._room = query.new_empty(size)
        return self._room

    def forget(self) -> None:
        """Drops the reference to the last mask; memory for weights and trusted modules are kept."""
        self._mask = None


class Block(NamedTuple):
    """A part of an attention call: which sentences and which queries of them, and the call cut to these."""

    rows: slice
    queries: slice
    call: CallContext


def blocks(context: CallContext, *, divisible: bool, within: bool = False) -> Iterator[Block]:
    """Cuts a call into parts of whole sentences, of about `BLOCK` weights each, and perhaps these by their queries.

    Args:
        context: the call.
        divisible: whether it may be cut at all.
        within: whether a sentence of self-attention may be cut, between its words.
    """
    sentences, n_heads, n_queries, _ = context.query.shape
    n_keys = context.key.shape[2]
    most = weights_at_once(context.query.device)
    size = max(1, most // max(1, n_heads * n_queries * n_keys))
    at_once = max(FEWEST_QUERIES, most // max(1, n_heads * n_keys))
    within = within and at_once < n_queries == n_keys and context.site.stack != "cross"
    if not divisible or (size >= sentences and not within):
        yield Block(slice(0, sentences), slice(0, n_queries), context)
        return
    for first in range(0, sentences, size):
        rows = slice(first, min(first + size, sentences))
        part = part_of(context, rows)
        for start, stop in pairwise(_cuts(part.queries, n_queries, at_once) if within else [0, n_queries]):
            is_whole = stop - start == n_queries
            yield Block(rows, slice(start, stop), part if is_whole else queries_of(part, start, stop))


def _cuts(tokens: Tokens | None, length: int, size: int) -> list[int]:
    """Where the queries of a sentence are cut: 0, every place after about `size` that divides no word, the end."""
    if tokens is not None and (tokens.segment is not None or tokens.links is not None):
        return [0, length]  # pairs of texts are compared as wholes
    places = list(range(1, length))
    if tokens is not None:
        word = (tokens.host or tokens).word[0].cpu()
        place = torch.arange(length)
        last = torch.full((length + 1,), -1).scatter_reduce(0, torch.where(word >= 0, word, length), place, "amax")
        begun = torch.where(word >= 0, last[word.clamp(min=0)], place).cummax(0).values  # where words so far end
        places = (1 + (begun <= place).nonzero()[:-1, 0]).tolist()
    cuts = [0]
    for here, following in pairwise([*places, length]):
        # The last place that makes no part too large; behind a word that is too large the next one.
        if following - cuts[-1] > size:
            cuts.append(here)
    return [*cuts, length]


def queries_of(context: CallContext, start: int, stop: int) -> CallContext:
    """Returns a call of self-attention cut to some of its queries."""
    return replace(
        context,
        query=context.query[:, :, start:stop],
        allowed=None if context.allowed is None else context.allowed[:, :, start:stop],
        queries=None if context.queries is None else context.queries.queries_of(start, stop),
        start=start,
        last=stop == context.query.shape[2],
    )


def weights_at_once(device: torch.device) -> int:
    """Returns how many weights are worked on at a time on a device."""
    if device.type == "cuda":
        return int(min(_MOST, torch.cuda.get_device_properties(device).total_memory // _BYTES_OF_EACH))
    return BLOCK.get(device.type, BLOCK["other"])


def part_of(context: CallContext, rows: slice) -> CallContext:
    """Returns an attention call cut to some sentences of its batch: their query, key, value, mask and tokens."""
    allowed = context.allowed
    return replace(
        context,
        query=context.query[rows],
        key=context.key[rows],
        value=context.value[rows],
        allowed=allowed if allowed is None or len(allowed) == 1 else allowed[rows],
        queries=None if context.queries is None else context.queries.rows(rows),
        keys=None if context.keys is None else context.keys.rows(rows),
    )


def blocked_softmax_attention(
    context: CallContext,
    terms: tuple[Tensor | None, ...],
    scaling: float | None,
    room: Tensor | None = None,
    *,
    causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention without dropout.

    Args:
        context: the call.
        terms: masks and biases, added to the scores; each broadcastable to (batch, heads, query, key).
        scaling: factor of the scores; by default the root of 1 / d.
        room: memory for the weights, of the query's type and at least as large; new memory by default.
        causal: whether a query sees only the keys up to its own position; no scores are computed for those behind the
            last query.

    Returns:
        Head outputs (batch, query, heads, d), and weights (batch, heads, query, key) of at least single precision.
    """
    query = context.query
    key, value = (repeat_groups(t, query.shape[1]) for t in (context.key, context.value))  # (batch, heads, key, d)
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    shape = (*query.shape[:3], key.shape[2])
    out = query.new_empty(shape) if room is None else room[: math.prod(shape)].view(shape)
    seen = min(shape[3], context.start + shape[2]) if causal else shape[3]
    # Scaled last, as eager attention does: rounded in the same places, near-ties mostly fall the same way.
    _flat(out)[..., :seen].baddbmm_(_flat(query), _flat(key)[:, :seen].transpose(1, 2), beta=0, alpha=factor)
    scores = out.to(torch.promote_types(out.dtype, torch.float32))
    if causal:
        scores[..., context.start :].masked_fill_(~causal_mask(query, key[:, :, context.start :]), -torch.inf)
    for term in terms:
        if term is not None:
            scores += lowest_kept(term, scores.dtype)
    # In place: every row is read before it is written.
    weights = torch.softmax(scores, dim=-1, out=scores)
    output = torch.bmm(_flat(weights)[..., :seen].to(value.dtype), _flat(value)[:, :seen])
    return output.view(*query.shape[:3], value.shape[3]).transpose(1, 2), weights


def terms_of(
    rows: slice, mask: Tensor | None, kwargs: Mapping[str, Any], queries: slice = slice(None)
) -> tuple[Tensor | None, ...]:
    """The terms that are added to the scores of some sentences and queries: position bias and mask."""
    terms = [t if t is None or t.shape[0] == 1 else t[rows] for t in (kwargs.get("position_bias"), mask)]
    return tuple(t if t is None or t.shape[2] == 1 else t[:, :, queries] for t in terms)


def agrees(
    module: nn.Module, context: CallContext, mask: Tensor | None, kwargs: Mapping[str, Any], *, causal: bool
) -> bool:
    """Whether the last queries of the first and last sentence come out as from the model's own attention."""
    part, terms = checked_part(context, mask, kwargs)
    with torch.no_grad():
        ours = blocked_softmax_attention(part, terms, kwargs.get("scaling"), causal=causal)
    return equals_own(module, part, terms, kwargs, ours, causal=causal)


def checked_part(
    context: CallContext, mask: Tensor | None, kwargs: Mapping[str, Any]
) -> tuple[CallContext, tuple[Tensor | None, ...]]:
    """The last queries of the first and last sentence of a call, and the terms that are added to their scores."""
    rows = checked_rows(context)
    start = max(0, context.query.shape[2] - CHECKED)
    part = part_of(replace(context, query=context.query[:, :, start:], queries=None, keys=None, start=start), rows)
    return part, tuple(t if t is None or t.shape[2] == 1 else t[:, :, -CHECKED:] for t in terms_of(rows, mask, kwargs))


def checked_rows(context: CallContext) -> slice:
    """The first and the last sentence of a call."""
    return slice(0, None, max(1, context.query.shape[0] - 1))


def equals_own(
    module: nn.Module,
    part: CallContext,
    terms: tuple[Tensor | None, ...],
    kwargs: Mapping[str, Any],
    ours: tuple[Tensor, Tensor],
    *,
    causal: bool,
) -> bool:
    """Whether head outputs and weights of `checked_part` are those of the model's own attention."""
    bias, mask = terms
    # T5 wants its bias as an argument, others do not know one.
    arguments = {**kwargs, "dropout": 0.0} | ({} if bias is None else {"position_bias": bias})
    with torch.no_grad():
        if causal:
            mask = additive(causal_mask(part.query, part.key, part.start), part.query.dtype)
        theirs = eager_function(module)(module, part.query, part.key, part.value, mask, **arguments)
    return all(t is not None and nearly_equal(o, t) for o, t in zip(ours, theirs, strict=True))


def _flat(tensor: Tensor) -> Tensor:
    """Reshapes (batch, heads, length, d) to (batch x heads, length, d)."""
    return tensor.reshape(-1, *tensor.shape[2:])
