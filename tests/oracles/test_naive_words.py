"""The naive word-level metrics on attention and trees made by hand, with values worked out by hand."""

import math
from collections.abc import Sequence
from typing import Any

import naive_metrics
import naive_words as naive
import numpy as np
import pytest
from naive_samples import Arc, Sample, Seq, make_seq

PIECES = make_seq([-1, 0, 0, 1, -1], cls=[0], sep=[4])  # [CLS] play ##ing chess [SEP]
PIECES_WEIGHTS = [
    [0.6, 0.1, 0.1, 0.1, 0.1],
    [0.1, 0.2, 0.3, 0.4, 0.0],
    [0.2, 0.1, 0.1, 0.2, 0.4],
    [0.0, 0.5, 0.25, 0.25, 0.0],
    [0.0, 0.0, 0.0, 0.0, 1.0],
]
Z2 = 1.959963984540054**2


def sample(matrix: Any, queries: Seq, keys: Seq | None = None, stack: str = "encoder", **more: Any) -> Sample:
    """One sentence and one head."""
    return Sample(stack, queries, keys or queries, np.asarray(matrix, np.float64)[None, None], **more)


def pointing(targets: Sequence[int], *arcs: Arc, **more: Any) -> Sample:
    """A sentence of one token per word, word i pointing at word targets[i]."""
    return sample(np.eye(len(targets))[list(targets)], make_seq(range(len(targets))), arcs=arcs, **more)


def test_word_map_sums_to_a_word_and_averages_from_it() -> None:
    words = naive.word_map(sample(PIECES_WEIGHTS, PIECES), 0, 0)
    # playing -> playing: play gives 0.2 + 0.3, ##ing 0.1 + 0.1; playing -> chess: 0.4 and 0.2. Specials are left out.
    np.testing.assert_allclose(words, [[(0.5 + 0.2) / 2, (0.4 + 0.2) / 2], [0.75, 0.25]])


def test_word_map_of_cross_attention_has_target_rows_and_source_columns() -> None:
    queries, keys = make_seq([0, 0, -1], eos=[2]), make_seq([0, 1, 1, -1], eos=[3])
    words = naive.word_map(
        sample([[0.1, 0.2, 0.3, 0.4], [0.3, 0, 0.5, 0.2], [0, 0, 0, 1]], queries, keys, "cross"), 0, 0
    )
    np.testing.assert_allclose(words, [[0.2, 0.5]])


def test_tokens_of_no_unit_are_left_out_special_or_not() -> None:
    stray = make_seq([0, -1, 1])
    marked = make_seq([0, 1, 1], special=[1])  # a special token is left out even if it carries a unit
    matrix = [[0.2, 0.3, 0.5], [0.9, 0.1, 0.0], [0.6, 0.3, 0.1]]
    for seq in (stray, marked):
        np.testing.assert_allclose(naive.word_map(sample(matrix, seq), 0, 0), [[0.2, 0.5], [0.6, 0.1]])


def test_a_unit_without_tokens_has_no_attention() -> None:
    with pytest.raises(ValueError, match="unit 1 has no token"):
        naive.word_map(sample(np.eye(2), make_seq([0, 2])), 0, 0)


def test_token_metrics_of_the_word_map() -> None:
    words = [naive.word_level(sample(PIECES_WEIGHTS, PIECES))]  # 0.35 0.3 / 0.75 0.25
    assert naive_metrics.confidence(words, 0, 0) == pytest.approx((0.35 + 0.75) / 2)
    logs = [-p * math.log(p) for p in (0.35, 0.3, 0.75, 0.25)]
    assert naive_metrics.entropy(words, 0, 0) == pytest.approx(sum(logs) / 2)
    assert naive_metrics.entropy_norm(words, 0, 0) == pytest.approx(sum(logs) / 2 / math.log(2))
    position = naive_metrics.position(words, 0, 0)
    assert position[1:] == (2, -1, 1 / 2, 1 / 2)  # both point at "playing": offsets 0 and -1


def test_word_level_keeps_what_a_causal_word_may_see() -> None:
    words = naive.word_level(sample(np.tril(np.ones((3, 3))), make_seq([0, 0, 1]), stack="decoder", causal=True))
    assert [words.available(i) for i in range(2)] == [1, 2]


def test_a_head_that_points_at_the_head_of_every_subject() -> None:
    corpus = [
        pointing([1, 0, 2], (0, 1, "nsubj"), (2, 1, "obj")),  # she reads books
        pointing([0, 2, 1], (0, 2, "advmod"), (1, 2, "nsubj")),  # often she reads
        pointing([2, 1, 0], (0, 2, "nsubj")),  # she often reads
    ]
    found = naive.syntax(corpus, 0, 0)
    assert list(found) == [(r, d) for r in ("advmod", "nsubj", "obj") for d in naive.DIRECTIONS]
    # Subjects stand 1, 1 and 2 before their verb: the baseline has two of three, the head all; it alone has one,
    # so P(X >= 1) for one coin is 1/2. Wilson for 3 of 3: from 3 / (3 + z²) to 1.
    expected = (3, 3, 1, 1, 2 / 3, 1, 0, 1 / 2, 3 / (3 + Z2), 1)
    assert found["nsubj", "dep->head"] == pytest.approx(expected)
    assert found["nsubj", "head->dep"] == pytest.approx((3, 3, 1, -1, *expected[4:]))
    # The only object points at itself and its verb at the subject; the baseline is right, so P(X >= 0) is 1.
    assert found["obj", "dep->head"] == pytest.approx((1, 0, 0, -1, 1, 0, 1, 1, 0, Z2 / (1 + Z2)))
    assert found["obj", "head->dep"][:7] == (1, 0, 0, 1, 1, 0, 1)
    assert found["advmod", "dep->head"][:7] == (1, 0, 0, 2, 1, 0, 1)


def test_instances_where_both_are_right_or_both_wrong_leave_the_p_value_alone() -> None:
    right = [(True, True)] * 5 + [(False, False)] * 4 + [(True, False)] * 3 + [(False, True)]
    row = naive.syntax_row(right, offset=1)
    # 8 of 13 against 6 of 13; 3 against 1 where they differ: (4 + 1) / 16.
    assert (row.n, row.correct, row.accuracy, row.baseline) == (13, 8, 8 / 13, 6 / 13)
    assert (row.only_head, row.only_baseline, row.p_value) == (3, 1, 5 / 16)


@pytest.mark.parametrize(
    ("arcs", "expected"),
    [
        ([(0, 2, "r"), (2, 1, "r")], -1),  # offsets 2 and -1: the nearer
        ([(0, 1, "r"), (2, 1, "r")], -1),  # 1 and -1: the negative
        ([(0, 2, "r"), (1, 3, "r"), (2, 1, "r"), (3, 0, "s")], 2),  # 2 twice; other relations do not matter
    ],
)
def test_baseline_offset(arcs: list[Arc], expected: int) -> None:
    assert naive.baseline_offset([pointing([0, 0, 0, 0], *arcs)], "r", "dep->head") == expected


def test_the_baseline_is_chosen_over_the_whole_corpus_or_on_another_one() -> None:
    corpus = [pointing([1, 1], (0, 1, "r")), pointing([1, 1], (1, 0, "r")), pointing([1, 1], (1, 0, "r"))]
    other = [pointing([0, 0], (0, 1, "r"))]
    assert naive.syntax(corpus, 0, 0)["r", "dep->head"][:5] == (3, 1, 1 / 3, -1, 2 / 3)
    elsewhere = naive.syntax(corpus, 0, 0, baseline_corpus=other)["r", "dep->head"]
    assert elsewhere[:5] == (3, 1, 1 / 3, 1, 1 / 3)


def test_the_source_itself_can_be_left_out() -> None:
    mostly_self = sample([[0.6, 0.1, 0.3], [0, 1, 0], [0, 0, 1]], make_seq(range(3)), arcs=[(0, 2, "r"), (1, 0, "r")])
    with_self = naive.syntax([mostly_self], 0, 0)
    without = naive.syntax([mostly_self], 0, 0, exclude_self=True)
    assert (with_self["r", "dep->head"].correct, with_self["r", "head->dep"].correct) == (0, 0)
    # Word 0 now points at 2; words 1 and 2, all of whose weight is on themselves, point nowhere.
    # The other way round: 2 has nothing left; 0 points at 2, not at 1.
    assert (without["r", "dep->head"].correct, without["r", "head->dep"].correct) == (1, 0)


def test_syntax_of_words_in_pieces() -> None:
    # Token by token chess (0.4 from play) wins; as a word playing has 0.35 against 0.3, so playing misses chess.
    tree = sample(PIECES_WEIGHTS, PIECES, arcs=[(1, 0, "obj")])
    found = naive.syntax([tree], 0, 0)
    assert (found["obj", "dep->head"].correct, found["obj", "head->dep"].correct) == (1, 0)


def test_holm_runs_over_all_heads_relations_directions_and_stacks() -> None:
    # Per stack two heads and one relation in 2 directions: 8 tests. Arcs 0 -> 1 (four times) and 1 -> 0 (six times)
    # in sentences of their own; a head that is always right is alone right in four of the ten: p = 1/16.
    eye, swap = np.eye(2), np.eye(2)[[1, 0]]
    arcs: list[Arc] = [(0, 1, "r")] * 4 + [(1, 0, "r")] * 6
    corpora = [
        [Sample(stack, seq, seq, np.array([[eye, swap]]), arcs=[arc]) for arc in arcs]
        for stack in ("encoder", "decoder")
        for seq in [make_seq(range(2))]
    ]
    found = naive.model_syntax(corpora)
    assert set(found) == {(s, 0, h, "r", d) for s in ("encoder", "decoder") for h in (0, 1) for d in naive.DIRECTIONS}
    for (_, _, head, _, _), (row, adjusted) in found.items():
        assert row.p_value == (1 / 16 if head == 1 else 1.0)
        assert adjusted == (8 / 16 if head == 1 else 1.0)


def test_rare() -> None:
    counted = pointing([2, 0, 1], rare1=[False, False, True], rare2=[True, False, True])
    too_short = pointing([0, 0], rare1=[False, False], rare2=[False, False])
    tied = pointing([1, 1], rare1=[True, True], rare2=[True, True])
    found = naive.rare([counted, too_short, tied, pointing([0])], 0, 0)
    # Of five query words the first points at the rarest, the second at one of the two rarest; then two ties.
    expected = {
        "rare_top1": (1 + 2) / 5,
        "rare_top2": (2 + 2) / 5,
        "rare_chance": (3 * 1 / 3 + 2 * 1) / 5,
        "rare_chance2": (3 * 2 / 3 + 2 * 1) / 5,
    }
    assert found == pytest.approx(expected)


def test_rare_words_of_cross_attention_are_those_of_the_source() -> None:
    queries, keys = make_seq([0, 1]), make_seq([0, 1, 2])
    cross = sample([[0, 0, 1], [0.5, 0.25, 0.25]], queries, keys, "cross", rare1=[0, 0, 1], rare2=[0, 1, 1])
    expected = {"rare_top1": 1 / 2, "rare_top2": 1 / 2, "rare_chance": 1 / 3, "rare_chance2": 2 / 3}
    assert naive.rare([cross], 0, 0) == pytest.approx(expected)


def test_rare_without_an_eligible_sentence() -> None:
    assert all(math.isnan(value) for value in naive.rare([pointing([0, 0])], 0, 0).values())
