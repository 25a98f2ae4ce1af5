"""Options about attention masks, each with its help line and its group."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from . import options as o

STUDY = "Trained under masks"

MaskOption = Annotated[
    str | None,
    typer.Option(
        metavar="MASK",
        help="Where queries may look: a mask.safetensors or its folder, or a pattern such as 'window:3|global:1', "
        "strided, star.",
        show_default="everywhere",
        rich_help_panel=o.MASK,
    ),
]
MaskLayersOption = Annotated[
    str | None,
    typer.Option(
        metavar="LAYERS",
        help="Layers in which the mask holds: 6-11, 0,2,4-6, first:3, last:3.",
        show_default="all",
        rich_help_panel=o.MASK,
    ),
]
NoDiagonalOption = Annotated[
    bool, typer.Option("--no-diagonal", help="No token looks at itself.", rich_help_panel=o.MASK)
]
DropRandomOption = Annotated[
    bool,
    typer.Option(
        "--drop-random",
        help="The control: as many random positions as the diagonal has are masked instead.",
        rich_help_panel=o.MASK,
    ),
]
MaskSeedOption = Annotated[int, typer.Option(min=0, help="Of the positions of --drop-random.", rich_help_panel=o.MASK)]
PatternOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        help="A pattern such as 'window:3|global:1' or bigbird:keys=3, also written as a file; can be given again. "
        "full masks nothing: with --task the diagonal alone is tried.",
        show_default="those of the SparseBERT paper, without files",
        rich_help_panel=o.MASK,
    ),
]
LengthOption = Annotated[
    int, typer.Option(metavar="N", help="Tokens for which patterns are counted and drawn.", rich_help_panel=o.MASK)
]
StudyModel = Annotated[
    str, typer.Argument(metavar="MODEL", help="Checkpoint that is trained under the masks, with --task.")
]
StudyTaskOption = Annotated[
    o.TaskName | None,
    typer.Option(
        metavar="NAME",
        help="Train models under every pattern on this task, and measure them: sst2, rte, mlm and all others of train.",
        show_default="patterns alone",
        rich_help_panel=STUDY,
    ),
]
StudyMaskOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="A mask.safetensors that is trained under, too, such as those of train-dam; can be given again.",
        rich_help_panel=STUDY,
    ),
]
GraphOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GRAPH",
        help="A graph over the words of each text that is trained under, too: syntax, lexical, neighbour or random, "
        "with as many edges each, or lexical:degree=4, lexical:nearest=2,vectors=spacy, lexical:threshold=0.5; can be "
        "given again.",
        rich_help_panel=STUDY,
    ),
]
GridOption = Annotated[
    str | None,
    typer.Option(
        metavar="DEGREES",
        help="BigBird patterns with every combination of degrees are trained under, too, such as 'global=0,1 "
        "random=0,2 neighbour=1,3'; a regression tells what each kind is worth.",
        rich_help_panel=STUDY,
    ),
]
LearnDegreesOption = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBERS",
        help="Learn how many neighbours to each side every head needs, for these strengths μ of the penalty on the "
        "share of open positions, such as 0.1,1,10.",
        rich_help_panel=STUDY,
    ),
]
LargestDegreeOption = Annotated[
    int, typer.Option(metavar="N", help="The largest degree that is learned.", rich_help_panel=STUDY)
]
DegreesOfOption = Annotated[
    Literal["heads", "layers"],
    typer.Option(help="Whether heads of a layer have degrees of their own, or one together.", rich_help_panel=STUDY),
]
StudyParserOption = Annotated[
    str,
    typer.Option(
        metavar="PARSER",
        help="What finds words and trees for --graph: spacy:MODEL, stanza:LANG, stanza:LANG@DIR, or conllu:FILE.",
        show_default="words alone",
        rich_help_panel=STUDY,
    ),
]
StudyLayersOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LAYERS",
        help="Train once for these layers: 6-11, first:3, last:3, all; can be given again.",
        show_default="all",
        rich_help_panel=STUDY,
    ),
]
SeedsOption = Annotated[
    int, typer.Option(metavar="N", help="Trainings of each, from --seed upwards.", rich_help_panel=STUDY)
]
ControlsOption = Annotated[
    bool,
    typer.Option(
        "--controls/--no-controls",
        help="Train each without the diagonal, too, and attention without a mask also with as many random positions "
        "masked.",
        rich_help_panel=STUDY,
    ),
]
