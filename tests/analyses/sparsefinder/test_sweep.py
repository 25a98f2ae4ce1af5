"""All sites of a model: what is kept, and that a run that goes on gives the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from headlens.analyses.sparsefinder import pareto_points as module
from headlens.analyses.sparsefinder.options import FitOptions, ParameterGrid
from headlens.analyses.sparsefinder.pareto_curves import areas, of_model, of_stacks
from headlens.analyses.sparsefinder.pareto_points import PARETO_COLUMNS, SparsitySweep, SparsitySweepResult, pareto
from headlens.analyses.sparsefinder.query_key_store import QueryKeyStore
from headlens.tables.shared_columns import ALL

GRID = ParameterGrid(windows=(0, 3), thresholds=(0.5,), groups=(2,))
OPTIONS = FitOptions(2, epochs=1)
Whole = tuple[SparsitySweepResult, list[int]]


@pytest.fixture(scope="module")
def store(collected: Callable[..., QueryKeyStore], tmp_path_factory: pytest.TempPathFactory) -> QueryKeyStore:
    return collected(tmp_path_factory.mktemp("sweep") / "store", passes=4)


@pytest.fixture(scope="module")
def whole(store: QueryKeyStore, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A sweep that nothing interrupts, and the progress that it told."""
    seen: list[int] = []
    return SparsitySweep(store, store, tmp_path_factory.mktemp("kept"), GRID, OPTIONS).run(seen.append), seen


def test_every_site_has_its_heads_and_points(store: QueryKeyStore, whole: Whole) -> None:
    swept, seen = whole
    samples: dict[str, list[np.ndarray]] = {}
    table, fitted = swept.heads, swept.fitted
    assert seen == [1] * len(store.sites())
    assert list(fitted) == store.sites()
    assert set(table["stack"]) == {"encoder", "decoder", "cross"}
    for (stack, layer), rows in table.groupby(["stack", "layer"]):
        site = f"{stack}.{layer}"
        expected = pareto(lambda site=site: store.batches(site), GRID, fitted[site], 1000)
        pd.testing.assert_frame_equal(rows[PARETO_COLUMNS].reset_index(drop=True), expected.table)
        samples.setdefault(stack, []).append(expected.samples)
    assert set(areas(of_model(table))["method"]) == set(table["method"])
    assert set(swept.samples) == {*samples, ALL}
    points = of_stacks(table)
    for stack, own in samples.items():
        assert swept.samples[stack] == pytest.approx(np.mean(own, axis=0), abs=1e-6)
        # Samples are of the same points in the same order: their mean is what was measured.
        expected = points.loc[points["stack"] == stack, ["recall", "sparsity"]].to_numpy()
        assert swept.samples[stack].mean(axis=0) == pytest.approx(expected, abs=0.02)
    heads = table.groupby("stack")["head"].nunique()  # of each of its layers
    whole = [(part, heads[stack]) for stack, own in samples.items() for part in own]
    expected = np.average([part for part, _ in whole], axis=0, weights=[count for _, count in whole])
    assert swept.samples[ALL] == pytest.approx(expected, abs=1e-6)


def test_what_was_done_is_not_done_again(
    store: QueryKeyStore, whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uninterrupted, _ = whole
    sweep, count, fit = SparsitySweep(store, store, tmp_path / "kept", GRID, OPTIONS), 0, module.fit_site

    def failing(*arguments: object) -> object:
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        return fit(*arguments)

    monkeypatch.setattr(module, "fit_site", failing)
    with pytest.raises(KeyboardInterrupt):
        sweep.run()
    count = -100
    again = sweep.run()
    assert count == -100 + len(store.sites()) - 2
    pd.testing.assert_frame_equal(again.heads, uninterrupted.heads, check_exact=True)
    assert all(np.array_equal(own, again.samples[stack]) for stack, own in uninterrupted.samples.items())
    for site, own in uninterrupted.fitted.items():
        assert torch.equal(own.projections.weight, again.fitted[site].projections.weight)
