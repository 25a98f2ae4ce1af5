"""Options about heads that are ablated, pruned or cut out, each with its help line and its group."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from . import options as o

ModeOption = Annotated[
    Literal["zero", "mean", "uniform"],
    typer.Option(
        help="What a head's output is replaced by: 0, its mean over the data, or that of even attention.",
        rich_help_panel=o.HEADS,
    ),
]
KeepOnlyOption = Annotated[
    bool, typer.Option("--keep-only", help="Also: each head alone in its layer.", rich_help_panel=o.HEADS)
]
PruneOption = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBERS",
        help="Also prune so many heads at once: 3,10,20,30.",
        show_default="no pruning",
        rich_help_panel=o.PRUNING,
    ),
]
StrategiesOption = Annotated[
    str,
    typer.Option(
        metavar="NAMES",
        help="How heads are chosen: ranked, importance, importance-steps, greedy, beam, random; or all.",
        rich_help_panel=o.PRUNING,
    ),
]
BeamOption = Annotated[
    int, typer.Option(min=1, metavar="N", help="Sets of heads that a beam keeps.", rich_help_panel=o.PRUNING)
]
OrdersOption = Annotated[int, typer.Option(min=1, metavar="N", help="Random orders.", rich_help_panel=o.PRUNING)]
RankSplitOption = Annotated[
    float,
    typer.Option(
        parser=o.share,
        metavar="0…1",
        help="Share of the examples that heads are chosen on; the others are evaluated.",
        rich_help_panel=o.PRUNING,
    ),
]
HeadsOption = Annotated[
    str | None,
    typer.Option(
        metavar="HEADS",
        help="Heads to cut out, comma-separated: STACK.LAYER.HEAD, from 0.",
        show_default=False,
        rich_help_panel=o.HEADS,
    ),
]
HeadsFileOption = Annotated[
    Path | None,
    typer.Option(
        "--from",
        "--from-file",
        metavar="FILE",
        help="Where they are listed: a pruning.csv, a table with a column 'removed', or a plain list.",
        show_default=False,
        rich_help_panel=o.HEADS,
    ),
]
WhereOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN=VALUE",
        help="Which rows of that table, comma-separated or given again: strategy=greedy,n_pruned=10.",
        show_default=False,
        rich_help_panel=o.HEADS,
    ),
]
StockOption = Annotated[
    bool,
    typer.Option(
        "--stock",
        help="Keep the shape, with zeros for the heads, so that from_pretrained reads it.",
        rich_help_panel=o.OUTPUT,
    ),
]
RoundsOption = Annotated[
    int, typer.Option(min=2, metavar="N", help="How often the corpus is run to time it.", rich_help_panel=o.STATISTICS)
]
