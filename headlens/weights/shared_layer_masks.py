"""Masks and factors for heads whose weights several depths share (ALBERT): silent or scaled at some depths only."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headlens.errors import SelfCheckError
from headlens.weights.head_slicing import features_of, numbers_of, projections

_ATTRIBUTE = "headlens_depth_mask"


class DepthMask:
    """Zeros or scales what some heads hand to the output projection at some depths, in every forward pass of the model.

    It hangs on the modules as hooks, counts the calls of the output projections, and goes with copies of the model.

    Args:
        heads: for each depth the silent heads, by their numbers in the original model.
        features: for each depth the input features of the output projection that belong to them.
        scales: for each depth a factor for every head that has weights, in their order; none for a factor of 1.
    """

    def __init__(
        self, heads: Sequence[Sequence[int]], features: Sequence[list[int]], scales: Sequence[Sequence[float]]
    ) -> None:
        self.heads, self.features, self.scales = tuple(map(tuple, heads)), features, tuple(map(tuple, scales))
        self._depth = 0

    def begin(self, stack: nn.Module, inputs: object) -> None:
        """Hook before the forward pass of the stack: the next call of a projection is that of depth 0."""
        del stack, inputs
        self._depth = 0

    def silence(self, projection: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The input of the output projection, (batch, query, heads × d), as it is at this depth.

        Raises:
            SelfCheckError: if it is called more often than there are depths.
        """
        del projection
        depth, self._depth = self._depth, self._depth + 1
        if depth >= len(self.features):
            raise SelfCheckError(
                f"Shared weights were called {depth + 1} times in one pass of {len(self.features)} depths: it is not "
                "clear which heads to mask.",
                "Run the whole model, and without gradient checkpointing.",
            )
        return (self.at(depth, inputs[0]), *inputs[1:])

    def at(self, depth: int, context: Tensor) -> Tensor:
        """Head outputs, (batch, query, heads × d), without the silent heads of a depth, others times their factors."""
        silent, scales = self.features[depth], self.scales[depth]
        if not silent and not scales:
            return context
        factors = torch.tensor(scales or [1.0], device=context.device, dtype=context.dtype)
        factors = factors.repeat_interleave(context.shape[-1] // len(factors))
        factors[silent] = 0.0
        return context * factors

    def skip_to(self, depth: int) -> None:
        """Makes the next call of a projection that of `depth`, in a pass that leaves out the depths before it."""
        self._depth = depth


def depth_mask(model: nn.Module) -> DepthMask | None:
    """The mask of a model; None where nothing was ever masked."""
    mask: DepthMask | None = next((getattr(m, _ATTRIBUTE) for m in model.modules() if hasattr(m, _ATTRIBUTE)), None)
    return mask


def silent_heads(model: nn.Module) -> tuple[tuple[int, ...], ...]:
    """The heads that are masked at each depth, by original numbers; empty where nothing was ever masked."""
    mask = depth_mask(model)
    return () if mask is None else mask.heads


def head_scales(model: nn.Module) -> tuple[tuple[float, ...], ...]:
    """The factors of the heads at each depth, in the order of the weights; empty where none was ever scaled."""
    mask = depth_mask(model)
    return () if mask is None or not any(mask.scales) else mask.scales


def mask_depths(
    model: nn.Module, modules: Sequence[str], heads: Sequence[Sequence[int]], scales: Sequence[Sequence[float]]
) -> None:
    """Silences and scales heads of shared weights, in place of what is silent and scaled now.

    Args:
        model: the model.
        modules: the attention module of each depth, in the order they run.
        heads: for each depth the original numbers of the silent heads, which the module still has.
        scales: for each depth a factor for every head that the module still has, in the order of its weights; none
            for a factor of 1.
    """
    stack = model.get_submodule(around_layers(modules[0]))
    places = (
        [numbers_of(model, name).index(h) for h in heads_here] for name, heads_here in zip(modules, heads, strict=True)
    )
    sizes = [projections(model, name).head_size for name in modules]
    mask = DepthMask(heads, list(map(features_of, places, sizes)), scales)
    present: DepthMask | None = getattr(stack, _ATTRIBUTE, None)
    if present is not None:  # its hooks are there already
        present.heads, present.features, present.scales = mask.heads, mask.features, mask.scales
    elif any(mask.heads) or any(mask.scales):
        setattr(stack, _ATTRIBUTE, mask)
        stack.register_forward_pre_hook(mask.begin)
        for name in dict.fromkeys(modules):
            projections(model, name).output.register_forward_pre_hook(mask.silence)


def around_layers(name: str) -> str:
    """The name of the module around the list of layers that an attention module is in; it runs once in a pass."""
    return place_in_list(name)[0].rpartition(".")[0]


def place_in_list(name: str) -> tuple[str, int | None]:
    """The list of layers that a module is in, and its number there; the empty name and None where it is in none."""
    parts = name.split(".")
    first = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    return ("", None) if first is None else (".".join(parts[:first]), int(parts[first]))
