"""Layers without attention, and models without some of their layers (Brahma et al. 2022)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.attention.attach_edit import attach_edit
from headlens.attention.edits_and_observers import CallContext, Edit
from headlens.attention.sites import Site, find_sites
from headlens.errors import OptionError, UnsupportedModelError
from headlens.heads import Stack
from headlens.weights.head_slicing import output_projection
from headlens.weights.shared_layer_masks import place_in_list


@contextmanager
def without_attention(model: PreTrainedModel, layers: Collection[int] | None, stack: Stack) -> Iterator[None]:
    """Removes the attention of some layers inside `with`: what it adds to the residual stream is 0.

    The bias of the output projection goes, too, which a gate of 0 on all heads would leave. The rest of the layer, its
    normalisation and its feed-forward network, stays.

    Args:
        model: a model that is in no session.
        layers: numbers of the layers; None for all. With shared weights (ALBERT) these are depths.
        stack: whose self-attention.

    Raises:
        OptionError: if the model has no such layer.
        UnsupportedModelError: if it is not known where its output projections are.
    """
    sites = [site for site in find_sites(model) if site.stack == stack]
    chosen = {site.layer for site in sites} if layers is None else set(layers)
    check_layers(chosen, sites, "--drop-attention")
    names = dict.fromkeys(site.module for site in sites if site.layer in chosen)
    edit = _Removed(chosen, stack)
    with ExitStack() as undo:
        for name in names:
            undo.callback(output_projection(model, name).register_forward_hook(edit.projected).remove)
        with attach_edit(model, edit):
            yield


class _Removed(Edit):
    """Notes at every attention call whether its layer has no attention, for the output projection that follows it."""

    def __init__(self, layers: Collection[int], stack: Stack) -> None:
        self._layers, self._stack, self._removed = layers, stack, False

    def output(self, context: CallContext, output: Tensor) -> Tensor:
        self._removed = context.site.stack == self._stack and context.site.layer in self._layers
        return output

    def projected(self, _module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
        """Hook of an output projection: zeros where the attention call before was of such a layer."""
        # Told once: a copy of the model has the hook, too, but its attention calls are not seen.
        removed, self._removed = self._removed, False
        return torch.zeros_like(output) if removed else output


def remove_layers(model: PreTrainedModel, layers: Collection[int], stack: Stack) -> None:
    """Takes whole layers out of a model, in place; those that are left are numbered anew.

    Args:
        model: the model.
        layers: their numbers. With shared weights (ALBERT) the model is as many depths shorter.
        stack: encoder, or decoder of a model that has no encoder.

    Raises:
        OptionError: if the model has no such layer, or none would be left.
        UnsupportedModelError: if its layers are not a plain list, or others need what a layer holds, as all layers of
            T5 need the relative positions of the first.
    """
    sites = [site for site in find_sites(model) if site.stack == stack]
    check_layers(layers, sites, "--drop-layers")
    if len(set(layers)) == len(sites):
        raise OptionError("--drop-layers: no layer would be left.", "Keep at least one, as --drop-layers last:3 does.")
    if any(site.shared for site in sites):
        if len({site.module for site in sites}) > 1:
            raise _unsupported(model, "its layers share weights in several groups")
        _set_depth(model, sites, [s.layer for s in sites if s.layer not in layers])
        return
    names, places = zip(*(place_in_list(site.module) for site in sites), strict=True)
    blocks = model.get_submodule(names[0])
    if len(set(names)) > 1 or not isinstance(blocks, nn.ModuleList) or len(blocks) != len(sites):
        raise _unsupported(model, "its layers are not a plain list")
    dropped = [place for site, place in zip(sites, places, strict=True) if place is not None and site.layer in layers]
    left = [place for place in range(len(blocks)) if place not in dropped]
    held_by_others = {name for place in left for name, _ in blocks[place].named_parameters()}
    for place in dropped:
        if only := [name for name, _ in blocks[place].named_parameters() if name not in held_by_others]:
            raise _unsupported(model, f"no other layer has a module that layer {place} holds ({only[0]})")
    parent, _, name = names[0].rpartition(".")
    setattr(model.get_submodule(parent), name, nn.ModuleList([blocks[place] for place in left]))
    for number, place in enumerate(left):
        # The number under which a decoder's cache keeps the keys of a layer.
        for module in blocks[place].modules():
            if "layer_idx" in vars(module):
                module.layer_idx = number  # type: ignore[assignment]
    _set_depth(model, sites, left)


def check_layers(layers: Collection[int], sites: list[Site], flag: str) -> None:
    """Raises OptionError if a layer is at none of the sites of a stack.

    Args:
        layers: numbers of layers.
        sites: those of one stack.
        flag: the option that names them.
    """
    numbers = [site.layer for site in sites]
    if missing := sorted(set(layers) - set(numbers)):
        raise OptionError(
            f"{flag}: there is no layer {missing[0]} in the {sites[0].stack}.",
            f"Its layers are {min(numbers)} to {max(numbers)}.",
        )


def _set_depth(model: PreTrainedModel, sites: list[Site], left: list[int]) -> None:
    """Sets the number and the kinds of the remaining layers in the configurations of a stack."""
    owners = [m for name, m in model.named_modules() if not name or sites[0].module.startswith(f"{name}.")]
    for config in {id(m.config): m.config for m in owners if isinstance(m, PreTrainedModel)}.values():
        for name in ("num_hidden_layers", f"{sites[0].stack}_layers"):
            if getattr(config, name, None) == len(sites):
                setattr(config, name, len(left))
        kinds: Any = getattr(config, "layer_types", None)
        if isinstance(kinds, list) and len(kinds) == len(sites):
            config.layer_types = [kinds[place] for place in left]


def _unsupported(model: PreTrainedModel, reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"Layers cannot be removed from {type(model).__name__}: {reason}.", "--drop-attention works for such models."
    )
