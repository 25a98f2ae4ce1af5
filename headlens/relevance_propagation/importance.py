"""How much a loss would change with each head's gate, to first order (Michel et al. 2019, section 4.1)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.attention.edits_and_observers import CallContext, Edit
from headlens.attention.finite_values import not_finite
from headlens.attention.reversible_context import ReversibleContext
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site
from headlens.errors import SelfCheckError
from headlens.heads import Head
from headlens.interventions.gates import HeadGates
from headlens.metrics.accumulator import Accumulator
from headlens.models.freezing import frozen

Inputs = Mapping[str, Any]
# The model's outputs for a batch, and the batch, to a loss for each example: (examples,).
Loss = Callable[[Any, Inputs], Tensor]
# What absolute values are taken of: sums over an example's positions, or every position.
Per = Literal["example", "position"]

_METRIC = "importance"


class OpenGates(Edit):
    """Multiplies head outputs by gates that ask for a gradient: 1, or 0 for heads that are removed.

    Every row of the batch has gates of its own, so that one backward pass gives the derivatives of all examples.

    Args:
        removed: heads whose gates are 0.
        per: whether every position has its own, too.
    """

    def __init__(self, removed: Collection[Head] = (), per: Per = "example") -> None:
        self._gates: dict[Site, Tensor] = {}
        self._removed = frozenset(removed)
        self._per = per

    def check(self, sites: Sequence[Site]) -> None:
        """Raise OptionError on a head the model does not have."""
        HeadGates(dict.fromkeys(self._removed, 0.0)).check(sites)

    def output(self, context: CallContext, output: Tensor) -> Tensor:
        """The head outputs times their gates: (batch, query, heads, d)."""
        rows, queries = output.shape[:2]
        values = [0.0 if h in self._removed else 1.0 for h in context.site.heads]
        # Derivatives are sums over neurons and positions, for which half precision is too coarse.
        dtype = torch.promote_types(output.dtype, torch.float32)
        gates = torch.tensor(values, dtype=dtype, device=output.device)
        # (batch, query, heads), or one query for all
        gates = gates.repeat(rows, queries if self._per == "position" else 1, 1).requires_grad_()
        self._gates[context.site] = gates
        return (output * gates[..., None]).to(output.dtype)

    def take(self) -> dict[Site, Tensor]:
        """The gates of the last pass, (batch, query or 1, heads); they are forgotten here."""
        gates, self._gates = self._gates, {}
        return gates


class ImportanceSession(ReversibleContext):
    """Estimates the importance of heads for a loss while inside `with`.

        with ImportanceSession(model) as session:
            for inputs in batches:
                add(totals, session.derivatives(inputs, loss))
        importance = importances(totals, session.sites)

    I_h = E_x |dL(x) / dξ_h| at the gates ξ_h = 1 of all heads, L(x) being the loss of one example; by the chain rule
    E_x |sum over positions of ctx_h · dL/dctx_h| with the head's output ctx_h. This is what the paper says, and
    `per="example"`. The authors' code takes absolute values at every position, the sum of |ctx_h · dL/dctx_h| over
    positions, which is `per="position"`: what a head adds at one word and takes at another does not cancel there.
    Their division by the number of tokens (in the last layer of a classifier of examples) is left out: it is the same
    for all heads of a layer, and nothing is left of it after `headlens.analyses.ablate.scorers.per_layer`.

    Args:
        model: in evaluation mode. Its parameters ask for no gradients inside.
        removed: heads whose gates are 0 instead, as if they were gone.
        per: what absolute values are taken of.
        signed: whether derivatives keep their sign, as in attribution patching: by -dL/dξ_h the loss grows without the
            head, to first order.

    Raises:
        OptionError: if the model does not have one of the removed heads.
        UnsupportedModelError: if its attention cannot be reached.
        ValueError: if it is in training mode.
    """

    def __init__(
        self, model: PreTrainedModel, removed: Collection[Head] = (), per: Per = "example", *, signed: bool = False
    ) -> None:
        if model.training:
            raise ValueError("importance in a model in training mode is random: call model.eval() first")
        self.model = model
        self._per, self._signed = per, signed
        self._gates = OpenGates(removed, per)
        self._attention = AttentionSession(model, edits=[self._gates])

    @property
    def sites(self) -> list[Site]:
        """Attention sites of the model, one for each attention layer."""
        return self._attention.sites

    def _change(self, undo: ExitStack) -> None:
        undo.enter_context(frozen(self.model))
        undo.enter_context(self._attention)

    def derivatives(self, inputs: Inputs, loss: Loss, rows: Sequence[int] | None = None) -> dict[Site, Tensor]:
        """Absolute (or `signed`) derivatives for every example of a batch, from one forward and one backward pass.

        Args:
            inputs: what the model takes.
            loss: gives one number for each example, which depends on the rows of this example alone.
            rows: how many rows of a batch each example has, one after another, where the model attends to them; None
                for equally many.

        Returns:
            (examples, heads) by site, in double precision on the CPU. What it says of removed heads is what they would
            add if they came back.

        Raises:
            ModelError: if a derivative is not finite.
            SelfCheckError: if the losses are no such numbers.
        """
        if not self.is_open:
            raise RuntimeError("importance can only be computed inside the `with` block")
        cache = {"use_cache": False} if any(s.stack == "decoder" for s in self.sites) else {}
        with torch.inference_mode(mode=False), torch.enable_grad():
            try:
                losses = loss(self.model(**{**cache, **inputs}), inputs)
            finally:
                gates = self._gates.take()
            if losses.dim() != 1 or not len(losses):
                raise SelfCheckError(f"Losses have the shape {tuple(losses.shape)}.", "Give one for each example.")
            if not losses.requires_grad:
                raise SelfCheckError(
                    "The losses do not depend on any head.", "Compute them with torch, without detaching."
                )
            by_gate = torch.autograd.grad(losses.sum(), list(gates.values()), allow_unused=True, materialize_grads=True)
        gradients = dict(zip(gates, by_gate, strict=True))
        nothing = torch.zeros(len(losses), dtype=torch.double)[:, None]
        # A stack that did not run does not matter.
        return {
            s: self._by_example(gradients[s], len(losses), rows) if s in gradients else nothing.repeat(1, s.n_heads)
            for s in self.sites
        }

    def _by_example(self, gradient: Tensor, examples: int, rows: Sequence[int] | None) -> Tensor:
        """(batch, query or 1, heads) -> (examples, heads)."""
        if not torch.isfinite(gradient).all():
            raise not_finite(self.model, "the importance of its heads")
        by_row = (gradient.abs() if self._per == "position" else gradient).sum(dim=1).cpu().double()
        counts = [len(by_row) // examples] * examples if rows is None else list(rows)
        if len(counts) != examples or sum(counts) != len(by_row):
            raise SelfCheckError(
                f"{examples} losses do not match {len(by_row)} rows of a batch.", "Give one per example."
            )
        owner = torch.arange(examples).repeat_interleave(torch.tensor(counts))
        by_example = torch.zeros(examples, by_row.shape[1], dtype=torch.double).index_add_(0, owner, by_row)
        return by_example if self._signed else by_example.abs()


def add(totals: Accumulator, derivatives: Mapping[Site, Tensor]) -> None:
    """Add a batch (`ImportanceSession.derivatives`) to the sums of a corpus, which may be saved, loaded and merged."""
    for site, derivative in derivatives.items():
        totals.add(_METRIC, str(site), {"sum": derivative.sum(dim=0), "examples": torch.tensor(len(derivative))})
    totals.commit()


def importances(totals: Accumulator, sites: Sequence[Site]) -> dict[Head, float]:
    """I_h of all heads, in the unit of the loss: means over the examples that were added."""
    sums = totals.of(_METRIC)
    means = {s: sums[str(s)]["sum"] / sums[str(s)]["examples"] for s in sites}
    return {h: float(v) for s, values in means.items() for h, v in zip(s.heads, values, strict=True)}
