from collections import Counter

import pytest

from headlens.corpora.demo import demo_corpus
from headlens.corpora.relations import matches


def test_demo_has_trees_and_enough_of_each_default_relation() -> None:
    sentences = [example.source for example in demo_corpus()]
    assert len(sentences) >= 200
    assert all(s.has_tree for s in sentences)
    counts = Counter(
        wanted
        for s in sentences
        for w in s.words
        for wanted in ("nsubj", "obj", "amod", "advmod")
        if w.relation is not None and matches(w.relation, wanted)
    )
    assert min(counts[r] for r in ("nsubj", "obj", "amod", "advmod")) >= 30


def test_demo_text_agrees_with_its_comments(caplog: pytest.LogCaptureFixture) -> None:
    assert len({e.source.id for e in demo_corpus()}) == sum(1 for _ in demo_corpus())
    assert not caplog.records
    assert demo_corpus().name == "demo"
