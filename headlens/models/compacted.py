"""Loading a model that lost heads: its weights have other shapes than its configuration says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from headlens.errors import ModelError
from headlens.weights.head_map_file import FILE, check_fits, read_head_map

_ORIGINAL = "headlens_original"


def model_class(place: str, original: Any) -> Any:
    """The class to load a checkpoint with: the original one, or one like it that has fewer heads from the start.

    So the weights go straight to where they belong, and everything else about loading stays transformers' own.

    Args:
        place: a folder or hub id; only folders can have a map of heads.
        original: the class by its configuration.

    Raises:
        ModelError: if the map of heads cannot be read, or the class is not known.
    """
    heads = read_head_map(Path(place))
    if heads is None:
        return original
    if not (isinstance(original, type) and issubclass(original, PreTrainedModel)):
        raise ModelError(f"{place}: its config.json names no class of transformers, which a folder with {FILE} needs.")

    def build(model: PreTrainedModel, *args: Any, **kwargs: Any) -> None:
        original.__init__(model, *args, **kwargs)
        check_fits(heads, model, Path(place))
        heads.apply(model)

    own = {"__init__": build, "__module__": original.__module__, _ORIGINAL: original}
    return type(original.__name__, (original,), own)


def restore_class(model: PreTrainedModel) -> None:
    """Make a model that `model_class` loaded one of the original class; others stay as they are."""
    original = getattr(type(model), _ORIGINAL, None)
    if original is not None:
        model.__class__ = original
