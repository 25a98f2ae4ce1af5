"""The plan of `headlens relevance`."""

from __future__ import annotations

from dataclasses import replace

from headlens.analyses.relevance.options import RelevanceRequest
from headlens.corpora.sources import refuse_unused
from headlens.planning.plan import RELEVANCE, Plan, Planner, Work
from headlens.relevance_propagation.targets import choose_target
from headlens.runs.progress import Reporter


def relevance_plan(request: RelevanceRequest, reporter: Reporter) -> Plan:
    """One pass over the corpus; other rules come from the same pass or cost one more."""
    refuse_unused(request.corpus_options, request.corpus, request.corpus_options.target)
    planner = Planner("relevance", reporter)
    loaded = planner.model(request.model, request.model_options).loaded
    corpus = planner.corpus(request.corpus, request.corpus_options)
    if loaded is not None and corpus.summary is not None:
        choose_target(request.options.relevance_target, loaded, paired=corpus.paired)
    size = request.reading.batch_tokens or planner.batch_tokens
    work = Work("", kind="backward", tokens=corpus.tokens, each=RELEVANCE, batch_tokens=size, length=corpus.length)
    for rule in (request.options.rule, *request.compare):
        planner.add(replace(work, text=f"relevance of all heads, rule {rule}"))
    return planner.plan()


PLANS = {RelevanceRequest: relevance_plan}
