"""Options about tasks and their examples, each with its help line and its group."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options as o

TaskOption = Annotated[
    o.TaskName,
    typer.Option(
        metavar="NAME",
        help="mlm, translation, translation-loss, or a task with --data: sst2, cola, mrpc, qqp, stsb, mnli, mnli-mm, "
        "qnli, rte, snli, squad, squad2, swag, similarity, paraphrase.",
        rich_help_panel=o.TASK,
    ),
]
MetricOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Metric of the task.", show_default="its main one", rich_help_panel=o.TASK),
]
DataOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SOURCE",
        help="Examples with answers: FILE.tsv|csv|jsonl|json (also .gz) or hub:NAME; given twice, one after the other.",
        show_default="that of the task",
        rich_help_panel=o.TASK,
    ),
]
ColumnsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ROLE=NAME",
        help="Columns that are not called as in the task's data sets, comma-separated: text=review,label=stars.",
        show_default=False,
        rich_help_panel=o.TASK,
    ),
]
DataSplitOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Split of a hub data set.",
        show_default="train to train, else the task's",
        rich_help_panel=o.TASK,
    ),
]
DevOption = Annotated[
    str | None,
    typer.Option(
        metavar="SOURCE",
        help="Text that the model is evaluated on.",
        show_default="a part of the corpus",
        rich_help_panel=o.CORPUS,
    ),
]
DevTargetOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="Translations of --dev.", rich_help_panel=o.CORPUS)
]
DevDataOption = Annotated[
    str | None,
    typer.Option(
        metavar="SOURCE",
        help="Examples that the model is evaluated on.",
        show_default="a part of the data",
        rich_help_panel=o.TASK,
    ),
]
BootstrapOption = Annotated[
    int, typer.Option(min=1, metavar="N", help="Bootstrap samples for intervals.", rich_help_panel=o.STATISTICS)
]
