"""`headlens classify`: what every head does."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from . import options as o
from . import role_options as r
from .groups import LoadGroup, MaskGroup, RelevanceGroup, RunGroup, ThresholdsGroup, grouped

ModelsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL] [SECOND]", help="Hugging Face id, folder or 'demo'; two go side by side.", show_default="demo"
    ),
]
RelevanceFlag = Annotated[
    bool,
    typer.Option("--relevance", help="Measure the relevance of heads too.", rich_help_panel=o.RELEVANCE),
]


@grouped
def classify(
    load: LoadGroup,
    masking: MaskGroup,
    thresholds: ThresholdsGroup,
    rule: RelevanceGroup,
    output: RunGroup,
    models: ModelsArgument = None,
    corpus: o.CorpusOption = "demo",
    target: o.TargetOption = None,
    column: o.ColumnOption = None,
    target_column: o.TargetColumnOption = None,
    split: o.SplitOption = "test",
    parser: o.ParserOption = "gold",
    limit: o.LimitOption = None,
    long_sentences: o.LongSentencesOption = "skip",
    relations: r.RelationsOption = "nsubj,obj,amod,advmod",
    baseline_corpus: r.BaselineCorpusOption = None,
    exclude_self: r.ExcludeSelfOption = False,
    level: r.LevelOption = o.Level.token,
    frequency: r.FrequencyOption = "wordfreq:en",
    target_frequency: r.TargetFrequencyOption = "none",
    similarity: r.SimilarityOption = "sample",
    batch_tokens: o.BatchTokensOption = 2048,
    seed: o.SeedOption = 0,
    kernel: r.KernelOption = "fast",
    relevance: RelevanceFlag = False,
    figures: o.FiguresOption = True,
) -> None:
    """Tell what every attention head does: confidence, positions, syntax, rare words; and name its role.

    Examples: headlens classify · headlens classify bert-base-uncased albert-base-v2 --corpus en_ewt-ud-test.conllu
    """
    from headlens.analyses.classify.analysis import ClassifyOptions
    from headlens.analyses.classify.recipe import ClassifyRequest, run_classify
    from headlens.corpora.sources import CorpusOptions

    from .tables import classify_tables, relevance_tables

    request = ClassifyRequest(
        models=tuple(models or ["demo"]),
        corpus=corpus,
        corpus_options=CorpusOptions(target, column, target_column, split, limit, load.offline),
        parser=parser,
        frequency=frequency,
        target_frequency=target_frequency,
        baseline_corpus=baseline_corpus,
        options=ClassifyOptions(
            relations=o.names(relations),
            thresholds=thresholds.options(),
            level=level.value,
            exclude_self=exclude_self,
            similarity=similarity,
            batch_tokens=batch_tokens,
            seed=seed,
            kernel=kernel,
            long_sentences=long_sentences,
        ),
        relevance=relevance,
        relevance_options=rule.options(),
        mask=masking.options(),
        model_options=load.options(),
        figures=figures,
        place=output.place(),
    )
    if output.planned(request):
        return
    screen = output.screen()
    run = run_classify(request, screen)
    screen.show(*classify_tables(run.tables, thresholds.min_instances))
    if "relevance" in run.tables:
        screen.show(*relevance_tables(run.tables))
    screen.notes(run.notes)
    report = shlex.join(["headlens", "report", str(run.folder)])
    screen.finish(run.summary(), run.files, f"{report}, or {shlex.join(['headlens', 'attend', request.models[0]])}")
