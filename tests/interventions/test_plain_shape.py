"""Checkpoints without heads that transformers reads by itself, against the model with these heads gated to 0."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
import zoo
from tiers import rest_slow
from transformers import AutoModel, AutoModelForCausalLM, PreTrainedModel

from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.errors import ModelError, UnsupportedModelError
from headlens.heads import Head
from headlens.interventions.compacting import compact_model, refilled, removed_heads, save_compacted
from headlens.interventions.gates import HeadGates
from headlens.interventions.plain_shape import plain_settings
from headlens.models.loading import load
from headlens.weights.head_map import FILE, read_head_map

GROUPED = ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gpt-oss"]
# Of heads 0 and 1 the keys are the same, as of 2 and 3.
ONE_OF_EACH = {0: (0, 2), 1: (1, 3), 2: (1, 2)}
WHOLE_GROUPS = {0: (0, 1), 1: (2, 3), 2: (0, 1)}


def of_layers(numbers: dict[int, tuple[int, ...]]) -> list[Head]:
    return [Head("decoder", layer, head) for layer, heads in numbers.items() for head in heads]


def cut(name: str, heads: list[Head], folder: Path) -> tuple[PreTrainedModel, PreTrainedModel]:
    model = zoo.ZOO[name].build()
    small = copy.deepcopy(model)
    compact_model(small, heads)
    save_compacted(small, folder)
    return model, small


def logits(model: PreTrainedModel, name: str) -> torch.Tensor:
    """Those of single texts: what stands at padding is nobody's."""
    with torch.no_grad():
        return torch.cat([model(**row)[0][0] for row in zoo.unpadded(zoo.ZOO[name])])


@pytest.mark.parametrize("name", rest_slow([*GROUPED, "phi"], ["llama", "mistral", "qwen2", "qwen3", "gemma2"]))
@pytest.mark.parametrize(
    ("numbers", "key_heads"), [(ONE_OF_EACH, 2), (WHOLE_GROUPS, 1)], ids=["of each group", "whole groups"]
)
def test_plain_transformers_reads_even_models(
    name: str, numbers: dict[int, tuple[int, ...]], key_heads: int, tmp_path: Path
) -> None:
    heads = of_layers(numbers)
    model, _ = cut(name, heads, tmp_path)
    kind = AutoModelForCausalLM if zoo.ZOO[name].model.endswith("ForCausalLM") else AutoModel
    plain, report = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    with AttentionSession(model, edits=[HeadGates(dict.fromkeys(heads, 0.0))]):
        expected = logits(model, name)
    assert (logits(plain.eval(), name) - expected).abs().max() <= 1e-5
    assert (logits(model, name) - expected).abs().max() > 1e-3
    written = json.loads((tmp_path / "config.json").read_text())
    assert (written["num_attention_heads"], written["head_dim"]) == (2, 8)
    # Phi shares no keys: of four heads of keys two are left.
    assert written["num_key_value_heads"] == (2 if name == "phi" else key_heads)
    assert plain.num_parameters() < model.num_parameters()


def test_headlens_reads_them_with_the_numbers_of_the_original(tmp_path: Path) -> None:
    heads = of_layers(ONE_OF_EACH)
    model, _ = cut("llama", heads, tmp_path / "even")
    loaded = load(str(tmp_path / "even")).model
    assert removed_heads(loaded) == heads
    assert [h for s in find_sites(loaded) for h in s.heads] == [
        h for s in find_sites(model) for h in s.heads if h not in heads
    ]
    assert (loaded.config.num_attention_heads, loaded.config.num_key_value_heads) == (4, 2)
    with AttentionSession(model, edits=[HeadGates(dict.fromkeys(heads, 0.0))]):
        expected = logits(model, "llama")
    assert (logits(loaded, "llama") - expected).abs().max() <= 1e-5
    # Losing more heads, and getting them all back as zeros, start from the shape of the original.
    again = copy.deepcopy(loaded)
    compact_model(again, [Head("decoder", 0, 1), Head("decoder", 0, 3)])
    save_compacted(again, tmp_path / "uneven")
    assert json.loads((tmp_path / "uneven" / "config.json").read_text())["num_attention_heads"] == 4
    save_compacted(refilled(loaded), tmp_path / "stock")
    assert not (tmp_path / "stock" / FILE).exists()
    stock = AutoModelForCausalLM.from_pretrained(tmp_path / "stock").eval()
    assert stock.num_parameters() == model.num_parameters()
    assert (logits(stock, "llama") - expected).abs().max() <= 1e-5


def test_uneven_models_are_for_headlens_alone(tmp_path: Path) -> None:
    heads = of_layers({0: (0, 2), 1: (0, 1)})
    model, small = cut("llama", heads, tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"decoder.1 2 on 1 heads of keys, decoder.2 4 on 2 heads of keys"):
        plain_settings(small)
    with pytest.raises(RuntimeError, match=r"size mismatch|ignore_mismatched_sizes"):
        AutoModelForCausalLM.from_pretrained(tmp_path)
    with AttentionSession(model, edits=[HeadGates(dict.fromkeys(heads, 0.0))]):
        expected = logits(model, "llama")
    assert (logits(load(str(tmp_path)).model, "llama") - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("name", ["gpt2", "opt", "bert"])
def test_heads_of_width_over_heads_are_refused(name: str) -> None:
    model = zoo.ZOO[name].build()
    compact_model(model, [h for s in find_sites(model) for h in s.heads if h.head < 2])
    with pytest.raises(UnsupportedModelError, match=r"with 2 heads of 8 features in each layer: .* shape"):
        plain_settings(model)


def test_numbers_that_transformers_refuses() -> None:
    """Llama's configuration asks for a width that the number of heads divides, whatever the size of a head."""
    model = zoo.ZOO["llama"].build(num_key_value_heads=4)
    compact_model(model, of_layers({0: (1,), 1: (2,), 2: (0,)}))
    with pytest.raises(UnsupportedModelError, match=r"hidden size \(32\) is not a multiple .* \(3\)") as refused:
        plain_settings(model)
    assert "Some numbers of heads may be possible" in str(refused.value)
    mistral = zoo.ZOO["mistral"].build(num_key_value_heads=4)
    compact_model(mistral, of_layers({0: (1,), 1: (2,), 2: (0,)}))
    assert plain_settings(mistral) == {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 8}


def test_models_with_all_heads_and_with_silent_ones() -> None:
    assert plain_settings(zoo.ZOO["llama"].build()) == {}
    albert = zoo.ZOO["albert"].build()
    compact_model(albert, [Head("encoder", layer, 0) for layer in range(4)] + [Head("encoder", 1, 2)])
    with pytest.raises(UnsupportedModelError, match="silent or scaled at some depths"):
        plain_settings(albert)


@pytest.mark.parametrize("config", [[4], {"hidden_size": 4}, {"num_attention_heads": -1}, {"num_attention_heads": "4"}])
def test_damaged_counts_of_the_original(config: object, tmp_path: Path) -> None:
    cut("llama", of_layers(ONE_OF_EACH), tmp_path)
    content = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps(content | {"config": config}))
    with pytest.raises(ModelError, match="not numbers of heads by name"):
        read_head_map(tmp_path)
