"""Attention masks by name, as the command line, run.json and tables have them: a value for each kind, without torch.

A name is read once, by `parse_named_mask`; `str` of the value gives it back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal, get_args

from headlens.errors import OptionError

KeepOrder = Literal["most", "least", "random"]
UNMASKED = "unmasked"  # the run of a sweep that trains without a mask
PROBABILITIES = "probabilities.safetensors"  # P of a learned mask, beside its file
P_AT_START = 0.9  # probability of the largest degree before training; share of the largest span
CONNECTIONS = ("neighbour", "global", "random")
SHARE_ADVICE = "Give a number above 0 and up to 1, such as 0.3."
_SHARE = re.compile(rf"(?P<path>.+)@(?P<order>{'|'.join(get_args(KeepOrder))})=(?P<keep>[^@]+)", re.DOTALL)
_DEGREES = re.compile(r"mu=(?P<strength>[^,]+)(,kinds=(?P<kinds>.+))?")
_SPANS = re.compile(r"mu=(?P<strength>[^,]+)(,ramp=(?P<ramp>[1-9][0-9]{0,17}))?")


@dataclass(frozen=True)
class _Written:
    """Base of masks whose names are words after a prefix."""

    words: str
    prefix: ClassVar[str] = ""

    def __str__(self) -> str:
        return f"{self.prefix}{self.words}"


class PatternName(_Written):
    """A fixed pattern or a union of some, such as `window:3|global:1` or `full`, see `parse_pattern`."""


class MaskFile(_Written):
    """A mask file or its folder, by its path, such as `runs/dam/masks/penalty-0.1`."""


class TextGraph(_Written):
    """A graph over the words of each text, such as `graph:lexical:degree=4`, see `headlens.corpora.word_graphs`."""

    prefix = "graph:"


class Removal(_Written):
    """What layers lose instead of positions: `drop-attention`, or the layers themselves, `drop-layers`."""

    prefix = "drop-"


@dataclass(frozen=True)
class ImportanceShare:
    """The most or least important positions of a mask that train-dam learned, such as `penalty-0.01@most=0.3`.

    Args:
        path: path of the learned mask's file or folder.
        order: which positions are kept first, a `KeepOrder`.
        keep: share of the positions that are kept, to ten digits.
    """

    path: str
    order: str
    keep: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", self.path.removesuffix("/mask.safetensors"))
        object.__setattr__(self, "keep", _shown(self.keep))

    def __str__(self) -> str:
        return f"{self.path}@{self.order}={self.keep:.10g}"


@dataclass(frozen=True)
class _Learned:
    """Base of masks that are learned in the run.

    Args:
        strength: μ, the weight of the penalty, to ten digits.
    """

    strength: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "strength", _shown(self.strength))


@dataclass(frozen=True)
class LearnedDegrees(_Learned):
    """Degrees that are learned, such as `degrees:mu=0.1,kinds=neighbour+global`, see `GumbelDegrees`.

    Args:
        strength: μ, the weight of the penalty.
        kinds: of `CONNECTIONS`.
    """

    kinds: tuple[str, ...] = ("neighbour",)

    def __str__(self) -> str:
        kinds = "" if self.kinds == LearnedDegrees.kinds else f",kinds={'+'.join(self.kinds)}"
        return f"degrees:mu={self.strength:.10g}{kinds}"


@dataclass(frozen=True)
class LearnedSpans(_Learned):
    """Adaptive attention spans that are learned, such as `spans:mu=0.1,ramp=8`, see `AdaptiveSpan`.

    Args:
        strength: μ, the weight of the penalty.
        ramp: tokens beyond a span over which weights fall to 0.
    """

    ramp: int = 4

    def __str__(self) -> str:
        return f"spans:mu={self.strength:.10g}" + ("" if self.ramp == LearnedSpans.ramp else f",ramp={self.ramp}")


StoredMask = PatternName | MaskFile | ImportanceShare
LearnedInRun = LearnedDegrees | LearnedSpans
Zeroable = StoredMask | TextGraph


@dataclass(frozen=True)
class ZeroedScores:
    """Another mask where closed positions have the score 0 and keep a weight, such as `zero:star`."""

    mask: Zeroable

    def __str__(self) -> str:
        return f"zero:{self.mask}"


NamedMask = Zeroable | LearnedInRun | Removal | ZeroedScores
FULL_ATTENTION = PatternName("full")  # every query attends to every key


@lru_cache(maxsize=4096)
def parse_named_mask(name: str) -> NamedMask:
    """Reads the name of a mask; whether there is such a pattern, file or graph shows where it is made.

    Raises:
        OptionError: for what is said of a mask that is learned, of a share or of zeroed scores, if it cannot be.
    """
    kind, colon, rest = name.partition(":")
    if name in ("drop-attention", "drop-layers"):
        return Removal(name.removeprefix(Removal.prefix))
    if not colon or kind not in ("graph", "zero", "degrees", "spans"):
        return parse_stored_mask(name)
    if kind == "graph":
        return TextGraph(rest)
    if kind == "zero":
        masked = parse_named_mask(rest)
        if not isinstance(masked, Zeroable) or masked == FULL_ATTENTION:
            raise OptionError(f"{name!r}: scores cannot be zeroed under {rest!r}.", "Name a pattern, file or graph.")
        return ZeroedScores(masked)
    match = (_DEGREES if kind == "degrees" else _SPANS).fullmatch(rest)
    strength = _number(match["strength"]) if match else None
    if match is None or strength is None or not 0 <= strength < float("inf"):
        raise OptionError(f"{name!r} is not a mask that can be learned.", f"Write {kind}:mu=0.1.")
    if kind == "spans":
        return LearnedSpans(strength, int(match["ramp"] or LearnedSpans.ramp))
    kinds = tuple(match["kinds"].split("+")) if match["kinds"] else LearnedDegrees.kinds
    check_connections(kinds, name)
    return LearnedDegrees(strength, kinds)


def parse_stored_mask(name: str) -> StoredMask:
    """Reads the name of a mask that exists before the run, as `--mask` takes it.

    Raises:
        OptionError: if a share of the positions is no number.
    """
    from headlens.attention_masks.patterns import PATTERNS  # noqa: PLC0415 - numpy would slow down --help

    if match := _SHARE.fullmatch(name):
        if (keep := _number(match["keep"])) is None:
            raise OptionError(f"{name}: {match['keep']!r} is not a share of the positions.", SHARE_ADVICE)
        return ImportanceShare(match["path"], match["order"], keep)
    is_pattern = re.split(r"[:|]", name)[0].strip().lower() in PATTERNS
    return PatternName(name) if is_pattern else MaskFile(name)


def strength_of(name: str) -> float:
    """μ of degrees or spans that are learned, by their name.

    Raises:
        OptionError: if it is the name of another mask.
    """
    parsed = parse_named_mask(name)
    if not isinstance(parsed, LearnedInRun):
        raise OptionError(f"{name!r} is not a mask that is learned.", "Write degrees:mu=0.1 or spans:mu=0.1.")
    return parsed.strength


def check_connections(kinds: Sequence[str], flag: str = "--law degree-kinds") -> None:
    """Raises OptionError if there is no such kind of connections, or none at all."""
    if unknown := [kind for kind in kinds if kind not in CONNECTIONS]:
        raise OptionError(f"{flag}: {unknown[0]!r} is not a kind of degree.", f"Kinds: {', '.join(CONNECTIONS)}.")
    if not kinds:
        raise OptionError(f"{flag} is empty.", f"Kinds: {', '.join(CONNECTIONS)}.")


def _shown(number: float) -> float:
    """The number that a name tells: two values have the same name only if they are the same."""
    return float(f"{number:.10g}")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
