"""Which of several processes this is, known before torch is."""

from __future__ import annotations

import os


def rank() -> int:
    """The number that torchrun gave this process; 0 without torchrun."""
    return int(os.environ.get("RANK", "0")) if "TORCHELASTIC_RUN_ID" in os.environ else 0
