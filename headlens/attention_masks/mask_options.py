"""The options of the attention mask that a model runs under: `--mask` for every command that runs one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from headlens.attention_masks.named_masks import KeepOrder
from headlens.errors import OptionError, counted
from headlens.option_values import positive_share
from headlens.options import MASK, Checked, option

MASK_RULES = "--mask-rules"
_RULES: dict[str, Any] = {"panel": MASK, "group": "mask-rules"}
MASK_LAYERS = f"{MASK_RULES} layers"
# 6, 6-11, or first:3 and last:3
_PART = re.compile(r"\s*(?:([0-9]{1,6})\s*(?:-\s*([0-9]{1,6}))?|(first|last)\s*:\s*([0-9]{1,6}))\s*")
_LAYERS = "Write 6-11, 0,2,4-6, first:3, last:3 or all; layers count from 0."


@dataclass(frozen=True)
class MaskOptions(Checked):
    """Which keys each query may attend to, and in which layers.

    Raises:
        OptionError: if options do not go together, or layers cannot be read.
    """

    mask: str | None = option(
        None,
        "Positions to which queries may attend: a mask.safetensors, its folder, or a pattern such as "
        "'window:3|global:1', strided or star; window:3 is three keys to each side, and global:1 the first token.",
        MASK,
        metavar="MASK",
        shown="everywhere",
    )
    layers: str | None = option(
        None,
        "Layers to which the mask applies: 6-11, 0,2,4-6, first:3, last:3.",
        **_RULES,
        metavar="LAYERS",
        shown="all",
        flags=("mask-layers",),
    )
    keep: float | None = option(
        None,
        "For a mask learned by train-dam: keep this share of the positions of every sentence and head, ranked by "
        "learned importance, instead of those with P > 1/2.",
        **_RULES,
        metavar="SHARE",
        shown="P > 1/2",
        parse=positive_share,
        needs="mask",
    )
    keep_order: KeepOrder = option(
        "most",
        "Which positions are kept: the most important, the least important, or random ones.",
        **_RULES,
        needs="keep",
    )
    no_diagonal: bool = option(
        False,
        "Mask the diagonal, so that no token attends to itself.",
        **_RULES,
        excludes="drop_random",
    )
    drop_random: bool = option(
        False,
        "As a control, mask the same number of random positions instead of the diagonal.",
        **_RULES,
    )
    mask_seed: int = option(
        0, "Random seed for the positions of drop-random.", **_RULES, at_least=0, needs="drop_random"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers is not None and not self.given:
            raise OptionError(f"{MASK_LAYERS} says where a mask applies, and none is given.", "Give --mask as well.")
        read_layers(self.layers, flag=MASK_LAYERS)

    @property
    def given(self) -> bool:
        """Whether the options ask for a mask, or for a control without the diagonal or as many random positions."""
        return self.mask is not None or self.no_diagonal or self.drop_random


def read_layers(text: str | None, count: int = 0, flag: str = "--layers") -> tuple[int, ...] | None:
    """Reads numbers of layers: `6-11`, `0,2,4-6`, `first:3`, `last:3`, `all`; None stands for all.

    Args:
        text: value of the option.
        count: layers of the model; 0 where only the form of the text matters, as before a model is loaded.
        flag: the option, for errors.

    Raises:
        OptionError: if they cannot be read, or the model has fewer.
    """
    if text is None or text.strip() == "all":
        return None
    numbers: list[int] = []
    for part in str(text).split(","):
        refusal = OptionError(f"{flag} {text!r} is not a range of layers.", _LAYERS)
        if (match := _PART.fullmatch(part)) is None:
            raise refusal
        first, last, end, number = match.groups()
        chosen = range(int(first), int(last or first) + 1) if first else range(int(number))
        if not chosen:
            raise refusal
        if end and 0 < count < len(chosen):
            problem = f"{flag} {text!r}: there are {counted(count, 'layer')}."
            raise OptionError(problem, f"Give at most {end}:{count}.")
        numbers += range(max(count - len(chosen), 0), count) if end == "last" else chosen
    return tuple(dict.fromkeys(numbers))
