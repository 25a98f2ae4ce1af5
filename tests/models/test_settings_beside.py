"""What files beside the weights say: another family, code, prefixes of texts, pooling, segments, two vocabularies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import zoo
from saved import build, rewrite, save
from transformers import CONFIG_MAPPING, PreTrainedTokenizerBase

from headlens.errors import ModelError, OptionError
from headlens.models.checkpoint_settings import check_sizes
from headlens.models.loading import LoadedModel, load
from headlens.tasks.catalogue import CATALOGUE
from headlens.tasks.reader import Reader
from headlens.tasks.task_heads import check_head


def same(weights: dict[str, Any]) -> None:
    del weights


@pytest.mark.parametrize(
    ("kind", "said"),
    [("BertModel", "RobertaModel"), ("RobertaModel", "BertModel"), ("BertForMaskedLM", "ElectraForMaskedLM")],
)
def test_a_class_of_another_family_is_not_taken(tmp_path: Path, kind: str, said: str) -> None:
    loaded = load(rewrite(save(build(kind), tmp_path / "m"), same, architectures=[said]))
    assert type(loaded.model).__name__ == kind
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        assert torch.equal(loaded.model(ids)[0], build(kind).eval()(ids)[0])


def test_code_that_is_not_run_is_told(tmp_path: Path) -> None:
    folder = save(build("BertModel"), tmp_path / "m")
    (note,) = load(rewrite(folder, same, auto_map={"AutoModel": "modeling_my.MyModel"})).notes
    assert "comes with its own code (AutoModel), which is not run" in note


def test_prefixes_of_texts_are_told(tmp_path: Path) -> None:
    folder = save(build("T5Model"), tmp_path / "m")
    params = {"translation_en_to_de": {"prefix": "translate English to German: "}, "summary": {"length": 3}}
    (note,) = load(rewrite(folder, same, task_specific_params=params)).notes
    assert "such as 'translate English to German: '" in note
    assert load(rewrite(folder, same, task_specific_params={"summary": {"length": 3}})).notes == ()


MEAN = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}


@pytest.mark.parametrize(
    ("pooling", "kinds", "told"),
    [
        (MEAN, [], None),
        ({"pooling_mode": "mean"}, ["Normalize"], None),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, [], "cls_token"),
        ({"pooling_mode": "cls"}, [], "cls"),
        ({"pooling_mode_max_tokens": True, **MEAN}, [], "max_tokens, mean_tokens"),
        (MEAN, ["Dense"], "Dense"),
    ],
)
def test_other_embeddings_than_the_mean_are_told(
    tmp_path: Path, pooling: dict[str, Any], kinds: list[str], told: str | None
) -> None:
    folder = Path(save(build("BertModel"), tmp_path / "m"))
    types = ["Transformer", "Pooling", *kinds]
    (folder / "modules.json").write_text(json.dumps([{"type": f"sentence_transformers.models.{t}"} for t in types]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    notes = load(str(folder)).notes
    assert [f"embeddings with {told}; headlens takes the mean" in note for note in notes] == [True] * (told is not None)


@pytest.mark.parametrize("part", ["prefix_encoder.embedding.weight", "prompt_encoder.mlp.weight", "gates"])
def test_parts_that_no_class_has_are_told(tmp_path: Path, part: str) -> None:
    def more(weights: dict[str, Any]) -> None:
        weights[part] = torch.zeros(3)

    folder = save(build("BertForSequenceClassification"), tmp_path / "m")
    (note,) = load(rewrite(folder, more)).notes
    assert f"left out because no transformers class for bert models has such a part: {part}." in note


def test_one_kind_of_segment(tmp_path: Path, wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    words = len(wordpiece_tokenizer)
    for sizes, numbered in ((1, False), (2, True)):
        model = build("RobertaModel", words, type_vocab_size=sizes, pad_token_id=0)
        loaded = load(save(model, tmp_path / f"m{sizes}", wordpiece_tokenizer))
        row = Reader.of(loaded).sequence("a b", "c")
        assert row is not None
        assert bool(row.segments) == numbered
        segments = {"token_type_ids": torch.tensor([row.segments])} if numbered else {}
        loaded.model(input_ids=torch.tensor([row.ids]), **segments)


@pytest.mark.parametrize("size", [50, 30_600])
def test_a_decoder_of_another_vocabulary(wordpiece_tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    encoder, decoder = build("BertModel", len(wordpiece_tokenizer)), build("BertLMHeadModel", size, is_decoder=True)
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder.config, decoder.config)
    config.decoder_start_token_id = 1
    model = transformers.EncoderDecoderModel(config)
    loaded = LoadedModel("two", model.eval(), wordpiece_tokenizer, None)
    words = len(wordpiece_tokenizer)
    with pytest.raises(ModelError, match=rf"the decoder embeddings for {size}, the encoder for {words}"):
        _ = loaded.decoder_start_id


@pytest.mark.parametrize(
    ("kind", "task", "fits"),
    [
        ("BertForMultipleChoice", "stsb", False),
        ("BertForSequenceClassification", "swag", False),
        ("ElectraForPreTraining", "sst2", False),
        ("BertForMaskedLM", "squad", False),
        ("BertForSequenceClassification", "sst2", True),
        ("BertForMultipleChoice", "swag", True),
        ("BertForMaskedLM", "similarity", True),
    ],
)
def test_a_head_of_another_kind_is_refused(kind: str, task: str, fits: bool) -> None:
    loaded = LoadedModel("tiny", build(kind), None, None)
    if fits:
        check_head(loaded, CATALOGUE[task].task)
        return
    with pytest.raises(OptionError, match=rf"The task {task} needs a model with a .* head; tiny is a {kind}"):
        check_head(loaded, CATALOGUE[task].task)


@pytest.mark.slow
def test_the_sizes_of_every_kind_of_model_can_be() -> None:
    checked = 0
    for kind in CONFIG_MAPPING.values():
        try:
            written = json.loads(kind().to_json_string())
        except Exception:
            continue
        check_sizes("model", written, tensors=10)
        checked += 1
    assert checked > 300


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("num_attention_heads", 0, "is 0.*from 1 to"),
        ("n_head", 0, "is 0.*from 1 to"),
        ("decoder_attention_heads", -2, "is -2.*from 1 to"),
        ("num_key_value_heads", 0, "is 0.*from 1 to"),
        ("hidden_size", 0, "is 0.*1 or more"),
        ("vocab_size", 0, "is 0.*1 or more"),
        ("num_attention_heads", 2.5, "is 2.5.*whole number"),
        ("n_heads", "4", "is '4'.*whole number"),
        ("num_hidden_layers", True, "is true.*whole number"),
    ],
)
def test_sizes_that_cannot_be_are_refused_in_words(key: str, value: object, told: str) -> None:
    with pytest.raises(ModelError, match=rf"(?s)model: {key} of its config.json {told}"):
        check_sizes("model", {"text_config": {key: value}}, tensors=10)
    check_sizes("model", {key: 4, "num_hidden_layers": 0, "num_key_value_heads": None, "num_heads": [4, 2]}, tensors=10)


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_heads_that_do_not_divide_the_size_are_told(kind: str, tmp_path: Path) -> None:
    zoo.ZOO[kind].build().save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(written | {"num_attention_heads": 7}))
    with pytest.raises(ModelError, match=r"(?s)hidden size.*multiple of the number of attention heads \(7\)"):
        load(str(tmp_path))
