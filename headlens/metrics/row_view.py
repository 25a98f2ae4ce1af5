"""What metrics see of the rows of all layers of a stack at once, where nobody made a map of weights."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from headlens.attention.edits_and_observers import AttentionCall, Tokens, repeat_groups
from headlens.attention.rows import TILE, RowFacts, RowNeeds, RowStatistics, WordTiles
from headlens.errors import SelfCheckError
from headlens.metrics.attention_view import CallView, Peak, projected_norms
from headlens.metrics.batch_cache import once_per_batch
from headlens.metrics.words import RECEIVERS, one_hot_upos, places

N_PARTS = 32  # the power of two that parts of speech fit into


class RowView(CallView):
    """A `CallView` of statistics of rows; metrics that say what they need of a row (`Metric.needs`) get no weights.

    Args:
        call: any of the calls, for its stack and its tokens, with the `to_tokens` of the heads of all.
        statistics: of the heads of all calls, one after the other.
        n_heads: how many these are.
    """

    def __init__(self, call: AttentionCall, statistics: RowStatistics, n_heads: int) -> None:
        if call.queries is None or call.keys is None:
            raise SelfCheckError(f"{call.site}: a metric needs the tokens of the batch.")
        self._begin(call, call.queries, call.keys)
        self._statistics, self._n_heads = statistics, n_heads

    @property
    def n_heads(self) -> int:
        """Number of heads, those of all layers together."""
        return self._n_heads

    @property
    def weights(self) -> Tensor:
        """There are none.

        Raises:
            SelfCheckError: always.
        """
        raise SelfCheckError("A metric that said what it needs of a row asks for weights.")

    @cached_property
    def peak(self) -> Peak:
        """The most attended keys that are not special, see `CallView.peak`."""
        return Peak(_known(self._statistics.peak), _known(self._statistics.peak_key).long())

    @cached_property
    def highest(self) -> tuple[Tensor, Tensor]:
        """The largest weights, without and with separators, see `CallView.highest`."""
        return _known(self._statistics.between), _known(self._statistics.highest)

    @cached_property
    def entropies(self) -> Tensor:
        """The entropy of every query's attention in nats, see `CallView.entropies`."""
        return _known(self._statistics.entropy)

    @property
    def distances(self) -> Tensor:
        """The mean distance of every query to what it attends to, see `CallView.distances`."""
        return _known(self._statistics.distance)

    def neighbour_weights(self, offset: int) -> tuple[Tensor, slice, slice]:
        """Weights between tokens that are `offset` apart, see `CallView.neighbour_weights`."""
        statistics = self._statistics
        rows = _known({-1: statistics.previous, 0: statistics.itself, 1: statistics.following}[offset])
        first, stop = max(0, -offset), rows.shape[2] - max(0, offset)
        queries = slice(first, max(first, stop))
        return rows[..., queries], queries, slice(queries.start + offset, queries.stop + offset)

    def read_neighbour_weights(self, offset: int) -> tuple[Tensor, slice, slice]:
        """See `CallView.read_neighbour_weights`."""
        pairs, queries, keys = self.neighbour_weights(offset)
        return pairs if self.to_tokens is None else pairs * self.to_tokens[..., queries], queries, keys

    @cached_property
    def token_received(self) -> Tensor:
        """Weights that every key receives from all real queries, see `CallView.token_received`."""
        return _known(self._statistics.received)

    @property
    def read_received(self) -> Tensor:
        """The same of what values are multiplied by, see `CallView.read_received`."""
        return self.token_received if self.to_tokens is None else _known(self._statistics.read)

    @cached_property
    def value_norms(self) -> Tensor | None:
        """Norms of projected values, if they are known, see `CallView.value_norms`."""
        return self._statistics.value_norms

    @cached_property
    def output_norms(self) -> Tensor | None:
        """Norms of projected head outputs, if they are known, see `CallView.output_norms`."""
        return self._statistics.output_norms

    def between_parts(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Sums of weights from and to parts of speech, see `CallView.between_parts`."""
        return _known(self._statistics.parts)[:, :, : queries.shape[2] - 1, : keys.shape[2]].sum(0)

    @cached_property
    def word_targets(self) -> Tensor:
        """First token of the word that every word attends to most, see `CallView.word_targets`."""
        return self._first_tokens(_known(self._statistics.words))

    @cached_property
    def other_targets(self) -> Tensor:
        """First token of the other word that every word attends to most, see `CallView.other_targets`."""
        return self._first_tokens(_known(self._statistics.other_words))

    def _first_tokens(self, words: Tensor) -> Tensor:
        """First tokens of the words that the rows of the plan point at; (rows, heads)."""
        chosen = self.queried.plan
        target = words[chosen.sentence, :, chosen.word].long()
        first = places(self._keys).first[chosen.sentence].gather(1, target.clamp(min=0))
        return first.masked_fill_(target < 0, -1)


def _known(statistic: Tensor | None) -> Tensor:
    """A statistic that somebody said they need."""
    if statistic is None:
        raise SelfCheckError("A metric asks for a statistic of rows that it did not say it needs.")
    return statistic


def room_for(needs: RowNeeds, queries: Tokens, keys: Tokens, n_heads: int) -> RowStatistics:
    """Memory for the statistics that are needed, of so many heads."""
    device, shape = queries.real.device, (len(queries.real), n_heads)

    def room(wanted: bool, *sizes: int, dtype: torch.dtype = torch.float32) -> Tensor | None:  # noqa: FBT001 - of this table
        return torch.empty(*shape, *sizes, dtype=dtype, device=device) if wanted else None

    n_queries, n_keys, n_words = queries.shape[1], keys.shape[1], queries.n_pieces.shape[1]
    peaks = ("highest", "between", "peak")
    return RowStatistics(
        **{name: room(needs.peak, n_queries) for name in peaks},
        peak_key=room(needs.peak, n_queries, dtype=torch.int32),
        entropy=room(needs.entropy, n_queries),
        **{name: room(needs.places, n_queries) for name in ("distance", "previous", "itself", "following")},
        received=room(needs.received, n_keys),
        read=room(needs.norms and needs.received, n_keys),
        value_norms=room(needs.norms, n_keys),
        output_norms=room(needs.norms, n_queries),
        words=room(needs.words, n_words, dtype=torch.int32),
        other_words=room(needs.other_words, n_words, dtype=torch.int32),
        parts=room(needs.parts, N_PARTS, N_PARTS),
    )


def row_facts(needs: RowNeeds, queries: Tokens, keys: Tokens) -> RowFacts:
    """What kernels need to know of a batch, worked out on the processor if the tokens are there, too."""
    words = needs.words or needs.other_words
    return RowFacts(
        *row_flags(queries, keys),
        word_tiles(queries) if words else None,
        word_tiles(keys) if words else None,
        padded_parts(queries) if needs.parts else None,
        padded_parts(keys) if needs.parts else None,
    )


@once_per_batch
def row_flags(queries: Tokens, keys: Tokens) -> tuple[Tensor, Tensor]:
    """Flags of queries and of keys, see `RowFacts`."""
    of_keys = (~keys.special).int() + 2 * (keys.real & ~keys.separator).int()
    return queries.real.int(), of_keys


@once_per_batch
def padded_parts(tokens: Tokens) -> Tensor:
    """1 where a token is of a part of speech or of none, 0 for padding; float, (batch, length, N_PARTS)."""
    return torch.nn.functional.pad(one_hot_upos(tokens), (0, N_PARTS - len(RECEIVERS)))


@once_per_batch
def word_tiles(tokens: Tokens) -> WordTiles:
    """Puts the words of every sentence into tiles, those of most tokens first."""
    n_sentences, n_words = tokens.n_pieces.shape
    n_tiles = max(1, -(-n_words // TILE))
    sentence, token = (tokens.word >= 0).nonzero(as_tuple=True)
    word = sentence * n_words + tokens.word[sentence, token]
    order = word.argsort(stable=True)
    word, token = word[order], token[order]
    count = torch.bincount(word, minlength=n_sentences * n_words)
    piece = torch.arange(len(word)) - (count.cumsum(0) - count)[word]
    # Where every word stands: the place in the order of its sentence.
    by_size = torch.nn.functional.pad(count.view(n_sentences, n_words), (0, n_tiles * TILE - n_words))
    ranked = by_size.argsort(dim=1, descending=True, stable=True)
    words = ranked.masked_fill(by_size.gather(1, ranked) == 0, -1)
    place = torch.empty_like(ranked).scatter_(1, ranked, torch.arange(n_tiles * TILE).expand_as(ranked))
    # The first word of a tile has the most tokens.
    steps = by_size.gather(1, ranked)[:, ::TILE]
    starts = torch.nn.functional.pad(steps.cumsum(1), (1, 0))
    n_steps = max(1, int(starts[:, -1].max())) if n_sentences else 1
    tokens_of = torch.full((n_sentences, n_steps, TILE), -1)
    slots = torch.zeros(n_sentences, n_steps, dtype=torch.int64)
    of_sentence = word // max(1, n_words)
    at = place[of_sentence, word % max(1, n_words)]
    step = starts[of_sentence, at // TILE] + piece
    tokens_of[of_sentence, step, at % TILE] = token
    slots[of_sentence, step] = 2 * (at // TILE) + (piece > 0)
    return WordTiles(*(t.int() for t in (words.view(n_sentences, n_tiles, TILE), tokens_of, starts, slots)))


def fill_norms(statistics: RowStatistics, call: AttentionCall) -> bool:
    """Writes norms of values and outputs of a call; false where its output projection is not known."""
    if statistics.value_norms is None or statistics.output_norms is None or call.gram is None:
        return False
    statistics.value_norms.copy_(projected_norms(repeat_groups(call.value, call.query.shape[1]), call.gram))
    statistics.output_norms.copy_(projected_norms(call.output.transpose(1, 2), call.gram))
    return True
