"""Heads that are told while a sweep goes on."""

from __future__ import annotations

import numpy as np
import pytest

from headlens.analyses.ablate.sweep import HeadRecords, InterimHeads
from headlens.heads import Head
from headlens.replay.modes import Mode
from headlens.tasks.catalogue import CATALOGUE

HEADS = tuple(Head("encoder", 0, number) for number in range(5))
NEEDED = (0, 2, 0, 1, 5)  # of ten examples each, how many go wrong without a head


def told(
    seconds: float, steps: int = 1, mode: Mode = "zero", task: str = "sst2", needed: tuple[int, ...] = NEEDED
) -> list[str]:
    """What is told in a sweep of 300 examples, thirty after the other, with so many seconds for each thirty."""
    now, lines = 0.0, list[str]()
    interim = InterimHeads(CATALOGUE[task].task, CATALOGUE[task].task.metrics[0], mode, 300, lines.append, lambda: now)
    records = HeadRecords(HEADS, 300, 3 if task == "sst2" else 2)
    for start in range(0, 30 * steps, 30):
        right = np.ones((30, records.intact.shape[1]))
        wrong = np.stack([right] * len(HEADS))
        for place, number in enumerate(needed):
            wrong[place, : 3 * number, 1] = 0
        records.put(range(start, start + 30), np.stack([right, *wrong]))
        now += seconds
        interim(records)
    return lines


def test_the_heads_that_change_most() -> None:
    assert told(1.0) == [
        "preliminary, after 30 of 300 examples, short ones first: accuracy changes most without encoder.0.4 (-0.500), "
        "encoder.0.1 (-0.200), encoder.0.3 (-0.100)"
    ]
    assert told(1.0, needed=(0, 1, 1, 1, 2))[0].endswith("without encoder.0.4 (-0.200), 3 heads (-0.100 each)")
    assert "changes most with only encoder.0.4" in told(1.0, mode="keep-only")[0]
    assert told(1.0, needed=(0,) * 5)[0].endswith("accuracy does not change without any single head")


def test_what_is_not_defined_yet_is_not_told() -> None:
    """Correlation of equal scores."""
    assert told(1.0, task="stsb", needed=(0,) * 5)[0].endswith("pearson does not change without any single head")


@pytest.mark.parametrize(("seconds", "lines"), [(0.9, 0), (1.0, 2), (1.5, 2)])
def test_after_a_tenth_and_a_half_of_a_long_sweep(seconds: float, lines: int) -> None:
    assert len(told(seconds, steps=10)) == lines
