"""Gates made part of the weights, so that a pruned model needs no gates."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import suppress

import torch
from torch import nn
from transformers import PreTrainedModel

from headlens.attention.sites import Site, find_sites
from headlens.errors import UnsupportedModelError
from headlens.heads import Head
from headlens.interventions.compacting import heads_of_model
from headlens.weights.projections import projections


def check_folds(model: PreTrainedModel) -> None:
    """Refuse a model whose output projections cannot take gates in, before anything is trained.

    Raises:
        UnsupportedModelError: see `headlens.weights.projections.projections`.
    """
    for site in find_sites(model):
        projections(model, site.module)


def with_folded_gates(
    model: PreTrainedModel, values: Mapping[Head, float], *, keep_shape: bool = False
) -> PreTrainedModel:
    """A copy of a model that computes without gates what the model does with them.

    A head's columns of the output projection are multiplied by its gate, and heads with a gate of 0 are cut out. Where
    depths share their weights (ALBERT) and a head's gates differ by depth, the model gets a factor for each depth in
    its place, which `save_compacted` writes and `headlens.load` reads.

    Args:
        model: the model, in evaluation mode, without gates; what it lost before stays lost.
        values: the gates, 1 for heads that are not named.
        keep_shape: leave zeros where heads are gone, so that plain from_pretrained reads the model; depths that
            differ need headlens all the same. A model without any head left keeps its shape in any case, and so do
            models that cannot run without heads.

    Raises:
        UnsupportedModelError: if its heads are laid out in no known way.
    """
    check_folds(model)
    folded = copy.deepcopy(model)
    sites = [s for s in find_sites(folded) if s.n_heads]
    rows = {s: [values.get(h, 1.0) for h in s.heads] for s in sites}
    apart = [s for s in sites if any(rows[o] != rows[s] for o in sites if o.module == s.module)]
    for site in {s.module: s for s in sites if s not in apart}.values():
        _scale(folded, site, rows[site])
    heads = heads_of_model(folded).scaled({(s.stack, s.layer): rows[s] for s in apart})
    dead = [h for s in (apart if keep_shape else sites) for h, v in zip(s.heads, rows[s], strict=True) if v == 0.0]
    if len(dead) < sum(s.n_heads for s in sites):
        heads = heads.without(dead)
    # Some layers cannot be without heads; their zeros are there already.
    with suppress(UnsupportedModelError):
        heads.apply(folded)
    return folded


def _scale(model: nn.Module, site: Site, gates: list[float]) -> None:
    parts = projections(model, site.module)
    weight = parts.output.weight
    factors = torch.tensor(gates, dtype=weight.dtype, device=weight.device).repeat_interleave(parts.head_size)
    with torch.no_grad():
        weight.mul_(factors)
