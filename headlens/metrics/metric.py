"""What a metric is, and the observer that runs metrics over a corpus."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from torch import Tensor

from headlens.attention.contract import AttentionCall, Observer
from headlens.attention.sites import Site
from headlens.heads import STACKS, Head, HeadTable, Stack
from headlens.metrics.accumulator import Accumulator, Array
from headlens.metrics.attention_view import CallView
from headlens.options import Level

# One site's sums over a corpus: name -> array whose first axis is the head.
Sums = Mapping[str, Array]


class Metric(ABC):
    """A quantity of every head: parameters only, and two pure functions.

    `measure` reduces one attention call to named sums; `table` turns the sums of all sites over a corpus into a
    table. Metrics with the same columns for every site only say how one site's columns are computed.
    """

    name: ClassVar[str]
    stacks: ClassVar[tuple[Stack, ...]] = STACKS

    @abstractmethod
    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        """Sums of one call, the head first: integers for counts, `view.sums_dtype` for the rest."""

    def table(self, sums: Mapping[Site, Sums]) -> HeadTable | None:
        """The table of all sites; None if nothing was measured."""
        heads: list[Head] = []
        parts: list[Mapping[str, Array]] = []
        for site, own in sums.items():
            columns = self.compute(own)
            shape = next(iter(columns.values())).shape
            heads += [h for h in site.heads for _ in range(int(np.prod(shape[1:])))]
            parts.append({k: np.reshape(v, -1) for k, v in columns.items()})
        if not parts:
            return None
        return HeadTable.from_columns(heads, **{k: np.concatenate([p[k] for p in parts]) for k in parts[0]})

    def compute(self, sums: Sums) -> Mapping[str, Array]:
        """Columns of one site: each (heads,), or (heads, rows) for tables with several rows per head."""
        raise NotImplementedError


class Statistics(Observer):
    """Runs metrics over every attention call and keeps nothing but their sums.

    Args:
        metrics: what to measure.
        sites: the sites of the model, for the numbers of heads.
        level: token- or word-level attention for metrics that are not about words anyway.
    """

    parts = True

    def __init__(self, metrics: Sequence[Metric], sites: Sequence[Site], *, level: Level = "token") -> None:
        self.metrics = tuple(metrics)
        self.sites = tuple(sites)
        self.level = level
        self.totals = Accumulator()

    def observe(self, call: AttentionCall) -> None:
        """Applies every metric that covers the call's stack, and adds the resulting sums to the pending totals."""
        view = CallView(call, self.level)
        for metric in self.metrics:
            if call.site.stack in metric.stacks:
                self.totals.add(metric.name, str(call.site), metric.measure(view))

    def prepare(self) -> None:
        """Fetches the pending sums of the forward pass from the device and adds them up, without committing them."""
        self.totals.fetch()

    def commit(self) -> None:
        """Adds the pending sums of the forward pass to the committed totals of the corpus."""
        self.totals.commit()

    def discard(self) -> None:
        """Drops the pending sums of a failed forward pass; the committed totals stay unchanged."""
        self.totals.discard()

    def sums(self, metric: Metric) -> dict[Site, Sums]:
        """What a metric's `measure` added up to, by site."""
        found = self.totals.of(metric.name)
        return {site: found[str(site)] for site in self.sites if str(site) in found}

    def tables(self) -> dict[str, HeadTable]:
        """One table per metric that measured anything, by metric name."""
        return {m.name: table for m in self.metrics if (table := m.table(self.sums(m))) is not None}
