"""Where words stand in a text put together from tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlens.corpora.spans import SurfaceToken, join_tokens, split_surface


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
        SurfaceToken("Zum", ("zu", "dem"), space_after=True),
        SurfaceToken("Haus", ("Haus",), space_after=False),
        SurfaceToken("!", ("!",), space_after=True),
    ]
    assert join_tokens(tokens) == ("Zum Haus!", [(0, 3), (0, 3), (4, 8), (8, 9)])
    assert join_tokens([]) == ("", [])


@given(st.lists(st.tuples(st.text("abcé", min_size=1, max_size=5), st.booleans())))
def test_spans_index_the_tokens(tokens: list[tuple[str, bool]]) -> None:
    text, spans = join_tokens(SurfaceToken(form, (form,), space) for form, space in tokens)
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
