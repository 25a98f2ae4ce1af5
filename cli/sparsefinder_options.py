"""Options of `sparsefinder` alone, each with its help line and its group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from . import gate_options as g
from . import options as o
from . import task_options as t
from .groups import Group

if TYPE_CHECKING:
    from headlens.experiments.restricted_task import MetricOptions
    from headlens.sparsefinder.fitting import FitOptions
    from headlens.sparsefinder.pareto import Grid

PROJECTIONS = "Projections"
GRAPHS = "Graphs"

SwitchOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Switch the model to entmax15, sparsemax or entmax:ALPHA without training.",
        show_default="its own; the demo: entmax15",
        rich_help_panel=o.MODEL,
    ),
]
HeldShareOption = Annotated[
    float, typer.Option(help="Share of the corpus to measure on, without --dev.", rich_help_panel=o.CORPUS)
]
MetricTaskOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="What is measured over predicted graphs: a task as in ablate, none, or auto: what the model can be asked.",
        rich_help_panel=o.TASK,
    ),
]
PointsOption = Annotated[
    int,
    typer.Option(min=1, metavar="N", help="Points of each method's curve that it is tried on.", rich_help_panel=o.TASK),
]
DimensionsOption = Annotated[
    int,
    typer.Option(metavar="R", help="Dimensions that queries and keys are projected to.", rich_help_panel=PROJECTIONS),
]
SharedOption = Annotated[
    bool,
    typer.Option("--shared/--separate", help="Queries and keys have the same projection.", rich_help_panel=PROJECTIONS),
]
MarginOption = Annotated[
    float,
    typer.Option(help="Of the loss: by how much keys that are looked at are nearer.", rich_help_panel=PROJECTIONS),
]
PassesOption = Annotated[int, typer.Option(metavar="N", help="Passes over the sentences.", rich_help_panel=PROJECTIONS)]
RateOption = Annotated[float, typer.Option(help="Of Adam.", rich_help_panel=PROJECTIONS)]
NormOption = Annotated[float, typer.Option(help="Largest norm of a gradient.", rich_help_panel=PROJECTIONS)]
WindowsOption = Annotated[
    str, typer.Option(metavar="LIST", help="Keys of windows: odd numbers, 0 for none.", rich_help_panel=GRAPHS)
]
ThresholdsOption = Annotated[str, typer.Option(metavar="LIST", help="Distances.", rich_help_panel=GRAPHS)]
GroupsOption = Annotated[
    str,
    typer.Option(
        metavar="LIST",
        help="Even numbers of clusters, buckets and hashes, of global tokens and of random keys.",
        rich_help_panel=GRAPHS,
    ),
]
TopOption = Annotated[
    int, typer.Option(metavar="K", help="Clusters that each query and key is in.", rich_help_panel=GRAPHS)
]
RoundsOption = Annotated[int, typer.Option(metavar="N", help="Rounds of hashing (Reformer).", rich_help_panel=GRAPHS)]
ClustersOption = Annotated[
    int, typer.Option(metavar="N", help="Clusters that parts of speech are counted in.", rich_help_panel=GRAPHS)
]


@dataclass(frozen=True)
class ProjectionGroup(Group):
    """How projections are learned."""

    dimensions: DimensionsOption = 4
    shared: SharedOption = True
    margin: MarginOption = 1.0
    epochs: PassesOption = 3
    learning_rate: RateOption = 1e-3
    clip: NormOption = 1.0
    seed: o.SeedOption = 0

    def options(self) -> FitOptions:
        """As the package wants them."""
        from headlens.sparsefinder.fitting import FitOptions

        return FitOptions(**vars(self))


@dataclass(frozen=True)
class GraphGroup(Group):
    """Which graphs are tried."""

    windows: WindowsOption = "0,1,3,5,7,9,11,13,15,17,19,21,23,25,27"
    thresholds: ThresholdsOption = "0.5,1,1.5,2,2.5,3,3.5,4,4.5,5"
    groups: GroupsOption = "2,4,6,8,10,12,14,16,18,20"
    top: TopOption = 1
    rounds: RoundsOption = 4

    def options(self) -> Grid:
        """As the package wants them."""
        from headlens.sparsefinder.pareto import Grid

        return Grid(
            o.whole_numbers("--windows", self.windows),
            g.numbers("--thresholds", self.thresholds),
            o.whole_numbers("--groups", self.groups),
            self.top,
            self.rounds,
        )


@dataclass(frozen=True)
class MetricGroup(Group):
    """What is measured over predicted graphs."""

    task: MetricTaskOption = "auto"
    data: t.DataOption = None
    columns: t.ColumnsOption = None
    data_split: t.DataSplitOption = None
    points: PointsOption = 4

    def options(self) -> MetricOptions:
        """As the package wants them."""
        from headlens.experiments.restricted_task import MetricOptions

        return MetricOptions(self.task, tuple(self.data or ()), tuple(self.columns or ()), self.data_split, self.points)
