"""Mentions of entities in treebanks: which word stands for each, and what is wrong with their brackets."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import pytest
from saved import read_conllu

from headlens.corpora.conllu import write_conllu
from headlens.corpora.sentence import Sentence, join_sentences
from headlens.errors import CorpusError

WORDS = ("the", "old", "dog", "of", "Ann", "sees", "it")
HEADS = (3, 3, 6, 5, 3, 0, 6)


def read(
    entities: Sequence[str], *, folder: Path, heads: Sequence[int | str] = HEADS, comment: str = "", extra: str = ""
) -> Sentence:
    """A sentence with the value of `Entity=` of every word, empty for none; `extra` is a line after the last word."""
    rows = [
        f"{n}\t{word}\t_\t_\t_\t_\t{head}\t{'_' if head == '_' else 'dep'}\t_\t{f'A=b|Entity={own}' if own else '_'}"
        for n, (word, head, own) in enumerate(zip(WORDS, heads, entities, strict=True), 1)
    ]
    path = folder / "x.conllu"
    path.write_text("\n".join([*([comment] if comment else []), *rows, *([extra] if extra else [])]) + "\n")
    (found,) = read_conllu(path)
    return found


def heads_of(sentence: Sentence) -> dict[str, tuple[str, ...]]:
    return {word.form: word.entities for word in sentence.words if word.entities}


@pytest.mark.parametrize(
    ("entities", "expected"),
    [
        # CorefUD, nested; the head of a span has its own head outside
        (["(e1-animal-3-", "", "", "", "(e2-person)e1)", "", "(e1)"], {"dog": ("e1",), "Ann": ("e2",), "it": ("e1",)}),
        # As UD GUM writes it, two brackets open at once
        (["(1-animal-new-cf1*-3-coref(2-x", "", "2)", "", "1)", "", ""], {"dog": ("2", "1")}),
        # Two mentions of one entity, one in the other
        (["(e1", "(e1)", "", "", "e1)", "", ""], {"old": ("e1",), "dog": ("e1",)}),
        # In two parts
        (["", "(e1[1/2])", "", "", "", "(e1[2/2]", "e1[2/2])"], {"sees": ("e1",)}),
        # No treelet: the highest word
        (["(e1", "", "", "", "", "e1)", ""], {"sees": ("e1",)}),
        (["", "", "", "(e1", "", "", "e1)"], {"sees": ("e1",)}),
        (["", "(e1", "", "", "", "", "e1)"], {"sees": ("e1",)}),
        ([""] * 7, {}),
    ],
)
def test_the_head_word_of_a_mention(entities: list[str], expected: dict[str, tuple[str, ...]], tmp_path: Path) -> None:
    assert heads_of(read(entities, folder=tmp_path)) == expected


def test_attributes_in_another_order(tmp_path: Path) -> None:
    """As earlier versions of UD GUM have them; closing brackets repeat the attributes up to the name."""
    order = "# global.Entity = entity-GRP-infstat"
    entities = ["(animal-1-new", "", "animal-1)", "", "(person-2-giv)", "", "(animal-1-giv)"]
    found = read(entities, folder=tmp_path, comment=order)
    assert heads_of(found) == {"dog": ("1",), "Ann": ("2",), "it": ("1",)}


def test_empty_nodes_are_no_words_of_a_mention(tmp_path: Path) -> None:
    node = "7.1\tshe\t_\t_\t_\t_\t_\t_\t_\tEntity=(e1)e2)"
    assert heads_of(read(["", "", "", "", "", "", "(e2"], folder=tmp_path, extra=node)) == {"it": ("e2",)}


def test_a_sentence_without_a_tree_has_mentions_of_one_word_alone(tmp_path: Path) -> None:
    found = read(["(e1", "", "e1)", "", "(e2)", "", ""], folder=tmp_path, heads=["_"] * 7)
    assert heads_of(found) == {"Ann": ("e2",)}


@pytest.mark.parametrize(
    ("entities", "message"),
    [
        (["", "e1)", "", "", "", "", ""], "x.conllu:2: entity 'e1' is closed but was not opened"),
        (["(e1", "", "", "", "", "", ""], "x.conllu:1: entity 'e1' is opened but not closed"),
        (["(e1", "", "e2)", "", "e1)", "", ""], "x.conllu:3: entity 'e2' is closed"),
        (["", "", "(e1)e1)", "", "", "", ""], "x.conllu:3: entity 'e1' is closed"),
        (["", "", "e1", "", "", "", ""], "x.conllu:3: Entity=e1 has brackets that do not form mentions"),
        (["", "()", "", "", "", "", ""], "x.conllu:2: Entity=() has brackets that do not form mentions"),
        (["", "((e1)", "", "", "", "", ""], "x.conllu:2: Entity=((e1) has brackets that do not form mentions"),
        (["", "(e1[1/2])", "", "", "", "", ""], "x.conllu:7: the last part of a mention of entity 'e1' is missing"),
        (["", "(e1[1/2]", "", "", "", "", "e1[2/2])"], "x.conllu:7: entity 'e1[2/2]' is closed"),
    ],
)
def test_broken_brackets_are_told_with_their_line(entities: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError) as caught:
        read(entities, folder=tmp_path)
    assert message in str(caught.value)


def test_attributes_without_a_name(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"x.conllu:1: global.Entity names no attribute eid or GRP"):
        read([""] * 7, folder=tmp_path, comment="# global.Entity = etype-head")


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    found = read(["(e1", "(e2(e3", "", "", "e3)e2)e1)", "", "(e1)"], folder=tmp_path)
    text = StringIO()
    write_conllu([found], text)
    (tmp_path / "again.conllu").write_text(text.getvalue())
    assert next(iter(read_conllu(tmp_path / "again.conllu"))).words == found.words
    assert [w.entities for w in join_sentences(found, found).words] == [w.entities for w in found.words] * 2
