"""Fixed attention patterns: which keys a query may look at in a sentence of n tokens, and how many that are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from headlens.errors import OptionError, counted

Allowed = npt.NDArray[np.bool_]


class Pattern(ABC):
    """Base of all patterns; subclasses are frozen dataclasses of whole numbers.

    A pattern is a function of n, so that it can be made for the length of every sentence. `a | b` allows what either
    does.
    """

    name: ClassVar[str]
    # The smallest value of a parameter, where that is not 0.
    least: ClassVar[dict[str, int]] = {}

    def __post_init__(self) -> None:
        for own in fields(self):  # type: ignore[arg-type]  # all subclasses are dataclasses
            value, least = getattr(self, own.name), self.least.get(own.name, 0)
            if value < least:
                raise OptionError(f"{self.name}: {own.name} is {value}.", f"Give {least} or more.")

    @abstractmethod
    def allowed(self, n: int) -> Allowed:
        """True where a query may look: (query, key), both n."""

    @abstractmethod
    def count(self, n: int) -> int:
        """How many positions of n × n are allowed, by formula."""

    def diagonal(self, n: int) -> int:
        """How many of these are on the diagonal, by formula."""
        return n

    def __or__(self, other: Pattern) -> Union:
        return Union((*parts_of(self), *parts_of(other)))

    def __str__(self) -> str:
        values = ",".join(f"{own.name}={getattr(self, own.name)}" for own in fields(self))  # type: ignore[arg-type]
        return f"{self.name}:{values}" if values else self.name


@dataclass(frozen=True)
class Union(Pattern):
    """What any of several patterns allows. There is no formula for the count of any union: it is counted."""

    patterns: tuple[Pattern, ...]
    name = "union"

    def __post_init__(self) -> None:
        """There are no whole numbers to look at."""

    def allowed(self, n: int) -> Allowed:
        """True where a query may look."""
        found: Allowed = np.logical_or.reduce([p.allowed(n) for p in self.patterns])
        return found

    def count(self, n: int) -> int:
        """Counts the allowed positions in the union of the patterns, an array of shape `(query, key)`, both n."""
        return int(self.allowed(n).sum())

    def diagonal(self, n: int) -> int:
        """Counts the allowed positions on the diagonal of the union of the patterns, where i = j."""
        return int(np.trace(self.allowed(n)))

    def __str__(self) -> str:
        return "|".join(map(str, self.patterns))


@dataclass(frozen=True)
class Full(Pattern):
    """Every query looks at every key."""

    name = "full"

    def allowed(self, n: int) -> Allowed:
        """Returns an array of shape `(query, key)`, both n, that is True everywhere."""
        return np.ones((n, n), dtype=bool)

    def count(self, n: int) -> int:
        """Returns the number of allowed positions by formula: n², all of them."""
        return n * n


@dataclass(frozen=True)
class Window(Pattern):
    """|i − j| ≤ w.

    Args:
        width: w, keys to each side.
    """

    width: int = 1
    name = "window"

    def allowed(self, n: int) -> Allowed:
        """True where a query may look."""
        return np.abs(_offsets(n)) <= self.width

    def count(self, n: int) -> int:
        """Returns the number of allowed positions by formula: n (2 w + 1) − w (w + 1), where w is at most n − 1."""
        return _band(n, self.width)


@dataclass(frozen=True)
class Global(Pattern):
    """The first g tokens look at all and are looked at by all.

    Args:
        tokens: g.
    """

    tokens: int = 1
    name = "global"

    def allowed(self, n: int) -> Allowed:
        """True where a query may look."""
        first = np.arange(n) < self.tokens
        return first[:, None] | first[None, :]

    def count(self, n: int) -> int:
        """Returns the number of allowed positions by formula: g (2 n − g), where g is at most n."""
        g = min(self.tokens, n)
        return g * (2 * n - g)

    def diagonal(self, n: int) -> int:
        """Returns the number of allowed positions on the diagonal by formula: g, where g is at most n."""
        return min(self.tokens, n)


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

    def allowed(self, n: int) -> Allowed:
        """True where a query may look."""
        return _drawn(~np.eye(n, dtype=bool), self.keys, self.seed)

    def count(self, n: int) -> int:
        """Returns the number of allowed positions by formula: n r, where r is at most n − 1."""
        return n * min(self.keys, n - 1)

    def diagonal(self, n: int) -> int:
        """Returns 0: keys are drawn among the other tokens, so that no position on the diagonal is allowed."""
        del n
        return 0


@dataclass(frozen=True)
class Strided(Pattern):
    """|i − j| ≤ l or i − j a multiple of l (Child et al. 2019, section 4.2, in both directions).

    Args:
        stride: l. The SparseBERT paper does not name it; 4 gives its sparsity.
    """

    stride: int = 4
    name = "strided"
    least: ClassVar[dict[str, int]] = {"stride": 1}

    def allowed(self, n: int) -> Allowed:
        """True where a query may look."""
        offsets = _offsets(n)
        found: Allowed = (np.abs(offsets) <= self.stride) | (offsets % self.stride == 0)
        return found

    def count(self, n: int) -> int:
        """That of a window of l, and 2 Σ (n − k l) over the multiples from 2 l up to n − 1."""
        most = max(1, (n - 1) // self.stride)
        return _band(n, self.stride) + 2 * ((most - 1) * n - self.stride * (most * (most + 1) // 2 - 1))


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
                f"fixed: a block of {counted(self.stride, 'token')} has no {self.summary} to look at.",
                f"summary can be 0 to {self.stride}.",
            )

    def allowed(self, n: int) -> Allowed:
        """True where a query may look."""
        place = np.arange(n)
        block = place // self.stride
        found: Allowed = block[:, None] == block[None, :]
        return found | (place % self.stride >= self.stride - self.summary)[None, :]

    def count(self, n: int) -> int:
        """Blocks q l² + r² for n = q l + r, and of each summary column what lies outside of its block."""
        blocks, rest = divmod(n, self.stride)
        inside = blocks * self.stride**2 + rest**2
        shared = max(0, rest - (self.stride - self.summary))
        return inside + blocks * self.summary * (n - self.stride) + shared * (n - rest)


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

    def allowed(self, n: int) -> Allowed:
        """True where a query may look."""
        return Window(self.window).allowed(n) | Global(self.tokens).allowed(n)

    def count(self, n: int) -> int:
        """Returns the number of allowed positions by formula.

        It is the count of a window over n − g tokens, plus g (2 n − g) for the global tokens, where g is at most n.
        """
        return _band(n - min(self.tokens, n), self.window) + Global(self.tokens).count(n)


@dataclass(frozen=True)
class Star(Pattern):
    """Neighbours, and the first token as the relay of all (Guo et al. 2019)."""

    name = "star"

    def allowed(self, n: int) -> Allowed:
        """True where a query may look."""
        return Longformer(1, 1).allowed(n)

    def count(self, n: int) -> int:
        """That of a window of 1 over n − 1 tokens, and 2 n − 1."""
        return Longformer(1, 1).count(n)


@dataclass(frozen=True)
class LogSparse(Pattern):
    """Pattern in which the distance |i − j| of query and key is 0 or a power of 2.

    The pattern is that of Li et al. 2019, in both directions.
    """

    name = "logsparse"

    def allowed(self, n: int) -> Allowed:
        """True where a query may look."""
        far = np.abs(_offsets(n))
        found: Allowed = (far & (far - 1)) == 0
        return found

    def count(self, n: int) -> int:
        """Returns the number of allowed positions by formula: n + 2 (p n − (2^p − 1)).

        Here p is how many powers of 2 are smaller than n.
        """
        powers = (n - 1).bit_length()
        return n + 2 * (powers * n - ((1 << powers) - 1))


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

    def allowed(self, n: int) -> Allowed:
        """True where a query may look."""
        seen = Longformer(self.window, self.tokens).allowed(n)
        return seen | _drawn(~seen, self.keys, self.seed)

    def count(self, n: int) -> int:
        """That of window and global tokens, and of each other query the smaller of r and what it does not see."""
        rest = n - min(self.tokens, n)
        place = np.arange(rest)
        near = np.minimum(rest - 1, place + self.window) - np.maximum(0, place - self.window) + 1
        return Longformer(self.window, self.tokens).count(n) + int(np.minimum(self.keys, rest - near).sum())


def parts_of(pattern: Pattern) -> tuple[Pattern, ...]:
    """The patterns of a union, or the pattern alone."""
    return pattern.patterns if isinstance(pattern, Union) else (pattern,)


@lru_cache(maxsize=128)
def made(pattern: Pattern, n: int) -> Allowed:
    """`pattern.allowed(n)`, made once for sentences of the same length; not to be written to."""
    found = pattern.allowed(n)
    found.flags.writeable = False
    return found


def pattern_sparsity(pattern: Pattern, n: int, *, diagonal: bool = True) -> float:
    """The share of n × n that is masked, by formula.

    Args:
        pattern: the pattern.
        n: tokens.
        diagonal: whether the diagonal is kept as the pattern has it; else it is masked.
    """
    return count_masked(pattern, n, diagonal=diagonal) / (n * n)


def count_masked(pattern: Pattern, n: int, *, diagonal: bool = True) -> int:
    """How many positions of n × n are masked, by formula; see `pattern_sparsity`."""
    return n * n - pattern.count(n) + (0 if diagonal else pattern.diagonal(n))


def _offsets(n: int) -> npt.NDArray[np.int64]:
    place = np.arange(n, dtype=np.int64)
    return place[None, :] - place[:, None]


def _band(n: int, width: int) -> int:
    w = max(0, min(width, n - 1))
    return n * (2 * w + 1) - w * (w + 1)


def _drawn(free: Allowed, keys: int, seed: int) -> Allowed:
    """As many of the free keys of every query, (query, key), drawn without replacement."""
    draws = np.where(free, np.random.default_rng([seed, len(free)]).random(free.shape), np.inf)
    # the keys with the smallest numbers; those that are not free have none
    rank = draws.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    return free & (rank < keys)
