"""A factor for what is left of a layer when some of its heads go, by least squares.

Without some heads the output of a layer is smaller, or larger, than the layers after it expect. One factor α for each
layer, folded into its output projection, brings what is left nearest to the whole: it minimises Σ |y - α z|² over the
tokens of a text, where y is what all heads add to the residual stream, and z what those add that stay. HARP (Liu and
Liu 2025, arXiv 2507.01900) has such a number for layers without queries and keys, found by a search on
perplexity.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.attention.sites import Site, find_sites
from headlens.errors import UnsupportedModelError
from headlens.heads import Head
from headlens.weights.head_slicing import output_projection, output_weight, scale_heads


def rescaling(
    model: PreTrainedModel, removed: Collection[Head], inputs: Sequence[Mapping[str, Any]]
) -> dict[Site, float]:
    """The factors of all layers that lose some of their heads, and not all: α = Σ y·z / Σ z·z.

    What the heads read is taken from the intact model: layers before do not lose heads meanwhile. The bias of an output
    projection is no part of what heads add. A layer whose other heads give nothing keeps the factor 1.

    Args:
        model: with all heads, in evaluation mode.
        removed: heads that go.
        inputs: batches; tokens that are not padding count.

    Raises:
        UnsupportedModelError: if the layers share their weights, or it is not known where output projections are.
    """
    sites = [s for s in find_sites(model) if 0 < len(removed_of(s, removed)) < s.n_heads]
    if shared := next((s for s in sites if s.shared), None):
        raise UnsupportedModelError(
            f"{shared} shares its weights with other layers, which would be rescaled as well.", "Leave --rescale out."
        )
    sums = {site: torch.zeros(2, dtype=torch.float64) for site in sites}
    real: dict[str, Tensor | None] = {}

    def add(site: Site, context: Tensor) -> None:
        """Adds the two sums of a batch; context: (batch, query, heads × d)."""
        weight = output_weight(model, site.module)  # (features, heads × d)
        kept = torch.tensor([float(h not in removed) for h in site.heads], device=context.device, dtype=context.dtype)
        rest = context * kept.repeat_interleave(context.shape[-1] // site.n_heads)
        mask = real["encoder" if site.stack == "encoder" else "decoder"]
        whole, left = (
            (c.flatten(0, -2) if mask is None else c[mask]).to(weight.dtype) @ weight.T for c in (context, rest)
        )  # (tokens, features)
        whole, left = whole.double(), left.double()
        sums[site] += torch.stack([(whole * left).sum(), (left * left).sum()]).cpu()

    with ExitStack() as undo, torch.inference_mode():
        for site in sites:
            projection = output_projection(model, site.module)
            hook = projection.register_forward_pre_hook(lambda _, given, site=site: add(site, given[0]))
            undo.callback(hook.remove)
        for batch in inputs:
            encoder = batch.get("attention_mask")
            decoder = batch.get("decoder_attention_mask", encoder)
            real |= {k: None if m is None else m.bool() for k, m in (("encoder", encoder), ("decoder", decoder))}
            model.base_model(**batch)
    return {site: float(top / bottom) if bottom > 0 else 1.0 for site, (top, bottom) in sums.items()}


def removed_of(site: Site, removed: Collection[Head]) -> list[Head]:
    """Which heads of a layer are among those removed."""
    return [head for head in site.heads if head in removed]


def scale_layers(model: PreTrainedModel, factors: Mapping[Site, float]) -> None:
    """Multiplies what the heads of some layers add, in the weights of a model that has lost its heads already."""
    heads = {(s.stack, s.layer): s.n_heads for s in find_sites(model)}
    for site, factor in factors.items():
        scale_heads(model, site.module, [factor] * heads[site.stack, site.layer])
