"""Tables of masks that were learned: degrees of connections and adaptive attention spans, by layer and head."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import pandas as pd
from torch import Tensor

from headlens.attention_masks.learned_mask import LearnedAttentionMask
from headlens.attention_masks.mask_distributions import AdaptiveSpan, GumbelDegrees
from headlens.attention_masks.named_masks import P_AT_START
from headlens.tables.mask_tables import DEGREES

_BEFORE = 2 / 3  # of the updates; learning rates that fall to 0 let anything settle at the very end


def degree_rows(mask: LearnedAttentionMask) -> list[dict[str, Any]]:
    """The distribution of every degree of every head: layer, head, kind, degree, p, and which is chosen in the end.

    Heads are None where those of a layer share a distribution.
    """
    assert isinstance(mask.law, GumbelDegrees)
    alpha = mask.alpha.detach().cpu()
    masses, degrees = mask.law.by_kind(mask.law.distribution(alpha)), degrees_of(mask, mask.law.kept(alpha))
    return [
        {
            "layer": mask.sites[row].layer,
            "head": head if mask.scope.per_head else None,
            "kind": kind,
            "degree": degree,
            "p": float(p),
            "chosen": degree == int(degrees[row, head, number]),
        }
        for row, head in _masked_heads(mask)
        for number, kind in enumerate(mask.options.connections)
        for degree, p in enumerate(masses[row, head, number])
    ]


def span_rows(mask: LearnedAttentionMask, log: pd.DataFrame) -> list[dict[str, Any]]:
    """The span z of every head, in tokens, its reach, and how much it changed since before the last third of updates.

    The reach is the largest distance at which a key still has weight. The change is that since the last update that was
    logged before that third; where none was, as of few updates, since the start.

    Args:
        mask: as it was learned.
        log: of the training, with the spans of the heads at some of its updates.
    """
    assert isinstance(mask.law, AdaptiveSpan)
    alpha = mask.alpha.detach().cpu()
    earlier = log[log["step"] <= _BEFORE * log["step"].max()]
    before = earlier.iloc[-1].to_dict() if len(earlier) else {}
    at_start = math.nan if before else P_AT_START * mask.law.largest
    spans, reaches = mask.law.spans(alpha)[..., 0], mask.law.kept(alpha).sum(dim=-1) - 1
    return [
        {
            "layer": mask.sites[row].layer,
            "head": head,
            "span": float(spans[row, head]),
            "reach": int(reaches[row, head]),
            "change": float(spans[row, head]) - before.get(f"span {row} {head}", at_start),
        }
        for row, head in _masked_heads(mask)
    ]


def degrees_of(mask: LearnedAttentionMask, values: Tensor) -> Tensor:
    """The degree of each kind that numbers M of 0 and 1 stand for: (layers, heads or 1, kinds)."""
    assert isinstance(mask.law, GumbelDegrees)
    return mask.law.by_kind(values).sum(dim=-1) - 1


def mean_degrees(mask: LearnedAttentionMask, values: Tensor) -> dict[str, float]:
    """The means over the heads of the degrees that numbers M of 0 and 1 stand for, by column."""
    rows, heads = zip(*_masked_heads(mask), strict=True)
    means = degrees_of(mask, values)[list(rows), list(heads)].double().mean(dim=0)
    return {f"degree_{kind}": float(mean) for kind, mean in zip(mask.options.connections, means, strict=True)}


def _masked_heads(mask: LearnedAttentionMask) -> list[tuple[int, int]]:
    """Row and column of α of each head that the model has; of each layer, where its heads share a distribution."""
    return [
        (row, head)
        for row, site in enumerate(mask.sites)
        for head in range(mask.alpha.shape[1])
        if not mask.scope.per_head or head in {h.head for h in site.heads}
    ]


def mean_chosen(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The means of the degrees that were chosen, by column; nothing where none was learned."""
    kinds = dict.fromkeys(row["kind"] for row in rows)
    return {
        f"degree_{kind}": fmean(row["degree"] for row in rows if row["chosen"] and row["kind"] == kind)
        for kind in kinds
    }


def degrees_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Builds the table `degrees.csv` from its rows, with nullable integers for layer, head, seed and degree."""
    return DEGREES.frame(rows).astype({name: pd.Int64Dtype() for name in ("layer", "head", "seed", "degree")})
