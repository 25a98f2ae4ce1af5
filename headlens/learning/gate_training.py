"""Pruning by gates that are learned, for one strength of the penalty: the core of `headlens prune`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd
import torch
from transformers import PreTrainedModel

from headlens.attention.model_normalizer import restore_attention
from headlens.heads import Head
from headlens.interventions.compacting import check_folds, heads_of_model, with_folded_gates
from headlens.interventions.hard_concrete import HardConcrete
from headlens.learning.gate_options import GateOptions
from headlens.learning.hyperparameters import TrainingOptions, check_strength
from headlens.learning.loop import Trainer
from headlens.learning.objectives import GATES, PenalizedObjective, gate_log_columns, logged, moved
from headlens.learning.stochastic_gates import GatedModel, StochasticGates, gated_sites
from headlens.learning.training_set import TrainingCallbacks, TrainingSet, freeze_unused
from headlens.models.freezing import freeze, weights_of
from headlens.models.loading import LoadedModel


@dataclass(frozen=True, eq=False)
class Pruned:
    """The result of training with gates.

    Args:
        model: with the gates in its weights, and without the heads whose gates are closed.
        values: the gate of every gated head at evaluation.
        gates: the course of training, one row per logged update and head, see `gate_table`.
        log: of the training.
    """

    model: PreTrainedModel
    values: dict[Head, float]
    gates: pd.DataFrame
    log: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def removed(self) -> list[Head]:
        """The heads whose gates are closed."""
        return [h for h, value in self.values.items() if value == 0.0]


def train_gates(
    loaded: LoadedModel,
    lesson: TrainingSet,
    strength: float,
    options: GateOptions | None = None,
    training: TrainingOptions | None = None,
    callbacks: TrainingCallbacks | None = None,
) -> Pruned:
    """Train a model with gates on its heads, and take away those that close (Voita et al. 2019).

        loaded = headlens.load("demo")
        task, source = headlens.open_task()
        found = headlens.train_gates(loaded, headlens.TrainingSet.of_task(loaded, task, source), 1.0)
        found.removed

    The last state of the training counts, not the one that was best by some metric: that would be the one with most
    heads. Processes that train together average the gradients of gates, each of which drew its own noise.

    Args:
        loaded: a trained model; it stays as it is.
        lesson: the training set.
        strength: λ, of the penalty.
        options: which heads get gates, and in which form the pruned model is returned.
        training: length, step size, rhythm; also of the log of gates.
        callbacks: progress, and what is kept for going on after an interruption.

    Raises:
        OptionError: if λ is negative, or the model lacks the stacks or parts that are named.
        UnsupportedModelError: if gates cannot become part of its weights.
    """
    options, training = options or GateOptions(), training or TrainingOptions()
    callbacks = callbacks or TrainingCallbacks()
    check_strength(strength)
    gated_heads(loaded, lesson, options)
    model = copy.deepcopy(loaded.model)
    freeze(model, options.freeze or ())
    network = lesson.task.network(model)
    gates = StochasticGates(gated_sites(network, options.gates or None), options.gate_start)
    start = gates.log_alphas()
    gated = GatedModel(network, gates)
    objective = PenalizedObjective(lesson.objective, gates, strength, options.penalty)
    rate = options.rate(callbacks.updates(lesson.data, training))
    # Processes that train together wait for all gradients: what gets none is found before, and frozen.
    with gated.eval().opened():
        freeze_unused(gated, objective, moved(lesson.data.batch((0,), 0), network.device))
        state = Trainer(
            training,
            objective,
            keeper=callbacks.keeper,
            progress=callbacks.progress,
            scales={GATES: rate / training.learning_rate},
            record=gate_log_columns,
        ).fit(gated, lesson.data)
    for parameter, before in zip(model.parameters(), loaded.model.parameters(), strict=True):
        parameter.requires_grad_(before.requires_grad)
    rows = {0: start} | {int(row["step"]): logged(row) for row in state.log}
    log = pd.DataFrame([{k: v for k, v in row.items() if "." not in k} for row in state.log])
    values = gates.values()
    pruned = with_folded_gates(model.eval(), values, keep_shape=options.save == "folded")
    return Pruned(pruned, values, gate_table(rows), log)


def gated_heads(loaded: LoadedModel, lesson: TrainingSet, options: GateOptions) -> list[Head]:
    """The heads that get gates; errors as in `train_gates`, before anything takes long."""
    check_folds(loaded.model)
    for part in options.freeze or ():
        weights_of(loaded.model, part)
    sites = gated_sites(lesson.task.network(loaded.model), options.gates or None)
    return [h for s in sites for h in s.heads]


def gate_table(rows: Mapping[int, Mapping[Head, float]]) -> pd.DataFrame:
    """The gates of all heads at some updates.

    Args:
        rows: log α of every head, by number of the update.

    Returns:
        Columns step, stack, layer, head, log_alpha, p_open (probability that a sampled gate is not 0), gate (at
        evaluation).
    """
    law, gate_rows = HardConcrete(), []
    for step, heads in rows.items():
        log_alpha = torch.tensor(list(heads.values()))
        # Three numbers of every head; the law knows both of the last two in closed form, without drawing.
        numbers = (log_alpha, law.open_probability(log_alpha), law.gate(log_alpha))
        gate_rows += [(step, *head, *row) for head, row in zip(heads, torch.stack(numbers, 1).tolist(), strict=True)]
    return pd.DataFrame(gate_rows, columns=["step", "stack", "layer", "head", "log_alpha", "p_open", "gate"])


def from_scratch(
    loaded: LoadedModel,
    lesson: TrainingSet,
    removed: list[Head],
    training: TrainingOptions,
    callbacks: TrainingCallbacks | None = None,
) -> PreTrainedModel:
    """A model of the same shape trained from random weights, without some of its heads from the start.

    Args:
        loaded: gives the shape.
        lesson: what is learned.
        removed: heads that it is not to have, besides those that the original lost before; the others have no gates.
        training: length and step size, and the seed of the weights.
        callbacks: progress, and what is kept for going on after an interruption.

    Raises:
        OptionError: if no head would be left.
    """
    torch.manual_seed(training.seed)
    model: PreTrainedModel = type(loaded.model)(copy.deepcopy(loaded.model.config))
    restore_attention(loaded.name, model)
    model.to(device=loaded.device, dtype=loaded.model.dtype)  # type: ignore[call-arg]
    if gone := {*heads_of_model(loaded.model).removed, *removed}:
        heads_of_model(model).without(gone).apply(model)
    lesson.teach(model, training, callbacks)
    return model
