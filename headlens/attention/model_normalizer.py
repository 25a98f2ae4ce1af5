"""Models with another normaliser than softmax: entmax, with exact zeros, in training and wherever they run."""

from __future__ import annotations

from functools import partial

from torch import nn
from transformers import PreTrainedModel

from headlens.attention.install import configs_of, supports_sdpa
from headlens.attention.interface import SWITCHED
from headlens.attention.normalizers import Entmax, attend_as, parse_normalizer
from headlens.attention.sites import OWN, find_sites
from headlens.errors import ModelError, OptionError

# Key in config.json, so that a checkpoint tells which attention it was trained with.
KEY = "headlens_attention"
SOFTMAX = "softmax"


def switch(model: PreTrainedModel, normalizer: Entmax | None) -> None:
    """Gives all heads of a model another normaliser; from then on it is the model's own attention.

    It holds in plain passes, training, sessions and replays, for copies, and for what is saved and loaded with
    headlens. Other programs that load such a checkpoint give it softmax.

    Args:
        model: in no session.
        normalizer: function from scores to weights; None for softmax, the normaliser of the original model.

    Raises:
        UnsupportedModelError: if the model's attention cannot be reached.
    """
    modules = [model.get_submodule(name) for name in dict.fromkeys(site.module for site in find_sites(model))]
    if normalizer is None:
        if attention_of(model) is not None:
            for module in modules:
                vars(module).pop(OWN, None)
            for config in configs_of(model):
                config._attn_implementation_internal = "sdpa" if supports_sdpa(model, modules) else "eager"
            delattr(model.config, KEY)
        return
    for module in modules:
        setattr(module, OWN, partial(attend_as, normalizer))
    for config in configs_of(model):
        config._attn_implementation_internal = SWITCHED
    setattr(model.config, KEY, str(normalizer))


def attention_of(model: nn.Module) -> Entmax | None:
    """The normaliser that a model was switched to; None for softmax."""
    text = getattr(getattr(model, "config", None), KEY, None)
    return None if text is None else parse_normalizer(str(text))


def attention_name(model: nn.Module) -> str:
    """Name of the normaliser of a model, such as softmax or entmax15."""
    return str(attention_of(model) or SOFTMAX)


def attention_notes(model: nn.Module) -> list[str]:
    """Notes for users of a checkpoint whose model was switched; none for softmax."""
    normalizer = attention_of(model)
    if normalizer is None:
        return []
    return [f"Attention is {normalizer}, which other programs than headlens will not give to this checkpoint."]


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
        raise ModelError(f"{name}: config.json names an attention that there is none, {error.message}") from error
    if normalizer is not None:
        switch(model, normalizer)
