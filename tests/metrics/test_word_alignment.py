"""Word alignment by attention that is set by hand, against links counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from handmade import Row, Setting, call, columns, observed, one_hot, uniform
from naive_samples import make_seq
from scipy import stats

from headlens.metrics.word_alignment import WordAlignment

# Two source words, the second in two pieces; the decoder reads <s> and three target words.
SOURCE = make_seq([0, 1, 1, -1], eos=[3])
TARGET = make_seq([-1, 0, 1, 2], bos=[0])
LINKS = [(0, 0, 1), (1, 1, 1), (1, 2, 0)]
CROSS = Setting("cross")


def test_every_link_is_right() -> None:
    weights = one_hot(lambda q: {1: 0, 2: 1, 3: 2}.get(q, 3), 4, 4)
    found = columns(WordAlignment(), call([Row(weights, TARGET, SOURCE, links=LINKS)], CROSS))
    assert (found["aligned"], found["aligned_words"], found["aligned_chance"], found["aer"]) == (1, 3, 0.5, 0)
    # Written one step before: word 0 at <s>, which looks at the end, word 1 at word 0's place.
    assert found["aer_written"] == pytest.approx(1 - (0 + 1) / (2 + 2))
    assert np.isnan(found["aer_reverse"])


def test_a_possible_link_is_half_a_right_one() -> None:
    weights = one_hot(lambda _: 1, 4, 4)
    found = columns(WordAlignment(), call([Row(weights, TARGET, SOURCE, links=LINKS)], CROSS))
    assert found["aligned"] == pytest.approx(2 / 3)
    assert found["aer"] == pytest.approx(1 - (1 + 2) / (3 + 2))


def test_pieces_of_a_word_count_together() -> None:
    weights = np.tile([0.4, 0.3, 0.3, 0.0], (1, 4, 1))
    found = columns(WordAlignment(), call([Row(weights, TARGET, SOURCE, links=[(1, 0, 1)])], CROSS))
    assert (found["aligned"], found["aligned_words"]) == (1, 1)


@pytest.mark.parametrize(
    ("words", "written"),
    [
        # Word 0 is read first and never written; word 1 is written at the first two steps, word 2 at the third.
        ([0, 1, 1, 2], {(1, 1), (0, 2)}),
        # The first step writes the rest of word 0.
        ([0, 0, 1, 2], {(0, 0), (1, 1), (0, 2)}),
        # The word of several pieces comes later.
        ([0, 1, 2, 2], {(0, 1), (1, 2)}),
    ],
)
def test_a_decoder_that_reads_no_start_token_never_writes_its_first_token(
    words: list[int], written: set[tuple[int, int]]
) -> None:
    weights = [[[0.8, 0, 0, 0.2], [0, 0.5, 0.5, 0], [0.8, 0, 0, 0.2], [0, 0, 0, 1]]]
    found = columns(WordAlignment(), call([Row(weights, make_seq(words), SOURCE, links=LINKS)], CROSS))
    sure, possible = {(0, 0), (1, 1)}, {(0, 0), (1, 1), (1, 2)}
    right = len(written & sure) + len(written & possible)
    assert found["aer_written"] == pytest.approx(1 - right / (len(written) + len(sure)))


def test_a_pair_without_gold_counts_nowhere() -> None:
    rows = [Row(uniform(4, 4), TARGET, SOURCE, links=links) for links in (LINKS, [])]
    both, one = (columns(WordAlignment(), call(part, CROSS)) for part in (rows, rows[:1]))
    assert both == pytest.approx(one, nan_ok=True)


def test_two_texts_in_one_sequence_have_a_rate_for_each_direction() -> None:
    # [CLS] a b [SEP] x y [SEP]
    seq, segment = make_seq([-1, 0, 1, -1, 2, 3, -1], cls=[0], sep=[3, 6]), (-1, 0, 0, -1, 1, 1, -1)
    weights = one_hot(lambda q: {4: 2, 5: 1, 1: 5, 2: 5}.get(q, 0), len(seq))
    links = [(0, 3, 1), (1, 2, 1)]
    found = columns(WordAlignment(), call([Row(weights, seq, segment=segment, links=links)]))
    assert (found["aer"], found["aer_reverse"]) == (0, pytest.approx(1 - 2 / 4))
    assert (found["aligned"], found["aligned_words"], found["aligned_chance"]) == (0.75, 4, 0.5)
    assert np.isnan(found["aer_written"])


def test_self_attention_of_a_translation_model_aligns_nothing() -> None:
    own = call([Row(uniform(4), TARGET, links=LINKS)], Setting("decoder"))
    assert observed([WordAlignment()], [own]).tables() == {}


def test_the_interval_of_an_error_rate_is_that_of_a_ratio_over_sentences() -> None:
    places = [{1: 0, 2: 1, 3: 2}, {1: 1, 2: 1, 3: 1}, {1: 0, 2: 0, 3: 0}, {1: 1, 2: 0, 3: 2}]
    rows = [Row(one_hot(lambda q, at=at: at.get(q, 3), 4, 4), TARGET, SOURCE, links=LINKS) for at in places]
    found = columns(WordAlignment(), call(rows, CROSS))
    sure, possible = {(0, 0), (1, 1)}, {(0, 0), (1, 1), (1, 2)}
    x, n = [], []
    for at in places:
        # Tokens 1 and 2 are the pieces of word 1.
        links = {({0: 0, 1: 1, 2: 1}[key], query - 1) for query, key in at.items()}
        x.append(len(links & sure) + len(links & possible))
        n.append(len(links) + len(sure))
    rate = sum(x) / sum(n)
    spread = sum((a - rate * b) ** 2 for a, b in zip(x, n, strict=True)) * 4 / 3
    half = stats.t.ppf(0.975, 3) * spread**0.5 / sum(n)
    assert found["aer"] == pytest.approx(1 - rate)
    assert found["aer_ci_low"] == pytest.approx(max(0, 1 - rate - half))
    assert found["aer_ci_high"] == pytest.approx(min(1, 1 - rate + half))
