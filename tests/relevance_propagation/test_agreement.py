"""Rank correlations between rules."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from headlens.attention.sites import Site
from headlens.heads import Stack
from headlens.relevance_propagation.aggregation import (
    RelevanceSums,
    raw_correlations,
    rule_correlations,
)
from headlens.relevance_propagation.relevance_session import HeadRelevance
from headlens.statistics.weighted_means import spearman_by_row
from headlens.tables.relevance_tables import CORRELATIONS

Floats = npt.NDArray[np.float64]
values = st.integers(-4, 4).map(float)


@given(st.integers(3, 8).flatmap(lambda n: st.tuples(*[arrays(np.float64, (4, n), elements=values)] * 2)))
def test_spearman_is_that_of_scipy(pair: tuple[Floats, Floats]) -> None:
    found = spearman_by_row(*pair)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = [stats.spearmanr(a, b).statistic for a, b in zip(*pair, strict=True)]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_what_has_no_rank_correlation() -> None:
    one, two = np.array([[1.0, 2, 3], [1, np.nan, 2]]), np.array([[5.0, 5, 5], [1, 2, 3]])
    assert np.isnan(spearman_by_row(one, two)).all()
    assert np.isnan(spearman_by_row(one[:, :2], one[:, :2])).all()


def site(stack: Stack, layer: int, heads: int) -> Site:
    return Site(stack, layer, heads, f"{stack}.{layer}")


@pytest.fixture
def sites() -> list[Site]:
    return [site("encoder", 0, 4), site("encoder", 1, 4), site("cross", 0, 3)]


def test_scopes_stacks_and_magnitudes(sites: list[Site], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headlens.relevance_propagation.aggregation.FEWEST", 2)  # as of many heads
    generator = np.random.default_rng(0)
    one = {s: generator.normal(size=(50, s.n_heads)) for s in sites}
    two = {s: v + generator.normal(size=v.shape) for s, v in one.items()}
    rows = rule_correlations("epsilon", one, "taylor", two)
    assert list(rows.columns) == CORRELATIONS.names[1:]
    assert rows.groupby(["stack", "of", "scope"]).size().eq(1).all()
    assert set(rows["stack"]) == {"encoder", "cross", "all"}
    found = rows.set_index(["stack", "of", "scope"])
    first, second = (np.concatenate([side[s][0] for s in sites]) for side in (one, two))
    assert found.loc[("all", "relevance", "heads"), "spearman"] == pytest.approx(stats.spearmanr(first, second)[0])
    assert found.loc[("all", "magnitude", "heads"), "spearman"] == pytest.approx(
        stats.spearmanr(np.abs(first), np.abs(second))[0]
    )
    inside = [stats.spearmanr(one[s][0], two[s][0])[0] for s in sites[:2]]
    assert found.loc[("encoder", "relevance", "layers"), "spearman"] == pytest.approx(np.mean(inside))
    drawn = [stats.spearmanr(one[sites[2]][i], two[sites[2]][i])[0] for i in range(1, 50)]
    bounds = found.loc[("cross", "relevance", "heads"), ["ci_low", "ci_high"]].tolist()
    value = found.loc[("cross", "relevance", "heads"), "spearman"]
    moved = stats.norm.ppf(np.mean([np.mean([v < value for v in drawn]), np.mean([v <= value for v in drawn])]))
    levels = stats.norm.cdf(2 * moved + stats.norm.ppf([0.025, 0.975]))
    assert bounds == pytest.approx(np.quantile(drawn, levels).tolist())
    assert found["n"].to_dict()["all", "relevance", "heads"] == 11


def test_a_rule_agrees_with_itself_and_replicates_are_paired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headlens.relevance_propagation.aggregation.FEWEST", 2)  # as of many heads
    place = site("encoder", 0, 5)
    generator = torch.Generator().manual_seed(0)
    sums = [RelevanceSums([place], replicates=40) for _ in range(2)]
    for number in range(12):
        raw = torch.rand(3, 5, generator=generator, dtype=torch.float64)
        keys = [f"{number}.{i}" for i in range(3)]
        for own, factor in zip(sums, (1.0, 7.0), strict=True):
            own.add(HeadRelevance({place: raw * factor}, raw.sum(dim=1), 0.0, 0.0), keys)
    rows = rule_correlations("epsilon", sums[0].means(), "taylor", sums[1].means())
    # Shares do not know the factor: replicate by replicate the order is the same, whatever was drawn.
    assert rows[["spearman", "ci_low", "ci_high"]].to_numpy() == pytest.approx(1.0)


@pytest.mark.parametrize("factors", [(1.0, 1.0), (100.0, 1.0), (1.0, -0.01)])
def test_over_all_heads_raw_is_compared_and_not_shares(factors: tuple[float, float]) -> None:
    """The second rule has the same raw as the first; shares lose what tells the layers apart."""
    layers = [site("encoder", 0, 4), site("encoder", 1, 4)]
    generator = torch.Generator().manual_seed(1)
    own = RelevanceSums(layers, replicates=30)
    raw = {
        s: f * torch.rand(9, 4, generator=generator, dtype=torch.float64) for s, f in zip(layers, factors, strict=True)
    }
    own.add(HeadRelevance(raw, raw[layers[0]].sum(dim=1), 0.0, 0.0), [str(i) for i in range(9)])
    means = own.means(raw=True)
    for s in layers:
        np.testing.assert_allclose(means[s][0], raw[s].mean(dim=0).numpy())
    cubed = {s: values**3 for s, values in means.items()}
    rows = raw_correlations("epsilon", means, "taylor", cubed).set_index("of")
    assert rows["scope"].tolist() == ["heads"] * 2
    assert rows["n"].tolist() == [8, 8]
    assert rows["spearman"].tolist() == pytest.approx([1.0, 1.0])
    shares = own.means()
    mixed = raw_correlations("epsilon", means, "x", shares).set_index("of")["spearman"]
    flat = [np.concatenate([side[s][0] for s in layers]) for side in (means, shares)]
    assert mixed["raw"] == pytest.approx(stats.spearmanr(*flat)[0])
    assert mixed["raw magnitude"] == pytest.approx(stats.spearmanr(*map(np.abs, flat))[0])


def test_the_interval_of_a_mean_over_layers_is_of_the_layers_of_its_value() -> None:
    """A layer with too few examples has a correlation and no replicates: then the mean has no interval either."""
    layers = [site("encoder", number, 4) for number in range(3)]
    rng = np.random.default_rng(3)
    one, two = ({s: rng.random((1 + 50, 4)) for s in layers} for _ in range(2))
    known = np.mean([stats.spearmanr(one[s][0], two[s][0])[0] for s in layers])
    for few in ([], [1], [0, 2]):
        for side in (one, two):
            for number in few:
                side[layers[number]][1:] = np.nan
        row = rule_correlations("a", one, "b", two).set_index(["of", "scope"]).loc[("relevance", "layers")]
        assert row["spearman"] == pytest.approx(known)
        assert np.isnan([row["ci_low"], row["ci_high"]]).tolist() == [bool(few)] * 2
        assert few or row["ci_low"] < row["ci_high"]


def test_layers_without_a_correlation_are_left_out_of_the_mean() -> None:
    layers = [site("encoder", 0, 3), site("encoder", 1, 3)]
    one = {layers[0]: np.array([[1.0, 2, 3]]), layers[1]: np.full((1, 3), np.nan)}
    two = {layers[0]: np.array([[1.0, 3, 2]]), layers[1]: np.array([[1.0, 2, 3]])}
    rows = rule_correlations("epsilon", one, "taylor", two).set_index(["of", "scope"])
    assert rows.loc[("relevance", "layers"), "spearman"] == pytest.approx(0.5)
    # The heads that have shares are compared, and counted.
    assert rows.loc[("relevance", "heads"), "spearman"] == pytest.approx(0.5)
    assert rows.loc[("relevance", "heads"), "n"] == 3


def test_few_heads_have_no_interval() -> None:
    """Of four heads a correlation of 1 has one chance in 24, and resampled texts do not show it."""
    rng = np.random.default_rng(0)
    means = {site("encoder", 0, 4): np.arange(4.0) + rng.normal(scale=0.01, size=(100, 4))}
    found = rule_correlations("epsilon", means, "gradxact", means)
    assert found["spearman"].tolist() == [1.0] * len(found)
    assert found[["ci_low", "ci_high"]].isna().all(axis=None)
