"""What stands in the examples that were learned from is told."""

from __future__ import annotations

import pytest

from headlens.corpora.text import TextList
from headlens.learning.open_training_set import seen_notes, seen_sentence_notes
from headlens.tasks.example_sources import MemoryExamples
from headlens.tasks.examples import Question, TaskExample, TextExample

LEARNED = MemoryExamples(
    (
        TextExample("a", ("The film is a quiet joy to watch .",), 1),
        TextExample("b", ("one two three four", "five six seven"), 0),
    )
)


def held(*texts: tuple[str, ...], fresh: int = 0) -> MemoryExamples:
    new: list[TaskExample] = [
        TextExample(f"new {n}", (f"nobody ever wrote {n} of these words",), 0) for n in range(fresh)
    ]
    return MemoryExamples((*new, *(TextExample(str(n), own, 0) for n, own in enumerate(texts))))


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (("is a quiet joy",), True),
        (("IS  a Quiet\tjoy",), True),
        (("The film is a quiet joy to watch .",), True),
        (("a quiet joy to wat",), False),  # not a whole word
        (("watch . one two three",), False),  # across two examples
        (("three four five six",), False),  # across two texts
        (("five six seven", "one two three four"), True),
        (("five six seven", "one two four"), False),  # both have to be there
        (("quiet joy to",), False),  # too short to mean anything
    ],
)
def test_word_for_word(texts: tuple[str, ...], found: bool) -> None:
    notes = seen_notes(LEARNED, held(texts))
    assert bool(notes) is found
    if found:
        assert notes[0].startswith("Of 1 example that was checked (of the 1 that are measured on,")
        assert "), 1 occurs word for word in the training data, alone or inside of longer texts" in notes[0]
        assert notes[0].endswith("Name others with --dev-data.")


def test_a_tenth_is_told_and_less_is_not() -> None:
    assert seen_notes(LEARNED, held(("is a quiet joy",), fresh=9))[0].startswith(
        "Of 10 examples that were checked (of the 10 that are measured on, at most 200 of 4 words or more), 1 occurs"
    )
    assert not seen_notes(LEARNED, held(("is a quiet joy",), fresh=10))


def test_nothing_to_look_for() -> None:
    assert not seen_notes(LEARNED, None)
    assert not seen_notes(LEARNED, held(("joy",)))
    assert not seen_notes(MemoryExamples(()), held(("is a quiet joy",)))


def test_of_many_examples_200_are_looked_at() -> None:
    many = held(*[("is a quiet joy",)] * 450)
    note = seen_notes(LEARNED, many)[0]
    assert note.startswith("Of 150 examples that were checked (of the 450 that are measured on,")  # every third
    assert "150 occur word for word" in note


def test_only_examples_of_some_words_are_counted_as_checked() -> None:
    note = seen_notes(LEARNED, held(("is a quiet joy",), ("joy",), ("the film",)))[0]
    assert note.startswith("Of 1 example that was checked (of the 3 that are measured on,")


def test_who_named_held_out_examples_is_not_told_to_name_some() -> None:
    note = seen_notes(LEARNED, held(("is a quiet joy",)), named=True)[0]
    assert "--dev-data" not in note
    assert note.endswith("Take them out of one of the two.")


def test_questions_have_to_be_there_with_their_text() -> None:
    learned = Question("a", "Who wrote it ?", "Somebody wrote it in the spring .", ())
    again = Question("b", "Who wrote it ?", "Somebody wrote it in the spring .", ())
    other = Question("c", "When was it written ?", "Somebody wrote it in the spring .", ())
    assert seen_notes(MemoryExamples((learned,)), MemoryExamples((again,)))
    assert not seen_notes(MemoryExamples((learned,)), MemoryExamples((other,)))


@pytest.mark.parametrize(
    ("fresh", "seen", "named", "told"),
    [
        (0, 12, True, "Of 12 sentences that were checked (of the 13 "),
        (27, 3, True, "3 occur word for word in the training data: the results are too optimistic. Take them out"),
        (28, 3, True, ""),  # below a tenth
        (9, 1, False, "1 occurs word for word in the training data: the results are too optimistic. Name others"),
    ],
)
def test_sentences_of_the_training_text_are_told(fresh: int, seen: int, named: bool, told: str) -> None:
    """`prune --dev` of the very text that it trained on had a verdict, and nothing was said."""
    learned = TextList(tuple(f"This is sentence number {n} of many" for n in range(40)))
    texts = [f"this  is Sentence number {n} of many" for n in range(seen)]
    # A part of a sentence is no sentence of it, and short ones prove nothing.
    texts += [f"sentence number {n} of" for n in range(fresh)]
    notes = seen_sentence_notes(learned, TextList((*texts, "Too short")), named=named)
    assert [told in note for note in notes] == [True] * bool(told)
    assert seen_sentence_notes(learned, None, named=named) == []
