"""Shapley values of heads: what a head adds to a task, on average over the orders in which all heads are taken out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.attention.edits_and_observers import CallContext, Edit
from headlens.attention.session import AttentionSession
from headlens.heads import Head

Floats = npt.NDArray[np.float64]


class _RowGates(Edit):
    """Multiplies head outputs by numbers that change from pass to pass, (rows, heads) by layer."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, int], Tensor] = {}

    def output(self, context: CallContext, output: Tensor) -> Tensor:
        """The head outputs, (batch, query, heads, d), times the numbers of their rows."""
        gates = self.values[context.site.stack, context.site.layer]
        return output * gates.to(output)[:, None, :, None]


def shapley_values(
    model: PreTrainedModel,
    inputs: Mapping[str, Any],
    losses: Callable[[Any], Tensor],
    rows: Sequence[int],
    orders: Sequence[npt.NDArray[np.intp]],
    players: Sequence[Head],
) -> Floats:
    """How much the loss of each example grows with every head that goes, in a random order of its own and its reverse.

    The game of an example: the players are the heads, a coalition is worth minus the loss with all other heads at 0.
    Values of one example add up to its loss without any head less that with all, and their means over examples and
    random orders are unbiased estimates of the Shapley values (Castro et al. 2009; orders in antithetic pairs, Mitchell
    et al. 2022).

    Args:
        model: in evaluation mode.
        inputs: of a batch.
        losses: of the model's outputs, (examples,).
        rows: how many rows of the batch each example has.
        orders: for every example, the numbers of the players in the order in which they go.
        players: all heads that the model uses in this batch.

    Returns:
        (examples, players), in the unit of the loss.
    """
    gates, found = _RowGates(), np.zeros((len(rows), len(players)))
    layers = list(dict.fromkeys(head[:2] for head in players))
    owner = np.repeat(np.arange(len(rows)), rows)
    with AttentionSession(model, edits=[gates]) as session, torch.inference_mode():
        sites = {(s.stack, s.layer): s for s in session.sites}

        def loss_without(gone: npt.NDArray[np.bool_]) -> Floats:
            """Of each example, given which players are gone from it, (examples, players)."""
            for layer in layers:
                heads = sites[layer].heads
                kept = np.ones((len(rows), len(heads)))
                for number, head in enumerate(players):
                    if head[:2] == layer:
                        kept[:, heads.index(head)] = ~gone[:, number]
                gates.values[layer] = torch.from_numpy(kept[owner])
            return losses(model(**inputs)).double().cpu().numpy()

        everybody = np.zeros((len(rows), len(players)), bool)
        full, empty = loss_without(everybody), loss_without(~everybody)
        for direction in (1, -1):
            gone, before = everybody.copy(), full
            for step in range(len(players)):
                going = np.array([order[::direction][step] for order in orders])
                gone[np.arange(len(rows)), going] = True
                after = empty if step == len(players) - 1 else loss_without(gone)
                found[np.arange(len(rows)), going] += (after - before) / 2
                before = after
    return found
