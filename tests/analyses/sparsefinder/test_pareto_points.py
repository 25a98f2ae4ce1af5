"""Sweeps over the grid against single graphs, and their samples against drawing sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from headlens.analyses.sparsefinder.fitting import FittedSite, fit_site, load_fitted, save_fitted
from headlens.analyses.sparsefinder.measures import MEASURES, GraphCounts, allowed_pairs, graph_counts
from headlens.analyses.sparsefinder.options import FitOptions, ParameterGrid
from headlens.analyses.sparsefinder.pareto_points import (
    BLOCK,
    OWN,
    PARETO_COLUMNS,
    TIMES_COLUMNS,
    grid_predictors,
    pareto,
    predictor_of,
    windows_of,
)
from headlens.analyses.sparsefinder.predictors import distance_predictor, pattern_predictor
from headlens.analyses.sparsefinder.query_key_store import StoredBatch
from headlens.attention_masks.patterns import Global, Window
from headlens.statistics.bootstrap import Draws
from headlens.tables.sparsefinder_tables import GOLD

SMALL = ParameterGrid(windows=(0, 1, 5), thresholds=(0.3, 1.0, 1e9), groups=(2, 4))
BLOCKS = replace(SMALL, block_size=3)


def sentences(*seeds: int) -> Iterator[StoredBatch]:
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        real = torch.arange(10) < torch.tensor([[10], [3 + seed % 7]])
        q, k = (torch.randn(2, 3, 10, 8, generator=generator) for _ in range(2))
        allowed = allowed_pairs(real, real)
        scores = (q @ k.transpose(-1, -2)).masked_fill(~allowed, -1e9)
        gold = (scores > scores.amax(dim=-1, keepdim=True) - 1.0) & allowed
        yield StoredBatch(q, k, real, real, weights=gold * scores.softmax(dim=-1))


def averages(parts: Sequence[GraphCounts]) -> dict[str, torch.Tensor]:
    """Of every head the means over sentences that say something, as columns of the table are called."""
    means = torch.cat([part.shares for part in parts], dim=1).nanmean(dim=1)
    return dict(zip(MEASURES, means, strict=True))


@pytest.fixture(scope="module")
def fitted() -> FittedSite:
    return fit_site(lambda: sentences(*range(12)), SMALL, FitOptions(3, epochs=2))


def test_samples_of_sentences() -> None:
    """Against drawing sentences one by one; the same whatever the batches are."""
    held = list(sentences(*range(100, 105)))
    small = ParameterGrid(windows=(0, 3), thresholds=(1.0,), groups=(2,))
    one_more = fit_site(lambda: sentences(*range(4)), small, FitOptions(3, epochs=1, seed=5))
    swept = pareto(lambda: held, small, one_more, replicates=30)
    draws = Draws.of([str(place) for place in range(10)], 30, seed=5).counts
    points = list(swept.table.drop(columns=["head", *MEASURES]).drop_duplicates().itertuples())
    assert swept.samples.shape == (30, len(points), 2)
    for place, point in enumerate(points):
        if point.method not in {"distance", "lsh"}:
            continue
        predictor = predictor_of(point.method, point.value_of_parameter, point.window, 0, small, one_more)
        found = []
        for own in held:
            graph = predictor.graph(own)
            for row in range(2):
                gold, guess, pairs = own.gold[row], graph[row] & own.allowed[row], int(own.allowed[row].sum())
                recall = np.mean([int((g & p).sum()) / int(g.sum()) for g, p in zip(gold, guess, strict=True)])
                found.append((recall, 1 - np.mean([int(p.sum()) / pairs for p in guess])))
        for sample, counts in enumerate(draws):
            expected = np.mean(
                [value for value, times in zip(found, counts, strict=True) for _ in range(times)], axis=0
            )
            assert swept.samples[sample, place] == pytest.approx(expected, abs=1e-6)
    assert len({point.method for point in points} & {"distance", "lsh"}) == 2
    few = pareto(lambda: held[:1], small, one_more, replicates=30)
    assert few.samples.shape == (0, len(points), 2), "two sentences tell nothing about others"


def test_every_combination_is_what_a_single_graph_gives(fitted: FittedSite) -> None:
    table = pareto(lambda: sentences(100, 101), SMALL, fitted).table
    assert table.columns.tolist() == PARETO_COLUMNS
    assert len(table) == (3 + 2 * 7 + 1) * 3 * 3 + 3
    assert set(OWN) <= set(table["method"])
    held = list(sentences(100, 101))
    gold = table[table["method"] == GOLD]
    assert (gold[["recall", "exact", "mass"]] == 1).all(axis=None)
    density = torch.cat([(own.gold & own.allowed).sum((2, 3)) / own.allowed.sum((2, 3)) for own in held])
    assert gold["sparsity"].to_numpy() == pytest.approx(1 - density.double().mean(0).numpy(), abs=1e-6)
    for method, value, tokens, window, predictor in (
        ("distance", 1.0, 0, 0, distance_predictor(fitted.projections, 1.0)),
        ("distance", 0.3, 0, 5, distance_predictor(fitted.projections, 0.3) | pattern_predictor(Window(2))),
        ("longformer", 4, 4, 1, pattern_predictor(Global(4) | Window(0))),
        ("window", 5, 0, 5, pattern_predictor(Window(2))),
    ):
        parts = [graph_counts(own.weights, predictor.graph(own).expand_as(own.gold), own.allowed) for own in held]
        expected = averages(parts)
        rows = table[
            (table["method"] == method)
            & (table["value_of_parameter"] == value)
            & (table["window"] == window)
            & (table["global_tokens"] == tokens)
        ].sort_values("head")
        assert rows["head"].tolist() == [0, 1, 2]
        for name, values in expected.items():
            assert rows[name].to_numpy() == pytest.approx(values.numpy()), (method, name)


def test_ends_of_the_grid(fitted: FittedSite) -> None:
    table = pareto(lambda: sentences(100), SMALL, fitted).table
    whole = table[(table["method"] == "distance") & (table["value_of_parameter"] == 1e9)]
    assert (whole["recall"] == 1).all()
    assert (whole["sparsity"] == 0).all()
    none = table[(table["method"] == "window") & (table["window"] == 0)]
    assert (none["recall"] == 0).all()
    assert (none["sparsity"] == 1).all()
    for _, rows in table.groupby(["method", "value_of_parameter", "head"]):
        if rows["method"].iloc[0] != "window":
            wider = rows.sort_values("window")
            assert wider["recall"].is_monotonic_increasing
            assert wider["sparsity"].is_monotonic_decreasing


def test_all_methods_of_the_grid(fitted: FittedSite) -> None:
    found = [(method, parameter, value) for method, parameter, value, _, _ in grid_predictors(SMALL, fitted)]
    assert len(found) == len({(m, p, -1 if math.isnan(v) else v) for m, p, v in found})
    names = {"distance", "bucket", "cluster", "routing", "lsh", "longformer", "random", "bigbird", "window"}
    assert {method for method, _, _ in found} == names


def test_global_tokens_are_added_to_methods_by_content(fitted: FittedSite) -> None:
    """By union: each predicts what it did, and the pairs of the first tokens."""
    both = replace(SMALL, global_tokens=(0, 2))
    (held,) = sentences(100)
    own = {(m, v, t): p for m, _, v, t, p in grid_predictors(both, fitted)}
    for (method, value, tokens), predictor in own.items():
        if method in {"distance", "bucket", "cluster", "routing", "lsh"} and tokens:
            expected = own[method, value, 0].graph(held).clone()
            expected[..., :2, :], expected[..., :, :2] = True, True
            pairs = held.allowed.expand_as(expected)
            assert torch.equal(predictor.graph(held)[pairs], expected[pairs]), method
    table = pareto(lambda: sentences(100), both, fitted).table
    for method in ("distance", "bucket", "cluster", "routing", "lsh"):
        assert table[table["method"] == method].groupby("global_tokens").size().to_dict().keys() == {0, 2}
    plain = pareto(lambda: sentences(100), SMALL, fitted).table
    without = table[(table["global_tokens"] == 0) | table["method"].isin(["longformer", "bigbird"])]
    pd.testing.assert_frame_equal(without.reset_index(drop=True), plain)


@pytest.fixture(scope="module")
def fitted_blocks() -> FittedSite:
    return fit_site(lambda: sentences(*range(12)), BLOCKS, FitOptions(3, epochs=2))


def test_methods_of_blocks_beside_those_of_tokens(fitted: FittedSite, fitted_blocks: FittedSite) -> None:
    """They change nothing of the others; windows and global tokens are made up to whole blocks."""
    points = pareto(lambda: sentences(100, 101), BLOCKS, fitted_blocks)
    of_blocks = points.table["method"].str.startswith(BLOCK)
    plain = pareto(lambda: sentences(100, 101), SMALL, fitted)
    pd.testing.assert_frame_equal(points.table[~of_blocks].reset_index(drop=True), plain.table)
    own = points.table[of_blocks]
    assert set(own["method"]) == {"block_v1", "block_v2", "block_bigbird", "block_longformer"}
    assert windows_of("block_v1", BLOCKS) == {0: -1, 3: 0, 9: 1}, "reach 0 is the own block, 2 the next one as well"
    assert windows_of("distance", BLOCKS) == {0: -1, 1: 0, 5: 2}
    assert set(own["window"]) == {0, 3, 9}
    first = own[own["method"] == "block_longformer"].drop_duplicates(["value_of_parameter", "global_tokens"])
    assert first[["value_of_parameter", "global_tokens"]].to_numpy().tolist() == [[1, 3], [2, 6]]
    assert points.times.columns.tolist() == TIMES_COLUMNS
    keys = TIMES_COLUMNS[:-1]
    assert points.times[keys].fillna(0).apply(tuple, axis=1).is_unique
    assert set(points.times["method"]) == set(points.table["method"]) - {GOLD}
    assert (points.times["cpu_seconds"] >= 0).all()


def test_blocks_of_a_saved_site(fitted_blocks: FittedSite, tmp_path: Path) -> None:
    save_fitted(tmp_path / "fitted.safetensors", {"encoder.0": fitted_blocks})
    read = load_fitted(tmp_path / "fitted.safetensors")["encoder.0"]
    assert read.blocks.keys() == fitted_blocks.blocks.keys() == {2, 4}
    assert all(torch.equal(own, read.blocks[count]) for count, own in fitted_blocks.blocks.items())


@pytest.mark.parametrize("grid", [SMALL, BLOCKS])
def test_a_point_of_the_grid_by_name(grid: ParameterGrid, fitted_blocks: FittedSite) -> None:
    """Every row of the table again, from the predictor of its point."""
    fitted = fitted_blocks
    table = pareto(lambda: sentences(100), grid, fitted).table
    (held,) = sentences(100)
    for key, rows in table.groupby(["method", "value_of_parameter", "window", "global_tokens"]):
        predictor = predictor_of(*key, grid, fitted)
        graph = predictor.graph(held)
        expected = averages([graph_counts(held.weights, graph.expand_as(held.gold), held.allowed)])
        for name, values in expected.items():
            assert rows.sort_values("head")[name].to_numpy() == pytest.approx(values.numpy()), key
    with pytest.raises(KeyError, match="the grid has no distance of 7"):
        predictor_of("distance", 7.0, 0, 0, SMALL, fitted)
