"""What `run.json` says about a corpus."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from headlens.corpora.conllu import ConlluCorpus, write_conllu
from headlens.corpora.sentence import ROOT, Example, Sentence, Word, summarise
from headlens.errors import CorpusError

TREE = Sentence("a b", (Word("a", 0, 1, 1, "det"), Word("b", 2, 3, ROOT, "root")), "1")
FLAT = Sentence("c", (Word("c", 0, 1),), "2")


@dataclass(frozen=True)
class Listed:
    """A corpus in memory."""

    examples: tuple[Example, ...]
    name: str = "listed"

    def __iter__(self) -> Iterator[Example]:
        return iter(self.examples)


def digest(*examples: Example) -> str:
    return summarise(Listed(examples)).sha256


def with_word(index: int, **changes: Any) -> Sentence:
    words = list(TREE.words)
    words[index] = replace(words[index], **changes)
    return replace(TREE, words=tuple(words))


def test_counts() -> None:
    steps: list[int] = []
    summary = summarise(Listed((Example(TREE), Example(FLAT, TREE), Example(TREE, TREE))), steps.append)
    assert (summary.name, summary.sentences, summary.words, summary.trees) == ("listed", 3, 2 + 3 + 4, 1 + 1 + 2)
    assert steps == [1, 1, 1]


def test_hash_is_the_same_for_the_same_content(tmp_path: Path) -> None:
    write_conllu([TREE, FLAT], tmp_path / "x.conllu")
    from_file = summarise(ConlluCorpus(tmp_path / "x.conllu"))
    assert from_file.sha256 == digest(Example(TREE), Example(FLAT))
    assert from_file.sha256 == digest(Example(replace(TREE, id="other")), Example(FLAT))
    # So that a change of the recipe is noticed: numbers in old runs would no longer compare.
    assert from_file.sha256 == "c206a403ee06a2679b15d8a700f0c641a0201447b0ce7a4cc7df3f5371159ebb"


@pytest.mark.parametrize(
    "changed",
    [
        with_word(0, head=ROOT),
        with_word(0, head=None),
        with_word(0, relation="amod"),
        with_word(0, relation=None),
        with_word(0, form="A"),
        with_word(1, end=2),
        replace(TREE, text="a c"),
        replace(TREE, words=TREE.words[:1]),
    ],
)
def test_hash_changes_with_the_content(changed: Sentence) -> None:
    assert digest(Example(changed)) != digest(Example(TREE))


def test_hash_knows_sides_and_order() -> None:
    several = [
        digest(Example(TREE), Example(FLAT)),
        digest(Example(FLAT), Example(TREE)),
        digest(Example(TREE, FLAT)),
        digest(Example(FLAT, TREE)),
        digest(Example(TREE), Example(TREE, FLAT)),
        digest(Example(TREE, TREE), Example(FLAT)),
    ]
    assert len(set(several)) == len(several)


def test_empty_corpus() -> None:
    with pytest.raises(CorpusError, match=r"the corpus listed is empty\.\nGive one with at least one sentence"):
        summarise(Listed(()))


def test_treebanks_without_their_text() -> None:
    blank = Sentence("_ _", (Word("_", 0, 1, 1, "det"), Word("_", 2, 3, ROOT, "root")), "1")
    mixed = Sentence("_ a b", (Word("_", 0, 1), Word("a", 2, 3), Word("b", 4, 5)), "2")
    for examples, told in (((blank,), "2 of the 2"), ((blank, FLAT), "2 of the 3"), ((blank, mixed), "3 of the 5")):
        with pytest.raises(CorpusError, match=rf"{told} words of listed are '_': the treebank comes without its text"):
            summarise(Listed(tuple(map(Example, examples))))
    assert summarise(Listed((Example(mixed),))).words == 3
