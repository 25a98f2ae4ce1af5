"""Where the weights of heads are in an attention module, cutting heads out, and putting zeros in their place again.

Decoders whose first layer has no heads left cannot use transformers' cache, which counts its length there
(`guard_cache`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from headlens.errors import UnsupportedModelError
from headlens.weights.after_heads import module_after_heads

_HEAD_SIZES = ("attention_head_size", "head_dim")
# Left on an attention module that lost heads: the numbers its remaining heads had in the original model.
LEFT = "headlens_heads_left"
# Parameter of an attention module whose heads learn the alpha of their entmax, a number for each of them.
ALPHAS = "entmax_alpha_logits"
# Left on it, too: how many heads it had in the original model.
BEFORE = "headlens_heads_before"
_HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads")
# Left on the first attention module of a decoder whose cache is guarded.
_GUARD = "headlens_cache_guard"


@dataclass(frozen=True)
class Layout:
    """The names that a modeling file gives the projections of its attention module.

    Args:
        families: the models whose files use these names.
        query, key, value: names of the projections into the heads.
        output: name of the projection out of them; `../` stands for the module around the attention module.
    """

    families: str
    query: str
    key: str
    value: str
    output: str


LAYOUTS = (
    Layout("BERT, RoBERTa, ELECTRA", "query", "key", "value", "../output.dense"),
    Layout("ALBERT", "query", "key", "value", "dense"),
    Layout("DistilBERT", "q_lin", "k_lin", "v_lin", "out_lin"),
    Layout("BART, Marian, M2M100, OPT", "q_proj", "k_proj", "v_proj", "out_proj"),
)


@dataclass(frozen=True)
class HeadProjections:
    """The projections of one attention module, and the features of one head in each of them."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    output: nn.Linear
    head_size: int

    @property
    def inward(self) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
        """The projections into the heads, whose output features belong to heads: query, key and value."""
        return self.query, self.key, self.value

    @property
    def n_heads(self) -> int:
        """Number of heads that have weights in these projections."""
        return self.query.out_features // self.head_size


def projections(model: nn.Module, name: str) -> HeadProjections:
    """The projections of the attention module of this name.

    Raises:
        UnsupportedModelError: if they are not laid out in a known way: one matrix for queries, keys and values
            (ModernBERT, GPT-2), keys that several heads share (Llama), layers that are not plain (quantised), or a gate
            on what the heads give.
    """
    module = model.get_submodule(name)
    module_after_heads(module)
    for layout in LAYOUTS:
        layers = [_linear(model, name, path) for path in (layout.query, layout.key, layout.value, layout.output)]
        present = [layer for layer in layers if layer is not None]
        sizes = [int(getattr(module, attribute)) for attribute in _HEAD_SIZES if hasattr(module, attribute)]
        if sizes and len(present) == len(layers):
            query, key, value, output = present
            parts = HeadProjections(query, key, value, output, sizes[0])
            widths = {layer.out_features for layer in parts.inward} | {parts.output.in_features}
            if len(widths) == 1 and query.out_features % parts.head_size == 0:
                return parts
    raise UnsupportedModelError(
        f"The heads of {name} ({type(module).__name__}) cannot be cut out: headlens finds no separate linear layers of "
        "queries, keys, values and output there, with the same number of features for each head.",
        f"It can cut out heads of {', '.join(layout.families for layout in LAYOUTS)}; compact --stock writes zeros in "
        "place of heads wherever the output projection is known.",
    )


def output_projection(model: nn.Module, name: str) -> nn.Linear | Conv1D:
    """The output projection of an attention module, from the heads to the residual stream.

    Raises:
        UnsupportedModelError: if it is not known where that is.
    """
    path = module_after_heads(model.get_submodule(name))
    if not path:
        return projections(model, name).output
    module = model.get_submodule(f"{name}.{path}")
    kind = type(module)
    if kind not in (nn.Linear, Conv1D):
        raise UnsupportedModelError(
            f"The output projection of {name} is a {kind.__name__}, whose weights may be stored differently.",
            "Load the model without quantisation or adapters.",
        )
    assert isinstance(module, nn.Linear | Conv1D)
    return module


def output_weight(model: nn.Module, name: str) -> Tensor:
    """The matrix of the output projection of an attention module: (features, heads x d), the heads in their order.

    Raises:
        UnsupportedModelError: if it is not known where that is.
    """
    module = output_projection(model, name)
    return module.weight.T if isinstance(module, Conv1D) else module.weight


def scale_heads(model: nn.Module, name: str, factors: Sequence[float]) -> None:
    """Multiplies what the heads of an attention module add by factors, in the weights of its output projection.

    A factor of 0 leaves nothing of a head but its attention weights, in any architecture whose output projection is
    known: neither shapes nor the configuration change.

    Args:
        model: the model that holds the module, changed in place.
        name: name of the module.
        factors: one for each of its heads, in the order of its weights.

    Raises:
        UnsupportedModelError: see `output_projection`; and if its features do not belong to heads evenly.
    """
    module = output_projection(model, name)
    # (heads x d, features) of a Conv1D, transposed elsewhere
    columns = module.weight if isinstance(module, Conv1D) else module.weight.T
    if len(columns) % len(factors):
        raise UnsupportedModelError(
            f"The output projection of {name} has {len(columns)} input features, which are not the same number for "
            f"each of {len(factors)} heads."
        )
    with torch.no_grad():
        columns.mul_(columns.new_tensor(factors).repeat_interleave(len(columns) // len(factors))[:, None])


def has_heads(module: nn.Module) -> bool:
    """Whether a module looks like an attention module that `projections` may know: by its queries and its head size."""
    has_size = any(hasattr(module, attribute) for attribute in _HEAD_SIZES)
    return has_size and any(isinstance(getattr(module, o.query, None), nn.Linear) for o in LAYOUTS)


def _linear(model: nn.Module, name: str, path: str) -> nn.Linear | None:
    place = f"{name}.{path}"
    if path.startswith("../"):  # seen from the module around the attention module
        place = ".".join([*name.split(".")[:-1], path[3:]])
    try:
        module = model.get_submodule(place)
    except AttributeError:
        return None
    # A subclass (quantised, with adapters) may keep its weights in another way.
    return module if type(module) is nn.Linear else None


def heads_left(module: nn.Module) -> tuple[int, ...] | None:
    """The original numbers of the heads of a module, in the order of its weights; None if none was ever cut out."""
    left: tuple[int, ...] | None = getattr(module, LEFT, None)
    return left


def numbers_of(model: nn.Module, name: str) -> tuple[int, ...]:
    """The original numbers of the heads an attention module has, in the order of its weights.

    Raises:
        UnsupportedModelError: see `projections`.
    """
    left = heads_left(model.get_submodule(name))
    return tuple(range(projections(model, name).n_heads)) if left is None else left


def heads_before(model: nn.Module, name: str) -> int:
    """How many heads an attention module had in the original model.

    Raises:
        UnsupportedModelError: see `projections`.
    """
    n_before: int | None = getattr(model.get_submodule(name), BEFORE, None)
    return projections(model, name).n_heads if n_before is None else n_before


def check_shrinks(model: nn.Module, name: str, left: Sequence[int]) -> None:
    """Refuses what `shrink` cannot do, before anything is changed.

    Raises:
        UnsupportedModelError: see `projections`; and if the module would lose all its heads and reshapes by their
            number (Whisper): of no heads and no features torch cannot tell the length.
    """
    projections(model, name)
    module = model.get_submodule(name)
    used_names = inspect.unwrap(type(module).forward).__code__.co_names
    if not left and set(_HEAD_COUNTS).intersection(used_names):
        raise UnsupportedModelError(
            f"{name} ({type(module).__name__}) cannot run without any head.", "Keep at least one in each of its layers."
        )


def shrink(model: nn.Module, name: str, left: Sequence[int]) -> None:
    """Cuts all heads but these out of an attention module, in place; it may lose all of them.

    A head's rows go from the query, key and value projections, with their biases, and its columns from the output
    projection, whose bias stays.

    Args:
        model: the model that holds the module.
        name: name of the module.
        left: original numbers of the heads that stay; the module still has them.

    Raises:
        UnsupportedModelError: see `projections`.
    """
    numbers, n_before = numbers_of(model, name), heads_before(model, name)
    _resize(model, name, [numbers.index(h) for h in left], len(left), _selected)
    module = model.get_submodule(name)
    setattr(module, LEFT, tuple(left))
    setattr(module, BEFORE, n_before)


def refill(model: nn.Module, name: str) -> None:
    """Gives an attention module its original shape, in place: zeros where heads were cut out."""
    module = model.get_submodule(name)
    if (left := heads_left(module)) is not None:
        _resize(model, name, left, heads_before(model, name), _spread)
        delattr(module, LEFT)
        delattr(module, BEFORE)


def features_of(positions: Sequence[int], head_size: int) -> list[int]:
    """The features of a projection that belong to heads, given by their places in its weights."""
    return [p * head_size + i for p in positions for i in range(head_size)]


def _resize(
    model: nn.Module,
    name: str,
    places: Sequence[int],
    n_heads: int,
    change: Callable[[Tensor, int, Tensor, int], Tensor],
) -> None:
    """Replaces the weights of an attention module by `change(tensor, axis, index, size)`, so that it has `n_heads`.

    The axis is that of the heads, of which `index` are those at `places`, and `size` what it is to have. Heads are rows
    (axis 0) of weights and biases of the inward projections, and columns (axis 1) of the output weight. If they learn
    alphas, they have one each.
    """
    module, parts = model.get_submodule(name), projections(model, name)
    features, width = features_of(places, parts.head_size), n_heads * parts.head_size

    def changed(old: Tensor, axis: int, numbers: Sequence[int], size: int) -> nn.Parameter:
        index = torch.tensor(numbers, dtype=torch.long, device=old.device)
        return nn.Parameter(change(old.detach(), axis, index, size), requires_grad=old.requires_grad)

    for layer in parts.inward:
        layer.weight = changed(layer.weight, 0, features, width)
        if layer.bias is not None:
            layer.bias = changed(layer.bias, 0, features, width)
        layer.out_features = width
    parts.output.weight = changed(parts.output.weight, 1, features, width)
    parts.output.in_features = width
    if (alphas := getattr(module, ALPHAS, None)) is not None:
        setattr(module, ALPHAS, changed(alphas, 0, places, n_heads))
    counts = dict.fromkeys(_HEAD_COUNTS, n_heads) | {"all_head_size": width}
    vars(module).update({attribute: count for attribute, count in counts.items() if attribute in vars(module)})


def _selected(tensor: Tensor, axis: int, index: Tensor, size: int) -> Tensor:
    del size
    # Contiguous, for weights cut out of columns; a model being loaded has its tensors on the device "meta".
    return tensor.index_select(axis, index).contiguous()


def _spread(tensor: Tensor, axis: int, index: Tensor, size: int) -> Tensor:
    shape = list(tensor.shape)
    shape[axis] = size
    return tensor.new_zeros(shape).index_copy(axis, index, tensor)


def guard_cache(model: PreTrainedModel, name: str) -> None:
    """Switches the cache off if a layer that counts it has lost all heads, and refuses callers that pass one.

    The cache tells its length by the keys of the first layer: of none there, every token would be the first one.
    The cache is switched on again once the layer has its heads back.

    Args:
        model: the model.
        name: name of the decoder's first attention module.
    """
    module = model.get_submodule(name)
    is_empty, is_guarded = heads_left(module) == (), hasattr(module, _GUARD)
    if is_empty and not is_guarded:
        setattr(module, _GUARD, True)
        module.register_forward_pre_hook(_refuse_cache, with_kwargs=True)
    if is_empty or is_guarded:
        owners = [m for m in model.modules() if isinstance(m, PreTrainedModel)]
        for config in [c for o in owners for c in (o.config, getattr(o, "generation_config", None))]:
            if config is not None and hasattr(config, "use_cache"):
                config.use_cache = not is_empty


def _refuse_cache(module: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    del inputs
    if kwargs.get("past_key_values") is not None and heads_left(module) == ():
        raise UnsupportedModelError(
            "The first layer of the decoder has no heads left, so a key-value cache could not keep track of its "
            "length.",
            "Run the model with use_cache=False.",
        )
