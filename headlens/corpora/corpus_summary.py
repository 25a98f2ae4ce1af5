"""Summary of a corpus: a few numbers and a hash of its content."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from headlens.corpora.relations import relation_names
from headlens.corpora.sentence import ROOT, Corpus, Sentence
from headlens.errors import CorpusError


@dataclass(frozen=True)
class CorpusSummary:
    """A corpus as `run.json` records it.

    Args:
        name: short name of the corpus.
        sentences: number of examples; a pair counts once.
        words: number of words of both sides.
        trees: number of sentences with a dependency tree, of both sides.
        relations: counts of each relation between words, subtypes under their base, too.
        sha256: over texts, words and trees; the same for the same content, whatever file or ids it has.
    """

    name: str
    sentences: int
    words: int
    trees: int
    sha256: str
    relations: dict[str, int] = field(default_factory=dict)


def summarise(corpus: Corpus, progress: Callable[[int], None] = lambda _: None) -> CorpusSummary:
    """Reads a corpus once and sums it up; `progress` is called with 1 after every example.

    Raises:
        CorpusError: if it is empty, if most of its words are `_`, or whatever reading it raises.
    """
    digest = hashlib.sha256()
    sentences = words = trees = blanks = 0
    relations: Counter[str] = Counter()
    for example in corpus:
        sentences += 1
        for sentence in (example.source, example.target):
            if sentence is not None:
                digest.update(_content(sentence))
                words += len(sentence.words)
                blanks += sum(word.form == "_" for word in sentence.words)
                trees += sentence.has_tree
                labels = [w.relation for w in sentence.words if w.relation and w.head != ROOT]
                relations.update(name for label in labels for name in relation_names(label))
        digest.update(b"\0")
        progress(1)
    if not sentences:
        advice = "Give one with at least one sentence; blank lines, comments and empty cells do not count."
        raise CorpusError(f"the corpus {corpus.name} is empty.", advice)
    if blanks and 2 * blanks >= words:
        raise CorpusError(
            f"{blanks:,} of the {words:,} words of {corpus.name} are '_': the treebank comes without its text.",
            "Add the text as its README says (treebanks of licensed text are published without it).",
        )
    return CorpusSummary(corpus.name, sentences, words, trees, digest.hexdigest(), dict(relations))


def _content(sentence: Sentence) -> bytes:
    """Writes text, words and tree of a sentence as the bytes that are hashed."""
    words = "\t".join(f"{w.start}:{w.end}:{w.head}:{w.relation}:{w.form}{':'.join(w.entities)}" for w in sentence.words)
    return f"{sentence.text}\n{words}\n".encode()
