"""`headlens compact`: a smaller model without the heads nobody needs."""

from __future__ import annotations

import shlex

from . import head_options as h
from . import options as o
from .groups import LoadGroup, RunGroup, grouped


@grouped
def compact(
    load: LoadGroup,
    output: RunGroup,
    model: o.ModelArgument = "demo",
    heads: h.HeadsOption = None,
    from_file: h.HeadsFileOption = None,
    where: h.WhereOption = None,
    stock: h.StockOption = False,
    corpus: o.CorpusOption = "demo",
    target: o.TargetOption = None,
    column: o.ColumnOption = None,
    target_column: o.TargetColumnOption = None,
    split: o.SplitOption = "test",
    limit: o.LimitOption = 200,
    batch_tokens: o.BatchTokensOption = 2048,
    rounds: h.RoundsOption = 7,
) -> None:
    """Cut attention heads out of a model: a smaller and faster checkpoint that computes what the masked model does.

    Example: headlens compact demo --heads encoder.3.1,encoder.4.0 --out small
    """
    from headlens.analyses.compact.analysis import MeasureOptions
    from headlens.analyses.compact.recipe import CompactRequest, run_compact
    from headlens.corpora.sources import CorpusOptions

    from .tables import compact_screen_table

    request = CompactRequest(
        model=model,
        heads=o.names(heads or ""),
        from_file=from_file,
        where=o.names(",".join(where or ())),
        stock=stock,
        corpus=corpus,
        corpus_options=CorpusOptions(target, column, target_column, split, limit, load.offline),
        measure=MeasureOptions(batch_tokens, rounds),
        model_options=load.options(),
        place=output.place(),
    )
    if output.planned(request):
        return
    screen = output.screen()
    run = run_compact(request, screen)
    screen.show(compact_screen_table(run.table))
    screen.notes([f"Self-check, beside the masked model: {run.difference}.", *run.notes])
    screen.finish(run.summary(), run.files, shlex.join(["headlens", "classify", str(run.folder)]))
