"""Running batches in parts when the memory of a device does not suffice."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch

from headlens.errors import ModelError

Row = TypeVar("Row")
Result = TypeVar("Result")
# Messages of devices that raise no error class of their own: Apple's MPS, and torch's allocator for the CPU.
_MESSAGES = ("out of memory", "can't allocate memory", "not enough memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(m in str(error).lower() for m in _MESSAGES)


def free_memory(device: torch.device) -> int | None:
    """Returns how many bytes are free on a device; None where that cannot be told."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    sizes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    known = device.type == "cpu" and "MemAvailable" in sizes
    return 1024 * (sizes["MemAvailable"] + sizes.get("SwapFree", 0)) if known else None


def free(device: torch.device) -> None:
    """Releases the memory that torch holds in reserve, after a failure and before the next attempt."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def attempt(device: torch.device, run: Callable[[], Result]) -> Result | None:
    """Runs a function and returns its result; None if memory did not suffice."""
    try:
        return run()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # Outside of the handler, whose exception keeps the failed pass's tensors alive.
    free(device)
    return None


@dataclass
class SplitWhenOutOfMemory(Generic[Row, Result]):
    """Runs batches, each in as many parts as memory requires.

    Args:
        device: device that the batches run on.
        run: function from some rows of a batch to their result, never None; a run that fails must leave nothing behind.
        join: function from the results of two parts, in order, to that of both.
        size: function from some rows to their size in tokens, padding included.
        warn: function that is called with a message once, before the first batch is halved.
        row: name of a row in error messages.
    """

    device: torch.device
    run: Callable[[Sequence[Row]], Result]
    join: Callable[[Result, Result], Result]
    size: Callable[[Sequence[Row]], int]
    warn: Callable[[str], None]
    row: str = "example"
    # The smallest size, in tokens, that memory did not suffice for.
    too_many: int | None = None

    def __call__(self, rows: Sequence[Row]) -> Result:
        """Runs a batch and returns its result.

        Raises:
            ModelError: if memory does not suffice for a single row.
        """
        size = self.size(rows)
        if self.too_many is None or size < self.too_many or len(rows) == 1:
            result = attempt(self.device, lambda: self.run(rows))
            if result is not None:
                return result
            if len(rows) == 1:
                raise ModelError(
                    f"{self.device} does not have enough memory for a single {self.row} of {size} tokens.",
                    "Use --device cpu or --dtype bfloat16.",
                )
            self._remember(size)
        middle = len(rows) // 2
        return self.join(self(rows[:middle]), self(rows[middle:]))

    def _remember(self, size: int) -> None:
        if self.too_many is None:
            self.warn(
                f"{self.device} does not have enough memory for a batch of {size} tokens, so batches are halved. "
                "A smaller --batch-tokens avoids the failed attempts."
            )
        self.too_many = size
