"""Units of words and tokens, against sets of characters and a naive search for components."""

import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlens.corpora.alignment import Span, align


def brute_force(words: Sequence[Span], tokens: Sequence[Span], special: Sequence[bool]) -> tuple[list[int], list[int]]:
    """Units of tokens and words: grow sets of nodes that share a character until nothing changes."""
    nodes = {("w", i): set(range(*span)) for i, span in enumerate(words)}
    nodes |= {("t", i): set(range(*span)) for i, (span, s) in enumerate(zip(tokens, special, strict=True)) if not s}
    label = {node: k for k, node in enumerate(nodes)}
    changed = True
    while changed:
        changed = False
        for a in nodes:
            for b in nodes:
                if nodes[a] & nodes[b] and label[a] != label[b] and "w" in (a[0], b[0]):
                    label[a] = label[b] = min(label[a], label[b])
                    changed = True
    both = {k for (side, _), k in label.items() if side == "w"} & {k for (s, _), k in label.items() if s == "t"}
    in_order = sorted(both, key=lambda k: min(i for (s, i), other in label.items() if s == "w" and other == k))
    number = {k: u for u, k in enumerate(in_order)}
    of_token = [number.get(label.get(("t", i), -1), -1) for i in range(len(tokens))]
    filled = list(of_token)
    for i, (start, end) in enumerate(tokens):
        if start == end and not special[i]:
            after = [u for u in of_token[i + 1 :] if u >= 0]
            before = [u for u in of_token[:i] if u >= 0]
            filled[i] = after[0] if after else before[-1] if before else -1
    return filled, [number.get(label["w", i], -1) for i in range(len(words))]


@st.composite
def spans(draw: st.DrawFn, most_shared: int) -> list[Span]:
    """Intervals from left to right, with gaps, empty ones, and some that repeat or overlap the one before."""
    found: list[Span] = []
    at = 0
    for _ in range(draw(st.integers(0, 8))):
        at = max(0, at + draw(st.integers(-most_shared, 2)))
        start = max(at, found[-1][0] if found else 0)
        at = start + draw(st.integers(0, 4))
        found.append((start, at))
    return found


@given(spans(2), spans(1), st.data())
def test_agrees_with_sets_of_characters(words: list[Span], tokens: list[Span], data: st.DataObject) -> None:
    special = data.draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
    result = align(words, tokens, special)
    of_token, of_word = brute_force(words, tokens, special)
    assert list(result.unit_of_token) == of_token
    assert list(result.unit_of_word) == of_word
    assert result.n_units == max(of_word, default=-1) + 1
    assert result.unaligned_words == of_word.count(-1)
    assert result.unaligned_tokens == sum(u == -1 and not s for u, s in zip(of_token, special, strict=True))
    assert result.merged_words == sum(u >= 0 and of_word.count(u) > 1 for u in of_word)


@pytest.mark.parametrize(
    ("words", "tokens", "of_token", "of_word"),
    [
        pytest.param([(0, 3), (4, 7)], [(0, 2), (2, 3), (4, 7)], [0, 0, 1], [0, 1], id="pieces"),
        pytest.param([(0, 3), (3, 5)], [(0, 5)], [0], [0, 0], id="gonna"),
        pytest.param([(0, 3), (0, 3), (4, 8)], [(0, 1), (1, 3), (4, 8)], [0, 0, 1], [0, 0, 1], id="zum"),
        pytest.param([(0, 2), (3, 5)], [(0, 2), (3, 3), (3, 5)], [0, 1, 1], [0, 1], id="lone space"),
        pytest.param([(0, 2)], [(0, 2), (3, 3)], [0, 0], [0], id="space at the end"),
        pytest.param([(0, 1)], [(0, 1)] * 4, [0] * 4, [0], id="bytes of one character"),
        pytest.param([(0, 2), (3, 5), (6, 8)], [(0, 2), (6, 8)], [0, 1], [0, -1, 1], id="word without token"),
        pytest.param([(0, 2)], [(0, 2), (3, 6)], [0, -1], [0], id="text without word"),
        pytest.param([(0, 1), (1, 2), (2, 3)], [(0, 2), (1, 3)], [0, 0], [0, 0, 0], id="chain"),
        pytest.param([(0, 1), (1, 2)], [(0, 2), (0, 1)], [0, 0], [0, 0], id="long token before a short one"),
        pytest.param([], [(0, 2)], [-1], [], id="no words"),
        pytest.param([(0, 2)], [(2, 2)], [-1], [-1], id="only blanks"),
    ],
)
def test_cases(words: list[Span], tokens: list[Span], of_token: list[int], of_word: list[int]) -> None:
    result = align(words, tokens, [False] * len(tokens))
    assert (list(result.unit_of_token), list(result.unit_of_word)) == (of_token, of_word)


def test_special_tokens_belong_to_no_unit_and_are_not_counted() -> None:
    result = align([(0, 2)], [(0, 0), (0, 2), (0, 2)], [True, False, True])
    assert result.unit_of_token == (-1, 0, -1)
    assert result.unaligned_tokens == 0


def test_words_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="order"):
        align([(4, 6), (0, 2)], [], [])


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="zip"):
        align([(0, 2)], [(0, 2)], [])


def test_time_grows_with_length_only() -> None:
    def seconds(n: int) -> float:
        words, tokens = [(4 * i, 4 * i + 3) for i in range(n)], [(0, 4 * n)] * n  # each touches every word
        begin = time.process_time()
        align(words, tokens, [False] * n)
        return time.process_time() - begin

    assert seconds(20_000) < 40 * max(min(seconds(1_000) for _ in range(3)), 1e-4)  # quadratic: 400 times
