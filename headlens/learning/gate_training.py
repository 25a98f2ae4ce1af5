"""Gates of heads that are learned (Voita et al. 2019, section 6), and pruning by them: the core of `headlens prune`."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.attention.edits_and_observers import CallContext
from headlens.attention.model_normalizer import restore_attention
from headlens.attention.sites import Site, find_sites
from headlens.errors import OptionError
from headlens.heads import STACKS, Head, Stack
from headlens.interventions.compacting import check_scales, heads_of_model, with_folded_gates
from headlens.interventions.edited_model import LearnedEdit
from headlens.interventions.hard_concrete import HardConcrete
from headlens.learning.gate_options import START, GateOptions
from headlens.learning.hyperparameters import TrainingOptions
from headlens.learning.penalized_training import PenalizedObjective, frozen_copy, thaw, train_penalized
from headlens.learning.training_set import TrainingCallbacks, TrainingSet
from headlens.models.freezing import weights_of
from headlens.models.loading import LoadedModel
from headlens.options import PenaltyKind


class StochasticGates(LearnedEdit):
    """Multiplies head outputs by gates of a Hard Concrete distribution, each with a log α that can be trained.

    In training mode every forward pass draws one gate for each head, the same for all sentences of the batch, as
    the authors do; otherwise gates are those of evaluation. Noise comes from torch's own generator, call by call, so
    that passes which gradient checkpointing repeats meet the same gates again, and processes meet gates of their own.
    With shared weights (ALBERT) a head has a gate at every depth.

    Args:
        sites: the layers whose heads have gates.
        start: log α of all gates before training.
        law: the distribution of the gates.
    """

    called = "gates"

    def __init__(self, sites: Sequence[Site], start: float = START, law: HardConcrete | None = None) -> None:
        super().__init__()
        self.sites = tuple(sites)
        self.law = law or HardConcrete()
        self.log_alpha = nn.ParameterDict({_key(s): nn.Parameter(torch.full((s.n_heads,), start)) for s in self.sites})

    @property
    def heads(self) -> list[Head]:
        """The heads that have a gate, in the order of the sites."""
        return [h for s in self.sites for h in s.heads]

    def output(self, context: CallContext, output: Tensor) -> Tensor:
        """The head outputs times their gates: (batch, query, heads, d)."""
        key = _key(context.site)
        if key not in self.log_alpha:
            return output
        log_alpha = self.log_alpha[key]
        gates = self.law.sample(log_alpha, self.law.noise(log_alpha)) if self.training else self.law.gate(log_alpha)
        # (heads,) -> (heads, 1)
        return output * gates.to(output)[:, None]

    def penalty(self, kind: PenaltyKind = "mean") -> Tensor:
        """Expected number of open gates: a scalar.

        Args:
            kind: "mean" over layers of the sum over their heads, as the authors' code has it, or the "sum" over all.
        """
        sums = torch.stack([self.law.open_probability(self.log_alpha[_key(s)]).sum() for s in self.sites])
        return sums.mean() if kind == "mean" else sums.sum()

    def log_columns(self) -> dict[str, float]:
        """The log α of every head, by the head's name."""
        return {str(head): value for head, value in self.log_alphas().items()}

    def log_alphas(self) -> dict[Head, float]:
        """Returns the log α parameter of every gated head, as a mapping from head to number."""
        return self._by_head(self.log_alpha)

    def values(self) -> dict[Head, float]:
        """The gate of every head at evaluation."""
        with torch.no_grad():
            return self._by_head({key: self.law.gate(log_alpha) for key, log_alpha in self.log_alpha.items()})

    def closed(self) -> list[Head]:
        """The heads whose gates are 0 at evaluation."""
        return [h for h, value in self.values().items() if value == 0.0]

    def _by_head(self, values: Any) -> dict[Head, float]:
        """Values of all heads, of a mapping from the keys of the sites to tensors of shape (heads,)."""
        return {h: value for s in self.sites for h, value in zip(s.heads, values[_key(s)].tolist(), strict=True)}


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
    training_set: TrainingSet,
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
        training_set: the training set.
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
    gated_heads(loaded, training_set, options)
    model = frozen_copy(loaded, options.freeze)
    network = training_set.task.network(model)
    gates = StochasticGates(gated_sites(network, options.gates or None), options.gate_start)
    start = gates.log_alphas()
    objective = PenalizedObjective(training_set.objective, gates, strength, options.penalty)
    rate = options.rate(callbacks.updates(training_set.data, training))
    rows = train_penalized(
        network, training_set, objective, rate, training, callbacks, record=lambda _: gates.log_columns()
    )
    thaw(model, loaded)
    alphas = {0: start} | {int(row["step"]): logged(row) for row in rows}
    log = pd.DataFrame([{k: v for k, v in row.items() if "." not in k} for row in rows])
    values = gates.values()
    pruned = with_folded_gates(model.eval(), values, keep_shape=options.save == "folded")
    return Pruned(pruned, values, gate_table(alphas), log)


def logged(row: dict[str, float]) -> dict[Head, float]:
    """Returns the log α of every gated head in a row of a training log, as a mapping from head to number.

    Columns of heads are those with a dot in their name; all other columns are left out.
    """
    return {Head.parse(name): value for name, value in row.items() if "." in name}


def gated_heads(loaded: LoadedModel, training_set: TrainingSet, options: GateOptions) -> list[Head]:
    """The heads that get gates; errors as in `train_gates`, before anything takes long."""
    check_scales(loaded.model)
    for part in options.freeze or ():
        weights_of(loaded.model, part)
    sites = gated_sites(training_set.task.network(loaded.model), options.gates or None)
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
    training_set: TrainingSet,
    removed: list[Head],
    training: TrainingOptions,
    callbacks: TrainingCallbacks | None = None,
) -> PreTrainedModel:
    """A model of the same shape trained from random weights, without some of its heads from the start.

    Args:
        loaded: gives the shape.
        training_set: what is learned.
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
    training_set.teach(model, training, callbacks)
    return model


def gated_sites(model: nn.Module, stacks: Collection[Stack] | None = None) -> list[Site]:
    """The layers of some stacks that have heads.

    Args:
        model: the model.
        stacks: encoder, decoder or cross; None for all that the model has.

    Raises:
        OptionError: if the model does not have one of the stacks, or none is named.
        UnsupportedModelError: if its heads cannot be found.
    """
    sites = [s for s in find_sites(model) if s.n_heads]
    present = [stack for stack in STACKS if any(s.stack == stack for s in sites)]
    gated = present if stacks is None else list(stacks)
    if missing := [str(stack) for stack in gated if stack not in present]:
        raise OptionError(
            f"--law gates {missing[0]}: {type(model).__name__} has no such heads.", f"It has {', '.join(present)}."
        )
    if not gated:
        raise OptionError("No stack was chosen for gates.", f"The model has {', '.join(present)}.")
    return [s for s in sites if s.stack in gated]


def _key(site: Site) -> str:
    return f"{site.stack}_{site.layer}"
