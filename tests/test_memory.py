"""Errors that mean "no memory left", as devices word them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from saved import build

from headlens.errors import ModelError
from headlens.memory import free, free_memory, is_out_of_memory
from headlens.models import loading
from headlens.models.model_options import ModelOptions


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:115] DefaultCPUAllocator: can't allocate memory: you tried ..."),
        MemoryError(),
    ],
)
def test_lack_of_memory(error: Exception) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", [RuntimeError("mat1 and mat2 shapes"), ValueError("out of memory"), OSError(28, "")])
def test_anything_else(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_a_real_failure_of_the_allocator() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    free(torch.device("cpu"))


def test_what_is_free_is_told_of_this_machine() -> None:
    free = free_memory(torch.device("cpu"))
    if Path("/proc/meminfo").exists():
        assert free is not None
        assert 10**6 < free < 10**15
    assert free_memory(torch.device("meta")) is None


@pytest.mark.parametrize(
    ("settings", "kind", "size"),
    [({}, "float32", 4.0), ({"dtype": "bfloat16"}, "bfloat16", 2.0), ({"quantize": "4bit"}, "4bit", 0.5)],
)
def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any, kind: str, size: float
) -> None:
    model = build("BertModel")
    model.save_pretrained(tmp_path)
    parameters = sum(p.numel() for p in model.parameters())
    options = ModelOptions(**settings)
    loading.check_room("tiny", parameters, options, torch.device("cpu"))
    monkeypatch.setattr(loading, "free_memory", lambda _: int(parameters * size) - 1)
    monkeypatch.setattr(loading, "read_weights", lambda *_: pytest.fail("it is loaded"))
    with pytest.raises(ModelError, match=rf"has {parameters:,} weights, which take .* GB as {kind}; .* free on cpu"):
        loading.load(str(tmp_path), options)
    monkeypatch.setattr(loading, "free_memory", lambda _: None)
    loading.check_room("tiny", parameters, options, torch.device("cpu"))
