"""Files of weights as people have them, and weights of which transformers says nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from saved import Weights, build, rewrite, save, without
from transformers import PreTrainedModel

from headlens.errors import ModelError
from headlens.models.loading import load
from headlens.models.model_options import ModelOptions


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return Path(save(build("BertModel"), tmp_path / "bert"))


def refused(folder: Path | str, **options: Any) -> str:
    with pytest.raises(ModelError) as caught:
        load(str(folder), ModelOptions(**options))
    assert caught.value.advice
    return str(caught.value)


# --- Which files there are

OTHERS = {
    "model.fp16.safetensors": "This is a variant of the weights: copy it to model.safetensors",
    "model.int8.safetensors": "This is a variant of the weights",
    "model-00001-of-00002.safetensors": "fetch model.safetensors.index.json as well",
    "model.fp16-00001-of-00002.safetensors": "fetch model.safetensors.index.json as well",
    "consolidated.safetensors": "the original authors' format",
    "consolidated.00.pth": "the original authors' format",
    "weights.safetensors": "Rename it to model.safetensors",
    "tf_model.h5": "from_tf=True",
    "model.ckpt.index": "from_tf=True",
    "flax_model.msgpack": "from_flax=True",
    "model.onnx": "Give the checkpoint that it was made from",
    "model-Q4_K_M.gguf": "Give the checkpoint that it was made from",
    "openvino_model.bin": "Give the checkpoint that it was made from",
    "pytorch_model.fp16.bin": "copy it to pytorch_model.bin, and load it with --trust pickle",
    "model.pt": "Save the model again, with save_pretrained",
}


@pytest.mark.parametrize("file", OTHERS)
def test_weights_that_are_not_read_are_named(bert: Path, file: str) -> None:
    (bert / "model.safetensors").rename(bert / file)
    for allow_pickle in (False, True):
        said = refused(bert, allow_pickle=allow_pickle)
        assert f"has no weights that headlens reads; it has {file}." in said
        assert OTHERS[file] in said


@pytest.mark.parametrize("lost", [1, 2])
def test_a_shard_that_is_missing_is_named(tmp_path: Path, lost: int) -> None:
    build("BertModel").save_pretrained(tmp_path, max_shard_size="5KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    for shard in shards[:lost]:
        shard.unlink()
    names = ", ".join(shard.name for shard in shards[:lost])
    assert (
        f"of the {len(shards)} files of weights that model.safetensors.index.json names, {lost} cannot be found: "
        in (said := refused(tmp_path))
    )
    assert names in said


def test_shards_are_read(tmp_path: Path) -> None:
    model = build("BertModel")
    model.save_pretrained(tmp_path, max_shard_size="5KB")
    torch.testing.assert_close(load(str(tmp_path)).model.state_dict(), model.state_dict())


def test_whole_numbers_in_a_pickle(bert: Path) -> None:
    (bert / "model.safetensors").unlink()
    weights = {k: v.to(torch.int8) if "query" in k else v for k, v in build("BertModel").state_dict().items()}
    torch.save(weights, bert / "pytorch_model.bin")
    assert "4 weights of whole numbers" in refused(bert, allow_pickle=True)


# --- Weights that patterns of transformers hide


def added(name: str) -> Any:
    def add(weights: Weights) -> Weights:
        return weights | {name: torch.ones(2)}

    return add


HIDDEN = {
    "adapter": ("GPT2LMHeadModel", "transformer.h.0.attn.lora_attn.bias"),
    "without prefix": ("GPT2Model", "h.1.my_attn.bias"),
    "cross": ("GPT2LMHeadModel", "transformer.h.1.crossattention.biased"),
    "encoder": ("T5EncoderModel", "encoder.block.0.layer.0.decoder_adapter.weight"),
    "NeoX": ("GPTNeoXModel", "layers.0.attention.bias_gate.weight"),
}


@pytest.mark.parametrize("case", HIDDEN)
def test_a_pattern_of_transformers_hides_no_part_of_a_name(tmp_path: Path, case: str) -> None:
    kind, name = HIDDEN[case]
    assert f"cannot hold 1 weight of the checkpoint: {name}." in refused(
        rewrite(save(build(kind), tmp_path / "m"), added(name))
    )


def test_what_a_pattern_of_transformers_means_is_left_out_and_told_inside_the_model(tmp_path: Path) -> None:
    """Cross-attention of early T5 had a bias that none of later versions computes; all published T5 have it."""
    name = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    loaded = load(rewrite(save(build("T5Model"), tmp_path / "t5"), added(name)))
    assert loaded.notes == (f"1 weight is left out by a rule of transformers for this model: {name}.",)
    # The decoder is not inside an encoder that stands alone, and masks are constants.
    folder = save(build("T5Model"), tmp_path / "whole")
    assert load(rewrite(folder, lambda w: w, architectures=["T5EncoderModel"])).notes == ()
    folder = save(build("GPT2Model"), tmp_path / "gpt2")
    for name in ("h.0.attn.bias", "h.1.attn.masked_bias"):
        rewrite(folder, added(name))
    assert load(folder).notes == ()


# --- Decoders that earlier versions tied to their encoders


@pytest.mark.parametrize("kind", ["T5ForConditionalGeneration", "T5Model", "EncoderDecoderModel"])
def test_a_decoder_that_was_tied_to_its_encoder_is_named(tmp_path: Path, kind: str) -> None:
    if kind == "EncoderDecoderModel":
        from transformers import EncoderDecoderModel

        decoder = build("BertLMHeadModel", is_decoder=True, add_cross_attention=True)
        model: PreTrainedModel = EncoderDecoderModel(encoder=build("BertModel"), decoder=decoder)
    else:
        model = build(kind)
    folder = rewrite(save(model, tmp_path / "m"), without("decoder."), tie_encoder_decoder=True)
    assert "It ties decoder and encoder (tie_encoder_decoder), which transformers 5 does not" in refused(folder)


# --- Heads that transformers 4 cut out of one matrix


@pytest.mark.parametrize("kind", ["GPT2Model", "GPT2LMHeadModel"])
def test_pruned_heads_of_one_matrix_are_refused_for_that_reason(tmp_path: Path, kind: str) -> None:
    folder = rewrite(save(build(kind), tmp_path / "m"), lambda w: w, pruned_heads={"0": [1]})
    said = refused(folder)
    assert "(pruned_heads), which headlens cannot do in a GPT2Model: it finds no separate layers of queries" in said
    assert "before its heads were pruned" in said


# --- The commit of a model of the hub


@pytest.mark.parametrize(
    ("name", "option", "revision"),
    [
        ("somebody/tiny", None, None),
        ("somebody/tiny", "main", "main"),
        ("somebody/tiny", "v1", "v1"),
        ("somebody/tiny@v1", None, "v1"),
    ],
)
def test_the_commit_is_that_of_the_cache(
    bert: Path, monkeypatch: pytest.MonkeyPatch, name: str, option: str | None, revision: str | None
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    hub = bert.parent / "hub"
    repository = hub / "models--somebody--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / (revision or "main")).write_text(commit)
    (repository / "snapshots").mkdir()
    bert.rename(repository / "snapshots" / commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    loaded = load(name, ModelOptions(offline=True, revision=option))
    assert (loaded.name, loaded.revision) == (name, commit)


def test_a_folder_has_no_commit(bert: Path) -> None:
    assert load(str(bert)).revision is None
