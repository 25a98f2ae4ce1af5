"""Degrees of attention: BigBird's as a grid, those of neighbours also learned (Brahma et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import pandas as pd

from headlens.analyses.masks.options import LEARNED
from headlens.interventions.learned_mask import LearnedAttentionMask
from headlens.interventions.mask_distributions import GumbelDegrees

# What a grid calls the degrees, and what the pattern does.
DEGREES_COLUMNS = [
    *("model", "stack", "layer", "head", "pattern", "layers", "diagonal", "seed"),
    *("degree", "p", "chosen"),
]


def strength_of(pattern: str) -> float | None:
    """μ of a pattern that is learned; None of others."""
    return float(pattern.removeprefix(LEARNED)) if pattern.startswith(LEARNED) else None


def degree_rows(mask: LearnedAttentionMask) -> list[dict[str, Any]]:
    """The distribution of the degree of every head: layer, head, degree, p, and which degree is chosen in the end.

    Heads are None where those of a layer share a distribution.
    """
    assert isinstance(mask.law, GumbelDegrees)
    alpha = mask.alpha.detach().cpu()
    masses, degrees = mask.law.distribution(alpha), mask.law.kept(alpha).sum(dim=-1) - 1
    return [
        {
            "layer": site.layer,
            "head": head if mask.scope.per_head else None,
            "degree": degree,
            "p": float(p),
            "chosen": degree == int(degrees[row, head]),
        }
        for row, site in enumerate(mask.sites)
        for head in range(alpha.shape[1])
        if not mask.scope.per_head or head in {h.head for h in site.heads}
        for degree, p in enumerate(masses[row, head])
    ]


def unsettled(rows: Sequence[Mapping[str, Any]]) -> float:
    """The share of heads of which no degree has a probability above 1/2."""
    highest: dict[tuple[Any, Any], float] = {}
    for row in rows:
        key = row["layer"], row["head"]
        highest[key] = max(highest.get(key, 0.0), row["p"])
    return fmean(p <= 0.5 for p in highest.values())


def mean_degree(rows: Sequence[Mapping[str, Any]]) -> float:
    """The mean of the degrees that were chosen."""
    return fmean(row["degree"] for row in rows if row["chosen"])


def degrees_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Builds the table `degrees.csv` from its rows, with nullable integers for layer, head, seed and degree."""
    frame = pd.DataFrame(rows, columns=DEGREES_COLUMNS)
    return frame.astype({name: pd.Int64Dtype() for name in ("layer", "head", "seed", "degree")})
