"""One attention call with the quantities that several metrics need, each worked out once."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from headlens.attention.edits_and_observers import AttentionCall, CallContext, Tokens, repeat_groups
from headlens.errors import SelfCheckError
from headlens.metrics.batch_cache import once_per_batch
from headlens.metrics.reductions import dot, entropy, exact_type, largest
from headlens.metrics.words import (
    GatherPlan,
    WordLevel,
    equal_shares,
    most_tokens,
    plan,
    pointed_at,
    tied_words,
    word_level,
    word_weights,
    words_by_size,
)
from headlens.options import Level

# Columns that are cheaper to fetch one by one than with a pass over all weights.
MOST_SPECIAL = 8
# From how many keys on adding rows of weights is faster than a product with the matrix of all parts, on a processor.
_LONG = 128


class Peak(NamedTuple):
    """The most attended key of every query: (batch, heads, query) each.

    A query points nowhere, `key` -1, when it has no candidate key (`weight` -1) or gives all of them exactly 0.
    """

    weight: Tensor
    key: Tensor


class Targets(NamedTuple):
    """Where rows point, see `CallView.targets`; (rows, heads) each.

    Args:
        token: first token of the word, -1 for none.
        share: of a `NullView`, how much of the row points there; None where all of it does.
    """

    token: Tensor
    share: Tensor | None = None

    def at(self, rows: Tensor) -> Targets:
        """Returns those of some rows, by their numbers."""
        return Targets(self.token[rows], None if self.share is None else self.share[rows])

    def mean(self, values: Tensor) -> Tensor:
        """What is true of the targets, (rows, heads), of every head; where several tie, its mean over them."""
        return values if self.share is None else (values * self.share).sum(1, keepdim=True)


class QueriedTokens(NamedTuple):
    """Tokens of both sides, and the words of the queries that metrics ask about."""

    queries: Tokens
    keys: Tokens
    plan: GatherPlan


class CallView:
    """What a metric sees of an attention call, at token or at word level.

    `weights` are (batch, heads, query, key) in at least float32; `queries` and `keys` tell about the two sides. Of a
    long sentence one view after the other may have some of the queries, the first of them number `start`.

    Attributes:
        crosses: whether queries and keys are different sequences.
        to_tokens: share of each query token's attention that goes to tokens, (batch, heads, query); None where it is 1.
        sums_dtype: float64, or float32 on devices that have no more.
    """

    def __init__(self, call: AttentionCall, level: Level = "token") -> None:
        if call.weights is None or call.queries is None or call.keys is None:
            raise SelfCheckError(f"{call.site}: a metric needs attention weights and the tokens of the batch.")
        self._begin(call, call.queries, call.keys, level)

    def _begin(self, call: AttentionCall, queries: Tokens, keys: Tokens, level: Level = "token") -> None:
        self.site, self.causal, self.start, self.level = call.site, call.causal, call.start, level
        self.crosses = call.site.stack == "cross"
        self.to_tokens, self.sums_dtype = call.to_tokens, exact_type(call.query)
        self._queries, self._keys, self._call = queries, keys, call
        # What the views of the queries before these kept for a metric, see `of_sentences`.
        self.earlier: dict[str, tuple[Tensor, ...]] = {}

    @cached_property
    def token_weights(self) -> Tensor:
        """Attention weights between tokens, whatever the level of the view; (batch, heads, query, key).

        Where a part of attention goes to no token (a learned sink), given that it goes to one.
        """
        weights = self._call.distribution
        assert weights is not None
        return weights

    def take_over(self, before: CallView) -> None:
        """Takes over what is known of the keys from the view of the queries before these."""
        if "value_norms" in vars(before):
            vars(self)["value_norms"] = before.value_norms

    def of_sentences(self, name: str, *sums: Tensor) -> tuple[Tensor, ...] | None:
        """Sums by sentence with those of the queries before; None as long as more queries of the sentences follow.

        Squares of sums, which intervals need, can be made of whole sentences only.

        Args:
            name: tells the sums of a metric apart.
            sums: of the queries of this view; the sentence first.
        """
        if self.start:
            sums = tuple(here + before for here, before in zip(sums, self.earlier.pop(name), strict=True))
        if self._call.last:
            return sums
        self.earlier[name] = sums
        return None

    def neighbours(self, weights: Tensor, offset: int) -> tuple[Tensor, slice, slice]:
        """Weights (batch, heads, query, key) of self-attention between tokens that are `offset` apart.

        Returns:
            Weights (batch, heads, queries) of the queries that have such a key; which queries, and which keys.
        """
        n_queries, n_keys = weights.shape[2:]
        shift = self.start + offset
        first = max(0, -shift)
        stop = max(first, min(n_queries, n_keys - shift))
        pairs = weights[:, :, first:stop].diagonal(max(0, shift), dim1=2, dim2=3)
        return pairs, slice(first, stop), slice(first + shift, stop + shift)

    @cached_property
    def query_words(self) -> WordLevel:
        """Grouping of the query tokens into words, computed on first access."""
        return word_level(self._queries)

    @cached_property
    def key_words(self) -> WordLevel:
        """Grouping of the key tokens into words, computed on first access."""
        return word_level(self._keys)

    @cached_property
    def word_weights(self) -> Tensor:
        """Word-level attention (batch, heads, query units, key units), whatever the level of the view."""
        return word_weights(self.token_weights, self.query_words, self.key_words)

    @property
    def n_heads(self) -> int:
        """Number of the heads that the view shows."""
        return self.token_weights.shape[1]

    @cached_property
    def entropies(self) -> Tensor:
        """Entropy of every query's attention in nats, at the level of the view; (batch, heads, query)."""
        return entropy(self.weights)

    @property
    def distances(self) -> Tensor:
        """Mean number of keys between a query and what it attends to, in self-attention; (batch, heads, query)."""
        return dot(self.weights, _away(self.start, *self.weights.shape[2:], self.weights.device, self.weights.dtype))

    def neighbour_weights(self, offset: int) -> tuple[Tensor, slice, slice]:
        """What `neighbours` gives of weights at the level of the view."""
        return self.neighbours(self.weights, offset)

    def read_neighbour_weights(self, offset: int) -> tuple[Tensor, slice, slice]:
        """`neighbours` of what values of tokens are multiplied by, whatever the level of the view."""
        return self.neighbours(self.read_weights, offset)

    def between_parts(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Sums of weights from and to parts of speech, (heads, from, to).

        Args:
            queries: what `one_hot_upos` gives of the queries.
            keys: the same of the keys.
        """
        from_parts = _from_parts(self.weights, queries[..., :-1])
        return torch.einsum("bhfk,bkt->hft", from_parts, keys.to(self.weights.dtype))

    def given_to(self, kinds: Tensor) -> Tensor:
        """Weights between tokens that every query gives to kinds of keys, (batch, heads, query, kinds).

        Args:
            kinds: which keys are of each; (batch, key, kinds).
        """
        return torch.matmul(self.token_weights, kinds.to(self.token_weights.dtype)[:, None])

    @cached_property
    def token_received(self) -> Tensor:
        """Weights between tokens that every key receives from all real queries: (batch, heads, key)."""
        return _received(self.token_weights, self._queries)

    @cached_property
    def read_weights(self) -> Tensor:
        """What values of tokens are multiplied by, (batch, heads, query, key): rows add up to `to_tokens`."""
        return self.token_weights if self.to_tokens is None else self.token_weights * self.to_tokens[..., None]

    @property
    def read_received(self) -> Tensor:
        """The sum of `read_weights` over real queries: (batch, heads, key)."""
        return self.token_received if self.to_tokens is None else _received(self.read_weights, self._queries)

    @property
    def received(self) -> Tensor:
        """Weights that every key receives from all real queries, at the level of the view: (batch, heads, key)."""
        return self.token_received if self.level == "token" else _received(self.weights, self.queries)

    @cached_property
    def value_norms(self) -> Tensor | None:
        """Norms of projected values, (batch, heads, key); None where the output projection is not known."""
        gram = self._call.gram
        return None if gram is None else projected_norms(repeat_groups(self._call.value, self.n_heads), gram)

    @cached_property
    def output_norms(self) -> Tensor | None:
        """Norms of projected head outputs, (batch, heads, query); None where the output projection is not known."""
        gram = self._call.gram
        return None if gram is None else projected_norms(self._call.output.transpose(1, 2), gram)

    @property
    def weights(self) -> Tensor:
        """Attention weights at the level of the view."""
        return self.token_weights if self.level == "token" else self.word_weights

    @property
    def queries(self) -> Tokens:
        """Tokens of the query sequence, or its words where the view is at word level."""
        return self._queries if self.level == "token" else self.query_words.tokens

    @property
    def keys(self) -> Tokens:
        """Tokens of the key sequence, or its words where the view is at word level."""
        return self._keys if self.level == "token" else self.key_words.tokens

    @cached_property
    def peak(self) -> Peak:
        """The most attended key that is not special; the first one of several equal. A `weight` is never below 0."""
        special, columns = special_keys(self.keys), self._columns
        if special is None or columns is None or self.weights.requires_grad:
            weight, key = largest(self.weights * (~self.keys.special).to(self.weights.dtype)[:, None, None])
        else:
            # Special keys are taken out for a moment: a copy of all weights without them would cost more than the
            # search. A number would be copied to the device, which waits for it.
            self.weights[special.sentence, :, :, special.token] = columns.new_zeros(())
            weight, key = largest(self.weights)
            self.weights[special.sentence, :, :, special.token] = columns
        # Rows that are masked throughout weigh padding as they do everything else.
        is_special = self.keys.special.gather(1, key.flatten(1)).view(key.shape)
        return Peak(weight, key.masked_fill((weight <= 0) | is_special, -1))

    @cached_property
    def _columns(self) -> Tensor | None:
        """Weights of the special keys: (batch, special keys, heads, query); None where there are too many."""
        special = special_keys(self.keys)
        return None if special is None else self.weights[special.sentence, :, :, special.token]

    @cached_property
    def highest(self) -> tuple[Tensor, Tensor]:
        """The largest weight among real keys that are no separators, and among all keys; (batch, heads, query).

        What is not special was looked through for the peak; of the special keys there are few.
        """
        special, columns = special_keys(self.keys), self._columns
        if special is None or columns is None:
            between = self.keys.real & ~self.keys.separator
            return peak_among(self.weights, between).weight.clamp(min=0), self.weights.amax(-1)
        if not columns.shape[1]:
            return self.peak.weight, self.peak.weight
        others = columns.masked_fill(special.separator[:, :, None, None], 0).amax(1)
        return torch.maximum(self.peak.weight, others), torch.maximum(self.peak.weight, columns.amax(1))

    @cached_property
    def peaked(self) -> Tensor:
        """Queries that are not special and point somewhere; (batch, heads, query)."""
        return ~self.queries.special[:, None] & (self.peak.key >= 0)

    @property
    def queried(self) -> QueriedTokens:
        """The words that metrics ask about, whatever the level of the view."""
        return QueriedTokens(self._queries, self._keys, plan(self._queries, self._keys))

    @cached_property
    def word_targets(self) -> Tensor:
        """First token of the word that every word asked about attends to most, -1 for none; (rows, heads)."""
        return pointed_at(self.token_weights, self.queried.plan)

    @cached_property
    def other_targets(self) -> Tensor:
        """First token of the other word that every word asked about attends to most, -1 for none; (rows, heads)."""
        return pointed_at(self.token_weights, self.queried.plan, others=True)

    def targets(self, chosen: GatherPlan, *, others: bool = False, allowed: Tensor | None = None) -> Targets:
        """Where the words asked about point, as `pointed_at` finds it."""
        if allowed is None and chosen is self.queried.plan:
            return Targets(self.other_targets if others else self.word_targets)
        return Targets(pointed_at(self.token_weights, chosen, others=others, allowed=allowed))

    @cached_property
    def allowed(self) -> Tensor | None:
        """Real keys that queries may attend to under an edited mask, or in a window; (batch, 1 or heads, query, key).

        None where all keys are seen, in a causal stack those so far. A word sees another one if one of its tokens sees
        one of that one's.
        """
        if self._call.allowed is None:
            return None
        allowed = self._call.allowed & self._keys.real[:, None, None]
        if self.level == "token":
            return allowed
        return word_weights(allowed.to(self.sums_dtype), self.query_words, self.key_words) > 0

    @cached_property
    def available(self) -> Tensor:
        """How many keys each query may attend to; (batch, query), or (batch, heads, query) under masks that differ."""
        if (allowed := self.allowed) is not None:
            counts = allowed.sum(3)
            return counts[:, 0] if counts.shape[1] == 1 else counts
        keys = self.keys.real.sum(1, keepdim=True).expand(self.queries.shape)
        if not self.causal:
            return keys
        return torch.minimum(keys, self.start + torch.arange(1, self.queries.shape[1] + 1, device=keys.device))


class NullView(CallView):
    """What a metric sees of the null head: it gives the same weight to every token that a query may see.

    That is all tokens but padding, in a causal stack those up to the query; under an edited mask that heads share those
    that it allows, and in a layer with local attention those of its window. The largest of its weights are equal, and
    the first of them is not what the head points at: what it points at are all of them, each to an equal share. So
    `targets` has keys in place of heads, and `Targets.mean` their mean. It depends on the tokens and the mask of a
    batch alone: without a mask it is the same for all layers of a stack that see the whole text.
    """

    def __init__(self, call: CallContext, level: Level = "token") -> None:
        if call.queries is None or call.keys is None:
            raise SelfCheckError(f"{call.site}: the null head needs the tokens of the batch.")
        super().__init__(_of_null_head(call, _even_weights(call)), level)

    def targets(self, chosen: GatherPlan, *, others: bool = False, allowed: Tensor | None = None) -> Targets:
        """Where the words asked about point: at every key, by its share."""
        if allowed is None and not others and chosen is self.queried.plan:
            share = self._word_shares
        else:
            share = tied_words(self.token_weights, chosen, self._keys, others=others, allowed=allowed)
        return Targets(torch.arange(share.shape[1], device=share.device).expand_as(share), share)

    @cached_property
    def _word_shares(self) -> Tensor:
        """Shares of the words that several metrics ask about; (rows, key)."""
        return tied_words(self.token_weights, self.queried.plan, self._keys)

    @cached_property
    def peak_shares(self) -> Tensor:
        """How the most attended keys that are not special share each query that is not; (batch, query, key)."""
        allowed = ~self.keys.special[:, None] & ~self.queries.special[:, :, None]
        return equal_shares(self.weights[:, 0] * allowed)

    def peak_offsets(self, reach: int) -> Tensor:
        """How many queries have their most attended keys at every offset, those beyond the reach counted together.

        Returns:
            (batch, offset), from beyond the reach on the left to beyond it on the right.
        """
        share = self.peak_shares
        query = self.start + torch.arange(share.shape[1], device=share.device)
        offset = torch.arange(share.shape[2], device=share.device) - query[:, None]
        column = (offset.clamp(-reach - 1, reach + 1) + reach + 1).flatten().expand(len(share), -1)
        return share.new_zeros(len(share), 2 * reach + 3).scatter_add_(1, column, share.flatten(1))

    def peak_steps(self) -> tuple[Tensor, Tensor, Tensor]:
        """How often the most attended key moves not backwards from a query to the next, and how often it stays.

        Returns:
            Both shares, of all pairs of keys that tie, and whether a step counts; (batch, queries but one) each.
        """
        share = self.peak_shares
        counted = share.sum(2) > 0
        forward = (share[:, 1:] * share[:, :-1].cumsum(2)).sum(2)
        return forward, (share[:, 1:] * share[:, :-1]).sum(2), counted[:, 1:] & counted[:, :-1]


class EvenView(NullView):
    """The null head between tokens where queries see the whole text, or what was so far: it follows from counts.

    No weights are made unless somebody reads them, so that time and memory grow with the length of a text and not with
    its square.
    """

    def __init__(self, call: CallContext) -> None:
        if call.queries is None or call.keys is None or call.allowed is not None:
            raise SelfCheckError(f"{call.site}: counts of tokens need the tokens of the batch, and no mask.")
        self._begin(_of_null_head(call, None), call.queries, call.keys)

    @property
    def n_heads(self) -> int:
        """Number of null heads, which is one."""
        return 1

    @cached_property
    def token_weights(self) -> Tensor:
        """The weights, for those who need more than headlens does: (batch, 1, query, key)."""
        return _even_weights(self._call)[:, None]

    @cached_property
    def _place(self) -> Tensor:
        """Number of each query in its sentence; (query,)."""
        return self.start + torch.arange(self._queries.shape[1], device=self._queries.real.device)

    def _seen(self, values: Tensor) -> Tensor:
        """Sums of values (batch, key, ...) over the keys that every query may see: (batch, query, ...)."""
        values = values.to(self.sums_dtype)
        if self.causal:
            return values.cumsum(1)[:, self._place]
        return values.sum(1, keepdim=True).expand(-1, len(self._place), *values.shape[2:])

    @cached_property
    def _n_seen(self) -> Tensor:
        """How many real keys every query may see; (batch, query)."""
        return self._seen(self._keys.real)

    @cached_property
    def _weight(self) -> Tensor:
        """The weight of every key that a query may see; (batch, query)."""
        return 1 / self._n_seen.clamp(min=1)

    @cached_property
    def entropies(self) -> Tensor:
        """The logarithm of the number of keys that a query may see, see `CallView.entropies`."""
        return self._n_seen.clamp(min=1).log()[:, None]

    @cached_property
    def highest(self) -> tuple[Tensor, Tensor]:
        """The largest weights, which are all alike, see `CallView.highest`."""
        between = self._keys.real & ~self._keys.separator
        between, everywhere = (self._weight * (n > 0) for n in (self._seen(between), self._n_seen))
        return between[:, None], everywhere[:, None]

    @property
    def distances(self) -> Tensor:
        """The mean distance of every query to the keys that it may see, see `CallView.distances`."""
        real = self._keys.real.to(self.sums_dtype)
        at = torch.arange(real.shape[1], dtype=real.dtype, device=real.device)
        n, places = (values.cumsum(1) for values in (real, real * at))
        n_before, before = n[:, self._place], places[:, self._place]
        sums = self._place * n_before - before
        if not self.causal:
            sums = sums + (places[:, -1:] - before) - self._place * (n[:, -1:] - n_before)
        return (sums * self._weight)[:, None]

    def neighbour_weights(self, offset: int) -> tuple[Tensor, slice, slice]:
        """Weights between tokens that are `offset` apart, see `CallView.neighbour_weights`."""
        real = self._keys.real
        first = max(0, -self.start - offset)
        stop = max(first, min(len(self._place), real.shape[1] - self.start - offset))
        queries, keys = slice(first, stop), slice(first + self.start + offset, stop + self.start + offset)
        is_seen = real[:, keys] & (offset <= 0 or not self.causal)
        return (self._weight[:, queries] * is_seen)[:, None], queries, keys

    def given_to(self, kinds: Tensor) -> Tensor:
        """Weights that every query gives to kinds of keys, see `CallView.given_to`."""
        return (self._seen(kinds & self._keys.real[..., None]) * self._weight[..., None])[:, None]

    @cached_property
    def token_received(self) -> Tensor:
        """Weights that every key receives from all real queries, see `CallView.token_received`."""
        given = self._weight * self._queries.real
        if not self.causal:
            return (given.sum(1, keepdim=True) * self._keys.real)[:, None]
        # By number of the first query that may see a key: what it and those behind it give.
        behind = torch.nn.functional.pad(given.flip(1).cumsum(1).flip(1), (0, 1))
        first = torch.arange(self._keys.shape[1], device=given.device) - self.start
        return (behind[:, first.clamp(0, len(self._place))] * self._keys.real)[:, None]

    def targets(self, chosen: GatherPlan, *, others: bool = False, allowed: Tensor | None = None) -> Targets:
        """Where the words asked about point: at every word that gets most, by its share."""
        if allowed is not None or chosen is not self.queried.plan:
            return super().targets(chosen, others=others, allowed=allowed)
        if others:
            return self._tied(others=True)
        return self._tied_words

    @cached_property
    def _tied_words(self) -> Targets:
        """The words that several metrics ask about."""
        return self._tied(others=False)

    def _tied(self, *, others: bool) -> Targets:
        order = words_by_size(self._keys)
        if self.causal and not order.runs_forward:
            return super().targets(self.queried.plan, others=others)
        weight = self._weight if self.causal else None
        return Targets(*most_tokens(order, self.queried.plan, self._queries, weight, others=others))

    @cached_property
    def _candidates(self) -> Tensor:
        """Keys that are not special; (batch, key)."""
        return (self._keys.real & ~self._keys.special).to(self.sums_dtype)

    @cached_property
    def _tied_keys(self) -> Tensor:
        """How many of them every query may see, 0 for special queries; (batch, query)."""
        return self._seen(self._candidates) * ~self._queries.special

    def peak_offsets(self, reach: int) -> Tensor:
        """How many queries have their most attended keys at every offset, see `NullView.peak_offsets`."""
        n_keys, share = self._candidates.shape[1], (self._tied_keys > 0) / self._tied_keys.clamp(min=1)
        end = max(n_keys, self.start + len(self._place)) - n_keys
        near = torch.nn.functional.pad(self._candidates, (reach, reach + end)).unfold(1, 2 * reach + 1, 1)
        before = torch.nn.functional.pad(self._candidates.cumsum(1), (1, 0))  # of every key, without itself
        left = before[:, (self._place - reach).clamp(0, n_keys)]
        right = before[:, -1:] - before[:, (self._place + reach + 1).clamp(max=n_keys)]
        counts = torch.cat([left[..., None], near[:, self._place], right[..., None]], 2)
        if self.causal:
            counts[..., reach + 2 :] = 0
        return (counts * share[..., None]).sum(1)

    def peak_steps(self) -> tuple[Tensor, Tensor, Tensor]:
        """How the most attended key moves from a query to the next, see `NullView.peak_steps`."""
        if self.causal:
            return super().peak_steps()
        n = self._tied_keys[:, 1:]  # all queries that count see the same keys
        counted = (n > 0) & (self._tied_keys[:, :-1] > 0)
        stays = counted / n.clamp(min=1)
        return (stays + counted) / 2, stays, counted


def _of_null_head(call: CallContext, weights: Tensor | None) -> AttentionCall:
    """A call with the null head alone, which reads no values of its own."""
    query, key, value = (t[:, :1] for t in (call.query, call.key, call.value))
    # Of masks that differ between heads there is no one null head.
    allowed = None if call.allowed is None or call.allowed.shape[1] > 1 else call.allowed
    weights = None if weights is None else weights[:, None]
    return AttentionCall(
        call.site,
        *(query, key, value, call.queries, call.keys, call.causal),
        *(weights, query.transpose(1, 2)),
        start=call.start,
        last=call.last,
        allowed=allowed,
        window=call.window,
    )


def _even_weights(call: CallContext) -> Tensor:
    """The same weight for every token that a query may see; (batch, query, key)."""
    assert call.queries is not None
    assert call.keys is not None
    length, keys = call.queries.shape[1], call.keys
    seen = keys.real[:, None].expand(-1, length, -1)
    if call.allowed is not None and call.allowed.shape[1] == 1:
        seen = seen & call.allowed[:, 0]
    elif call.causal:
        query = call.start + torch.arange(length, device=seen.device)
        seen = seen & (torch.arange(keys.shape[1], device=seen.device) <= query[:, None])
    return seen.to(exact_type(call.query)) / seen.sum(2, keepdim=True).clamp(min=1)


def _from_parts(weights: Tensor, parts: Tensor) -> Tensor:
    """Weights added up over the queries of each part of speech: (batch, heads, from, key)."""
    if weights.device.type == "cpu" and weights.shape[3] >= _LONG:
        n_parts = parts.shape[2]
        sums = weights.new_zeros(*weights.shape[:2], n_parts + 1, weights.shape[3])
        # What is of no part goes to the last row, as padding does.
        row = torch.where(parts.any(2), parts.argmax(2), n_parts)
        for sums_of_sentence, number, sentence in zip(sums, row, weights, strict=True):
            sums_of_sentence.index_add_(1, number, sentence)
        return sums[:, :, :n_parts]
    return torch.matmul(parts.to(weights.dtype).transpose(1, 2)[:, None], weights)


@lru_cache(maxsize=2)  # The same for all layers of a batch.
def _away(start: int, queries: int, keys: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """How many tokens every key is away from every query, the first of which is number `start`; (query, key)."""
    query = start + torch.arange(queries, device=device, dtype=dtype)
    return (query[:, None] - torch.arange(keys, device=device, dtype=dtype)).abs()


def _received(weights: Tensor, queries: Tokens) -> Tensor:
    """Sums weights (batch, heads, query, key) over real queries."""
    return torch.matmul(queries.real.to(weights.dtype)[:, None, None], weights)[:, :, 0]


def projected_norms(vectors: Tensor, gram: Tensor) -> Tensor:
    """Norms of vectors (batch, heads, length, d) after a projection with this Gram matrix (heads, d, d)."""
    vectors = vectors.detach().to(gram.dtype)
    if vectors.device.type == "cpu":
        # By sentence: of all at once torch copies the matrices for each of them, which takes longer than the products,
        # and one product for all sentences rounds differently from batch to batch.
        projected = torch.empty_like(vectors, memory_format=torch.contiguous_format)
        for sentence, out in zip(vectors, projected, strict=True):
            torch.bmm(sentence, gram, out=out)
    else:
        projected = torch.matmul(vectors, gram)
    # Rounding can leave a vector that comes out as zero slightly below.
    return projected.mul_(vectors).sum(-1).clamp_(min=0).sqrt_()


class SpecialKeys(NamedTuple):
    """Where the special tokens of every sentence stand; (batch, most) each, but for `sentence`.

    Args:
        sentence: (batch, 1), to index with.
        token: which they are; sentences with fewer repeat their first one.
        separator: which of them are separators.
    """

    sentence: Tensor
    token: Tensor
    separator: Tensor


@once_per_batch
def special_keys(keys: Tokens) -> SpecialKeys | None:
    """The special tokens of a batch; None where they are many, or where a separator is not special."""
    special = keys.real & keys.special
    most = int(special.sum(1).max())
    enough = special.any(1).all() or not most
    if most > MOST_SPECIAL or not enough or bool((keys.separator & ~keys.special).any()):
        return None
    # Special tokens to the front, in order.
    index = (~special).long().argsort(dim=1, stable=True)[:, :most]
    index = torch.where(special.gather(1, index), index, index[:, :1])
    return SpecialKeys(torch.arange(len(index), device=index.device)[:, None], index, keys.separator.gather(1, index))


def peak_among(weights: Tensor, candidates: Tensor) -> Peak:
    """The largest weight among candidate keys.

    Args:
        weights: (batch, heads, query, key).
        candidates: (batch, key), or (batch, query, key) where they depend on the query.
    """
    allowed = candidates[:, None, None] if candidates.dim() == 2 else candidates[:, None]
    values, index = weights.masked_fill(~allowed, -1.0).max(dim=-1)
    # All weight on special tokens, or zeros of entmax: the first of many equal zeros would be taken for a target.
    return Peak(values, index.masked_fill(values <= 0, -1))
