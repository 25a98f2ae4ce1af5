"""Cutting heads out of a model, so that it is smaller and faster (Michel et al. 2019; Voita et al. 2019 prune them)."""

from __future__ import annotations

import copy
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from torch import nn
from transformers import PreTrainedModel

from headlens.attention.attach_edit import keep_as
from headlens.attention.persistent_edit import set_aside
from headlens.attention.sites import find_sites
from headlens.errors import OptionError, counted
from headlens.heads import Head
from headlens.weights.cache_guard import guard_cache
from headlens.weights.head_map import HeadMap, SiteHeads
from headlens.weights.head_map_file import FILE, as_json
from headlens.weights.head_slicing import heads_before, heads_left, numbers_of, refill
from headlens.weights.shared_layer_masks import depth_mask, head_scales, silent_heads


@dataclass(frozen=True)
class Compaction:
    """What became of a model.

    Args:
        heads: what is left, by the numbers of the original.
        cut: heads whose weights are gone now.
        masked: heads that are silent at their depth, but whose weights other depths need (ALBERT), old and new.
        again: heads that were asked for, but had been removed before.
        parameters: before and after, shared ones once.
    """

    heads: HeadMap
    cut: tuple[Head, ...]
    masked: tuple[Head, ...]
    again: tuple[Head, ...]
    parameters: tuple[int, int]


def heads_of_model(model: PreTrainedModel) -> HeadMap:
    """Which of the original heads a model has, and which of them are masked.

    Raises:
        UnsupportedModelError: if its heads cannot be found, or not be cut out.
    """
    silent, scales = iter(silent_heads(model)), iter(head_scales(model))
    sites = find_sites(model)
    modules = [s.module for s in sites]
    return HeadMap(
        tuple(
            SiteHeads(
                stack=s.stack,
                layer=s.layer,
                module=s.module,
                heads=heads_before(model, s.module),
                left=numbers_of(model, s.module),
                # Weights that compute one depth alone have nothing to mask.
                masked=next(silent, ()) if modules.count(s.module) > 1 else (),
                scales=next(scales, ()) if modules.count(s.module) > 1 else (),
            )
            for s in sites
        )
    )


def removed_heads(model: PreTrainedModel) -> list[Head]:
    """The heads of the original that contribute nothing any more; none for a model that has them all, of any kind."""
    lost = depth_mask(model) is not None or any(heads_left(module) is not None for module in model.modules())
    return heads_of_model(model).removed if lost else []


def compact_model(model: PreTrainedModel, heads: Collection[Head]) -> Compaction:
    """Cut heads out of a model, in place: what it computes afterwards is what it computed with these heads gated to 0.

    Their weights and biases go from the projections to queries, keys and values, and their weights from the output
    projection. A layer may lose all its heads: then only the bias of its output projection is left of it. The others
    keep their numbers in everything headlens tells of them (`Site.heads`).

    With weights that several depths share (ALBERT) a head can be cut out only if it is dead at every depth. Others are
    masked: their output is zeroed at their depth in every forward pass of the model, and costs what it cost before.

    Args:
        model: the model; one that lost heads before may lose more.
        heads: by the numbers of the original model; such as are gone already may be named again.

    Raises:
        OptionError: on a head that the model never had, if there is nothing to cut, or if no head would be left.
        UnsupportedModelError: if its heads cannot be found, or not be cut out.
    """
    before, parameters = heads_of_model(model), _parameters(model)
    after = before.without(heads)
    cut = _gone(after) - _gone(before)
    # Masks alone would make nothing smaller, and plain from_pretrained would read the weights without them.
    if after == before or not _gone(after):
        raise _nothing(before, heads)
    after.apply(model)
    again = set(heads) & set(before.removed)
    return Compaction(
        heads=after,
        cut=tuple(h for h in after.removed if h in cut),
        masked=tuple(after.masked),
        again=tuple(h for h in before.removed if h in again),
        parameters=(parameters, _parameters(model)),
    )


def without_heads(model: PreTrainedModel, heads: Collection[Head]) -> PreTrainedModel:
    """A copy of a model without heads, or the model itself if there are none to remove.

    As `compact_model`, but it may be that all of them are only masked, so that nothing becomes smaller (ALBERT). An
    edit that stays with the model stays with the copy, too.

    Raises:
        OptionError: on a head that the model never had, or if no head would be left.
        UnsupportedModelError: if its heads cannot be found, or not be cut out.
    """
    if not heads:
        return model
    # A copy of a model in a session would take its hooks along.
    with set_aside(model):
        small = copy.deepcopy(model)
    heads_of_model(small).without(heads).apply(small)
    return keep_as(small, model)


def save_compacted(model: PreTrainedModel, folder: Path) -> None:
    """Save a model so that `headlens.load` reads it again, with the map of its heads if it lost some.

    Args:
        model: whole, compacted, or compacted and trained further.
        folder: where `save_pretrained` writes; the tokenizer is left to the caller.
    """
    model.save_pretrained(folder)
    # safetensors lets nobody else read its files.
    for weights in folder.glob("*.safetensors"):
        weights.chmod((folder / "config.json").stat().st_mode)
    changed = any(heads_left(m) is not None for m in model.modules()) or any(silent_heads(model)) or head_scales(model)
    heads = heads_of_model(model) if changed else None
    if heads is not None:
        (folder / FILE).write_text(json.dumps(as_json(heads), indent=2) + "\n", encoding="utf-8")


def refilled(model: PreTrainedModel) -> PreTrainedModel:
    """Give a compacted model its original shape again, in place, with zeros where heads were cut out.

    The outputs stay the same, and so the model can be read by whatever reads the original.

    Raises:
        OptionError: if heads are only masked, or scaled, at some depths, which shared weights cannot tell.
    """
    heads = heads_of_model(model)
    if any(s.scales for s in heads.sites):
        raise OptionError(
            "Some heads have other factors at other depths, which weights that depths share cannot tell.",
            "Leave --stock out.",
        )
    if heads.masked:
        raise OptionError(
            f"{counted(len(heads.masked), 'head')}, such as {heads.masked[0]}, cannot be zeroed in weights that other "
            "depths need.",
            "Remove heads at every depth, or leave --stock out.",
        )
    for name in heads.modules:
        refill(model, name)
    decoder = next((s.module for s in heads.sites if s.stack == "decoder"), None)
    if decoder is not None:
        guard_cache(model, decoder)
    return model


def _gone(heads: HeadMap) -> set[Head]:
    return set(heads.removed) - set(heads.masked)


def _nothing(before: HeadMap, heads: Collection[Head]) -> OptionError:
    if not heads:
        return OptionError("No heads to cut out were given.", "Name some, such as encoder.3.1.")
    if set(heads) <= set(before.removed):
        return OptionError("All of these heads were removed before.", "Name others.")
    return OptionError(
        "No head can be cut out: the depths of this model share their weights, and none of the heads is removed at "
        "every depth.",
        "Name a head at every depth, such as "
        + ",".join(str(Head(s.stack, s.layer, min(heads, key=str).head)) for s in before.sites)
        + "; to mask heads only, use HeadGates.",
    )


def _parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
