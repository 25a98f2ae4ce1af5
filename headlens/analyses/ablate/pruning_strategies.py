"""Which heads go, if a number of them has to: strategies, and what they ask of a scorer.

`STRATEGY_ENTRIES` at the end has every strategy by the name that `--strategies` takes; help, plan, run and figure
follow from it. Options are made of it, so that this file imports neither numpy nor torch at its top.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias, get_args

from headlens.errors import ExtensionError, OptionError, SelfCheckError, counted
from headlens.extensions import Registry, extension_errors
from headlens.options import StackName

if TYPE_CHECKING:
    from headlens.heads import Head

MOST_SETS = 1_000_000  # that are counted
# Heads, and how many of them are drawn.
Pool: TypeAlias = "tuple[tuple[Head, ...], int]"


class Score(NamedTuple):
    """How well a model does; scores are compared by `value`, equal ones by `finer`.

    Among few examples many heads leave accuracy as it is. If the first of them in the order of the model went first,
    that would say more of their place than of their worth.

    Args:
        value: a metric, higher is better.
        finer: what tells models apart whose metric is equal, higher is better.
    """

    value: float
    finer: float = 0.0

    @classmethod
    def of(cls, value: float | Score) -> Score:
        """What a scorer said; NaN counts as worst."""
        score = value if isinstance(value, Score) else cls(float(value))
        return cls(*(-math.inf if math.isnan(number) else float(number) for number in score))


class Scorer(Protocol):
    """Says which heads can go; strategies see nothing else of models and data."""

    def without(self, removed: frozenset[Head], candidates: Sequence[Head]) -> Mapping[Head, float | Score]:
        """A score for each candidate: the higher, the better the model does when it goes, too.

        Scores are compared with each other only: those of one set of removed heads, and for `BeamSearch` those of all
        sets of one size. Use a metric on the ranking part, with its sign flipped where lower is better; NaN counts as
        worst.

        Args:
            removed: the heads that are gone already.
            candidates: others, in the order of `place`; each goes alone on top of `removed`.
        """


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
    it is given. One that was interrupted goes on when run again with a scorer that remembers (`CachedScorer`).
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
            raise OptionError(f"{self.step} heads cannot be removed per step.", "Give 1 or more.")

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
        """Yields choices with scores; `removed` is in the order in which the best set grew."""
        every, beam = _enough(heads, most), [Choice((), Score(0.0))]
        for _ in range(most):
            # All sets with one head more, each by its best way.
            extended: dict[frozenset[Head], tuple[Score, Choice]] = {}
            for choice in beam:
                gone = frozenset(choice.removed)
                for head, score in scores_of(self.scorer, gone, [h for h in every if h not in gone]).items():
                    if gone | {head} not in extended or score > extended[gone | {head}][0]:
                        extended[gone | {head}] = score, Choice((*choice.removed, head), score)
            best = sorted(
                extended.values(),
                key=lambda candidate: (
                    -candidate[0].value,
                    -candidate[0].finer,
                    sorted(map(place, candidate[1].removed)),
                ),
            )
            beam = [choice for _, choice in best[: self.width]]
            yield beam[0]

    def cost(self, heads: int, most: int) -> Cost:
        """Computes the cost: exact for a width of 1 and for up to half of the heads, else an upper bound."""
        sets = [min(self.width, math.comb(heads, gone)) for gone in range(most)]
        return Cost(sum(sets), sum(beam * (heads - gone) for gone, beam in enumerate(sets)))


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
        from headlens.statistics.seeding import generator_of  # noqa: PLC0415 - numpy, which options do without

        every = _enough(heads, most)
        order = sorted(every, key=lambda h: generator_of(str(h), self.seed).random())
        for size in range(1, most + 1):
            yield Choice(tuple(order[:size]))

    def cost(self, heads: int, most: int) -> Cost:
        """Returns a cost of zero, because a random order needs no scores."""
        del heads, most
        return Cost(0, 0)


def layers_of(chosen: Collection[Head], heads: Iterable[Head]) -> list[Pool]:
    """Returns, for every layer, its heads, and how many of them were chosen."""
    layers: dict[tuple[str, int], list[Head]] = {}
    for head in heads:
        layers.setdefault(head[:2], []).append(head)
    return [(tuple(own), sum(head in chosen for head in own)) for own in layers.values()]


def others_than(chosen: Collection[Head], heads: Iterable[Head]) -> list[Pool]:
    """Returns the heads that were not chosen, and how many were."""
    return [(tuple(head for head in heads if head not in chosen), len(chosen))]


def check_pruning(numbers: Collection[int], heads: int) -> tuple[int, ...]:
    """Returns the numbers of heads that `--prune` asks for as `pruning_counts` does.

    Raises:
        OptionError: also if no head of the model would be left.
    """
    if (most := max(numbers, default=0)) >= heads:
        problem = "nothing would be left" if most == heads else f"the model has {heads}"
        raise OptionError(f"{counted(most, 'head')} cannot be pruned: {problem}.", f"--prune can be up to {heads - 1}.")
    return pruning_counts(numbers, heads)


def pruning_counts(numbers: Collection[int], heads: int) -> tuple[int, ...]:
    """Returns the numbers of heads to remove, ascending, each once.

    Args:
        numbers: in any order.
        heads: of the model.

    Raises:
        OptionError: if there are none, or one is below 1 or above the number of heads.
    """
    if not numbers:
        raise OptionError("No number of heads to prune was given.", "Give one or more, such as 3,10,20,30.")
    counts = sorted(set(numbers))
    if counts[0] < 1:
        raise OptionError(f"{counts[0]} heads cannot be pruned.", "Give numbers of at least 1, such as 3,10,20,30.")
    if counts[-1] > heads:
        most = counted(counts[-1], "head")
        raise OptionError(f"{most} cannot be pruned: the model has {heads}.", f"Give numbers up to {heads}.")
    return tuple(counts)


def scores_of(scorer: Scorer, removed: frozenset[Head], candidates: Sequence[Head]) -> dict[Head, Score]:
    """The scores of all candidates; -inf where they are NaN.

    Raises:
        SelfCheckError: if the scorer says nothing of a candidate.
    """
    scores = scorer.without(removed, candidates)
    for head in candidates:
        if head not in scores:
            raise SelfCheckError(f"No score is known for head {head} with {len(removed)} others gone.")
    return {h: Score.of(scores[h]) for h in candidates}


def place(head: Head) -> tuple[int, int, int]:
    """A key that sorts heads: encoder, decoder, cross; then layer; then head."""
    return get_args(StackName).index(head.stack), head.layer, head.head


def in_order(heads: Iterable[Head]) -> tuple[Head, ...]:
    """Returns the heads sorted by stack (encoder, decoder, cross), then layer, then head, as `place` orders them."""
    return tuple(sorted(heads, key=place))


def _enough(heads: Collection[Head], most: int) -> list[Head]:
    every = in_order(set(heads))
    if most > len(every):
        pruning_counts([most], len(every))
    return list(every)


@dataclass(frozen=True)
class StrategySettings:
    """What strategies are made of.

    Args:
        scorer: of heads, of the kind that the strategy's entry names.
        beam: sets of heads that a beam search keeps.
        seed: of a random order.
    """

    scorer: Scorer
    beam: int
    seed: int


@dataclass(frozen=True)
class StrategyEntry:
    """A strategy as `--strategies` names it.

    Args:
        make: makes it.
        scored_by: what scores heads: the metric without them on the ranking part, the importance or the attribution
            that gradients give, their relevance, their Shapley values, the norm of what they add, how far their
            attention is from even, or the gates of another run; None for strategies that ask nothing.
        seeded: whether it depends on the seed, so that there are `--strategy-args orders` of it.
        pools: of a control, which has a set for every set that another strategy chose: of which heads it draws how
            many, given that set and all heads; those that come first in the order that `make` gives.
    """

    make: Callable[[StrategySettings], Strategy]
    scored_by: (
        Literal["metric", "importance", "relevance", "attribution", "shapley", "norm", "entropy", "gates"] | None
    ) = None
    seeded: bool = False
    pools: Callable[[Collection[Head], Iterable[Head]], list[Pool]] | None = None


_OWN: dict[str, StrategyEntry] = {
    # Ascending damage of single heads (Song): one sweep.
    "ranked": StrategyEntry(lambda settings: Greedy(settings.scorer), "metric"),
    # Michel et al. (2019): estimated once, or anew after every removal.
    "importance": StrategyEntry(lambda settings: Greedy(settings.scorer), "importance"),
    "importance-steps": StrategyEntry(lambda settings: Greedy(settings.scorer, step=1), "importance"),
    "greedy": StrategyEntry(lambda settings: BeamSearch(settings.scorer), "metric"),
    "beam": StrategyEntry(lambda settings: BeamSearch(settings.scorer, settings.beam), "metric"),
    # The least relevant heads by layer-wise relevance propagation (Voita et al. 2019, section 4, rank heads by it).
    "relevance": StrategyEntry(lambda settings: Greedy(settings.scorer), "relevance"),
    # The heads that the loss needs least, by its gradient (attribution patching), and by their Shapley values.
    "attribution": StrategyEntry(lambda settings: Greedy(settings.scorer), "attribution"),
    "shapley": StrategyEntry(lambda settings: Greedy(settings.scorer), "shapley"),
    # What a head adds by its size (Kobayashi et al. 2020), and how evenly it attends: neither asks what it is good for.
    "norm": StrategyEntry(lambda settings: Greedy(settings.scorer), "norm"),
    "entropy": StrategyEntry(lambda settings: Greedy(settings.scorer), "entropy"),
    # The gates that another run trained (Voita et al. 2019, section 5).
    "gates": StrategyEntry(lambda settings: Greedy(settings.scorer), "gates"),
    # The control.
    "random": StrategyEntry(lambda settings: RandomOrder(settings.seed), seeded=True),
    # Controls of each of the others: does the choice within layers matter, and would any other heads do?
    "random-by-layer": StrategyEntry(lambda settings: RandomOrder(settings.seed), seeded=True, pools=layers_of),
    "placebo": StrategyEntry(lambda settings: RandomOrder(settings.seed), seeded=True, pools=others_than),
}
# Of those that come with headlens: random sets, and the controls among them.
RANDOM_SETS = tuple(name for name, entry in _OWN.items() if entry.seeded)
CONTROLS = tuple(name for name, entry in _OWN.items() if entry.pools)
STRATEGY_ENTRIES = Registry("headlens.strategies", _OWN, StrategyEntry, "strategy")


class _NoScores:
    """The scorer of strategies that are asked for their cost only."""

    def without(self, removed: frozenset[Head], candidates: Sequence[Head]) -> Mapping[Head, float]:
        raise LookupError(f"no scores of {len(candidates)} heads without {len(removed)}")


def control_sets(
    name: str, seeds: Iterable[int], chosen: Collection[Head], heads: Collection[Head]
) -> tuple[int, dict[int, tuple[Head, ...]]]:
    """Draws the random sets that the control of a name has beside a set that another strategy chose.

    Args:
        name: of a strategy with `pools`.
        seeds: a set for each.
        chosen: the heads of the other set.
        heads: that can go.

    Returns:
        How many different sets there are to draw from, counted up to `MOST_SETS`, and a set by seed, as many heads
        each; none where there are too few heads.
    """
    entry = STRATEGY_ENTRIES[name]
    pools = entry.pools(chosen, in_order(heads)) if entry.pools else []
    possible = min(MOST_SETS, math.prod(math.comb(len(pool), count) for pool, count in pools))
    drawn = {}
    for seed in seeds if possible else ():
        *_, order = entry.make(StrategySettings(_NoScores(), 1, seed)).choices(heads, len(heads))
        parts = ([head for head in order.removed if head in pool][:count] for pool, count in pools)
        drawn[seed] = tuple(head for part in parts for head in part)
    return possible, drawn


def strategy_cost(name: str, beam: int, heads: int, most: int) -> Cost:
    """Returns what the strategy of a name asks of its scorer, at most, to choose up to `most` of so many heads."""
    entry = STRATEGY_ENTRIES[name]
    with _strategy_errors(name, "cost"):
        return Cost(*entry.make(StrategySettings(_NoScores(), beam, 0)).cost(heads, most))


def strategy_choices(
    name: str, settings: StrategySettings, heads: Collection[Head], counts: Sequence[int]
) -> Iterator[Choice]:
    """Yields what the strategy of a name chooses, if it is to remove so many heads.

    Args:
        name: the strategy.
        settings: what it is made of.
        heads: that can go.
        counts: how many heads go, ascending.

    Raises:
        OptionError: if there are fewer heads.
        ExtensionError: if a strategy of another package fails, or does not choose as many of these heads.
    """
    entry = STRATEGY_ENTRIES[name]
    with _strategy_errors(name, "choices"):
        for size, choice in enumerate(entry.make(settings).choices(heads, counts[-1]), 1):
            chosen = set(choice.removed)
            if not (len(choice.removed) == len(chosen) == size and chosen <= set(heads)):
                raise ExtensionError(
                    f"The strategy {name} does not choose {counted(size, 'head')} of the model where it is to, but "
                    f"{', '.join(map(str, choice.removed)) or 'none'}.",
                    "Let it choose 1, 2, ... different ones of the heads that it is given.",
                )
            if size in counts:
                yield choice
            if size == counts[-1]:
                return
        raise ExtensionError(f"The strategy {name} ends before {counted(counts[-1], 'head')} are chosen.", "Mend it.")


def _strategy_errors(name: str, part: str) -> AbstractContextManager[None]:
    return nullcontext() if STRATEGY_ENTRIES.is_own(name) else extension_errors(f"The strategy {name}", part)
