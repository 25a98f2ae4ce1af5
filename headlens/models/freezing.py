"""Backward passes that are not about parameters need no gradients of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Inside, no parameter asks for a gradient."""
    asking = [p for p in model.parameters() if p.requires_grad]
    try:
        for parameter in asking:
            parameter.requires_grad = False
        yield
    finally:
        for parameter in asking:
            parameter.requires_grad = True
