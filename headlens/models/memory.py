"""When a device has no memory left."""

from __future__ import annotations

import gc

import torch

# What devices say that raise no error class of their own: Apple's MPS, and torch's allocator for the CPU.
_MESSAGES = ("out of memory", "can't allocate memory", "not enough memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(m in str(error).lower() for m in _MESSAGES)


def free(device: torch.device) -> None:
    """Give back what torch holds in reserve, after a failure and before the next try."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
