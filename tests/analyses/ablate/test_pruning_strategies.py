"""Strategies on toy scorers whose best sets are known."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlens.analyses.ablate.pruning_strategies import (
    STRATEGY_ENTRIES,
    BeamSearch,
    Choice,
    Cost,
    Greedy,
    RandomOrder,
    Score,
    Scorer,
    Strategy,
    StrategyEntry,
    StrategySettings,
    check_pruning,
    in_order,
    pruning_counts,
    strategy_choices,
    strategy_cost,
)
from headlens.analyses.ablate.scorers import CachedScorer, ImportanceScorer
from headlens.errors import ExtensionError, OptionError
from headlens.heads import Head

HEADS = [Head("encoder", layer, head) for layer in range(2) for head in range(3)]
A, B, C, D, E, F = HEADS
Sets = list[frozenset[Head]]


@dataclass
class Toy:
    """A function of sets, and how often it was asked; it may fail after some questions."""

    value: Callable[[frozenset[Head]], float]
    patience: int = 10**9
    asked: list[int] = field(default_factory=list)
    pairs: list[tuple[frozenset[Head], Head]] = field(default_factory=list)

    def without(self, removed: frozenset[Head], candidates: Sequence[Head]) -> Mapping[Head, float]:
        if len(self.asked) == self.patience:
            raise KeyboardInterrupt
        assert not removed & set(candidates)
        assert list(candidates) == list(in_order(candidates))
        self.asked.append(len(candidates))
        self.pairs += [(removed, h) for h in candidates]
        return {h: self.value(removed | {h}) for h in candidates}


def additive(worth: Sequence[float]) -> Toy:
    """Every head's loss costs what it is worth."""
    by_head = dict(zip(HEADS, worth, strict=True))
    return Toy(lambda gone: -sum(by_head[h] for h in sorted(gone)))


def table(values: Mapping[str, float], otherwise: float = -100.0) -> Toy:
    """Values of sets by the letters of their heads."""
    known = {frozenset(HEADS["ABCDEF".index(x)] for x in letters): v for letters, v in values.items()}
    return Toy(lambda gone: known.get(gone, otherwise))


def random_sets(seed: int) -> Toy:
    """Any value for any set, many of them equal."""
    return Toy(lambda gone: hash((seed, *sorted((h.layer, h.head) for h in gone))) % 17 / 4)


def sets(strategy: Strategy, most: int = 6, heads: Collection[Head] = HEADS) -> Sets:
    return [frozenset(c.removed) for c in strategy.choices(heads, most)]


def value(choice: Choice) -> float:
    assert choice.score is not None
    return choice.score.value


def best(toy: Toy, size: int) -> float:
    return max(toy.value(frozenset(s)) for s in combinations(HEADS, size))


def every(scorer: Scorer) -> dict[str, Strategy]:
    """All strategies that ask this scorer, and the one that asks none."""
    return {
        "ranked": Greedy(scorer),
        "in twos": Greedy(scorer, 2),
        "stepwise": Greedy(scorer, 1),
        "greedy": BeamSearch(scorer),
        "beam": BeamSearch(scorer, 3),
        "random": RandomOrder(4),
    }


NAMES = list(every(additive([0] * 6)))
NESTED = [n for n in NAMES if n != "beam"]
SEEDS = st.integers(0, 2**32)


@pytest.mark.parametrize("name", ["ranked", "in twos", "stepwise", "greedy", "beam"])
def test_heads_of_independent_worth_go_by_worth(name: str) -> None:
    toy = additive([5, 1, 4, 0.5, 3, 2])
    order = [D, B, F, E, C, A]
    assert sets(every(toy)[name]) == [frozenset(order[:n]) for n in range(1, 7)]


def test_ranked_asks_once_and_takes_no_notice_of_what_heads_do_together() -> None:
    # A and B stand in for each other: one can go, not both.
    toy = table({"A": 0, "B": -1, "C": -2, "D": -3, "E": -4, "F": -5, "AB": -90, "AC": -2})
    assert sets(Greedy(toy), 2) == [{A}, {A, B}]
    assert toy.asked == [6]
    assert sets(BeamSearch(toy), 2) == [{A}, {A, C}]


def test_a_step_of_two_scores_again_after_two() -> None:
    toy = table({"A": 0, "B": -1, "ABC": -50, "ABD": -40, "ABE": -60, "ABF": -70})
    assert sets(Greedy(toy, 2), 3) == [{A}, {A, B}, {A, B, D}]
    assert toy.asked == [6, 4]


def test_a_beam_of_two_finds_what_greedy_misses() -> None:
    toy = table({"A": 0, "B": -1, "AC": -5, "AD": -5, "BC": -2})
    assert [(c.removed, value(c)) for c in BeamSearch(toy).choices(HEADS, 2)] == [((A,), 0), ((A, C), -5)]
    assert [(c.removed, value(c)) for c in BeamSearch(toy, 2).choices(HEADS, 2)] == [((A,), 0), ((B, C), -2)]
    assert best(toy, 2) == -2


def test_a_wider_beam_can_do_worse_from_three_heads_on() -> None:
    """As its documentation says: better pairs crowd out the one with the good extension."""
    toy = table({"A": 0, "B": -1, "AC": -3, "BD": -2, "BE": -2, "ACF": -4}, -50)
    greedy, beam = (list(BeamSearch(toy, width).choices(HEADS, 3)) for width in (1, 2))
    assert greedy[2] == Choice((A, C, F), Score(-4))
    assert value(beam[1]) == -2
    assert value(beam[2]) == -50


@pytest.mark.parametrize(("late", "expected"), [(-2, (B, A)), (-3, (A, B)), (-4, (A, B))])
def test_a_set_counts_once_by_its_best_way(late: float, expected: tuple[Head, ...]) -> None:
    """Where a scorer is not quite sure, as models in single precision are not."""

    class Unsure:
        def without(self, removed: frozenset[Head], candidates: Sequence[Head]) -> Mapping[Head, float]:
            first = {A: 0.0, B: -1.0}
            pair = {frozenset({A}): {B: -3.0}, frozenset({B}): {A: late, C: -5.0}}
            return {h: pair.get(removed, first).get(h, -100.0) for h in candidates}

    *_, found = BeamSearch(Unsure(), 2).choices(HEADS, 2)
    assert found == Choice(expected, Score(max(late, -3)))


@given(SEEDS)
def test_a_wider_beam_is_no_worse_for_two_heads(seed: int) -> None:
    toy = random_sets(seed)
    scores = [[value(c) for c in BeamSearch(toy, width).choices(HEADS, 2)] for width in range(1, 8)]
    assert len({first for first, _ in scores}) == 1
    assert [second for _, second in scores] == sorted(second for _, second in scores)


@given(SEEDS)
def test_a_beam_of_everything_is_brute_force(seed: int) -> None:
    toy = random_sets(seed)
    assert [value(c) for c in BeamSearch(toy, 20).choices(HEADS, 6)] == [best(toy, n) for n in range(1, 7)]


@given(SEEDS)
def test_greedy_is_written_down_twice(seed: int) -> None:
    """A beam of one, steps of one, and a loop that knows nothing of either."""
    toy, gone, expected = random_sets(seed), frozenset[Head](), []
    for _ in HEADS:
        # The first of the best ones.
        gone |= {max((h for h in HEADS if h not in gone), key=lambda h: toy.value(gone | {h}))}
        expected.append(gone)
    assert sets(BeamSearch(toy, 1)) == sets(Greedy(toy, 1)) == expected


@pytest.mark.parametrize("strategy", [Greedy, BeamSearch])
def test_heads_whose_loss_leaves_the_metric_as_it_is_go_by_what_is_finer(strategy: type[Any]) -> None:
    class Equal:
        def without(self, removed: frozenset[Head], candidates: Sequence[Head]) -> Mapping[Head, Score]:
            # By the metric F alone is missed; by the loss the last heads of the model are the least missed.
            return {h: Score(-float(h == F), HEADS.index(h)) for h in candidates}

    *_, last = strategy(Equal()).choices(HEADS, 6)
    assert last.removed == (E, D, C, B, A, F)


@given(SEEDS, st.integers(1, 4))
def test_a_beam_is_its_definition(seed: int, width: int) -> None:
    toy, kept = random_sets(seed), [frozenset[Head]()]
    for choice in BeamSearch(toy, width).choices(HEADS, 6):
        grown = {s | {h} for s in kept for h in HEADS if h not in s}
        kept = sorted(grown, key=lambda s: (-toy.value(s), sorted(s)))[:width]
        assert frozenset(choice.removed) == kept[0]
        assert value(choice) == toy.value(kept[0])


@pytest.mark.parametrize("name", NAMES)
@given(SEEDS, st.permutations(HEADS), st.integers(0, 6))
def test_what_holds_for_all(name: str, seed: int, heads: list[Head], most: int) -> None:
    toy = random_sets(seed)
    strategy = every(toy)[name]
    found = list(strategy.choices(HEADS, most))
    assert [len(set(c.removed)) for c in found] == [len(c.removed) for c in found] == list(range(1, most + 1))
    cost, bound = Cost(len(toy.asked), sum(toy.asked)), strategy.cost(6, most)
    assert cost == bound or (name == "beam" and most > 3 and cost.calls <= bound.calls)
    assert cost.candidates <= bound.candidates
    assert list(strategy.choices(heads, most)) == found
    if name in NESTED:
        assert all(b.removed[:-1] == a.removed for a, b in pairwise(found))


@pytest.mark.parametrize("name", ["in twos", "greedy", "beam"])
@given(SEEDS, st.integers(0, 14))
def test_stopped_anywhere_it_goes_on_to_the_same_end(name: str, seed: int, patience: int) -> None:
    expected = list(every(random_sets(seed))[name].choices(HEADS, 5))
    kept, memories = [CachedScorer(Toy(lambda _: 0.0)).dump()], list[CachedScorer]()
    pairs: list[tuple[frozenset[Head], Head]] = []
    for toy in (Toy(random_sets(seed).value, patience), random_sets(seed)):
        memories.append(memory := CachedScorer(toy, lambda _: kept.append(memories[-1].dump())))
        memory.take(kept[-1])
        found: list[Choice] = []
        try:
            found += every(memory)[name].choices(HEADS, 5)
        except KeyboardInterrupt:
            assert len(toy.asked) == patience
        pairs += toy.pairs
    assert found == expected
    assert len(set(pairs)) == len(pairs)


def test_strategies_with_one_memory_share_the_first_sweep() -> None:
    toy = table({"A": 0, "B": -1, "AC": -5, "BC": -2})
    memory = CachedScorer(toy)
    assert sets(Greedy(memory), 2) == [{A}, {A, B}]
    assert sets(BeamSearch(memory), 2) == [{A}, {A, C}]
    assert sets(BeamSearch(memory, 2), 2) == [{A}, {B, C}]
    # All heads alone, then what follows the best head and the second best.
    assert toy.asked == [6, 5, 5]


def importance(removed: frozenset[Head]) -> dict[Head, float]:
    """The first layer matters ten times as much; without A, B is all that is left of it."""
    found = {A: 10.0, B: 20.0, C: 30.0, D: 1.0, E: 2.0, F: 3.0}
    if A in removed:
        found[C] = 0.5
    return {h: v for h, v in found.items() if h not in removed}


def test_importance_once_and_anew() -> None:
    raw = ImportanceScorer(importance, normalize=False)
    assert [c.removed[-1] for c in Greedy(raw).choices(HEADS, 6)] == [D, E, F, A, B, C]
    assert [c.removed[-1] for c in Greedy(raw, 1).choices(HEADS, 6)] == [D, E, F, A, C, B]
    # Shares of the norm of a layer: equal in both, so that the first goes first.
    assert [c.removed[-1] for c in Greedy(ImportanceScorer(importance)).choices(HEADS, 6)] == [A, D, B, E, C, F]
    assert [c.removed[-1] for c in Greedy(ImportanceScorer(importance), 1).choices(HEADS, 3)] == [A, C, D]


@given(st.lists(st.floats(0.01, 100), min_size=6, max_size=6))
def test_normalised_importance_empties_no_layer_while_another_has_two_heads(values: list[float]) -> None:
    def constant(removed: frozenset[Head]) -> dict[Head, float]:
        return {h: v for h, v in zip(HEADS, values, strict=True) if h not in removed}

    removed = next(c.removed for c in Greedy(ImportanceScorer(constant), 1).choices(HEADS, 6) if len(c.removed) == 4)
    assert {h.layer for h in HEADS if h not in removed} == {0, 1}


def test_random_orders_are_those_of_their_seed() -> None:
    orders = {next(c.removed for c in RandomOrder(s).choices(HEADS, 6) if len(c.removed) == 6) for s in range(40)}
    assert len(orders) > 30
    assert {order[0] for order in orders} == set(HEADS)
    *_, pinned = RandomOrder(0).choices(HEADS, 6)
    # A change here makes curves of before and after incomparable.
    assert pinned.removed == (D, C, B, E, F, A)


@given(SEEDS)
def test_random_orders_of_some_heads_are_those_among_all(seed: int) -> None:
    *_, whole = RandomOrder(seed).choices(HEADS, 6)
    *_, some = RandomOrder(seed).choices([F, B, C], 3)
    assert list(some.removed) == [h for h in whole.removed if h in (B, C, F)]


def test_choices_come_one_by_one() -> None:
    toy = additive([1, 2, 3, 4, 5, 6])
    choices = BeamSearch(toy).choices(HEADS, 6)
    assert toy.asked == []
    next(choices)
    assert toy.asked == [6]


def test_counts_are_put_in_order() -> None:
    assert pruning_counts([30, 3, 10, 3], 72) == (3, 10, 30)
    assert pruning_counts([72], 72) == (72,)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([], "No number of heads to prune was given"),
        ([3, 0], "0 heads cannot be pruned"),
        ([-2], "-2 heads cannot be pruned"),
        ([3, 73], "73 heads cannot be pruned: the model has 72.\nGive numbers up to 72."),
    ],
)
def test_counts_that_cannot_be_meant(counts: list[int], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        pruning_counts(counts, 72)


@pytest.mark.parametrize("name", NAMES)
def test_more_than_all_heads_cannot_go(name: str) -> None:
    with pytest.raises(OptionError, match="7 heads cannot be pruned: the model has 6"):
        next(iter(every(additive([0] * 6))[name].choices(HEADS, 7)))


def test_widths_and_steps_are_at_least_1() -> None:
    with pytest.raises(OptionError, match="A beam of 0 keeps nothing"):
        BeamSearch(additive([0] * 6), 0)
    with pytest.raises(OptionError, match="0 heads cannot be removed per step"):
        Greedy(additive([0] * 6), 0)


def test_costs_of_a_large_model() -> None:
    toy = additive([0] * 6)
    assert Greedy(toy).cost(144, 30) == Cost(1, 144)
    assert Greedy(toy, 10).cost(144, 30) == Cost(3, 144 + 134 + 124)
    assert BeamSearch(toy).cost(144, 3) == Cost(3, 144 + 143 + 142)
    assert BeamSearch(toy, 5).cost(144, 3) == Cost(11, 144 + 5 * 143 + 5 * 142)
    assert RandomOrder().cost(144, 30) == Cost(0, 0)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([72], "72 heads cannot be pruned: nothing would be left.\n--prune can be up to 71."),
        ([3, 80], "80 heads cannot be pruned: the model has 72.\n--prune can be up to 71."),
        ([0], "0 heads cannot be pruned.\nGive numbers of at least 1"),
        ([], "No number of heads to prune was given"),
    ],
)
def test_some_head_has_to_be_left(counts: list[int], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        check_pruning(counts, 72)
    assert check_pruning([71, 3], 72) == (3, 71)


@pytest.mark.parametrize("name", STRATEGY_ENTRIES)
def test_the_cost_of_an_entry_is_at_most_what_is_asked(name: str) -> None:
    toy, entry = additive([5, 1, 4, 0.5, 3, 2]), STRATEGY_ENTRIES[name]
    assert len(sets(entry.make(StrategySettings(toy, 2, 0)), 3)) == 3
    cost = strategy_cost(name, 2, 6, 3)
    assert (cost.calls, cost.candidates) == (len(toy.asked), sum(toy.asked))
    assert (entry.scored_by is None) == (cost.calls == 0)


@pytest.mark.parametrize("name", STRATEGY_ENTRIES)
def test_only_seeded_entries_depend_on_the_seed(name: str) -> None:
    entry = STRATEGY_ENTRIES[name]
    orders = {tuple(sets(entry.make(StrategySettings(random_sets(1), 2, seed)), 5)) for seed in range(4)}
    assert (len(orders) > 1) == entry.seeded


def test_another_package_adds_a_strategy_that_help_and_options_know(tmp_path: Path) -> None:
    info = tmp_path / "reversing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reversing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[headlens.strategies]\nlast = reversing:ENTRY\n")
    (tmp_path / "reversing.py").write_text(
        "from headlens.analyses.ablate.pruning_strategies import RandomOrder, StrategyEntry\n"
        "ENTRY = StrategyEntry(lambda settings: RandomOrder(settings.seed), seeded=True)\n"
    )
    code = (
        "from headlens.analyses.ablate.options import COMMAND, PruneOptions\n"
        "assert PruneOptions((3,), ('last',)).strategies == ('last',)\n"
        "print(COMMAND.options['strategies'].option.help)\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert done.stdout == (
        "Strategies for choosing the heads to prune: ranked, importance, importance-steps, greedy, beam, relevance, "
        "attribution, shapley, norm, entropy, gates, random, random-by-layer, placebo, last; or all, which leaves out "
        "gates and the random controls of each, random-by-layer and placebo.\n"
    )


@dataclass(frozen=True)
class Theirs(Strategy):
    """A strategy of another package: removes what it is told, then ends or fails."""

    made: Sequence[tuple[Head, ...]]
    error: Exception | None = None

    def choices(self, heads: Collection[Head], most: int) -> Iterator[Choice]:
        yield from map(Choice, self.made)
        if self.error:
            raise self.error

    def cost(self, heads: int, most: int) -> Cost:
        return Cost(0, heads // 0 if heads > len(HEADS) else 0)


def choices_of(monkeypatch: pytest.MonkeyPatch, theirs: Theirs) -> list[tuple[Head, ...]]:
    monkeypatch.setitem(STRATEGY_ENTRIES._found, "theirs", StrategyEntry(lambda _: theirs))
    settings = StrategySettings(Toy(lambda _: 0.0), 1, 0)
    return [choice.removed for choice in strategy_choices("theirs", settings, HEADS, (1, 3))]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ([(A,), (A, B), (A, B)], r"does not choose 3 heads of the model where it is to, but encoder\.0\.0, encoder"),
        ([(A,), (A, A)], "does not choose 2 heads"),
        ([(Head("decoder", 0, 0),)], r"does not choose 1 head of the model where it is to, but decoder\.0\.0"),
        ([()], "does not choose 1 head of the model where it is to, but none"),
        ([(A,), (A, B)], "ends before 3 heads are chosen"),
        ([], "ends before 3 heads are chosen"),
    ],
)
def test_what_another_package_chooses_is_checked(
    monkeypatch: pytest.MonkeyPatch, made: list[tuple[Head, ...]], message: str
) -> None:
    with pytest.raises(ExtensionError, match=f"The strategy theirs {message}"):
        choices_of(monkeypatch, Theirs(made))


def test_a_strategy_of_another_package_that_fails_is_told_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choices_of(monkeypatch, Theirs([(A,), (A, B), (C, B, A)], ValueError("not asked for"))) == [(A,), (C, B, A)]
    with pytest.raises(ExtensionError, match="The strategy theirs fails in its choices: ValueError: no"):
        choices_of(monkeypatch, Theirs([(A,)], ValueError("no")))
    with pytest.raises(ExtensionError, match="The strategy theirs fails in its cost: ZeroDivisionError"):
        strategy_cost("theirs", 1, 99, 3)
