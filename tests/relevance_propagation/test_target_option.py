"""Where relevance starts, by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from saved import build, save
from transformers import PreTrainedTokenizerBase

from headlens.errors import OptionError
from headlens.models.loading import LoadedModel, load
from headlens.relevance_propagation.targets import NAMES, choose_target

Loaded = Callable[[str], LoadedModel]
LABELS = {"id2label": {0: "bad", 1: "good", 2: "so-so"}, "label2id": {"bad": 0, "good": 1, "so-so": 2}}

MARIAN = {"pad_token_id": 0, "eos_token_id": 102, "decoder_start_token_id": 0}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory, wordpiece_tokenizer: PreTrainedTokenizerBase) -> Loaded:
    folder, built = tmp_path_factory.mktemp("models"), dict[str, LoadedModel]()

    def get(name: str) -> LoadedModel:
        if name not in built:
            settings = LABELS if "SequenceClassification" in name else MARIAN if "Marian" in name else {}
            model = build(name, len(wordpiece_tokenizer), **settings)
            built[name] = load(save(model, folder / name, wordpiece_tokenizer))
        return built[name]

    return get


@pytest.mark.parametrize(
    ("model", "paired", "expected"),
    [
        ("BertForSequenceClassification", False, "predicted"),
        ("BertForSequenceClassification", True, "predicted"),
        ("BartForSequenceClassification", False, "predicted"),
        ("AlbertForMaskedLM", False, "masked"),
        ("DistilBertForTokenClassification", False, "positions"),
        ("GPT2LMHeadModel", False, "positions"),
        ("BartForConditionalGeneration", True, "positions"),
        ("MarianMTModel", False, "positions"),
        ("BertModel", False, "embedding"),
        ("BertModel", True, "similarity"),
    ],
)
def test_what_auto_takes(loaded: Loaded, model: str, paired: bool, expected: str) -> None:
    assert choose_target("auto", loaded(model), paired=paired).name == expected


@pytest.mark.parametrize("asked", ["class:2", "class:so-so", "class:So-So"])
def test_classes_by_number_and_name(loaded: Loaded, asked: str) -> None:
    assert choose_target(asked, loaded("BertForSequenceClassification"), paired=False).label == "class:2"


@pytest.mark.parametrize(
    ("asked", "model", "paired", "message", "advice"),
    [
        ("nonsense", "BertModel", False, "nonsense is unknown", "class:LABEL"),
        ("masked:3", "AlbertForMaskedLM", False, "masked:3 is unknown", "masked"),
        ("class:4", "BertForSequenceClassification", False, "no such class", r"0 \(bad\), 1 \(good\), 2 \(so-so\)"),
        ("class:", "BertForSequenceClassification", False, "no such class", "0"),
        ("class:-1", "BertForSequenceClassification", False, "no such class", "0"),
        ("class:1", "BertModel", False, "does not classify", "auto"),
        ("predicted", "AlbertForMaskedLM", False, "does not classify", "auto"),
        ("predicted", "MarianMTModel", True, "but .* generates text", "positions"),
        ("masked", "MarianMTModel", False, "but .* generates text", "positions"),
        ("positions", "BartForSequenceClassification", False, "one output for all tokens", "class:LABEL"),
        ("masked", "BertForSequenceClassification", False, "one output for all tokens", "predicted"),
        ("similarity", "BertModel", False, "needs pairs", "--data-args target-column"),
        ("embedding", "BertModel", True, "one by one", "similarity"),
        ("auto", "BertForQuestionAnswering", False, "does not know what the output", "embedding"),
        ("auto", "ElectraForPreTraining", False, "does not know what the output", "embedding"),
    ],
)
def test_what_does_not_fit(loaded: Loaded, asked: str, model: str, paired: bool, message: str, advice: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        choose_target(asked, loaded(model), paired=paired)
    assert re.search(advice, caught.value.advice)


def test_classes_in_any_spelling(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    model = build("BertForSequenceClassification", len(wordpiece_tokenizer), num_labels=2)
    judge = LoadedModel("tiny", model, wordpiece_tokenizer, None)
    for names, asked, expected in (
        ({0: "POS", 1: "NEG"}, "positive", 0),
        ({0: "LABEL_0", 1: "LABEL_1"}, "label_1", 1),
        ({0: "entailment", 1: "not_entailment"}, "non-entailment", 1),
        ({0: "equivalent", 1: "duplicate"}, "duplicate", 1),
        ({0: "1", 1: "0"}, "LABEL_1", 1),
    ):
        model.config.id2label, model.config.label2id = names, None
        assert choose_target(f"class:{asked}", judge, paired=False).label == f"class:{expected}"
    model.config.label2id = {"POS": 0}
    model.config.id2label = {0: "LABEL_0"}
    assert choose_target("class:pos", judge, paired=False).label == "class:0"


@pytest.mark.parametrize(
    ("names", "backward", "asked", "message", "advice"),
    [
        ({0: "1", 1: "0"}, None, "1", "class:1 is more than one class", "class:LABEL_0 for output 0"),
        ({0: "good", 1: "Good"}, None, "good", "class:good is more than one class", r"0 \(good\), 1 \(Good\)"),
        (
            {0: "bad", 1: "good"},
            {"good": 0, "bad": 1},
            "bad",
            "not say which output that is: id2label calls output 0",
            "0 to 1",
        ),
    ],
)
def test_classes_that_may_be_several(
    wordpiece_tokenizer: PreTrainedTokenizerBase, names: Any, backward: Any, asked: str, message: str, advice: str
) -> None:
    model = build("BertForSequenceClassification", len(wordpiece_tokenizer), num_labels=2)
    model.config.id2label, model.config.label2id = names, backward
    judge = LoadedModel("tiny", model, wordpiece_tokenizer, None)
    with pytest.raises(OptionError, match=message) as caught:
        choose_target(f"class:{asked}", judge, paired=False)
    assert re.search(advice, caught.value.advice)
    assert choose_target("class:LABEL_1", judge, paired=False).label == "class:1"


def test_masks_need_a_mask_token(tmp_path: Path, metaspace_tokenizer: PreTrainedTokenizerBase) -> None:
    model = load(save(build("BertForMaskedLM", len(metaspace_tokenizer)), tmp_path / "m", metaspace_tokenizer))
    with pytest.raises(OptionError, match="no mask token"):
        choose_target("masked", model, paired=False)


def test_every_name_can_be_asked_for(loaded: Loaded) -> None:
    classifier, base = loaded("BertForSequenceClassification"), loaded("BertModel")
    found = set()
    for name in NAMES:
        asked = name.replace("LABEL", "1")
        model = classifier if asked in ("predicted", "class:1") else base
        found.add(choose_target(asked, model, paired=asked == "similarity").name)
    assert found == {n.partition(":")[0] for n in NAMES}
