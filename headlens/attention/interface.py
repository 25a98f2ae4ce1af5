"""The attention and mask functions headlens registers with transformers.

One pair per kernel. A name registered only for attention would get no mask at all: models would lose their
padding and causal masks in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask, sdpa_mask

from headlens.errors import SelfCheckError

Kernel = Literal["eager", "sdpa"]
NAMES: dict[Kernel, str] = {"eager": "headlens", "sdpa": "headlens_sdpa"}
# Where a session leaves itself for the registered function to find: on the modules of its own model, so that
# nothing is global and two sessions on two models do not meet.
ATTRIBUTE = "_headlens_session"

Attend = Callable[..., tuple[Tensor, Tensor | None]]


def _attention(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    attend: Attend | None = getattr(module, ATTRIBUTE, None)
    if attend is None:
        raise SelfCheckError(
            f"{type(module).__name__} computed attention at a place headlens did not find.",
            "Its heads would be missing from every result; please report the model.",
        )
    return attend(module, *args, **kwargs)


def _full_sdpa_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    # sdpa's shortcut "no mask, is_causal" would lose causality as soon as an edit adds a mask.
    kwargs["allow_is_causal_skip"] = False
    mask: Tensor | None = sdpa_mask(*args, **kwargs)
    return mask


def register() -> None:
    """Make both names known to transformers; doing it twice changes nothing."""
    AttentionInterface.register(NAMES["eager"], _attention)
    AttentionMaskInterface.register(NAMES["eager"], eager_mask)
    AttentionInterface.register(NAMES["sdpa"], _attention)
    AttentionMaskInterface.register(NAMES["sdpa"], _full_sdpa_mask)


register()
