"""A corpus is parsed block by block; what was parsed is not parsed again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from saved import Memory, sentence

from headlens.corpora.sentence import ROOT, Example, Sentence
from headlens.corpora.sources import ParsedCorpus
from headlens.runs import kept_trees
from headlens.runs.folder import RunFolder
from headlens.runs.kept_trees import keep_trees, parser_name
from headlens.runs.processes import ALONE, Processes
from headlens.runs.progress import Advance, Reporter
from headlens.runs.run import Run

SIZE = 11


@dataclass
class Chain:
    """Hangs every word on the one before; gives up after some sentences."""

    patience: int = 10**9
    parsed: int = 0

    def parse(self, sentences: Iterable[Sentence]) -> Iterator[Sentence]:
        for given in sentences:
            if self.parsed == self.patience:
                raise KeyboardInterrupt
            self.parsed += 1
            words = [
                replace(w, head=i - 1 if i else ROOT, relation="dep" if i else "root")
                for i, w in enumerate(given.words)
            ]
            yield Sentence(given.text, tuple(words), given.id)


def corpus(parser: Chain, prefix: str = "number", *, pairs: bool = False) -> ParsedCorpus:
    sentences = [sentence(f"{prefix} {i} it is") for i in range(SIZE)]
    return ParsedCorpus(Memory([Example(s, s if pairs else None) for s in sentences]), parser)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunFolder]:
    monkeypatch.setattr(kept_trees, "BLOCK", 4)
    with RunFolder.create(tmp_path / "run", command="classify", model="demo") as made:
        yield made


def run(folder: RunFolder, processes: Processes = ALONE) -> Run:
    return Run(folder.path, folder if processes.first else None, processes, Reporter())


def test_trees_are_kept_and_read_again(folder: RunFolder) -> None:
    steps: list[int] = []

    class Shown(Reporter):
        def progress(self, text: str, *_: object) -> AbstractContextManager[Advance]:
            assert text == "parsing memory with chain"
            return nullcontext(steps.append)

    kept = keep_trees(corpus(Chain()), replace(run(folder), reporter=Shown()), "chain")
    assert [e.source.text for e in kept] == [f"number {i} it is" for i in range(SIZE)]
    assert [[w.head for w in e.source.words] for e in kept] == [[ROOT, 0, 1, 2]] * SIZE
    assert steps == [4, 4, 3]
    assert folder.files == [folder.path / "parsed.conllu"]
    assert kept.name == "memory, trees of chain"


def test_whose_trees_they_are_is_told(folder: RunFolder) -> None:
    """A treebank has relations of its own, which a parser's need not have: EWT has no `pobj`."""
    opened = run(folder)
    for spec, name in (("spacy:en_core_web_sm", "spacy:en_core_web_sm"), ("stanza:de@/my/models", "stanza:de")):
        assert keep_trees(corpus(Chain()), opened, spec).name == f"memory, trees of {name}"
        assert opened.warnings[-1].startswith(f"Trees and relations are those of {name} (parsed.conllu)")
    assert parser_name("conllu:/my/corrected.conllu") == "conllu:corrected.conllu"


def test_a_corpus_that_is_not_parsed_is_returned_as_it_is(folder: RunFolder) -> None:
    given = corpus(Chain()).corpus
    assert keep_trees(given, run(folder), "gold") is given
    assert not folder.files


def test_two_corpora_of_a_run_have_files_of_their_own(folder: RunFolder) -> None:
    first = keep_trees(corpus(Chain()), run(folder), "chain")
    second = keep_trees(corpus(Chain(), "letter"), run(folder), "chain", "-dev")
    assert [f.name for f in folder.files] == ["parsed.conllu", "parsed-dev.conllu"]
    assert [next(iter(kept)).source.text for kept in (first, second)] == ["number 0 it is", "letter 0 it is"]


def test_pairs_keep_their_targets(folder: RunFolder) -> None:
    kept = keep_trees(corpus(Chain(), pairs=True), run(folder), "chain")
    assert all(e.target is not None and e.target.text == e.source.text for e in kept)
    assert [f.name for f in folder.files] == ["parsed.conllu", "targets.conllu"]


def test_whole_blocks_are_not_parsed_again(folder: RunFolder) -> None:
    with pytest.raises(KeyboardInterrupt):
        keep_trees(corpus(Chain(patience=9)), run(folder), "chain")
    assert not (folder.path / "parsed.conllu").exists()
    again = Chain()
    kept = keep_trees(corpus(again), run(folder), "chain")
    assert again.parsed == SIZE - 8
    assert len(list(kept)) == SIZE


def test_blocks_of_another_text_are_not_taken(folder: RunFolder) -> None:
    keep_trees(corpus(Chain()), run(folder), "chain")
    other = Chain()
    kept = keep_trees(corpus(other, "letter"), run(folder), "chain")
    assert other.parsed == SIZE
    assert next(iter(kept)).source.text == "letter 0 it is"


def test_processes_share_the_blocks(folder: RunFolder) -> None:
    class Waiting(Processes):
        def gather(self, value: object) -> list[object]:
            return [value]

        def share(self, value: object) -> object:  # type: ignore[override]
            return value

    second, first = Chain(), Chain()
    # the second one, whose blocks the first one joins, runs before it here
    keep_trees(corpus(second), run(folder, Waiting(1, 2)), "chain")
    kept = keep_trees(corpus(first), run(folder, Waiting(0, 2)), "chain")
    assert (first.parsed, second.parsed) == (7, 4)
    assert [e.source.text for e in kept] == [f"number {i} it is" for i in range(SIZE)]
