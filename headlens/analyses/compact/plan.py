"""The plan of `headlens compact`."""

from __future__ import annotations

from headlens.analyses.compact.options import CompactRequest
from headlens.planning.plan import Plan, Planner, Work
from headlens.runs.progress import Reporter


def compact_plan(request: CompactRequest, reporter: Reporter) -> Plan:
    """The corpus through the model before and after, as often as is timed."""
    planner = Planner("compact", reporter)
    planner.model(request.model, request.model_options)
    corpus = planner.corpus(request.corpus, request.corpus_options)
    text = f"compare and time on {corpus.name}, {request.measure.rounds} timing rounds"
    rounds, size = 2 * (request.measure.rounds + 1), request.measure.batch_tokens
    planner.add(Work(text, tokens=corpus.tokens, each=rounds, batch_tokens=size, length=corpus.length))
    return planner.plan()


PLANS = {CompactRequest: compact_plan}
