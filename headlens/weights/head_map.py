"""The map of heads of a smaller model: which heads of the original it still has, as saved beside its weights.

`heads_removed.json` holds it. The weights of a model that lost heads have other shapes than its configuration says,
or else, where config.json is that of the smaller model, the file says what the original's was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from headlens.errors import ModelError, OptionError, UnsupportedModelError, read_errors
from headlens.heads import MOST_HEADS, STACKS, Head, Stack
from headlens.nested_text import parse_json
from headlens.weights.head_slicing import check_shrinks, guard_cache, has_heads, numbers_of, projections, shrink
from headlens.weights.shared_layer_masks import around_layers, mask_depths

FILE = "heads_removed.json"
_FORMAT = "headlens: heads removed"
_VERSION = 1
_SCALES = "scales"
_CONFIG = "config"
# Settings of the original that the file may hold, see `HeadMap.config`.
COUNTS = ("num_attention_heads", "num_key_value_heads")
_ORIGINAL = "headlens_original"
_PRUNED = "It must name heads by layer, each once, which the model of its config.json has and headlens can cut out."
_ADVICE = "Compact the original model again, or take the file that was written with these weights."


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

    def reduced(self, cut: Collection[int], dead: Collection[int]) -> SiteHeads:
        """The layer with these of its heads cut out and all that are `dead` silent; others keep their factors."""
        scales = tuple(x for h, x in zip(self.left, self.scales, strict=False) if h not in cut)
        left = tuple(h for h in range(self.heads) if h not in cut)
        return replace(self, left=left, masked=tuple(sorted(set(dead) - set(cut))), scales=scales)

    def scaled(self, factors: Sequence[float]) -> SiteHeads:
        """The layer with heads scaled further by a factor for every head in `left`; unchanged without factors."""
        if not factors:
            return self
        present = self.scales or (1.0,) * len(self.left)
        return replace(self, scales=tuple(a * b for a, b in zip(present, factors, strict=True)))

    def heads_of(self, numbers: Iterable[int]) -> list[Head]:
        """The heads of this layer with these numbers, sorted."""
        return [Head(self.stack, self.layer, h) for h in sorted(numbers)]


@dataclass(frozen=True)
class HeadMap:
    """The heads of a model, with the numbers of the original; one entry for each layer, in the order they run.

    Args:
        sites: the layers.
        config: numbers of heads by the configuration of the original, where config.json beside the file has those of
            the smaller model, so that transformers reads it alone; empty where config.json is the original's.
    """

    sites: tuple[SiteHeads, ...]
    config: Mapping[str, int] = field(default_factory=dict, compare=False)

    @property
    def removed(self) -> list[Head]:
        """Heads that contribute nothing, cut out or masked."""
        return [h for s in self.sites for h in s.heads_of(s.dead)]

    @property
    def masked(self) -> list[Head]:
        """Heads that contribute nothing at their depth, but whose weights live on at others."""
        return [h for s in self.sites for h in s.heads_of(s.masked)]

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
        removed, known = set(heads), {h for s in self.sites for h in s.heads_of(range(s.heads))}
        if unknown := sorted(removed - known, key=str):
            raise OptionError(f"There is no head {unknown[0]}.", f"The model has {self.inventory()}.")
        dead = [s.dead | {h for h in range(s.heads) if Head(s.stack, s.layer, h) in removed} for s in self.sites]
        if all(len(d) == s.heads for d, s in zip(dead, self.sites, strict=True)):
            raise OptionError("No head of the model would be left.", "Keep at least one.")
        # Heads that are dead at every depth of a module, by module.
        cut: dict[str, set[int]] = {}
        for d, s in zip(dead, self.sites, strict=True):
            cut[s.module] = cut.get(s.module, d) & d
        return HeadMap(tuple(s.reduced(cut[s.module], d) for d, s in zip(dead, self.sites, strict=True)))

    def scaled(self, factors: Mapping[tuple[str, int], Sequence[float]]) -> HeadMap:
        """The map when heads of some layers are scaled further.

        Args:
            factors: by stack and layer, a factor for every head in `left`.
        """
        return HeadMap(tuple(s.scaled(factors.get((s.stack, s.layer), ())) for s in self.sites))

    def check(self, model: PreTrainedModel) -> None:
        """Refuses a model that cannot be brought to this map; it does not change.

        Raises:
            UnsupportedModelError: if heads cannot be cut out of its weights.
        """
        for name, left in self.modules.items():
            check_shrinks(model, name, left)

    def apply(self, model: PreTrainedModel) -> None:
        """Brings a model to this map, in place.

        Raises:
            UnsupportedModelError: if heads cannot be cut out of its weights; nothing has changed then.
        """
        self.check(model)
        for name, left in self.modules.items():
            if left != numbers_of(model, name):
                shrink(model, name, left)
        shared = [s for s in self.sites if [o.module for o in self.sites].count(s.module) > 1 or s.masked]
        if shared:
            names, masked, scales = zip(*((s.module, s.masked, s.scales) for s in shared), strict=True)
            mask_depths(model, names, masked, scales)
        if (first := next((s.module for s in self.sites if s.stack == "decoder"), None)) is not None:
            guard_cache(model, first)

    def restore(self, config: PreTrainedConfig) -> None:
        """Gives a configuration the numbers of heads that the original had, in place; the map is applied after that."""
        for name, count in self.config.items():
            setattr(config, name, count)

    def inventory(self) -> str:
        """The heads of the original in words, such as `encoder.0 to encoder.11 with heads 0 to 11`."""
        stacks = [[s for s in self.sites if s.stack == stack] for stack in STACKS]
        return "; ".join(
            f"{p[0].stack}.{p[0].layer} to {p[-1].stack}.{p[-1].layer} with heads 0 to {max(s.heads for s in p) - 1}"
            for p in stacks
            if p
        )


def as_json(heads: HeadMap) -> dict[str, Any]:
    """The content of the file: `sites` has all of the map; `removed` and `masked` repeat it in names, for readers."""
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "removed": [str(h) for h in heads.removed],
        "masked": [str(h) for h in heads.masked],
        # Factors only where there are any: few models have them.
        "sites": [{k: v for k, v in asdict(s).items() if k != _SCALES or v} for s in heads.sites],
        **({_CONFIG: dict(heads.config)} if heads.config else {}),
    }


def read_head_map(folder: Path) -> HeadMap | None:
    """The map of heads of a folder; None if it has none, as with models that kept all heads.

    Raises:
        ModelError: if it cannot be read or contradicts itself.
    """
    if not (path := folder / FILE).is_file():
        return None
    with read_errors(path, "cannot be read", _ADVICE, ModelError):
        content = parse_json(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ModelError(f"{path} is not a head map of headlens.", "Remove it, or " + _ADVICE[0].lower() + _ADVICE[1:])
    if content.get("version") != _VERSION:
        raise ModelError(
            f"{path} is of version {content.get('version')}, which this headlens cannot read.", "Update headlens."
        )
    sites = content.get("sites")
    if not isinstance(sites, list) or not sites:
        raise ModelError(f"{path} has no sites.", _ADVICE)
    config = content.get(_CONFIG, {})
    if not isinstance(config, dict) or not config.keys() <= set(COUNTS) or not _are_counts(list(config.values())):
        raise ModelError(f"{path}: {_CONFIG} is {str(config)[:60]}, not numbers of heads by name.", _ADVICE)
    heads = HeadMap(tuple(_site(path, number, site) for number, site in enumerate(sites)), config)
    if len({(s.stack, s.layer) for s in heads.sites}) < len(heads.sites):
        raise ModelError(f"{path} lists a layer twice.", _ADVICE)
    if any(heads.modules[s.module] != s.left for s in heads.sites):
        raise ModelError(f"{path}: depths that share their weights differ in the heads that are left.", _ADVICE)
    if any(content.get(name) != as_json(heads)[name] for name in ("removed", "masked")):
        raise ModelError(f"{path}: its lists of removed and masked heads contradict its sites.", _ADVICE)
    return heads


def check_fits(heads: HeadMap, model: PreTrainedModel, folder: Path) -> None:
    """Refuses a map that is not of this model, which still has all its heads.

    Raises:
        ModelError: if it names a module or a number of heads that the model does not have.
        UnsupportedModelError: if heads cannot be cut out of the model.
    """
    known = dict(model.named_modules())
    for site in heads.sites:
        if site.module not in known:
            raise ModelError(
                f"{folder / FILE} names {site.module}, which {type(model).__name__} does not have.", _ADVICE
            )
        if (count := projections(model, site.module).n_heads) != site.heads:
            raise ModelError(
                f"{folder / FILE}: {site.module} had {site.heads} heads; by its config.json it has {count}.", _ADVICE
            )


def _site(path: Path, number: int, content: Any) -> SiteHeads:
    names = [f.name for f in fields(SiteHeads) if f.name != _SCALES]
    if not isinstance(content, dict) or sorted(content.keys() - {_SCALES}) != sorted(names):
        raise ModelError(f"{path}: site {number} does not have the keys {', '.join(names)}.", _ADVICE)
    numbers = [content["layer"], content["heads"]]
    if content["stack"] not in STACKS or not isinstance(content["module"], str) or not _are_counts(numbers):
        raise ModelError(f"{path}: site {number} does not say which layer it is.", _ADVICE)
    every, left, scales = set(range(content["heads"])), content["left"], content.get(_SCALES, [])
    for name, among in (("left", every), ("masked", set(left) if _are_counts(left) else every)):
        heads = content[name]
        if not _are_counts(heads) or heads != sorted(set(heads)) or not set(heads) <= among:
            problem = f"{name} is {str(heads)[:60]}, not ascending numbers of heads that are there"
            raise ModelError(f"{path}: site {number}: {problem}.", _ADVICE)
    are_factors = isinstance(scales, list) and all(isinstance(x, float) and 0 <= x <= 1 for x in scales)
    if not are_factors or len(scales) not in (0, len(left)):
        problem = f"{_SCALES} is {str(scales)[:60]}, not a number for each head left"
        raise ModelError(f"{path}: site {number}: {problem}.", _ADVICE)
    return SiteHeads(**content | {"left": tuple(left), "masked": tuple(content["masked"]), _SCALES: tuple(scales)})


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v <= MOST_HEADS for v in values)


def model_class(
    place: str, original: Any, pruned: Any = None, finish: Callable[[PreTrainedModel], None] | None = None
) -> Any:
    """The class to load a checkpoint with: the original one, or one like it with other parameters from the start.

    It may have fewer heads, or parameters that the original does not have.

    So the weights go straight to where they belong, and everything else about loading stays transformers' own.

    Args:
        place: a folder or hub id; only folders can have a map of heads.
        original: the class by its configuration.
        pruned: `pruned_heads` of its config.json, where earlier versions of transformers noted heads that they had cut
            out: numbers of heads by layer. A map of heads, which knows of these as well, goes before it.
        finish: adds parameters to a new model of the class; None where there are none to add.

    Raises:
        ModelError: if the map of heads cannot be read, or the class is not known.
    """
    if (heads := read_head_map(Path(place))) is None and not pruned and finish is None:
        return original
    if not (isinstance(original, type) and issubclass(original, PreTrainedModel)):
        source = FILE if heads is not None else "pruned_heads" if pruned else "parameters of its attention"
        raise ModelError(
            f"{place}: its config.json names no class of transformers, which a checkpoint with {source} needs.",
            'Add "architectures" to its config.json, such as ["BertModel"].',
        )

    def build(model: PreTrainedModel, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        if heads is not None:
            heads.restore(config)
        original.__init__(model, config, *args, **kwargs)
        if heads is not None:
            check_fits(heads, model, Path(place))
            heads.apply(model)
        elif pruned:
            _prune(model, place, pruned)
        if finish is not None:
            finish(model)

    members = {"__init__": build, "__module__": original.__module__, _ORIGINAL: original}
    return type(original.__name__, (original,), members)


def _prune(model: PreTrainedModel, place: str, pruned: Any) -> None:
    """Cuts heads out as `prune_heads` of transformers 4 did, which counted the layers of the first stack.

    Raises:
        ModelError: if it is no list of heads by layer that this model has.
        UnsupportedModelError: if heads cannot be cut out of the model.
    """
    base: Any = model.base_model
    if not (names := [name for name, module in base.named_modules() if has_heads(module)]):
        raise UnsupportedModelError(
            f"{place}: config.json says that heads were cut out (pruned_heads), which headlens cannot do in a "
            f"{type(base).__name__}: it finds no separate layers of queries, keys and values there.",
            "Give the checkpoint as it was before its heads were pruned.",
        )
    first = [name for name in names if around_layers(name) == around_layers(names[0])]
    try:
        layers = {int(layer): list(heads) for layer, heads in pruned.items()}
        present = {layer: set(range(projections(base, first[layer]).n_heads)) for layer in layers}
        if any(n < 0 or len(set(gone)) < len(gone) or not set(gone) <= present[n] for n, gone in layers.items()):
            raise ValueError("it does not name heads of this model, each once")
    except (AttributeError, TypeError, ValueError, IndexError) as error:
        raise ModelError(f"{place}: pruned_heads of its config.json is {str(pruned)[:200]}.", _PRUNED) from error
    for layer, gone in layers.items():
        left = sorted(present[layer].difference(gone))
        check_shrinks(base, first[layer], left)
        shrink(base, first[layer], left)


def restore_class(model: PreTrainedModel) -> None:
    """Gives a model that was loaded with `model_class` its original class back; others stay as they are."""
    model.__class__ = getattr(type(model), _ORIGINAL, type(model))
