"""The plan of `headlens compact`."""

from __future__ import annotations

from headlens.analyses.compact.head_choice import chosen_heads
from headlens.analyses.compact.options import CompactRequest
from headlens.attention.sites import check_heads, find_sites, is_decoder_only
from headlens.corpora.sources import refuse_unused
from headlens.planning.plan import Plan, Planner, Work
from headlens.runs.progress import Reporter


def compact_plan(request: CompactRequest, reporter: Reporter) -> Plan:
    """The corpus through the model before and after, as often as is timed; text through decoders of each shape."""
    refuse_unused(request.corpus_options, request.corpus, request.corpus_options.target)
    planner = Planner("compact", reporter)
    model = planner.model(request.model, request.model_options).model
    check_heads(chosen_heads(request), find_sites(model))
    corpus = planner.corpus(request.corpus, request.corpus_options)
    text = f"compare and time on {corpus.name}, {request.measure.rounds} timing rounds"
    rounds, size = 2 * (request.measure.rounds + 1), request.measure.batch_tokens
    planner.add(Work(text, tokens=corpus.tokens, each=rounds, batch_tokens=size, length=corpus.length))
    if is_decoder_only(model):
        shapes = 3 if request.remove is not None else int(request.rescale)
        about = "loss of text before and after" + (", and of each shape" if shapes > 1 else "")
        planner.add(Work(about, tokens=corpus.tokens, each=2 + shapes, batch_tokens=size, length=corpus.length))
    return planner.plan()


PLANS = {CompactRequest: compact_plan}
