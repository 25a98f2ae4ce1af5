"""What can be known of an attention call without its map: statistics of every row of weights, by head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import NamedTuple

from torch import Tensor


@dataclass(frozen=True)
class RowNeeds:
    """What a metric needs to know of the rows of a batch.

    Args:
        peak: the largest weights, see `RowStatistics`.
        entropy: the entropy.
        places: the mean distance, and the weights of the token itself and its neighbours; in self-attention.
        received: what every key receives.
        norms: norms of values and outputs after the output projection.
        parts: weights between parts of speech.
        words: the word that every word attends to most.
        other_words: the same among all other words.
    """

    peak: bool = False
    entropy: bool = False
    places: bool = False
    received: bool = False
    norms: bool = False
    parts: bool = False
    words: bool = False
    other_words: bool = False

    def __or__(self, other: RowNeeds) -> RowNeeds:
        return RowNeeds(**{f.name: getattr(self, f.name) or getattr(other, f.name) for f in fields(self)})


@dataclass
class RowStatistics:
    """Statistics of the rows of a batch, of the heads of one layer or of several; None for what nobody needs.

    Weights are given that attention goes to a token. All are (batch, heads, query) but for the last ones.

    Args:
        highest: largest weight.
        between: largest weight of real keys that are no separators.
        peak, peak_key: largest weight of keys that are not special, and the first key that has it; -1 for none.
        entropy: in nats.
        distance: mean distance of query and key.
        previous, itself, following: weight of the keys at offsets -1, 0 and 1.
        received: weight that every key gets from all real queries; (batch, heads, key).
        read: the same of weights that add up to what tokens get, where a part goes to no token.
        value_norms, output_norms: norms after the output projection; (batch, heads, key) and (batch, heads, query).
        words, other_words: number of the word that every word attends to most, among all or among others; -1 for
            none; (batch, heads, words).
        parts: sums of weights from and to parts of speech; (batch, heads, from, to).
    """

    highest: Tensor | None = None
    between: Tensor | None = None
    peak: Tensor | None = None
    peak_key: Tensor | None = None
    entropy: Tensor | None = None
    distance: Tensor | None = None
    previous: Tensor | None = None
    itself: Tensor | None = None
    following: Tensor | None = None
    received: Tensor | None = None
    read: Tensor | None = None
    value_norms: Tensor | None = None
    output_norms: Tensor | None = None
    words: Tensor | None = None
    other_words: Tensor | None = None
    parts: Tensor | None = None

    def of_heads(self, heads: slice) -> RowStatistics:
        """Returns the statistics of some of the heads, in the same memory."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return RowStatistics(**{name: None if value is None else value[:, heads] for name, value in values.items()})


class WordTiles(NamedTuple):
    """The words of a batch in tiles, sorted by their number of tokens, so that few steps take one token of each word.

    Args:
        words: number of the word in every place of a tile, -1 for none; (batch, tiles, TILE).
        tokens: the token that every word of a tile has in a step, -1 for none; (batch, steps, TILE).
        starts: the first step of every tile, and at last the number of steps; (batch, tiles + 1).
        slots: twice the tile of a step, plus 1 unless it is the first one of the tile; (batch, steps).
    """

    words: Tensor
    tokens: Tensor
    starts: Tensor
    slots: Tensor


TILE = 32


class RowFacts(NamedTuple):
    """What statistics of rows depend on beside queries and keys; integers are int32.

    Args:
        query_flags: 1 for real queries, else 0; (batch, query).
        key_flags: 1 for keys that are not special, plus 2 for real ones that are no separators; (batch, key).
        query_words, key_words: the words of both sides; None where nobody asks.
        query_parts, key_parts: 1 where a token is of a part of speech; float, (batch, length, parts), where there are
            a power of two of them.
    """

    query_flags: Tensor
    key_flags: Tensor
    query_words: WordTiles | None = None
    key_words: WordTiles | None = None
    query_parts: Tensor | None = None
    key_parts: Tensor | None = None


class Rows(ABC):
    """The rows of an attention call, of which statistics are worked out when somebody asks."""

    # Share of each query's attention that goes to tokens, (batch, heads, query); None where it is 1.
    to_tokens: Tensor | None = None

    @abstractmethod
    def fill(self, statistics: RowStatistics, facts: RowFacts) -> None:
        """Works out the statistics of the call's heads that there is memory for, but for norms."""

    @abstractmethod
    def weights(self, sentence: Tensor, query: Tensor) -> Tensor:
        """Returns the weights of some rows, given that attention goes to a token: (heads, rows, key)."""
