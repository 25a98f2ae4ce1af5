from hypothesis import given
from hypothesis import strategies as st
from saved import sentence

from headlens.corpora.encoded_corpus import EncodingCounts
from headlens.corpora.sentence import Example
from headlens.runs.pass_progress import PassProgress

EXAMPLE = Example(sentence("a b"))


@given(st.lists(st.integers(0, 4), max_size=40), st.integers(1, 12), st.integers(1, 5))
def test_whatever_sentences_become_steps_add_up_to_the_corpus(rows: list[int], pool: int, size: int) -> None:
    """Sentences become no, one or several rows, are read pool by pool, and run batch by batch."""
    steps: list[int] = []
    counts = EncodingCounts()
    reached = PassProgress(steps.append, counts)
    corpus = reached.reading([EXAMPLE] * len(rows))
    for first in range(0, len(rows), pool):
        held = rows[first : first + pool]
        for made in held:
            next(corpus)
            counts.sentences += made
        for start in range(0, sum(held), size):
            reached.ran(min(size, sum(held) - start))
            assert sum(steps) <= first + len(held)
        if sum(held):
            assert sum(steps) == first + len(held)
    assert all(step > 0 for step in steps)


def test_a_sentence_of_many_rows_is_done_with_its_last() -> None:
    steps: list[int] = []
    counts = EncodingCounts(sentences=10)
    reached = PassProgress(steps.append, counts)
    assert list(reached.reading([EXAMPLE] * 2)) == [EXAMPLE] * 2
    for _ in range(9):
        reached.ran(1)
    assert steps == [1]
    reached.ran(1)
    assert steps == [1, 1]


def test_what_has_no_row_in_the_end_does_not_hold_the_rest_up() -> None:
    steps: list[int] = []
    reached = PassProgress(steps.append, EncodingCounts(sentences=4, unmaskable=2))
    list(reached.reading([EXAMPLE] * 4))
    reached.ran(2)
    assert steps == [4]
