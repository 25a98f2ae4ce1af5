"""How often heads keep their roles when sentences are drawn anew."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np

from headlens.corpora.encoding import EncodedExample
from headlens.metrics.accumulator import Accumulator, Array

# Sentences are drawn in so many groups, each of random ones: sums are kept for every group, not for every sentence.
GROUPS = 25


def group_of(example: EncodedExample) -> int:
    """Returns the number of the group of a sentence, which depends on its text alone."""
    return zlib.crc32(example.key.encode()) % GROUPS


class SentenceGroups:
    """The sums of each group of sentences, by name."""

    def __init__(self) -> None:
        self.totals = {f"statistics-{number}": Accumulator() for number in range(GROUPS)}

    def of(self, examples: Sequence[EncodedExample]) -> Accumulator:
        """Returns the sums to which a batch adds, all of whose sentences are of one group."""
        return self.totals[f"statistics-{group_of(examples[0])}"]

    def added(self, times: Sequence[int] | Array = (1,) * GROUPS) -> Accumulator:
        """Returns the sums of all groups, each counted so many times; (groups,)."""
        found = Accumulator()
        for totals, number in zip(self.totals.values(), times, strict=True):
            if number:
                found.add_arrays({name: array * number for name, array in totals.arrays().items()})
        return found


def role_stability(
    groups: SentenceGroups,
    roles: Callable[[Accumulator], Sequence[str]],
    resamples: int,
    seed: int,
    drawn: Callable[[int], None] = lambda _: None,
) -> Array:
    """Returns the share of resamples in which every head has the role that it has on all sentences; (heads,).

    Groups of sentences are drawn with replacement, as many as there are (bootstrap of clusters: sentences of a group
    are random ones, so that the spread is that of sentences).

    Args:
        groups: the sums of a corpus.
        roles: gives the roles of all heads from sums.
        resamples: how often groups are drawn.
        seed: of the draws.
        drawn: called after every one, with 1.
    """
    generator = np.random.default_rng(seed)
    own = np.array(roles(groups.added()), dtype=object)
    filled = np.array([bool(list(totals)) for totals in groups.totals.values()])
    kept = np.zeros(len(own))
    for _ in range(resamples):
        # Of a small corpus some groups are empty, and never drawn.
        times = np.zeros(GROUPS, dtype=np.int64)
        times[filled] = generator.multinomial(filled.sum(), np.full(filled.sum(), 1 / filled.sum()))
        kept += np.array(roles(groups.added(times)), dtype=object) == own
        drawn(1)
    share: Array = kept / resamples
    return share
