"""What a corpus is, in a few numbers and a hash."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from headlens.corpora.sentence import Corpus, Sentence
from headlens.errors import CorpusError


@dataclass(frozen=True)
class CorpusSummary:
    """A corpus as `run.json` records it.

    Args:
        name: its short name.
        sentences: examples; a pair counts once.
        words: of both sides.
        trees: sentences with a dependency tree, of both sides.
        sha256: over texts, words and trees; the same for the same content, whatever file or ids it has.
    """

    name: str
    sentences: int
    words: int
    trees: int
    sha256: str


def summarise(corpus: Corpus, progress: Callable[[int], None] = lambda _: None) -> CorpusSummary:
    """Read a corpus once.

    Raises:
        CorpusError: if it is empty, or whatever reading it raises.
    """
    digest = hashlib.sha256()
    sentences = words = trees = 0
    for example in corpus:
        sentences += 1
        for sentence in (example.source, example.target):
            if sentence is not None:
                digest.update(_content(sentence))
                words += len(sentence.words)
                trees += sentence.has_tree
        digest.update(b"\0")
        progress(1)
    if not sentences:
        raise CorpusError(f"the corpus {corpus.name} is empty.", "It must hold at least one sentence.")
    return CorpusSummary(corpus.name, sentences, words, trees, digest.hexdigest())


def _content(sentence: Sentence) -> bytes:
    words = "\t".join(f"{w.start}:{w.end}:{w.head}:{w.relation}:{w.form}" for w in sentence.words)
    return f"{sentence.text}\n{words}\n".encode()
