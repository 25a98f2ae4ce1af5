"""All sites of a model: what is kept, and that a run that goes on gives the same."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
import zoo
from watching import run

from headlens.attention.normalizers import Entmax
from headlens.attention.session import AttentionSession
from headlens.attention.switch import switch
from headlens.experiments import sparsity_sweep as module
from headlens.experiments.sparsity_sweep import SparsitySweep
from headlens.sparsefinder.curves import areas, of_model
from headlens.sparsefinder.fitting import FitOptions
from headlens.sparsefinder.pareto import Grid, pareto
from headlens.sparsefinder.store import Collector, Store

GRID = Grid(windows=(0, 3), thresholds=(0.5, 2.0), groups=(2, 4))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    entry = zoo.ZOO["marian"]
    model, collector = entry.build(), Collector(tmp_path / "store")
    switch(model, Entmax())
    with AttentionSession(model, observers=[collector]) as session, session.batch(zoo.batch_tokens(entry)):
        for _ in range(4):
            run(model, zoo.padded(entry))
    collector.flush()
    return Store(tmp_path / "store")


def test_every_site_has_its_heads_and_points(store: Store, tmp_path: Path) -> None:
    seen: list[int] = []
    sweep = SparsitySweep(store, store, tmp_path / "kept", GRID, FitOptions(2, epochs=1))
    table, fitted = sweep.run(seen.append)
    assert seen == [1] * len(store.sites())
    assert list(fitted) == store.sites()
    assert set(table["stack"]) == {"encoder", "decoder", "cross"}
    for (stack, layer), rows in table.groupby(["stack", "layer"]):
        site = f"{stack}.{layer}"
        expected = pareto(lambda site=site: store.batches(site), GRID, fitted[site])
        pd.testing.assert_frame_equal(rows[expected.columns].reset_index(drop=True), expected)
    assert set(areas(of_model(table))["method"]) == set(table["method"])


def test_what_was_done_is_not_done_again(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = FitOptions(2, epochs=1)
    whole, learned = SparsitySweep(store, store, tmp_path / "whole", GRID, options).run()
    sweep, count, fit = SparsitySweep(store, store, tmp_path / "kept", GRID, options), 0, module.fit_site

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
    again, resumed = sweep.run()
    assert count == -100 + len(store.sites()) - 2
    pd.testing.assert_frame_equal(again, whole, check_exact=True)
    for site, own in learned.items():
        assert torch.equal(own.projections.weight, resumed[site].projections.weight)
