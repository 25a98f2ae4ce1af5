"""The trees of a parser, kept in a run folder: a corpus is parsed once, and an interrupted run parses nothing twice."""

from __future__ import annotations

import hashlib
from itertools import islice
from pathlib import Path

from headlens.corpora.conllu import ConlluCorpus, write_conllu
from headlens.corpora.sentence import Corpus
from headlens.corpora.sources import NamedCorpus, ParsedCorpus
from headlens.corpora.text import ParallelCorpus
from headlens.files import atomic_path
from headlens.runs.run import Run

# A multiple of what parsers take at a time: blocks must not change how sentences are grouped.
BLOCK = 512


def parser_name(spec: str) -> str:
    """Returns the name of a parser in titles: what the user typed, without folders."""
    kind, _, name = spec.partition("@")[0].partition(":")
    return f"{kind}:{Path(name).name}" if name else kind


def keep_trees(corpus: Corpus, run: Run, parser: str, part: str = "") -> Corpus:
    """Parses a corpus into the run folder, where the trees can be looked at, corrected and read again.

    Blocks are dealt out to the processes. `parsed.conllu` holds the sources, `targets.conllu` their translations.

    Args:
        corpus: as `open_corpus` returns it; one that is not parsed is returned as it is, another one has the parser
            in its name.
        run: the run whose folder takes the trees.
        parser: name of the parser, for the progress that is shown.
        part: what the names of the two files end in, where a run parses several corpora.
    """
    if not isinstance(corpus, ParsedCorpus):
        return corpus
    blocks: list[Path] = []
    examples, paired = iter(corpus.corpus), any(e.target is not None for e in islice(corpus.corpus, 1))
    with run.reporter.progress(f"parsing {corpus.name} with {parser}", None) as advance:
        for number, block in enumerate(iter(lambda: list(islice(examples, BLOCK)), [])):
            # A block that was kept is taken only for the text that the parser reads.
            words = "\n".join("\t".join([e.source.text, *(w.form for w in e.source.words)]) for e in block)
            digest = hashlib.sha256(words.encode()).hexdigest()[:12]
            blocks.append(run.kept(f"parsed-{number:05}-{digest}.conllu"))
            if number % run.processes.count == run.processes.rank and not blocks[-1].exists():
                with atomic_path(blocks[-1]) as path:
                    write_conllu(corpus.parser.parse(example.source for example in block), path)
            advance(len(block))
        run.processes.gather(None)  # until all blocks are there
    trees, targets = f"parsed{part}.conllu", f"targets{part}.conllu"
    if run.writes:
        with run.file(trees) as path, path.open("wb") as joined:
            joined.writelines(block.read_bytes() for block in blocks)
        if paired:
            with run.file(targets) as path:
                write_conllu((e.target for e in corpus.corpus if e.target is not None), path)
    run.processes.share(None)  # until they are joined
    source = NamedCorpus(ConlluCorpus(run.path / trees), f"{corpus.name}, trees of {parser_name(parser)}")
    run.warnings.append(
        f"Trees and relations are those of {parser_name(parser)} ({trees}), also where {corpus.name} has some of its "
        "own."
    )
    return ParallelCorpus(source, ConlluCorpus(run.path / targets)) if paired else source
