"""Lists and mappings in cells, against what wrote them: JSON, Python's repr, numpy's and pandas'."""

from __future__ import annotations

import json
from contextlib import suppress
from io import StringIO
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlens.nested_text import holds_texts, looks_nested, nested_value

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
LEAVES = TEXT | st.integers(-(10**9), 10**9) | st.booleans() | st.none() | st.floats(-1e6, 1e6)
VALUES = st.recursive(LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(TEXT, v, max_size=3), max_leaves=8)


@given(VALUES)
def test_what_json_and_python_write_is_read_as_it_was(value: Any) -> None:
    assert nested_value(repr(value)) == value
    assert nested_value(json.dumps(value)) == value
    assert nested_value(json.dumps(value, ensure_ascii=False, indent=1)) == value


@given(st.lists(TEXT, min_size=1, max_size=6), st.lists(st.integers(0, 10**6), min_size=1, max_size=6))
def test_what_numpy_and_pandas_write_is_read_as_it_was(texts: list[str], starts: list[int]) -> None:
    objects = np.array(texts, dtype=object)
    for dtype in (np.int64, np.int32):
        answers = {"text": objects, "answer_start": np.array(starts, dtype=dtype)}
        assert nested_value(repr(answers)) == {"text": texts, "answer_start": starts}
    assert nested_value(str(objects)) == texts
    assert nested_value(str(np.array(starts))) == starts
    table = StringIO()
    pd.DataFrame({"a": [objects, {"text": texts}]}).to_csv(table, index=False)
    cells = pd.read_csv(StringIO(table.getvalue()))["a"]
    assert [nested_value(cell) for cell in cells] == [texts, {"text": texts}]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("('a', 'b',)", ["a", "b"]),
        ("array([], dtype=float64)", []),
        ("array([], shape=(0, 2), dtype=int64)", []),
        ("[np.str_('a'), np.int64(4)]", ["a", 4]),
        ("[{'a': 1}\n {'a': 2}]", [{"a": 1}, {"a": 2}]),
        ('["\\ud83d\\ude00", "a\\/b"]', ["\U0001f600", "a/b"]),
        ("[NaN, None, true, False]", [None, None, True, False]),
    ],
)
def test_forms_that_are_read(text: str, value: Any) -> None:
    assert nested_value(text) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "cut off"),
        ("[1, ", "cut off"),
        ("{'text': ['Denver Bron", "neither JSON nor Python"),
        ("['a' ... 'b']", "neither JSON nor Python"),
        ("[Denver Broncos]", "'Denver' is not a value"),
        ("{text: 'a'}", "the key 'text' is not a string"),
        ("{1: 'a'}", "the key '1' is not a string"),
        ("{'a' 'b'}", "no colon after 'a'"),
        ("{'a': 1 'b': 2}", "no comma before"),
        ("('a' 'b')", "no comma before"),
        ("{'a': 1, 'a': 2}", "the key 'a' is given twice"),
        ("['a'] b", "'b' follows after its end"),
        ("['a''b']", "neither JSON nor Python"),
        ("[1-2]", "neither JSON nor Python"),
        (r"['\d']", "is not valid Python"),
        ("['a\nb']", "is not valid Python"),
        ("__import__('os')", "'__import__' is not a value"),
        ("Row(text=['a'])", "neither JSON nor Python"),
        ("array()", "'array' is not a value"),
        (f"[{'1' * 500_000}x]", "neither JSON nor Python"),
        (f"[{'1' * 5000}]", "limit"),
        ("[" * 21 + "]" * 21, "nested too deeply"),
        ("[" * 500_000, "nested too deeply"),
        ("[" + "1, " * 400_000, "more than 1,000,000 characters"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        nested_value(text)


@given(st.text(alphabet="[]{}()'\",:\\ \n1.a-=", max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(ValueError):
        nested_value(text)
    assert holds_texts(text) <= looks_nested(text)


@pytest.mark.parametrize("text", ["[sic] a", "[T]he", "(1990)", "f(x)", "A {b} c", "", "1", "Smith (Ed.)", '"[a]"'])
def test_prose_does_not_look_nested(text: str) -> None:
    assert not looks_nested(text)


@pytest.mark.parametrize("text", ["[applause]", "[1]", "[]", "{}", '("Wow!")', "['a", "[1, 2]", "('a', 'b')"])
def test_sentences_may_look_nested(text: str) -> None:
    assert looks_nested(text)
    assert not holds_texts(text)


@pytest.mark.parametrize("text", ["['a']", ' ["a"] ', "{'a': 1}", "array(['a'], dtype=object)", "[[1], ['a']]"])
def test_texts_within_texts(text: str) -> None:
    assert holds_texts(text)
