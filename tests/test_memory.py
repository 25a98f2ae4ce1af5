"""Errors that mean "no memory left", as devices word them."""

from __future__ import annotations

import pytest
import torch

from headlens.memory import free, is_out_of_memory


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
