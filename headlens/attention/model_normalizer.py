"""Models whose attention is another one than softmax: entmax, with exact zeros, in training and wherever they run."""

from __future__ import annotations

from functools import partial

from torch import nn
from transformers import PreTrainedModel

from headlens.attention.install import configs_of, supports_sdpa
from headlens.attention.interface import SWITCHED
from headlens.attention.normalizers import Entmax, attend_as, parse_normalizer
from headlens.attention.sites import OWN, find_sites
from headlens.errors import ModelError, OptionError

# What config.json calls it, so that a checkpoint says which attention it was trained with.
KEY = "headlens_attention"
SOFTMAX = "softmax"


def switch(model: PreTrainedModel, normalizer: Entmax | None) -> None:
    """Give all heads of a model another normaliser; from then on it is the model's own attention.

    It holds in plain passes, training, sessions and replays, for copies, and for what is saved and loaded with
    headlens. Other programs that load such a checkpoint give it softmax.

    Args:
        model: in no session.
        normalizer: what turns scores into weights; None for softmax, as models come.

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
    """What a model was switched to; None for softmax."""
    text = getattr(getattr(model, "config", None), KEY, None)
    return None if text is None else parse_normalizer(str(text))


def attention_name(model: nn.Module) -> str:
    """The same in words, such as softmax or entmax15."""
    return str(attention_of(model) or SOFTMAX)


def attention_notes(model: nn.Module) -> list[str]:
    """What to know of a checkpoint that was switched."""
    normalizer = attention_of(model)
    if normalizer is None:
        return []
    return [f"Attention is {normalizer}, which other programs than headlens will not give to this checkpoint."]


def switch_as_asked(model: PreTrainedModel, wanted: str | None) -> None:
    """Give a model the attention of that name; None leaves it as it is.

    Raises:
        OptionError: if there is none.
    """
    if wanted is not None:
        switch(model, parse_normalizer(wanted))


def restore_attention(name: str, model: PreTrainedModel) -> None:
    """Give a loaded model the attention that its checkpoint names.

    Raises:
        ModelError: if there is none of that name.
    """
    try:
        normalizer = attention_of(model)
    except OptionError as error:
        raise ModelError(f"{name}: config.json names an attention that there is none, {error.message}") from error
    if normalizer is not None:
        switch(model, normalizer)
