"""Models with weights of 8 or 4 bits, or elsewhere: read as what they compute, refused where weights are needed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from saved import build, save
from tiers import rest_slow
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedTokenizerBase

import headlens
from headlens.errors import ModelError, OptionError
from headlens.models.given_models import is_offloaded, is_quantised
from headlens.models.loading import LoadedModel, load
from headlens.models.model_options import ModelOptions
from headlens.models.names import short_model_name

TEXTS = ["The cats sleep on the old table.", "She took the cat, and no rain.", "A long day for all of them."]
Headlens = Callable[..., Any]


@pytest.fixture
def llama(bytebpe_tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> str:
    model = build(
        "LlamaForCausalLM", len(bytebpe_tokenizer), hidden_size=64, intermediate_size=64, max_position_embeddings=256
    )
    save(model, tmp_path / "llama", bytebpe_tokenizer)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS * 4) + "\n", encoding="utf-8")
    return str(tmp_path / "llama")


@pytest.mark.parametrize("bits", rest_slow(["4bit", "8bit"]))
def test_heads_are_those_of_the_weights_that_are_computed_with(
    llama: str, tmp_path: Path, bytebpe_tokenizer: PreTrainedTokenizerBase, bits: str
) -> None:
    quantised = load(llama, ModelOptions(quantize=bits))  # type: ignore[arg-type]
    assert is_quantised(quantised.model)
    assert short_model_name(quantised.name) == "llama"
    whole = AutoModelForCausalLM.from_pretrained(
        llama, quantization_config=BitsAndBytesConfig(**{f"load_in_{bits}": True}), device_map={"": "cpu"}
    )
    whole = whole.dequantize().float().eval()
    given = LoadedModel("llama", whole, bytebpe_tokenizer, None)
    text = str(tmp_path / "texts.txt")
    heads = [headlens.classify(model, corpus=text, frequency="none").tables["heads"] for model in (quantised, given)]
    plain = headlens.classify(llama, corpus=text, frequency="none").tables["heads"]
    for name in ("confidence", "entropy", "to_first"):
        # Products are rounded, too: to 16 bits, or what goes into a layer to 8.
        rounded, changed = ((heads[0][name] - other[name]).abs().max() for other in (heads[1], plain))
        assert changed > 1e-4, "it is another model"
        assert rounded < (changed / 4 if bits == "4bit" else 2e-3), name


@pytest.mark.slow
@pytest.mark.parametrize("bits", ["4bit", "8bit"])
def test_commands_that_only_read_and_others(headlens: Headlens, llama: str, tmp_path: Path, bits: str) -> None:
    few = ("--model-args", f"quantize={bits}", "--quiet", "--out", "run", "--overwrite")
    data = ("--data", tmp_path / "texts.txt", "--replicates", 100, "--no-figures")
    for command in (
        ("attend", llama, "The cats sleep."),
        ("ablate", llama, *data),
        ("ablate", llama, *data, "--mode", "mean"),
        ("probe", llama, "--limit", 20, "--replicates", 100, "--no-figures"),
    ):
        done = headlens(*command, *few)
        assert done.code == 0, done.err
    tables = []
    for tokens in (32, 512):
        assert headlens("ablate", llama, *data, *few, "--batch-tokens", tokens).code == 0
        tables.append(pd.read_csv("run/ablation.csv")["value"])
    np.testing.assert_allclose(*tables, rtol=1e-4)
    for command in (
        ("relevance", llama, "--corpus", tmp_path / "texts.txt"),
        ("classify", llama, "--corpus", tmp_path / "texts.txt", "--relevance"),
        ("ablate", llama, *data, "--prune", 1),
        ("prune", llama, "--data", tmp_path / "texts.txt"),
        ("compact", llama, "--heads", "decoder.0.0"),
        ("train", llama, "--corpus", tmp_path / "texts.txt"),
    ):
        refused = headlens(*command, *few)
        assert refused.code == 2, command
        assert "and others are quantised; this needs weights of 16 or 32 bits" in refused.err
    assert headlens("classify", llama, "--corpus", tmp_path / "texts.txt", *few[:2], "--out", "c").out.endswith(
        f"or headlens attend {llama} 'A sentence of yours.' --model-args quantize={bits}\n"
    )


def test_what_cannot_be_quantised(llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(OptionError, match=r"(?s)needs bitsandbytes.*pip install bitsandbytes"):
        load(llama, ModelOptions(quantize="8bit"))


@pytest.mark.slow
def test_a_quantised_checkpoint_is_read_as_it_is(llama: str, tmp_path: Path) -> None:
    config = BitsAndBytesConfig(load_in_4bit=True)
    model = AutoModelForCausalLM.from_pretrained(llama, quantization_config=config, device_map={"": "cpu"})
    model.save_pretrained(tmp_path / "small")
    for file in Path(llama).glob("tokenizer*"):
        (tmp_path / "small" / file.name).write_bytes(file.read_bytes())
    small = str(tmp_path / "small")
    text = str(tmp_path / "texts.txt")
    stored, made = (
        headlens.classify(name, corpus=text, frequency="none", **more).tables["heads"]
        for name, more in ((small, {}), (llama, {"quantize": "4bit"}))
    )
    np.testing.assert_allclose(stored["entropy"], made["entropy"], atol=1e-6)
    with pytest.raises(OptionError, match="is quantised already"):
        load(small, ModelOptions(quantize="4bit"))
    with pytest.raises(ModelError, match="this needs weights of 16 or 32 bits"):
        headlens.relevance(small, corpus=text)


def test_an_offloaded_model_gives_the_numbers_of_a_whole_one(llama: str, tmp_path: Path) -> None:
    """Of two layers one lies on the disk: accelerate fetches its weights as it runs."""
    held = dict.fromkeys(("model.embed_tokens", "model.rotary_emb", "model.norm", "lm_head"), "cpu")
    places = {**held, "model.layers.0": "cpu", "model.layers.1": "disk"}
    model = AutoModelForCausalLM.from_pretrained(llama, device_map=places, offload_folder=str(tmp_path / "away"))
    assert is_offloaded(model)
    tokenizer = load(llama).tokenizer
    assert LoadedModel(llama, model, tokenizer, None).weight_hash == load(llama).weight_hash, "weight by weight"
    given, text = (model.eval(), load(llama).tokenizer), tmp_path / "texts.txt"
    calls: list[Callable[[Any], pd.DataFrame]] = [
        lambda one: headlens.classify(one, corpus=str(text), frequency="none").tables["heads"],
        lambda one: headlens.ablate(one, "causal-lm", data=str(text), replicates=100).tables["ablation"],
    ]
    for call in calls:
        away, whole = call(given), call(llama)
        numbers = [name for name in whole.select_dtypes("number") if "norm" not in name and name != "idle"]
        pd.testing.assert_frame_equal(away[numbers], whole[numbers])
    with pytest.raises(ModelError, match="some of its weights are offloaded; this needs all of them in one place"):
        headlens.relevance(given, corpus=str(text))


def test_what_does_not_fit_is_offloaded(
    headlens: Headlens, llama: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(file.stat().st_size for file in Path(llama).glob("*.safetensors"))
    offload = ("--model-args", "device-map=auto", "--quiet", "--no-figures", "--overwrite", "--out", "run")
    text = ("--corpus", tmp_path / "texts.txt", "--frequency", "none")
    assert headlens("classify", llama, *text, *offload[2:]).code == 0
    whole = pd.read_csv("run/heads.csv")
    monkeypatch.setattr("accelerate.utils.modeling.get_max_memory", lambda *_: {"cpu": int(0.8 * size)})
    monkeypatch.setattr("transformers.integrations.accelerate.get_max_memory", lambda *_: {"cpu": int(0.8 * size)})
    done = headlens("classify", llama, *text, *offload)
    assert done.code == 0, done.err
    away = pd.read_csv("run/heads.csv")
    assert away["norm_share"].isna().any(), "that layer is elsewhere"
    np.testing.assert_array_equal(away["entropy"], whole["entropy"])
    refused = headlens("prune", llama, "--data", tmp_path / "texts.txt", *offload)
    assert (refused.code, "some of its weights are offloaded" in refused.err) == (2, True)
    monkeypatch.undo()
    monkeypatch.setattr("headlens.models.loading.free_memory", lambda _: 1000)
    assert "--model-args device-map=auto" in headlens("classify", llama, *text).err
