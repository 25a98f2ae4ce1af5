"""Models with another normaliser than softmax: entmax, with exact zeros, in training and wherever they run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.attention.install import configs_of, supports_sdpa
from headlens.attention.interface import SWITCHED
from headlens.attention.kernels.entmax_rows import entmax_computed_by
from headlens.attention.normalizers import (
    Entmax,
    LearnedEntmax,
    ModelNormalizer,
    alphas_of,
    attend_as,
    parse_normalizer,
)
from headlens.attention.sites import OWN, find_sites
from headlens.errors import ModelError, OptionError
from headlens.heads import HeadTable
from headlens.weights.head_slicing import ALPHAS

# Key in config.json, so that a checkpoint tells which attention it was trained with.
KEY = "headlens_attention"
SOFTMAX = "softmax"


def switch(model: PreTrainedModel, normalizer: ModelNormalizer | None) -> None:
    """Gives all heads of a model another normaliser; from then on it is the model's own attention.

    It holds in plain passes, training, sessions and replays, for copies, and for what is saved and loaded with
    headlens. Other programs that load such a checkpoint give it softmax.

    With `LearnedEntmax` its attention modules get a parameter, from which every head begins with an alpha of 1.5; those
    that have it already keep it. With any other normaliser they lose it.

    Args:
        model: in no session.
        normalizer: from scores to weights; None for softmax, the normaliser of the original model.

    Raises:
        UnsupportedModelError: if the model's attention cannot be reached.
    """
    modules = [model.get_submodule(name) for name in dict.fromkeys(site.module for site in find_sites(model))]
    if isinstance(normalizer, LearnedEntmax):
        add_alphas(model)
    else:
        for module in modules:
            module._parameters.pop(ALPHAS, None)
    if normalizer is None:
        if attention_of(model) is not None:
            for module in modules:
                vars(module).pop(OWN, None)
            for config in configs_of(model):
                config._attn_implementation_internal = "sdpa" if supports_sdpa(model, modules) else "eager"
            delattr(model.config, KEY)
        return
    for module in modules:
        setattr(module, OWN, partial(_attend, normalizer))
    for config in configs_of(model):
        config._attn_implementation_internal = SWITCHED
    setattr(model.config, KEY, str(normalizer))


def _attend(normalizer: ModelNormalizer, module: nn.Module, *tensors: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    return attend_as(normalizer.of_module(module), module, *tensors, **kwargs)


def add_alphas(model: PreTrainedModel) -> None:
    """Gives attention modules the parameter of `LearnedEntmax` where they do not have it, at an alpha of 1.5."""
    for site in find_sites(model):
        module = model.get_submodule(site.module)
        if ALPHAS not in module._parameters:
            module.register_parameter(ALPHAS, nn.Parameter(next(module.parameters()).detach().new_zeros(site.n_heads)))


def parameters_of_attention(config: object) -> Callable[[PreTrainedModel], None] | None:
    """What gives a new model the parameters of the attention that its configuration names; None where it has none."""
    return add_alphas if getattr(config, KEY, None) == str(LearnedEntmax()) else None


def learned_alphas(model: PreTrainedModel) -> HeadTable | None:
    """The alphas that the heads of a model have learned, a column `alpha`; None for models that learn none."""
    if not isinstance(attention_of(model), LearnedEntmax):
        return None
    sites = find_sites(model)
    with torch.no_grad():
        alphas = [alpha for site in sites for alpha in alphas_of(model.get_submodule(site.module)).tolist()]
    return HeadTable.from_columns([head for site in sites for head in site.heads], alpha=alphas)


def attention_of(model: nn.Module) -> ModelNormalizer | None:
    """The normaliser that a model was switched to; None for softmax."""
    text = getattr(getattr(model, "config", None), KEY, None)
    return None if text is None else parse_normalizer(str(text))


def attention_name(model: nn.Module) -> str:
    """Name of the normaliser of a model, such as softmax or entmax15."""
    return str(attention_of(model) or SOFTMAX)


def entmax_record(model: nn.Module) -> dict[str, str]:
    """What computes the entmax of a model, for its record; empty for softmax, and before the first pass."""
    normalizer = attention_of(model)
    name = f"{normalizer.alpha:g}" if isinstance(normalizer, Entmax) else "learned"
    found = "" if normalizer is None else entmax_computed_by(name)
    return {"entmax": found} if found else {}


def attention_notes(model: nn.Module) -> list[str]:
    """Notes for users of a checkpoint whose model was switched; none for softmax."""
    normalizer = attention_of(model)
    if normalizer is None:
        return []
    return [f"Attention is {normalizer}; programs other than headlens will load this checkpoint without it."]


def switch_as_asked(model: PreTrainedModel, name: str | None) -> None:
    """Gives a model the normaliser of this name; None leaves the model as it is.

    Raises:
        OptionError: if there is none of that name.
    """
    if name is not None:
        switch(model, parse_normalizer(name))


def restore_attention(name: str, model: PreTrainedModel) -> None:
    """Gives a loaded model the normaliser that its checkpoint names.

    Raises:
        ModelError: if there is none of that name.
    """
    try:
        normalizer = attention_of(model)
    except OptionError as error:
        raise ModelError(f"{name}: config.json names an unknown attention: {error.message}") from error
    if normalizer is not None:
        switch(model, normalizer)
