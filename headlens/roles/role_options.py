"""The options of roles: what is measured of heads, and the thresholds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from headlens import shared_options
from headlens.corpora.corpus_options import LongSentences
from headlens.corpora.relations import normalise
from headlens.errors import OptionError
from headlens.option_values import amount, names, share
from headlens.options import (
    CORPUS,
    MODEL,
    NOT_RECORDED,
    ROLES,
    STATISTICS,
    Level,
    option,
)

if TYPE_CHECKING:
    from headlens.metrics.accumulator import Array

_GROUP: dict[str, Any] = {"panel": ROLES, "group": "thresholds"}
_SHARE: dict[str, Any] = {"metavar": "0…1", "parse": share, **_GROUP}
_RELATIONS = "Dependency relations, comma-separated UD names."
_MANY = "all that reach the threshold min-instances"
_SPLIT_AT = "Separator between two texts in one sentence, such as >>: they are read as a pair in one sequence."
_SIMILARITY = "Compute distances between heads from one query token per sentence, from all tokens, or not at all."
_KERNEL = (
    "fast; eager, which is slower but bit for bit the model's own attention; or graphs: fast, and passes of short "
    "texts are replayed as CUDA graphs (not yet tried on a GPU)."
)
_STABILITY = "Resample the sentences this many times, and report how often each head keeps its role."


@dataclass(frozen=True)
class Thresholds:
    """Thresholds from which a head has a role; shares are shares of query tokens or words.

    Raises:
        OptionError: for a threshold that is not a number, or an infinite margin; nothing would be above it.
    """

    positional: float = option(
        0.90, "Minimum share of tokens at one offset for a head to count as positional.", **_SHARE
    )
    diagonal: float = option(0.90, "Minimum share of tokens at offset 0 for the role self.", **_SHARE)
    margin: float = option(
        0.10,
        "Margin by which a syntactic head must beat the baseline.",
        metavar="NUMBER",
        parse=amount,
        **_GROUP,
    )
    margin_kind: Literal["absolute", "relative"] = option(
        "absolute", "Whether the margin is added to the baseline or is a fraction of it.", **_GROUP
    )
    min_instances: int = option(30, "For relations with fewer instances, no role is assigned.", at_least=1, **_GROUP)
    min_sentences: int = option(30, "With fewer sentences, no roles are assigned at all.", at_least=1, **_GROUP)
    min_tokens: int = option(1000, "With fewer tokens, no roles are assigned at all.", at_least=1, **_GROUP)
    rare: float = option(0.50, "Share of words that point at the rarest one, for the role rare.", **_SHARE)
    separator: float = option(
        0.50, "Attention mass on separator and end-of-sentence tokens, for the role separator.", **_SHARE
    )
    broad: float = option(0.90, "Normalised entropy, for the role broad.", **_SHARE)
    sink: float = option(0.50, "Attention mass on the first token, for the role sink.", **_SHARE)
    punctuation: float = option(0.50, "Attention mass on punctuation, for the role punctuation.", **_SHARE)
    neighbour: float = option(
        0.50, "Attention mass on the previous or next token, for the roles previous and next.", **_SHARE
    )
    pair: float = option(0.50, "Attention mass from one text of a pair to the other, for the roles pair.", **_SHARE)
    same_word: float = option(
        0.50, "Share of repeated words that point at another occurrence, for the role same word.", **_SHARE
    )

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, float) and (math.isnan(value) or (name == "margin" and math.isinf(value))):
                flag = name.replace("_", "-")
                raise OptionError(
                    f"--thresholds {flag}={value} is not a finite number.", "Give one such as 0.1 or 0.9."
                )

    def syntactic(self, baseline: Array) -> Array:
        """Accuracy a syntactic head needs, given the baseline's."""
        bound: Array = baseline + self.margin if self.margin_kind == "absolute" else baseline * (1 + self.margin)
        return bound


@dataclass(frozen=True)
class ClassifyOptions:
    """What `classify` measures and when a head gets a role.

    Relations are given by UD name; a ClearNLP name is taken for its UD counterpart. The kernel "eager" runs the model's
    own attention, bit for bit; "fast" differs from it by rounding, so that a head that attends to two tokens equally to
    the seventh digit may point at the other one. The seed chooses the query tokens of sampled similarity. `metrics` are
    measured beside those that are registered.
    """

    relations: tuple[str, ...] | None = option(None, _RELATIONS, STATISTICS, metavar="NAMES", parse=names, shown=_MANY)
    thresholds: Thresholds = field(default_factory=Thresholds)
    level: Level = option("token", shared_options.LEVEL)
    split_at: str | None = option(None, _SPLIT_AT, CORPUS, metavar="TEXT", shown="", group="data-args")
    exclude_self: bool = option(
        False, "For syntax, ignore the attention of a word to itself.", STATISTICS, command_line=False
    )
    similarity: Literal["sample", "all", "off"] = option("sample", _SIMILARITY, STATISTICS)
    stability: int = option(0, _STABILITY, ROLES, metavar="N", at_least=0)
    batch_tokens: int | None = option(None, shared_options.BATCH_TOKENS, shown=shared_options.BATCH_TOKENS_SHOWN)
    seed: int = option(0, shared_options.SEED)
    long_sentences: LongSentences = option("skip", shared_options.LONG_SENTENCES)
    kernel: Literal["fast", "eager", "graphs"] = option("fast", _KERNEL, MODEL, group="model-args")
    metrics: tuple[Any, ...] = field(default=(), metadata=NOT_RECORDED)  # of `Metric`

    def __post_init__(self) -> None:
        if self.split_at is not None and not self.split_at.strip():
            raise OptionError(
                "--data-args split-at is blank.", "Give the separator between the two texts, such as '>>'."
            )
        if self.relations is not None:
            object.__setattr__(self, "relations", tuple(dict.fromkeys(normalise(r) for r in self.relations)))
