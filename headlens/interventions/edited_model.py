"""A model with an edit that is trained as one module, and whether such an edit belongs to a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site


class EditedModel(nn.Module):
    """A model and an edit of it as one module that can be trained, saved and shared by processes.

    Args:
        module: the model; only training changes it.
    """

    kind: str

    def __init__(self, module: PreTrainedModel) -> None:
        super().__init__()
        self.module = module
        self._open = False

    @contextmanager
    def edited(self, **how: Any) -> Iterator[AttentionSession]:
        """Runs the model inside `with` in a session, which the arguments are for."""
        with AttentionSession(self.module, **how) as session:
            self._open = True
            try:
                yield session
            finally:
                self._open = False

    def forward(self, **inputs: Any) -> Any:
        """Runs the wrapped model on `inputs` under the edit and returns the model's output.

        Raises:
            RuntimeError: if called outside `opened`, where the edit would have no effect.
        """
        if not self._open:
            raise RuntimeError(f"a {self.kind} model can only run inside `with {self.kind}.opened()`")
        return self.module(**inputs)


def absent_sites(own: Sequence[Site], sites: Sequence[Site]) -> list[Site]:
    """Of the sites that an edit was made for, those which a model does not have, or has with other heads."""
    heads = {(s.stack, s.layer): s.heads for s in sites}
    return [s for s in own if heads.get((s.stack, s.layer)) != s.heads]
