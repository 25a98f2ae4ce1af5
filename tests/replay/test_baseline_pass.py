"""Replays of models that lost heads, against full passes of the original with these heads gated, too."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import zoo
from tiers import rest_slow
from torch import Tensor
from transformers import PreTrainedModel

from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.heads import Head
from headlens.interventions.compacting import compact_model, with_folded_gates
from headlens.interventions.gates import HeadGates
from headlens.replay.head_ablation import Replay, close
from headlens.replay.modes import Mode
from headlens.replay.nested_tensors import tensors
from headlens.weights.shared_layer_masks import silent_heads

KERNELS = ["eager", "sdpa"]
ALBERTS = ["albert", "albert-groups", "albert-inner", "AlbertForSequenceClassification"]
FAMILIES = ["bert", "bert-classifier", "roberta", "distilbert", "electra", "bart", "marian", "m2m100"]


def doubled(name: str, kernel: str) -> tuple[PreTrainedModel, dict[str, Any]]:
    return zoo.ZOO[name].build(kernel).double(), zoo.padded(zoo.ZOO[name])


def lost(model: PreTrainedModel, layer: int) -> list[Head]:
    """One head of every layer, and every head of one layer in each stack."""
    return [h for s in find_sites(model) for h in s.heads if h.head == 1 or s.layer == layer]


def full(model: PreTrainedModel, inputs: dict[str, Any], gone: set[Head]) -> Any:
    cache = {} if all(s.stack == "encoder" for s in find_sites(model)) else {"use_cache": False}
    with AttentionSession(model, edits=[HeadGates(dict.fromkeys(gone, 0.0))]), torch.no_grad():
        return model(**{**inputs, **cache})


def assert_same(ours: Any, theirs: Any) -> None:
    for own, other in zip(tensors(ours), tensors(theirs), strict=True):
        assert own.shape == other.shape
        assert float((own - other).abs().max()) <= 1e-10 * float(other.abs().max())


def compare(
    model: PreTrainedModel, small: PreTrainedModel, gone: set[Head], mode: Mode, inputs: dict[str, Any]
) -> None:
    """Every head that is left, by the number it has in the original."""
    with Replay(small, mode, tokens=50) as replay:
        intact = replay.run(inputs)
        found = list(intact.variants())
    assert_same(intact.outputs, full(model, inputs, gone))
    assert [v.head for v in found] == [h for s in find_sites(small) for h in s.heads]
    for variant in found:
        layer = {h for s in find_sites(model) for h in s.heads if h[:2] == variant.head[:2]}
        without = {variant.head} if mode == "zero" else layer - {variant.head}
        assert_same(variant.outputs, full(model, inputs, gone | without))


@pytest.mark.parametrize("kernel", rest_slow(KERNELS, ["sdpa"]))
@pytest.mark.parametrize("mode", rest_slow(["zero", "keep-only"], ("keep-only",)))
@pytest.mark.parametrize("layer", rest_slow([0, 1, 2], [1]))
@pytest.mark.parametrize("name", rest_slow(FAMILIES, zoo.REPRESENTATIVES))
def test_heads_of_compacted_models(name: str, layer: int, mode: Mode, kernel: str) -> None:
    model, inputs = doubled(name, kernel)
    small, gone = copy.deepcopy(model), lost(model, layer)
    compact_model(small, gone)
    assert any(s.n_heads == 0 for s in find_sites(small)) == any(s.layer == layer for s in find_sites(model))
    compare(model, small, set(gone), mode, inputs)


@pytest.mark.parametrize("kernel", rest_slow(KERNELS, ["sdpa"]))
@pytest.mark.parametrize("mode", rest_slow(["zero", "keep-only"], ("keep-only",)))
@pytest.mark.parametrize("name", rest_slow(ALBERTS, ["albert-inner"]))
def test_heads_that_shared_weights_mask_at_their_depth(name: str, mode: Mode, kernel: str) -> None:
    entry = zoo.ZOO.get(name) or zoo.Entry(name, "AlbertConfig", "encoder", zoo.ALBERT)
    model, inputs = entry.build(kernel).double(), zoo.padded(entry)
    gone = [*lost(model, 1), Head("encoder", 0, 2), Head("encoder", 3, 0)]
    small = copy.deepcopy(model)
    compact_model(small, gone)
    assert any(silent_heads(small))
    compare(model, small, set(gone), mode, inputs)


@pytest.mark.parametrize("kernel", rest_slow(KERNELS, ["sdpa"]))
@pytest.mark.parametrize("mode", rest_slow(["zero", "keep-only"], ("keep-only",)))
def test_heads_that_shared_weights_scale_at_their_depth(mode: Mode, kernel: str) -> None:
    """A sweep of the model with factors is one of the model with gates."""
    model, inputs = zoo.ZOO["albert"].build(kernel).double(), zoo.padded(zoo.ZOO["albert"])
    sites = find_sites(model)
    gates = {h: 0.25 + 0.125 * i for i, h in enumerate(sites[1].heads)} | {
        sites[0].heads[2]: 0.5,
        sites[2].heads[0]: 0.0,
    }
    scaled = with_folded_gates(model, gates)
    with Replay(scaled, mode) as replay:
        for variant in replay.run(inputs).variants():
            site = next(s for s in sites if variant.head in s.heads)
            alone = mode == "keep-only"
            gone = [h for h in site.heads if (h == variant.head) != alone]
            with AttentionSession(model, edits=[HeadGates(gates | dict.fromkeys(gone, 0.0))]), torch.no_grad():
                assert_same(variant.outputs, model(**inputs))


@pytest.mark.parametrize("kernel", rest_slow(KERNELS, ["sdpa"]))
@pytest.mark.parametrize("name", rest_slow(["bert-classifier", "albert"], ["albert"]))
def test_uniform_attention_in_models_that_lost_heads(name: str, kernel: str) -> None:
    """A head whose queries are 0 scores all keys alike."""
    model, inputs = doubled(name, kernel)
    small, gone = copy.deepcopy(model), set(lost(model, 1))
    compact_model(small, gone)
    with Replay(small, "uniform") as replay:
        found = {v.head: v.outputs for v in replay.run(inputs).variants()}
    for site in find_sites(model):
        if site.shared:
            # Queries of one depth alone cannot be made 0; what is silent stays silent.
            for head in gone.intersection(found):
                assert_same(found[head], full(model, inputs, gone))
            continue
        for head in gone.symmetric_difference(site.heads).intersection(found, site.heads):
            even = copy.deepcopy(model)
            query: Any = even.get_submodule(site.module).query
            with torch.no_grad():
                for parameter in (query.weight, query.bias):
                    parameter.unflatten(0, (site.n_heads, -1))[head.head] = 0
            assert_same(found[head], full(even, inputs, gone))


def test_means_of_what_is_left() -> None:
    model, inputs = doubled("bert", "sdpa")
    small, gone = copy.deepcopy(model), set(lost(model, 1))
    compact_model(small, gone)
    nothing: dict[Any, Tensor] = {s: torch.zeros(s.n_heads, 8) for s in find_sites(small)}
    with Replay(small, "mean", nothing) as replay:
        for variant in replay.run(inputs).variants():
            assert_same(variant.outputs, full(model, inputs, gone | {variant.head}))


@pytest.mark.parametrize(
    ("dtype", "difference", "expected"),
    [
        (torch.float64, 1e-10, True),
        (torch.float64, 1e-9, False),
        (torch.float32, 5e-5, True),
        (torch.float32, 1e-4, False),
        (torch.bfloat16, 0.08, True),
        (torch.bfloat16, 0.1, False),
        (torch.float16, 0.03, True),
        (torch.float16, 0.04, False),
    ],
)
def test_rounding_is_measured_by_what_outputs_are_like(dtype: torch.dtype, difference: float, expected: bool) -> None:
    small = torch.zeros(2, dtype=dtype)
    assert close(small + difference, small, 1.0) is expected
    assert close(small + difference, small, difference / 100) is False
    assert close(small[:0], small[:0], 0.0)


def test_logits_near_zero_in_half_precision() -> None:
    """One example whose logits cancel is not a replay gone wrong: others show what logits are like."""
    model = zoo.ZOO["bert-classifier"].build().bfloat16()
    batches = [zoo.padded(zoo.ZOO["bert-classifier"]), *zoo.unpadded(zoo.ZOO["bert-classifier"])]
    with torch.no_grad():
        first = model(**batches[1]).logits[0]
        model.classifier.bias -= first  # the first example's logits are all but 0
    with Replay(model) as replay:
        for inputs in batches * 3:
            replay.run(inputs)
        with torch.no_grad():
            assert replay.largest[0] >= float(model(**batches[0]).logits.abs().max())
