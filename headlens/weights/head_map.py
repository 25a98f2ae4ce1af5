"""The map of heads of a smaller model: which heads of the original it still has, as saved beside its weights."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from transformers import PreTrainedModel

from headlens.errors import OptionError
from headlens.heads import STACKS, Head, Stack
from headlens.weights.head_slicing import check_shrinks, guard_cache, numbers_of, shrink
from headlens.weights.shared_layer_masks import mask_depths


@dataclass(frozen=True)
class SiteHeads:
    """The heads of one layer.

    Args:
        stack, layer: stack and depth of the layer.
        module: name of its attention module; several depths have the same one where weights are shared.
        heads: how many heads the layer has in the original model.
        left: the numbers of the heads that still have weights.
        masked: the heads of `left` that are silent at this depth, because other depths need their weights.
        scales: what the outputs of the heads in `left` are multiplied by at this depth, where weights that other depths
            share cannot say it; none for 1.
    """

    stack: Stack
    layer: int
    module: str
    heads: int
    left: tuple[int, ...]
    masked: tuple[int, ...] = ()
    scales: tuple[float, ...] = ()

    @property
    def dead(self) -> set[int]:
        """Numbers of the heads that contribute nothing, without weights or masked."""
        return (set(range(self.heads)) - set(self.left)) | set(self.masked)

    def reduced(self, left: Collection[int], masked: Iterable[int]) -> SiteHeads:
        """The same layer with fewer heads, which keep their factors."""
        scales = tuple(x for h, x in zip(self.left, self.scales, strict=False) if h in left)
        return replace(self, left=tuple(sorted(left)), masked=tuple(sorted(masked)), scales=scales)

    def named(self, numbers: Iterable[int]) -> list[Head]:
        """The heads of this layer with these numbers, sorted."""
        return [Head(self.stack, self.layer, h) for h in sorted(numbers)]


@dataclass(frozen=True)
class HeadMap:
    """The heads of a model, with the numbers of the original; one entry for each layer, in the order they run."""

    sites: tuple[SiteHeads, ...]

    @property
    def removed(self) -> list[Head]:
        """Heads that contribute nothing, cut out or masked."""
        return [h for s in self.sites for h in s.named(s.dead)]

    @property
    def masked(self) -> list[Head]:
        """Heads that contribute nothing at their depth, but whose weights live on at others."""
        return [h for s in self.sites for h in s.named(s.masked)]

    @property
    def modules(self) -> dict[str, tuple[int, ...]]:
        """The heads that are left, by attention module."""
        return {s.module: s.left for s in self.sites}

    def without(self, heads: Iterable[Head]) -> HeadMap:
        """The map when more heads are removed; those that are gone already may be named again.

        Of weights that several depths share a head can be cut out only if it is dead at all of them.

        Raises:
            OptionError: on a head that the original never had, and if no head at all would be left.
        """
        removed = set(heads)
        known = {h for s in self.sites for h in s.named(range(s.heads))}
        if unknown := sorted(removed - known, key=str):
            raise OptionError(f"There is no head {unknown[0]}.", f"The model has {self.inventory()}.")
        dead = [s.dead | {h for h in range(s.heads) if Head(s.stack, s.layer, h) in removed} for s in self.sites]
        if all(len(d) == s.heads for d, s in zip(dead, self.sites, strict=True)):
            raise OptionError("No head of the model would be left.", "Leave one.")
        # Heads that are dead at every depth of a module, by module.
        cut = {
            s.module: set.intersection(*(d for d, o in zip(dead, self.sites, strict=True) if o.module == s.module))
            for s in self.sites
        }
        return HeadMap(
            tuple(
                s.reduced([h for h in range(s.heads) if h not in cut[s.module]], d - cut[s.module])
                for d, s in zip(dead, self.sites, strict=True)
            )
        )

    def scaled(self, factors: Mapping[tuple[str, int], Sequence[float]]) -> HeadMap:
        """The map when heads of some layers are scaled further.

        Args:
            factors: by stack and layer, a factor for every head in `left`.
        """
        return HeadMap(tuple(_scaled(s, factors.get((s.stack, s.layer))) for s in self.sites))

    def apply(self, model: PreTrainedModel) -> None:
        """Brings a model to this map, in place.

        Raises:
            UnsupportedModelError: if heads cannot be cut out of its weights; nothing has changed then.
        """
        for name, left in self.modules.items():
            check_shrinks(model, name, left)
        for name, left in self.modules.items():
            if left != numbers_of(model, name):
                shrink(model, name, left)
        shared = [s for s in self.sites if [o.module for o in self.sites].count(s.module) > 1 or s.masked]
        if shared:
            names, masked = [s.module for s in shared], [s.masked for s in shared]
            mask_depths(model, names, masked, [s.scales for s in shared])
        first = next((s.module for s in self.sites if s.stack == "decoder"), None)
        if first is not None:
            guard_cache(model, first)

    def inventory(self) -> str:
        """The heads of the original in words, such as `encoder.0 to encoder.11 with heads 0 to 11`."""
        stacks = [[s for s in self.sites if s.stack == stack] for stack in STACKS]
        return "; ".join(
            f"{p[0].stack}.{p[0].layer} to {p[-1].stack}.{p[-1].layer} with heads 0 to {max(s.heads for s in p) - 1}"
            for p in stacks
            if p
        )


def _scaled(site: SiteHeads, factors: Sequence[float] | None) -> SiteHeads:
    if factors is None:
        return site
    present = site.scales or (1.0,) * len(site.left)
    return replace(site, scales=tuple(a * b for a, b in zip(present, factors, strict=True)))
