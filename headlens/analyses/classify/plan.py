"""The plan of `headlens classify`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headlens.analyses.classify.options import ClassifyRequest
from headlens.analyses.classify.recipe import check_readable, open_frequencies
from headlens.corpora.sources import open_corpus, refuse_unused
from headlens.options import CIRCUITS_PROBE
from headlens.planning.plan import RELEVANCE, Plan, Planner, Work
from headlens.planning.planned_sizes import DataSize, PlannedModel
from headlens.roles.head_roles import check_relations
from headlens.runs.corpus_pass import parse_shard, part_folders
from headlens.runs.progress import Reporter
from headlens.shared_options import arguments

# What headlens's own benchmarks measured (benchmarks), beside plain passes.
CLASSIFIED = 1.23  # statistics of all heads, beside a forward pass


def classify_plan(request: ClassifyRequest, reporter: Reporter) -> Plan:
    """One pass over the corpus for each model, and one for relevance."""
    refuse_unused(request.corpus_options, request.corpus, request.corpus_options.target, request.baseline_corpus)
    open_frequencies(request)
    planner = Planner("classify", reporter)
    for name in request.models:
        planner.model(name, request.model_options)
    corpus = planner.corpus(request.corpus, request.corpus_options)
    _check_corpus(request, corpus, planner.models)
    if request.merge:
        part_folders(request.merge, "classify", arguments(replace(request, shard=None)))  # checks the parts
        planner.notes.append("No model runs: the sums of the parts are added up.")
        return planner.plan()
    if request.shard is not None:
        corpus = corpus.part(1 / parse_shard(request.shard).count)
    for place, name in enumerate(request.models):
        size, text = request.options.batch_tokens or planner.batch_tokens, f"classify the heads of {name}"
        work = Work(text, place, tokens=corpus.tokens, each=CLASSIFIED, batch_tokens=size, length=corpus.length)
        if request.relevance:
            planner.add(replace(work, text=f"relevance of the heads of {name}", kind="backward", each=RELEVANCE))
        planner.add(work)
    if request.options.stability:
        planner.notes.append(f"The {request.options.stability} draws of --stability are not in the estimate.")
    if CIRCUITS_PROBE in request.probes:
        planner.notes.append("What --probes circuits multiplies is not in the estimate.")
    planner.parsing(request.parser)
    return planner.plan()


def _check_corpus(request: ClassifyRequest, corpus: DataSize, models: Sequence[PlannedModel]) -> None:
    """Refuses what the run refuses before a model runs, as far as corpus and models are on this machine."""
    if corpus.summary is None or request.alignments is not None:
        return
    for model in models:
        if model.loaded is not None:
            check_readable(request, model.loaded, open_corpus(request.corpus, request.corpus_options))
    if corpus.summary.trees and request.parser == "gold":
        check_relations(request.options.relations or (), corpus.summary.relations, corpus.name)


PLANS = {ClassifyRequest: classify_plan}
