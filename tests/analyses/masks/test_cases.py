"""Which masks a study trains under."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from headlens.analyses.masks.cases import Diagonal, MaskCase, _ranges, cases
from headlens.attention_masks.attention_mask import AttentionMask
from headlens.attention_masks.mask_options import read_layers
from headlens.attention_masks.named_masks import (
    FULL_ATTENTION,
    PROBABILITIES,
    ImportanceShare,
    MaskFile,
    NamedMask,
    PatternName,
    Removal,
    ZeroedScores,
    parse_named_mask,
)
from headlens.attention_masks.patterns import parse_pattern
from headlens.errors import OptionError

STAR = PatternName("star")


def named(*names: str) -> list[NamedMask]:
    return [parse_named_mask(name) for name in names]


def test_everything_with_and_without_the_diagonal_for_every_seed() -> None:
    found = cases(named("star", "window:2"), ("0-1", None), (3, 4), controls=True)
    assert len(found) == 2 * (3 + 2 * 2 * 2)
    first = [(str(c.mask), c.diagonal, c.layers) for c in found if c.seed == 3]
    assert first[:3] == [("full", "kept", None), ("full", "dropped", None), ("full", "random", None)]
    assert first[3:7] == [
        ("star", "kept", "0-1"),
        ("star", "dropped", "0-1"),
        ("star", "kept", None),
        ("star", "dropped", None),
    ]
    assert len({c.name for c in found}) == len(found)
    alone = cases(named("star", "star"), (None,), (0,), controls=False)
    assert [(str(c.mask), c.diagonal) for c in alone] == [("full", "kept"), ("star", "kept")]


def test_what_is_taken_away_is_trained_once_a_seed() -> None:
    removed = ((Removal("attention"), "last:1"), (Removal("attention"), None), (Removal("layers"), "last:1"))
    found = cases((), (None,), (0, 1), removed, controls=True)
    assert [(c.mask, c.diagonal, c.layers) for c in found[3:6]] == [(p, "kept", layers) for p, layers in removed]
    assert len(found) == 2 * (3 + 3)
    assert len({c.name for c in found}) == len(found)
    for case in found[3:6]:
        assert case.fixed is None
        assert case.sparsity(9) == 1
        assert case.sparsity_of_texts({4: 2, 9: 1}, {}) == 1
        assert set(case.degrees().values()) == {None}


def test_full_asks_for_the_controls_alone() -> None:
    """Attention without a mask is trained once, however it is named."""
    plain = cases([FULL_ATTENTION], (None,), (0, 1), controls=True)
    assert [(c.diagonal, c.seed) for c in plain] == [(d, s) for s in (0, 1) for d in ("kept", "dropped", "random")]
    ranges = cases([FULL_ATTENTION], ("0-2", "3-5"), (0,), controls=True)
    assert [(c.diagonal, c.layers) for c in ranges[3:]] == [("dropped", "0-2"), ("dropped", "3-5")]
    assert sum(c.whole for c in ranges) == 1
    assert [c.diagonal for c in cases([FULL_ATTENTION], ("0-2",), (0,), controls=False)] == ["kept"]


@pytest.mark.parametrize(
    ("pattern", "has"),
    [
        ("full", True),
        ("star", True),
        ("window:0", True),
        ("random:2", False),
        ("degrees:mu=1", True),
        ("degrees:mu=1,kinds=neighbour+random", True),
        ("degrees:mu=1,kinds=global", False),
        ("zero:random:2", False),
        ("zero:star", True),
        ("not/made/yet/mask.safetensors", True),
    ],
)
def test_which_have_a_diagonal_to_drop(pattern: str, has: bool) -> None:
    (mask,) = named(pattern)
    assert MaskCase(mask).has_diagonal == has
    assert MaskCase(mask, "dropped").has_diagonal == has


def test_which_let_tokens_look_at_themselves() -> None:
    """As tables say it: also where a pattern has no diagonal, and not where there is none to drop."""
    kept = {words: [MaskCase(named(words)[0], how).keeps_diagonal for how in ("kept", "dropped")] for words in
            ("full", "random:2", "window:0", "zero:random:2", "degrees:mu=1,kinds=global")}  # fmt: skip
    assert [words for words, (as_it_is, _) in kept.items() if not as_it_is] == ["random:2", "zero:random:2"]
    assert not any(dropped for _, dropped in kept.values())


def test_cases_have_files_of_their_own() -> None:
    """Whatever of their words cannot stand in a file's name."""
    layers, patterns = (
        ("0-2", "0,2", "0_2", None),
        ("star", "runs/a-1/m", "runs/a/1/m", "window:1|star", "degrees:mu=0.1"),
    )
    found = cases(named(*patterns), layers, (0, 1), controls=True)
    names = {c.name for c in found}
    assert len(names) == len(found) == len({name.lower() for name in names})
    assert all(re.fullmatch(r"[A-Za-z0-9=_-]+", name) for name in names)
    assert MaskCase(STAR, seed=1).name == "star-kept-all-seed1"
    assert MaskCase(STAR, "dropped", "0-2", 1).words == "star, no diagonal, layers 0-2, seed 1"
    told = [MaskCase(diagonal=diagonal).words for diagonal in ("kept", "dropped", "random")]
    assert told == ["no mask, seed 0", "no diagonal, seed 0", "random positions instead of the diagonal, seed 0"]


@pytest.mark.parametrize(
    ("case", "sparsity"),
    [
        (MaskCase(), 0.0),
        (MaskCase(diagonal="dropped"), 1 / 128),
        (MaskCase(diagonal="random"), 1 / 128),
        # 128 on the diagonal, 2 x 127 beside it, 2 x 126 more of the first row and column
        (MaskCase(STAR), 1 - 634 / 128**2),
        (MaskCase(STAR, "dropped"), 1 - 506 / 128**2),
        (MaskCase(PatternName("global:1"), layers="1"), 1 - 255 / 128**2),
    ],
)
def test_sparsities(case: MaskCase, sparsity: float) -> None:
    assert case.sparsity(128) == pytest.approx(sparsity, abs=1e-12)


@pytest.mark.parametrize("text", ["full", "star", "window:2", "bigbird", "strided"])
@pytest.mark.parametrize("diagonal", ["kept", "dropped", "random"])
def test_shares_of_a_decoder_are_of_what_it_sees(text: str, diagonal: Diagonal) -> None:
    """Counted position by position below the diagonal; controls mask as many of those as the diagonal has."""
    n = 12
    case = MaskCase(*named(text), diagonal, seed=3)
    allowed = np.tril(parse_pattern(text).allowed(n))
    expected = 1 - (allowed.sum() - (diagonal != "kept") * np.trace(allowed)) / (n * (n + 1) / 2)
    assert case.sparsity(n, causal=True) == pytest.approx(expected)
    of_texts = case.sparsity_of_texts({n: 2, 1: 1}, {}, causal=True)
    alone = {"kept": 0.0, "dropped": 1.0, "random": 0.0}[diagonal]
    assert of_texts == pytest.approx((2 * expected + alone) / 3)


@pytest.mark.parametrize(
    ("pattern", "degrees"),
    [
        ("full", (None, None, None)),
        ("strided", (None, None, None)),
        ("window:3", (None, None, 3)),
        ("window:3|global:2|random:4", (2, 4, 3)),
        ("bigbird:window=2,tokens=3,keys=5", (3, 5, 2)),
        ("longformer:window=4,tokens=2", (2, None, 4)),
        ("star", (1, None, 1)),
    ],
)
def test_degrees(pattern: str, degrees: tuple[int | None, ...]) -> None:
    (mask,) = named(pattern)
    assert tuple(MaskCase(mask).degrees().values()) == degrees
    assert list(MaskCase(mask).degrees()) == ["degree_global", "degree_random", "degree_neighbour"]


def test_a_pattern_that_there_is_none() -> None:
    with pytest.raises(OptionError, match="stra"):
        MaskCase(*named("stra")).sparsity(8)


@pytest.fixture
def learned(tmp_path: Path) -> str:
    """A mask of four layers that was learned in two: there it masks three quarters of the positions."""
    allowed = torch.ones(4, 1, 6, 6, dtype=torch.bool)
    allowed[[1, 3]] = torch.arange(36).view(6, 6) % 4 == 0
    AttentionMask(allowed, layers=(1, 3)).save(tmp_path / "mask.safetensors")
    save_file({"p": torch.rand(4, 1, 6, 6)}, tmp_path / PROBABILITIES)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("layer_range", "told"), [(None, "1,3"), ("all", "1,3"), ("0-1", "1"), ("last:2", "3"), ("0-3", "1,3")]
)
def test_a_mask_that_was_learned_in_some_layers_holds_in_these(learned: str, layer_range: str, told: str) -> None:
    """It was said to hold in all layers, and its sparsity was the mean with those that mask nothing."""
    masks = [MaskFile(learned), ZeroedScores(MaskFile(learned)), ImportanceShare(learned, "most", 0.25), STAR]
    found = cases(masks, (layer_range,), (0,), controls=False)[1:]
    assert [case.layers for case in found] == [told, told, told, layer_range]
    assert [case.sparsity(6) for case in found[:2]] == [0.75, 0.75]
    assert found[2].sparsity(6) == pytest.approx(0.75, abs=0.06)
    assert found[0].words == f"{learned}, layers {told}, seed 0"


def test_a_mask_in_none_of_the_layers_is_refused(learned: str) -> None:
    with pytest.raises(OptionError, match=r"--layers first:1: the mask .* holds in none of them, but in 1,3"):
        cases([MaskFile(learned)], ("first:1",), (0,), controls=False)
    # A file that is not there yet, as when a run is planned, may hold in any.
    (_, case) = cases([MaskFile(f"{learned}/none")], ("first:1",), (0,), controls=False)
    assert case.layers == "first:1"


@given(st.sets(st.integers(0, 40), min_size=1))
def test_ranges_are_read_as_they_are_written(layers: set[int]) -> None:
    assert read_layers(_ranges(sorted(layers))) == tuple(sorted(layers))
