"""`headlens sparsefinder`: which attention weights entmax will leave at zero."""

from __future__ import annotations

import shlex

from . import options as o
from . import sparsefinder_groups as sg
from . import sparsefinder_options as s
from . import task_options as t
from .groups import LoadGroup, RunGroup, grouped


@grouped
def sparsefinder(
    load: LoadGroup,
    metric: sg.MetricGroup,
    projections: sg.ProjectionGroup,
    graphs: sg.GraphGroup,
    shown: sg.ShownGroup,
    output: RunGroup,
    model: o.ModelArgument = "demo",
    attention: s.SwitchOption = None,
    corpus: o.CorpusOption = "demo",
    target: o.TargetOption = None,
    column: o.ColumnOption = None,
    target_column: o.TargetColumnOption = None,
    split: o.SplitOption = "test",
    limit: o.LimitOption = None,
    dev: t.DevOption = None,
    dev_target: t.DevTargetOption = None,
    dev_share: s.HeldShareOption = 0.2,
    long_sentences: o.LongSentencesOption = "skip",
    clusters: s.ClustersOption = None,
    batch_tokens: o.BatchTokensOption = 2048,
    figures: o.FiguresOption = True,
) -> None:
    """Predict which attention weights of an entmax model will be zero, and measure what that is worth.

    Examples: headlens sparsefinder · headlens sparsefinder runs/entmax/model --corpus en_ewt-ud-test.conllu
    """
    from headlens.analyses.sparsefinder.recipe import SparsefinderRequest, run_sparsefinder
    from headlens.corpora.sources import CorpusOptions

    from .tables import sparsefinder_tables

    request = SparsefinderRequest(
        model=model,
        corpus=corpus,
        corpus_options=CorpusOptions(target, column, target_column, split, limit, load.offline),
        dev=dev,
        dev_target=dev_target,
        dev_share=dev_share,
        long_sentences=long_sentences,
        attention=attention,
        grid=graphs.options(),
        fit=projections.options(),
        clusters=clusters,
        metric=metric.options(),
        batch_tokens=batch_tokens,
        model_options=load.options(),
        figures=figures,
        place=output.place(),
        shown=shown.options(),
    )
    if output.planned(request):
        return
    screen = output.screen()
    run = run_sparsefinder(request, screen)
    screen.show(*sparsefinder_tables(run.tables))
    screen.notes(run.notes)
    screen.finish(run.summary(), run.files, shlex.join(["headlens", "report", str(run.folder)]))
