"""The plan of `headlens classify`."""

from __future__ import annotations

from dataclasses import replace

from headlens.analyses.classify.options import ClassifyRequest
from headlens.options import CIRCUITS_PROBE
from headlens.planning.plan import RELEVANCE, Plan, Planner, Work
from headlens.runs.corpus_pass import parse_shard, part_folders
from headlens.runs.progress import Reporter
from headlens.shared_options import arguments

# What headlens's own benchmarks measured (benchmarks), beside plain passes.
CLASSIFIED = 1.23  # statistics of all heads, beside a forward pass


def classify_plan(request: ClassifyRequest, reporter: Reporter) -> Plan:
    """One pass over the corpus for each model, and one for relevance."""
    planner = Planner("classify", reporter)
    for name in request.models:
        planner.model(name, request.model_options)
    corpus = planner.corpus(request.corpus, request.corpus_options)
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


PLANS = {ClassifyRequest: classify_plan}
