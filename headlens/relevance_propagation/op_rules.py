"""The rules of relevance, one for each kind of operation: the table that decides what a model's parts do.

A model runs as it is; every torch function it calls on something that depends on its inputs is looked up here. What
stands in no row has no rule and is refused, with the name of the module that called it.

======== ================================= ============================================= =========================
kind     operations                        epsilon, attnlrp                              alpha-beta
======== ================================= ============================================= =========================
MOVE     reshape, select, stack, cast,     relevance goes where the number came from     the same
         negate
LINEAR   fully connected layers            R_u = sum_v W_uv u / v · R_v; the bias keeps  positive and negative
                                           b / v · R_v                                   parts apart, with the
                                                                                         bias shared by the inputs
ADD      sums; a constant is a bias        R_u = u / (sum of all) · R                    parts apart; a constant
                                                                                         gets nothing
MULTIPLY a factor; two activations         unchanged; half to each                       the same
DIVIDE   by a constant                     unchanged                                     the same
REDUCE   sums and means over an axis       as ADD                                        refused
NORM     LayerNorm                         linear with the deviation held constant; the  its Jacobian, parts apart
                                           mean is a sum; the shift is a bias
KEEP     activation functions with         unchanged                                     unchanged
         f(0) = 0
SCALE    RMSNorm                           unchanged: its scale is held constant         the same
LOOK_UP  embeddings                        where relevance arrives                       the same
======== ================================= ============================================= =========================

Attention is not looked up operation by operation. `epsilon` holds its weights constant: o = sum_k a_k v_k is linear in
the values. `attnlrp` shares products in halves (Achtibat et al. 2024, proposition 3.3) and linearises the softmax
(proposition 3.1). `alpha-beta` takes it as one function of queries, keys and values with its Jacobian.

`logit-attribution` goes by the rules of `epsilon`, but does not enter heads and MLPs: see `DirectRules`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class OpKind(Enum):
    """What an operation is to relevance; the rows of the table."""

    MOVE = "move"
    LINEAR = "linear"
    ADD = "add"
    MULTIPLY = "multiply"
    DIVIDE = "divide"
    REDUCE = "reduce"
    NORM = "norm"
    KEEP = "keep"
    SCALE = "scale"
    LOOK_UP = "look up"


def _both(*names: str) -> tuple[Callable[..., Any], ...]:
    """Functions of torch that are methods of tensors, too, in both forms."""
    return tuple(getattr(owner, name) for name in names for owner in (Tensor, torch))


_ROWS: dict[OpKind, tuple[Callable[..., Any], ...]] = {
    OpKind.MOVE: (
        *_both("amax", "chunk", "flatten", "neg", "permute", "reshape", "split", "squeeze", "transpose", "unbind"),
        *_both("unsqueeze"),
        *(Tensor.view, Tensor.expand, Tensor.contiguous, Tensor.clone, Tensor.__getitem__, Tensor.to, Tensor.float),
        # The session refuses models in training, so that nothing is dropped.
        *(Tensor.type_as, torch.cat, torch.stack, functional.dropout),
    ),
    OpKind.LINEAR: (functional.linear, torch.addmm),
    OpKind.ADD: (*_both("add", "sub"), Tensor.add_),
    OpKind.MULTIPLY: (*_both("mul"), Tensor.mul_),
    OpKind.DIVIDE: _both("div"),
    OpKind.REDUCE: _both("sum", "mean"),
    OpKind.NORM: (functional.layer_norm,),
    OpKind.KEEP: (
        *(functional.gelu, functional.silu, functional.mish, functional.relu, functional.relu6, functional.leaky_relu),
        *_both("tanh", "relu"),
    ),
    OpKind.SCALE: (functional.rms_norm,),
    OpKind.LOOK_UP: (functional.embedding,),
}
FUNCTIONS: dict[Callable[..., Any], OpKind] = {f: kind for kind, functions in _ROWS.items() for f in functions}

# Names of the first parameters, by which a call may give them, too.
_PARAMETERS: dict[Callable[..., Any], tuple[str, ...]] = {
    functional.linear: ("input", "weight", "bias"),
    torch.addmm: ("input", "mat1", "mat2"),
    functional.layer_norm: ("input", "normalized_shape", "weight", "bias", "eps"),
    functional.leaky_relu: ("input", "negative_slope", "inplace"),
    **dict.fromkeys((functional.relu, functional.relu6, functional.silu, functional.mish), ("input", "inplace")),
    **dict.fromkeys((torch.cat, torch.stack), ("tensors",)),
    **{f: ("input", "other") for kind in (OpKind.ADD, OpKind.MULTIPLY, OpKind.DIVIDE) for f in _ROWS[kind]},
}
# `x += y` goes by the rule of `x + y`, whose result takes the place of x.
IN_PLACE: dict[Callable[..., Any], Callable[..., Any]] = {Tensor.add_: Tensor.add, Tensor.mul_: Tensor.mul}
# The further arguments that rules of these kinds read; those of other kinds are their functions' own affair.
_SETTINGS: dict[OpKind, set[str]] = {
    OpKind.LINEAR: {"alpha", "beta"},
    OpKind.ADD: {"alpha"},
    OpKind.MULTIPLY: set(),
    OpKind.DIVIDE: set(),
}


def arrange_arguments(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Returns the arguments of a call with the first parameters by place, however they were given.

    Raises:
        LookupError: if the call writes into one of its tensors, or has a setting that no rule knows.
    """
    names = _PARAMETERS.get(function, ("input",))
    given = {name: value for name, value in kwargs.items() if value is not None}
    placed = list(args)
    last = max((place for place, name in enumerate(names) if name in given), default=-1)
    placed += [given.pop(name, None) for name in names[len(args) : last + 1]]
    if "out" in given or dict(zip(names, placed, strict=False)).get("inplace"):
        raise LookupError("which writes into one of its tensors")
    if unknown := given.keys() - _SETTINGS.get(FUNCTIONS[function], given.keys()):
        raise LookupError(f"with {', '.join(sorted(unknown))}")
    return placed, given


# Modules that put one function of their input together from several operations, by their rows.
_WHOLE = {
    OpKind.KEEP: re.compile(
        r"(New|Fast|Quick|Accurate|Clipped)GELUActivation|GELUTanh|MishActivation|ReLUSquaredActivation"
    ),
    OpKind.SCALE: re.compile(r"\w*RMSNorm|T5LayerNorm"),
}


def whole_kind(module: nn.Module) -> OpKind | None:
    """The row of a module that is one function of several operations; None for other modules."""
    return next((kind for kind, names in _WHOLE.items() if names.fullmatch(type(module).__name__)), None)
