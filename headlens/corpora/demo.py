"""The embedded default corpus."""

from __future__ import annotations

from pathlib import Path

from headlens.corpora.conllu import ConlluCorpus


def demo_corpus() -> ConlluCorpus:
    """A small English treebank written for headlens; see `headlens/corpora/data/README.md`."""
    return ConlluCorpus(Path(__file__).parent / "data" / "demo.conllu")
