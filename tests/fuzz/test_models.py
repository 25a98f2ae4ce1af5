"""Damaged checkpoints: a model that still runs, or a refusal; never a crash, and never hours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzz.damage import blows, damaged, damaged_json, fuzzing, told
from hypothesis import given
from hypothesis import strategies as st
from saved import Memory, build, save, tree
from tiers import rest_slow
from weights.test_head_map_file import small, written

from headlens.corpora.sentence import Example
from headlens.errors import InputError
from headlens.models.loading import load
from headlens.roles.head_roles import classify_heads
from headlens.weights.head_map import FILE, read_head_map

KINDS = ["BertModel", "AlbertModel", "GPT2LMHeadModel", "BartForConditionalGeneration"]


@pytest.fixture(scope="module", params=rest_slow(KINDS, ["BartForConditionalGeneration"]))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: Any, wordpiece_tokenizer: Any) -> Path:
    folder = tmp_path_factory.mktemp("fuzzed") / "model"
    save(build(request.param, vocabulary=len(wordpiece_tokenizer)), folder, wordpiece_tokenizer)
    return folder


def used(folder: Path) -> Any:
    """Loads a model and measures its heads, as commands do."""
    loaded = load(str(folder))
    corpus = Memory([Example(tree("the", "teacher", "wrote", "books"), tree("a", "cat", "sold", "houses"))])
    return classify_heads(loaded, corpus)


def tried(path: Path, content: bytes, read: Callable[[], Any]) -> None:
    before = path.read_bytes() if path.exists() else None
    try:
        path.write_bytes(content)
        told(read)
    finally:
        path.unlink() if before is None else path.write_bytes(before)


FILES = ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json"]
FILES += ["modules.json", "1_Pooling/config.json", "added_tokens.json", "model.safetensors.index.json"]
MADE: dict[str, Any] = {
    "generation_config.json": {"decoder_start_token_id": 2, "bos_token_id": 1, "eos_token_id": [2], "num_beams": 3},
    "special_tokens_map.json": {"cls_token": "[CLS]", "pad_token": {"content": "[PAD]", "lstrip": False}},
    "modules.json": [{"idx": 0, "type": "a.Transformer"}, {"idx": 1, "type": "a.Pooling", "path": "1_Pooling"}],
    "1_Pooling/config.json": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
    "added_tokens.json": {"[NEW]": 3},
    "model.safetensors.index.json": {"metadata": {}, "weight_map": {"a": "model.safetensors"}},
}


@fuzzing(12, 0.3)
@given(st.sampled_from([*FILES[:3], *FILES]), blows(least=1))
def test_damaged_files_beside_the_weights(checkpoint: Path, name: str, strokes: Any) -> None:
    path = checkpoint / name
    path.parent.mkdir(exist_ok=True)
    content = json.loads(path.read_text()) if path.exists() else MADE[name]
    tried(path, damaged_json(content, strokes), lambda: used(checkpoint))


@fuzzing(15, 0.5)
@given(blows(least=1), st.integers(0, 5))
def test_damaged_headers_of_weights(checkpoint: Path, strokes: Any, how: int) -> None:
    path = checkpoint / "model.safetensors"
    whole = path.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    header = damaged_json(json.loads(whole[8 : 8 + size]), strokes)
    if how == 0:  # anything anywhere
        content = damaged(whole, strokes)
    else:
        sizes = [len(header), len(header), len(header), 2**60, strokes[0][1]]
        content = sizes[how - 1].to_bytes(8, "little") + header + whole[8 + size :]
    tried(path, content, lambda: used(checkpoint))


@pytest.fixture(scope="module")
def head_map(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(written(small("albert"), tmp_path_factory.mktemp("map") / "albert")) / FILE


@fuzzing(60)
@given(blows(least=1))
def test_damaged_maps_of_heads(head_map: Path, strokes: Any) -> None:
    content = json.loads(head_map.read_text())
    tried(head_map, damaged_json(content, strokes), lambda: read_head_map(head_map.parent))


@fuzzing(8)
@given(blows(least=1))
def test_damaged_maps_of_heads_with_their_models(head_map: Path, strokes: Any) -> None:
    content = json.loads(head_map.read_text())
    tried(head_map, damaged_json(content, strokes), lambda: load(str(head_map.parent)))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("num_hidden_layers", n) for n in (10**9, 5000, -1)),
        *(("num_hidden_groups", 10**7), ("inner_group_num", 10**7), ("num_attention_heads", -2)),
        *(("num_labels", 10**9), ("max_position_embeddings", -3), ("vocab_size", 10**12), ("hidden_size", 0)),
        *(("hidden_dropout_prob", 4.0), ("classifier_dropout_prob", -1), ("num_attention_heads", 3)),
        *(("hidden_size", "16"), ("hidden_size", 16.5), ("vocab_size", None)),
    ],
)
def test_sizes_that_cannot_be(tmp_path: Path, setting: str, value: Any) -> None:
    save(build("AlbertModel"), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {setting: value}))
    assert isinstance(told(lambda: load(str(tmp_path))), InputError)


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/etc/passwd", "..", "a/../../b.safetensors", "gone.safetensors"]
)
def test_shards_elsewhere(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    save(build("BertModel"), folder)
    (folder / "model.safetensors").rename(tmp_path / "model.safetensors")
    index = {"weight_map": {"embeddings.word_embeddings.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert isinstance(told(lambda: load(str(folder))), InputError)
