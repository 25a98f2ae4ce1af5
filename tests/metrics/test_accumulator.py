"""Named sums: adding, forgetting, merging, saving."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headlens.errors import ExtensionError
from headlens.metrics import accumulator
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


@pytest.fixture
def _stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulator, "stays", lambda _: True)


def batches() -> list[dict[str, torch.Tensor]]:
    """Sums of batches, of which one has a name more, and one a name less."""
    generator = torch.Generator().manual_seed(0)
    sums = []
    for number in range(7):
        of_batch = {
            "x": torch.rand(3, generator=generator, dtype=torch.float64) * 10.0**number,
            "n": torch.tensor(number),
        }
        sums.append(of_batch | ({"more": torch.rand(2, generator=generator)} if number in (2, 3) else {}))
    return sums


def added_up(read_after: set[int], discarded: set[int] = frozenset()) -> Accumulator:
    totals = Accumulator()
    for number, sums in enumerate(batches()):
        if number in discarded:
            totals.add("metric", "encoder.0", {"x": torch.full((3,), 1e9)})
            totals.fetch()
            totals.discard()
        totals.add("metric", "encoder.0", sums)
        totals.add("metric", "encoder.0", {"x": torch.tensor([0.1, 0.2, 0.3])})  # again, as of a part of a batch
        totals.fetch()
        totals.commit()
        if number in read_after:
            again = Accumulator()
            again.add_arrays(totals.arrays())  # as a run that goes on does
            totals = again
    return totals


def assert_equal(one: Accumulator, other: Accumulator) -> None:
    assert list(one) == list(other)
    for name, array in one.arrays().items():
        np.testing.assert_array_equal(array, other.arrays()[name])
        assert array.dtype == other.arrays()[name].dtype


@pytest.mark.usefixtures("_stays")
@pytest.mark.parametrize("read_after", [set(), {0}, {2, 4}, set(range(7))])
def test_totals_on_a_device_do_not_depend_on_when_they_are_read(read_after: set[int]) -> None:
    assert_equal(added_up(read_after, {0, 3}), added_up(set()))


def test_totals_on_a_device_are_those_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = added_up(set())
    monkeypatch.setattr(accumulator, "stays", lambda _: True)
    found = added_up(set())
    assert list(found) == list(expected)
    for name, array in expected.arrays().items():
        np.testing.assert_allclose(found.arrays()[name], array, rtol=1e-15)


@pytest.mark.usefixtures("_stays")
def test_a_shape_that_changes_is_refused_on_a_device_too() -> None:
    found = totals(x=torch.tensor([1.0]))
    found.add("metric", "encoder.0", {"x": torch.tensor([1.0, 2.0])})
    with pytest.raises(ExtensionError, match=r"of shape \(2,\) after \(1,\)"):
        found.fetch()
    found.discard()
    assert found.of("metric")["encoder.0"]["x"].tolist() == [1.0]
    found.clear()
    assert found.arrays() == {}
