"""Settings of config.json with which transformers alone has the shapes of a model that lost heads.

Its classes know one number of heads for all layers, so this is possible where every layer lost as many.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from headlens.attention.model_normalizer import attention_of
from headlens.attention.sites import find_sites
from headlens.errors import UnsupportedModelError
from headlens.weights.head_slicing import heads_left, projections
from headlens.weights.shared_layer_masks import head_scales, silent_heads

HEADS, KEY_HEADS, HEAD_SIZE = "num_attention_heads", "num_key_value_heads", "head_dim"
_ADVICE = "Write it for headlens.load with --strategy-args shape=uneven, or zeros in place of the heads with --stock."


def lost_heads(model: nn.Module) -> bool:
    """Whether heads were cut out of the weights of a model."""
    return any(heads_left(module) is not None for module in model.modules())


def plain_settings(model: PreTrainedModel) -> dict[str, int]:
    """The settings of config.json that make transformers' own class fit the weights of a model that lost heads.

    A model is built from them on the device "meta", and the shapes of all of its weights are compared: no list of
    architectures is asked.

    Args:
        model: with the configuration of the original, as `headlens.load` and `compact_model` leave it.

    Returns:
        Numbers of heads of queries and of keys and the size of a head, by name; empty for a model with all its heads.

    Raises:
        UnsupportedModelError: if layers differ in their numbers of heads, or the class takes no other size of a head
            than width / heads; says which.
    """
    if not lost_heads(model):
        return {}
    kind = type(model).__name__
    if any(silent_heads(model)) or head_scales(model):
        raise UnsupportedModelError(
            f"{kind}: some heads are silent or scaled at some depths alone, which shared weights cannot say.", _ADVICE
        )
    if attention_of(model) is not None:
        raise UnsupportedModelError(
            f"transformers has not the attention of this {kind}, {attention_of(model)}.", _ADVICE
        )
    counts = {}
    for site in find_sites(model):
        parts = projections(model, site.module)
        counts[str(site)] = (parts.n_heads, parts.n_heads // parts.shared_by, parts.head_size)
    if len(set(counts.values())) > 1:
        few, many = min(counts, key=lambda name: counts[name]), max(counts, key=lambda name: counts[name])
        raise UnsupportedModelError(
            f"Layers keep different numbers of heads ({few} {_in_words(counts[few])}, {many} {_in_words(counts[many])})"
            ", and transformers has one number for all.",
            _ADVICE,
        )
    heads, key_heads, size = next(iter(counts.values()))
    settings = {HEADS: heads, HEAD_SIZE: size}
    if hasattr(model.config, KEY_HEADS):
        settings[KEY_HEADS] = key_heads
    if problem := _problem(model, settings):
        raise UnsupportedModelError(
            f"transformers cannot hold a {kind} with {heads} heads of {size} features in each layer: {problem}.",
            f"Some numbers of heads may be possible where others are not. {_ADVICE}"
            if "multiple" in problem
            else _ADVICE,
        )
    return settings


def _in_words(counts: tuple[int, int, int]) -> str:
    heads, key_heads, _ = counts
    return f"{heads}" if heads == key_heads else f"{heads} on {key_heads} heads of keys"


def _problem(model: PreTrainedModel, settings: dict[str, int]) -> str:
    """Why the class of a model does not have its shapes with these settings; empty if it has."""
    try:
        config = with_settings(model.config, settings)
        with torch.device("meta"):
            plain = type(model)(config)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return (lines[-1] if lines else type(error).__name__).removeprefix("ValueError: ").rstrip(".")
    wanted, got = _shapes(model.named_parameters()), _shapes(plain.named_parameters())
    if different := next((name for name in wanted if got.get(name) != wanted[name]), None):
        shapes = f"{different} would have the shape {got.get(different)}, not {wanted[different]}"
        return f"its configuration says no other size of a head than width / heads ({shapes})"
    return ""


def with_settings(config: PreTrainedConfig, settings: dict[str, int]) -> PreTrainedConfig:
    """A copy of a configuration with other settings, checked as transformers checks one that it reads."""
    names: dict[str, str] = config.attribute_map
    written: dict[str, Any] = config.to_dict() | {names.get(name, name): value for name, value in settings.items()}
    return type(config).from_dict(written)


def _shapes(parameters: Iterable[tuple[str, nn.Parameter]]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in parameters}
