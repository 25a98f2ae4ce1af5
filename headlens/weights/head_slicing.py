"""Where the weights of heads are in an attention module, cutting heads out, and putting zeros in their place again.

Decoders whose first layer has no heads left cannot use transformers' cache, which counts its length there
(`guard_cache`).
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from headlens.errors import UnsupportedModelError
from headlens.weights.after_heads import module_after_heads

_HEAD_SIZES = ("attention_head_size", "head_dim", "head_size")
# Left on an attention module that lost heads: the numbers its remaining heads had in the original model.
LEFT = "headlens_heads_left"
# Parameter of an attention module whose heads learn the alpha of their entmax, a number for each of them.
ALPHAS = "entmax_alpha_logits"
# Left on it, too: how many heads it had in the original model, and how many of them share keys and values.
BEFORE, GROUPS_BEFORE = "headlens_heads_before", "headlens_groups_before"
_HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads")
_KEY_COUNTS = ("num_key_value_heads",)
# How many heads share keys and values.
_GROUPS = "num_key_value_groups"
# Left on the first attention module of a decoder whose cache is guarded.
_GUARD = "headlens_cache_guard"
# Names of separate projections to queries, keys and values.
SEPARATE = (("query", "key", "value"), ("q_lin", "k_lin", "v_lin"), ("q_proj", "k_proj", "v_proj"))
# Of one matrix for all three, shapes do not say where the features of a head are: by class, its name, and whether
# those of a head stand together (else all queries stand before all keys and all values).
FUSED = {
    "GPT2Attention": ("c_attn", False),
    "ModernBertAttention": ("Wqkv", False),
    "GPTNeoXAttention": ("query_key_value", True),
}
# Where modules of BERT's kind have their output projection: in the module around the attention module.
_AROUND = "output.dense"
Matrix = nn.Linear | Conv1D


@dataclass(frozen=True)
class InwardProjection:
    """A matrix into heads: to queries, keys or values, or to all of them.

    Args:
        module: the layer.
        parts: whether each part of its output features, in their order, is one of queries; the others are of keys or
            values, which several heads may share.
        together: whether the features of a head in all parts stand together.
    """

    module: Matrix
    parts: tuple[bool, ...] = (True,)
    together: bool = False

    @property
    def axis(self) -> int:
        """The dimension of the weight that output features have."""
        return 1 if isinstance(self.module, Conv1D) else 0

    def features(self, places: Sequence[int], groups: Sequence[int], counts: tuple[int, int], size: int) -> list[int]:
        """Returns the output features that belong to heads.

        Args:
            places: of the heads.
            groups: places of the heads of keys and values that they use.
            counts: how many heads of queries and of keys there are.
            size: features of a head.
        """
        if self.together:
            return features_of(places, size * len(self.parts))
        chosen, before = list[int](), 0
        for of_queries in self.parts:
            chosen += [before + feature for feature in features_of(places if of_queries else groups, size)]
            before += counts[0 if of_queries else 1] * size
        return chosen

    def width(self, counts: tuple[int, int], size: int) -> int:
        """Returns how many output features so many heads of queries and of keys have."""
        return sum(counts[0 if of_queries else 1] for of_queries in self.parts) * size


@dataclass(frozen=True)
class HeadProjections:
    """The projections of one attention module, and the features of one head in each of them.

    Args:
        inward: to queries, keys and values, in this order, or to all of them.
        output: out of the heads.
        head_size: features of a head.
        shared_by: how many heads of queries share one of keys and values.
    """

    inward: tuple[InwardProjection, ...]
    output: Matrix
    head_size: int
    shared_by: int = 1

    @property
    def n_heads(self) -> int:
        """Number of heads that have weights in these projections."""
        return input_features(self.output) // self.head_size


def input_features(module: Matrix) -> int:
    """Returns how many features a layer reads."""
    return int(module.weight.shape[0] if isinstance(module, Conv1D) else module.weight.shape[1])


def projections(model: nn.Module, name: str) -> HeadProjections:
    """The projections of the attention module of this name.

    Which features belong to which head follows from the shapes; of one matrix for queries, keys and values, from the
    class of the module (`FUSED`).

    Raises:
        UnsupportedModelError: if they are not laid out in a known way, layers are not plain (quantised), there is a
            gate on what the heads give, or heads have other weights in common, such as a bias of positions.
    """
    module = model.get_submodule(name)
    path = module_after_heads(module)
    inward = _inward(module)
    outer = ".".join([*name.split(".")[:-1], _AROUND])
    output = plain_layer(model, f"{name}.{path}" if path else outer)
    sizes = [int(getattr(module, attribute)) for attribute in _HEAD_SIZES if hasattr(module, attribute)]
    if inward and output is not None and sizes:
        size, groups = sizes[0], int(vars(module).get(_GROUPS, 1))
        parts = HeadProjections(inward, output, size, groups)
        counts = (parts.n_heads, parts.n_heads // groups)
        # A module without heads has none in any of them.
        fits = input_features(output) % size == 0 and counts[0] % groups == 0
        if fits and all(p.width(counts, size) == p.module.weight.shape[p.axis] for p in inward):
            _refuse_further(module, name, parts)
            return parts
    why = "headlens finds no plain layers of queries, keys, values and output there whose features belong to heads"
    raise _uncut(module, name, why)


def _inward(module: nn.Module) -> tuple[InwardProjection, ...]:
    layers = find_layers(module, SEPARATE, FUSED)
    if len(layers) == 1:
        return (InwardProjection(layers[0], (True, False, False), FUSED[type(module).__name__][1]),)
    return tuple(InwardProjection(layer, (not place,)) for place, layer in enumerate(layers))


def find_layers(
    module: nn.Module, separate: Iterable[Sequence[str]], fused: Mapping[str, tuple[str, bool]]
) -> tuple[Matrix, ...]:
    """Returns the layers of an attention module to queries, keys and values, or the one to all; none where unknown.

    Args:
        module: the attention module.
        separate: names that the three may have.
        fused: by class of the module, the name of one layer to all.
    """
    for names in separate:
        layers = [layer for name in names if (layer := plain_layer(module, name)) is not None]
        if len(layers) == len(names):
            return tuple(layers)
    name, _ = fused.get(type(module).__name__, ("", False))
    layer = plain_layer(module, name) if name else None
    return () if layer is None else (layer,)


def _refuse_further(module: nn.Module, name: str, parts: HeadProjections) -> None:
    """Refuses an attention module with weights of which it is not known what they are of a head.

    Known are numbers for each head (sinks, alphas), norms of the features of one head, and layers after the output
    projection (ALBERT's `LayerNorm`).
    """
    layers = {id(p) for layer in (*(i.module for i in parts.inward), parts.output) for p in layer.parameters()}
    for path, parameter in module.named_parameters():
        of_heads = "." not in path and parameter.shape == (parts.n_heads,)
        of_one = "norm" in path.lower() and parameter.shape == (parts.head_size,)
        if id(parameter) not in layers and not of_heads and not of_one and not path.startswith("LayerNorm."):
            raise _uncut(module, name, f"they have {path} of the shape {tuple(parameter.shape)} in common")
    used = set(inspect.unwrap(type(module).forward).__code__.co_names)
    if unknown := sorted(used.intersection((*_HEAD_COUNTS, *_KEY_COUNTS)) - vars(module).keys()):
        why = f"its code reads {unknown[0]} from the configuration, which is that of all layers"
        raise _uncut(module, name, why)


def _uncut(module: nn.Module, name: str, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"The heads of {name} ({type(module).__name__}) cannot be cut out: {why}.",
        "Where the output projection is known, compact --stock writes zeros in place of heads.",
    )


def plain_layer(owner: nn.Module, path: str) -> Matrix | None:
    """Returns a layer by its name; None where there is none, or one that may keep its weights in another way."""
    try:
        module = owner.get_submodule(path)
    except AttributeError:
        return None
    return module if isinstance(module, nn.Linear | Conv1D) and type(module) in (nn.Linear, Conv1D) else None


def output_projection(model: nn.Module, name: str) -> Matrix:
    """The output projection of an attention module, from the heads to the residual stream.

    Raises:
        UnsupportedModelError: if it is not known where that is.
    """
    path = module_after_heads(model.get_submodule(name))
    if not path:
        return projections(model, name).output
    module = model.get_submodule(f"{name}.{path}")
    kind = type(module)
    if kind not in (nn.Linear, Conv1D) or any(weight.is_meta for weight in module.parameters()):
        raise UnsupportedModelError(
            f"The output projection of {name} is a {kind.__name__}, whose weights may be stored in another way.",
            "Load the model without quantisation, adapters or device-map.",
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


def head_contributions(model: nn.Module, name: str, output: Tensor) -> Tensor | None:
    """What each head of an attention module adds to the residual stream, without bias: (…, heads, features).

    Args:
        model: the model that holds the module.
        name: name of the module.
        output: of its heads, before the output projection, (…, heads, d).

    Returns:
        None if it is not known where the output projection is.
    """
    try:
        weight = output_weight(model, name).detach().to(output.dtype)  # (features, heads x d)
    except UnsupportedModelError:
        return None
    return torch.einsum("...hd,fhd->...hf", output, weight.view(len(weight), *output.shape[-2:]))


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
    columns = output_weight(model, name).T  # (heads x d, features)
    if len(columns) % len(factors):
        raise UnsupportedModelError(
            f"The output projection of {name} has {len(columns)} input features, which are not the same number for "
            f"each of {len(factors)} heads."
        )
    with torch.no_grad():
        columns.mul_(columns.new_tensor(factors).repeat_interleave(len(columns) // len(factors))[:, None])


def zeroed_places(model: nn.Module, name: str, heads: int) -> list[int]:
    """The places of heads of an attention module whose weights in its output projection are all 0: they add nothing.

    Empty where it is not known which these weights are.

    Args:
        model: the model that holds the module.
        name: name of the module.
        heads: how many it has.
    """
    try:
        weight = output_weight(model, name)  # (features, heads x d)
    except UnsupportedModelError:
        return []
    if not heads or weight.is_meta or weight.shape[1] % heads:
        return []
    used = weight.detach().reshape(len(weight), heads, -1).ne(0).any(dim=2).any(dim=0)
    return [place for place, is_used in enumerate(used.tolist()) if not is_used]


def has_heads(module: nn.Module) -> bool:
    """Whether a module looks like an attention module that `projections` may know: by its queries and its head size."""
    has_size = any(hasattr(module, attribute) for attribute in _HEAD_SIZES)
    return has_size and any(isinstance(getattr(module, names[0], None), nn.Linear) for names in SEPARATE)


def heads_left(module: nn.Module) -> tuple[int, ...] | None:
    """The original numbers of the heads of a module, in the order of its weights; None if none was ever cut out."""
    left: tuple[int, ...] | None = getattr(module, LEFT, None)
    return left


def groups_before(module: nn.Module) -> int:
    """How many heads of a module shared a head of keys and values in the original model; 1 where each has its own."""
    return max(1, int(getattr(module, GROUPS_BEFORE, vars(module).get(_GROUPS, 1))))


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
        UnsupportedModelError: see `projections`; if the module would lose all its heads and reshapes by their number
            (Whisper): of no heads and no features torch cannot tell the length; and of heads that share keys and
            values, if not as many of them are left in every group that has any.
    """
    parts, numbers = projections(model, name), numbers_of(model, name)
    module = model.get_submodule(name)
    used_names = inspect.unwrap(type(module).forward).__code__.co_names
    if not left and {*_HEAD_COUNTS, "split_size"}.intersection(used_names):
        raise UnsupportedModelError(
            f"{name} ({type(module).__name__}) cannot run without any head.", "Keep at least one in each of its layers."
        )
    per_group = _per_group([numbers.index(h) for h in left], parts)
    if len(set(per_group.values())) > 1:
        raise UnsupportedModelError(
            f"Each {parts.shared_by} heads of {name} ({type(module).__name__}) share keys and values, and of every "
            "group either all heads have to go or as many as of the others: these heads leave "
            f"{', '.join(map(str, per_group.values()))}.",
            "Name as many heads of each group, or write zeros in their place with compact --stock.",
        )


def _per_group(places: Sequence[int], parts: HeadProjections) -> Counter[int]:
    """How many of some heads use each of the heads of keys and values, those without any left out."""
    return Counter(place // parts.shared_by for place in sorted(places))


def shrink(model: nn.Module, name: str, left: Sequence[int]) -> None:
    """Cuts all heads but these out of an attention module, in place; it may lose all of them.

    A head's features go from the query, key and value projections, with their biases, and from the output projection,
    whose bias stays. Keys and values that several heads share go with the last of these.

    Args:
        model: the model that holds the module.
        name: name of the module.
        left: original numbers of the heads that stay; the module still has them.

    Raises:
        UnsupportedModelError: see `check_shrinks`.
    """
    numbers, n_before = numbers_of(model, name), heads_before(model, name)
    parts, module = projections(model, name), model.get_submodule(name)
    places = [numbers.index(h) for h in left]
    per_group = _per_group(places, parts)
    counts = (parts.n_heads, parts.n_heads // parts.shared_by)
    shared_by = next(iter(per_group.values()), parts.shared_by)
    setattr(module, GROUPS_BEFORE, groups_before(module))
    _resize(model, name, (places, list(per_group)), counts, (len(places), len(per_group)), _selected)
    _set_groups(module, shared_by)
    setattr(module, LEFT, tuple(left))
    setattr(module, BEFORE, n_before)


def refill(model: nn.Module, name: str) -> None:
    """Gives an attention module its original shape, in place: zeros where heads were cut out."""
    module = model.get_submodule(name)
    if (left := heads_left(module)) is not None:
        n_before, shared_by = heads_before(model, name), groups_before(module)
        groups = list(dict.fromkeys(head // shared_by for head in left))
        counts = (n_before, n_before // shared_by)
        _resize(model, name, (left, groups), counts, counts, _spread)
        _set_groups(module, shared_by)
        for attribute in (LEFT, BEFORE, GROUPS_BEFORE):
            delattr(module, attribute)


def _set_groups(module: nn.Module, shared_by: int) -> None:
    if _GROUPS in vars(module):
        setattr(module, _GROUPS, shared_by)


def features_of(positions: Sequence[int], head_size: int) -> list[int]:
    """The features of a projection that belong to heads, given by their places in its weights."""
    return [p * head_size + i for p in positions for i in range(head_size)]


def _resize(
    model: nn.Module,
    name: str,
    places: tuple[Sequence[int], Sequence[int]],
    counts: tuple[int, int],
    sizes: tuple[int, int],
    change: Callable[[Tensor, int, Tensor, int], Tensor],
) -> None:
    """Replaces the weights of an attention module by `change(tensor, axis, index, size)`.

    The axis is that of the features of heads, of which `index` are those at `places`, and `size` how many there are to
    be. What there is one number of for each head, such as learned alphas or sinks, is changed alike.

    Args:
        model: the model that holds the module.
        name: name of the module.
        places: of heads of queries, and of those of keys and values, among `counts`.
        counts: how many of both there are in the larger of the two shapes.
        sizes: how many of both the module is to have.
        change: makes the new tensor.
    """
    module, parts = model.get_submodule(name), projections(model, name)
    size, present = parts.head_size, parts.n_heads

    def changed(old: Tensor, axis: int, numbers: Sequence[int], features: int) -> nn.Parameter:
        index = torch.tensor(numbers, dtype=torch.long, device=old.device)
        return nn.Parameter(change(old.detach(), axis, index, features), requires_grad=old.requires_grad)

    per_head = [key for key, value in module.named_parameters(recurse=False) if value.shape == (present,)]
    for layer in parts.inward:
        features, width = layer.features(*places, counts, size), layer.width(sizes, size)
        layer.module.weight = changed(layer.module.weight, layer.axis, features, width)
        if layer.module.bias is not None:
            layer.module.bias = changed(layer.module.bias, 0, features, width)
        setattr(layer.module, "nf" if isinstance(layer.module, Conv1D) else "out_features", width)
    output, width = parts.output, sizes[0] * size
    axis = 0 if isinstance(output, Conv1D) else 1
    output.weight = changed(output.weight, axis, features_of(places[0], size), width)
    setattr(output, "nx" if isinstance(output, Conv1D) else "in_features", width)
    for key in per_head:
        setattr(module, key, changed(getattr(module, key), 0, places[0], sizes[0]))
    new = dict.fromkeys(_HEAD_COUNTS, sizes[0]) | dict.fromkeys(_KEY_COUNTS, sizes[1])
    new |= {"all_head_size": width, "split_size": width}
    vars(module).update({attribute: count for attribute, count in new.items() if attribute in vars(module)})


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
