"""Gates in the weights: the same outputs as with gates, and the same again after saving and loading."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import zoo
from saved import build, save
from spread_gates import spread
from watching import run

from headlens.attention.sites import find_sites
from headlens.errors import ModelError, OptionError, UnsupportedModelError
from headlens.heads import Head
from headlens.interventions.compacting import compact_model, heads_of_model, refilled, save_compacted
from headlens.interventions.fold_gates import with_folded_gates
from headlens.interventions.stochastic_gates import GatedModel, StochasticGates, gated_sites
from headlens.models.loading import LoadedModel, load
from headlens.weights.head_map_file import FILE

MODELS = ["bert", "albert", "albert-groups", "albert-unshared", "roberta", "distilbert", "marian", "bart"]


def close(one: torch.Tensor, two: torch.Tensor) -> None:
    torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5 * float(two.abs().max()))


@pytest.mark.parametrize("keep_shape", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_folded_is_gated(name: str, keep_shape: bool) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(), zoo.padded(entry)
    gates = spread(StochasticGates(gated_sites(model)))
    with GatedModel(model, gates).eval().opened():
        expected = run(model, inputs)
    plain = run(model, inputs)
    folded = with_folded_gates(model, gates.values(), keep_shape=keep_shape)
    close(run(folded, inputs), expected)
    assert torch.equal(run(model, inputs), plain)
    if not keep_shape:
        assert set(heads_of_model(folded).removed) == set(gates.closed())


@pytest.mark.parametrize("keep_shape", [False, True])
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
    with GatedModel(model, gates).eval().opened():
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
    with GatedModel(once, gates).eval().opened():
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
    with pytest.raises(OptionError, match="other factors at other depths"):
        refilled(model)


def test_heads_that_cannot_be_folded() -> None:
    with pytest.raises(UnsupportedModelError, match="cannot be cut out"):
        with_folded_gates(zoo.ZOO["gpt2"].build(), {})


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
