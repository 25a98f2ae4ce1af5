"""Degrees of neighbours, global tokens and random keys against the patterns that they make, and against loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import zoo
from hypothesis import given
from hypothesis import strategies as st
from tiers import rest_slow
from torch import Tensor

from headlens.attention.attach_edit import attach_edit
from headlens.attention.sites import Site
from headlens.attention_masks.attention_mask_edit import MaskEdit
from headlens.attention_masks.learned_mask import (
    LearnedAttentionMask,
    LearnedMaskOptions,
    Scope,
    SettledMask,
    masked_sites,
)
from headlens.attention_masks.mask_distributions import GumbelDegrees
from headlens.attention_masks.mask_parametrization import Connections
from headlens.attention_masks.named_masks import CONNECTIONS, check_connections
from headlens.attention_masks.patterns import Random, parse_pattern, random_ranks
from headlens.errors import OptionError
from headlens.interventions.edited_model import EditedModel

SITES = [Site("encoder", layer, 2, "somewhere") for layer in range(3)]
SOME = [kinds for n in (1, 2, 3) for kinds in itertools.permutations(CONNECTIONS, n)]


def opened(degrees: dict[str, int], n: int, kinds: tuple[str, ...]) -> Tensor:
    """Values of 1 up to a degree of each kind, and 0 beyond: (1, size)."""
    return torch.cat([(torch.arange(n) <= degrees[kind]).float() for kind in kinds])[None]


@given(st.sampled_from(SOME), st.integers(2, 12), st.integers(0, 9), st.data())
def test_degrees_make_the_pattern_of_their_names(
    kinds: tuple[str, ...], n: int, seed: int, data: st.DataObject
) -> None:
    degrees = {kind: data.draw(st.integers(0, n - 1)) for kind in CONNECTIONS}
    length = data.draw(st.integers(1, n))
    shown = {kind: degrees[kind] if kind in kinds else 0 for kind in CONNECTIONS}
    window, tokens, keys = (shown[kind] for kind in CONNECTIONS)
    pattern = parse_pattern(f"window:{window}|global:{tokens}|random:{keys},{seed}")
    matrix = Connections(n, kinds, seed).matrix(opened(degrees, n, kinds), length)
    assert matrix.shape == (1, length, length)
    assert np.array_equal(matrix[0].numpy() > 0.5, pattern.allowed(length))
    assert set(matrix.unique().tolist()) <= {0.0, 1.0}


def test_every_sentence_has_the_random_keys_of_its_length() -> None:
    n, lengths = 9, torch.tensor([9, 4, 1])
    found = Connections(n, ("random",), 3).matrix(opened({"random": 2}, n, ("random",)), 9, lengths)
    for row, length in zip(found, lengths.tolist(), strict=True):
        expected = Random(2, 3).allowed(length) | np.eye(length, dtype=bool)
        assert np.array_equal(row[:length, :length].numpy() > 0.5, expected)


@given(st.integers(1, 14), st.integers(0, 5))
def test_ranks_are_places_in_the_draw(n: int, seed: int) -> None:
    ranks = random_ranks(n, seed)
    for keys in range(n):
        assert np.array_equal(ranks < keys, Random(keys, seed).allowed(n))
    assert (np.sort(ranks, axis=1) == [*range(n - 1), n]).all()


@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize("kinds", SOME, ids="+".join)
def test_counts_are_the_positions_that_a_value_fills(kinds: tuple[str, ...], diagonal: bool) -> None:
    """Position by position, outside of what is always active."""
    n = 7
    for within in (7, 5, 2):
        ranks = random_ranks(within, 1)
        found = {kind: [0.0] * n for kind in kinds}
        for i, j in itertools.product(range(within), range(within)):
            at_end = "global" not in kinds and ({i, j} & {0, within - 1})
            if at_end or (i == j and not diagonal):
                continue
            values = {"neighbour": abs(i - j), "global": min(i, j) + 1, "random": ranks[i, j] + 1 if i != j else n}
            for kind in kinds:
                if values[kind] < n:
                    found[kind][values[kind]] += 1
        expected = [number for kind in kinds for number in found[kind]]
        assert Connections(n, kinds, 1).counts(within, diagonal=diagonal).tolist() == expected


@pytest.mark.parametrize("draws", rest_slow([600, 4000]))
@pytest.mark.parametrize("per_head", [True, False])
def test_the_penalty_is_the_mean_of_what_draws_open_kind_by_kind(per_head: bool, draws: int) -> None:
    """Degrees are drawn, and their positions counted by the formulas of the kinds, in float64."""
    n, w = 11, 4
    torch.manual_seed(1)
    options = LearnedMaskOptions(n, structured=True, per_layer=True, connections=CONNECTIONS)
    mask = LearnedAttentionMask(SITES, options, GumbelDegrees(largest=w, kinds=3), scope=Scope(per_head=per_head))
    with torch.no_grad():
        mask.alpha.copy_(torch.randn_like(mask.alpha))
    heads = 2 if per_head else 1
    assert mask.alpha.shape == (3, heads, 3 * (w + 1))
    masses = torch.softmax(mask.alpha.detach().double().view(3 * heads, 3, w + 1), dim=-1)
    expected = 0.0
    for head in masses:
        for kind, mass in zip(CONNECTIONS, head, strict=True):
            for d, p in enumerate(mass.tolist()):
                near = n + 2 * sum(n - k for k in range(1, d + 1))
                expected += p * {"neighbour": near, "global": n * n - (n - d) ** 2, "random": n * d}[kind]
    assert float(mask.penalty("mean").detach()) == pytest.approx(expected / (3 * heads * n * n), rel=1e-5)
    mask.train()
    opened_by_draws = []
    for _ in range(draws):
        mask.draw()
        opened_by_draws.append(float((mask.values.detach() * options.shape.counts(n)).sum()))
    mean, error = np.mean(opened_by_draws), np.std(opened_by_draws) / draws**0.5
    assert abs(mean - expected) < 4 * error


def test_soft_values_open_as_independent_chances() -> None:
    n, kinds = 5, CONNECTIONS
    torch.manual_seed(0)
    values = torch.rand(1, 3 * n, dtype=torch.float64, requires_grad=True)
    shape = Connections(n, kinds, 2)
    found = shape.matrix(values, n)[0]
    near, tokens, keys = values.detach()[0].view(3, n).tolist()
    ranks = random_ranks(n, 2)
    for i, j in itertools.product(range(n), range(n)):
        parts = [near[abs(i - j)]]
        parts += [tokens[min(i, j) + 1]] if min(i, j) + 1 < n else []
        parts += [keys[ranks[i, j] + 1]] if ranks[i, j] + 1 < n else []
        assert float(found[i, j].detach()) == pytest.approx(1 - np.prod([1 - p for p in parts]), abs=1e-12)
    assert torch.autograd.gradcheck(lambda v: shape.matrix(v, n), (values,))


@pytest.mark.parametrize("kinds", [("neighbour",), ("global", "random"), CONNECTIONS], ids="+".join)
def test_a_settled_mask_is_what_the_model_was_trained_under(kinds: tuple[str, ...]) -> None:
    """Padded sentences of several lengths: an edit made for each length, against the mask's own noiseless pass."""
    entry = zoo.ZOO["bert"]
    model, inputs = entry.build(), zoo.padded(entry)
    options = LearnedMaskOptions(
        9, structured=True, per_layer=True, form="renormalised", connections=kinds, noise="never", seed=4
    )
    law = GumbelDegrees(largest=3, kinds=len(kinds))
    mask = LearnedAttentionMask(masked_sites(model), options, law).eval()
    torch.manual_seed(7)
    with torch.no_grad():
        mask.alpha.copy_(3 * torch.randn_like(mask.alpha))
        plain = model(**inputs)[0]
        with EditedModel(model, mask).eval().opened():
            expected = model(**inputs)[0]
        with attach_edit(model, MaskEdit(SettledMask.kept(mask))):
            found = model(**inputs)[0]
    for row, length in enumerate(zoo.LENGTHS):
        # Where M is 0 the learned form leaves weights of about 1e-6.
        torch.testing.assert_close(found[row, :length], expected[row, :length], rtol=0, atol=1e-4)
    assert not torch.allclose(found, plain, atol=1e-3)


def test_draws_have_the_degrees_of_the_distribution_and_are_the_same_again() -> None:
    options = LearnedMaskOptions(9, structured=True, per_layer=True, connections=CONNECTIONS)
    mask = LearnedAttentionMask(SITES, options, GumbelDegrees(largest=2, kinds=3), scope=Scope(layers=(1, 2)))
    with torch.no_grad():
        mask.alpha.copy_(torch.tensor([0.3, -0.5, 1.0] * 3))
    count = 500
    before = torch.random.get_rng_state()
    drawn = [SettledMask.drawn(mask, seed) for seed in range(count)]
    assert torch.equal(torch.random.get_rng_state(), before)
    degrees = torch.stack([d.values.view(2, 2, 3, 3).sum(dim=-1) - 1 for d in drawn]).flatten()
    wanted = torch.softmax(torch.tensor([0.3, -0.5, 1.0]), dim=0)
    shares = torch.bincount(degrees, minlength=3) / len(degrees)
    assert float(((shares - wanted) / (wanted * (1 - wanted) / len(degrees)).sqrt()).abs().max()) < 4
    again, first = SettledMask.drawn(mask, 3), drawn[3]
    assert torch.equal(again.values, first.values)
    assert again.sha256 == first.sha256 != drawn[4].sha256
    assert again.shape == (3, 2)
    block = again.block(6)
    assert block[0].all(), "a layer without a mask"
    window, tokens, keys = (again.values[0, 1].view(3, 3).sum(dim=-1) - 1).tolist()
    expected = parse_pattern(f"window:{window}|global:{tokens}|random:{keys},0").allowed(6)
    assert np.array_equal(block[1, 1].numpy(), expected)


def test_kinds_that_there_are_none() -> None:
    with pytest.raises(OptionError, match="--law degree-kinds: 'local' is not a kind of degree"):
        LearnedMaskOptions(connections=("local",))
    with pytest.raises(OptionError, match="--law degree-kinds is empty"):
        check_connections(())
    with pytest.raises(OptionError, match="--law largest-degree 9 is too large for texts of 9 tokens"):
        GumbelDegrees(largest=9, kinds=3).size(27)
    options = LearnedMaskOptions(9, structured=True, connections=CONNECTIONS)
    with pytest.raises(ValueError, match="degrees of 1 kinds"):
        LearnedAttentionMask(SITES, options, GumbelDegrees(largest=3))
