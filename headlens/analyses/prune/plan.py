"""The plan of `headlens prune`."""

from __future__ import annotations

from headlens.analyses.prune.options import PruneRequest
from headlens.corpora.corpus_options import CorpusOptions
from headlens.learning.open_training_set import suited_training_set
from headlens.planning.plan import Plan, Planner, TrainingSteps, Work
from headlens.planning.speed import Kind
from headlens.runs.progress import Reporter
from headlens.tasks.catalogue import find_task

# What a step costs beside a plain one.
GATED = 1.05


def prune_plan(request: PruneRequest, reporter: Reporter) -> Plan:
    """A training with gates for each penalty, and others from random weights."""
    planner = Planner("prune", reporter, request.training.precision)
    planner.model(request.model, request.model_options)
    offline = request.model_options.offline
    training_set = suited_training_set(request.training_set, planner.models[0].model, offline=offline)
    learned, held_out = planner.training_set(training_set, offline=offline)
    loop = TrainingSteps.of(request.training, learned)
    if request.gates.freeze:
        planner.notes.append("With frozen parts, training is faster than this estimate.")
    runs = len(request.sweep.strengths)
    if request.sweep.target_heads is not None:
        runs = request.sweep.most_runs
        planner.notes.append(f"--target-heads {request.sweep.target_heads} may need fewer than {runs} training runs.")
    planner.add(loop.work(f"train with gates, {runs} penalties", each=GATED, times=runs))
    kind: Kind = "written" if find_task(training_set.data.task).task.generates else "forward"
    scratch = 0
    if request.sweep.from_scratch:
        scratch_steps = TrainingSteps.of(request.training.scratch(), learned)
        planner.add(scratch_steps.work("train from random weights without the pruned heads", times=runs + 1))
        scratch = runs + 1
    text = f"measure on {held_out.name}, {1 + runs + scratch} models"
    planner.add(Work(text, 0, kind, held_out.tokens, 1 + runs + scratch, length=held_out.length))
    if request.roles.roles_corpus is not None:
        options = CorpusOptions(request.roles.roles_target, offline=request.model_options.offline)
        corpus = planner.corpus(request.roles.roles_corpus, options)
        planner.add(Work(f"roles on {corpus.name}", tokens=corpus.tokens, each=1.1 * (1 + runs), length=corpus.length))
    return planner.plan()


PLANS = {PruneRequest: prune_plan}
