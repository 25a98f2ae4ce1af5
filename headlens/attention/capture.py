"""Observer that keeps the attention maps of a few sentences, for figures."""

from __future__ import annotations

from torch import Tensor

from headlens.attention.edits_and_observers import AttentionCall, Observer
from headlens.attention.sites import Site
from headlens.errors import SelfCheckError


class Capture(Observer):
    """Keeps the weights of the last forward pass, by site: (batch, heads, query, key) on the CPU, float32.

    It is for single sentences; statistics over a corpus reduce maps at once instead (`headlens.metrics`).
    """

    def __init__(self) -> None:
        self.weights: dict[Site, Tensor] = {}
        self._pending: dict[Site, Tensor] = {}

    def observe(self, call: AttentionCall) -> None:
        """Keeps the attention weights of one call as float32 on the CPU; they are pending until `commit`."""
        if call.weights is None:
            raise SelfCheckError(f"{call.site}: there are no attention weights to keep.")
        self._pending[call.site] = call.weights.detach().float().cpu()

    def commit(self) -> None:
        """Replaces the kept maps by those of the pass that succeeded."""
        self.weights, self._pending = self._pending, {}

    def discard(self) -> None:
        """Drops the maps of the pass that failed; those of the pass before stay."""
        self._pending = {}
