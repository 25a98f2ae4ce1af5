"""One spelling for the same relation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlens.corpora.relations import CLEARNLP_TO_UD, TIGER_TO_UD, base_relation, matches, normalise

# https://universaldependencies.org/u/dep/ (v2)
UD = {
    *("acl", "advcl", "advmod", "amod", "appos", "aux", "case", "cc", "ccomp", "clf", "compound", "conj", "cop"),
    *("csubj", "dep", "det", "discourse", "dislocated", "expl", "fixed", "flat", "goeswith", "iobj", "list", "mark"),
    *("nmod", "nsubj", "nummod", "obj", "obl", "orphan", "parataxis", "punct", "reparandum", "root", "vocative"),
    "xcomp",
}


@pytest.mark.parametrize(
    ("label", "wanted"),
    [
        ("dobj", "obj"),
        ("DOBJ", "obj"),
        ("ROOT", "root"),
        ("nsubjpass", "nsubj:pass"),
        ("csubjpass", "csubj:pass"),
        ("auxpass", "aux:pass"),
        ("poss", "nmod:poss"),
        ("relcl", "acl:relcl"),
        ("dative", "iobj"),
        ("neg", "advmod"),
        ("prt", "compound:prt"),
        ("sb", "nsubj"),
        ("oa", "obj"),
        ("nsubj:pass", "nsubj:pass"),
        ("prep", "prep"),
        ("pobj", "pobj"),
        ("nk", "nk"),
        ("never-heard-of", "never-heard-of"),
    ],
)
def test_normalise(label: str, wanted: str) -> None:
    assert normalise(label) == wanted


@given(st.sampled_from(sorted(CLEARNLP_TO_UD | TIGER_TO_UD)) | st.text(max_size=10))
def test_idempotent(label: str) -> None:
    assert normalise(normalise(label)) == normalise(label)
    assert base_relation(base_relation(label)) == base_relation(label)
    assert base_relation(label) == base_relation(normalise(label))


def test_translations_are_ud_relations() -> None:
    for table in (CLEARNLP_TO_UD, TIGER_TO_UD):
        assert {base_relation(label) for label in table.values()} <= UD
        assert not set(table) & UD


def test_ud_labels_stay() -> None:
    assert {normalise(label) for label in UD} == UD
    assert not set(CLEARNLP_TO_UD) & set(TIGER_TO_UD)


@pytest.mark.parametrize(
    ("label", "wanted", "is_match"),
    [
        ("nsubj", "nsubj", True),
        ("nsubj:pass", "nsubj", True),
        ("nsubjpass", "nsubj", True),
        ("nsubjpass", "nsubj:pass", True),
        ("nsubj", "nsubj:pass", False),
        ("nsubj:outer", "nsubj:pass", False),
        ("dobj", "obj", True),
        ("obj", "dobj", True),
        ("iobj", "obj", False),
        ("csubj", "nsubj", False),
        ("nsubjx", "nsubj", False),
        ("acl:relcl", "relcl", True),
        ("acl", "relcl", False),
    ],
)
def test_matches(label: str, wanted: str, is_match: bool) -> None:
    assert matches(label, wanted) is is_match
