"""The alphas that heads have learned for their entmax, as a table and a note."""

from __future__ import annotations

import pandas as pd

from headlens.attention.model_normalizer import learned_alphas
from headlens.heads import KEY_COLUMNS
from headlens.models.loading import LoadedModel


def alpha_table(loaded: LoadedModel) -> pd.DataFrame | None:
    """Lists the alpha of every head: columns model, stack, layer, head, alpha; None for models that learn none."""
    alphas = learned_alphas(loaded.model)
    if alphas is None:
        return None
    return alphas.rows.assign(model=loaded.short_name)[["model", *KEY_COLUMNS, "alpha"]]


def alpha_notes(alphas: pd.DataFrame | None) -> list[str]:
    """Notes on alphas: their mean and their range by stack; none where there is no table."""
    if alphas is None:
        return []
    parts = [
        f"{stack} {rows['alpha'].mean():.2f} ({rows['alpha'].min():.2f} to {rows['alpha'].max():.2f})"
        for stack, rows in alphas.groupby("stack", sort=False)
    ]
    return [f"Learned alphas of entmax, mean and range over heads: {', '.join(parts)}."]
