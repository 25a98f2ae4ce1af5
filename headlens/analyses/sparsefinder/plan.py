"""The plan of `headlens sparsefinder`."""

from __future__ import annotations

from headlens.analyses.sparsefinder.options import SparsefinderRequest
from headlens.attention.sites import check_heads, find_sites
from headlens.corpora.sources import refuse_unused, require_held_out
from headlens.heads import parse_heads
from headlens.options import DEMO
from headlens.planning.plan import Plan, Planner, Work, plan_attention
from headlens.runs.progress import Reporter

# Seconds of a core for each token and head, when projections are learned and all methods tried (benchmarks).
_PROJECTION_SECONDS = 1e-4


def sparsefinder_plan(request: SparsefinderRequest, reporter: Reporter) -> Plan:
    """Plans to gather queries and keys, to try every method, and to run the task at points of each curve."""
    refuse_unused(request.corpus_options, request.corpus, request.corpus_options.target, request.dev)
    planner = Planner("sparsefinder", reporter)
    switched = request.attention or ("entmax15" if request.model == DEMO else None)
    plan_attention(planner, switched)
    model = planner.model(request.model, request.model_options)
    check_heads(parse_heads(request.shown.heads), find_sites(model.model))
    corpus = planner.corpus(request.corpus, request.corpus_options)
    if request.dev is None:
        if corpus.examples is not None:
            require_held_out(corpus.name, request.dev_share, corpus.examples)
        corpus, held_out = corpus.split(request.dev_share)
    else:
        held_out = planner.corpus(request.dev, request.corpus_options.held_out(request.dev_target))
    size = request.batch_tokens
    for part, use in ((corpus, "learned from"), (held_out, "held out")):
        text = f"gather queries and keys of what is {use}: {part.name}"
        planner.add(Work(text, 0, "forward", part.tokens, 2.0, 0.0, size, part.length))
    fixed = 0.0 if corpus.tokens is None else _PROJECTION_SECONDS * corpus.tokens * model.heads
    planner.add(Work(f"projections, clusters and all methods, {model.heads} heads", length=corpus.length, fixed=fixed))
    if request.metric.task != "none":
        points, curves = request.metric.points, 9 if request.grid.block_size is None else 13
        words = "nine" if curves == 9 else str(curves)
        text, passes = f"the task at {points} points on each of {words} curves", 4.0 * curves * points
        if switched:
            text, passes = f"{text}, and with its own softmax", passes + 1.0
        planner.add(Work(text, tokens=held_out.tokens, each=passes, batch_tokens=size, length=held_out.length))
    planner.parsing(request.parser)
    return planner.plan()


PLANS = {SparsefinderRequest: sparsefinder_plan}
