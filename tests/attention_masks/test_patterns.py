"""Patterns against positions written down one by one, and counts of blocks against those of the whole pattern."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headlens.attention_masks.patterns import (
    PATTERNS,
    BigBird,
    BlockSparse,
    FixedPattern,
    Full,
    Global,
    LogSparse,
    Longformer,
    Pattern,
    Random,
    Star,
    Strided,
    Union,
    Window,
    cached_positions,
    count_masked,
    parse_pattern,
)
from headlens.errors import OptionError

# Shi et al. 2021, last table: share masked at n = 128 with and without the diagonal, in per cent.
PAPER = {
    "strided": (70.4, 71.2),
    "fixed": (72.7, 73.4),
    "longformer": (88.7, 89.5),
    "logsparse": (89.8, 90.6),
    "bigbird": (93.2, 93.9),
    "star": (96.1, 96.9),
}
SMALL = st.integers(0, 9)
POSITIVE = st.integers(1, 9)


@st.composite
def fixed(draw: st.DrawFn) -> FixedPattern:
    stride = draw(POSITIVE)
    return FixedPattern(stride, draw(st.integers(0, stride)))


SINGLE = st.one_of(
    st.builds(Window, SMALL),
    st.builds(Global, SMALL),
    st.builds(Random, SMALL, SMALL),
    st.builds(Strided, POSITIVE),
    fixed(),
    st.builds(Longformer, SMALL, SMALL),
    st.builds(BigBird, SMALL, SMALL, SMALL, SMALL),
    st.builds(BlockSparse, POSITIVE, SMALL, SMALL, SMALL, SMALL),
    st.just(LogSparse()),
    st.just(Star()),
    st.just(Full()),
)
LENGTH = st.integers(1, 70)


@given(SINGLE, LENGTH)
def test_counts_are_those_of_the_allowed_positions(pattern: Pattern, n: int) -> None:
    allowed = pattern.allowed(n)
    assert allowed.shape == (n, n)
    assert pattern.count(n) == int(allowed.sum())
    assert pattern.diagonal(n) == int(np.trace(allowed))
    assert count_masked(pattern, n) == int((~allowed).sum())
    assert count_masked(pattern, n, diagonal=False) == int((~(allowed & ~np.eye(n, dtype=bool))).sum())


@pytest.mark.parametrize(
    "pattern", [Random(2, 3), BigBird(), BlockSparse(4, keys=1), Global(2) | Random(1), Strided(3)], ids=str
)
def test_blocks_count_the_same_positions(pattern: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = pattern.allowed(23)
    monkeypatch.setattr("headlens.attention_masks.patterns._BLOCK", 5 * 23)
    assert pattern.count(23) == int(allowed.sum())
    assert pattern.diagonal(23) == int(np.trace(allowed))


RULES: list[tuple[Pattern, Callable[[int, int, int], bool]]] = [
    (Window(2), lambda i, j, n: i - j in (-2, -1, 0, 1, 2)),
    (Global(2), lambda i, j, n: i in (0, 1) or j in (0, 1)),
    (Strided(3), lambda i, j, n: -3 <= i - j <= 3 or (i - j) in range(-n * 3, n * 3, 3)),
    (FixedPattern(4, 2), lambda i, j, n: i // 4 == j // 4 or j % 4 in (2, 3)),
    (Longformer(1, 3), lambda i, j, n: abs(i - j) < 2 or min(i, j) < 3),
    (LogSparse(), lambda i, j, n: abs(i - j) in (0, 1, 2, 4, 8, 16, 32)),
    (BlockSparse(3, 1), lambda i, j, n: abs(i // 3 - j // 3) < 2),
    (BlockSparse(5, 0, 1), lambda i, j, n: i // 5 == j // 5 or min(i, j) < 5),
    (Star(), lambda i, j, n: abs(i - j) < 2 or i == 0 or j == 0),
    (Full(), lambda i, j, n: True),
]


@pytest.mark.parametrize(("pattern", "rule"), RULES, ids=[str(pattern) for pattern, _ in RULES])
@pytest.mark.parametrize("n", [1, 2, 7, 23])
def test_positions_are_those_of_the_rule(pattern: Pattern, rule: Callable[[int, int, int], bool], n: int) -> None:
    expected = [[rule(i, j, n) for j in range(n)] for i in range(n)]
    assert pattern.allowed(n).tolist() == expected


@pytest.mark.parametrize("name", PAPER)
def test_defaults_have_the_papers_sparsity(name: str) -> None:
    pattern = parse_pattern(name)
    for diagonal, expected in zip((True, False), PAPER[name], strict=True):
        assert 100 * count_masked(pattern, 128, diagonal=diagonal) / 128**2 == pytest.approx(expected, abs=0.15)


@pytest.mark.parametrize("name", ["strided", "fixed", "logsparse", "star"])
def test_four_of_them_to_the_printed_digit(name: str) -> None:
    pattern = parse_pattern(name)
    found = [round(100 * count_masked(pattern, 128, diagonal=d) / 128**2, 1) for d in (True, False)]
    assert found == list(PAPER[name])


@given(st.integers(2, 40), st.integers(0, 5), st.integers(0, 3))
@example(2, 2, 0)  # more than there are others
def test_random_keys_are_others_and_as_many_as_asked_for(n: int, keys: int, seed: int) -> None:
    allowed = Random(keys, seed).allowed(n)
    assert (allowed.sum(axis=1) == min(keys, n - 1)).all()
    assert not np.diagonal(allowed).any()
    assert np.array_equal(allowed, Random(keys, seed).allowed(n))


def test_random_depends_on_seed_and_is_even() -> None:
    assert not np.array_equal(Random(2, 0).allowed(20), Random(2, 1).allowed(20))
    # every key is drawn by about as many queries: 10 of 200 × 3 draws, standard deviation 3
    hits = sum(Random(3, seed).allowed(61).sum(axis=0) for seed in range(60))
    assert abs(hits.mean() - 180) < 1e-9
    assert hits.std() < 3 * np.sqrt(180)


@given(st.integers(3, 40), st.integers(0, 4), st.integers(0, 2), st.integers(0, 4))
def test_bigbird_draws_only_what_is_not_seen(n: int, window: int, tokens: int, keys: int) -> None:
    seen, allowed = Longformer(window, tokens).allowed(n), BigBird(window, tokens, keys).allowed(n)
    assert (allowed >= seen).all()
    extra, free = (allowed & ~seen).sum(axis=1), (~seen).sum(axis=1)
    assert (extra == np.minimum(keys, free)).all()


@given(st.integers(1, 7), st.integers(1, 9), st.integers(0, 4), st.integers(0, 4), st.integers(0, 3))
def test_block_sparse_has_the_sparsity_of_the_closed_form(m: int, size: int, window: int, tokens: int, r: int) -> None:
    pattern, n = BlockSparse(size, window, tokens, r), m * size
    outside = max(m - tokens - window, 1)
    closed = outside * (outside - 1)
    # Of the blocks that a block does not see, r are drawn, as far as there are so many.
    seen = [sum(abs(i - j) <= window or min(i, j) < tokens for j in range(m)) for i in range(m)]
    drawn = sum(min(r, m - blocks) for blocks in seen)
    assert count_masked(pattern, n) == (closed - drawn) * size**2
    assert count_masked(pattern, n, diagonal=False) == (closed - drawn) * size**2 + n
    assert np.array_equal(BlockSparse(1, window, tokens, r).allowed(n), BigBird(window, tokens, r).allowed(n))


@given(st.lists(SINGLE, min_size=2, max_size=4), LENGTH)
def test_unions_allow_what_any_allows(patterns: list[Pattern], n: int) -> None:
    union = patterns[0] | patterns[1]
    for more in patterns[2:]:
        union = union | more
    expected = np.zeros((n, n), dtype=bool)
    for pattern in patterns:
        expected |= pattern.allowed(n)
    assert np.array_equal(union.allowed(n), expected)
    assert union.count(n) == int(expected.sum())
    assert union.diagonal(n) == int(np.trace(expected))


@given(st.lists(SINGLE, min_size=1, max_size=3))
def test_words_are_read_back(patterns: list[Pattern]) -> None:
    pattern = patterns[0] if len(patterns) == 1 else Union(tuple(patterns))
    assert parse_pattern(str(pattern)) == pattern


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("window:3", Window(3)),
        ("window : width = 3", Window(3)),
        ("Window:3|global|random:2", Union((Window(3), Global(1), Random(2)))),
        ("random:2,seed=7", Random(2, 7)),
        ("bigbird:1,3,seed=5,keys=4", BigBird(1, 3, 4, 5)),
        ("strided", Strided(4)),
        ("block-sparse:16,keys=2", BlockSparse(16, keys=2)),
    ],
)
def test_short_forms(text: str, expected: Pattern) -> None:
    assert parse_pattern(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("windwo:3", "no attention pattern 'windwo'.\nDid you mean window?"),
        ("nothing-like-it", "Patterns: strided, fixed"),
        ("", "a name is missing"),
        ("window:3|", "a name is missing"),
        ("window:", "a parameter is missing"),
        ("window:3,4", "window: '4' is one parameter too many.\nIts parameters, in order: width (1)"),
        ("star:1", "star: '1' is one parameter too many.\nIt has none."),
        ("window:x", "window: width is 'x', which is not a whole number"),
        ("window:1.5", "not a whole number"),
        ("window:3_0", "window: width is '3_0', which is not a whole number"),
        ("window:-1", "window: width is -1.\nGive 0 or more."),
        ("block-sparse:0", "block-sparse: size is 0.\nGive 1 or more."),
        ("strided:0", "strided: stride is 0.\nGive 1 or more."),
        ("fixed:4,5", "a block of 4 tokens does not have 5 summary tokens.\nsummary can be 0 to 4."),
        ("bigbird:sed=1", "bigbird has no parameter 'sed'.\nDid you mean seed?"),
        ("bigbird:1,window=2", "bigbird: window is given twice"),
        ("bigbird:window=1,2,", "keys"),
    ],
)
def test_what_is_no_pattern_is_told(text: str, message: str) -> None:
    with pytest.raises(OptionError) as error:
        parse_pattern(text)
    assert message in str(error.value)


def test_every_pattern_has_its_name_and_defaults() -> None:
    for name, kind in PATTERNS.items():
        assert kind.name == name
        pattern = kind()
        assert parse_pattern(name) == pattern
        assert all(isinstance(getattr(pattern, f.name), int) for f in fields(kind))  # type: ignore[arg-type]


def test_what_was_made_is_kept_and_cannot_be_written_to() -> None:
    kept = cached_positions(Window(2), 9)
    assert cached_positions(Window(2), 9) is kept
    with pytest.raises(ValueError, match="read-only"):
        kept[0, 0] = False
