"""Checkpoints as people have them: with more weights, fewer, or other names than the class of transformers has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from saved import Weights, build, prefixed, rewrite, save, without
from tiers import rest_slow, rest_slow_rows
from torch import Tensor
from transformers import PreTrainedModel

from headlens.errors import ModelError
from headlens.models.loading import LoadedModel, load

DISTILBERT = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 16, "max_position_embeddings": 40}
USUAL: Mapping[str, dict[str, Any]] = {
    "DistilBert": DISTILBERT,
    "Electra": {"embedding_size": 8},
    "Albert": {"embedding_size": 8},
    "Marian": {"pad_token_id": 0, "decoder_start_token_id": 0},
}
# The names of an attention module of every family, seen from the base model.
ATTENTION = {
    "Bert": "encoder.layer.0.attention.self.",
    "Roberta": "encoder.layer.1.attention.self.",
    "Electra": "encoder.layer.0.attention.self.",
    "DistilBert": "transformer.layer.0.attention.",
    "Albert": "encoder.albert_layer_groups.0.albert_layers.0.attention.",
    "GPT2": "h.1.attn.",
    "Marian": "decoder.layers.0.encoder_attn.",
}
FAMILIES = list(ATTENTION)


def of_class(kind: str, **settings: Any) -> PreTrainedModel:
    """A tiny model by the name of its class, with positions as they are made where a checkpoint has none (Marian)."""
    model = build(kind, **(next((v for k, v in USUAL.items() if kind.startswith(k)), {}) | settings))
    for module in model.modules():
        if type(module).__name__ == "MarianSinusoidalPositionalEmbedding":
            with torch.no_grad():
                module.weight.copy_(module.create_weight())
    return model


def refused(folder: str) -> str:
    with pytest.raises(ModelError) as caught:
        load(folder)
    assert caught.value.advice
    return f"{caught.value.message}\n{caught.value.advice}"


def outputs(model: PreTrainedModel) -> list[Tensor]:
    """All outputs of a model for two rows of tokens, attention and cross-attention included."""
    ids = torch.tensor([[5, 6, 7, 8, 9], [10, 11, 12, 13, 14]])
    if type(model).__name__.endswith("MultipleChoice"):
        ids = ids[None]
    more = {"decoder_input_ids": ids[:, :3]} if model.config.is_encoder_decoder else {}
    model.set_attn_implementation("eager")
    with torch.no_grad():
        found = model(input_ids=ids, output_attentions=True, return_dict=True, **more)
    flat = [t for v in found.values() for t in (v if isinstance(v, tuple) else (v,)) if isinstance(t, Tensor)]
    assert len(flat) > 2
    return flat


def assert_same(loaded: LoadedModel, model: PreTrainedModel) -> None:
    assert type(loaded.model) is type(model)
    assert not loaded.untrained
    for one, two in zip(outputs(loaded.model), outputs(model), strict=True):
        torch.testing.assert_close(one, two)


# --- Weights without a place


def inside(family: str, name: str, *shape: int) -> Callable[[Weights], None]:
    """Adds a weight to an attention module."""

    def add(weights: Weights) -> None:
        weights[f"{ATTENTION[family]}{name}"] = torch.ones(shape or (4,))

    return add


WITHOUT_PLACE = {
    **{f"{f} relative": (f, "distance_embedding.weight", (79, 8)) for f in ("Bert", "Roberta", "Electra")},
    **{f"{f} LoRA": (f, "query.lora_A.default.weight", (2, 16)) for f in FAMILIES},
    "bottleneck adapter": ("Bert", "output.adapters.sst.adapter_down.0.weight", (4, 16)),
    "extra norm": ("DistilBert", "layer_norm.weight", (16,)),
    "bias of T5's kind": ("Marian", "relative_attention_bias.weight", (32, 2)),
    "gates": ("GPT2", "head_gates", (2,)),
    "norm of queries": ("Albert", "q_norm.weight", (8,)),
}


@pytest.mark.parametrize(
    "case", rest_slow(WITHOUT_PLACE, ["Bert relative", "Marian LoRA", "GPT2 LoRA", "extra norm", "gates"])
)
def test_weights_inside_the_model_without_a_place_are_refused(tmp_path: Path, case: str) -> None:
    family, name, shape = WITHOUT_PLACE[case]
    error = refused(rewrite(save(of_class(f"{family}Model"), tmp_path / "model"), inside(family, name, *shape)))
    assert f"{family}Model of transformers {transformers.__version__} cannot hold 1 weight" in error
    assert f"{ATTENTION[family]}{name}" in error
    assert "merge_and_unload" in error


def test_weights_without_a_place_below_a_head_are_refused(tmp_path: Path) -> None:
    folder = save(of_class("RobertaForSequenceClassification"), tmp_path / "model")
    names = [f"roberta.encoder.layer.{i}.output.adapter.{n}.weight" for i in (0, 1) for n in ("down", "up")]
    error = refused(rewrite(folder, lambda w: w.update({n: torch.ones(4, 16) for n in names})))
    assert "cannot hold 4 weights of the checkpoint: " + ", ".join(sorted(names)[:3]) + " …" in error
    assert "Without them" in error


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("BertForSequenceClassification", "classifier.lora_A.default.weight"),
        ("RobertaForSequenceClassification", "classifier.out_proj.lora_B.default.weight"),
        ("BertForSequenceClassification", "bert.pooler.dense.lora_A.default.weight"),
        ("GPT2LMHeadModel", "lm_head.adapter.weight"),
        ("BertForMaskedLM", "cls.predictions.transform.dense.lora_A.default.weight"),
    ],
)
def test_weights_within_a_layer_of_a_head_are_refused(tmp_path: Path, kind: str, name: str) -> None:
    """A head without them gives other outputs, which `ablate` and `relevance` would measure."""
    folder = rewrite(save(build(kind), tmp_path / "model"), lambda w: w.update({name: torch.ones(2, 16)}))
    assert name in refused(folder)


def test_names_of_an_unmerged_adapter(tmp_path: Path) -> None:
    """PEFT saves a layer beside its adapter as `base_layer`."""

    def wrap(weights: Weights) -> Weights:
        found = {k.replace("query.", "query.base_layer."): v for k, v in weights.items()}
        return found | {f"{ATTENTION['Bert']}query.lora_A.default.weight": torch.ones(2, 16)}

    error = refused(rewrite(save(of_class("BertModel"), tmp_path / "model"), wrap))
    assert "encoder.layer.0.attention.self.query.weight" in error
    assert "query.base_layer" in error
    assert "merge_and_unload" in error


def test_an_adapter_beside_the_weights(tmp_path: Path) -> None:
    """Where PEFT is not installed, transformers leaves it out without a word."""
    folder = save(of_class("BertModel"), tmp_path / "model")
    (Path(folder) / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    assert "has an adapter next to its weights, which headlens does not read.\nMerge adapters" in refused(folder)


CONSTANTS = {
    "Bert": ["embeddings.position_ids", "embeddings.token_type_ids"],
    "Roberta": ["embeddings.position_ids"],
    "DistilBert": ["embeddings.position_ids"],
    "Electra": ["embeddings.position_ids"],
    "Albert": ["embeddings.position_ids"],
    "GPT2": ["h.0.attn.bias", "h.0.attn.masked_bias"],
    "Llama": ["layers.0.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"],
    "GPTNeoX": ["layers.0.attention.bias", "layers.0.attention.masked_bias"],
    "Marian": ["encoder.embed_positions.weights"],
    "Bart": ["encoder.version", "decoder.version"],
    "MBart": ["encoder.version", "decoder.version"],
    "Pegasus": ["encoder.version", "decoder.version"],
}


@pytest.mark.parametrize("family", rest_slow(CONSTANTS, ["Bert", "GPT2", "Llama", "Marian"]))
def test_constants_of_earlier_versions_are_no_weights(tmp_path: Path, family: str) -> None:
    model = of_class(f"{family}Model")
    constants = {name: torch.arange(5.0) for name in CONSTANTS[family]}
    loaded = load(rewrite(save(model, tmp_path / "model"), lambda w: w.update(constants)))
    assert_same(loaded, model)
    assert not loaded.unused
    assert not loaded.notes


def test_an_unused_head_is_no_error(tmp_path: Path) -> None:
    """The checkpoint of BERT for pre-training, read as a masked language model, as its config.json may say."""
    model = build("BertForPreTraining")
    loaded = load(rewrite(save(model, tmp_path / "model"), lambda w: None, architectures=["BertForMaskedLM"]))
    assert loaded.unused == {
        *(f"cls.seq_relationship.{n}" for n in ("weight", "bias")),
        *(f"bert.pooler.dense.{n}" for n in ("weight", "bias")),
    }
    assert not loaded.untrained
    torch.testing.assert_close(outputs(loaded.model)[0], outputs(model)[0])


@pytest.mark.parametrize("setting", rest_slow(["relative_key", "relative_key_query", "rotary"]))
@pytest.mark.parametrize("family", rest_slow(["Bert", "Roberta", "Electra", "Albert"], ["Bert", "Albert"]))
def test_positions_that_transformers_does_not_compute_are_refused(tmp_path: Path, family: str, setting: str) -> None:
    folder = rewrite(
        save(of_class(f"{family}Model"), tmp_path / "model"), lambda w: None, position_embedding_type=setting
    )
    error = refused(folder)
    assert f"asks for position_embedding_type = '{setting}', which {family}Model" in error
    assert "does not compute" in error


@pytest.mark.parametrize(
    ("family", "setting", "value"),
    [
        ("Bart", "normalize_before", True),
        ("Marian", "normalize_before", True),
        ("Bert", "adapters", {"adapters": {"sst": "pfeiffer"}}),
        ("Roberta", "adapter_config", {"bottleneck": 8}),
    ],
)
def test_other_settings_that_are_not_computed_are_refused(
    tmp_path: Path, family: str, setting: str, value: object
) -> None:
    folder = rewrite(save(of_class(f"{family}Model"), tmp_path / "model"), lambda w: None, **{setting: value})
    assert f"asks for {setting} = {value!r}" in refused(folder)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("Bert", {"position_embedding_type": "absolute", "adapters": {}}),
        ("Bart", {"normalize_before": False}),
        ("MBart", {"normalize_before": True}),
        pytest.param("Pegasus", {"normalize_before": True}, marks=pytest.mark.slow),
        pytest.param("M2M100", {"normalize_before": True}, marks=pytest.mark.slow),
    ],
)
def test_settings_that_change_nothing_are_let_through(tmp_path: Path, family: str, settings: dict[str, Any]) -> None:
    model = of_class(f"{family}Model")
    assert_same(load(rewrite(save(model, tmp_path / "model"), lambda w: None, **settings)), model)


def test_a_class_that_computes_the_setting_is_let_through(tmp_path: Path) -> None:
    """ESM has rotary positions of its own, under the name that BERT's relative positions had."""
    model = build("EsmModel", position_embedding_type="rotary", pad_token_id=1, mask_token_id=2)
    assert_same(load(save(model, tmp_path / "model")), model)


# --- Names with something before them or within


PREFIXED = ["BertModel", "RobertaForSequenceClassification", "GPT2LMHeadModel", "DistilBertForMaskedLM", "AlbertModel"]
PREFIXED += ["MarianMTModel", "ElectraForTokenClassification", "LlamaForCausalLM"]


@pytest.mark.parametrize(
    ("kind", "prefix"),
    rest_slow_rows(
        product(PREFIXED, ["module.", "model.", "_orig_mod.", "module._orig_mod.", "a.student_2."]),
        [
            ("BertModel", "module."),
            ("RobertaForSequenceClassification", "a.student_2."),
            ("GPT2LMHeadModel", "_orig_mod."),
            ("MarianMTModel", "model."),
            ("AlbertModel", "module._orig_mod."),
        ],
    ),
)
def test_what_stands_before_all_names_is_taken_off(tmp_path: Path, kind: str, prefix: str) -> None:
    model = of_class(kind)
    folder = rewrite(save(model, tmp_path / "model"), prefixed(prefix))
    loaded = load(folder)
    assert_same(loaded, model)
    assert not loaded.unused
    # The name of the base model is what transformers itself takes off.
    said = prefix.replace("_orig_mod.", "").removeprefix(f"{model.base_model_prefix}.")
    assert loaded.notes == ((f"The names of all weights begin with {said!r}, which was stripped.",) if said else ())


@pytest.mark.parametrize(
    ("kind", "wrapper"),
    rest_slow_rows(
        product(PREFIXED, ["_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."]),
        [
            ("GPT2LMHeadModel", "_orig_mod."),
            ("DistilBertForMaskedLM", "_fsdp_wrapped_module."),
            ("MarianMTModel", "_checkpoint_wrapped_module."),
        ],
    ),
)
def test_wrappers_within_names_are_taken_off(tmp_path: Path, kind: str, wrapper: str) -> None:
    """Of layers within layers, as FSDP leaves them; that is no change of the model, so nothing is said."""

    def wrap(weights: Weights) -> Weights:
        numbered = {k: k.replace(".0.", f".0.{wrapper}").replace(".1.", f".1.{wrapper}") for k in weights}
        return {numbered[k]: v for k, v in weights.items()}

    model = of_class(kind)
    loaded = load(rewrite(save(model, tmp_path / "model"), lambda w: prefixed(wrapper)(wrap(w))))
    assert_same(loaded, model)
    assert not loaded.notes


@pytest.mark.parametrize("architectures", [["BertForSequenceClassification"], None])
@pytest.mark.parametrize("prefix", ["backbone.", "model."])
def test_a_prefix_of_the_base_model_alone(tmp_path: Path, prefix: str, architectures: list[str] | None) -> None:
    """Lightning modules and the like: `backbone.encoder…` beside `classifier.weight`."""
    model = of_class("BertForSequenceClassification")

    def move(weights: Weights) -> Weights:
        return {k.replace("bert.", prefix): v for k, v in weights.items()}

    assert_same(load(rewrite(save(model, tmp_path / "model"), move, architectures=architectures)), model)


@pytest.mark.parametrize("kind", ["BertModel", "RobertaForMaskedLM", "GPT2LMHeadModel", "DistilBertModel"])
def test_two_models_in_one_checkpoint_are_refused(tmp_path: Path, kind: str) -> None:
    def both(weights: Weights) -> Weights:
        return prefixed("teacher.")(weights) | prefixed("student.")(weights)

    error = refused(rewrite(save(of_class(kind), tmp_path / "model"), both))
    assert "the checkpoint holds several models, whose names begin with 'student.' and 'teacher.'" in error
    assert "Save the one you want on its own." in error


@pytest.mark.parametrize("kind", rest_slow(["BertModel", "DistilBertForMaskedLM", "BertForMaskedLM"], 2))
def test_a_second_model_beside_is_told(tmp_path: Path, kind: str) -> None:
    """The one under the names of transformers is read; nobody shall take it for the other one."""
    model = of_class(kind)
    loaded = load(rewrite(save(model, tmp_path / "model"), lambda w: w | prefixed("teacher.")(w)))
    assert_same(loaded, model)
    assert all(name.startswith("teacher.") for name in loaded.unused)
    assert "teacher." in " ".join(loaded.notes)


# --- Heads that config.json does not name

ENCODERS = ["Bert", "Roberta", "DistilBert", "Electra", "Albert"]
HEADS = ["SequenceClassification", "TokenClassification", "QuestionAnswering", "MaskedLM", "MultipleChoice"]
UNDECLARED = [f"{family}For{head}" for family in ENCODERS for head in HEADS]
UNDECLARED += ["BertForPreTraining", "ElectraForPreTraining", "AlbertForPreTraining", "MarianMTModel"]
UNDECLARED += ["BartForConditionalGeneration", "LlamaForCausalLM", "LlamaForSequenceClassification"]
UNDECLARED += ["T5ForTokenClassification"]
# Every head once, every family once.
FOUND = ["BertForSequenceClassification", "RobertaForTokenClassification", "DistilBertForQuestionAnswering"]
FOUND += ["ElectraForMaskedLM", "AlbertForMultipleChoice", "BertForPreTraining", "MarianMTModel", "LlamaForCausalLM"]
FOUND += ["T5ForTokenClassification"]


@pytest.mark.parametrize("kind", rest_slow(UNDECLARED, FOUND[:4]))
def test_a_head_that_is_not_declared_is_found(tmp_path: Path, kind: str) -> None:
    model = of_class(kind, **({"pad_token_id": 0} if kind.startswith("Llama") else {}))
    loaded = load(rewrite(save(model, tmp_path / "model"), lambda w: None, architectures=None))
    assert_same(loaded, model)
    (note,) = loaded.notes
    assert note.startswith(
        f"config.json names no head; judging by its weights, the model is a {kind}. If it is another class,"
    )


def test_one_output_may_be_a_choice_or_a_score(tmp_path: Path) -> None:
    """Both have the same weights: where config.json says nothing, it is a choice, and the note says so."""
    model = of_class("BertForSequenceClassification", num_labels=1)
    folder = rewrite(save(model, tmp_path / "model"), lambda w: None, architectures=None)
    assert_same(load(folder), model)
    loaded = load(rewrite(folder, lambda w: None, id2label=None, label2id=None))
    assert "judging by its weights, the model is a BertForMultipleChoice" in " ".join(loaded.notes)


@pytest.mark.parametrize("kind", ["T5ForConditionalGeneration", "GPT2LMHeadModel"])
def test_a_head_tied_to_the_embeddings_has_no_weights_to_be_found_by(tmp_path: Path, kind: str) -> None:
    loaded = load(rewrite(save(of_class(kind), tmp_path / "model"), lambda w: None, architectures=None))
    base = type(of_class(kind).base_model).__name__.replace("ForConditionalGeneration", "Model")
    assert loaded.notes == (
        f'config.json names no class of transformers ("architectures"): the model is read as {base}, without a head.',
    )


@pytest.mark.parametrize("architectures", rest_slow([None, ["BertModel"], ["MyOwnBert"]]))
def test_a_head_of_another_kind_is_told(tmp_path: Path, architectures: list[str] | None) -> None:
    heads = {"scorer.0.weight": torch.ones(3, 16), "crf.transitions": torch.ones(3, 3)}
    folder = save(of_class("BertModel"), tmp_path / "model")
    loaded = load(rewrite(folder, lambda w: w.update(heads), architectures=architectures))
    assert type(loaded.model).__name__ == "BertModel"
    assert loaded.unused == heads.keys()
    assert loaded.notes == (
        "2 weights are left out, as part of a head that headlens does not know: crf.transitions, scorer.0.weight.",
    )


@pytest.mark.parametrize(
    ("kind", "classes"),
    rest_slow_rows(
        [(f"{f}For{h}Classification", n) for f in ENCODERS for h in ("Sequence", "Token") for n in (3, 7)],
        [("BertForSequenceClassification", 3), ("AlbertForTokenClassification", 7)],
    ),
)
def test_the_number_of_classes_comes_from_the_weights(tmp_path: Path, kind: str, classes: int) -> None:
    model = of_class(kind, num_labels=classes)
    folder = save(model, tmp_path / "model")
    loaded = load(rewrite(folder, lambda w: None, architectures=None, id2label=None, label2id=None))
    assert_same(loaded, model)
    assert loaded.model.config.num_labels == classes


# --- Weights that the checkpoint does not have


UNTRAINED = {
    "BertForSequenceClassification": "classifier.",
    "RobertaForSequenceClassification": "classifier.out_proj.",
    "BertForMaskedLM": "cls.predictions.transform.",
    "BertModel": "pooler.",
    "ElectraForTokenClassification": "classifier.",
    "DistilBertForSequenceClassification": "pre_classifier.",
    "BartForSequenceClassification": "classification_head.",
}


@pytest.mark.parametrize("kind", rest_slow(UNTRAINED, 3))
def test_random_weights_are_known_and_the_same_every_time(tmp_path: Path, kind: str) -> None:
    folder = rewrite(save(of_class(kind), tmp_path / "model"), without(UNTRAINED[kind]))
    torch.manual_seed(1)
    first, state = load(folder), torch.get_rng_state()
    torch.rand(3)
    second = load(folder)
    assert first.untrained == {k for k, _ in first.model.named_parameters() if UNTRAINED[kind] in k}
    assert first.weight_hash == second.weight_hash
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state()), "loading draws no random numbers of others"


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("BertForMaskedLM", "cls.predictions.decoder.weight"),
        ("GPT2LMHeadModel", "lm_head.weight"),
        ("MarianMTModel", "lm_head.weight"),
        ("T5ForConditionalGeneration", "lm_head.weight"),
    ],
)
def test_a_head_that_is_tied_by_config_json_but_has_weights_of_its_own(tmp_path: Path, kind: str, key: str) -> None:
    own = torch.randn(60, 16)
    loaded = load(rewrite(save(of_class(kind), tmp_path / "model"), lambda w: w.update({key: own})))
    assert torch.equal(loaded.model.get_parameter(key), own)
    assert not torch.equal(loaded.model.get_input_embeddings().weight, own)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32])
def test_whole_numbers_are_no_weights(tmp_path: Path, dtype: torch.dtype) -> None:
    def quantised(weights: Weights) -> None:
        key = "encoder.layer.0.attention.self.query.weight"
        weights[key] = (weights[key] * 10).to(dtype)

    told = refused(rewrite(save(of_class("BertModel"), tmp_path / "m"), quantised))
    assert "has 1 weight of whole numbers, and config.json does not mention quantisation: encoder.layer.0" in told
    sharded = of_class("BertModel")
    sharded.save_pretrained(tmp_path / "shards", max_shard_size="10KB")
    assert (tmp_path / "shards" / "model.safetensors.index.json").is_file()
    assert type(load(str(tmp_path / "shards")).model) is type(sharded)
