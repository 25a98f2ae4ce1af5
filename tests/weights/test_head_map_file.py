"""Models without some of their heads, saved and loaded; and the damage that can be done to their map."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import transformers
import zoo
from saved import save
from tiers import rest_slow
from torch import Tensor
from transformers import PreTrainedModel

from headlens.attention.sites import find_sites
from headlens.errors import ModelError
from headlens.heads import Head
from headlens.interventions.compacting import compact_model, heads_of_model, refilled, save_compacted
from headlens.models.loading import load
from headlens.models.model_options import ModelOptions
from headlens.weights.head_map import FILE, as_json, read_head_map

NAMES = ["bert", "bert-classifier", "roberta", "distilbert", "electra", "bart", "marian", "albert", "albert-mlm"]
Change = Callable[[dict[str, Any]], object]


@cache
def whole(name: str) -> PreTrainedModel:
    """A model as it is read from a folder, which no test changes: Marian's positions are no weights, but computed."""
    with TemporaryDirectory() as folder:
        return load(save(zoo.ZOO[name].build("sdpa"), Path(folder))).model


def small(name: str) -> PreTrainedModel:
    """A model that lost a head everywhere, and a layer or two of its stacks; ALBERT has masks."""
    model = copy.deepcopy(whole(name))
    lost = [s for s in find_sites(model) if s.layer < 2 and s.stack == "encoder"]
    compact_model(model, [h for s in find_sites(model) for h in s.heads if h.head == 1 or s in lost])
    return model


def written(model: PreTrainedModel, folder: Path) -> str:
    save_compacted(model, folder)
    return str(folder)


def output(model: PreTrainedModel, name: str) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(**zoo.padded(zoo.ZOO[name]))[0]
    return found


@pytest.mark.parametrize("name", rest_slow(NAMES, ["bert-classifier", "distilbert", "marian", "albert"]))
def test_what_is_loaded_is_what_was_saved(name: str, tmp_path: Path) -> None:
    model = small(name)
    found = load(written(model, tmp_path / name)).model
    assert type(found) is type(model)
    assert heads_of_model(found) == heads_of_model(model)
    saved, kept = model.state_dict(), found.state_dict()
    assert saved.keys() == kept.keys()
    assert all(torch.equal(saved[key], kept[key]) for key in saved)
    # Where the same weights lie in memory may change the last bit.
    torch.testing.assert_close(output(found, name), output(model, name), rtol=1e-6, atol=1e-6)
    assert not torch.allclose(output(found, name), output(whole(name), name), atol=1e-2)


def test_masks_are_kept(tmp_path: Path) -> None:
    model = zoo.ZOO["albert"].build("sdpa")
    heads = [Head("encoder", i, 1) for i in range(4)] + [Head("encoder", 2, 3)]
    compact_model(model, heads)
    found = load(written(model, tmp_path / "albert")).model
    assert heads_of_model(found).masked == [Head("encoder", 2, 3)]
    assert torch.equal(output(found, "albert"), output(model, "albert"))
    compact_model(found, [Head("encoder", i, 3) for i in range(4)])
    compact_model(model, [Head("encoder", i, 3) for i in range(4)])
    assert heads_of_model(found).masked == []
    again = load(written(found, tmp_path / "again")).model
    assert torch.equal(output(again, "albert"), output(model, "albert"))


@pytest.mark.parametrize("name", ["bert", "albert", "marian"])
def test_plain_from_pretrained_refuses_instead_of_reading_something_else(name: str, tmp_path: Path) -> None:
    model = small(name)
    folder = written(model, tmp_path / name)
    transformers.logging.set_verbosity_error()
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        type(model).from_pretrained(folder)


@pytest.mark.parametrize("name", ["bert", "marian"])
def test_refilled_models_are_read_by_plain_from_pretrained(name: str, tmp_path: Path) -> None:
    model = small(name)
    expected = output(model, name)
    folder = save(refilled(copy.deepcopy(model)), tmp_path / name)
    torch.testing.assert_close(output(type(model).from_pretrained(folder).eval(), name), expected, atol=1e-5, rtol=0)


def test_types_and_shards(tmp_path: Path) -> None:
    model = small("bert")
    transformers.logging.disable_progress_bar()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    transformers.logging.enable_progress_bar()
    (tmp_path / FILE).write_text(json.dumps(as_json(heads_of_model(model))))
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert torch.equal(output(load(str(tmp_path)).model, "bert"), output(model, "bert"))
    half = load(str(tmp_path), ModelOptions(dtype="bfloat16")).model
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}


def test_decoders_generate_the_same_with_and_without_a_cache(tmp_path: Path) -> None:
    """Also where a layer of the decoder, its first one apart, has no heads."""
    model = copy.deepcopy(whole("marian"))
    lost = [s for s in find_sites(model) if s.layer == 1]
    compact_model(model, [h for s in lost for h in s.heads])
    found = load(written(model, tmp_path / "marian")).model
    source = zoo.padded(zoo.ZOO["marian"])
    inputs = {k: source[k] for k in ("input_ids", "attention_mask")}
    for beams in (1, 3):
        texts = [found.generate(**inputs, max_new_tokens=8, num_beams=beams, use_cache=use) for use in (True, False)]
        assert torch.equal(*texts)


@pytest.mark.parametrize("name", ["marian", "bert-cross-decoder"])
def test_a_cache_that_could_not_count_is_off_and_refused(name: str, tmp_path: Path) -> None:
    model = copy.deepcopy(whole(name))
    compact_model(model, next(s for s in find_sites(model) if s.stack == "decoder").heads)
    found = load(written(model, tmp_path / name)).model
    assert found.config.use_cache is False
    source = zoo.padded(zoo.ZOO[name])
    inputs = {k: source[k] for k in ("input_ids", "attention_mask", "encoder_hidden_states") if k in source}
    if name == "marian":
        assert torch.equal(*(m.generate(**inputs, max_new_tokens=8) for m in (found, model)))
    with pytest.raises(
        ModelError, match=r"no heads left, so a key-value cache could not keep track.*\n.*use_cache=False"
    ):
        found(**{**source, "use_cache": True})
    refilled(found)
    assert found.config.use_cache is True
    found(**{**source, "use_cache": True})


def first(content: dict[str, Any]) -> dict[str, Any]:
    site: dict[str, Any] = content["sites"][0]
    return site


DAMAGE: dict[str, tuple[Change, str]] = {
    "another format": (lambda c: c.update(format="x"), "is not a head map of headlens"),
    "a newer version": (lambda c: c.update(version=2), "is of version 2.*\nUpdate headlens"),
    "no sites": (lambda c: c.update(sites=[]), "has no sites"),
    "sites of another kind": (lambda c: c.update(sites=["x"]), "site 0 does not have the keys stack, layer"),
    "a key less": (lambda c: first(c).pop("masked"), "site 0 does not have the keys"),
    "a key more": (lambda c: first(c).update(further=1), "site 0 does not have the keys"),
    "unknown stack": (lambda c: first(c).update(stack="side"), "site 0 does not say which layer"),
    "layer that is no number": (lambda c: first(c).update(layer="0"), "site 0 does not say which layer"),
    "heads that are true": (lambda c: first(c).update(heads=True), "site 0 does not say which layer"),
    "head too large": (lambda c: first(c).update(left=[0, 4]), r"left is \[0, 4\], not ascending"),
    "heads twice": (lambda c: first(c).update(left=[2, 2]), "not ascending"),
    "heads in disorder": (lambda c: first(c).update(left=[2, 0]), "not ascending"),
    "heads of text": (lambda c: first(c).update(left="02"), "not ascending"),
    "masked, but gone": (lambda c: first(c).update(masked=[1]), "masked is .*not ascending"),
    "a layer twice": (lambda c: c["sites"].append(first(c)), "lists a layer twice"),
    "lists that lie": (lambda c: c.update(removed=["encoder.0.0"]), "contradict its sites"),
    "unknown module": (lambda c: first(c).update(module="encoder.x"), "names encoder.x, which BertModel does not have"),
    "module of another kind": (lambda c: first(c).update(module="embeddings"), "cannot be cut out"),
}


@pytest.fixture(scope="module")
def small_bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder to be copied."""
    return written(small("bert"), tmp_path_factory.mktemp("maps") / "bert")


@pytest.mark.parametrize(("change", "message"), DAMAGE.values(), ids=list(DAMAGE))
def test_damaged_maps(change: Change, message: str, small_bert: str, tmp_path: Path) -> None:
    folder = shutil.copytree(small_bert, tmp_path / "bert")
    path = Path(folder, FILE)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ModelError, match=message) as caught:
        load(str(folder))
    assert caught.value.advice


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "\xff"])
def test_files_that_are_no_map(text: str, small_bert: str, tmp_path: Path) -> None:
    folder = str(shutil.copytree(small_bert, tmp_path / "bert"))
    Path(folder, FILE).write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError, match=rf"{FILE} (cannot be read|is not a head map)"):
        load(folder)


def test_the_map_of_another_model(tmp_path: Path) -> None:
    folder = written(small("bert"), tmp_path / "bert")
    other = zoo.ZOO["bert"].build(num_attention_heads=8)
    compact_model(other, [Head("encoder", 0, 7)])
    Path(folder, FILE).write_text(json.dumps(as_json(heads_of_model(other))))
    with pytest.raises(ModelError, match=r"had 8 heads; by its config.json it has 4"):
        load(folder)
    same = zoo.ZOO["bert"].build()
    compact_model(same, [Head("encoder", 0, 0)])
    Path(folder, FILE).write_text(json.dumps(as_json(heads_of_model(same))))
    with pytest.raises(ModelError, match=f"other shapes than its config.json and {FILE} say"):
        load(folder)


def test_depths_that_share_weights_have_the_same_heads(tmp_path: Path) -> None:
    folder = written(small("albert"), tmp_path / "albert")
    content = json.loads(Path(folder, FILE).read_text())
    content["sites"][1]["left"] = [2]
    content["sites"][1]["masked"] = []
    Path(folder, FILE).write_text(json.dumps(content))
    with pytest.raises(ModelError, match="depths that share their weights differ"):
        load(folder)


def test_a_class_that_is_not_named(tmp_path: Path) -> None:
    folder = written(small("bert"), tmp_path / "bert")
    config = Path(folder, "config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": None}))
    with pytest.raises(ModelError, match=r"config.json names no class of transformers"):
        load(folder)


def test_folders_without_a_map_have_all_heads(tmp_path: Path) -> None:
    assert read_head_map(tmp_path) is None
    assert heads_of_model(load(save(zoo.ZOO["bert"].build(), tmp_path / "bert")).model).removed == []


def test_what_is_written_reads_the_same(tmp_path: Path) -> None:
    model = small("marian")
    folder = written(model, tmp_path / "marian")
    assert read_head_map(Path(folder)) == heads_of_model(model)
    content = json.loads(Path(folder, FILE).read_text())
    assert content["removed"] == [str(h) for h in heads_of_model(model).removed]
    assert first(content) == {
        "stack": "encoder",
        "layer": 0,
        "module": "model.encoder.layers.0.self_attn",
        "heads": 4,
        "left": [],
        "masked": [],
    }


def test_whole_models_are_saved_without_a_map(tmp_path: Path) -> None:
    assert not Path(written(zoo.ZOO["gpt2"].build(), tmp_path), FILE).exists()


def test_a_model_that_is_trained_further_stays_small(tmp_path: Path) -> None:
    model = small("bert")
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    model(**zoo.padded(zoo.ZOO["bert"]))[0].square().mean().backward()
    optimizer.step()
    found = load(written(model, tmp_path)).model
    assert torch.equal(output(found, "bert"), output(model, "bert"))
    assert not torch.allclose(output(found, "bert"), output(small("bert"), "bert"))


def test_masks_tell_weights_apart(tmp_path: Path) -> None:
    """Interrupted runs go on only with the same model, whose weights may differ in their masks alone."""
    hashes = set()
    for number in (2, 3):
        model = zoo.ZOO["albert"].build()
        compact_model(model, [*(Head("encoder", i, 0) for i in range(4)), Head("encoder", 1, number)])
        hashes.add(load(written(model, tmp_path / str(number))).weight_hash)
    assert len(hashes) == 2
