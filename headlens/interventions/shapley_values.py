"""Shapley values of heads: what a head adds to a task, on average over the orders in which all heads are taken out.

And interactions of pairs: how much more two heads add together than apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
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


@dataclass(frozen=True)
class HeadGame:
    """The heads of a model as the players of one game for each example of a batch.

    Args:
        model: in evaluation mode.
        inputs: of the batch.
        losses: of the model's outputs, (examples,).
        rows: how many rows of the batch each example has.
        players: all heads that the model uses in this batch.
    """

    model: PreTrainedModel
    inputs: Mapping[str, Any]
    losses: Callable[[Any], Tensor]
    rows: Sequence[int]
    players: Sequence[Head]

    @contextmanager
    def coalitions(self) -> Iterator[Callable[[npt.NDArray[np.bool_]], Floats]]:
        """Gives the loss of each example inside `with`, given which players are gone from it, (examples, players)."""
        gates = _RowGates()
        layers = list(dict.fromkeys(head[:2] for head in self.players))
        owner = np.repeat(np.arange(len(self.rows)), self.rows)
        with AttentionSession(self.model, edits=[gates]) as session, torch.inference_mode():
            sites = {(s.stack, s.layer): s for s in session.sites}

            def loss_without(gone: npt.NDArray[np.bool_]) -> Floats:
                for layer in layers:
                    heads = sites[layer].heads
                    kept = np.ones((len(self.rows), len(heads)))
                    for number, head in enumerate(self.players):
                        if head[:2] == layer:
                            kept[:, heads.index(head)] = ~gone[:, number]
                    gates.values[layer] = torch.from_numpy(kept[owner])
                return self.losses(self.model(**self.inputs)).double().cpu().numpy()

            yield loss_without


def shapley_values(game: HeadGame, orders: Sequence[npt.NDArray[np.intp]]) -> Floats:
    """How much the loss of each example grows with every head that goes, in a random order of its own and its reverse.

    The game of an example: the players are the heads, a coalition is worth minus the loss with all other heads at 0.
    Values of one example add up to its loss without any head less that with all, and their means over examples and
    random orders are unbiased estimates of the Shapley values (Castro et al. 2009; orders in antithetic pairs, Mitchell
    et al. 2022).

    Args:
        game: of the examples of a batch.
        orders: for every example, the numbers of the players in the order in which they go.

    Returns:
        (examples, players), in the unit of the loss.
    """
    examples, players = len(game.rows), len(game.players)
    found = np.zeros((examples, players))
    with game.coalitions() as loss_without:
        everybody = np.zeros((examples, players), bool)
        full, empty = loss_without(everybody), loss_without(~everybody)
        for direction in (1, -1):
            gone, before = everybody.copy(), full
            for step in range(players):
                going = np.array([order[::direction][step] for order in orders])
                gone[np.arange(examples), going] = True
                after = empty if step == players - 1 else loss_without(gone)
                found[np.arange(examples), going] += (after - before) / 2
                before = after
    return found


def interaction_samples(game: HeadGame, coalitions: npt.NDArray[np.bool_], pair: tuple[int, int]) -> Floats:
    """How much more two players are worth together than apart, for each example in a coalition of its own.

    In the game of `shapley_values` this is v(T ∪ ij) - v(T ∪ i) - v(T ∪ j) + v(T). Its mean over the coalitions that
    `random_coalitions` draws is the Shapley interaction index (Grabisch and Roubens 1999): by how much the Shapley
    value of one player is larger where the other one always is there than where it is gone. Below 0, each stands in for
    the other; above 0, each needs the other.

    Args:
        game: of the examples of a batch.
        coalitions: which others are there, (examples, players); what it says of the pair does not count.
        pair: the numbers of the two players.

    Returns:
        (examples,), in the unit of the loss.
    """
    found = np.zeros(len(coalitions))
    with game.coalitions() as loss_without:
        for first, second in product((False, True), repeat=2):
            gone = ~coalitions
            gone[:, pair] = not first, not second
            found -= (1 if first == second else -1) * loss_without(gone)
    return found


def random_coalitions(rng: np.random.Generator, players: int, pair: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Draws others than a pair that are there, and those that are not: (2, players); the pair itself is in neither.

    Their number is uniform, and so is which they are: those before the pair in a random order in which it is one
    player. The second coalition is that of the reversed order.
    """
    others = rng.permutation([number for number in range(players) if number not in pair])
    size = rng.integers(len(others) + 1)
    there = np.zeros((2, players), bool)
    there[0, others[:size]] = there[1, others[size:]] = True
    return there
