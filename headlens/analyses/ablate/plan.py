"""The plan of `headlens ablate`."""

from __future__ import annotations

import math
from collections.abc import Callable

from headlens.analyses.ablate.mib_circuits import RANKINGS, SHARES
from headlens.analyses.ablate.options import AblateRequest
from headlens.analyses.ablate.pruning_strategies import STRATEGY_ENTRIES, check_pruning, strategy_cost
from headlens.analyses.ablate.stand_ins import EPOCHS
from headlens.attention.sites import find_sites
from headlens.planning.plan import Plan, Planner, Work
from headlens.planning.planned_sizes import DataSize, PlannedModel
from headlens.planning.speed import Kind
from headlens.replay.direct_path import Receiver
from headlens.runs.progress import Reporter
from headlens.tasks.catalogue import find_task
from headlens.tasks.open_task import suited_data, tells_task

SHARED = 2.4  # what a sweep over all heads saves by sharing what lies below a head
# Tokens of a batch of a sweep where nothing is said.
_SWEEP_TOKENS = 2048


def ablate_plan(request: AblateRequest, reporter: Reporter) -> Plan:
    """All heads one at a time, then what pruning evaluates."""
    planner = Planner("ablate", reporter)
    for name in request.models:
        planner.model(name, request.model_options)
    model, offline = planner.models[0].model, request.model_options.offline
    chosen = suited_data(request.data, model, offline=offline)
    with tells_task(request.data, chosen.task, model):
        data = planner.task(chosen, offline=offline)
    for place in range(len(request.models)):
        task = find_task(chosen.task).task
        if (receiver := request.options.receiver) is not None:
            Receiver.within(receiver, find_sites(task.network(planner.models[place].model)))
        _ablated(planner, request, place, data, writes=task.generates)
    return planner.plan()


def _ablated(planner: Planner, request: AblateRequest, place: int, data: DataSize, *, writes: bool) -> None:
    model = planner.models[place]
    # Translations are written anew for every head; elsewhere what lies below a head is shared.
    saved = 1.0 if writes else SHARED
    usual: Kind = "written" if writes else "forward"
    size = request.options.batch_tokens or _SWEEP_TOKENS

    def add(text: str, share: float, each: float, kind: Kind = usual) -> None:
        tokens = data.part(share).tokens
        planner.add(Work(f"{model.name}: {text}", place, kind, tokens, each, 0.0, size, data.length))

    swept = min(request.options.confirm or model.heads, model.heads)
    which = "" if swept == model.heads else f" with the attribution of largest size, of {model.heads}"
    if request.options.confirm is not None:
        add(f"attribution of {model.heads} heads", 1.0, 1, "backward")
    modes = 2 if request.options.keep_only else 1
    # The examples that stand in are read, too; a pass forwards and back costs three.
    more = {"resample": 1.0, "counterfactual": 2.0, "optimal": 3.0 * EPOCHS}.get(request.options.mode, 0.0)
    add(f"without each of {swept} heads{which}", 1.0, 1 + more + modes * swept / saved)
    if which:
        add(f"random subsets of the other {model.heads - swept} heads", 1.0, request.options.subsets)
    if request.options.mib is not None:
        layers = sum(len(heads) for heads in model.stacks.values())
        circuits = len(SHARES) * (2 * len(RANKINGS) + request.pruning.orders)
        ranked = request.pruning.rank_split
        add("attribution of heads and MLPs", ranked, 2, "backward")
        add(f"each of {model.heads + layers} heads and MLPs patched", ranked, 2 + model.heads + layers)
        add(f"circuits of heads and MLPs, up to {circuits}", 1 - ranked, 3 + circuits)
    if request.pruning.prune:
        _pruned(model, request, add, saved, all_swept=not which)


def _pruned(
    model: PlannedModel, request: AblateRequest, add: Callable[..., None], saved: float, *, all_swept: bool
) -> None:
    pruning = request.pruning
    counts = check_pruning(pruning.prune, model.heads)
    ranked, rest = pruning.rank_split, 1 - pruning.rank_split
    for strategy in pruning.strategies:
        entry, cost = STRATEGY_ENTRIES[strategy], strategy_cost(strategy, pruning.beam, model.heads, counts[-1])
        # What the task loses without each single head is known from the sweep.
        tried = cost.candidates - model.heads * all_swept
        if entry.scored_by in {"importance", "attribution"}:
            add(f"{strategy}: gradients of the heads", ranked, cost.calls, "backward")
        elif entry.scored_by == "shapley":
            add(f"{strategy}: heads in random orders, at most", ranked, 2.0 * pruning.rounds * model.heads)
            if pruning.interactions is not None:
                pairs = math.comb(min(pruning.interactions, model.heads), 2)
                add(f"{strategy}: interactions of {pairs} pairs of heads", ranked, 8.0 * pruning.rounds * pairs)
        elif entry.scored_by == "relevance" and pruning.relevance is None:
            add(f"{strategy}: relevance of the heads", ranked, cost.calls, "backward")
        elif entry.scored_by in {"norm", "entropy"}:
            add(f"{strategy}: attention of the heads", ranked, cost.calls, "forward")
        elif entry.scored_by == "metric" and tried > 0:
            add(f"{strategy}: tries heads, up to {counts[-1]} gone", ranked, tried / saved)
        orders = pruning.orders if entry.seeded else 1
        if entry.pools:
            orders *= sum(not STRATEGY_ENTRIES[name].seeded for name in pruning.strategies)
        add(f"{strategy}: evaluate with {', '.join(map(str, counts))} heads removed", rest, len(counts) * orders)


PLANS = {AblateRequest: ablate_plan}
