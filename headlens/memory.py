"""When a device has no memory left: batches are run in parts."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from headlens.errors import ModelError

Row = TypeVar("Row")
Found = TypeVar("Found")
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


def attempt(device: torch.device, run: Callable[[], Found]) -> Found | None:
    """What a function gives; None when memory did not suffice."""
    try:
        return run()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # Outside of the handler, whose exception keeps the failed pass's tensors alive.
    free(device)
    return None


@dataclass
class SplitWhenOutOfMemory(Generic[Row, Found]):
    """Runs batches, each in as many parts as memory asks for.

    Args:
        device: where.
        run: what some rows of a batch give, never None; a run that failed must leave nothing behind.
        join: what two parts give together, in order.
        size: of some rows in tokens, padding included.
        warn: called once, before the first batch is halved.
        row: what a row is called.
    """

    device: torch.device
    run: Callable[[Sequence[Row]], Found]
    join: Callable[[Found, Found], Found]
    size: Callable[[Sequence[Row]], int]
    warn: Callable[[str], None]
    row: str = "example"
    # Tokens that are known to be too many.
    too_many: int | None = None

    def __call__(self, rows: Sequence[Row]) -> Found:
        """What a batch gives.

        Raises:
            ModelError: if memory does not suffice for a single row.
        """
        size = self.size(rows)
        if self.too_many is None or size < self.too_many or len(rows) == 1:
            found = attempt(self.device, lambda: self.run(rows))
            if found is not None:
                return found
            if len(rows) == 1:
                raise ModelError(
                    f"{self.device} has no memory for a single {self.row} of {size} tokens.",
                    "Use --device cpu or --dtype bfloat16.",
                )
            self._note(size)
        middle = len(rows) // 2
        return self.join(self(rows[:middle]), self(rows[middle:]))

    def _note(self, size: int) -> None:
        if self.too_many is None:
            self.warn(
                f"{self.device} has no memory for a batch of {size} tokens: batches are halved. "
                "A smaller --batch-tokens saves the failed attempts."
            )
        self.too_many = size
