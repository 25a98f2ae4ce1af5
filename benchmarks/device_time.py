"""The time that work takes on a device."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def milliseconds(run: Callable[[], object], device: str = "cuda", *, queued: bool = False) -> float:
    """CPU time of all threads; on a GPU the time between two events.

    Args:
        run: what is timed.
        device: cpu or cuda.
        queued: whether the GPU first waits until its queue has filled, so that what the processor takes to start the
            kernels is not in the time.
    """
    if device == "cpu":
        begun = time.process_time()
        run()
        return 1000 * (time.process_time() - begun)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    if queued:
        torch.cuda._sleep(4_000_000)
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)
