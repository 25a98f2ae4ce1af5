"""Gold alignments beside pairs of text, and everything that may be wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from headlens.corpora.corpus_options import CorpusOptions
from headlens.corpora.pharaoh import AlignedCorpus
from headlens.corpora.sentence import Example
from headlens.corpora.sources import open_corpus
from headlens.errors import CorpusError, OptionError

SOURCE, TARGET = ("Das ist's .", "Er geht ."), ("That 's it .", "He goes .")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(
    *links: str, source: Sequence[str] = SOURCE, target: Sequence[str] = TARGET, limit: int | None = None
) -> list[Example]:
    for name, lines in (("de.txt", source), ("en.txt", target), ("gold", links)):
        Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return list(AlignedCorpus(open_corpus("de.txt", CorpusOptions(target="en.txt", limit=limit)), "gold"))


def test_links_from_0_and_from_1_are_the_same() -> None:
    from_0, from_1 = read("0-0 1p1 2-3", "2?2"), read("1-1 2p2 3-4", "3?3")
    assert (
        [e.links for e in from_0]
        == [e.links for e in from_1]
        == [((0, 0, True), (1, 1, False), (2, 3, True)), ((2, 2, False),)]
    )
    # `ist's` and `'s`, which the splitter of plain text cuts otherwise
    assert [w.form for w in from_0[0].source.words] == ["Das", "ist's", "."]


def test_blank_lines_of_both_sides_keep_the_lines_in_step() -> None:
    found = read("0-0", "", "2-2", "", source=["Das ist", "", SOURCE[1]], target=["That is", "", TARGET[1]])
    assert [e.links for e in found] == [((0, 0, True),), ((2, 2, True),)]


def test_a_blank_line_is_a_pair_without_alignment() -> None:
    assert [e.links for e in read("0-0", "")] == [((0, 0, True),), None]


def test_pairs_of_a_table() -> None:
    Path("pairs.tsv").write_text("a\tb\nx y\tu\nz\tv w\n")
    Path("gold").write_text("1-0\n0-1\n")
    corpus = open_corpus("pairs.tsv", CorpusOptions(column="a", target_column="b"))
    assert [e.links for e in AlignedCorpus(corpus, "gold")] == [((1, 0, True),), ((0, 1, True),)]


def test_words_of_treebanks_are_theirs() -> None:
    row = "{}\t{}\t_\t_\t_\t_\t_\t_\t_\t{}\n"
    Path("a.conllu").write_text(row.format(1, "ist", "SpaceAfter=No") + row.format(2, "'s", "_"))
    Path("b.txt").write_text("it is\n")
    Path("gold").write_text("1-0 0-1\n")
    (found,) = AlignedCorpus(open_corpus("a.conllu", CorpusOptions(target="b.txt")), "gold")
    assert [w.form for w in found.source.words] == ["ist", "'s"]


@pytest.mark.parametrize(
    ("links", "message"),
    [
        (["0-0", "1:1"], "gold:2: '1:1' is not a link"),
        (["0-0", "1-"], "gold:2: '1-' is not a link"),
        (["0-0", "0-0-0"], "gold:2: '0-0-0' is not a link"),
        (["0-0", "-1-0"], "gold:2: '-1-0' is not a link"),
        (["0-0 3-0", "0-0"], "gold:1: there is no source word 3: it has 3 words from 0 on"),
        (["0-0", "0-3"], "gold:2: there is no target word 3: it has 3 words from 0 on"),
        (["3-4 1-5", "1-1"], "gold:1: there is no target word 5: it has 4 words from 1 on"),
        (["0-0"], "gold: has 1 line, but de+en has a pair 2"),
        (["0-0", "", "1-1"], "gold:3: has lines after pair 2, the last of de"),
        (["1-1", "1-1"], "does not tell whether words are counted from 0 or from 1"),
        ([], "does not tell"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(links: list[str], message: str) -> None:
    with pytest.raises(CorpusError) as caught:
        read(*links)
    assert message in str(caught.value)
    assert caught.value.advice


def test_sentences_without_translations() -> None:
    read("0-0", "0-0")
    with pytest.raises(OptionError, match="the corpus has no pairs"):
        list(AlignedCorpus(open_corpus("de.txt"), "gold"))
