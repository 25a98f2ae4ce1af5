"""Options of `sparsefinder` alone, each with its help line and its group."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options as o

PROJECTIONS = "Projections"
GRAPHS = "Graphs"
EXAMPLES = "Heads on a sentence"

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
    int,
    typer.Option(
        metavar="K",
        help="Clusters that each query and key is in, at most all; of queries and keys as they are (Routing), too.",
        rich_help_panel=GRAPHS,
    ),
]
RoundsOption = Annotated[int, typer.Option(metavar="N", help="Rounds of hashing (Reformer).", rich_help_panel=GRAPHS)]
GlobalTokensOption = Annotated[
    str,
    typer.Option(
        metavar="LIST",
        help="First tokens that are added to the graphs of methods by content: 0 for none, 0,1 to try both.",
        rich_help_panel=GRAPHS,
    ),
]
ClustersOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Clusters that parts of speech are counted in, one of --groups.",
        show_default="8, or the nearest of --groups",
        rich_help_panel=GRAPHS,
    ),
]
TextOption = Annotated[
    str | None,
    typer.Option(help="A sentence to draw heads on.", show_default="one that was held out", rich_help_panel=EXAMPLES),
]
TargetTextOption = Annotated[
    str | None,
    typer.Option(
        help="Its translation, for decoder and cross-attention.", show_default=False, rich_help_panel=EXAMPLES
    ),
]
ShownHeadsOption = Annotated[
    str | None,
    typer.Option(
        metavar="HEADS",
        help="Heads to draw, comma-separated: STACK.LAYER.HEAD, from 0.",
        show_default="up to three of different layers, of which distance knows most beyond windows and global tokens",
        rich_help_panel=EXAMPLES,
    ),
]
