"""What is said of a model that can be looked into."""

from __future__ import annotations

import json

import pytest
from saved import build
from transformers import PreTrainedTokenizerBase

from headlens.analyses.model_check import StackFacts, check_model
from headlens.errors import UnsupportedModelError
from headlens.models.loading import LoadedModel


def test_encoder(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    model = build("BertModel", len(wordpiece_tokenizer))
    facts = check_model(LoadedModel("tiny", model, wordpiece_tokenizer, "abc"))
    assert facts.stacks == (
        StackFacts("encoder", 2, 4, shared_weights=False, first_module="encoder.layer.0.attention.self"),
    )
    assert (facts.name, facts.model_class, facts.revision, facts.longest_input) == ("tiny", "BertModel", "abc", 40)
    assert facts.parameters == sum(p.numel() for p in model.parameters())
    assert facts.aligns_words == "aligned by character offsets"
    assert facts.facts()["longest input"] == "40 tokens"


def test_encoder_decoder(marian_tokenizer: PreTrainedTokenizerBase) -> None:
    model = build("MarianMTModel", len(marian_tokenizer), pad_token_id=0, decoder_start_token_id=0)
    facts = check_model(LoadedModel("tiny", model, marian_tokenizer, None))
    assert [(s.stack, s.layers, s.heads) for s in facts.stacks] == [
        ("encoder", 2, 4),
        ("decoder", 2, 4),
        ("cross", 2, 4),
    ]
    assert facts.tokenizer == "MarianTokenizer"
    assert "slow tokenizer" in facts.aligns_words
    assert facts.facts()["revision"] == "local"


def test_shared_weights_and_no_tokenizer() -> None:
    facts = check_model(LoadedModel("tiny", build("AlbertModel", num_hidden_layers=3, embedding_size=8), None, None))
    assert [(s.layers, s.heads, s.shared_weights) for s in facts.stacks] == [(3, 6, True)]
    assert (facts.tokenizer, facts.aligns_words) == ("none", "cannot read text; usable from Python only")


def test_no_limit() -> None:
    assert check_model(LoadedModel("tiny", build("T5Model"), None, None)).facts()["longest input"] == "no limit"


def test_json() -> None:
    facts = check_model(LoadedModel("tiny", build("BertModel"), None, None))
    read = json.loads(json.dumps(facts.as_json()))
    assert read["stacks"][0]["layers"] == 2
    assert len(read["weight_hash"]) == 64


def test_out_of_reach() -> None:
    with pytest.raises(UnsupportedModelError, match="DebertaV2Model computes attention itself"):
        check_model(LoadedModel("tiny", build("DebertaV2Model"), None, None))
