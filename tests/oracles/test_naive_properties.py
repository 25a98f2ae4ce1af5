"""What holds of the naive metrics for any attention."""

import math

import naive_metrics
import naive_words
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_samples import Sample, Seq, make_seq

SHARES = ("confidence", "confidence_all", "positional_share", "self_share", "entropy_norm", "monotonicity")


@st.composite
def seqs(draw: st.DrawFn) -> Seq:
    """[CLS] words in pieces [SEP] with the special tokens on or off, and some punctuation."""
    pieces = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    units = [unit for unit, n in enumerate(pieces) for _ in range(n)]
    first, last = draw(st.booleans()), draw(st.booleans())
    word = [-1] * first + units + [-1] * last
    punct = [t for t in range(len(word)) if word[t] == len(pieces) - 1] if draw(st.booleans()) else []
    kind = draw(st.sampled_from(["sep", "eos"]))
    return make_seq(word, cls=[0] * first, punct=punct, **{kind: [len(word) - 1] * last})


def attention(rng: np.random.Generator, queries: int, keys: int, *, causal: bool) -> np.ndarray:
    """Two layers of two heads of softmaxed noise, from almost even to almost one-hot."""
    scores = rng.normal(size=(2, 2, queries, keys)) * 10.0 ** rng.uniform(-2, 2, (2, 2, 1, 1))
    if causal:
        scores = np.where(np.tri(queries, keys, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


@st.composite
def samples(draw: st.DrawFn, stack: str) -> Sample:
    queries = draw(seqs())
    keys = draw(seqs()) if stack == "cross" else queries
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    causal = stack == "decoder"
    flags = st.lists(st.booleans(), min_size=keys.n_words, max_size=keys.n_words)
    rare1 = draw(flags)
    rare2 = [a or b for a, b in zip(rare1, draw(flags), strict=True)] if any(rare1) else rare1
    pairs = [(i, j) for i in range(queries.n_words) for j in range(queries.n_words) if i != j]
    ends = st.lists(st.sampled_from(pairs), unique=True) if pairs and stack != "cross" else st.just([])
    arcs = [(i, j, draw(st.sampled_from(["nsubj", "obj"]))) for i, j in draw(ends)]
    weights = attention(rng, len(queries), len(keys), causal=causal)
    return Sample(stack, queries, keys, weights, causal=causal, arcs=arcs, rare1=rare1, rare2=rare2)


def corpora(*stacks: str) -> st.SearchStrategy[list[Sample]]:
    chosen = st.sampled_from(stacks or ("encoder", "decoder", "cross"))
    return chosen.flatmap(lambda stack: st.lists(samples(stack), min_size=1, max_size=3))


@given(corpora())
def test_shares_and_masses_lie_between_0_and_1(corpus: list[Sample]) -> None:
    found = naive_metrics.head_metrics(corpus, 1, 0) | naive_words.rare(corpus, 1, 0)
    bounded = [name for name in found if name in SHARES or name.startswith(("to_", "rare_"))]
    for name in bounded:
        assert math.isnan(found[name]) or -1e-6 <= found[name] <= 1 + 1e-6, name
    assert found["confidence_all"] >= 1 / max(len(sample.keys) for sample in corpus) - 1e-6
    longest = max(len(sample.keys) for sample in corpus)
    assert -1e-6 <= found["entropy"] <= math.log(longest) + 1e-6
    assert found["tokens"] == sum(sample.weights.shape[2] for sample in corpus)


@given(corpora("encoder", "decoder"))
def test_self_previous_next_and_first_of_self_attention(corpus: list[Sample]) -> None:
    found = naive_metrics.head_metrics(corpus, 0, 1)
    assert found["to_self"] + found["to_prev"] + found["to_next"] <= 1 + 1e-6
    # A weight is at distance 0, at distance 1, or further off.
    near = found["to_prev"] + found["to_next"]
    assert near + 2 * (1 - near - found["to_self"]) <= found["distance"] + 1e-5
    if corpus[0].causal:
        assert found["to_next"] == 0


@given(corpora())
def test_the_histogram_counts_every_query_that_points_at_a_word_once(corpus: list[Sample]) -> None:
    position = naive_metrics.position(corpus, 0, 0)
    assert sum(position.histogram.values()) == position.counted == sum(map(pointing, corpus))
    if not position.counted:
        return
    assert position.positional_share == position.histogram[int(position.positional_offset)] / position.counted
    kept = [n for offset, n in position.histogram.items() if isinstance(offset, int) and offset != 0]
    assert max(kept) == position.histogram[int(position.positional_offset)]


def pointing(sample: Sample) -> int:
    """Queries that are not special and give some key that is not special more than 0."""
    words = [k for k, special in enumerate(sample.keys.special) if not special]
    given = (sample.matrix(0, 0)[:, words] > 0).any(axis=1)
    return sum(bool(g) for g, special in zip(given, sample.queries.special, strict=True) if not special)


@given(corpora())
def test_rows_of_the_word_map_hold_at_most_the_whole_attention(corpus: list[Sample]) -> None:
    for sample in corpus:
        words = naive_words.word_map(sample, 1, 1)
        assert words.shape == (sample.queries.n_words, sample.keys.n_words)
        assert (words >= 0).all()
        assert (words.sum(axis=1) <= 1 + 1e-6).all()
        if not any(sample.keys.special):
            np.testing.assert_allclose(words.sum(axis=1), 1, atol=1e-6)


@settings(max_examples=settings().max_examples // 2)
@given(corpora(), st.randoms(use_true_random=False))
def test_the_order_of_the_corpus_does_not_matter(corpus: list[Sample], random: object) -> None:
    shuffled = list(corpus)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for layer, head in np.ndindex(2, 2):
        first, second = (
            naive_metrics.head_metrics(c, layer, head) | naive_words.rare(c, layer, head) for c in (corpus, shuffled)
        )
        assert first == pytest.approx(second, rel=0, abs=0, nan_ok=True)
        assert naive_metrics.position(corpus, layer, head) == naive_metrics.position(shuffled, layer, head)
        assert naive_words.syntax(corpus, layer, head) == naive_words.syntax(shuffled, layer, head)
    np.testing.assert_array_equal(naive_metrics.jensen_shannon(corpus), naive_metrics.jensen_shannon(shuffled))


@given(corpora("encoder", "decoder"), st.booleans())
def test_syntax_counts_every_arc_in_both_directions(corpus: list[Sample], exclude_self: bool) -> None:
    found = naive_words.syntax(corpus, 0, 0, exclude_self=exclude_self)
    for direction in naive_words.DIRECTIONS:
        n = sum(row.n for (_, d), row in found.items() if d == direction)
        assert n == sum(len(sample.arcs) for sample in corpus)
    for row in found.values():
        # The head's lead over the baseline is what it alone has right less what the baseline alone has.
        assert row.correct - round(row.baseline * row.n) == row.only_head - row.only_baseline
        assert 0 <= row.ci_low <= row.accuracy + 1e-12
        assert row.accuracy - 1e-12 <= row.ci_high <= 1
        assert 0 < row.p_value <= 1
    assert all((found[r, "dep->head"].offset == -found[r, "head->dep"].offset) or ties(corpus, r) for r, _ in found)


def ties(corpus: list[Sample], relation: str) -> bool:
    """Whether several offsets are the most frequent one of a relation."""
    offsets = [t - s for sample in corpus for s, t in naive_words.instances(sample, relation, "dep->head")]
    counts = sorted(map(offsets.count, set(offsets)))
    return len(counts) > 1 and counts[-1] == counts[-2]


@given(corpora("encoder", "decoder"))
def test_leaving_the_source_out_never_costs_a_correct_instance(corpus: list[Sample]) -> None:
    without = naive_words.syntax(corpus, 0, 0, exclude_self=True)
    for key, row in naive_words.syntax(corpus, 0, 0).items():
        assert without[key].correct >= row.correct


@given(corpora())
def test_jensen_shannon_is_a_bounded_distance(corpus: list[Sample]) -> None:
    found = naive_metrics.jensen_shannon(corpus)
    np.testing.assert_array_equal(np.diag(found), 0)
    np.testing.assert_array_equal(found, found.T)
    assert (found >= 0).all()
    assert (found**2 <= math.log(2) + 1e-6).all()
    # Root mean square of a metric: the triangle inequality holds.
    assert (found[:, None, :] <= found[:, :, None] + found[None, :, :] + 1e-6).all()


@given(corpora())
def test_one_token_words_without_special_tokens_are_the_tokens(corpus: list[Sample]) -> None:
    words = [naive_words.word_level(sample) for sample in corpus]
    again = [naive_words.word_level(sample) for sample in words]
    for sample, same in zip(words, again, strict=True):
        np.testing.assert_array_equal(sample.weights, same.weights)
