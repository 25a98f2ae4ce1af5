"""Sentences: the words of their text, and trees over them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlens.corpora.sentence import ROOT, Word, find_tree_fault, join_tokens, single_root, split_surface


def reaches_root(heads: list[int], node: int) -> bool:
    for _ in heads:
        node = heads[node]
        if node == ROOT:
            return True
    return False


def is_tree(heads: list[int]) -> bool:
    in_range = all(h == ROOT or 0 <= h < len(heads) for h in heads)
    return in_range and heads.count(ROOT) == 1 and all(reaches_root(heads, i) for i in range(len(heads)))


@given(st.lists(st.integers(-2, 6), max_size=6))
def test_fault_is_found_where_there_is_one(heads: list[int]) -> None:
    fault = find_tree_fault(heads)
    assert (fault is None) == is_tree(heads)
    assert fault is None or 0 <= fault[0] < max(1, len(heads))


@pytest.mark.parametrize(
    ("heads", "fault"),
    [
        ([ROOT], None),
        ([1, ROOT, 1], None),
        ([1, ROOT, 3], (2, "head 4 is out of range (the sentence has 3 words)")),
        ([1, ROOT, -2], (2, "head -1 is out of range (the sentence has 3 words)")),
        ([1, 0], (0, "the sentence has no root (a word with head 0)")),
        ([1, ROOT, ROOT], (2, "the sentence has 2 roots; word 2 is already one")),
        ([ROOT, 3, 1, 2], (1, "word 2 is part of a cycle of heads")),
        ([3, ROOT, 3, 2], (2, "word 3 is part of a cycle of heads")),
        ([ROOT, 1], (1, "word 2 is part of a cycle of heads")),
    ],
)
def test_first_fault(heads: list[int], fault: tuple[int, str] | None) -> None:
    assert find_tree_fault(heads) == fault


def test_long_chain() -> None:
    assert find_tree_fault([ROOT, *range(20_000)]) is None
    assert find_tree_fault([*range(1, 20_000), ROOT]) is None


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_several_trees_become_one(sizes: list[int]) -> None:
    words: list[Word] = []
    for size in sizes:
        first = len(words)
        words += [Word("w", 0, 1, ROOT if i == 0 else first + i - 1, "root" if i == 0 else "obj") for i in range(size)]
    joined = single_root(words)
    heads = [w.head for w in joined if w.head is not None]
    assert is_tree(heads)
    later = [sum(sizes[:i]) for i in range(1, len(sizes))]
    assert [i for i, w in enumerate(joined) if w.relation == "parataxis"] == later
    assert all(joined[i].head == 0 for i in later)
    assert [w for i, w in enumerate(joined) if i not in later] == [w for i, w in enumerate(words) if i not in later]


def test_nothing_to_join() -> None:
    assert single_root([]) == ()
    tree = (Word("a", 0, 1, 1, "obj"), Word("b", 2, 3, ROOT, "root"))
    assert single_root(tree) == tree


@pytest.mark.parametrize(
    ("surface", "forms", "spans"),
    [
        ("don't", ["do", "n't"], [(5, 7), (7, 10)]),
        ("Don't", ["do", "n't"], [(5, 7), (7, 10)]),
        ("gonna", ["gon", "na"], [(5, 8), (8, 10)]),
        ("zum", ["zu", "dem"], [(5, 8), (5, 8)]),
        ("au", ["à", "le"], [(5, 7), (5, 7)]),
        ("ab", ["ba"], [(5, 7)]),
        ("dámelo", ["da", "me", "lo"], [(5, 11)] * 3),
        ("İx", ["i̇", "x"], [(5, 7)] * 2),  # one character that is two in lower case
        ("word", ["word"], [(5, 9)]),
    ],
)
def test_split_surface(surface: str, forms: list[str], spans: list[tuple[int, int]]) -> None:
    assert split_surface(surface, forms, 5) == spans


def test_lay_out() -> None:
    tokens = [
        ("Zum", ("zu", "dem"), True),
        ("Haus", ("Haus",), False),
        ("!", ("!",), True),
    ]
    assert join_tokens(tokens) == ("Zum Haus!", [(0, 3), (0, 3), (4, 8), (8, 9)])
    assert join_tokens([]) == ("", [])


@given(st.lists(st.tuples(st.text("abcé", min_size=1, max_size=5), st.booleans())))
def test_spans_index_the_tokens(tokens: list[tuple[str, bool]]) -> None:
    text, spans = join_tokens((form, (form,), space) for form, space in tokens)
    assert [text[start:end] for start, end in spans] == [form for form, _ in tokens]
    naive = ""
    for form, space in tokens:
        naive += form + " " * space
    assert text == naive.rstrip()


@given(st.text(min_size=1, max_size=8), st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=4))
def test_parts_lie_inside(surface: str, forms: list[str]) -> None:
    spans = split_surface(surface, forms, 3)
    assert len(spans) == len(forms)
    assert all(3 <= start < end <= 3 + len(surface) for start, end in spans)
    if spans[0] != (3, 3 + len(surface)):
        assert "".join(surface[a - 3 : b - 3] for a, b in spans) == surface
        assert [surface[a - 3 : b - 3].lower() for a, b in spans] == [f.lower() for f in forms] or len(
            surface.lower()
        ) != len(surface)
