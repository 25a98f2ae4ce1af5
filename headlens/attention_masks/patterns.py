"""Fixed attention patterns: which keys a query may look at in a sentence of n tokens, and how they are written.

A pattern is written as `window:3|global:1|random:2`, `strided`, `bigbird:window=1,keys=3,seed=7`. A new one is a class
here: its name registers it, and parsing, printing and counting follow from its fields and from `allows`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from headlens.errors import OptionError, counted

Allowed = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.int64]

# All patterns by name, in the order of their classes, which is that of error messages.
PATTERNS: dict[str, type[Pattern]] = {}
_BLOCK = 2**20  # positions that are counted at a time
_SYNTAX = "Write a pattern such as window:3, several with | between them, parameters as in bigbird:window=1,keys=2."


class Pattern(ABC):
    """Base of all patterns; subclasses are frozen dataclasses of whole numbers.

    A pattern is a function of n, so that it can be made for the length of every sentence. `a | b` allows what either
    does.
    """

    name: ClassVar[str]
    # The smallest value of a parameter, where that is not 0.
    least: ClassVar[dict[str, int]] = {}

    def __init_subclass__(cls, *, register: bool = True) -> None:
        super().__init_subclass__()
        if register:
            PATTERNS[cls.name] = cls

    def __post_init__(self) -> None:
        for parameter in fields(self):  # type: ignore[arg-type]  # all subclasses are dataclasses
            value, least = getattr(self, parameter.name), self.least.get(parameter.name, 0)
            if value < least:
                raise OptionError(f"{self.name}: {parameter.name} is {value}.", f"Give {least} or more.")

    @abstractmethod
    def allows(self, query: Positions, key: Positions) -> Allowed:
        """True where a query may look at a key: (queries, n).

        Args:
            query: positions of some queries that follow each other, (queries, 1).
            key: positions of all n keys, (1, n).
        """

    def allowed(self, n: int) -> Allowed:
        """True where a query may look: (query, key), both n."""
        place = np.arange(n)
        return self.allows(place[:, None], place[None, :])

    def count(self, n: int) -> int:
        """Counts the allowed positions among all n × n pairs of query and key, block by block."""
        return sum(int(self.allows(*block).sum()) for block in _blocks(n))

    def diagonal(self, n: int) -> int:
        """Counts the allowed positions on the diagonal, where i = j."""
        # A block begins at the query query[0], so that its diagonal begins at that column.
        return sum(int(np.trace(self.allows(query, key), offset=int(query[0, 0]))) for query, key in _blocks(n))

    def __or__(self, other: Pattern) -> Union:
        return Union((*parts_of(self), *parts_of(other)))

    def __str__(self) -> str:
        values = ",".join(f"{p.name}={getattr(self, p.name)}" for p in fields(self))  # type: ignore[arg-type]
        return f"{self.name}:{values}" if values else self.name


@dataclass(frozen=True)
class Union(Pattern, register=False):
    """The union of several patterns: it allows what any of them allows."""

    patterns: tuple[Pattern, ...]
    name = "union"

    def __post_init__(self) -> None:
        """Checks nothing: the patterns have checked their parameters, and a union has none."""

    def allows(self, query: Positions, key: Positions) -> Allowed:
        """True where one of the patterns allows it: (queries, n)."""
        return np.asarray(np.logical_or.reduce([p.allows(query, key) for p in self.patterns]))

    def __str__(self) -> str:
        return "|".join(map(str, self.patterns))


@dataclass(frozen=True)
class Causal(Pattern, register=False):
    """What is left of a pattern where a query sees only the keys up to its own."""

    pattern: Pattern
    name = "causal"

    def __post_init__(self) -> None:
        """Checks nothing: the pattern has checked its parameters."""

    def allows(self, query: Positions, key: Positions) -> Allowed:
        """True where the pattern allows it and the key comes no later: (queries, n)."""
        return self.pattern.allows(query, key) & (key <= query)

    def __str__(self) -> str:
        return str(self.pattern)


@dataclass(frozen=True)
class Strided(Pattern):
    """|i − j| ≤ l or i − j a multiple of l (Child et al. 2019, section 4.2, in both directions).

    Args:
        stride: l. The SparseBERT paper does not name it; 4 gives its sparsity.
    """

    stride: int = 4
    name = "strided"
    least: ClassVar[dict[str, int]] = {"stride": 1}

    def allows(self, query: Positions, key: Positions) -> Allowed:
        """True where the distance is at most l or a multiple of l: (queries, n)."""
        offset = key - query
        return np.asarray((np.abs(offset) <= self.stride) | (offset % self.stride == 0))


@dataclass(frozen=True)
class FixedPattern(Pattern):
    """Keys of the query's own block of l tokens, and the last c of every block (Child et al. 2019, section 4.2).

    Args:
        stride: l.
        summary: c, no more than l. The SparseBERT paper names neither; l = 4 with c = 1 gives its sparsity.
    """

    stride: int = 4
    summary: int = 1
    name = "fixed"
    least: ClassVar[dict[str, int]] = {"stride": 1}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.summary > self.stride:
            raise OptionError(
                f"fixed: a block of {counted(self.stride, 'token')} does not have {self.summary} summary tokens.",
                f"summary can be 0 to {self.stride}.",
            )

    def allows(self, query: Positions, key: Positions) -> Allowed:
        """True in the query's own block and for the last c keys of every block: (queries, n)."""
        same_block: Allowed = query // self.stride == key // self.stride
        return same_block | (key % self.stride >= self.stride - self.summary)


@dataclass(frozen=True)
class Longformer(Pattern):
    """A window and a few tokens that are global (Beltagy et al. 2020).

    Args:
        window: keys to each side.
        tokens: how many of the first are global. The SparseBERT paper names neither number; no others
            come nearer to its sparsity (88.62 and 89.40 per cent for 88.7 and 89.5).
    """

    window: int = 6
    tokens: int = 1
    name = "longformer"

    def allows(self, query: Positions, key: Positions) -> Allowed:
        """True in the window, and where query or key is global: (queries, n)."""
        return Window(self.window).allows(query, key) | Global(self.tokens).allows(query, key)


@dataclass(frozen=True)
class LogSparse(Pattern):
    """Pattern in which the distance |i − j| of query and key is 0 or a power of 2.

    The pattern is that of Li et al. 2019, in both directions.
    """

    name = "logsparse"

    def allows(self, query: Positions, key: Positions) -> Allowed:
        """True where the distance has at most one binary digit 1: (queries, n)."""
        distance = np.abs(key - query)
        return np.asarray(distance & (distance - 1) == 0)


@dataclass(frozen=True)
class BigBird(Pattern):
    """A window, global tokens, and for every other query r keys drawn from those it does not see (Zaheer et al. 2020).

    Args:
        window: keys to each side.
        tokens: how many of the first are global.
        keys: r.
        seed: of the draw. The SparseBERT paper names none of these numbers.
    """

    window: int = 1
    tokens: int = 2
    keys: int = 2
    seed: int = 0
    name = "bigbird"

    def allows(self, query: Positions, key: Positions) -> Allowed:
        """True in the window, for global tokens, and for the keys that are drawn: (queries, n)."""
        seen = Longformer(self.window, self.tokens).allows(query, key)
        return seen | _drawn(~seen, query, self.keys, self.seed)


@dataclass(frozen=True)
class BlockSparse(Pattern):
    """`bigbird` over blocks of b tokens instead of tokens, as its authors compute it (Zaheer et al. 2020, appendix D).

    A query sees all tokens of the blocks that its own block sees; the last block of a sentence may be shorter. Of m = n
    / b blocks with a window w and g global ones m² - (m - g - w)(m - g - w - 1) of m² are open without random ones.

    Args:
        size: b.
        window: blocks to each side.
        tokens: how many of the first blocks are global.
        keys: blocks drawn for every block, of those it does not see.
        seed: of the draw.
    """

    size: int = 8
    window: int = 1
    tokens: int = 0
    keys: int = 0
    seed: int = 0
    name = "block-sparse"
    least: ClassVar[dict[str, int]] = {"size": 1}

    def allows(self, query: Positions, key: Positions) -> Allowed:
        """True in the blocks that the block of the query sees: (queries, n)."""
        n_blocks = -(-key.size // self.size)
        between = BigBird(self.window, self.tokens, self.keys, self.seed).allowed(n_blocks)
        return between[query // self.size, key // self.size]


@dataclass(frozen=True)
class Star(Pattern):
    """Neighbours, and the first token as the relay of all (Guo et al. 2019)."""

    name = "star"

    def allows(self, query: Positions, key: Positions) -> Allowed:
        """True for neighbours, and where query or key is the first token: (queries, n)."""
        return Longformer(1, 1).allows(query, key)


@dataclass(frozen=True)
class Window(Pattern):
    """|i − j| ≤ w.

    Args:
        width: w, keys to each side.
    """

    width: int = 1
    name = "window"

    def allows(self, query: Positions, key: Positions) -> Allowed:
        """True where the distance is at most w: (queries, n)."""
        return np.asarray(np.abs(key - query) <= self.width)


@dataclass(frozen=True)
class Global(Pattern):
    """The first g tokens look at all and are looked at by all.

    Args:
        tokens: g.
    """

    tokens: int = 1
    name = "global"

    def allows(self, query: Positions, key: Positions) -> Allowed:
        """True where query or key is one of the first g tokens: (queries, n)."""
        return (query < self.tokens) | (key < self.tokens)


@dataclass(frozen=True)
class Random(Pattern):
    """Every query looks at r other keys, drawn without replacement; the same ones in every sentence of n tokens.

    Args:
        keys: r.
        seed: of the draw; every length is drawn by itself.
    """

    keys: int = 1
    seed: int = 0
    name = "random"

    def allows(self, query: Positions, key: Positions) -> Allowed:
        """True for the keys that are drawn: (queries, n)."""
        return _drawn(query != key, query, self.keys, self.seed)


@dataclass(frozen=True)
class Full(Pattern):
    """Every query looks at every key."""

    name = "full"

    def allows(self, query: Positions, key: Positions) -> Allowed:
        """Returns an array of shape `(queries, n)` that is True everywhere."""
        return np.ones((query.size, key.size), dtype=bool)


def parts_of(pattern: Pattern) -> tuple[Pattern, ...]:
    """The patterns of a union, or the pattern alone."""
    return pattern.patterns if isinstance(pattern, Union) else (pattern,)


@lru_cache(maxsize=128)
def cached_positions(pattern: Pattern, n: int) -> Allowed:
    """Returns `pattern.allowed(n)`, computed once for all sentences of a length; the array cannot be written to."""
    allowed = pattern.allowed(n)
    allowed.flags.writeable = False
    return allowed


def visible_positions(n: int, *, causal: bool) -> int:
    """Returns how many of n × n positions a model sees without a mask: all, or those up to each query's own."""
    return n * (n + 1) // 2 if causal else n * n


def count_masked(pattern: Pattern, n: int, *, diagonal: bool = True, causal: bool = False) -> int:
    """Counts the masked positions of n × n.

    Args:
        pattern: the pattern.
        n: tokens.
        diagonal: whether the diagonal is kept as the pattern has it; else it is masked.
        causal: whether only positions up to each query's own count.
    """
    allowed = Causal(pattern).count(n) if causal else pattern.count(n)
    return visible_positions(n, causal=causal) - allowed + (0 if diagonal else pattern.diagonal(n))


def _blocks(n: int) -> Iterator[tuple[Positions, Positions]]:
    """Positions of some queries and of all keys, (queries, 1) and (1, n): a few MB at a time, however large n is."""
    place = np.arange(n)
    size = max(1, _BLOCK // max(1, n))
    for first in range(0, n, size):
        yield place[first : first + size, None], place[None, :]


def _drawn(free: Allowed, query: Positions, keys: int, seed: int) -> Allowed:
    """As many of the free keys of every query, (queries, n), drawn without replacement."""
    # Keys that are not free come last, and are closed again.
    chosen = np.zeros_like(free)
    np.put_along_axis(chosen, _order(free, query, seed)[:, :keys], values=True, axis=1)
    return free & chosen


def _order(free: Allowed, query: Positions, seed: int) -> Positions:
    """The keys of every query in the order in which they are drawn, (queries, n), those that are not free last."""
    bits = np.random.PCG64([seed, free.shape[1]])
    # Skips the numbers of the queries before: a block gets those that it has in the whole pattern.
    bits.advance(int(query[0, 0]) * free.shape[1])
    draws = np.where(free, np.random.Generator(bits).random(free.shape), np.inf)
    return draws.argsort(axis=1, kind="stable")


def random_ranks(n: int, seed: int) -> Positions:
    """The place of every key in the draw of a query, from 0: `Random(r, seed)` allows the places below r.

    Returns:
        Places (query, key); n for the query itself, which is never drawn.
    """
    free = ~np.eye(n, dtype=bool)
    ranks = _order(free, np.zeros((1, 1), dtype=np.int64), seed).argsort(axis=1)
    return np.where(free, ranks, n)


def parse_pattern(text: str) -> Pattern:
    """Reads a pattern, or several with `|` between them, of which any may allow a position.

    A pattern is its name, and after a colon its parameters in order or by name, with commas between them.

    Raises:
        OptionError: for what is no pattern, with the pattern that may have been meant.
    """
    patterns = [_single_pattern(part.strip(), text) for part in text.split("|")]
    return patterns[0] if len(patterns) == 1 else Union(tuple(patterns))


def _single_pattern(part: str, text: str) -> Pattern:
    name, colon, values = (piece.strip() for piece in part.partition(":"))
    if not name or (colon and not values):
        missing = "a parameter" if name else "a name"
        raise OptionError(f"{text!r} is not an attention pattern: {missing} is missing.", _SYNTAX)
    kind = PATTERNS.get(name.lower())
    if kind is None:
        advice = _nearest(name.lower(), list(PATTERNS)) + f"Patterns: {', '.join(PATTERNS)}."
        raise OptionError(f"There is no attention pattern {name!r}.", advice)
    return kind(**_parameters(kind, values))


def _parameters(kind: type[Pattern], text: str) -> dict[str, int]:
    """The parameters of a pattern by name, of a text such as `1,keys=2`."""
    names = [p.name for p in fields(kind)]  # type: ignore[arg-type]
    listed = ", ".join(f"{p.name} ({p.default})" for p in fields(kind))  # type: ignore[arg-type]
    advice = f"Its parameters, in order: {listed}." if names else "It has none."
    values: dict[str, int] = {}
    for place, part in enumerate(text.split(",") if text else ()):
        name, equals, value = (piece.strip() for piece in part.rpartition("="))
        if not equals:
            if place >= len(names):
                raise OptionError(f"{kind.name}: {part.strip()!r} is one parameter too many.", advice)
            name = names[place]
        if name not in names:
            raise OptionError(f"{kind.name} has no parameter {name!r}.", _nearest(name, names) + advice)
        if name in values:
            raise OptionError(f"{kind.name}: {name} is given twice.", advice)
        # int() also takes 3_0 and digits of other scripts.
        if not re.fullmatch(r"-?[0-9]+", value):
            raise OptionError(f"{kind.name}: {name} is {value!r}, which is not a whole number.", _SYNTAX)
        values[name] = int(value)
    return values


def _nearest(name: str, names: list[str]) -> str:
    close = get_close_matches(name, names, n=1)
    return f"Did you mean {close[0]}? " if close else ""
