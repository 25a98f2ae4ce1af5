"""Which heads go, if a number of them has to.

- ranked, ascending damage of single heads (Song): `InSteps(scorer)`, one sweep;
- by importance (Michel et al. 2019): `InSteps(ByImportance(importance))` estimated once, and with `step=1` anew after
  every removal;
- greedily, all remaining heads tried after each removal: `Beam(scorer)`; with a beam: `Beam(scorer, width)`;
- at random, the control: `Shuffled(seed)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import comb
from typing import NamedTuple

from headlens.analyses.ablate.scorers import Score, Scorer, in_order, place, scores_of
from headlens.errors import OptionError, counted
from headlens.heads import Head
from headlens.statistics.seeding import generator_of


@dataclass(frozen=True)
class Choice:
    """The heads a strategy removes if it is to remove so many.

    Args:
        removed: which, in the order they went.
        score: what the scorer said of the whole set; None where it was not asked.
    """

    removed: tuple[Head, ...]
    score: Score | None = None


class Cost(NamedTuple):
    """What a strategy asks of its scorer, at most.

    Args:
        calls: how often it is asked.
        candidates: heads of all calls together.
    """

    calls: int
    candidates: int


class Strategy(ABC):
    """Base of all strategies; subclasses are frozen dataclasses of parameters.

    A strategy is a function of what its scorer says: asked again it chooses the same, whatever the order of the heads
    it is given. One that was interrupted goes on when run again with a scorer that remembers (`Remembered`).
    """

    @abstractmethod
    def choices(self, heads: Collection[Head], most: int) -> Iterator[Choice]:
        """The choices for 1, 2, ... `most` heads out of `heads`, each as soon as it is made.

        Raises:
            OptionError: if there are fewer heads.
        """

    @abstractmethod
    def cost(self, heads: int, most: int) -> Cost:
        """What `choices` asks of the scorer, with so many heads."""


@dataclass(frozen=True)
class Greedy(Strategy):
    """The heads with the highest scores go, several at once; then the others are scored again.

    Of equal scores the first head in the order of the model goes first. The choices are nested.

    Args:
        scorer: is asked once for each step.
        step: heads that go at once; None for all of them, so that there is one step.
    """

    scorer: Scorer
    step: int | None = None

    def __post_init__(self) -> None:
        if self.step is not None and self.step < 1:
            raise OptionError(f"{self.step} heads cannot go at once.", "Give 1 or more.")

    def choices(self, heads: Collection[Head], most: int) -> Iterator[Choice]:
        """Yields nested choices without scores, removing the `step` best heads after each call of the scorer."""
        left = _enough(heads, most)
        removed: tuple[Head, ...] = ()
        while len(removed) < most:
            scores = scores_of(self.scorer, frozenset(removed), left)
            # Sorting keeps the order of equal scores, reversed or not.
            best = sorted(scores, key=scores.__getitem__, reverse=True)[: self.step]
            for head in best[: most - len(removed)]:
                removed = (*removed, head)
                yield Choice(removed)
            left = [h for h in left if h not in removed]

    def cost(self, heads: int, most: int) -> Cost:
        """Computes the exact cost: one call of the scorer for every `step` heads removed, over all heads left."""
        sizes = [heads - gone for gone in range(0, most, self.step or max(most, 1))]
        return Cost(len(sizes), sum(sizes))


@dataclass(frozen=True)
class BeamSearch(Strategy):
    """Of every size the best sets are kept, and each is extended by every head that is left (Song's future work).

    With a width of 1 this is the greedy search: after each removal all other heads are scored again, and the one that
    is missed least goes. Of equal scores the set that comes first wins, its heads in the order of the model.

    With a scorer that says the same of a set however it came about, a wider beam does at least as well for up to two
    heads, since it extends what a narrower one does and more. For three and more it can do worse, on the ranking part
    as elsewhere: sets that look better may crowd out the one that had the better extension. A beam as wide as there are
    sets of a size finds the best of all. The choices need not be nested.

    Args:
        scorer: is asked once for each set that is kept.
        width: sets of one size that are kept.
    """

    scorer: Scorer
    width: int = 1

    def __post_init__(self) -> None:
        if self.width < 1:
            raise OptionError(f"A beam of {self.width} keeps nothing.", "Give 1 for greedy, or more.")

    def choices(self, heads: Collection[Head], most: int) -> Iterator[Choice]:
        """With scores; `removed` in the order in which the best set grew."""
        every = _enough(heads, most)
        kept = [Choice(())]
        for _ in range(most):
            kept = self._best(self._extended(kept, every))
            yield kept[0]

    def _extended(self, kept: Sequence[Choice], heads: Sequence[Head]) -> dict[frozenset[Head], Choice]:
        """All sets with one head more, each by its best way."""
        choices: dict[frozenset[Head], Choice] = {}
        for choice in kept:
            gone = frozenset(choice.removed)
            scores = scores_of(self.scorer, gone, [h for h in heads if h not in gone])
            for head, score in scores.items():
                before = choices.get(gone | {head})
                if before is None or before.score is None or score > before.score:
                    choices[gone | {head}] = Choice((*choice.removed, head), score)
        return choices

    def _best(self, choices: dict[frozenset[Head], Choice]) -> list[Choice]:
        def key(choice: Choice) -> tuple[float, float, list[tuple[int, int, int]]]:
            assert choice.score is not None
            return -choice.score.value, -choice.score.finer, sorted(map(place, choice.removed))

        return sorted(choices.values(), key=key)[: self.width]

    def cost(self, heads: int, most: int) -> Cost:
        """Exactly for a width of 1 and for up to half of the heads, else at most."""
        sets = [min(self.width, comb(heads, gone)) for gone in range(most)]
        return Cost(sum(sets), sum(kept * (heads - gone) for gone, kept in enumerate(sets)))


@dataclass(frozen=True)
class RandomOrder(Strategy):
    """A random order, the control: what removing heads costs if nobody chooses them.

    Every head draws its place by itself, so that the order of some heads is the same among more of them.

    Args:
        seed: another order.
    """

    seed: int = 0

    def choices(self, heads: Collection[Head], most: int) -> Iterator[Choice]:
        """Yields prefixes of one random order of the heads, as nested choices without scores."""
        every = _enough(heads, most)
        order = sorted(every, key=lambda h: generator_of(str(h), self.seed).random())
        for size in range(1, most + 1):
            yield Choice(tuple(order[:size]))

    def cost(self, heads: int, most: int) -> Cost:
        """Returns a cost of zero, because a random order needs no scores."""
        del heads, most
        return Cost(0, 0)


def pruning_counts(numbers: Collection[int], heads: int) -> tuple[int, ...]:
    """Numbers of heads to remove, ascending, each once.

    Args:
        numbers: in any order.
        heads: of the model.

    Raises:
        OptionError: if there are none, or one is below 1 or above the number of heads.
    """
    if not numbers:
        raise OptionError("No number of heads to prune was given.", "Give some, such as 3,10,20,30.")
    for count in numbers:
        if count < 1:
            raise OptionError(f"{count} heads cannot be pruned.", "Give numbers from 1 up, such as 3,10,20,30.")
        if count > heads:
            raise OptionError(
                f"{counted(count, 'head')} cannot be pruned: the model has {heads}.", f"Give numbers up to {heads}."
            )
    return tuple(sorted(set(numbers)))


def _enough(heads: Collection[Head], most: int) -> list[Head]:
    every = in_order(set(heads))
    if most > len(every):
        pruning_counts([most], len(every))
    return list(every)
