"""Relevance over a corpus, from sums that can be added in any parts."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from saved import build
from tiers import rest_slow_rows
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from headlens.attention.sites import Site
from headlens.corpora.encoding import SentenceEncoder
from headlens.corpora.sentence import Example, Sentence, Word
from headlens.corpora.sources import open_corpus
from headlens.errors import SelfCheckError
from headlens.models.loading import LoadedModel, load
from headlens.relevance_propagation.aggregation import CANCELLED, RelevanceSums, normalised
from headlens.relevance_propagation.relevance_session import (
    HeadRelevance,
    RelevanceSession,
    answer_counts,
    normalised_entropy,
)
from headlens.relevance_propagation.shares import even_output, few_answers, mixed_signs
from headlens.relevance_propagation.targets import OwnEmbedding
from headlens.runs.corpus_pass import CorpusReader
from headlens.statistics.bootstrap import Draws

SITES = [Site("encoder", 0, 3, "a"), Site("cross", 1, 2, "b")]
KEYS = [f"sentence {i}" for i in range(12)]


def batch(raw: dict[Site, Tensor], rows: slice = slice(None)) -> HeadRelevance:
    part = {site: r[rows] for site, r in raw.items()}
    n = len(next(iter(part.values())))
    return HeadRelevance(part, torch.full((n,), 2.0, dtype=torch.float64), 1.5 * n, 0.5 * n)


def values(seed: int = 0, n: int = 12) -> dict[Site, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {s: torch.randn(n, s.n_heads, generator=generator, dtype=torch.float64) + 0.7 for s in SITES}


def sums(raw: dict[Site, Tensor], cuts: list[int], **options: int) -> RelevanceSums:
    found = RelevanceSums(SITES, replicates=200, **options)
    edges = [0, *sorted(cuts), len(KEYS)]
    for first, last in pairwise(edges):
        if last > first:
            found.add(batch(raw, slice(first, last)), KEYS[first:last])
    return found


def test_where_what_started_adds_up_to_nothing_no_share_of_it_arrived() -> None:
    found = RelevanceSums(SITES, replicates=20)
    raw = {site: own[:2] for site, own in values().items()}
    found.add(HeadRelevance(raw, torch.tensor([2.0, -2.0], dtype=torch.float64), 0.5, -0.5), KEYS[:2])
    assert found.conservation is None
    assert sums(values(), []).conservation is not None


def test_means_and_counts_by_hand() -> None:
    site = Site("encoder", 0, 2, "a")
    raw = torch.tensor([[3.0, 1.0], [1.0, -3.0], [5.0, -4.9], [0.0, 0.0]], dtype=torch.float64)
    found = RelevanceSums([site], replicates=20)
    found.add(batch({site: raw}), KEYS[:4])
    rows = found.table("epsilon", "predicted").rows
    # Shares (0.75, 0.25) and (-0.5, 1.5); the third example cancels, the fourth has nothing.
    assert rows["relevance"].tolist() == [0.125, 0.875]
    assert rows["raw"].tolist() == pytest.approx([9 / 4, -6.9 / 4])
    assert rows["signed"].tolist() == pytest.approx([(0.75 + 0.25 + 5 / 9.9) / 4, (0.25 - 0.75 - 4.9 / 9.9) / 4])
    assert (rows["n"] == 2).all()
    assert (rows["cancelled"] == 2).all()
    assert (rows["negative"] == 1).all()
    assert set(rows["rule"]) == {"epsilon"}
    assert set(rows["target"]) == {"predicted"}
    assert found.conservation.inputs == 0.75
    assert found.conservation.biases == 0.25
    assert found.conservation.lost == 0


@pytest.mark.parametrize("shift", [1.4, -1.4, 0.0])
def test_the_sum_of_a_layer_and_its_interval_by_resampling(shift: float) -> None:
    raw = {site: own - 0.7 + shift for site, own in values().items()}
    rows = sums(raw, []).table("epsilon", "predicted").rows
    counts = Draws.of(KEYS, 200, 0).counts.astype(float)
    for site, own in raw.items():
        layer = own.sum(dim=1).numpy()
        drawn = [np.average(layer, weights=weights) for weights in counts]
        found = rows[rows["stack"] == site.stack]
        assert found["layer_raw"].tolist() == pytest.approx([layer.mean()] * site.n_heads)
        assert found["layer_raw_low"].tolist() == pytest.approx([np.quantile(drawn, 0.025)] * site.n_heads)
        assert found["layer_raw_high"].tolist() == pytest.approx([np.quantile(drawn, 0.975)] * site.n_heads)


def test_the_remainder_and_its_interval_by_resampling() -> None:
    raw, start = values(), torch.linspace(1.0, 4.0, len(KEYS), dtype=torch.float64)
    found = RelevanceSums(SITES, replicates=200)
    for rows in (slice(5), slice(5, None)):
        part = {site: own[rows] for site, own in raw.items()}
        found.add(HeadRelevance(part, start[rows], 0.5, 0.25, others={"heads": 2.0, "mlps": 1.0}), KEYS[rows])
    rest = (start - sum(own.sum(dim=1) for own in raw.values())).numpy()
    drawn = [np.average(rest, weights=weights) for weights in Draws.of(KEYS, 200, 0).counts.astype(float)]
    rows = found.table("logit-attribution", "predicted").rows
    expected = [rest.mean(), np.quantile(drawn, 0.025), np.quantile(drawn, 0.975)]
    names = ["remainder", "remainder_low", "remainder_high"]
    np.testing.assert_allclose(rows[names], [expected] * len(rows), rtol=1e-12)
    flow, total = found.conservation, float(start.sum())
    assert flow.others == pytest.approx({"heads": 4.0 / total, "mlps": 2.0 / total})
    assert flow.lost == pytest.approx(1 - 7.5 / total)
    few = RelevanceSums(SITES, replicates=200)
    few.add(HeadRelevance({s: r[:5] for s, r in raw.items()}, start[:5], 0, 0, others={"heads": 2.0}), KEYS[:5])
    assert few.table("logit-attribution", "predicted").rows[names].notna().all().tolist() == [True, False, False]
    assert sums(raw, []).table("epsilon", "predicted").rows[names].isna().all(axis=None)


def test_columns_are_a_contract() -> None:
    columns = list(sums(values(), []).table("epsilon", "predicted").rows)
    assert columns == [
        *("stack", "layer", "head", "relevance", "ci_low", "ci_high", "raw", "rule", "target"),
        *("signed", "signed_low", "signed_high", "n", "cancelled", "negative", "raw_low", "raw_high"),
        *("layer_raw", "layer_raw_low", "layer_raw_high", "same_output"),
        *("remainder", "remainder_low", "remainder_high", "even_output", "few_answers"),
    ]


@given(st.lists(st.integers(0, 12), max_size=5), st.permutations(range(12)))
def test_batches_and_their_order_do_not_matter(cuts: list[int], order: list[int]) -> None:
    raw = values()
    whole = sums(raw, []).table("epsilon", "predicted").rows
    cut = sums(raw, cuts).table("epsilon", "predicted").rows
    mixed = RelevanceSums(SITES, replicates=200)
    mixed.add(batch({s: r[list(order)] for s, r in raw.items()}), [KEYS[i] for i in order])
    for other in (cut, mixed.table("epsilon", "predicted").rows):
        for column in whole.columns[3:].drop(["rule", "target"]):
            np.testing.assert_allclose(other[column], whole[column], rtol=1e-9, atol=1e-12)


def test_shards_merge_and_survive_being_saved() -> None:
    raw = values()
    whole, first, second = sums(raw, []), RelevanceSums(SITES, replicates=200), RelevanceSums(SITES, replicates=200)
    first.add(batch(raw, slice(5)), KEYS[:5])
    second.add(batch(raw, slice(5, 12)), KEYS[5:])
    first.totals.add_arrays(second.totals.arrays())
    expected, merged = (s.table("epsilon", "x").rows for s in (whole, first))
    np.testing.assert_allclose(merged["ci_high"], expected["ci_high"], rtol=1e-12)
    assert first.conservation.inputs == pytest.approx(whole.conservation.inputs)


def test_normalised_layers_sum_to_1_within_bounds() -> None:
    raw = torch.randn(500, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shares, kept = normalised(raw)
    assert torch.allclose(shares[kept].sum(dim=1), torch.ones(1, dtype=torch.float64))
    assert (shares[~kept] == 0).all()
    assert 0 < kept.sum() < 500
    assert shares.abs().max() <= 1 / CANCELLED
    assert not normalised(torch.zeros(1, 4))[1].any()


def test_a_layer_that_always_cancels_has_empty_cells() -> None:
    raw = values()
    raw[SITES[1]] = torch.tensor([[1.0, -1.0]], dtype=torch.float64).expand(12, 2)
    rows = sums(raw, []).table("epsilon", "x").rows
    empty = rows["stack"] == "cross"
    assert rows.loc[empty, ["relevance", "ci_low", "ci_high"]].isna().all(axis=None)
    assert rows.loc[~empty, ["relevance", "ci_low", "ci_high"]].notna().all(axis=None)
    assert (rows.loc[empty, "signed"].abs() == 0.5).all()


def test_intervals_hold_the_mean_and_depend_on_the_seed() -> None:
    raw = values()
    rows, other = (sums(raw, [], seed=s).table("epsilon", "x").rows for s in (0, 1))
    assert (rows["signed_low"] < rows["signed"]).all()
    assert ((rows["raw_low"] < rows["raw"]) & (rows["raw"] < rows["raw_high"])).all()
    assert (rows["signed"] < rows["signed_high"]).all()
    assert (rows["ci_low"] != other["ci_low"]).any()
    assert (rows["relevance"] == other["relevance"]).all()


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_nothing_and_not_a_number_are_no_table(value: float) -> None:
    raw = {s: torch.full((12, s.n_heads), value, dtype=torch.float64) for s in SITES}
    with pytest.raises(SelfCheckError, match="zero throughout, or not finite"):
        sums(raw, []).table("epsilon", "x")
    with pytest.raises(SelfCheckError):
        RelevanceSums(SITES).table("epsilon", "x")


def test_every_example_needs_a_key_and_nothing_counts_without() -> None:
    found = RelevanceSums(SITES)
    with pytest.raises(ValueError, match="2 keys for 12 examples"):
        found.add(batch(values()), KEYS[:2])
    assert list(found.totals) == []


def test_sums_do_not_grow_with_the_corpus() -> None:
    found, sizes = RelevanceSums(SITES, replicates=50), []
    for part in range(3):
        found.add(batch(values(part)), [f"{part} {k}" for k in KEYS])
        sizes.append(sum(a.nbytes for a in found.totals.arrays().values()))
    assert len(set(sizes)) == 1


@pytest.mark.parametrize(("name", "sentences"), rest_slow_rows([("tiny", 8), ("demo", 24)]))
def test_a_corpus_gives_the_same_in_batches_of_any_size(
    name: str, sentences: int, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    if name == "demo":
        loaded = load("demo")
    else:
        model = build("BertModel", len(wordpiece_tokenizer), max_position_embeddings=120)
        loaded = LoadedModel("tiny", model, wordpiece_tokenizer, None)
    corpus = [e for e, _ in zip(open_corpus("demo"), range(sentences), strict=False)]
    reader = CorpusReader.of(loaded, corpus[0])
    tables = []
    with RelevanceSession(loaded.model, OwnEmbedding()) as session:
        for size in (128, 2048):
            found = RelevanceSums(session.sites, replicates=100)
            for one in reader.batches(corpus, size):
                found.add(session.relevance(one.inputs), [e.key for e in one.examples])
            tables.append(found.table("epsilon", "embedding").rows)
    for column in ("raw", "signed", "signed_low", "signed_high"):
        np.testing.assert_allclose(tables[0][column], tables[1][column], atol=1e-5)


def test_keys_tell_sides_and_sentences_apart(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    words = (Word("a", 0, 1), Word("b", 2, 3))
    one, two = Sentence("a b", words, id="1"), Sentence("a b", words, id="2")
    encoder = SentenceEncoder(wordpiece_tokenizer, decoder_start_id=0)
    examples = [Example(one), Example(two), Example(one, one), Example(one, two), Example(two, one)]
    keys = [e.key for e in map(encoder.encode, examples) if e is not None]
    assert len(set(keys)) == 5


def test_one_answer_is_counted_over_batches() -> None:
    place = Site("encoder", 0, 2, "a")
    found = RelevanceSums([place])
    for counts in ([3, 1], [96, 0]):
        raw = torch.ones(4, place.n_heads, dtype=torch.float64)
        answers = torch.tensor(counts, dtype=torch.float64)
        found.add(HeadRelevance({place: raw}, raw.sum(dim=1), 0.0, 0.0, answers=answers), list("abcd"))
        if counts[1]:
            assert found.answers.tolist() == [3, 1]
            assert not few_answers(found.answers)
    assert found.answers.tolist() == [99, 1]
    assert "(99 % of what relevance started from)" in few_answers(found.answers)
    assert found.below == (0, 8)
    assert answer_counts(torch.tensor([[0.0, 2.0], [3.0, 1.0], [0.0, 1.0]])).tolist() == [1, 2]
    nothing = RelevanceSums([place])
    nothing.add(HeadRelevance({place: torch.ones(1, place.n_heads).double()}, torch.ones(1).double(), 0.0, 0.0), ["a"])
    assert not few_answers(nothing.answers), "what has no logits has no answers"
    assert not even_output(nothing.evenness)


def test_few_answers_of_many_are_told() -> None:
    """Three of 400 tokens at 150 positions; not two of two classes, nor the two answers to two texts."""
    counts = np.array([113, 36, 1, *[0] * 397])
    assert few_answers(counts).startswith(
        "The model nearly always gives one of 2 answers, of 400 that it can give (99.3 %"
    )
    assert not few_answers(np.array([75, 75]))
    assert not few_answers(np.array([1, 1, *[0] * 398]))
    assert not few_answers(np.ones(400))


def test_targets_on_both_sides_of_0_are_told() -> None:
    place = Site("encoder", 0, 2, "a")
    found = RelevanceSums([place])
    start = torch.tensor([1.0, -2.0, -3.0, 0.5], dtype=torch.float64)
    found.add(HeadRelevance({place: torch.ones(4, 2).double()}, start, 0.0, 0.0), list("abcd"))
    assert found.below == (2, 4)
    assert mixed_signs(*found.below).startswith("The target is below 0 in 2 of 4 examples")
    assert mixed_signs(1, 50) == mixed_signs(50, 50) == mixed_signs(0, 0) == ""


@pytest.mark.parametrize(
    ("logits", "share"),
    [
        ([[0.3, 0.3], [0.0, 0.0]], 1.0),
        ([[0.0, -torch.inf, 0.0, -torch.inf]], 0.5),  # two of four: ln 2 of ln 4
        ([[0.0, math.log(9)]], -(0.1 * math.log(0.1) + 0.9 * math.log(0.9)) / math.log(2)),
    ],
)
def test_what_predicts_nothing_is_told_by_its_entropy(logits: list[list[float]], share: float) -> None:
    place = Site("encoder", 0, 2, "a")
    found = RelevanceSums([place])
    read = torch.tensor(logits)
    raw = torch.ones(len(read), place.n_heads, dtype=torch.float64)
    batch = HeadRelevance(
        {place: raw}, raw.sum(dim=1), 0.0, 0.0, answers=answer_counts(read).double(), evenness=normalised_entropy(read)
    )
    found.add(batch, [str(row) for row in range(len(read))])
    found.add(batch, [str(-row) for row in range(len(read))])
    assert found.evenness == pytest.approx(share)
    assert bool(even_output(found.evenness)) == (share == 1)


def test_entropies_are_never_rounded_up() -> None:
    assert "(entropy 99.9 % of the largest)" in even_output(0.99999)
    assert "(entropy 100 % of the largest)" in even_output(1.0)
    assert not even_output(0.98999)
