"""The embedded default corpus."""

from collections import Counter

import pytest

from headlens.corpora.conllu import ConlluCorpus
from headlens.corpora.demo import demo_corpus

# The relations that `classify` asks for unless told otherwise.
DEFAULTS = ("nsubj", "obj", "amod", "advmod")


def test_trees_and_enough_of_each_default_relation() -> None:
    sentences = [example.source for example in demo_corpus()]
    assert len(sentences) >= 200
    assert all(s.has_tree for s in sentences)
    counts = Counter((w.relation or "").split(":")[0] for s in sentences for w in s.words)
    assert all(counts[relation] >= 100 for relation in DEFAULTS)


def test_text_is_forms_and_spaces() -> None:
    for example in demo_corpus():
        text, covered = example.source.text, set[int]()
        for word in example.source.words:
            assert text[word.start : word.end].lower() == word.form.lower()
            covered |= set(range(word.start, word.end))
        assert {text[i] for i in range(len(text)) if i not in covered} <= {" "}


def test_text_agrees_with_its_comments(caplog: pytest.LogCaptureFixture) -> None:
    corpus = demo_corpus()
    ids = [e.source.id for e in corpus]
    assert len(set(ids)) == len(ids)
    assert not caplog.records
    assert corpus.name == "demo"
    assert isinstance(corpus, ConlluCorpus)
