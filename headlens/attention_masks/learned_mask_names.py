"""Names of learned masks, of their files and classes of positions, for options and tables, which need no torch."""

from __future__ import annotations

from typing import Literal

KeepOrder = Literal["most", "least", "random"]
UNMASKED = "unmasked"  # the run of a sweep that trains without a mask
CLASSES = ("special", "diagonal", "neighbourhood", "rest")  # of positions, see `LearnedMask.positions`
PROBABILITIES = "probabilities.safetensors"  # P of a learned mask, beside its file


def kept_text(path: str, order: str, keep: float) -> str:
    """Returns how a mask of learned importance is written: the learned mask, `@`, the order, `=` and the share."""
    return f"{path.removesuffix('/mask.safetensors')}@{order}={keep:.10g}"
