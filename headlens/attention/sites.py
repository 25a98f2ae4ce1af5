"""Sites, the layers of heads of a model: found by a walk over its modules, without running it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import CodeType
from typing import Any, NamedTuple

from torch import nn

from headlens.attention.supported_models import FAMILIES, UNSUPPORTED
from headlens.errors import OptionError, UnsupportedModelError
from headlens.heads import Head, Stack
from headlens.weights.head_slicing import groups_before, heads_left
from headlens.weights.shared_layer_masks import place_in_list

# The name by which a modeling file of transformers asks for its attention function.
_DISPATCH_NAME = "ALL_ATTENTION_FUNCTIONS"
# Attribute of a module that was switched to another attention, which it holds.
OWN = "_headlens_own_attention"
_CROSS = re.compile(r"cross_?att|encoder_att|enc_?dec", re.IGNORECASE)
# Text encoders, and a decoder, that hide later tokens, and whose attention modules do not say so.
_CAUSAL_TYPES = frozenset(
    {*(f"{name}_text_model" for name in ("clip", "clipseg", "groupvit", "metaclip_2", "owlvit", "owlv2")), "doge"}
)
_HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head")


@dataclass(frozen=True)
class Site:
    """One layer of heads: the place where a model computes attention for all of them at once.

    Args:
        stack: encoder, decoder or cross (decoder queries, encoder keys).
        layer: depth in its stack, from 0; with shared weights (ALBERT) the same module is a site at every depth.
        n_heads: number of (query) heads.
        module: qualified name of the attention module.
        shared: whether the module computes several layers.
        left: original numbers of the remaining heads if some were cut out; None if none was.
        shared_by: how many heads of the original share a head of keys and values; 1 where each has its own.
    """

    stack: Stack
    layer: int
    n_heads: int
    module: str
    shared: bool = False
    left: tuple[int, ...] | None = None
    shared_by: int = 1

    @property
    def heads(self) -> list[Head]:
        """The heads of this layer, by their numbers in the original model."""
        return [Head(self.stack, self.layer, h) for h in (range(self.n_heads) if self.left is None else self.left)]

    @property
    def layer_list(self) -> str:
        """Name of the list of layers that the module is in; empty where it is in none."""
        return place_in_list(self.module)[0]

    def __str__(self) -> str:
        return f"{self.stack}.{self.layer}"


class _AttentionModule(NamedTuple):
    name: str
    module: nn.Module
    stack: Stack


def dispatches(module: nn.Module) -> bool:
    """Whether a module asks transformers' registry for its attention function."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and _DISPATCH_NAME in set(_names(code))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    # Functions and comprehensions within have code of their own.
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def find_sites(model: nn.Module) -> list[Site]:
    """All sites of a model, ordered encoder, decoder, cross, then by layer.

    `layer_idx` of the modules is not used: many have none, some have it wrong, and a shared module has one for all.

    Raises:
        UnsupportedModelError: if no attention of the model goes through transformers' registry, or if it has
            two stacks of the same kind (two towers), which have to be looked into one at a time.
    """
    modules = [_AttentionModule(n, m, _stack_of(n, m)) for n, m in model.named_modules() if dispatches(m)]
    if not modules:
        raise _unsupported(model)
    if any(_model_type(m.module) in _CAUSAL_TYPES for m in modules):  # one tower of two, or alone
        _check_list(model, modules)
    stacks = ([m for m in modules if m.stack == stack] for stack in ("encoder", "decoder", "cross"))
    return [site for stack in stacks if stack for site in _number(model, stack)]


def is_decoder_only(model: nn.Module) -> bool:
    """Whether a model is a decoder alone, whose tokens see none after them."""
    return {_stack_of(name, module) for name, module in model.named_modules() if dispatches(module)} == {"decoder"}


def _number(model: nn.Module, modules: list[_AttentionModule]) -> list[Site]:
    """The sites of the modules of one stack, with the numbers of their layers."""
    _check_list(model, modules)
    indices = [index for _, index in (place_in_list(m.name) for m in modules) if index is not None]
    # Hybrids have attention in some blocks only: the block's number is the layer, unless blocks nest (Swin).
    layers: Iterable[int] = indices if len(set(indices)) == len(modules) else range(len(modules))
    if (repeated := _repeated(modules)) is not None:
        modules, layers = repeated, range(len(repeated))
    return [
        Site(m.stack, layer, _n_heads(m), m.name, repeated is not None, heads_left(m.module), groups_before(m.module))
        for layer, m in zip(layers, modules, strict=True)
    ]


def _check_list(model: nn.Module, modules: list[_AttentionModule]) -> None:
    """Refuses modules that are in more than one list of layers."""
    lists = {place_in_list(m.name)[0] for m in modules}
    if len(lists) > 1:
        kind = "encoder" if any(m.stack == "encoder" for m in modules) else modules[0].stack
        raise UnsupportedModelError(
            f"{type(model).__name__} has more than one {kind} stack: {', '.join(sorted(lists))}.",
            "Give headlens one tower at a time, such as model.text_model.",
        )


def _model_type(module: nn.Module) -> str:
    return str(getattr(getattr(module, "config", None), "model_type", ""))


def _repeated(modules: list[_AttentionModule]) -> list[_AttentionModule] | None:
    """The modules in the order they run where fewer modules compute all layers (ALBERT); None if each runs once."""
    config = getattr(modules[0].module, "config", None)
    groups = getattr(config, "num_hidden_groups", None)
    if groups is None or len(modules) % groups:
        return None
    size, depth = len(modules) // groups, int(getattr(config, "num_hidden_layers", groups))
    # The group of every depth, as modeling_albert.py computes it.
    starts = [int(layer / (depth / groups)) * size for layer in range(depth)]
    order = [modules[start + inner] for start in starts for inner in range(size)]
    return order if len(order) > len(modules) else None


def _stack_of(name: str, module: nn.Module) -> Stack:
    parts = name.split(".")
    if _CROSS.search(".".join(parts[-2:])):
        return "cross"
    config = getattr(module, "config", None)
    # A decoder may have been made into an encoder, such as a model of text embeddings.
    said = None if getattr(config, "is_encoder_decoder", False) else getattr(config, "is_causal", None)
    if said is None:
        is_hidden = "decoder" in parts or getattr(module, "is_causal", False)
        said = is_hidden or _model_type(module) in _CAUSAL_TYPES
    return "decoder" if said else "encoder"


def _n_heads(attention: _AttentionModule) -> int:
    # The configuration is that of the original.
    if (left := heads_left(attention.module)) is not None:
        return len(left)
    for owner in (attention.module, getattr(attention.module, "config", None)):
        for attribute in _HEAD_COUNTS:
            count: Any = getattr(owner, attribute, None)
            if isinstance(count, int):
                return count
    raise UnsupportedModelError(
        f"The attention module {attention.name} ({type(attention.module).__name__}) does not say how many heads it "
        "has.",
        f"headlens looks for one of: {', '.join(_HEAD_COUNTS)}.",
    )


def eager_function(module: nn.Module) -> Callable[..., Any]:
    """The model's own eager attention: the one it was switched to, see `model_normalizer.switch`, or that of its file.

    Raises:
        UnsupportedModelError: if that file has none.
    """
    switched: Callable[..., Any] | None = vars(module).get(OWN)
    return file_function(module) if switched is None else switched


def file_function(module: nn.Module) -> Callable[..., Any]:
    """The eager attention function of the file that defines the module's forward pass.

    Raises:
        UnsupportedModelError: if that file has none.
    """
    return _eager_function(inspect.unwrap(type(module).forward))


@cache
def _eager_function(forward: Callable[..., Any]) -> Callable[..., Any]:
    # Most files call it eager_attention_forward, a few put a word in front; the forward pass names the right one.
    used = {n for n in _names(forward.__code__) if n.endswith("eager_attention_forward")} & set(forward.__globals__)
    if len(used) != 1:
        raise UnsupportedModelError(
            f"{forward.__qualname__} has no eager attention function headlens can call.",
            "headlens needs a model whose file defines eager_attention_forward.",
        )
    function: Callable[..., Any] = forward.__globals__[used.pop()]
    return function


def sdpa_function(module: nn.Module) -> Callable[..., Any]:
    """The sdpa attention the model would use; a few files (Doge) have one of their own."""
    function: Callable[..., Any] = inspect.unwrap(type(module).forward).__globals__[_DISPATCH_NAME]["sdpa"]
    return function


def _unsupported(model: nn.Module) -> UnsupportedModelError:
    classes = sorted({type(m).__name__ for m in model.modules() if re.search(r"Attention$|Attn$", type(m).__name__)})
    if classes:
        reason = (
            f"{type(model).__name__} computes attention itself ({', '.join(classes)}), "
            "not through transformers' attention registry; headlens could neither observe nor change anything."
        )
    else:
        reason = f"{type(model).__name__} has no attention heads that headlens can find."
    return UnsupportedModelError(
        reason,
        f"Models that work: {', '.join(f.title for f in FAMILIES)} and any other model that uses the registry; "
        f"models that do not: {', '.join(UNSUPPORTED)}.",
    )


def check_heads(heads: Iterable[Head], sites: Sequence[Site]) -> None:
    """Raises OptionError on a head that is at none of these sites."""
    known = {h for site in sites for h in site.heads}
    for head in heads:
        if head not in known:
            raise OptionError(f"There is no head {head}.", f"The model has {inventory(sites)}.")


def inventory(sites: Sequence[Site]) -> str:
    """The heads of a model in words, such as `encoder.0 to encoder.11 with 12 heads each`."""
    stacks = [[s for s in sites if s.stack == stack] for stack in dict.fromkeys(s.stack for s in sites)]
    some_cut = any(s.left is not None for s in sites)
    most = "up to " * some_cut
    text = "; ".join(f"{part[0]} to {part[-1]} with {most}{max(s.n_heads for s in part)} heads each" for part in stacks)
    return f"{text}; some heads were cut out, the others keep their numbers" if some_cut else text
