"""The plans of `headlens train`."""

from __future__ import annotations

from headlens.analyses.training.options import FineTuneRequest, TrainRequest
from headlens.corpora.sources import refuse_unused
from headlens.learning.new_models import hints_at_new
from headlens.learning.training_options import BLOCK
from headlens.planning.plan import Plan, Planner, TrainingSteps, Work, plan_attention, plan_evaluations
from headlens.runs.progress import Reporter


def train_plan(request: TrainRequest | FineTuneRequest, reporter: Reporter) -> Plan:
    """Plans a training on text (masked tokens, or translation) or on the examples of a task."""
    planner = Planner("train", reporter, request.training.precision)
    plan_attention(planner, request.attention)
    sizes = request.text if isinstance(request, TrainRequest) else request
    longest = max(sizes.longest or 0, 512)
    with hints_at_new(request.model):
        planner.model(request.model, request.model_options, vocabulary=sizes.vocabulary, longest=longest)
    length = None
    if isinstance(request, TrainRequest):
        refuse_unused(request.corpus_options, request.corpus, request.corpus_options.target, request.dev)
        dev = request.dev, request.dev_target
        text, options = request.text, request.corpus_options
        learned, held_out = planner.training_text(text.task, request.corpus, options, text.dev_share, dev)
        # Texts are put together in blocks for masked tokens; pairs are as long as they are.
        length = None if request.text.task == "translation" else request.text.longest or BLOCK
    else:
        data, offline = request.data.for_training(), request.model_options.offline
        learned, held_out = planner.training_examples(data, request.dev_data, request.dev_share, offline=offline)
    loop = TrainingSteps.of(request.training, learned, length)
    planner.add(loop.work(f"train on {learned.name}"))
    plan_evaluations(planner, request.training.evaluate_every, loop, held_out)
    if isinstance(request, FineTuneRequest):
        planner.measure(planner.further_sets(request.also_on, request.data, offline=request.model_options.offline))
    elif request.bleu:
        part = held_out.part(min(1.0, request.bleu / max(held_out.examples or 1, 1)))
        planner.add(Work("translate what is held out", 0, "written", part.tokens, length=held_out.length))
    return planner.plan()


PLANS = dict.fromkeys((TrainRequest, FineTuneRequest), train_plan)
