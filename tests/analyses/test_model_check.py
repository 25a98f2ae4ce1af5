"""What is said of a model that can be looked into."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from made_tasks import example
from saved import Memory, build, prefixed, rewrite, save, sentence, without
from tiers import rest_slow
from transformers import EncoderDecoderModel, PreTrainedTokenizerBase
from zoo import HIDDEN, REPRESENTATIVES, ZOO, padded

from headlens.analyses.model_check import StackFacts, check_model
from headlens.corpora.sentence import Example
from headlens.errors import ModelError, OptionError, UnsupportedModelError
from headlens.models.checkpoint_weights import model_part
from headlens.models.loading import LoadedModel, load
from headlens.relevance_propagation.head_relevance import head_relevance
from headlens.relevance_propagation.relevance_options import RelevanceOptions
from headlens.tasks.catalogue import CATALOGUE
from headlens.tasks.example_sources import MemoryExamples
from headlens.tasks.task_examples import Examples


def test_encoder(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    model = build("BertModel", len(wordpiece_tokenizer))
    facts = check_model(LoadedModel("tiny", model, wordpiece_tokenizer, "abc"))
    assert facts.stacks == (
        StackFacts("encoder", 2, 4, 16, False, "encoder.layer.0.attention.self", layer_heads=(2, 2)),
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
    assert facts.embedding_width == 8
    assert facts.facts()["embedding width"] == "8"
    assert (facts.tokenizer, facts.aligns_words) == ("none", "none is read, as there is no tokenizer")


DECODER = {"is_decoder": True, "add_cross_attention": True}


@pytest.mark.parametrize("name", rest_slow(ZOO, REPRESENTATIVES))
def test_widths_are_those_of_hidden_states_and_embeddings(name: str) -> None:
    entry = ZOO[name]
    model = entry.build()
    facts = check_model(LoadedModel("tiny", model, None, None))
    with torch.no_grad():
        outputs = model(**padded(entry), output_hidden_states=True)
    two = len(facts.stacks) > 1 and "encoder" in {s.stack for s in facts.stacks}
    for own in facts.stacks:
        side = "decoder" if own.stack == "cross" else own.stack
        assert outputs[f"{side}_hidden_states" if two else "hidden_states"][-1].shape[-1] == own.hidden_width
    expected = None if entry.kind == "image" else entry.settings.get("embedding_size", HIDDEN)
    assert facts.embedding_width == expected


def test_two_models_put_together_have_two_widths() -> None:
    model = EncoderDecoderModel(encoder=build("BertModel"), decoder=build("BertLMHeadModel", hidden_size=24, **DECODER))
    facts = check_model(LoadedModel("tiny", model, None, None))
    assert [(s.stack, s.hidden_width) for s in facts.stacks] == [("encoder", 16), ("decoder", 24), ("cross", 24)]


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


EXTRA = "encoder.layer.1.attention.self.distance_embedding.weight"
SST2 = {"id2label": {0: "negative", 1: "positive"}, "label2id": {"negative": 0, "positive": 1}}
SEQUENCE = ("BertForSequenceClassification", "predicted")
MASKED = ("BertForMaskedLM", "masked")
# By name: class, target of relevance that reads its head, change of the weights, changes of config.json.
ODD: dict[str, tuple[str, str, Any, dict[str, Any]]] = {
    "whole classifier": (*SEQUENCE, lambda w: None, {}),
    "no classifier": (*SEQUENCE, without("classifier."), {}),
    "no bias": (*SEQUENCE, without("classifier.bias"), {}),
    "no pooler": (*SEQUENCE, without("pooler."), {}),
    "neither": (*SEQUENCE, without("pooler.", "classifier."), {}),
    "RoBERTa, half a head": ("RobertaForSequenceClassification", "predicted", without("out_proj"), {}),
    "DistilBERT, half a head": ("DistilBertForSequenceClassification", "predicted", without("pre_classifier"), {}),
    "ELECTRA, no head": ("ElectraForSequenceClassification", "predicted", without("classifier."), {}),
    "ALBERT, no pooler": ("AlbertForSequenceClassification", "predicted", without("pooler"), {}),
    "masked": (*MASKED, lambda w: None, {}),
    "masked, no head": (*MASKED, without("cls."), {}),
    "masked, no transform": (*MASKED, without("cls.predictions.transform.dense"), {}),
    "RoBERTa, masked, no norm": ("RobertaForMaskedLM", "masked", without("lm_head.layer_norm"), {}),
    "tokens, no head": ("BertForTokenClassification", "positions", without("classifier."), {}),
    "body": ("BertModel", "embedding", lambda w: None, {}),
    "body, no pooler": ("BertModel", "embedding", without("pooler."), {}),
    "body under a prefix": ("BertModel", "embedding", prefixed("student."), {}),
    "undeclared": (*SEQUENCE, lambda w: None, {"architectures": None}),
    "undeclared, no pooler, as a tagger has none": (
        SEQUENCE[0],
        "positions",
        without("pooler."),
        {"architectures": None},
    ),
    "undeclared, under a prefix": (*SEQUENCE, prefixed("model."), {"architectures": None}),
    "no query": (*SEQUENCE, without("layer.0.attention.self.query"), {}),
    "relative positions": (*SEQUENCE, lambda w: {**w, f"bert.{EXTRA}": torch.ones(79, 8)}, {}),
    "relative positions told": (*SEQUENCE, lambda w: None, {"position_embedding_type": "relative_key"}),
    "a layer more": (*SEQUENCE, lambda w: None, {"num_hidden_layers": 1}),
}


MOST_KINDS = ["whole classifier", "no pooler", "RoBERTa, half a head", "ALBERT, no pooler", "masked, no transform"]
MOST_KINDS += ["tokens, no head", "body, no pooler", "undeclared, under a prefix", "no query", "relative positions"]


@pytest.mark.parametrize("case", rest_slow(ODD, MOST_KINDS[::2]))
def test_the_verdict_is_that_of_the_commands(
    tmp_path: Path, wordpiece_tokenizer: PreTrainedTokenizerBase, case: str
) -> None:
    """A head counts as random if its outputs change with the weights that are said to be missing, and only then."""
    kind, target, change, settings = ODD[case]
    own = {"embedding_size": 8} if kind.startswith(("Electra", "Albert")) else {}
    whole = build(kind, len(wordpiece_tokenizer), **own, **(SST2 if "Sequence" in kind else {}))
    folder = rewrite(save(whole, tmp_path / "model", wordpiece_tokenizer), change, **settings)
    try:
        loaded = load(folder)
    except ModelError:
        assert case in ("no query", "relative positions", "relative positions told", "a layer more")
        return
    facts = check_model(loaded)
    parts = {p.part for p in facts.parts if "missing" in p.state}
    assert parts == {model_part(loaded.model, name) for name in loaded.untrained}
    assert not any(p.state == "unused" for p in facts.parts)

    inputs = wordpiece_tokenizer("the old [MASK] sees a house", return_tensors="pt")
    with torch.no_grad():
        read = [loaded.model(**inputs)[0]]
        stored = {name: loaded.model.get_parameter(name).clone() for name in loaded.untrained}
        for name in loaded.untrained:
            loaded.model.get_parameter(name).add_(1)
        read += [loaded.model(**inputs)[0]]
        for name, tensor in stored.items():
            loaded.model.get_parameter(name).copy_(tensor)
    is_random = not torch.equal(*read)
    assert is_random == bool(parts - ({"pooler"} if kind == "BertModel" else set()))

    corpus = Memory([Example(sentence("the old cat sees a house"))])
    for asked, refuses in ((target, is_random), ("embedding", False)):
        options = RelevanceOptions(relevance_target=asked)
        with pytest.raises(OptionError, match="random") if refuses else nullcontext():
            head_relevance(loaded, corpus, options)
    if target == "predicted":
        task = CATALOGUE["sst2"].task
        examples = Examples.of(task, MemoryExamples((example(task, 0),), "made"), loaded)
        with pytest.raises(OptionError, match="random") if is_random else nullcontext():
            examples.ask_shortest(loaded)
