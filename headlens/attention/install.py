"""Routing the attention of a model to a session, and undoing it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from headlens.attention.forward_tracker import SessionLink
from headlens.attention.interface import ATTRIBUTE, EAGER, NAMES, SWITCHED


def install(model: nn.Module, name: str, link: SessionLink, undo: ExitStack) -> None:
    """Routes all attention of a model to a session, until `undo` is closed.

    Args:
        model: the model.
        name: name of the registered attention function.
        link: link to the session, set on every module for the registered functions to find.
        undo: stack that restores the model when it is closed.

    Raises:
        RuntimeError: if the model, or one it shares its config object with, is in a session already.
    """
    configs = configs_of(model)
    if any(getattr(m, ATTRIBUTE, None) is not None for m in model.modules()):
        raise RuntimeError("this model is already in a session: give all observers and edits to one session")
    # A copy of a model in a session has the name too, but also the attribute, which is None there.
    if ATTRIBUTE not in vars(model) and any(c._attn_implementation in NAMES for c in configs):
        raise RuntimeError(
            "this model shares its config object with a model in an open session: build it with copy.deepcopy(config)"
        )
    for config in configs:
        put(config, "_attn_implementation_internal", name, undo)
    for module in model.modules():
        put(module, ATTRIBUTE, link, undo)


def implementations(modules: Iterable[nn.Module]) -> set[str]:
    """The names of the attention functions that modules use now."""
    configs: list[Any] = [m.config for m in modules]
    return {c._attn_implementation for c in configs}


def is_eager(modules: Iterable[nn.Module]) -> bool:
    """Whether some module uses eager attention or the attention that its model was switched to, which give weights."""
    return bool(implementations(modules) & {"eager", EAGER, SWITCHED})


def supports_sdpa(model: nn.Module, modules: Iterable[nn.Module]) -> bool:
    """Whether sdpa computes the attention of all these modules, by what the models that hold them declare."""
    attention = set(modules)
    parts = [m for m in model.modules() if isinstance(m, PreTrainedModel) and attention.intersection(m.modules())]
    return all(p._supports_sdpa for p in parts)


def recomputes(model: nn.Module) -> bool:
    """Whether some part of a model has gradient checkpointing switched on."""
    return any(getattr(m, "gradient_checkpointing", False) for m in model.modules())


def configs_of(model: nn.Module) -> list[Any]:
    """Every configuration object that some part of the model asks for its attention implementation."""
    owners = [m.config for m in model.modules() if hasattr(m, "config")]
    nested = [getattr(c, name, None) for c in owners for name in getattr(c, "sub_configs", {})]
    return list({id(c): c for c in [*owners, *nested] if hasattr(c, "_attn_implementation_internal")}.values())


def put(owner: Any, name: str, value: object, undo: ExitStack) -> None:
    """Sets an attribute until `undo` is closed."""
    if name in vars(owner):
        undo.callback(setattr, owner, name, vars(owner)[name])
    else:
        undo.callback(lambda: vars(owner).pop(name, None))
    setattr(owner, name, value)
