"""Which masks a study trains under: patterns and files, with and without the diagonal, in ranges of layers."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from headlens.attention_masks.attention_mask import (
    AnyMaskSource,
    AttentionMask,
    Controlled,
    MaskSource,
    WithoutDiagonal,
)
from headlens.attention_masks.importance_mask import FiledMask, ImportanceMask
from headlens.attention_masks.mask_options import read_layers
from headlens.attention_masks.model_mask import source_of
from headlens.attention_masks.named_masks import (
    FULL_ATTENTION,
    LearnedDegrees,
    LearnedInRun,
    NamedMask,
    PatternName,
    Removal,
    StoredMask,
    TextGraph,
    ZeroedScores,
)
from headlens.attention_masks.patterns import (
    BigBird,
    Global,
    Longformer,
    Random,
    Star,
    Window,
    parse_pattern,
    parts_of,
)
from headlens.corpora.word_graphs import GraphCache
from headlens.errors import OptionError

Diagonal = Literal["kept", "dropped", "random"]
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
        mask: what is masked or removed, or how that is learned.
        diagonal: whether it is `kept`; `dropped`: no token looks at itself; `random`: as many other positions as the
            diagonal has are masked instead.
        layers: in which layers the mask holds, or what they lose, such as `6-11`; None for all.
        seed: of the training, a new head, and the random positions.
    """

    mask: NamedMask = FULL_ATTENTION
    diagonal: Diagonal = "kept"
    layers: str | None = None
    seed: int = 0

    @property
    def name(self) -> str:
        """Name of its files: unique to the case, and the same when the run is resumed."""
        words = (str(self.mask), self.diagonal, self.layers or "all", f"seed{self.seed}")
        fit = [re.sub(r"[^A-Za-z0-9=]+", "_", word) for word in words]
        # 0-2 and 0,2 read the same in a file's name.
        mark = [] if fit == list(words) else [hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]]
        return "-".join([*fit, *mark])

    @property
    def words(self) -> str:
        """Description for tables and messages: mask, treatment of the diagonal, layers and seed."""
        control = {"dropped": "no diagonal", "random": "random positions instead of the diagonal"}.get(self.diagonal)
        mask_name = None if self.mask == FULL_ATTENTION else str(self.mask)
        parts = ["no mask" if self.whole else None, mask_name, control]
        parts += [None if self.layers is None else f"layers {self.layers}", f"seed {self.seed}"]
        return ", ".join(filter(None, parts))

    @property
    def whole(self) -> bool:
        """Whether nothing is masked, which the others of the seed are compared with."""
        return (self.mask, self.diagonal) == (FULL_ATTENTION, "kept")

    @property
    def positions(self) -> NamedMask:
        """The mask that says which positions are masked, whatever becomes of their scores."""
        return self.mask.mask if isinstance(self.mask, ZeroedScores) else self.mask

    @property
    def graph(self) -> str | None:
        """The graph in words; None for other masks."""
        return self.positions.words if isinstance(self.positions, TextGraph) else None

    @property
    def fixed(self) -> MaskSource | None:
        """The mask of a pattern or file; None where there is none, or none yet, as of graphs and what is learned.

        Raises:
            OptionError: if there is no such pattern or file.
        """
        if self.whole or not isinstance(self.positions, StoredMask):
            return None
        source = source_of(self.positions)
        if self.diagonal == "kept":
            return source
        return Controlled(source) if self.diagonal == "dropped" else Controlled(source, "random", self.seed)

    @property
    def keeps_diagonal(self) -> bool:
        """Whether some token may look at itself, as it may not under random keys alone, or where that was learned."""
        return self.diagonal != "dropped" and (isinstance(self.mask, LearnedDegrees) or self.has_diagonal)

    @property
    def has_diagonal(self) -> bool:
        """Whether its pattern or file lets some token look at itself, as random keys alone do not.

        A file that is not there yet, as when a run is planned, may do so; `fixed` refuses it. Where global degrees are
        learned the diagonal stays: a head with no degree at all would have no key left, and look everywhere.
        """
        if isinstance(self.mask, LearnedDegrees):
            return "global" not in self.mask.kinds
        if not isinstance(self.positions, StoredMask):
            return True
        try:
            source = source_of(self.positions)
        except OptionError:
            return True
        if isinstance(source, ImportanceMask):  # what it keeps of the diagonal differs with the length
            return source.diagonal
        length = min(_FEW, source.length) if isinstance(source, AttentionMask) else _FEW
        return bool(source.block(length).diagonal(dim1=-2, dim2=-1).any())

    def source(self, books: Mapping[str, GraphCache], learned: MaskSource | None = None) -> AnyMaskSource | None:
        """The mask; None where nothing is masked.

        Args:
            books: graphs of the texts of a run, by their words.
            learned: the mask that was learned; None before.
        """
        if isinstance(self.mask, LearnedInRun):
            return learned
        if self.graph is None:
            return self.fixed
        book = books[self.graph]
        return book if self.diagonal == "kept" else WithoutDiagonal(book)

    def sparsity(self, n: int, learned: MaskSource | None = None, *, causal: bool = False) -> float:
        """Share of the n x n positions that are masked, in layers that are; of many heads the mean, of graphs NaN.

        Layers without attention, or that are not there, look nowhere: 1.

        Args:
            n: tokens.
            learned: the mask that was learned.
            causal: whether only positions up to each query's own count, as a decoder sees no others.
        """
        if self.graph is not None:
            return math.nan
        if isinstance(self.mask, Removal):
            return 1.0
        source = learned if isinstance(self.mask, LearnedInRun) else self.fixed
        if source is None:
            return 0.0
        masked = ~(replace(source, causal=causal) if isinstance(source, Controlled) else source).block(n)
        layers = read_layers(self.layers, len(masked)) if len(masked) > 1 else None
        masked = masked if layers is None else masked[list(layers)]
        return float((masked[..., masked.new_ones(n, n).tril()] if causal else masked).double().mean())

    def sparsity_of_texts(
        self,
        lengths: Mapping[int, int],
        books: Mapping[str, GraphCache],
        learned: MaskSource | None = None,
        *,
        causal: bool = False,
    ) -> float:
        """The share over the texts of a run, as the mean over texts.

        Args:
            lengths: how many texts there are of each number of tokens.
            books: their graphs, by words.
            learned: the mask that was learned.
            causal: see `sparsity`.
        """
        if self.graph is not None:
            return books[self.graph].sparsity(diagonal=self.diagonal != "dropped", causal=causal)
        masked = (self.sparsity(n, learned, causal=causal) * count for n, count in lengths.items())
        return sum(masked) / max(sum(lengths.values()), 1)

    def degrees(self) -> dict[str, float | None]:
        """The numbers of global, random and neighbouring tokens of patterns that have such degrees.

        None of masks whose scores are 0, which are no points of a grid: other keys keep their weights.
        """
        parts = parts_of(parse_pattern(self.mask.words)) if isinstance(self.mask, PatternName) else ()
        sums: dict[str, float | None] = dict.fromkeys(("degree_global", "degree_random", "degree_neighbour"))
        for part in parts:
            pattern = Longformer(1, 1) if isinstance(part, Star) else part
            for kind, parameter in _DEGREES.get(type(pattern), {}).items():
                sums[f"degree_{kind}"] = (sums[f"degree_{kind}"] or 0) + getattr(pattern, parameter)
        return sums


def cases(
    masks: Sequence[NamedMask],
    layers: tuple[str | None, ...],
    seeds: tuple[int, ...],
    removed: Sequence[tuple[Removal, str | None]] = (),
    *,
    controls: bool,
) -> list[MaskCase]:
    """All trainings, each once: no mask, every mask in every range of layers, each without the diagonal, too.

    Of each seed that without a mask comes first, as the others are compared with it. Full attention adds nothing to it
    but the diagonal dropped in the ranges.

    Args:
        masks: what is masked.
        layers: ranges; a mask that was learned in some layers alone holds in those of them that are its own.
        seeds: each trains everything once.
        removed: attention or layers that models lose; without controls, as nothing is left to drop.
        controls: whether diagonals are dropped, and as many random positions of attention without a mask.

    Raises:
        OptionError: if a mask holds in none of the layers of a range.
    """
    diagonals: tuple[Diagonal, ...] = ("kept", "dropped", "random") if controls else ("kept",)
    places = [(mask, _within(mask, layer_range)) for mask, layer_range in product(masks, layers)]
    planned: list[MaskCase] = []
    for seed in seeds:
        planned += [MaskCase(diagonal=diagonal, seed=seed) for diagonal in diagonals]
        ranged = [MaskCase(mask, diagonal, where, seed) for (mask, where), diagonal in product(places, diagonals[:2])]
        planned += [case for case in ranged if not case.whole]
        planned += [MaskCase(removal, "kept", layer_range, seed) for removal, layer_range in removed]
    return list(dict.fromkeys(planned))


def _within(mask: NamedMask, layer_range: str | None) -> str | None:
    """The layers of a range in which a mask holds; those of a mask that was learned in some layers are known."""
    positions = mask.mask if isinstance(mask, ZeroedScores) else mask
    if not isinstance(positions, StoredMask):
        return layer_range
    try:
        source = source_of(positions)
    except OptionError:  # a file that is not there yet, as when a run is planned
        return layer_range
    if not isinstance(source, FiledMask) or source.layers is None:
        return layer_range
    chosen = read_layers(layer_range, source.shape[0])
    own = [layer for layer in sorted(source.layers) if chosen is None or layer in chosen]
    if not own:
        raise OptionError(
            f"--layers {layer_range}: the mask {mask} holds in none of them, but in {_ranges(sorted(source.layers))}.",
            "Leave --layers out, or name other layers.",
        )
    return _ranges(own)


def _ranges(layers: Sequence[int]) -> str:
    """Ascending numbers of layers as `read_layers` reads them, such as `0,4-5`."""
    firsts = [layer for layer in layers if layer - 1 not in layers]
    lasts = [layer for layer in layers if layer + 1 not in layers]
    return ",".join(
        str(first) if first == last else f"{first}-{last}" for first, last in zip(firsts, lasts, strict=True)
    )
