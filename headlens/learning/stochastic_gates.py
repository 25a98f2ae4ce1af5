"""Head gates that are learned: one log α for every head (Voita et al. 2019, section 6)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.attention.edits_and_observers import CallContext, Edit
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site, find_sites
from headlens.errors import OptionError
from headlens.heads import STACKS, Head, Stack
from headlens.interventions.edited_model import EditedModel, absent_sites
from headlens.interventions.hard_concrete import HardConcrete
from headlens.options import PenaltyKind

# Above 2.398, so that gates are 1 at evaluation before anything was learned, and near enough to it to move at once.
START = 2.5


class StochasticGates(nn.Module, Edit):
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

    def __init__(self, sites: Sequence[Site], start: float = START, law: HardConcrete | None = None) -> None:
        super().__init__()
        self.sites = tuple(sites)
        self.law = law or HardConcrete()
        self.log_alpha = nn.ParameterDict({_key(s): nn.Parameter(torch.full((s.n_heads,), start)) for s in self.sites})

    @property
    def heads(self) -> list[Head]:
        """The heads that have a gate, in the order of the sites."""
        return [h for s in self.sites for h in s.heads]

    def check(self, sites: Sequence[Site]) -> None:
        """Raises OptionError if a layer that has gates is not there, or has another number of heads."""
        if absent := absent_sites(self.sites, sites):
            raise OptionError(
                f"The gates of {absent[0]} do not belong to this model.", "Create gates for this model's own sites."
            )

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


class GatedModel(EditedModel):
    """A model and its gates.

        gated = GatedModel(model, StochasticGates(gated_sites(model)))
        with gated.opened():
            gated(**inputs)

    Args:
        module: the model; only training changes it.
        gates: gates of some of its sites.
    """

    kind = "gated"

    def __init__(self, module: PreTrainedModel, gates: StochasticGates) -> None:
        super().__init__(module)
        self.gates = gates.to(module.device)

    def opened(self) -> AbstractContextManager[AttentionSession]:
        """Multiplies head outputs by the gates in every forward pass inside `with`."""
        return self.edited(edits=[self.gates])


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
