"""Heads of tasks on checkpoints of every kind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import zoo
from saved import build
from small_vocabulary import WORDS
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.errors import ModelError, OptionError
from headlens.heads import Head
from headlens.interventions.compacting import compact_model, heads_of_model
from headlens.models.loading import LoadedModel
from headlens.tasks.catalogue import CATALOGUE
from headlens.tasks.task import Task
from headlens.tasks.task_heads import ModelWithHead, check_head, with_masked_head, with_task_head

SST2, STSB, MNLI, SQUAD, SWAG, SIMILARITY = (
    CATALOGUE[name].task for name in ("sst2", "stsb", "mnli", "squad", "swag", "similarity")
)
MARIAN = {"pad_token_id": 1, "eos_token_id": 3, "decoder_start_token_id": 1}
IDS = torch.tensor([[5, 6, 7, 8]])


@pytest.fixture
def headed(wordpiece_tokenizer: PreTrainedTokenizerBase) -> Any:
    def put(model: PreTrainedModel, task: Task, seed: int = 0) -> ModelWithHead:
        return with_task_head(LoadedModel("tiny", model, wordpiece_tokenizer, None), task, seed)

    return put


def test_every_task_finds_its_class(headed: Any) -> None:
    names = {
        "sequence-classification": "BertForSequenceClassification",
        "multiple-choice": "BertForMultipleChoice",
        "question-answering": "BertForQuestionAnswering",
        "masked-lm": "BertForMaskedLM",
        "language-model": "BertForMaskedLM",
        "embedding": "BertModel",
    }
    for name, entry in CATALOGUE.items():
        if entry.task.head == "seq2seq-lm":
            with pytest.raises(OptionError, match=f"--task {name} needs a seq2seq-lm head, .* none for bert models"):
                headed(build("BertModel", WORDS), entry.task)
            continue
        if entry.task.head == "causal-lm":
            with pytest.raises(OptionError, match=f"--task {name} is for decoders such as GPT-2"):
                headed(build("BertModel", WORDS), entry.task)
            for decoder in ("GPT2Model", "GPT2LMHeadModel"):
                assert type(headed(build(decoder, WORDS), entry.task).model).__name__ == "GPT2LMHeadModel"
            continue
        found = headed(build("BertForTokenClassification", WORDS, num_hidden_layers=1), entry.task).model
        assert type(found).__name__ == names[entry.task.head]
        if entry.task.head == "sequence-classification":
            classes = entry.task.labels
            assert found.config.num_labels == max(1, len(classes))
            assert not classes or list(found.config.id2label.values()) == list(classes)
            assert found.config.problem_type == ("single_label_classification" if classes else "regression")


def test_the_body_is_the_checkpoint_s_and_the_head_belongs_to_the_seed(headed: Any) -> None:
    old = build("BertForMaskedLM", WORDS)
    before = {name: tensor.clone() for name, tensor in old.bert.state_dict().items()}
    found = headed(old, SST2, 3)
    own = found.model.state_dict()
    assert all(torch.equal(own[f"bert.{name}"], tensor) for name, tensor in before.items())
    assert found.fresh == ("bert.pooler", "classifier")
    same, other = (headed(build("BertForMaskedLM", WORDS), SST2, seed).model.classifier.weight for seed in (3, 4))
    assert torch.equal(found.model.classifier.weight, same)
    assert not torch.equal(same, other)
    assert headed(build("BertModel", WORDS), SST2).fresh == ("classifier",)
    assert not found.model.training


def test_a_random_pooler_does_not_matter_to_mean_embeddings(headed: Any) -> None:
    found = headed(build("BertForMaskedLM", WORDS), CATALOGUE["paraphrase"].task)
    assert found.model.pooler is not None
    assert found.fresh == ()


def test_a_head_with_the_same_classes_stays(headed: Any) -> None:
    unnamed = build("BertForSequenceClassification", WORDS, num_labels=3)
    found = headed(unnamed, MNLI)
    assert found.model is unnamed
    assert found.fresh == ()
    assert found.model.config.id2label == dict(enumerate(MNLI.labels))
    turned = {0: "CONTRADICTION", 1: "neutral", 2: "entailment"}
    named = build("BertForSequenceClassification", WORDS, num_labels=3, id2label=turned)
    named.config.label2id = {name: number for number, name in turned.items()}
    assert headed(named, MNLI).model is named
    assert named.config.id2label == turned
    scores = build("BertForSequenceClassification", WORDS, num_labels=1)
    assert headed(scores, STSB).model is scores
    questions = build("BertForQuestionAnswering", WORDS)
    assert headed(questions, SQUAD).model is questions


def test_a_head_with_other_classes_goes(headed: Any) -> None:
    other = build("BertForSequenceClassification", WORDS, num_labels=2, id2label={0: "spam", 1: "ham"})
    other.config.label2id = {"spam": 0, "ham": 1}
    found = headed(other, SST2)
    assert found.fresh == ("classifier",)
    assert found.model.config.label2id == {"negative": 0, "positive": 1}
    assert headed(build("BertForSequenceClassification", WORDS, num_labels=2), MNLI).model.classifier.out_features == 3
    three = build("BertForSequenceClassification", WORDS, num_labels=3)
    assert headed(three, SQUAD).model(IDS).start_logits.shape == (1, 4)


@pytest.mark.parametrize("name", ["bert-mlm", "albert-mlm"])
def test_lost_heads_stay_lost(headed: Any, name: str) -> None:
    """Those cut out, and those masked at single depths of shared weights."""
    old = zoo.ZOO[name].build(vocab_size=WORDS)
    one = Head("encoder", 0, 2)
    compact_model(old, [Head("encoder", layer, 1) for layer in range(4 if "albert" in name else 3)])
    if "albert" in name:
        compact_model(old, [one])
    expected, lost = old.base_model(IDS).last_hidden_state, heads_of_model(old.base_model)
    found = headed(old, SST2).model
    torch.testing.assert_close(found.base_model(IDS).last_hidden_state, expected, rtol=0, atol=0)
    assert heads_of_model(found.base_model) == lost
    assert (one in lost.masked) == ("albert" in name)


def test_embedders(headed: Any) -> None:
    two_sided = build("MarianMTModel", WORDS, **MARIAN)
    assert headed(two_sided, SIMILARITY).model is two_sided
    base = headed(build("BertForMaskedLM", WORDS), SIMILARITY).model
    assert type(base).__name__ == "BertModel"


def test_decoders_know_what_padding_is(bytebpe_tokenizer: PreTrainedTokenizerBase) -> None:
    model = build("GPT2LMHeadModel", len(bytebpe_tokenizer), eos_token_id=bytebpe_tokenizer.eos_token_id)
    found = with_task_head(LoadedModel("tiny", model, bytebpe_tokenizer, None), SST2, 0).model
    assert bytebpe_tokenizer.pad_token_id == found.config.pad_token_id == bytebpe_tokenizer.eos_token_id
    short, pad = [7, 8], [bytebpe_tokenizer.pad_token_id]
    whole = found(torch.tensor([short])).logits
    padded = found(torch.tensor([short + pad * 2]), attention_mask=torch.tensor([[1, 1, 0, 0]])).logits
    torch.testing.assert_close(whole, padded)


def test_the_type_stays(headed: Any) -> None:
    assert headed(build("BertModel", WORDS).to(torch.bfloat16), SST2).model.dtype == torch.bfloat16


def test_what_cannot_be(headed: Any, marian_tokenizer: PreTrainedTokenizerBase) -> None:
    marian = LoadedModel("opus", build("MarianMTModel", **MARIAN), marian_tokenizer, None)
    with pytest.raises(OptionError, match=r"--task sst2 needs a sequence-class.* for marian models such as opus"):
        with_task_head(marian, SST2, 0)
    with pytest.raises(ModelError, match="tiny has no tokenizer"):
        with_task_head(LoadedModel("tiny", build("BertModel"), None, None), SST2, 0)
    encoder = build("T5EncoderModel", WORDS)
    with pytest.raises(ModelError, match=r"tiny has no weights for transformer\.decoder"):
        headed(encoder, SST2)
    assert SWAG.head == "multiple-choice"


def test_masked_language_models() -> None:
    old = build("BertForSequenceClassification", WORDS)
    found = with_masked_head(LoadedModel("tiny", old, None, None), 0)
    assert type(found.model).__name__ == "BertForMaskedLM"
    assert found.fresh == ("cls",)
    decoder, embeddings = found.model.get_output_embeddings(), found.model.get_input_embeddings()
    assert decoder.weight is embeddings.weight


@pytest.mark.parametrize("kind", ["Bert", "Albert"])
def test_a_head_for_masked_tokens_stays_with_and_without_one_for_next_sentences(
    kind: str, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    def loaded(model: PreTrainedModel) -> LoadedModel:
        return LoadedModel("tiny", model, wordpiece_tokenizer, None)

    both = build(f"{kind}ForPreTraining", WORDS).eval()
    expected = both(IDS).prediction_logits
    alone = with_masked_head(loaded(both), 0)
    assert (type(alone.model).__name__, alone.fresh) == (f"{kind}ForMaskedLM", ())
    torch.testing.assert_close(alone.model(IDS).logits, expected)
    again = with_masked_head(loaded(alone.model), 0, next_sentence=True)
    assert type(again.model).__name__ == f"{kind}ForPreTraining"
    torch.testing.assert_close(again.model(IDS).prediction_logits, expected)
    head = "cls" if kind == "Bert" else "sop_classifier"
    assert set(again.fresh) == {f"{kind.lower()}.pooler", head}
    assert with_masked_head(loaded(again.model), 0, next_sentence=True).model is again.model


def test_models_without_a_head_for_next_sentences(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    for name in ("RobertaForMaskedLM", "ElectraForMaskedLM"):
        loaded = LoadedModel("tiny", build(name, WORDS, pad_token_id=1), wordpiece_tokenizer, None)
        with pytest.raises(
            OptionError, match=r"--training-args next-sentence is for models with a next-sentence head; .* no such"
        ):
            with_masked_head(loaded, 0, next_sentence=True)


@pytest.mark.parametrize(
    ("kind", "untrained"),
    [
        ("BertForSequenceClassification", "classifier"),
        ("BertForSequenceClassification", "bert.pooler.dense"),
        ("BertModel", "pooler.dense"),
        ("BertForMaskedLM", "cls.predictions.transform.dense"),
    ],
)
def test_what_was_random_before_begins_anew_with_the_seed(
    wordpiece_tokenizer: PreTrainedTokenizerBase, kind: str, untrained: str
) -> None:
    """A pooler or head that the checkpoint does not have is no part of it: two seeds differ, a seed does not."""

    def put(seed: int) -> ModelWithHead:
        model = build(kind, WORDS)
        names = frozenset(f"{untrained}.{n}" for n in ("weight", "bias"))
        loaded = LoadedModel("tiny", model, wordpiece_tokenizer, None, names)
        return with_masked_head(loaded, seed) if kind == "BertForMaskedLM" else with_task_head(loaded, SST2, seed)

    place = untrained if kind != "BertModel" else f"bert.{untrained}"
    first, again, other = (put(seed).model.get_parameter(f"{place}.weight") for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, build(kind, WORDS).get_parameter(f"{untrained}.weight"))
    assert any(place.startswith(part) for part in put(0).fresh)


@pytest.mark.parametrize("name", ["BertForMaskedLM", "MarianMTModel", "BartForConditionalGeneration"])
def test_tasks_of_decoders_do_not_advise_to_train_another_model(
    name: str, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    """`headlens train marian --task causal-lm` would be refused."""
    settings = MARIAN if name != "BertForMaskedLM" else {}
    loaded = LoadedModel("tiny", build(name, WORDS, **settings), wordpiece_tokenizer, None)
    for task in ("causal-lm", "logit-difference"):
        with pytest.raises(OptionError, match=f"--task {task} is for decoders such as GPT-2") as refused:
            check_head(loaded, CATALOGUE[task].task)
        assert "headlens train" not in refused.value.advice
    decoder = LoadedModel("tiny", build("GPT2LMHeadModel", WORDS), wordpiece_tokenizer, None)
    check_head(decoder, CATALOGUE["causal-lm"].task)
