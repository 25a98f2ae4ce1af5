"""`headlens relevance`: what every head contributes to the output."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from . import options as o
from .groups import LoadGroup, MaskGroup, RelevanceGroup, RunGroup, grouped

CompareOption = Annotated[
    str,
    typer.Option(
        metavar="RULES",
        help="Further rules, comma-separated: do they rank the heads alike? Or none.",
        rich_help_panel=o.RELEVANCE,
    ),
]


@grouped
def relevance(
    load: LoadGroup,
    masking: MaskGroup,
    rule: RelevanceGroup,
    output: RunGroup,
    model: o.ModelArgument = "demo",
    corpus: o.CorpusOption = "demo",
    target: o.TargetOption = None,
    column: o.ColumnOption = None,
    target_column: o.TargetColumnOption = None,
    split: o.SplitOption = "test",
    limit: o.LimitOption = None,
    long_sentences: o.LongSentencesOption = "skip",
    compare: CompareOption = "taylor",
    batch_tokens: o.BatchTokensOption = 2048,
    seed: o.SeedOption = 0,
    figures: o.FiguresOption = True,
) -> None:
    """Tell what every attention head contributes to the output, by layer-wise relevance propagation.

    Example: headlens relevance ./my-classifier --corpus dev.tsv --column sentence --relevance-target class:positive
    """
    from headlens.analyses.relevance.analysis import ReadingOptions
    from headlens.analyses.relevance.recipe import RelevanceRequest, run_relevance
    from headlens.corpora.sources import CorpusOptions

    from .tables import relevance_tables

    request = RelevanceRequest(
        model=model,
        corpus=corpus,
        corpus_options=CorpusOptions(target, column, target_column, split, limit, load.offline),
        options=rule.options(),
        compare=o.parse_rules(compare),
        reading=ReadingOptions(batch_tokens, seed, long_sentences),
        mask=masking.options(),
        model_options=load.options(),
        figures=figures,
        place=output.place(),
    )
    if output.planned(request):
        return
    screen = output.screen()
    run = run_relevance(request, screen)
    screen.show(*relevance_tables(run.tables))
    screen.notes(run.notes)
    screen.finish(run.summary(), run.files, shlex.join(["headlens", "report", str(run.folder)]))
