"""Weights that are missing, left over or no numbers: what is refused, and that nothing else has to be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiers import rest_slow
from torch import Tensor
from transformers import PreTrainedModel
from zoo import REPRESENTATIVES, ZOO, Entry, padded

from headlens.attention.capture import Capture
from headlens.attention.session import AttentionSession
from headlens.errors import ModelError
from headlens.models.checkpoint_weights import beyond_last_layer, check_weights, is_optional


def attention(model: PreTrainedModel, entry: Entry) -> list[Tensor]:
    """All attention weights for the inputs of the zoo."""
    capture = Capture()
    with AttentionSession(model, observers=[capture]), torch.no_grad():
        model(**padded(entry))
    return list(capture.weights.values())


@pytest.mark.parametrize("name", rest_slow(ZOO, REPRESENTATIVES))
def test_no_attention_depends_on_an_optional_weight(name: str) -> None:
    entry = ZOO[name]
    model = entry.build()
    before = attention(model, entry)
    state = model.state_dict()
    needed = {t.data_ptr() for k, t in state.items() if not is_optional(model, k)}
    with torch.no_grad():
        for key, tensor in state.items():
            # an output layer tied to the embeddings is these, and they are needed
            if is_optional(model, key) and tensor.data_ptr() not in needed and tensor.is_floating_point():
                tensor.add_(torch.randn(tensor.shape))
    for one, two in zip(before, attention(model, entry), strict=True):
        assert torch.equal(one, two)


OPTIONAL = {
    "bert": {"pooler.dense"},
    "bert-classifier": {"bert.pooler.dense", "classifier"},
    "bert-mlm": {"cls.predictions", "cls.predictions.decoder", "cls.predictions.transform.dense"}
    | {"cls.predictions.transform.LayerNorm"},
    "albert": {"pooler"},
    "distilbert": set[str](),
    "electra": {"discriminator_predictions.dense", "discriminator_predictions.dense_prediction"},
    "camembert": {"qa_outputs"},
    "xlm-roberta": {"classifier"},
    "gpt2": {"lm_head"},
    "marian": {"lm_head"},
    "vit": {"pooler.dense"},
    "bert-to-bert": set[str](),
}


@pytest.mark.parametrize("name", OPTIONAL)
def test_poolers_and_heads_may_be_missing(name: str) -> None:
    model = ZOO[name].build()
    parameters = dict(model.named_parameters(remove_duplicate=False))
    assert {k.rpartition(".")[0] for k in parameters if is_optional(model, k)} == OPTIONAL[name]
    check_weights("x", model, {"missing_keys": {k for k in parameters if is_optional(model, k)}})


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("bert", "encoder.layer.0.attention.self.query.weight"),
        ("bert", "encoder.layer.0.output.LayerNorm.bias"),
        ("bert-classifier", "bert.encoder.layer.1.attention.output.dense.weight"),
        ("gpt2", "transformer.h.0.attn.c_attn.weight"),
        ("vit", "embeddings.cls_token"),
        ("marian", "model.decoder.layers.0.encoder_attn.k_proj.weight"),
    ],
)
def test_attention_may_not_be_missing(name: str, key: str) -> None:
    model = ZOO[name].build()
    assert key in model.state_dict()
    with pytest.raises(ModelError, match=rf"x: 1 weight is missing from the checkpoint and would be random: {key}\."):
        check_weights("x", model, {"missing_keys": [key]})


class Odd(torch.nn.Module):
    """Parts whose names have fooled a search for "head", "cls" or "score", and heads with attention of their own."""

    base_model_prefix = "base"

    def __init__(self) -> None:
        super().__init__()

        def part(**parts: torch.nn.Module) -> torch.nn.Module:
            return torch.nn.ModuleDict(parts)

        line = torch.nn.Linear(2, 2)
        self.base = part(head_mixer=line, scorer=line, cls=line, vocab_gate=line, pooler=part(attention=line, out=line))
        self.pooler = line
        self.decoder = part(attn=line, mlp=line)
        self.decode = line

    @property
    def base_model(self) -> torch.nn.Module:
        return self.base


def test_names_do_not_fool() -> None:
    model: Any = Odd()
    optional = {k.removesuffix(".weight") for k in model.state_dict() if is_optional(model, k) and k.endswith("weight")}
    assert optional == {"pooler", "decode"}


def test_layers_left_out() -> None:
    model = ZOO["bert"].build()
    more = ["encoder.layer.3.attention.self.query.weight", "encoder.layer.10.output.dense.bias"]
    harmless = ["cls.predictions.bias", "decoder.layer.0.x", "pooler.extra.bias", "embeddings.position_ids"]
    assert beyond_last_layer(model, [*more, *harmless]) == more
    check_weights("x", model, {"unexpected_keys": harmless})
    with pytest.raises(
        ModelError, match=r"x: 2 weights are of layers that the model of its config\.json does not have"
    ):
        check_weights("x", model, {"unexpected_keys": [*more, *harmless]})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number(value: float) -> None:
    model = ZOO["bert"].build()
    with torch.no_grad():
        model.state_dict()["encoder.layer.1.attention.self.key.bias"][0] = value
        model.state_dict()["embeddings.LayerNorm.bias"][0] = value
    with pytest.raises(ModelError, match=r"2 weights hold NaN or infinity, the first is embeddings\.LayerNorm\.bias"):
        check_weights("x", model, {})
