"""Lists and mappings in cells: JSON is read, what Python, numpy and pandas show is known and refused."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlens.nested_text import holds_texts, looks_nested, nested_value

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
LEAVES = TEXT | st.integers(-(10**9), 10**9) | st.booleans() | st.none() | st.floats(-1e6, 1e6)
VALUES = st.recursive(LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(TEXT, v, max_size=3), max_leaves=8)


@given(VALUES)
def test_what_json_writes_is_read_as_it_was(value: Any) -> None:
    assert nested_value(json.dumps(value)) == value
    assert nested_value(json.dumps(value, ensure_ascii=False, indent=1)) == value


SHOWN = [
    *("['a', 'b']", "{'a': 1}", "('a', 'b',)", "array(['a'], dtype=object)", "[np.str_('a'), np.int64(4)]"),
    *("[{'a': 1}\n {'a': 2}]", "Row(text=['a'])", "{'text': ['Denver Bron", "['a' ... 'b']", "[None, True]"),
]


@pytest.mark.parametrize("text", [*SHOWN, "", "[1, ", "[sic]", f"[{'1' * 5000}]", "[" * 500_000])
def test_what_is_no_json_is_refused(text: str) -> None:
    """Also what Python, pandas, numpy and Spark show of lists and mappings: it cannot always be told apart again."""
    with pytest.raises(ValueError, match=r"line|nested|limit|Expecting|Extra|char"):
        nested_value(text)


def test_texts_of_megabytes_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 1,000,000 characters"):
        nested_value("[" + "1, " * 400_000)


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


@pytest.mark.parametrize(
    "text", ["CO.Cc1nc(C=CO)cs1.[NH4+]", "OCCn1nnc([C@@H]2C)C[C@@]3", "N2CCCC2=O)cc([N+](=O)[O-])c1", "[Na+].[OH-]"]
)
def test_formulas_of_chemistry_are_text(text: str) -> None:
    assert not holds_texts(text)


@pytest.mark.parametrize("text", ["['a']", ' ["a"] ', "{'a': 1}", "array(['a'], dtype=object)", "[[1], ['a']]"])
def test_texts_within_texts(text: str) -> None:
    assert holds_texts(text)
