"""What run.json says of a model."""

from __future__ import annotations

from collections.abc import Container
from itertools import chain, count
from pathlib import Path
from typing import Any

from headlens.attention.model_normalizer import attention_name
from headlens.interventions.compacting import removed_heads
from headlens.languages import told_languages
from headlens.models.loading import LoadedModel


def model_record(loaded: LoadedModel, label: str) -> dict[str, Any]:
    """Returns what run.json says of a model: where it came from, and on what it was run.

    Args:
        loaded: the model.
        label: name of the model in tables.
    """
    removed = removed_heads(loaded.model)
    languages = told_languages(loaded.tokenizer, loaded.model, loaded.untold)
    return {
        "model": label,
        "name": loaded.name,
        "revision": loaded.revision,
        "weight_hash": loaded.weight_hash,
        "parameters": loaded.n_parameters,
        "device": str(loaded.device),
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "attention": attention_name(loaded.model),
        **({"languages": languages} if languages else {}),
        **({"heads_removed": [str(head) for head in removed]} if removed else {}),
    }


def model_label(loaded: LoadedModel, taken: Container[str]) -> str:
    """Returns the name of a model in tables: its short name, with parent folders where that is taken."""
    parts = Path(loaded.name).parts
    longer = ["/".join(parts[-count:]) for count in range(2, len(parts))]
    names = chain((loaded.short_name, *longer, loaded.name), (f"{loaded.name} ({number})" for number in count(2)))
    return next(n for n in names if n not in taken)
