"""What an attention module does with the output of its heads, as its code is written."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from functools import cache
from typing import Any

from torch import nn

from headlens.errors import UnsupportedModelError

# What modeling files of transformers call the function that they get from the registry of attention functions.
_INTERFACE = "attention_interface"
# Methods that leave the numbers of a tensor, and the order of its features, as they are.
_VIEWS = frozenset({"reshape", "view", "view_as", "contiguous", "flatten", "to", "type_as"})
# What is read of a tensor besides its numbers.
_ABOUT = frozenset({"shape", "size", "dtype", "device", "ndim"})


def module_after_heads(module: nn.Module) -> str:
    """Returns the name of the submodule that the output of an attention module's heads goes through first.

    The forward pass of the module's class is read: from the call of the attention function on, the first submodule that
    is called with its output, of which nothing but the shape was changed. Names of classes say nothing here: a gate or
    a normalisation between heads and output projection, of which some models have one, is seen.

    Args:
        module: an attention module, whose class was written for transformers' registry.

    Returns:
        The name, or an empty text where the output is returned as it is (BERT, whose projection stands in the module
        around), or the code cannot be read.

    Raises:
        UnsupportedModelError: if something else is done with the output first, such as multiplying it by a gate, or if
            it goes through a normalisation.
    """
    name = _after_heads(inspect.unwrap(type(module).forward))
    # Of a matrix the weights have two dimensions, however it is stored; those of a normalisation have one.
    weight = getattr(getattr(module, name, None), "weight", None) if name else None
    if name is None or (name and getattr(weight, "ndim", 0) < 2):
        raise UnsupportedModelError(
            f"{type(module).__name__} does something else with the output of its heads before the output projection, "
            "such as multiplying it by a gate: what a head adds does not follow from the weights of that projection.",
            "Heads of this model can be measured, and set to 0, but neither projected nor cut out.",
        )
    return name


@cache
def _after_heads(forward: Callable[..., Any]) -> str | None:
    """The name of the submodule, empty where there is none; None where the output is changed first."""
    names = set[str]()  # of tensors with the numbers that the attention function gave
    for statement in _statements(forward):
        value, assigned = statement.value, isinstance(statement, ast.Assign | ast.AnnAssign)
        if assigned and _calls_interface(value):
            names = {_first_name(statement)} - {""}
        elif names and value is not None:
            if name := _called_with(value, names):
                return name
            if isinstance(statement, ast.Return):
                parts = value.elts if isinstance(value, ast.Tuple) else [value]
                return None if any(_is_changed(part, names) for part in parts if _viewed(part) not in names) else ""
            if assigned and _viewed(value) in names:
                names.add(_first_name(statement))
            elif _is_changed(statement.target if isinstance(statement, ast.AugAssign) else value, names):
                return None
    return ""


def _statements(forward: Callable[..., Any]) -> list[Any]:
    """The statements of a function that have a value, in the order of its lines; none where there is no source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(forward)))
    except (OSError, TypeError):
        return []
    kinds = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Expr
    return sorted((node for node in ast.walk(tree) if isinstance(node, kinds)), key=lambda node: node.lineno)


def _called_with(value: ast.expr, names: set[str]) -> str:
    """The name of the submodule that is called with a tensor of these names first; empty where there is none."""
    calls = (node for node in ast.walk(value) if isinstance(node, ast.Call) and node.args)
    return next((name for call in calls if _viewed(call.args[0]) in names and (name := _submodule(call))), "")


def _calls_interface(value: ast.expr | None) -> bool:
    """Whether a value is what the attention function gives, or the first part of it."""
    value = value.value if isinstance(value, ast.Subscript) else value
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == _INTERFACE


def _first_name(statement: ast.Assign | ast.AnnAssign) -> str:
    """The name that is assigned to, of several the first."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    first = target.elts[0] if isinstance(target, ast.Tuple) else target
    return first.id if isinstance(first, ast.Name) else ""


def _submodule(call: ast.Call) -> str:
    """The name of a submodule that is called, as in `self.o_proj(…)`; empty for other calls."""
    function = call.func
    if not isinstance(function, ast.Attribute):
        return ""
    return function.attr if isinstance(function.value, ast.Name) and function.value.id == "self" else ""


def _viewed(value: ast.expr) -> str:
    """The name of the tensor that an expression gives in another shape at most; empty for all others."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _VIEWS:
        value = value.func.value
    return value.id if isinstance(value, ast.Name) else ""


def _is_changed(value: ast.expr, names: set[str]) -> bool:
    """Whether an expression has the numbers of a tensor of these names in it, and not its shape alone."""
    about = {
        id(node.value)
        for node in ast.walk(value)
        if isinstance(node, ast.Attribute) and node.attr in _ABOUT and isinstance(node.value, ast.Name)
    }
    return any(isinstance(n, ast.Name) and n.id in names and id(n) not in about for n in ast.walk(value))
