"""What the declarations of metrics say to the figures, the page and the console of `headlens classify`.

A run records them, so that a page is drawn without the metrics themselves, and so without torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headlens.analyses.classify.syntax_figure import FEWEST
from headlens.errors import InputError
from headlens.metrics.metric_column import MetricColumn
from headlens.pages.page_tables import Cell, number_cell
from headlens.plots import curves
from headlens.plots.cell_drawing import Scale
from headlens.plots.head_grid import StackRows, by_model_and_stack, float_column, head_name
from headlens.plots.heatmaps import centred_scale, paired_maps
from headlens.plots.style import DIVERGING
from headlens.roles.even_attention import is_even
from headlens.roles.role_rules import ROLES
from headlens.runs.reading import RecordedRun
from headlens.runs.run_record import RUN_FILE
from headlens.tables.table_schema import TableColumn, number, optional

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headlens.metrics.metric import Metric

_NOT_DRAWN = {"tokens", "distance"}  # columns of heads.csv that no figure is drawn from
_DIFFERENCE = " difference"  # a column that no table has
_NOTABLE = 0.1  # the least at which a difference has the darkest colour
# Types of the fields of declarations, as JSON has them.
_NUMBER = (int, float, type(None))
_TYPES: dict[str, Any] = {"str": str, "bool": bool, "float | None": _NUMBER, "tuple[MetricColumn, ...]": list}


@dataclass(frozen=True)
class MetricDeclaration:
    """What a metric declares, without the metric itself, as run.json holds it.

    Args:
        name: of the metric and of its figure.
        title: of the figure; empty where it has no heatmap.
        heading: of the figure's caption.
        caption: what the figure shows.
        columns: the columns of heads.csv.
        difference: title of a panel with the second column less the first; empty for none.
    """

    name: str
    title: str
    heading: str
    caption: str
    columns: tuple[MetricColumn, ...]
    difference: str = ""

    @classmethod
    def of(cls, metric: Metric | type[Metric]) -> MetricDeclaration:
        """Returns the declaration of a metric; what it leaves out is taken from its docstring and its columns."""
        first = (metric.__doc__ or metric.name).strip().splitlines()[0].removesuffix(".")
        columns = metric.columns
        if not any(column.panel for column in columns):
            columns = tuple(replace(c, panel=c.title) if c.title and metric.drawn else c for c in columns)
        title = (metric.title or first) if metric.drawn and columns else ""
        caption = metric.caption or " ".join(f"{c.title}: {c.about}" for c in columns if c.title)
        heading = metric.heading or metric.title or first
        return cls(metric.name, title, heading, caption, columns, metric.difference)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> MetricDeclaration:
        """Returns the declaration that run.json holds.

        Raises:
            ValueError: if it holds something else.
        """
        from matplotlib import colormaps

        declaration: MetricDeclaration = _checked(cls, record)
        columns = tuple(_checked(MetricColumn, column) for column in declaration.columns)
        if not declaration.name.isidentifier():  # names a file
            raise ValueError(f"{declaration.name!r} is not the name of a metric")
        if unknown := {column.colours for column in columns} - set(colormaps):
            raise ValueError(f"matplotlib has no colour map {unknown.pop()!r}")
        return replace(declaration, columns=columns)

    def figure(self, heads: pd.DataFrame) -> Figure | None:
        """Draws the metric's columns as heatmaps, one row of panels for each model and stack.

        Args:
            heads: rows of `heads.csv`, of one model or several.

        Returns:
            The figure, or None when nothing was measured.
        """
        drawn: list[MetricColumn] = []
        shown: dict[str, str] = {}
        for column in self.columns if self.title else ():
            values = float_column(heads, column.name)
            if not (column.panel and np.isfinite(values).any()):
                continue
            same = (c.name for c in drawn if np.array_equal(values, float_column(heads, c.name), equal_nan=True))
            if (other := next(same, None)) is not None:
                shown[other] += f",\nalso {column.panel}"
            else:
                drawn.append(column)
                shown[column.name] = column.panel
        if not drawn:
            return None
        alike = len({(c.scale or c.unit, c.colours, c.high) for c in drawn}) == 1
        scales = []
        for columns in [drawn] if alike else [[column] for column in drawn]:
            head = columns[0]
            values = np.concatenate([float_column(heads, column.name) for column in columns])
            # Shares from 0 to 1, so that a chance level never looks like a finding; else from 0 to the largest value.
            largest = float(max(values[np.isfinite(values)], default=0.0)) or 1.0
            high = largest if head.high is None else head.high
            scales.append(Scale(head.scale or f"{head.title} ({head.unit})", high=high, colours=head.colours))
        if self.difference and len(drawn) == 2:
            # The second column less the first, and an interval as wide as that of the first, for its scale.
            first, second = (float_column(heads, column.name) for column in drawn)
            low, upper = (float_column(heads, f"{drawn[0].name}_ci_{end}") for end in ("low", "high"))
            apart, half = second - first, (upper - low) / 2
            heads = heads.assign(**{_DIFFERENCE: apart, "ci_low": apart - half, "ci_high": apart + half})
            shown[_DIFFERENCE] = self.difference
            # Hundredths are no finding, however few there are of anything else.
            label = f"difference of {drawn[0].title}"
            scales = [*(scales * 2)[:2], centred_scale(label, heads, _DIFFERENCE, DIVERGING, least=_NOTABLE)]

        def remark(part: StackRows, name: str) -> str:
            column = next((column for column in drawn if column.name == name), None)
            names = {} if column is None else baselines_of(column)
            names |= {f"{name}_null": "uniform attention"}
            levels = ((words, float_column(part.rows, level)) for level, words in names.items())
            texts = ((words, curves.range_text(level, ".3f")) for words, level in levels)
            known = [f"{words} {text}" for words, text in texts if text]
            if column is not None and (n := curves.range_text(float_column(part.rows, column.instances), ",.0f")):
                known.append(f"n = {n}")
            return f"\n({', '.join(known)})" if known else ""

        return paired_maps(heads, shown, scales, self.title, remark)


def measured_columns(declarations: Iterable[MetricDeclaration]) -> tuple[TableColumn, ...]:
    """Returns the columns of heads.csv that metrics fill, with ends of intervals and numbers of the null head."""
    columns: list[TableColumn] = []
    for column in (column for declaration in declarations for column in declaration.columns):
        required = column.contract and column.name not in _NOT_DRAWN
        columns.append(number(column.name, column.about, column.unit, optional=not required))
        ends = (f"End of the 95 % interval of `{column.name}`.", column.unit)
        null = (f"`{column.name}` of a head with uniform attention.", column.unit)
        columns += optional(*(number(name, *ends) for name in column.names[1:]))
        columns += optional(*(number(name, *null) for name in column.null_names))
    return tuple(columns)


def _checked(kind: Any, record: Any) -> Any:
    """Returns a dataclass of JSON values whose types are those of its fields."""
    types = {field.name: _TYPES[str(field.type)] for field in fields(kind)}
    # Runs of earlier versions lack what was added since, which has a default.
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    if not isinstance(record, dict) or not needed <= record.keys() <= types.keys():
        raise ValueError(f"it does not hold {', '.join(types)} and nothing else")
    if wrong := [name for name, value in record.items() if not isinstance(value, types[name])]:
        raise ValueError(f"{wrong[0]} is {record[wrong[0]]!r}")
    return kind(**record)


def registered_declarations() -> list[MetricDeclaration]:
    """Returns the declarations of all registered metrics, in the order of their columns."""
    from headlens.metrics.metric_registry import registered_metrics  # noqa: PLC0415 - metrics wait for torch, pages do not

    return [MetricDeclaration.of(metric) for metric in registered_metrics()]


def declarations_of(run: RecordedRun) -> list[MetricDeclaration]:
    """Returns the declarations of the metrics that a run measured.

    Runs of headlens 0.1 recorded none: theirs are those of the registered metrics.

    Raises:
        InputError: if run.json holds something else in their place.
    """
    recorded = run.record.get("metrics")
    if recorded is None:
        return registered_declarations()
    try:
        return [MetricDeclaration.of_record(record) for record in recorded]
    except (TypeError, ValueError) as problem:
        raise InputError(
            f"{run.folder / RUN_FILE}: metrics does not hold declarations of metrics: {problem}.",
            "Run the command again, or leave this run out.",
        ) from problem


def measure_records(
    heads: pd.DataFrame, declarations: Sequence[MetricDeclaration], min_instances: int = FEWEST
) -> Iterator[dict[str, Any]]:
    """Yields for each model, stack and metric the mean over heads of its first titled column, and its highest head.

    A column that is part of that one has a record of its own. What the highest head's largest baseline and the null
    head have stands beside it. No head is named where all are alike, or spread their attention evenly, or where there
    are fewer instances than roles need.

    Args:
        heads: rows of `heads.csv`, of one model or several.
        declarations: of the metrics.
        min_instances: how many roles need.
    """
    for part in by_model_and_stack(heads):
        for declaration in declarations:
            titled = [column for column in declaration.columns if column.title and column.name in heads]
            parts = (column for column in titled if column.part_of == titled[0].name)
            for column in (*titled[:1], *parts):
                if np.isfinite(float_column(part.rows, column.name)).any():
                    yield _measure_record(part, column, min_instances)


def _measure_record(part: StackRows, column: MetricColumn, min_instances: int) -> dict[str, Any]:
    values = float_column(part.rows, column.name)
    highest = int(np.nanargmax(values))
    n = float_column(part.rows, column.instances)[highest]
    about: dict[str, Any] = {"model": part.model, "stack": part.stack, "measure": column.title}
    about |= {"unit": column.unit, "n": int(n) if np.isfinite(n) else ""}
    numbers = {"mean": float(np.nanmean(values)), "lowest": float(np.nanmin(values))}
    null = float_column(part.rows, f"{column.name}_null")
    levels, known = curves.range_text(null, ".3f"), null[np.isfinite(null)].tolist()
    # Layers whose masks or windows differ have levels of their own.
    uniform = Cell(levels, repr(known[0])) if " to " in levels else number_cell(next(iter(known), math.nan))
    baselines = [float_column(part.rows, name)[highest] for name in baselines_of(column)]
    base = max(filter(math.isfinite, baselines), default="")
    # Of heads that all do the same none is the highest.
    alike = is_even(part.rows) or numbers["lowest"] == np.nanmax(values)
    highest_name = "" if alike or n < min_instances else head_name(part.rows.iloc[highest])
    about |= numbers | {"highest": float(np.nanmax(values)), "head": highest_name}
    return about | {"baseline": base, "uniform": uniform}


def baselines_of(column: MetricColumn) -> dict[str, str]:
    """Columns of what needs no attention, with words for them: chance, and the baselines of the role it gives."""
    own = {column.chance: column.chance_name} if column.chance else {}
    # Those of the role come last: runs of earlier versions recorded a single one.
    return own | {
        name: words for role in ROLES if column.name in role.columns for name, words in role.baselines.items()
    }
