"""Options about statistics, roles and relevance of heads, each with its help line and its group."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from . import options as o

RelationsOption = Annotated[
    str,
    typer.Option(metavar="NAMES", help="Dependency relations, comma-separated UD names.", rich_help_panel=o.STATISTICS),
]
MarginOption = Annotated[
    float,
    typer.Option(
        parser=o.amount,
        metavar="NUMBER",
        help="By how much a syntactic head beats the baseline.",
        rich_help_panel=o.ROLES,
    ),
]
MarginKindOption = Annotated[
    Literal["absolute", "relative"],
    typer.Option(help="Added to the baseline, or a share of it.", rich_help_panel=o.ROLES),
]
MinInstancesOption = Annotated[int, typer.Option(min=1, help="Rarer relations give no role.", rich_help_panel=o.ROLES)]
PositionalOption = Annotated[
    float,
    typer.Option(
        parser=o.share, metavar="0…1", help="Share of one offset that makes a head positional.", rich_help_panel=o.ROLES
    ),
]
DiagonalOption = Annotated[
    float,
    typer.Option(parser=o.share, metavar="0…1", help="Share of offset 0 for the role self.", rich_help_panel=o.ROLES),
]
RareOption = Annotated[
    float,
    typer.Option(
        parser=o.share, metavar="0…1", help="Share of words that point at the rarest one.", rich_help_panel=o.ROLES
    ),
]
SeparatorOption = Annotated[
    float,
    typer.Option(
        parser=o.share, metavar="0…1", help="Attention mass on separators and end of sentence.", rich_help_panel=o.ROLES
    ),
]
BroadOption = Annotated[
    float,
    typer.Option(parser=o.share, metavar="0…1", help="Normalised entropy of a broad head.", rich_help_panel=o.ROLES),
]
BaselineCorpusOption = Annotated[
    str | None,
    typer.Option(
        metavar="SOURCE",
        help="Where the baseline's word offsets are chosen.",
        show_default="the corpus itself",
        rich_help_panel=o.STATISTICS,
    ),
]
ExcludeSelfOption = Annotated[
    bool,
    typer.Option("--exclude-self", help="Syntax: look at the most attended other word.", rich_help_panel=o.STATISTICS),
]
LevelOption = Annotated[
    o.Level,
    typer.Option(
        help="What attends to what; syntax and rare words always compare words.", rich_help_panel=o.STATISTICS
    ),
]
FrequencyOption = Annotated[
    str, typer.Option(metavar="LIST", help="wordfreq:LANG, corpus, FILE or none.", rich_help_panel=o.STATISTICS)
]
TargetFrequencyOption = Annotated[
    str, typer.Option(metavar="LIST", help="The same for the target side.", rich_help_panel=o.STATISTICS)
]
SimilarityOption = Annotated[
    Literal["sample", "all", "off"],
    typer.Option(
        help="Head distances from one query token a sentence, from all, or none.", rich_help_panel=o.STATISTICS
    ),
]
KernelOption = Annotated[
    Literal["fast", "eager"],
    typer.Option(help="fast, or the model's own attention bit for bit, slower.", rich_help_panel=o.MODEL),
]
RuleOption = Annotated[
    Literal["epsilon", "attnlrp", "alpha-beta", "gradxact", "taylor"],
    typer.Option(help="How relevance is passed back; alpha-beta is slow.", rich_help_panel=o.RELEVANCE),
]
RelevanceTargetOption = Annotated[
    str,
    typer.Option(
        metavar="TARGET",
        help="Where relevance starts: auto, predicted, class:LABEL, masked, positions, similarity, embedding.",
        rich_help_panel=o.RELEVANCE,
    ),
]
MaskShareOption = Annotated[
    float, typer.Option(help="Share of the tokens that are masked, for masked.", rich_help_panel=o.RELEVANCE)
]
ReplicatesOption = Annotated[
    int, typer.Option(min=1, metavar="N", help="Bootstrap samples for intervals.", rich_help_panel=o.RELEVANCE)
]
