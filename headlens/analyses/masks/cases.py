"""Which masks a study trains under: patterns and files, with and without the diagonal, in ranges of layers."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal

from headlens.analyses.masks.options import DROP_ATTENTION, DROP_LAYERS, MADE, SPANS, ZERO, strength_of
from headlens.analyses.masks.study_figures import FULL
from headlens.attention_masks.attention_mask import (
    AnyMaskSource,
    AttentionMask,
    Controlled,
    MaskSource,
    PatternMask,
    WithoutDiagonal,
)
from headlens.attention_masks.importance_mask import ImportanceMask
from headlens.attention_masks.mask_options import read_layers
from headlens.attention_masks.model_mask import parse_mask
from headlens.attention_masks.patterns import BigBird, Full, Global, Longformer, Random, Star, Window, parts_of
from headlens.corpora.word_graphs import GraphCache
from headlens.errors import OptionError

Diagonal = Literal["kept", "dropped", "random"]
GRAPH = "graph:"
_FEW = 8  # tokens, of which any mask with a diagonal shows it
# The parameters of patterns that are degrees.
_DEGREES = {
    Window: {"neighbour": "width"},
    Global: {"global": "tokens"},
    Random: {"random": "keys"},
    Longformer: {"neighbour": "window", "global": "tokens"},
    BigBird: {"neighbour": "window", "global": "tokens", "random": "keys"},
}


@dataclass(frozen=True)
class MaskCase:
    """One training.

    Args:
        pattern: a pattern in words, a mask file, `graph:` and a graph of each text in words, or `degrees:mu=` and the
            penalty under which degrees are learned, or spans with `spans:mu=`; `full` masks nothing. `drop-attention`
            and `drop-layers` take the attention of the layers away, or the layers. After `zero:` a masked score is 0.
        diagonal: whether it is `kept`; `dropped`: no token looks at itself; `random`: as many other positions as the
            diagonal has are masked instead.
        layers: in which layers the mask holds, or what they lose, such as `6-11`; None for all.
        seed: of the training, a new head, and the random positions.
    """

    pattern: str = FULL
    diagonal: Diagonal = "kept"
    layers: str | None = None
    seed: int = 0

    @property
    def name(self) -> str:
        """Of its files, the same whenever the run is resumed, and no other case's."""
        words = (self.pattern, self.diagonal, self.layers or "all", f"seed{self.seed}")
        fit = [re.sub(r"[^A-Za-z0-9=]+", "_", word) for word in words]
        # 0-2 and 0,2 read the same in a file's name.
        mark = [] if fit == list(words) else [hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]]
        return "-".join([*fit, *mark])

    @property
    def words(self) -> str:
        """Description for tables and messages: pattern, treatment of the diagonal, layers and seed."""
        control = {"dropped": "no diagonal", "random": "random positions instead of the diagonal"}.get(self.diagonal)
        parts = ["no mask" if self.whole else None, None if self.pattern == FULL else self.pattern, control]
        parts += [None if self.layers is None else f"layers {self.layers}", f"seed {self.seed}"]
        return ", ".join(filter(None, parts))

    @property
    def whole(self) -> bool:
        """Whether nothing is masked, which the others of the seed are compared with."""
        return (self.pattern, self.diagonal) == (FULL, "kept")

    @property
    def zeroed(self) -> bool:
        """Whether masked scores are 0 instead of lost, see `zeroed_scores`."""
        return self.pattern.startswith(ZERO)

    @property
    def mask_words(self) -> str:
        """The mask in words, whatever becomes of masked scores."""
        return self.pattern.removeprefix(ZERO)

    @property
    def graph(self) -> str | None:
        """The graph in words; None for other masks."""
        return self.mask_words.removeprefix(GRAPH) if self.mask_words.startswith(GRAPH) else None

    @property
    def strength(self) -> float | None:
        """μ, where degrees or spans are learned; None for other masks."""
        return strength_of(self.pattern) if self.pattern.startswith(MADE) else None

    @property
    def spanned(self) -> bool:
        """Whether adaptive spans are learned."""
        return self.pattern.startswith(SPANS)

    @property
    def removed(self) -> bool:
        """Whether layers lose their attention, or are not there, instead of a mask."""
        return self.pattern in (DROP_ATTENTION, DROP_LAYERS)

    @property
    def fixed(self) -> MaskSource | None:
        """The mask of a pattern or file; None where there is none, or none yet, as of graphs and what is learned.

        Raises:
            OptionError: if there is no such pattern or file.
        """
        if self._made or self.whole:
            return None
        source = PatternMask(Full()) if self.pattern == FULL else parse_mask(self.mask_words)
        if self.diagonal == "kept":
            return source
        return Controlled(source) if self.diagonal == "dropped" else Controlled(source, "random", self.seed)

    @property
    def has_diagonal(self) -> bool:
        """Whether its pattern or file lets some token look at itself, as random keys alone do not.

        A file that is not there yet, as when a run is planned, may do so; `fixed` refuses it. Where global degrees are
        learned the diagonal stays: a head with no degree at all would have no key left, and look everywhere.
        """
        if self.strength is not None and "global" in self.pattern:
            return False
        if self._made or self.pattern == FULL:
            return True
        try:
            source = parse_mask(self.mask_words)
        except OptionError:
            return True
        if isinstance(source, ImportanceMask):  # what it keeps of the diagonal differs with the length
            return source.diagonal
        length = min(_FEW, source.length) if isinstance(source, AttentionMask) else _FEW
        return bool(source.block(length).diagonal(dim1=-2, dim2=-1).any())

    @property
    def _made(self) -> bool:
        """Whether there is no mask of a pattern or file: it is made in the run, or the model loses something."""
        return self.graph is not None or self.strength is not None or self.removed

    def source(self, books: Mapping[str, GraphCache], learned: MaskSource | None = None) -> AnyMaskSource | None:
        """The mask; None where nothing is masked.

        Args:
            books: graphs of the texts of a run, by their words.
            learned: the mask that was learned; None before.
        """
        if self.strength is not None:
            return learned
        if self.graph is None:
            return self.fixed
        book = books[self.graph]
        return book if self.diagonal == "kept" else WithoutDiagonal(book)

    def sparsity(self, n: int, learned: MaskSource | None = None) -> float:
        """Share of the n x n positions that are masked, in layers that are; of many heads the mean, of graphs NaN.

        Layers without attention, or that are not there, look nowhere: 1.
        """
        if self.graph is not None:
            return math.nan
        if self.removed:
            return 1.0
        source = learned if self.strength is not None else self.fixed
        if source is None:
            return 0.0
        masked = ~source.block(n)
        layers = read_layers(self.layers, len(masked)) if len(masked) > 1 else None
        return float((masked if layers is None else masked[list(layers)]).double().mean())

    def sparsity_of_texts(
        self, lengths: Mapping[int, int], books: Mapping[str, GraphCache], learned: MaskSource | None = None
    ) -> float:
        """The same over the texts of a run, mean over texts.

        Args:
            lengths: how many texts there are of each number of tokens.
            books: their graphs, by words.
            learned: the mask that was learned.
        """
        if self.graph is not None:
            book = books[self.graph]
            return book.sparsity + (book.diagonal if self.diagonal == "dropped" else 0.0)
        masked = (self.sparsity(n, learned) * count for n, count in lengths.items())
        return sum(masked) / max(sum(lengths.values()), 1)

    def degrees(self) -> dict[str, float | None]:
        """Of patterns that are made of them, how many tokens are global, random, and near on each side.

        None of masks whose scores are 0, which are no points of a grid: other keys keep their weights.
        """
        source = None if self.pattern == FULL or self._made or self.zeroed else parse_mask(self.pattern)
        sums: dict[str, float | None] = dict.fromkeys(("degree_global", "degree_random", "degree_neighbour"))
        for part in parts_of(source.pattern) if isinstance(source, PatternMask) else ():
            pattern = Longformer(1, 1) if isinstance(part, Star) else part
            for kind, parameter in _DEGREES.get(type(pattern), {}).items():
                sums[f"degree_{kind}"] = (sums[f"degree_{kind}"] or 0) + getattr(pattern, parameter)
        return sums


def cases(
    patterns: tuple[str, ...],
    layers: tuple[str | None, ...],
    seeds: tuple[int, ...],
    removed: tuple[tuple[str, str | None], ...] = (),
    *,
    controls: bool,
) -> list[MaskCase]:
    """All trainings, each once: no mask, every pattern in every range of layers, each without the diagonal, too.

    Of each seed that without a mask comes first, as the others are compared with it. The pattern `full` adds nothing to
    it but the diagonal dropped in the ranges.

    Args:
        patterns: see `MaskCase`.
        layers: ranges.
        seeds: each trains everything once.
        removed: `drop-attention` or `drop-layers`, each with its layers; without controls, as nothing is left to drop.
        controls: whether diagonals are dropped, and as many random positions of attention without a mask.
    """
    diagonals: tuple[Diagonal, ...] = ("kept", "dropped", "random") if controls else ("kept",)
    planned = []
    for seed in seeds:
        planned += [MaskCase(FULL, diagonal, None, seed) for diagonal in diagonals]
        in_ranges = product(patterns, layers, diagonals[:2])
        ranged = [MaskCase(pattern, diagonal, layer_range, seed) for pattern, layer_range, diagonal in in_ranges]
        planned += [case for case in ranged if not case.whole]
        planned += [MaskCase(pattern, "kept", layer_range, seed) for pattern, layer_range in removed]
    return list(dict.fromkeys(planned))
