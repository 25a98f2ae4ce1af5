"""Plans of the commands that look at a model as it is."""

from __future__ import annotations

from dataclasses import replace

from headlens.analyses.ablate.options import AblateRequest
from headlens.analyses.attend.options import AttendRequest
from headlens.analyses.classify.options import ClassifyRequest
from headlens.analyses.compact.options import CompactRequest
from headlens.analyses.planning.data_sizes import DataSize
from headlens.analyses.planning.plan import Plan, Planner, Work
from headlens.analyses.planning.speed import Kind
from headlens.analyses.relevance.options import RelevanceRequest
from headlens.runs.progress import Reporter
from headlens.tasks.catalogue import find_task

# What headlens's own benchmarks measured (tests/benchmarks), beside plain passes.
CLASSIFIED = 1.1  # statistics of all heads, beside a forward pass
RELEVANCE = 0.75  # relevance of all heads, beside a forward and backward pass
SHARED = 2.4  # what a sweep over all heads saves by sharing what lies below a head
# Tokens of a batch of a sweep where nothing is said.
_SWEEP_TOKENS = 2048


def classify_plan(request: ClassifyRequest, reporter: Reporter) -> Plan:
    """One pass over the corpus for each model, and one for relevance."""
    planner = Planner("classify", reporter)
    for name in request.models:
        planner.model(name, request.model_options)
    corpus = planner.corpus(request.corpus, request.corpus_options)
    for place, name in enumerate(request.models):
        work = Work(
            f"classify the heads of {name}",
            place,
            tokens=corpus.tokens,
            each=CLASSIFIED,
            batch_tokens=request.options.batch_tokens,
            length=corpus.length,
        )
        if request.relevance:
            planner.add(replace(work, text=f"relevance of the heads of {name}", kind="backward", each=RELEVANCE))
        planner.add(work)
    if request.parser not in ("gold", "none"):
        planner.notes.append(f"The time of {request.parser} is not in the estimate: it parses the corpus once, before.")
    return planner.plan()


def relevance_plan(request: RelevanceRequest, reporter: Reporter) -> Plan:
    """One pass over the corpus; other rules come from the same pass or cost one more."""
    planner = Planner("relevance", reporter)
    planner.model(request.model, request.model_options)
    corpus = planner.corpus(request.corpus, request.corpus_options)
    for rule in (request.options.rule, *request.compare):
        planner.add(
            Work(
                f"relevance of all heads, rule {rule}",
                kind="backward",
                tokens=corpus.tokens,
                each=RELEVANCE,
                batch_tokens=request.reading.batch_tokens,
                length=corpus.length,
            )
        )
    return planner.plan()


def attend_plan(request: AttendRequest, reporter: Reporter) -> Plan:
    """A pass for each sentence; figures take most of the time."""
    planner = Planner("attend", reporter)
    model = planner.model(request.model, request.model_options)
    words = sum(len(text.split()) for text in (*request.text, *request.target_text))
    layers = sum(count for count, _ in model.stacks.values())
    planner.add(Work(f"attention on {len(request.text)} sentences", tokens=words * 1.3, fixed=1.5 * layers))
    return planner.plan()


def compact_plan(request: CompactRequest, reporter: Reporter) -> Plan:
    """The corpus through the model before and after, as often as is timed."""
    planner = Planner("compact", reporter)
    planner.model(request.model, request.model_options)
    corpus = planner.corpus(request.corpus, request.corpus_options)
    text = f"compare and time on {corpus.name}, {request.measure.rounds} rounds"
    rounds, size = 2 * (request.measure.rounds + 1), request.measure.batch_tokens
    planner.add(Work(text, tokens=corpus.tokens, each=rounds, batch_tokens=size, length=corpus.length))
    return planner.plan()


def ablate_plan(request: AblateRequest, reporter: Reporter) -> Plan:
    """All heads one at a time, then what pruning evaluates."""
    planner = Planner("ablate", reporter)
    for name in request.models:
        planner.model(name, request.model_options)
    data = planner.task(request.data, offline=request.model_options.offline)
    for place in range(len(request.models)):
        _ablated(planner, request, place, data)
    return planner.plan()


def _ablated(planner: Planner, request: AblateRequest, place: int, data: DataSize) -> None:
    model = planner.models[place]
    writes = find_task(request.data.task).task.generates
    # Translations are written anew for every head; elsewhere what lies below a head is shared.
    saved = 1.0 if writes else SHARED
    usual: Kind = "written" if writes else "forward"
    size = request.options.batch_tokens or _SWEEP_TOKENS

    def add(text: str, share: float, each: float, kind: Kind = usual) -> None:
        tokens = data.part(share).tokens
        planner.add(Work(f"{model.name}: {text}", place, kind, tokens, each, 0.0, size, data.length))

    modes = 2 if request.options.keep_only else 1
    add(f"without each of {model.heads} heads", 1.0, 1 + modes * model.heads / saved)
    pruning, numbers = request.pruning, len(request.pruning.prune)
    if not numbers:
        return
    ranked, rest, most = pruning.rank_split, 1 - pruning.rank_split, max(pruning.prune)
    for strategy in pruning.strategies:
        orders = pruning.orders if strategy == "random" else 1
        if strategy.startswith("importance"):
            steps = most if strategy.endswith("steps") else 1
            add(f"{strategy}: gradients of the heads", ranked, steps, "backward")
        if strategy in ("greedy", "beam"):
            width = pruning.beam if strategy == "beam" else 1
            tried = sum(model.heads - gone for gone in range(most)) * width
            add(f"{strategy}: heads tried, up to {most} gone", ranked, tried / saved)
        add(f"{strategy}: evaluate {', '.join(map(str, pruning.prune))} heads less", rest, numbers * orders)
