"""Cutting heads out of a model, so that it is smaller and faster, and folding gates into its weights.

Michel et al. (2019) and Voita et al. (2019) prune heads with masks or gates; here their weights go.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from transformers import PreTrainedModel

from headlens.attention.attach_edit import keep_as
from headlens.attention.persistent_edit import set_aside
from headlens.attention.sites import find_sites
from headlens.errors import OptionError, UnsupportedModelError, counted
from headlens.heads import Head
from headlens.interventions.plain_shape import lost_heads, plain_settings, with_settings
from headlens.weights.head_map import COUNTS, FILE, HeadMap, SiteHeads, as_json
from headlens.weights.head_slicing import (
    guard_cache,
    heads_before,
    numbers_of,
    output_projection,
    projections,
    refill,
    scale_heads,
)
from headlens.weights.shared_layer_masks import depth_mask, head_scales, silent_heads


@dataclass(frozen=True)
class Compaction:
    """The result of cutting heads out of a model.

    Args:
        heads: map of the heads that are left, by the numbers of the original.
        cut: heads whose weights this call removed.
        masked: heads that are silent at their depth, but whose weights other depths need (ALBERT), old and new.
        again: heads that were named, but had been removed before.
        parameters: numbers of parameters before and after, shared ones counted once.
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
    modules = Counter(s.module for s in sites)
    heads = []
    for s in sites:
        # Weights that compute one depth alone have nothing to mask.
        masked, factors = (next(silent, ()), next(scales, ())) if modules[s.module] > 1 else ((), ())
        before, left = heads_before(model, s.module), numbers_of(model, s.module)
        heads.append(SiteHeads(s.stack, s.layer, s.module, before, left, masked, factors))
    return HeadMap(tuple(heads))


def removed_heads(model: PreTrainedModel) -> list[Head]:
    """The heads of the original that contribute nothing any more; none for a model that has them all, of any kind."""
    return heads_of_model(model).removed if depth_mask(model) is not None or lost_heads(model) else []


def compact_model(model: PreTrainedModel, heads: Collection[Head]) -> Compaction:
    """Cuts heads out of a model, in place: what it computes afterwards is what it computed with these heads gated to 0.

    Their weights and biases go from the projections to queries, keys and values, and their weights from the output
    projection. A layer may lose all its heads: then only the bias of its output projection is left of it. The others
    keep their numbers in everything that headlens writes (`Site.heads`).

    With weights that several depths share (ALBERT) a head can be cut out only if it is dead at every depth. Others are
    masked: their output is zeroed at their depth in every forward pass of the model, and costs what it cost before.

    Args:
        model: the model; one that lost heads before may lose more.
        heads: with their numbers in the original model; heads that are already gone may be named again.

    Raises:
        OptionError: on a head that the model never had, if there is nothing to cut, or if no head would be left.
        UnsupportedModelError: if its heads cannot be found, or not be cut out.
    """
    before, n_before = heads_of_model(model), model.num_parameters()
    after = before.without(heads)
    cut = _without_weights(after) - _without_weights(before)
    # Masks alone would make nothing smaller, and plain from_pretrained would read the weights without them.
    if after == before or not _without_weights(after):
        raise _nothing_to_cut(before, heads)
    after.apply(model)
    return Compaction(
        heads=after,
        cut=tuple(h for h in after.removed if h in cut),
        masked=tuple(after.masked),
        again=tuple(h for h in before.removed if h in set(heads)),
        parameters=(n_before, model.num_parameters()),
    )


def zero_heads(model: PreTrainedModel, heads: Collection[Head]) -> Compaction:
    """Sets heads to zero in the weights of a model, in place, which keeps its shape and loses no parameter.

    Where heads can be cut out, zeros stand in all of their weights (`compact_model`, then `refilled`), elsewhere in the
    output projection alone: such a head still attends, and adds nothing.

    Args:
        model: the model.
        heads: with their numbers in the original model.

    Raises:
        OptionError: as `compact_model`; and if heads would be gone at some depths only of weights that several share.
        UnsupportedModelError: if it is not known where the output projections are.
    """
    if can_cut(model, heads):
        done = compact_model(model, heads)
        refilled(model)
        return replace(done, parameters=done.parameters[:1] * 2)
    n_before = model.num_parameters()
    sites = find_sites(model)
    before = HeadMap(
        tuple(
            # Only a model whose projections are known can have lost heads before.
            SiteHeads(s.stack, s.layer, s.module, s.n_heads if s.left is None else heads_before(model, s.module), left)
            for s, left in ((s, tuple(h.head for h in s.heads)) for s in sites)
        )
    )
    after = before.without(heads)
    if after == before:
        raise _nothing_to_cut(before, heads)
    _refuse_masked(after)
    check_scales(model)
    for old, new in {s.module: (s, n) for s, n in zip(before.sites, after.sites, strict=True)}.values():
        scale_heads(model, new.module, [float(h in new.left) for h in old.left])
    if any(s.left is not None for s in sites):
        refilled(model)
    again = tuple(h for h in before.removed if h in set(heads))
    return Compaction(
        after, tuple(h for h in after.removed if h not in before.removed), (), again, (n_before, n_before)
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
    """Saves a model so that `headlens.load` reads it again, with the map of its heads if it lost some.

    Where transformers' own class can have these shapes (`plain_settings`), config.json has the smaller numbers of
    heads, so that plain from_pretrained reads the folder, too; the map has those of the original.

    Args:
        model: a model with all its heads, a compacted one, or one that was trained further after compaction.
        folder: folder for `save_pretrained`; the caller saves the tokenizer.
    """
    model.save_pretrained(folder)
    # safetensors writes files that only their owner may read.
    for weights in folder.glob("*.safetensors"):
        weights.chmod((folder / "config.json").stat().st_mode)
    if lost_heads(model) or any(silent_heads(model)) or head_scales(model):
        heads = heads_of_model(model)
        if (settings := settings_or_none(model)) is not None:
            with_settings(model.config, settings).save_pretrained(folder)
            original = {name: getattr(model.config, name) for name in COUNTS if name in settings}
            heads = replace(heads, config=original)
        (folder / FILE).write_text(json.dumps(as_json(heads), indent=2) + "\n", encoding="utf-8")


def settings_or_none(model: PreTrainedModel) -> dict[str, int] | None:
    """What `plain_settings` gives for a model that lost heads; None where transformers cannot hold its shapes."""
    try:
        return plain_settings(model) or None
    except UnsupportedModelError:
        return None


def refilled(model: PreTrainedModel) -> PreTrainedModel:
    """Gives a compacted model its original shape again, in place, with zeros where heads were cut out.

    The outputs stay the same, and so the model can be read by whatever reads the original.

    Raises:
        OptionError: if heads are only masked, or scaled, at some depths, which shared weights cannot tell.
    """
    heads = heads_of_model(model)
    if any(s.scales for s in heads.sites):
        raise OptionError(
            "Some heads have different gates at different depths, which shared weights cannot represent.",
            "Leave --stock out.",
        )
    _refuse_masked(heads)
    for name in heads.modules:
        refill(model, name)
    decoder = next((s.module for s in heads.sites if s.stack == "decoder"), None)
    if decoder is not None:
        guard_cache(model, decoder)
    return model


def _refuse_masked(heads: HeadMap) -> None:
    if heads.masked:
        raise OptionError(
            f"{counted(len(heads.masked), 'head')}, such as {heads.masked[0]}, cannot be zeroed in weights that other "
            "depths need.",
            "Remove heads at every depth, or leave --stock out.",
        )


def can_cut(model: PreTrainedModel, heads: Iterable[Head] = ()) -> bool:
    """Whether headlens can cut these heads out of the weights of a model, or any at all.

    Raises:
        OptionError: on a head that the model does not have, or if no head would be left, where heads can be cut out.
    """
    try:
        heads_of_model(model).without(heads).check(model)
    except UnsupportedModelError:
        return False
    return True


def _without_weights(heads: HeadMap) -> set[Head]:
    return set(heads.removed) - set(heads.masked)


def _nothing_to_cut(before: HeadMap, heads: Collection[Head]) -> OptionError:
    if not heads:
        return OptionError("No heads to cut out were given.", "Name some, such as encoder.3.1.")
    if set(heads) <= set(before.removed):
        return OptionError("All of these heads were removed before.", "Name others.")
    return OptionError(
        "No head can be cut out: the depths of this model share their weights, and none of the heads is removed at "
        "every depth.",
        "Name a head at every depth, such as "
        + ",".join(str(Head(s.stack, s.layer, min(heads, key=str).head)) for s in before.sites)
        + "; to mask heads without removing them, use HeadGates.",
    )


def check_scales(model: PreTrainedModel) -> None:
    """Refuses a model whose output projections cannot take gates in; called before anything is trained.

    Raises:
        UnsupportedModelError: if it is not known where they are; and of weights that several depths share, if heads
            cannot be cut out of them.
    """
    for site in find_sites(model):
        (projections if site.shared else output_projection)(model, site.module)


def with_folded_gates(
    model: PreTrainedModel, values: Mapping[Head, float], *, keep_shape: bool = False
) -> PreTrainedModel:
    """A copy of a model that computes without gates what the model does with them.

    A head's columns of the output projection are multiplied by its gate, and heads with a gate of 0 are cut out where
    that is possible (`can_cut`); elsewhere they are zeros. Where
    depths share their weights (ALBERT) and a head's gates differ by depth, the model gets a factor for each depth in
    its place, which `save_compacted` writes and `headlens.load` reads.

    Args:
        model: the model, in evaluation mode, without gates; what it lost before stays lost.
        values: the gates, 1 for heads that are not named.
        keep_shape: leave zeros where heads are gone, so that plain from_pretrained reads the model; depths that
            differ need headlens all the same. A model without any head left keeps its shape in any case, and so do
            models that cannot run without heads.

    Raises:
        UnsupportedModelError: see `check_scales`.
    """
    check_scales(model)
    folded = copy.deepcopy(model)
    sites = [s for s in find_sites(folded) if s.n_heads]
    gates = {s: [values.get(h, 1.0) for h in s.heads] for s in sites}
    # Depths that share their weights, but not their gates.
    differing = [s for s in sites if any(gates[o] != gates[s] for o in sites if o.module == s.module)]
    for site in {s.module: s for s in sites if s not in differing}.values():
        scale_heads(folded, site.module, gates[site])
    if not can_cut(folded):
        return folded
    heads = heads_of_model(folded).scaled({(s.stack, s.layer): gates[s] for s in differing})
    emptied = differing if keep_shape else sites
    dead = [h for s in emptied for h, gate in zip(s.heads, gates[s], strict=True) if gate == 0.0]
    if len(dead) < sum(s.n_heads for s in sites):
        heads = heads.without(dead)
    # Some layers cannot be without heads; their zeros are there already.
    with suppress(UnsupportedModelError):
        heads.apply(folded)
    return folded
