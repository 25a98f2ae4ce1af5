"""Models without gradients of their parameters, for backward passes that need none of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Switches the gradients of all parameters of a model off inside `with`, and back on afterwards."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    try:
        for parameter in trainable:
            parameter.requires_grad = False
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad = True
