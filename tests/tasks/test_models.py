"""Tasks run with tiny models: what is read out of a batch is what each example by itself says."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from saved import build
from torch.nn.functional import cosine_similarity, cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.errors import ModelError, OptionError
from headlens.models.loading import LoadedModel
from headlens.tasks.classification import (
    MultipleChoice,
    ParaphraseChoice,
    Regression,
    SentenceSimilarity,
    SequenceClassification,
)
from headlens.tasks.examples import TaskExample, TextExample
from headlens.tasks.masked import MaskedLM, TranslationLoss
from headlens.tasks.reader import Reader
from headlens.tasks.task import PreparedExample, Task, TaskBatch
from headlens.tasks.translation import Translation

PAIRS = [
    TextExample("a", ("A cat sleeps.", "The animal is at rest."), 1),
    TextExample("b", ("It rains in the whole country today.", "No."), 0),
    TextExample("c", ("Yes.", "He went home because it had become too dark to see."), 1),
]


def loaded(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    return LoadedModel("tiny", model.eval(), tokenizer, None)


def batch_of(task: Task, examples: Sequence[TaskExample], reader: Reader) -> TaskBatch:
    prepared = [PreparedExample(i, e, task.prepare(e, reader)) for i, e in enumerate(examples)]
    return task.collate(prepared, reader, "cpu")


def together_and_apart(task: Task, model: PreTrainedModel, examples: Sequence[TaskExample], reader: Reader) -> Any:
    """Records of a batch, which must be those of every example by itself."""
    batch = batch_of(task, examples, reader)
    records = task.read(task.run(model, batch), batch)
    assert records.dtype == np.float64
    assert records.shape == (len(examples), len(task.columns))
    single = [batch_of(task, [e], reader) for e in examples]
    np.testing.assert_allclose(
        np.concatenate([task.read(task.run(model, b), b) for b in single]), records, rtol=1e-4, atol=1e-4
    )
    return records


def trained(task: Task, model: PreTrainedModel, batch: TaskBatch) -> float:
    loss = task.loss(model(**batch.with_labels), batch)
    assert loss.requires_grad
    losses = task.losses(model(**batch.inputs, **task.arguments(model)), batch)
    assert losses.requires_grad
    assert losses.shape == (len(batch),)
    labels = batch.labels.get("labels")
    units = int((labels != -100).sum()) if labels is not None and labels.dim() == 2 else len(batch)
    assert losses.sum().item() / units == pytest.approx(loss.item(), rel=1e-5)
    return loss.item()


@pytest.fixture
def size(wordpiece_tokenizer: PreTrainedTokenizerBase) -> int:
    return len(wordpiece_tokenizer)


def test_classes(wordpiece_tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    task = SequenceClassification("rte", ("entailment", "not_entailment"), ("accuracy", "loss"))
    model = build("BertForSequenceClassification", size)
    reader = Reader.of(loaded(model, wordpiece_tokenizer), task.labels)
    records = together_and_apart(task, model, PAIRS, reader)
    inputs = [wordpiece_tokenizer(*e.texts, return_tensors="pt") for e in PAIRS]
    with torch.no_grad():
        logits = torch.cat([model(**i).logits for i in inputs])
    assert records[:, 0].tolist() == [1, 0, 1]
    assert records[:, 1].tolist() == logits.argmax(1).tolist()
    nll = cross_entropy(logits, torch.tensor([1, 0, 1]), reduction="none")
    np.testing.assert_allclose(records[:, 2], nll, rtol=1e-4)
    loss = trained(task, model, batch_of(task, PAIRS, reader))
    assert loss == pytest.approx(task.value(records, metric="loss"), rel=1e-4)


def test_classes_in_another_order(wordpiece_tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    task = SequenceClassification("mnli", ("entailment", "neutral", "contradiction"))
    examples = [TextExample(str(i), ("A cat sleeps.", t), i) for i, t in enumerate(["A cat.", "No cat.", "Cats!"])]
    names = {0: "CONTRADICTION", 1: "Entailment", 2: "neutral"}
    plain = build("BertForSequenceClassification", size, num_labels=3)
    model = build("BertForSequenceClassification", size, num_labels=3, id2label=names, label2id={})
    model.config.label2id = {name: number for number, name in names.items()}
    usual = Reader.of(loaded(plain, wordpiece_tokenizer), task.labels)
    reader = Reader.of(loaded(model, wordpiece_tokenizer), task.labels)
    assert usual.order.places is None
    assert reader.order.places == (1, 2, 0)
    batch, other = batch_of(task, examples, reader), batch_of(task, examples, usual)
    assert batch.labels["labels"].tolist() == [1, 2, 0]
    assert other.labels["labels"].tolist() == [0, 1, 2]
    logits = torch.eye(3)[[1, 2, 0]] * 4  # the model is always right
    records = task.read(_Logits(logits), batch)
    assert task.value(records) == 1
    assert task.value(task.read(_Logits(logits), other)) == 0
    assert trained(task, model, batch) == pytest.approx(task.read(task.run(model, batch), batch)[:, 2].mean(), rel=1e-4)


class _Logits:
    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


def test_scores(wordpiece_tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    task = Regression("stsb")
    model = build("BertForSequenceClassification", size, num_labels=1)
    examples = [TextExample(e.id, e.texts, 2.5 + i) for i, e in enumerate(PAIRS)]
    reader = Reader.of(loaded(model, wordpiece_tokenizer))
    records = together_and_apart(task, model, examples, reader)
    assert records[:, 0].tolist() == [2.5, 3.5, 4.5]
    expected = ((records[:, 0] - records[:, 1]) ** 2).mean()
    assert trained(task, model, batch_of(task, examples, reader)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("head", ["BertModel", "BertForMaskedLM"])
def test_similarity(wordpiece_tokenizer: PreTrainedTokenizerBase, size: int, head: str) -> None:
    model = build(head, size)
    reader = Reader.of(loaded(model, wordpiece_tokenizer))
    records = together_and_apart(SentenceSimilarity(), model, PAIRS, reader)
    for example, (gold, cosine) in zip(PAIRS, records, strict=True):
        with torch.no_grad():
            means = [
                model.base_model(**wordpiece_tokenizer(t, return_tensors="pt")).last_hidden_state.mean(1)
                for t in example.texts
            ]
        assert cosine == pytest.approx(cosine_similarity(*means).item(), abs=1e-5)
        assert gold == example.label
    batch = batch_of(SentenceSimilarity(), PAIRS, reader)
    network = SentenceSimilarity().network(model)
    loss = SentenceSimilarity().loss(network(**batch.with_labels), batch)
    assert loss.item() == pytest.approx(((records[:, 1] - records[:, 0] / 5) ** 2).mean(), rel=1e-4)


def test_paraphrases(wordpiece_tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    task, model = ParaphraseChoice(candidates=3), build("BertModel", size)
    examples = [TextExample(str(i), ("A cat.", "A dog.", "The cat sleeps.", "So be it!"), i) for i in range(3)]
    reader = Reader.of(loaded(model, wordpiece_tokenizer))
    records = together_and_apart(task, model, examples, reader)
    cosines = [
        together_and_apart(SentenceSimilarity(), model, [TextExample("x", ("A cat.", t), 0)], reader)[0, 1]
        for t in examples[0].texts[1:]
    ]
    for label, record in enumerate(records):
        others = [c for i, c in enumerate(cosines) if i != label]
        assert record == pytest.approx([label, np.argmax(cosines), cosines[label] - max(others)], abs=1e-5)
    batch = batch_of(task, examples, reader)
    expected = cross_entropy(torch.tensor([cosines] * 3) / 0.05, torch.arange(3)).item()
    assert task.loss(model(**batch.with_labels), batch).item() == pytest.approx(expected, rel=1e-3)


def test_endings(wordpiece_tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    task, model = MultipleChoice(), build("BertForMultipleChoice", size)
    examples = [
        TextExample("1", ("He sits.", "He eats.", "He runs very fast.", "He sings.", "No."), 2),
        TextExample("2", ("She stood in the rain for hours.", "Why?", "She is wet.", "She naps.", "She sat."), 1),
    ]
    reader = Reader.of(loaded(model, wordpiece_tokenizer))
    records = together_and_apart(task, model, examples, reader)
    batch = batch_of(task, examples, reader)
    assert batch.inputs["input_ids"].shape[:2] == (2, 4)
    for example, (label, predicted, margin) in zip(examples, records, strict=True):
        pairs = [wordpiece_tokenizer(example.texts[0], t, return_tensors="pt") for t in example.texts[1:]]
        with torch.no_grad():
            scores = [model(**{k: v[None] for k, v in p.items()}).logits.item() for p in pairs]
        others = [s for i, s in enumerate(scores) if i != example.label]
        assert (label, predicted) == (example.label, np.argmax(scores))
        assert margin == pytest.approx(scores[int(label)] - max(others), abs=1e-4)
    assert trained(task, model, batch) > 0
    with pytest.raises(OptionError, match=r"has 4 endings, but the model's scores have the shape \(2, 2\)"):
        task.read(_Logits(torch.zeros(2, 2)), batch)


def test_masked_words(wordpiece_tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    task, model = MaskedLM(share=0.3), build("BertForMaskedLM", size)
    texts = ["It had become too dark to see anything in the house.", "A cat."]
    examples = [TextExample(str(i), (t,)) for i, t in enumerate(texts)]
    reader = Reader.of(loaded(model, wordpiece_tokenizer))
    records = together_and_apart(task, model, examples, reader)
    assert records[:, 1].tolist() == [round(0.3 * 12), 1]
    batch = batch_of(task, examples, reader)
    masked = batch.inputs["input_ids"] == wordpiece_tokenizer.mask_token_id
    assert (masked == (batch.labels["labels"] != -100)).all()
    whole = wordpiece_tokenizer(texts, padding=True, return_tensors="pt")["input_ids"]
    assert (whole[masked] == batch.labels["labels"][masked]).all()
    assert trained(task, model, batch) == pytest.approx(task.value(records, metric="loss"), rel=1e-4)
    assert task.value(records, metric="perplexity") == pytest.approx(np.exp(task.value(records, metric="loss")))
    with torch.no_grad():
        right = (model(**batch.inputs).logits.argmax(-1) == batch.labels["labels"]).sum().item()
    assert records[:, 2].sum() == right
    assert task.prepare(TextExample("x", ("A [MASK] cat.",)), reader) == ()
    assert task.prepare(TextExample("x", ("cat " * 60,)), reader) == ()
    assert MaskedLM(share=0.3, seed=1).prepare(examples[0], reader) != task.prepare(examples[0], reader)


def translator(tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    pad = tokenizer.pad_token_id
    settings = {"pad_token_id": pad, "eos_token_id": tokenizer.eos_token_id, "decoder_start_token_id": pad}
    return build("MarianMTModel", len(tokenizer), forced_eos_token_id=None, **settings)


TRANSLATIONS = [TextExample("1", ("A cat sold the café.", "She cannot see.")), TextExample("2", ("It", "A cat sold."))]


def test_translations_that_are_shown(marian_tokenizer: PreTrainedTokenizerBase) -> None:
    task, model = TranslationLoss(), translator(marian_tokenizer)
    reader = Reader.of(loaded(model, marian_tokenizer))
    records = together_and_apart(task, model, TRANSLATIONS, reader)
    assert records[:, 1].tolist() == [len(marian_tokenizer(text_target=e.texts[1])["input_ids"]) for e in TRANSLATIONS]
    assert trained(task, model, batch_of(task, TRANSLATIONS, reader)) == pytest.approx(task.value(records), rel=1e-4)


def test_translations_that_are_written(marian_tokenizer: PreTrainedTokenizerBase) -> None:
    from sacrebleu.metrics import BLEU, CHRF

    task, model = Translation(beams=2, max_tokens=12), translator(marian_tokenizer)
    reader = Reader.of(loaded(model, marian_tokenizer))
    batch = batch_of(task, TRANSLATIONS, reader)
    written = task.texts(task.run(model, batch), batch)
    references = [e.texts[1] for e in TRANSLATIONS]
    ids = torch.tensor(marian_tokenizer(text_target=references, padding=True)["input_ids"])
    for outputs, texts in ((task.run(model, batch), written), (ids, task.texts(ids, batch))):
        records = task.read(outputs, batch)
        assert task.value(records) == pytest.approx(BLEU().corpus_score(texts, [references]).score)
        assert task.value(records, metric="chrf") == pytest.approx(CHRF().corpus_score(texts, [references]).score)
    assert task.value(records) > 90  # the reference itself, up to its spaces
    with pytest.raises(OptionError, match="read from generated ids"):
        task.read(_Logits(torch.zeros(2, 3, 4)), batch)


def test_translations_without_an_end(marian_tokenizer: PreTrainedTokenizerBase) -> None:
    task, model = Translation(max_tokens=3), translator(marian_tokenizer)
    batch = batch_of(task, TRANSLATIONS, Reader.of(loaded(model, marian_tokenizer)))
    end, pad, word = marian_tokenizer.eos_token_id, marian_tokenizer.pad_token_id, 5
    cut = task.columns.index("cut")

    def told(*rows: list[int]) -> list[float]:
        found: list[float] = task.read(torch.tensor(rows), batch)[:, cut].tolist()
        return found

    # A decoder starts from padding. Models may be made to write the end as the last token that they have.
    assert told([pad, word, word, word], [pad, word, word, end]) == [1, 1]
    assert told([pad, word, end, pad], [pad, end, pad, pad]) == [0, 0]
    assert told([pad, word, word], [pad, word, end]) == [0, 0], "shorter than it may be"


WRONG: list[tuple[Task, str, TextExample, str]] = [
    (
        SequenceClassification("rte", ("yes", "no")),
        "BertModel",
        PAIRS[0],
        "needs a model with 2 classes; this one gives no logits",
    ),
    (
        SequenceClassification("m", ("a", "b", "c")),
        "BertForSequenceClassification",
        PAIRS[0],
        "has 3 classes .* the model 2",
    ),
    (Regression("stsb"), "BertForSequenceClassification", PAIRS[0], "predicts a score, but the model has 2 classes"),
    (MaskedLM(), "BertModel", PAIRS[0], "needs a model with a language-model head"),
    (TranslationLoss(), "BertModel", PAIRS[0], "Translation needs an encoder-decoder"),
]


@pytest.mark.parametrize(("task", "name", "example", "message"), WRONG)
def test_models_for_other_tasks(
    wordpiece_tokenizer: PreTrainedTokenizerBase, size: int, task: Task, name: str, example: TextExample, message: str
) -> None:
    model = build(name, size)
    reader = Reader.of(loaded(model, wordpiece_tokenizer), task.labels)
    with pytest.raises(OptionError, match=message):
        together_and_apart(task, model, [example], reader)


def test_models_that_read_nothing(bytebpe_tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    model = build("BertModel", size)
    with pytest.raises(ModelError, match="tiny has no tokenizer"):
        Reader.of(LoadedModel("tiny", model, None, None))
    with pytest.raises(OptionError, match="has no mask token"):
        MaskedLM().prepare(PAIRS[0], Reader(bytebpe_tokenizer))
    with pytest.raises(OptionError, match=r"The model computed no loss for the task rte.\nIt needs a sequence-"):
        SequenceClassification("rte", ("a", "b")).loss(object(), TaskBatch({}, {}, [], Reader(bytebpe_tokenizer)))
