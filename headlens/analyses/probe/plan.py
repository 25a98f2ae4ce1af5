"""The plan of `headlens probe`."""

from __future__ import annotations

from headlens.analyses.probe.options import ProbeRequest
from headlens.corpora.sources import require_held_out
from headlens.planning.plan import Plan, Planner, Work
from headlens.runs.progress import Reporter

# Seconds of a core for each pair of tokens and head: some hundred steps of L-BFGS.
_SECONDS = 4e-7
# The same with word embeddings: fewer steps, each of which takes longer.
_EMBEDDED_SECONDS = 1e-6


def probe_plan(request: ProbeRequest, reporter: Reporter) -> Plan:
    """Plans a pass over the training sentences and one over those held out, and learning in between."""
    planner = Planner("probe", reporter)
    model = planner.model(request.model, request.model_options)
    options = request.corpus_options
    corpus = planner.corpus(request.corpus, options)
    if request.dev is None:
        if corpus.examples is not None:
            require_held_out(corpus.name, request.dev_share, corpus.examples)
        corpus, held_out = corpus.split(request.dev_share)
    else:
        held_out = planner.corpus(request.dev, options.held_out(None))
    size = request.options.batch_tokens or planner.batch_tokens
    for part, use in ((corpus, "learned from"), (held_out, "held out")):
        text = f"attention between the words of what is {use}: {part.name}"
        planner.add(Work(text, tokens=part.tokens, each=2.0, batch_tokens=size, length=part.length))
    cells = (corpus.tokens or 0.0) * corpus.length * model.heads
    planner.add(Work(f"learn the weights of {model.heads} heads", length=corpus.length, fixed=_SECONDS * cells))
    if request.embeddings is not None:
        text = "learn the same as functions of word embeddings, of attention and of distances"
        planner.add(Work(text, length=corpus.length, fixed=_EMBEDDED_SECONDS * cells))
    planner.notes.append(f"About {2 * cells / 1e6:,.0f} MB of attention are kept; --limit reads fewer sentences.")
    return planner.plan()


PLANS = {ProbeRequest: probe_plan}
