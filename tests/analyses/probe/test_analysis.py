"""The attention probe against brute force, and what it finds where attention follows the tree, or nothing does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headlens.analyses.probe import analysis
from headlens.analyses.probe.analysis import (
    AttachmentCounts,
    ProbedSentence,
    TreeAttention,
    attachment_scores,
    distance_maps,
    fit_probe,
    negative_log_likelihood,
)
from headlens.analyses.probe.tables import (
    BEST_OFFSET,
    DISTANCES,
    EMBEDDED,
    PROBE,
    RIGHT_BRANCHING,
    UNIFORM,
    weight_table,
)
from headlens.heads import Head

# Weights of a probe of uniform attention.
EVEN = torch.ones(2, 1, dtype=torch.float64)


def probed(key: str, maps: torch.Tensor, arcs: torch.Tensor) -> ProbedSentence:
    return ProbedSentence(key, maps, torch.full_like(maps[..., :1], 1 / (len(maps) + 2)), arcs)


def treebank(seed: int, sentences: int = 6, heads: int = 3, longest: int = 7) -> list[ProbedSentence]:
    """Random attention, and random governors that have nothing to do with it."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(sentences):
        words = int(random.integers(2, longest + 1))
        maps = random.random((words, words, heads)) / words
        dependents = random.permutation(words)[: random.integers(1, words + 1)]
        arcs = [(int(d), int((d + random.integers(1, words)) % words)) for d in dependents]
        found.append(probed(f"s{seed}-{number}", torch.tensor(maps).half(), torch.tensor(arcs)))
    return found


def embedded(sentences: Iterable[ProbedSentence], seed: int, d: int = 2) -> list[ProbedSentence]:
    """The same sentences with random vectors of their words."""
    random = torch.Generator().manual_seed(seed)
    return [s._replace(vectors=torch.randn(len(s.maps), d, generator=random).half()) for s in sentences]


def gathered(sentences: Iterable[ProbedSentence]) -> TreeAttention:
    data = TreeAttention()
    for sentence in sentences:
        data.add(sentence)
    return data


def naive_scores(sentence: ProbedSentence, dependent: int, u: np.ndarray, w: np.ndarray) -> dict[int, float]:
    """The exponent of the paper for every other word: i governs j by Σ w_k α^k_ij + u_k α^k_ji."""
    maps = sentence.maps.double().numpy()
    return {
        other: math.fsum(
            w[k] * maps[other, dependent, k] + u[k] * maps[dependent, other, k] for k in range(maps.shape[2])
        )
        for other in range(len(maps))
        if other != dependent
    }


def naive_loss(sentences: Iterable[ProbedSentence], weights: np.ndarray, l2: float) -> float:
    losses = []
    for sentence in sentences:
        for dependent, governor in sentence.arcs.tolist():
            scores = naive_scores(sentence, dependent, *weights)
            losses.append(math.log(math.fsum(map(math.exp, scores.values()))) - scores[governor])
    return math.fsum(losses) / len(losses) + l2 / 2 * float((weights**2).sum())


def naive_uas(sentences: Iterable[ProbedSentence], weights: np.ndarray) -> float:
    right = []
    for sentence in sentences:
        for dependent, governor in sentence.arcs.tolist():
            scores = naive_scores(sentence, dependent, *weights)
            right.append(max(scores, key=lambda other: scores[other]) == governor)
    return float(np.mean(right))


def naive_embedded_scores(sentence: ProbedSentence, dependent: int, w: np.ndarray, u: np.ndarray) -> dict[int, float]:
    """The exponent of the paper's second equation: i governs j by Σ_k w_k·(v_i ⊕ v_j) α^k_ij + u_k·(v_i ⊕ v_j) α^k_ji.

    Args:
        sentence: with vectors v.
        dependent: j.
        w, u: a row for each head, that multiplies v_i ⊕ v_j.
    """
    assert sentence.vectors is not None
    maps, vectors, j = sentence.maps.double().numpy(), sentence.vectors.double().numpy(), dependent
    return {
        i: math.fsum(
            float(np.dot(w[k], np.concatenate([vectors[i], vectors[j]]))) * maps[i, j, k]
            + float(np.dot(u[k], np.concatenate([vectors[i], vectors[j]]))) * maps[j, i, k]
            for k in range(maps.shape[2])
        )
        for i in range(len(maps))
        if i != j
    }


def uas(sentences: Iterable[ProbedSentence], weights: torch.Tensor, offset: int = 1) -> dict[str, float]:
    counts = AttachmentCounts(weights, offset, EVEN)
    for sentence in sentences:
        counts.add(sentence)
    rows = counts.table(20, 0)
    return dict(zip(rows["method"], rows["uas"], strict=True))


@given(seed=st.integers(0, 10_000), l2=st.sampled_from([0.0, 1e-4, 0.5]))
def test_likelihood_and_scores_are_those_of_brute_force(seed: int, l2: float) -> None:
    sentences = treebank(seed)
    weights = 5 * torch.randn(2, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found, _ = negative_log_likelihood(weights, gathered(sentences), l2)
    assert found == pytest.approx(naive_loss(sentences, weights.numpy(), l2), rel=1e-9)
    assert uas(sentences, weights)[PROBE] == pytest.approx(naive_uas(sentences, weights.numpy()))


@settings(max_examples=settings().max_examples // 3)
@given(seed=st.integers(0, 10_000), l2=st.sampled_from([0.0, 0.1]))
def test_the_gradient_is_that_of_finite_differences(seed: int, l2: float) -> None:
    data = gathered(treebank(seed))
    weights = 3 * torch.randn(2, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    _, gradient = negative_log_likelihood(weights, data, l2)
    for place in np.ndindex(2, 3):
        step = torch.zeros_like(weights)
        step[place] = 1e-5
        high, low = (negative_log_likelihood(weights + sign * step, data, l2)[0] for sign in (1, -1))
        assert float(gradient[place]) == pytest.approx((high - low) / 2e-5, abs=1e-7)


@settings(max_examples=settings().max_examples // 2)
@given(seed=st.integers(0, 10_000), l2=st.sampled_from([0.0, 0.3]))
def test_likelihood_with_embeddings_is_that_of_brute_force(seed: int, l2: float) -> None:
    sentences, random = embedded(treebank(seed), seed), np.random.default_rng(seed)
    w, u = 3 * random.standard_normal((2, 3, 4))  # by head, for two vectors of two numbers
    losses, right = [], []
    for sentence in sentences:
        for dependent, governor in sentence.arcs.tolist():
            scores = naive_embedded_scores(sentence, dependent, w, u)
            losses.append(math.log(math.fsum(map(math.exp, scores.values()))) - scores[governor])
            right.append(max(scores, key=lambda other: scores[other]) == governor)
    expected = math.fsum(losses) / len(losses) + l2 / 2 * float((w**2).sum() + (u**2).sum())
    # In v_i ⊕ v_j the governor's vector comes first. In α_ji the dependent attends, in α_ij the governor does.
    from_dependent, from_governor = [u[:, 2:], u[:, :2]], [w[:, :2], w[:, 2:]]
    weights = torch.tensor(np.array([from_dependent, from_governor]))
    found, gradient = negative_log_likelihood(weights, gathered(sentences), l2)
    assert found == pytest.approx(expected, rel=1e-9)
    alone = torch.zeros(2, 3, dtype=torch.float64)
    counts = AttachmentCounts(alone, 1, EVEN, (weights, torch.zeros(2, 2, 7, 2, dtype=torch.float64)))
    for sentence in sentences:
        counts.add(sentence)
    table = counts.table(20, 0).set_index("method")
    assert table.loc[EMBEDDED, "uas"] == pytest.approx(np.mean(right))
    place = tuple(random.integers((2, 2, 3, 2)))
    step = torch.zeros_like(weights)
    step[place] = 1e-5
    high, low = (negative_log_likelihood(weights + sign * step, gathered(sentences), l2)[0] for sign in (1, -1))
    assert float(gradient[place]) == pytest.approx((high - low) / 2e-5, abs=1e-7)


def gated(seed: int, sentences: int) -> list[ProbedSentence]:
    """Head 0 attends from a word to its governor where the word is of one kind, and elsewhere where it is not.

    The first number of a vector tells of which kind its word is; words of the other kind are governed by what head 1
    attends to. Every word attends to two others, so that no head alone finds governors.
    """
    random, found = np.random.default_rng(seed), []
    for number in range(sentences):
        words = int(random.integers(4, 9))
        kinds = random.integers(0, 2, words)
        maps, arcs = np.zeros((words, words, 2)), []
        for dependent in range(words):
            governor, other = random.permutation([w for w in range(words) if w != dependent])[:2]
            maps[dependent, governor, 1 - kinds[dependent]] = maps[dependent, other, kinds[dependent]] = 1
            arcs.append((dependent, int(governor)))
        vectors = np.stack([2 * kinds - 1, np.ones(words)], axis=1) / math.sqrt(2)
        sentence = probed(f"g{seed}-{number}", torch.tensor(maps).half(), torch.tensor(arcs))
        found.append(sentence._replace(vectors=torch.tensor(vectors).half()))
    return found


def methods_of(train: list[ProbedSentence], held_out: list[ProbedSentence], l2: float = 1e-3) -> dict[str, float]:
    parts = [[getattr(s, name) for s in train] for name in ("of_attention", "of_uniform", "of_distances")]
    probe, even, distances, both = (fit_probe(gathered(part), l2).weights for part in (*parts, train))
    counts = AttachmentCounts(probe, 1, even, (both, distances))
    for sentence in held_out:
        counts.add(sentence)
    table = counts.table(20, 0)
    return dict(zip(table["method"], table["uas"], strict=True))


def test_attention_that_an_embedding_chooses_is_found_with_embeddings_alone() -> None:
    scores = methods_of(gated(1, 40), gated(2, 40))
    assert scores[EMBEDDED] == 1
    assert scores[PROBE] == pytest.approx(0.5, abs=0.12), "one of the two heads is right, and nothing says which"
    assert scores[DISTANCES] < 0.4


def by_distance(seed: int, sentences: int) -> Iterator[ProbedSentence]:
    """Words of one kind are governed by the next word, others by the last but two, as far as there are any."""
    for sentence in gated(seed, sentences):
        assert sentence.vectors is not None
        chosen = [(d, d + (1 if kind > 0 else -3)) for d, kind in enumerate(sentence.vectors[:, 0].tolist())]
        arcs = [(d, g) for d, g in chosen if 0 <= g < len(sentence.maps)]
        if arcs:
            maps = torch.rand(sentence.maps.shape, generator=torch.Generator().manual_seed(len(arcs))).half()
            yield sentence._replace(arcs=torch.tensor(arcs), maps=maps)


def test_a_distance_that_an_embedding_chooses_is_found_without_attention() -> None:
    scores = methods_of(list(by_distance(3, 60)), list(by_distance(4, 60)))
    assert scores[DISTANCES] == 1
    assert scores[EMBEDDED] < 0.6


def test_governors_that_have_nothing_to_do_with_words_are_found_by_chance_with_embeddings_too() -> None:
    held_out = embedded(treebank(8, 200), 8)
    scores = methods_of(embedded(treebank(7, 100), 7), held_out, 0.1)
    chance = np.mean([1 / (len(s.maps) - 1) for s in held_out for _ in range(len(s.arcs))])
    words = sum(len(s.arcs) for s in held_out)
    for method in (PROBE, EMBEDDED, DISTANCES):
        assert scores[method] == pytest.approx(chance, abs=4 * math.sqrt(chance / words)), method


def test_distances_are_told_to_the_right() -> None:
    maps = distance_maps(9).double()
    for i in range(9):
        for j in range(9):
            right = j - i
            expected = [*(right == n for n in (1, 2, 3, 4, 5)), right > 0, 1 / right if right > 0 else 0]
            assert maps[i, j].tolist() == pytest.approx([float(number) for number in expected], abs=1e-3)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    data, weights = gathered(treebank(1, 40)), torch.ones(2, 3, dtype=torch.float64)
    value, gradient = negative_log_likelihood(weights, data, 0.1)
    assert len(list(data.blocks())) == 6, "one for each length"
    monkeypatch.setattr(analysis, "_CELLS", 1)
    assert len(list(data.blocks())) == 40
    other, other_gradient = negative_log_likelihood(weights, data, 0.1)
    assert other == pytest.approx(value, rel=1e-12)
    torch.testing.assert_close(other_gradient, gradient, rtol=1e-12, atol=1e-14)


def test_several_words_of_one_unit_count_as_many() -> None:
    """Words that share a token, as in "gonna", have one row of attention and governors of their own."""
    maps = torch.rand(3, 3, 1, generator=torch.Generator().manual_seed(0)).half()
    sentence = probed("s", maps, torch.tensor([(0, 1), (0, 1), (0, 2), (2, 1)]))
    weights = torch.tensor([[2.0], [-1.0]], dtype=torch.float64)
    found, _ = negative_log_likelihood(weights, gathered([sentence]), 0.0)
    assert found == pytest.approx(naive_loss([sentence], weights.numpy(), 0.0))
    assert gathered([sentence]).arcs == 4


def test_the_optimum_is_found_again_and_nothing_near_it_is_better() -> None:
    sentences = treebank(3, 60)
    data = gathered(sentences)
    probe, again = fit_probe(data, 1e-3), fit_probe(gathered(sentences), 1e-3)
    assert probe.converged
    assert probe.steps > 3
    assert torch.equal(probe.weights, again.weights)
    value, gradient = negative_log_likelihood(probe.weights, data, 1e-3)
    assert value == probe.loss
    assert float(gradient.abs().max()) < 1e-4
    random = torch.Generator().manual_seed(0)
    for _ in range(20):
        beside = probe.weights + 0.1 * torch.randn(2, 3, generator=random, dtype=torch.float64)
        assert negative_log_likelihood(beside, data, 1e-3)[0] > value


def test_learning_that_is_cut_short_has_not_converged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "_MOST_STEPS", 1)
    probe = fit_probe(gathered(treebank(3, 60)), 1e-3)
    assert not probe.converged
    assert probe.steps == 1


@pytest.mark.parametrize("direction", [0, 1])
def test_a_head_that_attends_to_the_governor_finds_every_one(direction: int) -> None:
    """From dependent to governor, or from governor to dependent; the other heads are noise."""
    sentences = []
    for sentence in treebank(5, 40):
        maps = sentence.maps.clone()
        maps[..., 1] = 0
        for dependent, governor in sentence.arcs.tolist():
            pair = (dependent, governor) if direction == 0 else (governor, dependent)
            maps[(*pair, 1)] = 1
        sentences.append(sentence._replace(maps=maps))
    probe = fit_probe(gathered(sentences[:30]), 1e-4)
    assert int(probe.weights.argmax()) == 3 * direction + 1
    assert uas(sentences[30:], probe.weights)[PROBE] == 1


def test_trees_that_have_nothing_to_do_with_attention_are_found_by_chance() -> None:
    probe = fit_probe(gathered(treebank(7, 400)), 1e-4)
    held_out = treebank(8, 400)
    chance = np.mean([1 / (len(s.maps) - 1) for s in held_out for _ in range(len(s.arcs))])
    words = sum(len(s.arcs) for s in held_out)
    assert uas(held_out, probe.weights)[PROBE] == pytest.approx(chance, abs=4 * math.sqrt(chance / words))


def test_a_word_does_not_govern_itself() -> None:
    maps = torch.eye(4)[..., None].double()
    scores = attachment_scores(maps, torch.tensor([[9.0], [9.0]], dtype=torch.float64))
    assert (scores.diagonal() == -math.inf).all()
    assert (scores.argmax(-1) != torch.arange(4)).all()


@pytest.mark.parametrize(
    ("arcs", "offset"),
    [
        ([(0, 2), (1, 3), (3, 0)], 2),
        ([(0, 1), (1, 0)], -1),  # of two as frequent and as near the left one
        ([(0, 3), (3, 1)], -2),  # the nearer one
    ],
)
def test_the_best_offset_is_the_most_frequent_one(arcs: list[tuple[int, int]], offset: int) -> None:
    data = gathered([probed("s", torch.zeros(4, 4, 1).half(), torch.tensor(arcs))])
    assert data.best_offset == offset
    assert data.nbytes == 4 * 4 * 2


def test_baselines_and_the_gain_over_them() -> None:
    """Attention says what the tree says in 12 of 16 sentences; the next word is right in four words of 32."""
    maps = torch.zeros(3, 3, 1).half()
    maps[0, 2] = maps[2, 1] = 1
    right, other = torch.tensor([(0, 2), (2, 1)]), torch.tensor([(0, 1), (2, 0)])
    counts = AttachmentCounts(torch.tensor([[1.0], [0.0]], dtype=torch.float64), -1, EVEN)
    for number in range(16):
        counts.add(probed(f"s{number}", maps, right if number < 12 else other))
    rows = counts.table(200, 0).set_index("method")
    assert rows["words"].tolist() == [32] * 4
    # Uniform attention finds each of the two other words half of the time.
    assert rows["uas"].to_dict() == {PROBE: 12 / 16, RIGHT_BRANCHING: 2 / 16, BEST_OFFSET: 6 / 16, UNIFORM: 1 / 2}
    assert math.isnan(rows.loc[UNIFORM, "baseline_offset"])
    assert rows.loc[[RIGHT_BRANCHING, BEST_OFFSET], "baseline_offset"].tolist() == [1, -1]
    assert rows.loc[[RIGHT_BRANCHING, BEST_OFFSET], "delta"].tolist() == [10 / 16, 6 / 16]
    # Uniform attention is right in half of the words of every sentence: no spread is seen.
    assert rows.loc[UNIFORM, ["ci_low", "ci_high"]].isna().all()
    varying = rows.drop(UNIFORM)
    assert (varying["ci_low"] <= varying["uas"]).all()
    assert (varying["ci_high"] >= varying["uas"]).all()
    assert rows.loc[PROBE, ["baseline_offset", "delta", "p_value"]].isna().all()
    # Both follow from which sentences are drawn.
    gain = rows.loc[BEST_OFFSET]
    assert gain["delta_low"] < gain["delta"] < gain["delta_high"]


def test_few_sentences_have_no_interval() -> None:
    counts = AttachmentCounts(torch.zeros(2, 3, dtype=torch.float64), 1, EVEN)
    for sentence in treebank(0, 4):
        counts.add(sentence)
    assert counts.table(20, 0)["ci_low"].isna().all()


def test_weights_by_head() -> None:
    heads = [Head("encoder", 0, 0), Head("encoder", 0, 2), Head("encoder", 1, 0)]
    rows = weight_table(heads, np.array([[1.0, 2, 3], [4, 5, 6]])).rows
    assert rows["head"].tolist() == [0, 2, 0]
    assert rows["dep_to_head"].tolist() == [1, 2, 3]
    assert rows["head_to_dep"].tolist() == [4, 5, 6]
