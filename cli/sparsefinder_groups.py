"""Options of `sparsefinder` that belong together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import gate_options as g
from . import options as o
from . import sparsefinder_options as s
from . import task_options as t
from .groups import OptionGroup

if TYPE_CHECKING:
    from headlens.analyses.sparsefinder.fitting import FitOptions
    from headlens.analyses.sparsefinder.head_examples import ShownOptions
    from headlens.analyses.sparsefinder.pareto_points import ParameterGrid
    from headlens.analyses.sparsefinder.restricted_task import MetricOptions


@dataclass(frozen=True)
class ProjectionGroup(OptionGroup):
    """Options of the low-dimensional query and key projections: dimensions, margin of the loss, and training."""

    dimensions: s.DimensionsOption = 4
    shared: s.SharedOption = True
    margin: s.MarginOption = 1.0
    epochs: s.PassesOption = 3
    learning_rate: s.RateOption = 1e-3
    clip: s.NormOption = 1.0
    seed: o.SeedOption = 0

    def options(self) -> FitOptions:
        """Returns the options as the `FitOptions` by which projections of queries and keys are trained."""
        from headlens.analyses.sparsefinder.fitting import FitOptions

        return FitOptions(**vars(self))


@dataclass(frozen=True)
class GraphGroup(OptionGroup):
    """Options of the predicted attention graphs: values of each parameter that the methods are tried with."""

    windows: s.WindowsOption = "0,1,3,5,7,9,11,13,15,17,19,21,23,25,27"
    thresholds: s.ThresholdsOption = "0.5,1,1.5,2,2.5,3,3.5,4,4.5,5"
    groups: s.GroupsOption = "2,4,6,8,10,12,14,16,18,20"
    top: s.TopOption = 1
    rounds: s.RoundsOption = 4
    global_tokens: s.GlobalTokensOption = "0"

    def options(self) -> ParameterGrid:
        """Returns the options as the `ParameterGrid` of methods, with lists of numbers parsed from their text."""
        from headlens.analyses.sparsefinder.pareto_points import ParameterGrid

        return ParameterGrid(
            o.whole_numbers("--windows", self.windows),
            g.split_numbers("--thresholds", self.thresholds),
            o.whole_numbers("--groups", self.groups),
            self.top,
            self.rounds,
            o.whole_numbers("--global-tokens", self.global_tokens),
        )


@dataclass(frozen=True)
class MetricGroup(OptionGroup):
    """What is measured over predicted graphs."""

    task: s.MetricTaskOption = "auto"
    data: t.DataOption = None
    columns: t.ColumnsOption = None
    data_split: t.DataSplitOption = None
    points: s.PointsOption = 4

    def options(self) -> MetricOptions:
        """Returns the options as the `MetricOptions` of a task that is evaluated under predicted graphs."""
        from headlens.analyses.sparsefinder.restricted_task import MetricOptions

        return MetricOptions(self.task, tuple(self.data or ()), tuple(self.columns or ()), self.data_split, self.points)


@dataclass(frozen=True)
class ShownGroup(OptionGroup):
    """Which heads are drawn, and on which sentence."""

    text: s.TextOption = None
    target_text: s.TargetTextOption = None
    heads: s.ShownHeadsOption = None

    def options(self) -> ShownOptions:
        """Returns the options as the `ShownOptions`, which select the sentence and the heads to draw."""
        from headlens.analyses.sparsefinder.head_examples import ShownOptions

        return ShownOptions(self.text, self.target_text, o.names(self.heads or ""))
