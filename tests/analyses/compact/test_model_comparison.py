"""Outputs and times beside the masked model."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import zoo
from saved import Memory, build, sentence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.analyses.compact.model_comparison import (
    Difference,
    compact_table,
    difference_to_masked,
    model_inputs,
    model_size,
    output_layer_note,
    seconds_per_forward,
)
from headlens.attention.sites import find_sites
from headlens.corpora.encoded_corpus import EncodingCounts
from headlens.corpora.sentence import Example
from headlens.errors import CorpusError, SelfCheckError
from headlens.heads import Head
from headlens.interventions.compacting import compact_model
from headlens.models.loading import LoadedModel
from headlens.planning.speed import operations_of
from headlens.statistics.intervals import geometric_mean_interval
from headlens.weights.head_slicing import projections

HEADS = [Head("encoder", 0, 1), *(Head("encoder", 1, h) for h in range(4))]
TEXTS = ("dogs chase cats", "a house stands near the river", "she sold nothing")


def pair() -> tuple[PreTrainedModel, PreTrainedModel]:
    model = zoo.ZOO["bert"].build("sdpa")
    small = copy.deepcopy(model)
    compact_model(small, HEADS)
    return model, small


def inputs() -> list[dict[str, Any]]:
    return zoo.unpadded(zoo.ZOO["bert"])


def test_the_same_outputs_pass() -> None:
    found = difference_to_masked(*pair(), HEADS, inputs())
    found.check()
    assert found.largest <= 1e-5
    assert found.output > 1


@pytest.mark.parametrize("name", ["gpt2", "marian"])
def test_what_the_output_layer_makes_of_the_speed_up_is_that_of_whole_passes(name: str) -> None:
    """Beside tokens per second without the layer nothing said that it had three quarters of the operations."""
    kind = zoo.ZOO[name]
    model, batch = kind.build("sdpa"), zoo.unpadded(kind)[0]
    small = copy.deepcopy(model)
    compact_model(small, [next(h for s in find_sites(model) for h in s.heads)])
    bodies, whole = (
        [operations_of(m, batch) for m in ms] for ms in ([model.base_model, small.base_model], [model, small])
    )
    (told,) = output_layer_note(model, batch, bodies)
    assert f"which then has {1 - bodies[0] / whole[0]:.0%} of all operations" in told
    assert told.endswith(f"the theoretical speed-up is {whole[0] / whole[1]:.2f}.")


def test_models_without_an_output_layer_have_nothing_beside() -> None:
    model, small = pair()
    batch = inputs()[0]
    assert output_layer_note(model.base_model, batch, [2, 1]) == []
    assert operations_of(model.base_model, batch) > operations_of(small.base_model, batch)


def test_other_heads_fail() -> None:
    found = difference_to_masked(*pair(), [*HEADS[1:], Head("encoder", 0, 2)], inputs())
    with pytest.raises(SelfCheckError, match=r"differs from the masked one: outputs differ by at most .*\nNothing"):
        found.check()


@pytest.mark.parametrize("at_padding", [True, False])
def test_outputs_at_padding_do_not_count(*, at_padding: bool) -> None:
    model, small = pair()
    padded = zoo.padded(zoo.ZOO["bert"])
    there = (padded["attention_mask"] == 0) if at_padding else (padded["attention_mask"] == 1)
    assert there.any()

    def change(module: object, arguments: object, outputs: Any) -> Any:
        outputs[0][there] += 1.0
        return outputs

    small.base_model.register_forward_hook(change)
    found = difference_to_masked(model, small, HEADS, [padded])
    assert (found.largest < 1e-5) == at_padding


@pytest.mark.parametrize("value", [1e-3, float("nan")])
def test_weights_that_changed_fail(value: float) -> None:
    model, small = pair()
    with torch.no_grad():
        projections(small, find_sites(small)[2].module).inward[2].module.weight[0, 0] += value
    with pytest.raises(SelfCheckError):
        difference_to_masked(model, small, HEADS, inputs()).check()


def test_tolerance_is_a_share_of_the_output() -> None:
    Difference(9e-5, 10.0, 1e-5).check()
    Difference(9e-6, 0.1, 1e-5).check()
    for difference in (Difference(2e-4, 10.0, 1e-5), Difference(2e-5, 0.1, 1e-5)):
        with pytest.raises(SelfCheckError):
            difference.check()


class Clock:
    """Time that a model says has passed when it runs."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_times_are_means_over_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("time.perf_counter", clock)
    order: list[int] = []

    def slow(number: int, seconds: float) -> PreTrainedModel:
        model = zoo.ZOO["bert"].build()

        def pass_time(*call: object) -> None:
            order.append(number)
            clock.now += seconds * (100 if len(order) <= 6 else 1)  # the warm-up

        model.register_forward_hook(pass_time)
        return model

    steps: list[int] = []
    found = seconds_per_forward([slow(0, 3.0), slow(1, 1.0)], inputs(), 4, steps.append)
    assert np.allclose(found, [[3.0, 1.0]] * 4)
    assert sum(steps) == 5
    pairs = [tuple(order[i : i + 2]) for i in range(0, len(order), 2)]
    assert set(pairs) == {(0, 1), (1, 0)}


def test_intervals_against_a_hand_computation() -> None:
    assert geometric_mean_interval([1.0, 4.0])[0] == pytest.approx(2)
    assert np.isnan(geometric_mean_interval([1.0, 2.0, 2.0, 4.0])[1:]).all(), "too few for an interval"
    mean, low, high = geometric_mean_interval(np.array([0.5, 1.0, 2.0, 4.0, 8.0]))
    # t of 4 degrees of freedom: 2.77645; standard error of the logarithms ln 2 sqrt(2.5) / sqrt(5)
    factor = 2 ** (2.77645 / 2**0.5)
    assert (mean, low, high) == pytest.approx((2.0, 2 / factor, 2 * factor), abs=1e-4)
    assert np.isnan(geometric_mean_interval(np.array([1.0]))[1:]).all()


def test_sizes_count_shared_weights_once() -> None:
    albert, marian = zoo.ZOO["albert"].build(), zoo.ZOO["marian"].build()
    assert (model_size(albert)["heads"], model_size(albert)["masked"]) == (16, 0)
    assert model_size(albert)["parameters"] == sum(p.numel() for p in albert.parameters())
    assert model_size(albert.double())["weight_bytes"] >= 8 * model_size(albert)["parameters"]
    tied = {t.data_ptr(): t.numel() for t in marian.state_dict().values()}
    assert model_size(marian)["weight_bytes"] == 4 * sum(tied.values())


@pytest.mark.parametrize("heads", [["encoder.0.1"], ["encoder.0.0", "encoder.1.1"], ["encoder.0.0", "encoder.0.1"]])
def test_operations_of_a_head_by_hand(heads: list[str]) -> None:
    """Two for each product and sum: projections to query, key, value and output, scores, and their sums of values."""
    model = build("BertModel")
    small = copy.deepcopy(model)
    compact_model(small, [Head.parse(name) for name in heads])
    rows, length, width = 2, 9, model.config.hidden_size
    size = width // model.config.num_attention_heads
    batch = {"input_ids": torch.arange(10, 10 + rows * length).reshape(rows, length)}
    one = 2 * rows * length * (4 * width * size + 2 * length * size)
    assert operations_of(model, batch) - operations_of(small, batch) == len(heads) * one


def test_comparison_has_a_row_for_each_state() -> None:
    seconds = np.array([[0.4, 0.2], [0.6, 0.3], [0.2, 0.1], [0.4, 0.2], [0.6, 0.3], [0.2, 0.1]])
    names = ("heads", "masked", "parameters", "weight_bytes")
    sizes = [dict(zip(names, size, strict=True)) for size in ((8, 0, 100, 400), (4, 1, 60, 240))]
    table = compact_table("m", ["original", "compacted"], sizes, seconds, [300, 150])
    assert table["theoretical_speedup"].tolist() == [1.0, 2.0]
    assert list(table["state"]) == ["original", "compacted"]
    assert list(table["heads"]) == [8, 4]
    assert np.allclose(table["seconds_per_forward"], [0.048 ** (1 / 3), 0.006 ** (1 / 3)])
    # Every round says the same ratio, however much the rounds differ.
    assert np.allclose(table["speedup"], [1, 2])
    assert table[["speedup_low", "speedup_high"]].isna().all(axis=None), "no spread was seen"
    assert (table["ci_low"] < table["seconds_per_forward"]).all()
    assert isinstance(table, pd.DataFrame)


def corpus(*targets: str) -> Memory:
    paired = [sentence(t) for t in targets] or [None] * len(TEXTS)
    return Memory([Example(sentence(t), other) for t, other in zip(TEXTS, paired, strict=True)])


def test_decoders_read_the_source_where_there_is_no_target(marian_tokenizer: PreTrainedTokenizerBase) -> None:
    model = build("MarianMTModel", len(marian_tokenizer), pad_token_id=0, decoder_start_token_id=0)
    loaded = LoadedModel("tiny", model, marian_tokenizer, None)
    alone = model_inputs(loaded, corpus(), 2048, EncodingCounts())
    assert all(torch.equal(own["decoder_input_ids"], own["input_ids"]) for own in alone)
    paired = model_inputs(loaded, corpus("it", "is", "one"), 2048, EncodingCounts())
    assert paired[0]["decoder_input_ids"].shape[1] < paired[0]["input_ids"].shape[1]
    for own in (*alone, *paired):
        assert model(**own).logits.isfinite().all()
        assert own["use_cache"] is False


def test_every_sentence_is_read(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded = LoadedModel("tiny", build("BertModel", len(wordpiece_tokenizer)), wordpiece_tokenizer, None)
    found = model_inputs(loaded, corpus(), 8, EncodingCounts())
    assert sum(len(own["input_ids"]) for own in found) == len(TEXTS)


def test_no_sentence_that_fits(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded = LoadedModel("tiny", build("BertModel", len(wordpiece_tokenizer)), wordpiece_tokenizer, None)
    for own in (Memory([]), Memory([Example(sentence("a " * 60 + "b"))])):
        with pytest.raises(CorpusError, match="memory has no sentence that tiny can read"):
            model_inputs(loaded, own, 2048, EncodingCounts())
