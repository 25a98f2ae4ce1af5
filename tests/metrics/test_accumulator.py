"""Named sums: adding, forgetting, merging, saving."""

from __future__ import annotations

import numpy as np
import torch

from headlens.metrics.accumulator import Accumulator


def totals(**sums: torch.Tensor) -> Accumulator:
    found = Accumulator()
    found.add("metric", "encoder.0", sums)
    found.commit()
    return found


def test_counts_are_integers_and_sums_float64() -> None:
    sums = totals(n=torch.tensor([1], dtype=torch.int32), x=torch.tensor([1.5]), flag=torch.tensor(True)).of("metric")
    kinds = {name: value.dtype for name, value in sums["encoder.0"].items()}
    assert kinds == {"n": np.int64, "x": np.float64, "flag": np.int64}


def test_sums_add_up_without_losing_small_ones() -> None:
    found = totals(x=torch.tensor([2.0**24]))
    for _ in range(3):
        found.add("metric", "encoder.0", {"x": torch.tensor([1.0])})
        found.commit()
    assert found.of("metric")["encoder.0"]["x"].tolist() == [2.0**24 + 3]


def test_discard_forgets_what_is_pending_only() -> None:
    found = totals(n=torch.tensor(1))
    found.add("metric", "encoder.0", {"n": torch.tensor(5)})
    found.discard()
    found.commit()
    assert found.of("metric")["encoder.0"]["n"] == 1


def test_what_is_fetched_counts_only_when_committed() -> None:
    found = totals(n=torch.tensor(1))
    found.add("metric", "encoder.0", {"n": torch.tensor(5)})
    found.fetch()
    assert found.of("metric")["encoder.0"]["n"] == 1
    found.add("metric", "encoder.0", {"n": torch.tensor(2)})
    found.commit()
    found.commit()
    assert found.of("metric")["encoder.0"]["n"] == 8
    found.add("metric", "encoder.0", {"n": torch.tensor(9)})
    found.fetch()
    found.discard()
    found.commit()
    assert found.of("metric")["encoder.0"]["n"] == 8


def test_merge_takes_new_names_and_leaves_the_other_alone() -> None:
    first, second = totals(n=torch.tensor([1, 2])), totals(n=torch.tensor([3, 4]), x=torch.tensor([0.5]))
    first.add_arrays(second.arrays())
    first.add_arrays(second.arrays())
    assert first.of("metric")["encoder.0"]["n"].tolist() == [7, 10]
    assert first.of("metric")["encoder.0"]["x"].tolist() == [1.0]
    assert second.of("metric")["encoder.0"]["n"].tolist() == [3, 4]
    assert second.of("metric")["encoder.0"]["x"].tolist() == [0.5]


def test_metrics_and_places_are_kept_apart() -> None:
    found = totals(n=torch.tensor(1))
    found.add("metric", "encoder.1", {"n": torch.tensor(2)})
    found.add("other", "encoder.0", {"n": torch.tensor(3)})
    found.commit()
    assert {p: int(s["n"]) for p, s in found.of("metric").items()} == {"encoder.0": 1, "encoder.1": 2}
    assert found.of("nobody") == {}


def test_arrays_there_and_back() -> None:
    first = totals(n=torch.tensor([[1, 2]]), scalar=torch.tensor(7), x=torch.tensor([1 / 3], dtype=torch.float64))
    first.add("metric", "encoder.0", {"scalar": torch.tensor(1)})
    first.commit()
    first.add("metric", "encoder.0", {"n": torch.tensor([[9, 9]])})  # pending: not among them
    second = Accumulator()
    second.add_arrays(first.arrays())
    assert list(second) == list(first)
    for name, value in first.of("metric")["encoder.0"].items():
        same = second.of("metric")["encoder.0"][name]
        assert (same.dtype, same.shape) == (value.dtype, value.shape)
        np.testing.assert_array_equal(same, value)
    second.add_arrays(first.arrays())
    assert first.of("metric")["encoder.0"]["scalar"] == 8
    assert second.of("metric")["encoder.0"]["scalar"] == 16


def test_nothing_is_left_after_clear() -> None:
    full = totals(n=torch.tensor([1]))
    full.add("metric", "encoder.0", {"n": torch.tensor([9])})
    full.clear()
    full.commit()
    assert full.arrays() == {}
