"""The table of rules: every row is an operation of torch, and does what its kind says."""

from __future__ import annotations

import pytest
import torch
import zoo
from torch.overrides import get_overridable_functions, resolve_name
from transformers.activations import ACT2CLS

from headlens.relevance_propagation import op_rules as table
from headlens.relevance_propagation.op_rules import FUNCTIONS, OpKind, whole_kind


def test_every_row_is_a_function_that_a_mode_sees() -> None:
    seen = {f for functions in get_overridable_functions().values() for f in functions}
    missing = [resolve_name(f) or f for f in FUNCTIONS if f not in seen]
    assert missing == []
    assert set(FUNCTIONS.values()) == set(OpKind)


def test_the_documentation_has_a_row_for_every_kind() -> None:
    assert table.__doc__ is not None
    rows = {line.split()[0] for line in table.__doc__.splitlines() if line[:1].isupper()}
    assert {k.name for k in OpKind} <= rows


@pytest.mark.parametrize("function", [f for f, kind in FUNCTIONS.items() if kind in (OpKind.KEEP, OpKind.SCALE)])
def test_functions_that_keep_relevance_go_number_by_number_and_through_zero(function: object) -> None:
    arguments = ((4,),) if function is torch.nn.functional.rms_norm else ()
    x = torch.tensor([0.0, -1.5, 0.3, 2.0])
    y = function(x, *arguments)  # type: ignore[operator]
    assert y[0] == 0
    if not arguments:
        assert torch.allclose(y[2:3], function(x[2:3]))  # type: ignore[operator]


@pytest.mark.parametrize("name", sorted(ACT2CLS))
def test_activation_modules_that_keep_relevance_go_through_zero(name: str) -> None:
    entry = ACT2CLS[name]
    module = entry[0](**entry[1]) if isinstance(entry, tuple) else entry()
    if whole_kind(module) is OpKind.KEEP:
        assert module(torch.zeros(1)).item() == 0
    assert whole_kind(module) is (OpKind.KEEP if name in KEPT else None)


# The others are one function of torch that is in the table (gelu), or have no rule (sigmoid).
KEPT = {
    *("gelu_10", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python_tanh", "gelu_pytorch_tanh", "mish"),
    *("quick_gelu", "relu2"),
}


def test_scales_are_found_by_name() -> None:
    modules = [m for n in ("llama", "qwen3") for m in zoo.ZOO[n].build().modules()]
    assert {type(m).__name__ for m in modules if whole_kind(m)} == {"LlamaRMSNorm", "Qwen3RMSNorm"}
    assert {whole_kind(m) for m in modules} == {OpKind.SCALE, None}
