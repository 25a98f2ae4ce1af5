"""A corpus parsed once, block by block, so that an interrupted run parses no sentence twice."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from headlens.corpora.conllu import ConlluCorpus, write_conllu
from headlens.corpora.sentence import Corpus, Example
from headlens.corpora.sources import NamedCorpus, ParsedCorpus
from headlens.corpora.text import ParallelCorpus
from headlens.files import atomic_path
from headlens.runs.progress import Advance
from headlens.runs.run import Run

# A multiple of what parsers take at a time: blocks must not change how sentences are grouped.
BLOCK = 512


def keep_trees(corpus: ParsedCorpus, run: Run, advance: Advance) -> Corpus:
    """Parse a corpus into the run folder, where the trees can be looked at, corrected and read again.

    Blocks are dealt out to the processes. `parsed.conllu` holds the sources, `targets.conllu` their translations.

    Args:
        corpus: its sources are parsed.
        run: the run whose folder takes the trees.
        advance: called with the number of sentences done.
    """
    blocks: list[Path] = []
    examples = iter(corpus.corpus)
    for number, block in enumerate(iter(lambda: list(islice(examples, BLOCK)), [])):
        blocks.append(run.kept(f"parsed-{number:05}-{_digest(block)}.conllu"))
        if number % run.processes.count == run.processes.rank and not blocks[-1].exists():
            with atomic_path(blocks[-1]) as path:
                write_conllu(corpus.parser.parse(example.source for example in block), path)
        advance(len(block))
    run.processes.gather(None)  # until all blocks are there
    if run.writes:
        with run.file("parsed.conllu") as path, path.open("wb") as joined:
            joined.writelines(block.read_bytes() for block in blocks)
        targets = [e.target for e in islice(corpus.corpus, 1) if e.target is not None]
        if targets:
            with run.file("targets.conllu") as path:
                write_conllu((e.target for e in corpus.corpus if e.target is not None), path)
    run.processes.share(None)  # until they are joined
    source = NamedCorpus(ConlluCorpus(run.path / "parsed.conllu"), corpus.name)
    if any(e.target is not None for e in islice(corpus.corpus, 1)):
        return ParallelCorpus(source, ConlluCorpus(run.path / "targets.conllu"))
    return source


def _digest(block: Sequence[Example]) -> str:
    """What the parser reads: a block that was kept is taken only for the same text."""
    words = "\n".join("\t".join([e.source.text, *(w.form for w in e.source.words)]) for e in block)
    return hashlib.sha256(words.encode()).hexdigest()[:12]
