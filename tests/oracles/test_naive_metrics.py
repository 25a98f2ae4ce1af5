"""The naive token metrics on attention made by hand, with values worked out by hand."""

import math
from collections.abc import Sequence
from typing import Any

import naive_metrics as naive
import numpy as np
import numpy.typing as npt
import pytest
from naive_samples import Sample, Seq, make_seq
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

BERT = make_seq([-1, 0, 1, 2, -1], cls=[0], sep=[4])  # [CLS] a b c [SEP]
nan = math.nan
ln = math.log


def one_hot(targets: Sequence[int], n_keys: int) -> npt.NDArray[np.float32]:
    """Query q points at targets[q]; (queries, keys)."""
    return np.eye(n_keys, dtype=np.float32)[list(targets)]


def sample(matrix: Any, queries: Seq, keys: Seq | None = None, stack: str = "encoder", **more: Any) -> Sample:
    """One sentence and one head."""
    return Sample(stack, queries, keys or queries, np.asarray(matrix, np.float32)[None, None], **more)


def metrics(*corpus: Sample) -> dict[str, float]:
    return naive.head_metrics(corpus, 0, 0)


def plain(n: int) -> Seq:
    """A sentence of n words without special tokens."""
    return make_seq(range(n))


def assert_values(found: dict[str, float], expected: dict[str, float]) -> None:
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-6, abs=1e-12, nan_ok=True)


def test_previous_token() -> None:
    found = metrics(sample(one_hot([0, 0, 1, 2, 3], 5), BERT))
    expected = {
        "tokens": 5,
        "confidence": 1,
        "confidence_all": 1,
        # Queries a, b, c over the keys a, b, c: a has nothing there and does not count, b and c look back.
        "positional_offset": -1,
        "positional_share": 1,
        "self_share": 0,
        "entropy": 0,
        "entropy_norm": 0,
        "to_first": 2 / 5,  # [CLS] and a
        "to_cls": 2 / 5,
        "to_sep": 0,
        "to_bos": nan,
        "to_eos": nan,
        "to_punct": nan,
        "to_self": 1 / 5,  # [CLS] has no previous token
        "to_prev": 4 / 5,
        "to_next": 0,
        "distance": 4 / 5,
        "monotonicity": nan,
        "monotonicity_stays": nan,
        "punct_chance": nan,
        "mass_left": 3 / 5,
    }
    assert found.keys() == expected.keys()
    assert_values(found, expected)


def test_uniform() -> None:
    found = metrics(sample(np.full((5, 5), 1 / 5), BERT))
    expected = {
        "confidence": 1 / 5,
        "confidence_all": 1 / 5,
        # All three take the first key, a: offsets 0, -1, -2; of the two equally frequent the nearer counts.
        "positional_offset": -1,
        "positional_share": 1 / 3,
        "self_share": 1 / 3,
        "entropy": ln(5),
        "entropy_norm": 1,
        "to_first": 1 / 5,
        "to_sep": 1 / 5,
        "to_self": 1 / 5,
        "to_prev": 4 / 25,  # four of five queries have a previous token
        "to_next": 4 / 25,
        "distance": 8 / 5,  # |k - q| over the 25 pairs: 2 (4*1 + 3*2 + 2*3 + 1*4) = 40
    }
    assert_values(found, expected)


def test_everything_to_the_separator() -> None:
    found = metrics(sample(one_hot([4] * 5, 5), BERT))
    # Four queries whose weights on the other keys are all 0; not renormalised.
    expected = {"confidence": 0, "confidence_all": 1, "to_sep": 1, "to_cls": 0, "to_self": 1 / 5, "to_next": 1 / 5}
    assert_values(found, expected | {"entropy": 0, "distance": (4 + 3 + 2 + 1 + 0) / 5})


def test_cls_counts_for_confidence_but_not_for_position() -> None:
    # [CLS] looks at itself with 0.9; a and [SEP] spread: row of a over [CLS] a [SEP] is 0.5 0.2 0.3.
    seq = make_seq([-1, 0, -1], cls=[0], sep=[2])
    found = metrics(sample([[0.9, 0.1, 0.0], [0.5, 0.2, 0.3], [0.0, 0.0, 1.0]], seq))
    assert_values(found, {"confidence": (0.9 + 0.5) / 2, "confidence_all": (0.9 + 0.5 + 1.0) / 3, "self_share": 1})


def test_end_of_sentence_is_a_separator_like_sep() -> None:
    seq = make_seq([0, 1, -1], eos=[2])  # a b </s>
    found = metrics(sample([[0.1, 0.2, 0.7], [0.3, 0.1, 0.6], [1.0, 0.0, 0.0]], seq))
    assert_values(found, {"confidence": (0.2 + 0.3) / 2, "to_eos": (0.7 + 0.6 + 0.0) / 3, "to_sep": nan})


def test_a_sentence_of_separators_counts_for_nothing_but_tokens_and_masses() -> None:
    found = metrics(sample(one_hot([1, 0], 2), make_seq([-1, -1], sep=[0, 1])))
    expected = {"tokens": 2, "confidence": nan, "confidence_all": 1, "positional_offset": nan, "self_share": nan}
    assert_values(found, expected | {"to_sep": 1, "entropy": 0})


def test_causal_uniform_is_normalised_by_what_each_query_may_see() -> None:
    rows = [[1, 0, 0], [1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]]
    found = metrics(sample(rows, plain(3), stack="decoder", causal=True))
    expected = {
        "confidence": (1 + 1 / 2 + 1 / 3) / 3,
        "positional_offset": -1,  # all point at the first key: offsets 0, -1, -2
        "positional_share": 1 / 3,
        "entropy": (0 + ln(2) + ln(3)) / 3,
        "entropy_norm": 1,  # the first query sees one key and is left out
        "distance": (0 + 1 / 2 + 1) / 3,
        "to_first": (1 + 1 / 2 + 1 / 3) / 3,
        "to_prev": (0 + 1 / 2 + 1 / 3) / 3,
    }
    assert_values(found, expected)
    assert metrics(sample(rows, plain(3)))["entropy_norm"] == pytest.approx((0 + ln(2) / ln(3) + 1) / 3)


def test_entropy_norm_needs_a_query_with_a_choice() -> None:
    assert_values(metrics(sample([[1.0]], plain(1))), {"entropy": 0, "entropy_norm": nan, "to_prev": 0})


def test_means_are_over_tokens_not_over_sentences() -> None:
    # Two tokens with 1 and four with 1/4; the mean of the sentences' means would be 0.625.
    short, long = sample(one_hot([0, 1], 2), plain(2)), sample(np.full((4, 4), 1 / 4), plain(4))
    found = metrics(short, long)
    assert_values(found, {"confidence": 1 / 2, "confidence_all": 1 / 2, "entropy": 4 * ln(4) / 6, "tokens": 6})


def test_a_class_that_some_sentences_lack_has_mass_zero_there() -> None:
    with_stop = sample(np.full((2, 2), 1 / 2), make_seq([0, 1], punct=[1], bos=[0]))
    without = sample(np.full((2, 2), 1 / 2), plain(2))
    assert_values(metrics(with_stop, without), {"to_punct": 1 / 4, "to_bos": 1 / 4, "to_cls": nan})


def test_tails_of_the_histogram_are_no_offset() -> None:
    back = naive.position([sample(one_hot([0] * 20, 20), plain(20))], 0, 0)
    # Queries 0 to 8 have offsets 0 to -8, once each; the eleven others fall into the tail.
    assert back.histogram == {"<-8": 11} | {d: int(d <= 0) for d in range(-8, 9)} | {">8": 0}
    assert back[1:] == (20, -1, 1 / 20, 1 / 20)
    ahead = naive.position([sample(one_hot([19] * 20, 20), plain(20))], 0, 0)
    assert ahead.histogram == {"<-8": 0} | {d: int(d >= 0) for d in range(-8, 9)} | {">8": 11}
    assert ahead[1:] == (20, 1, 1 / 20, 1 / 20)


def test_the_tail_is_reached_only_past_eight() -> None:
    # One query, the first of ten, looks eight and then nine keys ahead; the others at themselves.
    for target, name in ((8, 8), (9, ">8")):
        histogram = naive.position([sample(one_hot([target, *range(1, 10)], 10), plain(10))], 0, 0).histogram
        assert (histogram[name], histogram[0]) == (1, 9)


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [([2, -2], -2), ([-3, 1], 1), ([3, 3, 1], 3), ([5, -5, 4], 4), ([-8, -8, 8, 8], -8)],
)
def test_the_most_frequent_offset_is_the_nearest_then_the_negative(offsets: list[int], expected: int) -> None:
    assert naive.most_frequent(offsets) == expected


def test_a_head_that_only_looks_at_itself_is_not_positional() -> None:
    found = metrics(sample(one_hot([0, 1, 2], 3), plain(3)))
    assert_values(found, {"positional_offset": -1, "positional_share": 0, "self_share": 1, "to_self": 1})


def test_of_equal_weights_the_first_key_is_the_best() -> None:
    tied = sample([[0.2, 0.4, 0.4], [0.3, 0.3, 0.4], [0.5, 0.0, 0.5]], plain(3))
    assert naive.best_keys(tied, 0, 0) == {0: 1, 1: 2, 2: 0}


def test_cross_attention() -> None:
    target, source = make_seq([0, 1, 2, 3]), make_seq([0, 1, 2])
    found = metrics(sample(one_hot([0, 2, 1, 1], 3), target, source, "cross", causal=True))
    expected = {
        "monotonicity": 2 / 3,  # 0 -> 2 goes on, 2 -> 1 goes back, 1 -> 1 stays
        "monotonicity_stays": 1 / 3,
        "positional_offset": -1,  # offsets 0, +1, -1, -2: the nearest, then the negative
        "positional_share": 1 / 4,
        "to_first": 1 / 4,
        "entropy_norm": 0,
    }
    assert_values(found, expected | dict.fromkeys(("to_self", "to_prev", "to_next", "distance"), nan))


def test_a_cross_attention_query_sees_all_keys_whatever_the_stack_below() -> None:
    uniform = sample(np.full((2, 3), 1 / 3), plain(2), plain(3), "cross", causal=True)
    assert_values(metrics(uniform), {"entropy": ln(3), "entropy_norm": 1})


def test_monotonicity_does_not_jump_over_special_queries_nor_sentences() -> None:
    # Best keys 0 . 1 0 with a special query second: only the pair 1 -> 0 counts. The other sentence has no pair.
    gap = sample(one_hot([0, 2, 1, 0], 3), make_seq([0, -1, 1, 2], special=[1]), plain(3), "cross")
    single = sample(one_hot([2], 3), plain(1), plain(3), "cross")
    assert metrics(gap, single)["monotonicity"] == 0
    assert math.isnan(metrics(single, single)["monotonicity"])


def test_jensen_shannon_by_hand() -> None:
    heads = np.array([[[1, 0], [1, 0]], [[0, 1], [1, 0]], [[0.5, 0.5], [0.5, 0.5]]], np.float32)
    found = naive.jensen_shannon([Sample("encoder", plain(2), plain(2), heads[None])])
    # Heads 0 and 1: ln 2 at the first query, 0 at the second. One-hot against even, middle (3/4, 1/4):
    # (ln 4/3) / 2 + ((ln 2/3) / 2 + (ln 2) / 2) / 2 = 3/4 ln 4/3 at either query.
    far, near = math.sqrt(ln(2) / 2), math.sqrt(0.75 * ln(4 / 3))
    np.testing.assert_allclose(found, [[0, far, near], [far, 0, near], [near, near, 0]], rtol=1e-12)


def test_jensen_shannon_orders_heads_by_layer_and_averages_before_the_root() -> None:
    rng = np.random.default_rng(0)
    corpus = [Sample("encoder", plain(n), plain(n), rng.dirichlet([0.3] * n, (2, 2, n))) for n in (3, 6)]
    found = naive.jensen_shannon(corpus)
    for i, j in np.ndindex(4, 4):
        (a, b), (c, d) = divmod(i, 2), divmod(j, 2)
        divergences = np.concatenate([jensenshannon(s.weights[a, b], s.weights[c, d], axis=1) ** 2 for s in corpus])
        assert found[i, j] == pytest.approx(math.sqrt(divergences.mean()), abs=1e-7)


def test_entropy_is_that_of_scipy() -> None:
    matrix = np.random.default_rng(1).dirichlet([0.2] * 7, 7)
    matrix[2] = np.eye(7)[3]
    found = naive.entropy([Sample("encoder", plain(7), plain(7), matrix[None, None])], 0, 0)
    assert found == pytest.approx(entropy(matrix, axis=1).mean())


def test_each_head_is_its_own() -> None:
    weights = np.stack([[one_hot([0, 0], 2), one_hot([1, 1], 2)], [one_hot([1, 0], 2), np.full((2, 2), 0.5)]])
    corpus = [Sample("encoder", plain(2), plain(2), weights)]
    found = [naive.head_metrics(corpus, layer, head)["to_first"] for layer in range(2) for head in range(2)]
    assert found == [1, 0, 1 / 2, 1 / 2]


def test_a_sample_whose_weights_do_not_fit_its_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match=r"for 3 queries and 3 keys"):
        sample(np.ones((3, 2)), plain(3))
