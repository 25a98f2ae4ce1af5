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
from tiers import rest_slow
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


def put(folder: Path, file: str, content: object) -> None:
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        (
            "config_sentence_transformers.json",
            {"prompts": {"q": "ask: "}, "default_prompt_name": "q"},
            "prompt 'ask: '",
        ),
        ("config_sentence_transformers.json", {"prompts": {"q": "ask: ", "p": ""}}, "where one is named, q: 'ask: '"),
        ("config_sentence_transformers.json", {"prompts": {"q": ""}, "default_prompt_name": "q"}, None),
        ("config_sentence_transformers.json", {"prompts": None, "similarity_fn_name": "dot"}, "by dot; headlens takes"),
        ("config_sentence_transformers.json", ["no", "object"], None),
        ("sentence_bert_config.json", {"do_lower_case": True}, "write the data in lower case"),
        ("sentence_bert_config.json", {"max_seq_length": 16, "do_lower_case": False}, "after 16 tokens"),
        ("sentence_bert_config.json", {"max_seq_length": 4000}, None),
        ("sentence_xlm-roberta_config.json", {"do_lower_case": True}, "write the data in lower case"),
        ("2_Pooling/config.json", {"pooling_mode": "cls"}, "embeddings with cls"),
    ],
)
def test_what_sentence_transformers_reads_is_told(
    tmp_path: Path, bytebpe_tokenizer: PreTrainedTokenizerBase, file: str, content: object, told: str | None
) -> None:
    folder = Path(save(build("BertModel", 600), tmp_path / "m", bytebpe_tokenizer))
    places = {"Transformer": "", "Pooling": "2_Pooling"}
    put(folder, "modules.json", [{"type": f"a.{kind}", "path": path} for kind, path in places.items()])
    put(folder, file, content)
    notes = load(str(folder)).notes
    assert [told in note for note in notes] == [True] if told else notes == ()


def test_lower_case_that_the_tokenizer_writes_is_not_told(
    tmp_path: Path, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    model = build("BertModel", len(wordpiece_tokenizer), max_position_embeddings=512)
    folder = Path(save(model, tmp_path / "m", wordpiece_tokenizer))
    put(folder, "sentence_bert_config.json", {"do_lower_case": True, "max_seq_length": 512})
    assert load(str(folder)).notes == ()


IDS = torch.tensor([[5, 6, 7, 8]])


def logits(folder: str) -> torch.Tensor:
    with torch.no_grad():
        output: torch.Tensor = load(folder).model(IDS).logits
    return output


FORMS = [
    {"return_dict": False},
    {"torchscript": True},
    {"output_attentions": True},
    {"output_hidden_states": True, "return_dict": False},
]
KERNELS = [
    {"attn_implementation": "flash_attention_2"},
    {"attn_implementation": "kernels-community/flash-attn3"},
    {"_attn_implementation": "someone/attention"},
    {"attn_implementation": {"": "paged|flash_attention_2"}},
    {"attn_implementation": "of a plug-in"},
    {"experts_implementation": "someone/experts"},
]


@pytest.mark.parametrize("kind", rest_slow(["GPT2LMHeadModel", "BertForSequenceClassification"]))
@pytest.mark.parametrize("settings", [*FORMS, *KERNELS])
def test_settings_of_form_change_nothing(
    tmp_path: Path, kind: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetched(*names: object, **more: object) -> None:
        raise AssertionError(f"{names} was to be fetched")

    monkeypatch.setattr("transformers.modeling_utils.lazy_import_flash_attention", fetched)
    folder = save(build(kind), tmp_path / "m")
    expected = logits(folder)
    assert torch.equal(logits(rewrite(folder, same, **settings)), expected)
    named = [note for note in load(folder).notes if "neither loaded nor fetched" in note]
    assert len(named) == (settings in KERNELS)


@pytest.mark.parametrize("name", ["sdpa", "eager", "flex_attention", None])
def test_usual_implementations_are_not_told(tmp_path: Path, name: str | None) -> None:
    path = Path(save(build("BertModel"), tmp_path / "m")) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"attn_implementation": name}))
    assert load(str(path.parent)).notes == ()


def test_settings_of_form_in_both_parts(tmp_path: Path) -> None:
    encoder, decoder = build("BertModel"), build("BertLMHeadModel", is_decoder=True, add_cross_attention=True)
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder.config, decoder.config)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    folder = Path(save(transformers.EncoderDecoderModel(config).eval(), tmp_path / "m"))
    content = json.loads((folder / "config.json").read_text())
    for part, kernel in (("encoder", "a/b"), ("decoder", "flash_attention_2")):
        content[part] |= {"return_dict": False, "attn_implementation": kernel}
    (folder / "config.json").write_text(json.dumps(content))
    loaded = load(str(folder))
    assert "asks for 'a/b' and 'flash_attention_2' to compute with" in loaded.notes[0]
    model: Any = loaded.model
    assert model(IDS, decoder_input_ids=IDS).logits.shape == (1, 4, 60)


@pytest.mark.parametrize(
    ("places", "said"),
    [
        (["checkpoint-500"], r"Give .*/top/checkpoint-500\."),
        (["0_Transformer"], r"Give .*/top/0_Transformer\."),
        (["snapshots/0123abc"], r"Give .*/top/snapshots/0123abc\."),
        (["run/out/checkpoint-1"], r"Give .*/top/run/out/checkpoint-1\."),
        (["checkpoint-900", "checkpoint-1000"], r"Give one of .*: .*/top/checkpoint-900, .*/top/checkpoint-1000\."),
        ([f"checkpoint-{n}" for n in range(1, 13)], r"Give one of .*checkpoint-8 … \(12 in all\)\."),
        ([], r"Give the folder of a saved Hugging Face model\."),
    ],
)
def test_a_model_in_a_folder_below_is_named(tmp_path: Path, places: list[str], said: str) -> None:
    top = tmp_path / "top"
    (top / "1_Pooling").mkdir(parents=True)
    put(top, "1_Pooling/config.json", {"pooling_mode": "cls"})
    for place in places:
        (top / place).mkdir(parents=True)
        put(top, f"{place}/config.json", {"model_type": "bert"})
    with pytest.raises(ModelError, match=rf"top: the folder has no config\.json\.\n{said}$"):
        load(str(top))


@pytest.mark.parametrize("place", ["", "checkpoint-3"])
def test_an_adapter_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "top" / place).mkdir(parents=True)
    put(tmp_path / "top" / place, "adapter_config.json", {"base_model_name_or_path": "org/base"})
    said = rf"top/{place} is an adapter\." if place else r"top is an adapter for org/base \(adapter_config\.json\)"
    with pytest.raises(ModelError, match=rf"{said}.*\nMerge adapters into the weights \(PEFT: merge_and_unload\)\."):
        load(str(tmp_path / "top"))
