"""What run.json says of a model."""

from __future__ import annotations

from typing import Any

from headlens.models.loading import LoadedModel


def model_facts(loaded: LoadedModel, label: str) -> dict[str, Any]:
    """Where a model came from, and what it was run on.

    Args:
        loaded: the model.
        label: what tables call it.
    """
    return {
        "model": label,
        "name": loaded.name,
        "revision": loaded.revision,
        "weight_hash": loaded.weight_hash,
        "parameters": loaded.n_parameters,
        "device": str(loaded.device),
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
    }
