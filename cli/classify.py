"""`headlens classify`: what every head does."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options as o

ModelsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL] [SECOND]", help="Hugging Face id, folder or 'demo'; two go side by side.", show_default="demo"
    ),
]


def classify(
    model: ModelsArgument = None,
    corpus: o.CorpusOption = "demo",
    target: o.TargetOption = None,
    column: o.ColumnOption = None,
    target_column: o.TargetColumnOption = None,
    split: o.SplitOption = "test",
    parser: o.ParserOption = "gold",
    limit: o.LimitOption = None,
    relations: o.RelationsOption = "nsubj,obj,amod,advmod",
    margin: o.MarginOption = 0.10,
    margin_kind: o.MarginKindOption = "absolute",
    min_instances: o.MinInstancesOption = 30,
    baseline_corpus: o.BaselineCorpusOption = None,
    exclude_self: o.ExcludeSelfOption = False,
    level: o.LevelOption = o.Level.token,
    frequency: o.FrequencyOption = "wordfreq:en",
    target_frequency: o.TargetFrequencyOption = "none",
    similarity: o.SimilarityOption = "sample",
    batch_tokens: o.BatchTokensOption = 2048,
    device: o.DeviceOption = o.Device.auto,
    dtype: o.DTypeOption = o.DType.auto,
    revision: o.RevisionOption = None,
    offline: o.OfflineOption = False,
    allow_pickle: o.PickleOption = False,
    trust_remote_code: o.RemoteCodeOption = False,
    out: o.OutOption = None,
    overwrite: o.OverwriteOption = False,
    json: o.JsonOption = False,
    quiet: o.QuietOption = False,
) -> None:
    """Tell what every attention head does: confidence, positions, syntax, rare words; and name its role.

    Examples: headlens classify · headlens classify bert-base-uncased albert-base-v2 --corpus en_ewt-ud-test.conllu
    """
    from headlens.corpora.sources import CorpusOptions
    from headlens.experiments.classify import ClassifyOptions
    from headlens.experiments.run_classify import ClassifyRequest, run_classify
    from headlens.models.loading import ModelOptions
    from headlens.roles.labels import Thresholds

    from .screen import Screen
    from .tables import classify_tables

    request = ClassifyRequest(
        models=tuple(model or ["demo"]),
        corpus=corpus,
        corpus_options=CorpusOptions(target, column, target_column, split, parser, limit, offline),
        frequency=frequency,
        target_frequency=target_frequency,
        baseline_corpus=baseline_corpus,
        options=ClassifyOptions(
            relations=o.names(relations),
            thresholds=Thresholds(margin=margin, margin_kind=margin_kind, min_instances=min_instances),
            level=level.value,
            exclude_self=exclude_self,
            similarity=similarity,
            batch_tokens=batch_tokens,
        ),
        model_options=ModelOptions(
            device.value,
            dtype.value,
            revision,
            offline=offline,
            allow_pickle=allow_pickle,
            trust_remote_code=trust_remote_code,
        ),
        out=out,
        overwrite=overwrite,
    )
    screen = Screen(json=json, quiet=quiet)
    run = run_classify(request, screen)
    screen.show(*classify_tables(run.tables, min_instances))
    screen.notes(run.notes)
    screen.finish(run.summary(), run.files, f"look at {run.folder}/figures, or headlens attend {request.models[0]}")
