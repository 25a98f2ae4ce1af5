"""How a head is taken out."""

from __future__ import annotations

from typing import Literal, get_args

ReplacementMode = Literal["zero", "mean", "uniform", "resample", "counterfactual", "path", "denoise", "optimal"]
Mode = Literal[ReplacementMode, "keep-only"]
MODES: tuple[Mode, ...] = get_args(Mode)
# What stands in the place of a head's output is given batch by batch.
BY_BATCH: tuple[Mode, ...] = ("resample", "counterfactual", "path", "denoise", "optimal")
# Those that need changed texts; `denoise` puts outputs on the original into the changed text, the others the reverse.
WITH_PAIRS: tuple[Mode, ...] = ("counterfactual", "path", "denoise")
