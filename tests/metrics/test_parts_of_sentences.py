"""Some queries of a sentence after the other give the sums that all of them give at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from metrics.test_against_naive import RELATIONS, tiny
from tiers import rest_slow, rest_slow_rows
from torch import Tensor

from headlens.attention.edits_and_observers import AttentionCall, Observer, Tokens
from headlens.attention.kernels import blocked_softmax
from headlens.attention.kernels.blocked_softmax import part_of, queries_of
from headlens.attention.session import AttentionSession
from headlens.corpora.annotations import AnnotationCounts, Annotator
from headlens.corpora.frequency import make_frequency
from headlens.metrics.attention_view import CallView
from headlens.metrics.metric import Metric, MetricSettings, Statistics
from headlens.metrics.metric_column import MetricColumn
from headlens.metrics.metric_registry import registered_metrics
from headlens.metrics.ratio_estimator import ratio_mean, ratio_sums
from headlens.metrics.similarity import HeadSimilarity
from headlens.roles.head_roles import Frequencies, classify_heads
from headlens.roles.role_options import ClassifyOptions
from headlens.runs.corpus_pass import CorpusReader

FREQUENCY = make_frequency("wordfreq:en", [])


class Cutting(Observer):
    """Shows calls to other observers cut after every word, or after some of them; padding, too."""

    def __init__(self, observers: list[Observer], size: int) -> None:
        self.observers, self.size = observers, size

    def observe(self, call: AttentionCall) -> None:
        assert call.weights is not None
        for number in range(len(call.query)):
            rows = slice(number, number + 1)
            one = part_of(call, rows)
            one = replace(one, weights=call.weights[rows], output=call.output[rows])
            length = call.query.shape[2]
            cuts = blocked_softmax._cuts(one.queries, length, self.size)
            if call.site.stack == "cross" or len(cuts) == 2:
                cuts = [0, length]
            for start, stop in pairwise(cuts):
                part = one if len(cuts) == 2 else queries_of(one, start, stop)
                shown = replace(part, weights=one.weights[:, :, start:stop], output=one.output[:, start:stop])
                for observer in self.observers:
                    observer.observe(shown)

    def prepare(self) -> None:
        for observer in self.observers:
            observer.prepare()

    def commit(self) -> None:
        for observer in self.observers:
            observer.commit()

    needs_projection = True


EVERY = [(name, size, 24) for name in ("bert", "gpt2", "marian") for size in (1, 3, 7)]


@pytest.mark.parametrize(
    ("name", "size", "sentences"),
    rest_slow_rows([("bert", 1, 2), ("gpt2", 7, 4), ("marian", 7, 2), *EVERY], [("gpt2", 7, 4)]),
)
def test_parts_give_the_sums_of_wholes(name: str, size: int, sentences: int, request: pytest.FixtureRequest) -> None:
    loaded, corpus = tiny(name, request, sentences)
    reader = CorpusReader.of(loaded, next(iter(corpus)))
    annotator = Annotator(RELATIONS, FREQUENCY, FREQUENCY, words=True)
    metrics = [metric.of(MetricSettings(RELATIONS)) for metric in registered_metrics()]
    wholes, parts = ([Statistics(metrics, reader.sites), HeadSimilarity(reader.sites)] for _ in range(2))
    session = AttentionSession(reader.model, observers=[*wholes, Cutting([*parts], size)])
    with session, torch.inference_mode():
        for batch in reader.batches(corpus, 16 * sentences):
            with session.batch(annotator.annotate(batch, AnnotationCounts(), decoder_only=reader.decoder_only)):
                reader.model(**batch.inputs, **reader.arguments)
    for whole, part in zip(wholes, parts, strict=True):
        expected, found = whole.totals.arrays(), part.totals.arrays()
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            if value.dtype == np.int64:
                np.testing.assert_array_equal(found[key], value, err_msg=key)
            else:
                np.testing.assert_allclose(found[key], value, rtol=2e-6, atol=1e-6, err_msg=key)


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of at least three queries."""
    monkeypatch.setattr(blocked_softmax, "BLOCK", {"cpu": 1, "other": 1})
    monkeypatch.setattr(blocked_softmax, "FEWEST_QUERIES", 3)


class Watching(Statistics):
    """Remembers which queries it was shown of how many keys."""

    def observe(self, call: AttentionCall) -> None:
        self.seen.append((call.start, call.query.shape[2], call.key.shape[2], call.last))
        super().observe(call)

    seen: ClassVar[list[tuple[int, int, int, bool]]] = []


@pytest.mark.slow
@pytest.mark.parametrize("name", rest_slow(["bert", "gpt2"]))
def test_the_fast_kernel_shows_parts(
    name: str, short_parts: None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, corpus = tiny(name, request, sentences=3)
    whole, parts = (
        classify_heads(
            loaded, corpus, ClassifyOptions(RELATIONS, batch_tokens=400, kernel=kernel), Frequencies(FREQUENCY, None)
        ).tables
        for kernel in ("eager", "fast")
    )
    for table, expected in whole.items():
        found = parts[table].rows
        for column in expected.rows.select_dtypes("number"):
            # one word of the corpus may point elsewhere
            within = 1e-5 if column in {"entropy", "distance", "idle"} or column.startswith(("to_", "norm_")) else 3e-3
            if not column.startswith(("similarity", "positional_offset", "count", "correct", "p_", "nearest")):
                values = (rows[column].to_numpy(float) for rows in (found, expected.rows))
                np.testing.assert_allclose(*values, rtol=1e-5, atol=within, err_msg=f"{table} {column}")


class OwnMetric(Metric):
    """One that says nothing of parts."""

    name = "own"
    columns = (MetricColumn("largest", "Mean largest weight."),)

    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        return ratio_sums("largest", view, view.weights.amax(-1), view.queries.real)

    def compute(self, sums: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"largest": ratio_mean("largest", sums)}


class PartsToo(OwnMetric):
    """The same, and it may be shown parts."""

    parts_of_sentences = True


@pytest.mark.parametrize(
    ("metric", "level", "divided"), [(OwnMetric, "token", False), (PartsToo, "token", True), (PartsToo, "word", False)]
)
def test_parts_are_shown_to_those_that_take_them(
    metric: type[Metric], level: Any, divided: bool, short_parts: None, request: pytest.FixtureRequest
) -> None:
    loaded, corpus = tiny("bert", request)
    reader = CorpusReader.of(loaded, next(iter(corpus)))
    Watching.seen.clear()
    statistics = Watching([metric()], reader.sites, level=level)
    with AttentionSession(reader.model, observers=[statistics], kernel="fast") as session, torch.inference_mode():
        for batch in reader.batches(corpus, 400):
            tokens = Annotator(words=True).annotate(batch, AnnotationCounts(), decoder_only=False)
            with session.batch(tokens):
                reader.model(**batch.inputs, **reader.arguments)
    assert any(start for start, *_ in Watching.seen) is divided
    assert all(last is (start + queries == keys) for start, queries, keys, last in Watching.seen)
    # What a failed pass began is forgotten.
    statistics._earlier[reader.sites[0], "own"] = {"largest": (torch.ones(1),)}
    statistics.discard()
    assert not statistics._earlier


def _tokens(words: list[int]) -> Tokens:
    tokens = Tokens.only_real(torch.ones(1, len(words), dtype=torch.bool))
    return replace(tokens, word=torch.tensor([words]))


@pytest.mark.parametrize(
    ("words", "size", "cuts"),
    [
        ([-1, 0, 1, 2, 3, -1], 2, [0, 2, 4, 6]),
        ([-1, 0, 0, 0, 1, -1], 2, [0, 1, 4, 6]),
        # a token of no word between the pieces of one
        ([-1, 0, -1, 0, 1, -1], 3, [0, 1, 4, 6]),
        ([0] * 6, 2, [0, 6]),
        ([0, 1, 2], 3, [0, 3]),
    ],
)
def test_no_word_is_divided(words: list[int], size: int, cuts: list[int]) -> None:
    assert blocked_softmax._cuts(_tokens(words), len(words), size) == cuts


@given(words=st.lists(st.integers(-1, 3), min_size=4, max_size=12), size=st.integers(1, 13))
def test_every_part_is_as_long_as_words_allow(words: list[int], size: int) -> None:
    """Every place is tried: a part ends at the last that makes it no longer than `size`, or else at the next."""
    length = len(words)
    whole = [place for place in range(1, length) if not set(words[:place]) & set(words[place:]) - {-1}]
    cuts = blocked_softmax._cuts(_tokens(words), length, size)
    assert (cuts[0], cuts[-1]) == (0, length)
    for start, stop in pairwise(cuts):
        after = [place for place in (*whole, length) if place > start]
        assert stop == max((place for place in after if place <= start + size), default=after[0])


def test_pairs_are_compared_as_wholes() -> None:
    tokens = _tokens([0, 1, 2, 3])
    assert blocked_softmax._cuts(replace(tokens, segment=tokens.word), 4, 2) == [0, 4]
    assert blocked_softmax._cuts(replace(tokens, links=tokens.word), 4, 2) == [0, 4]
    assert blocked_softmax._cuts(None, 4, 3) == [0, 3, 4]
