"""The metrics that `headlens classify` measures: every file of `headlens.metrics`, and those of other packages."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from inspect import getmembers, isabstract, isclass
from pkgutil import iter_modules

import headlens.metrics
from headlens.metrics.metric import Metric

# Packages of others register a metric of theirs by an entry point of this group.
ENTRY_POINTS = "headlens.metrics"
# The order of the columns of heads.csv; other metrics follow by name.
_FIRST = (
    "confidence",
    "entropy",
    "positions",
    "mass",
    "rare",
    "norms",
    "same_word",
    "coreference",
    "pair",
    "alignment",
    "monotonicity",
    "syntax",
    "pos",
)


@cache
def registered_metrics() -> tuple[type[Metric], ...]:
    """Returns the classes of all metrics, in the order of their columns.

    Raises:
        ValueError: if two metrics have one name.
    """
    metrics: dict[str, type[Metric]] = {}
    for metric in (*_own(), *(point.load() for point in entry_points(group=ENTRY_POINTS))):
        if metrics.setdefault(metric.name, metric) is not metric:
            raise ValueError(f"Two metrics are called {metric.name}.")
    first = {name: metrics.pop(name) for name in _FIRST if name in metrics}
    return (*first.values(), *(metrics[name] for name in sorted(metrics)))


def _own() -> Iterator[type[Metric]]:
    for file in iter_modules(headlens.metrics.__path__, f"{headlens.metrics.__name__}."):
        for _, kind in getmembers(import_module(file.name), isclass):
            if issubclass(kind, Metric) and not isabstract(kind) and kind.__module__ == file.name:
                yield kind
