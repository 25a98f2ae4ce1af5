"""`heads_removed.json`: the map of heads in a folder with a smaller model, and the class to load such a folder with.

The weights of a model that lost heads have other shapes than its configuration says.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from headlens.errors import ModelError
from headlens.heads import STACKS
from headlens.weights.head_map import HeadMap, SiteHeads
from headlens.weights.projections import projections

FILE = "heads_removed.json"
_FORMAT = "headlens: heads removed"
_VERSION = 1
_SCALES = "scales"
_ORIGINAL = "headlens_original"
_ADVICE = "Compact the original model again, or take the file that was written with these weights."


def as_json(heads: HeadMap) -> dict[str, Any]:
    """The content of the file: `sites` has all of the map; `removed` and `masked` repeat it in names, for readers."""
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "removed": [str(h) for h in heads.removed],
        "masked": [str(h) for h in heads.masked],
        "sites": [_site_json(s) for s in heads.sites],
    }


def read_head_map(folder: Path) -> HeadMap | None:
    """The map of heads of a folder; None if it has none, as with models that kept all heads.

    Raises:
        ModelError: if it cannot be read or contradicts itself.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}.", _ADVICE) from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ModelError(f"{path} is no head map of headlens.", "Remove it, or " + _ADVICE[0].lower() + _ADVICE[1:])
    if content.get("version") != _VERSION:
        raise ModelError(
            f"{path} is of version {content.get('version')}, which this headlens cannot read.", "Update headlens."
        )
    sites = content.get("sites")
    if not isinstance(sites, list) or not sites:
        raise ModelError(f"{path} has no sites.", _ADVICE)
    heads = HeadMap(tuple(_site(path, number, site) for number, site in enumerate(sites)))
    _check_consistent(path, heads, content)
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
        count = projections(model, site.module).n_heads
        if count != site.heads:
            raise ModelError(
                f"{folder / FILE}: {site.module} had {site.heads} heads; by its config.json it has {count}.", _ADVICE
            )


def _site_json(site: SiteHeads) -> dict[str, Any]:
    """A site as JSON, with its factors only if it has any: few models do."""
    content = asdict(site)
    return content if site.scales else {k: v for k, v in content.items() if k != _SCALES}


def _site(path: Path, number: int, content: Any) -> SiteHeads:
    names = [f.name for f in fields(SiteHeads) if f.name != _SCALES]
    if not isinstance(content, dict) or sorted(content.keys() - {_SCALES}) != sorted(names):
        raise ModelError(f"{path}: site {number} does not have the keys {', '.join(names)}.", _ADVICE)
    numbers = [content["layer"], content["heads"]]
    if content["stack"] not in STACKS or not isinstance(content["module"], str) or not _are_counts(numbers):
        raise ModelError(f"{path}: site {number} does not say which layer it is.", _ADVICE)
    every = set(range(content["heads"]))
    for name, among in (("left", every), ("masked", set(content["left"]) if _are_counts(content["left"]) else every)):
        heads = content[name]
        if not _are_counts(heads) or heads != sorted(set(heads)) or not set(heads) <= among:
            raise ModelError(
                f"{path}: site {number}: {name} is {heads!r}, not ascending numbers of heads that are there.", _ADVICE
            )
    scales = content.get(_SCALES, [])
    if not _are_factors(scales) or len(scales) not in (0, len(content["left"])):
        raise ModelError(f"{path}: site {number}: {_SCALES} is {scales!r}, not a number for each head left.", _ADVICE)
    lists = {"left": tuple(content["left"]), "masked": tuple(content["masked"]), _SCALES: tuple(scales)}
    return SiteHeads(**content | lists)


def _are_factors(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(v, float) and 0 <= v <= 1 for v in values)


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)


def _check_consistent(path: Path, heads: HeadMap, content: dict[str, Any]) -> None:
    if len({(s.stack, s.layer) for s in heads.sites}) < len(heads.sites):
        raise ModelError(f"{path} has a layer twice.", _ADVICE)
    if any(heads.modules[s.module] != s.left for s in heads.sites):
        raise ModelError(f"{path}: depths that share their weights differ in the heads that are left.", _ADVICE)
    if any(content.get(name) != as_json(heads)[name] for name in ("removed", "masked")):
        raise ModelError(f"{path}: its lists of removed and masked heads contradict its sites.", _ADVICE)


def model_class(place: str, original: Any) -> Any:
    """The class to load a checkpoint with: the original one, or one like it that has fewer heads from the start.

    So the weights go straight to where they belong, and everything else about loading stays transformers' own.

    Args:
        place: a folder or hub id; only folders can have a map of heads.
        original: the class by its configuration.

    Raises:
        ModelError: if the map of heads cannot be read, or the class is not known.
    """
    heads = read_head_map(Path(place))
    if heads is None:
        return original
    if not (isinstance(original, type) and issubclass(original, PreTrainedModel)):
        raise ModelError(f"{place}: its config.json names no class of transformers, which a folder with {FILE} needs.")

    def build(model: PreTrainedModel, *args: Any, **kwargs: Any) -> None:
        original.__init__(model, *args, **kwargs)
        check_fits(heads, model, Path(place))
        heads.apply(model)

    members = {"__init__": build, "__module__": original.__module__, _ORIGINAL: original}
    return type(original.__name__, (original,), members)


def restore_class(model: PreTrainedModel) -> None:
    """Gives a model that was loaded with `model_class` its original class back; others stay as they are."""
    original = getattr(type(model), _ORIGINAL, None)
    if original is not None:
        model.__class__ = original
