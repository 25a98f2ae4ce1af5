"""The metrics that `headlens classify` measures: every file of `headlens.metrics`, and those of other packages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from inspect import getmembers, isabstract, isclass
from pkgutil import iter_modules

import headlens.metrics
from headlens.errors import ExtensionError
from headlens.extensions import load_extension
from headlens.heads import KEY_COLUMNS
from headlens.metrics.metric import Metric
from headlens.metrics.metric_column import MetricColumn

# Packages of others register a metric of theirs by an entry point of this group.
ENTRY_POINTS = "headlens.metrics"
# Columns of heads.csv that no metric fills.
_OTHERS = ("model", *KEY_COLUMNS, "relevance", "role", "roles", "nearest", "nearest_score", "roles_by_weight")
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
    "learned_sink",
)


@cache
def registered_metrics() -> tuple[type[Metric], ...]:
    """Returns the classes of all metrics, in the order of their columns.

    Raises:
        ExtensionError: if one cannot be loaded, is no metric, or takes the name or a column of another.
    """
    modules = [import_module(file.name) for file in iter_modules(headlens.metrics.__path__, "headlens.metrics.")]
    kinds = [
        kind for module in modules for _, kind in getmembers(module, isclass) if kind.__module__ == module.__name__
    ]
    metric_kinds = [kind for kind in kinds if issubclass(kind, Metric) and not isabstract(kind)]
    metrics: dict[str, type[Metric]] = {metric.name: metric for metric in metric_kinds}
    for point in entry_points(group=ENTRY_POINTS):
        metric = load_extension(point)
        if not (isclass(metric) and issubclass(metric, Metric)) or isabstract(metric):
            raise ExtensionError(
                f"The entry point {point.name!r} of {ENTRY_POINTS} names no metric ({point.value}).",
                "Let it name a class derived from headlens.Metric that defines measure and compute.",
            )
        if metric not in metrics.values():
            refuse_collisions([*metrics.values(), metric])
        metrics[metric.name] = metric
    first = {name: metrics.pop(name) for name in _FIRST if name in metrics}
    return (*first.values(), *(metrics[name] for name in sorted(metrics)))


def refuse_collisions(metrics: Sequence[type[Metric] | Metric]) -> None:
    """Refuse metrics that cannot stand in one table.

    Args:
        metrics: those of a run; each after the first is refused if it takes a name that is there.

    Raises:
        ExtensionError: if one has no name or columns that are none, or two have one name, or fill one column.
    """
    names, columns = set[str](), dict.fromkeys(_OTHERS, "headlens itself")
    for metric in metrics:
        kind = metric if isclass(metric) else type(metric)
        if not isinstance(getattr(metric, "name", None), str) or not all(
            isinstance(column, MetricColumn) for column in metric.columns
        ):
            raise ExtensionError(
                f"The metric {kind.__module__}.{kind.__qualname__} has no name, or columns that are no MetricColumn.",
                "Let it have name, a text, and columns, a tuple of headlens.MetricColumn.",
            )
        if metric.name in names:
            raise ExtensionError(f"Two metrics are called {metric.name}.", "Give yours another name.")
        names.add(metric.name)
        for column in (name for declared in metric.columns for name in (*declared.names, *declared.null_names)):
            if column in columns:
                raise ExtensionError(
                    f"The metric {metric.name} fills the column {column!r}, which is that of {columns[column]}.",
                    "Give yours another name.",
                )
            columns[column] = f"the metric {metric.name}"
