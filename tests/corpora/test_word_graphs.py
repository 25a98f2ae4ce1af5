"""Graphs over words, counted by networkx and by hand, and the masks of tokens that come of them."""

from __future__ import annotations

from typing import Any

import networkx
import numpy as np
import pytest
from graph_masks import token_mask
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from headlens.corpora.alignment import Alignment
from headlens.corpora.encoding import EncodedSequence, SentenceEncoder, TokenKind
from headlens.corpora.sentence import Example, Sentence, Word
from headlens.corpora.word_graphs import GraphOptions, GraphWords, word_graph
from headlens.errors import OptionError

KINDS = ("syntax", "lexical", "neighbour", "random")


def made(words: int, seed: int = 0, sentences: int = 1) -> GraphWords:
    """Random trees over random vectors; the words of two sentences stand in turn."""
    rng = np.random.default_rng(seed)
    sentence = np.arange(words) % sentences
    arcs = []
    for number in range(sentences):
        own = rng.permutation(np.flatnonzero(sentence == number))
        arcs += [(own[i], own[rng.integers(i)]) for i in range(1, len(own))]
    return GraphWords(sentence, str(seed), np.array(arcs, dtype=np.int64).reshape(-1, 2), rng.normal(size=(words, 5)))


def tree_of(words: GraphWords) -> Any:
    assert words.arcs is not None
    tree = networkx.Graph()
    tree.add_nodes_from(range(len(words)))
    tree.add_edges_from(words.arcs.tolist())
    return tree


@given(st.integers(0, 24), st.integers(0, 99), st.sampled_from(KINDS), st.sampled_from([None, 0.5, 2.0, 3.7, 99.0]))
def test_every_graph_has_the_edges_it_is_asked_for(size: int, seed: int, kind: Any, degree: float | None) -> None:
    options = GraphOptions(kind, degree)
    graph = word_graph(made(size, seed), options)
    assert graph.shape == (size, size)
    assert (graph == graph.T).all()
    assert not graph.diagonal().any()
    wanted = max(size - 1, 0) if degree is None else round(degree * size / 2)
    assert graph.sum() == 2 * min(wanted, size * (size - 1) // 2)
    assert (word_graph(made(size, seed), options) == graph).all(), "the same text, the same graph"


@given(st.integers(2, 24), st.integers(0, 99))
def test_the_syntax_graph_is_the_tree(size: int, seed: int) -> None:
    words = made(size, seed)
    assert (word_graph(words, GraphOptions()) == networkx.to_numpy_array(tree_of(words)).astype(bool)).all()


@given(st.integers(3, 20), st.integers(0, 99), st.floats(0.3, 8))
def test_larger_degrees_add_the_nearest_in_the_tree(size: int, seed: int, degree: float) -> None:
    words = made(size, seed)
    graph = word_graph(words, GraphOptions(degree=degree))
    steps = dict(networkx.all_pairs_shortest_path_length(tree_of(words)))
    pairs = [(steps[i][j], bool(graph[i, j])) for i in range(size) for j in range(i)]
    assert max((s for s, there in pairs if there), default=0) <= min((s for s, there in pairs if not there), default=99)


@given(st.integers(3, 20), st.integers(0, 99), st.sampled_from(["lexical", "neighbour"]))
def test_edges_are_the_first_pairs(size: int, seed: int, kind: Any) -> None:
    words = made(size, seed)
    graph = word_graph(words, GraphOptions(kind))
    if kind == "neighbour":
        assert (graph == (np.abs(np.subtract.outer(np.arange(size), np.arange(size))) == 1)).all()
        return
    assert words.vectors is not None
    unit = words.vectors / np.linalg.norm(words.vectors, axis=1, keepdims=True)
    cosines = (unit @ unit.T)[np.triu_indices(size, k=1)]
    there = graph[np.triu_indices(size, k=1)]
    assert cosines[there].min() > cosines[~there].max(initial=-2.0)


@given(st.integers(0, 20), st.integers(0, 99), st.integers(1, 6))
def test_nearest_are_those_of_either_word(size: int, seed: int, nearest: int) -> None:
    words = made(size, seed)
    graph = word_graph(words, GraphOptions("lexical", nearest=nearest))
    assert words.vectors is not None
    unit = words.vectors / np.linalg.norm(words.vectors, axis=1, keepdims=True)
    expected = np.zeros((size, size), dtype=bool)
    for word, own in enumerate(unit @ unit.T):
        others = sorted((n for n in range(size) if n != word), key=lambda n: -own[n])
        expected[word, others[:nearest]] = True
    assert (graph == (expected | expected.T)).all()


@given(st.integers(0, 20), st.integers(0, 99), st.floats(-1, 1), st.integers(1, 2))
def test_a_threshold_connects_words_of_a_sentence_that_are_alike(
    size: int, seed: int, threshold: float, sentences: int
) -> None:
    words = made(size, seed, sentences)
    graph = word_graph(words, GraphOptions("lexical", threshold=threshold))
    for one in range(size):
        for other in range(one):
            a, b = words.vectors[one], words.vectors[other]
            cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
            expected = cosine >= threshold and words.sentence[one] == words.sentence[other]
            if abs(cosine - threshold) > 1e-6:
                assert graph[one, other] == graph[other, one] == expected


def test_words_that_are_alike_are_taken_at_random() -> None:
    """All cosines are 1: which word is nearest is drawn, once for a text."""
    words = GraphWords(np.zeros(9, dtype=int), "text", None, np.ones((9, 2)))
    found = [word_graph(words, GraphOptions("lexical", nearest=1, seed=seed)) for seed in (0, 0, 1)]
    assert (found[0] == found[1]).all()
    assert (found[0] != found[2]).any()
    assert (found[0].sum(axis=0) >= 1).all()


def test_random_edges_are_even() -> None:
    """Every pair is as probable as any other: 6 edges of 21 pairs of 7 words, 3 standard errors."""
    draws = 2000
    counts = sum(
        word_graph(GraphWords(np.zeros(7, dtype=int), str(n)), GraphOptions("random")).astype(int) for n in range(draws)
    )
    share = np.asarray(counts)[np.triu_indices(7, k=1)] / draws
    assert np.abs(share - 6 / 21).max() < 3.5 * np.sqrt(6 / 21 * 15 / 21 / draws)
    one, other = (GraphOptions("random", seed=seed) for seed in (0, 1))
    assert (word_graph(made(12), one) != word_graph(made(12), other)).any()


@given(st.integers(2, 24), st.sampled_from(KINDS), st.sampled_from([None, 3.0]))
def test_sentences_are_not_connected(size: int, kind: Any, degree: float | None) -> None:
    words = made(size, sentences=2)
    graph = word_graph(words, GraphOptions(kind, degree))
    assert not graph[np.not_equal.outer(words.sentence, words.sentence)].any()
    sizes = [int((words.sentence == s).sum()) for s in (0, 1)]
    assert graph.sum() == 2 * sum(GraphOptions(kind, degree).edges(s) for s in sizes)


def test_what_a_graph_needs() -> None:
    bare = GraphWords(np.zeros(3, dtype=int), "")
    with pytest.raises(OptionError, match=r"needs dependency trees\.\nGive a treebank"):
        word_graph(bare, GraphOptions())
    with pytest.raises(OptionError, match="needs vectors"):
        word_graph(bare, GraphOptions("lexical"))
    for wrong in (
        {"kind": "semantic"},
        {"degree": 0.0},
        {"degree": float("nan")},
        {"kind": "lexical", "nearest": 0},
        {"kind": "lexical", "threshold": 1.5},
        {"kind": "lexical", "vectors": "glove"},
        {"kind": "random", "nearest": 2},
        {"kind": "syntax", "vectors": "spacy"},
        {"kind": "lexical", "nearest": 2, "threshold": 0.5},
        {"kind": "lexical", "degree": 2, "threshold": 0.5},
    ):
        with pytest.raises(OptionError):
            GraphOptions(**wrong)  # type: ignore[arg-type]


def sentence(text: str, heads: list[int]) -> Sentence:
    start, words = 0, []
    for form, head in zip(text.split(), heads, strict=True):
        start = text.index(form, start)
        words.append(Word(form, start, start + len(form), head, "dep"))
        start += len(form)
    return Sentence(text, tuple(words), "s")


def encoded(tokenizer: PreTrainedTokenizerBase, *sentences: Sentence) -> EncodedSequence:
    found = SentenceEncoder(tokenizer, pairing="joined").encode(Example(*sentences))
    assert found is not None
    return found.source


def test_words_and_their_pieces_by_hand(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    sequence = encoded(wordpiece_tokenizer, sentence("cats love chickadees", [1, -1, 1]))
    tokens = wordpiece_tokenizer.convert_ids_to_tokens(list(sequence.ids))
    assert tokens == ["[CLS]", "cats", "love", "chick", "##ade", "##es", "[SEP]"]
    allowed = token_mask(word_graph(GraphWords.of(sequence, "s"), GraphOptions()), sequence)
    assert allowed.astype(int).tolist() == [
        [1, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 0, 0, 0, 1],
        [1, 1, 1, 1, 1, 1, 1],
        [1, 0, 1, 1, 1, 1, 1],
        [1, 0, 1, 1, 1, 1, 1],
        [1, 0, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, 1, 1],
    ]


def test_two_sentences_meet_in_their_special_tokens(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    first, second = sentence("the cat sleeps", [1, 2, -1]), sentence("it dreams", [1, -1])
    sequence = encoded(wordpiece_tokenizer, first, second)
    words = GraphWords.of(sequence, "s", second=len(first.text) + 1)
    assert words.sentence.tolist() == [0, 0, 0, 1, 1]
    assert words.arcs is not None
    assert words.arcs.tolist() == [[0, 1], [1, 2], [3, 4]]
    for kind in ("syntax", "neighbour"):
        allowed = token_mask(word_graph(words, GraphOptions(kind)), sequence)  # type: ignore[arg-type]
        # [CLS] the cat sleeps [SEP] it dreams [SEP]
        assert not allowed[1:4, 5:7].any()
        assert allowed[[0, 4, 7]].all()
        assert allowed[:, [0, 4, 7]].all()
        assert allowed[1:4, 1:4].sum() == 7


@given(st.integers(1, 12), st.sampled_from(KINDS))
def test_masks_are_symmetric_and_no_token_is_alone(size: int, kind: Any) -> None:
    units = (-1, *(u for u in range(size) for _ in range(1 + u % 3)), -1, -1)
    kinds = (int(TokenKind.SPECIAL), *[0] * (len(units) - 3), 0, int(TokenKind.SPECIAL))
    alignment = Alignment(units, tuple(range(size)), size, 0, 1)
    sequence = EncodedSequence(tuple(range(len(units))), kinds, ((0, 0),) * len(units), alignment, Sentence("", ()))
    allowed = token_mask(word_graph(made(size), GraphOptions(kind)), sequence)
    assert (allowed == allowed.T).all()
    assert allowed.diagonal().all()
    assert allowed[0].all()
    # a token outside all words
    assert np.flatnonzero(allowed[-2]).tolist() == [0, len(units) - 2, len(units) - 1]


def test_vectors_are_means_of_embeddings(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    sequence = encoded(wordpiece_tokenizer, sentence("cats love chickadees", [1, -1, 1]))
    embeddings = np.random.default_rng(0).normal(size=(len(wordpiece_tokenizer), 4))
    vectors = GraphWords.of(sequence, "s", embeddings=embeddings).vectors
    assert vectors is not None
    ids = list(sequence.ids)
    np.testing.assert_allclose(vectors, [embeddings[ids[1]], embeddings[ids[2]], embeddings[ids[3:6]].mean(axis=0)])


def test_a_text_without_words(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    sequence = encoded(wordpiece_tokenizer, Sentence("", ()))
    for kind in KINDS:
        words = GraphWords.of(sequence, "", embeddings=np.ones((len(wordpiece_tokenizer), 2)))
        allowed = token_mask(word_graph(words, GraphOptions(kind)), sequence)  # type: ignore[arg-type]
        assert allowed.tolist() == [[True, True], [True, True]]


def test_words_without_a_token_leave_their_tree_in_parts() -> None:
    """Distances across the gap are infinite, and such pairs come last."""
    words = GraphWords(np.zeros(4, dtype=int), "", np.array([[0, 1], [2, 3]]))
    graph = word_graph(words, GraphOptions(degree=1.0))
    assert np.argwhere(np.triu(graph)).tolist() == [[0, 1], [2, 3]]
    assert word_graph(words, GraphOptions()).sum() == 6
