"""How a head is taken out."""

from __future__ import annotations

from typing import Literal, get_args

ReplacementMode = Literal["zero", "mean", "uniform"]
Mode = Literal["zero", "mean", "uniform", "keep-only"]
MODES: tuple[Mode, ...] = get_args(Mode)
