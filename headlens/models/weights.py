"""Whether the weights of a checkpoint are all there, all used, and all numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from transformers import PreTrainedModel

from headlens.errors import ModelError, counted

# How attention modules and their parts are called in modeling files: attention, self_attn, attn, encoder_attn, attend.
_ATTENTION = re.compile(r"att(n|en)", re.IGNORECASE)
_LAYER = re.compile(r"^(.+?\.)(\d+)\.")


def check_weights(name: str, model: PreTrainedModel, report: dict[str, Any]) -> None:
    """Refuses a checkpoint whose heads would not be those that were trained.

    Args:
        name: name of the model, for errors.
        model: the model as it was loaded.
        report: the second result of `from_pretrained` with `output_loading_info`.

    Raises:
        ModelError: if weights would be random, if layers would be left out, or if there is NaN or infinity.
    """
    missing = sorted(k for k in report.get("missing_keys", ()) if not is_optional(model, k))
    if missing:
        raise ModelError(
            f"{name}: {_count(missing)} missing from the checkpoint and would be random: {_listed(missing)}.",
            "The checkpoint does not fit its config.json.",
        )
    beyond = sorted(beyond_last_layer(model, report.get("unexpected_keys", ())))
    if beyond:
        raise ModelError(
            f"{name}: {_count(beyond)} of layers that the model of its config.json does not have: {_listed(beyond)}.",
            "The checkpoint does not fit its config.json: heads would be left out.",
        )
    broken = [k for k, p in model.state_dict().items() if p.is_floating_point() and not torch.isfinite(p).all()]
    if broken:
        verb = "holds" if len(broken) == 1 else "hold"
        raise ModelError(
            f"{name}: {counted(len(broken), 'weight')} {verb} NaN or infinity, the first is {broken[0]}.",
            "The checkpoint is damaged, or was saved after training diverged.",
        )


def is_optional(model: PreTrainedModel, key: str) -> bool:
    """Whether a weight may be random without any attention being so: one of a pooler, or of a head on top.

    Such weights lie outside of the base model, or in its pooler, in a part that has no attention of its own.
    """
    prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
    inside = key.startswith(prefix)
    part = f"{prefix if inside else ''}{key.removeprefix(prefix).split('.')[0]}"
    if inside and part != f"{prefix}pooler":
        return False
    keys = (k for k in model.state_dict() if k.split(".")[: part.count(".") + 1] == part.split("."))
    return not any(_ATTENTION.search(k) for k in keys)


def beyond_last_layer(model: PreTrainedModel, keys: Iterable[str]) -> list[str]:
    """The keys of weights whose layer is past the end of a list of layers that the model has."""
    known = {m.groups() for k in model.state_dict() if (m := _LAYER.match(k))}
    lists = {prefix for prefix, _ in known}
    matches = ((k, _LAYER.match(k)) for k in keys)
    return [k for k, m in matches if m and m[1] in lists and m.groups() not in known]


def _count(names: list[str]) -> str:
    return f"{counted(len(names), 'weight')} {'is' if len(names) == 1 else 'are'}"


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''}"
