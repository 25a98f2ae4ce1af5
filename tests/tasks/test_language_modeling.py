"""Tasks of language models against loops over single tokens."""

from __future__ import annotations

import csv
import inspect
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import FAMILIES, Family
from hypothesis import given
from hypothesis import strategies as st
from saved import build
from tiers import rest_slow
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.corpora.batches import IGNORED
from headlens.errors import OptionError
from headlens.models.loading import LoadedModel
from headlens.tasks import language_modeling
from headlens.tasks import task as task_module
from headlens.tasks.catalogue import CATALOGUE, DATA
from headlens.tasks.evaluation import EvaluationOptions, evaluate
from headlens.tasks.example_sources import DataOptions, MemoryExamples, SourceCounts
from headlens.tasks.examples import TextExample
from headlens.tasks.language_modeling import CausalLM, Cloze, LogitDifference, MinimalPairs, windows
from headlens.tasks.open_task import open_task
from headlens.tasks.reader import Reader
from headlens.tasks.task import Task
from headlens.tasks.task_options import usual_margin

SENTENCES = ("She took the cat.", "The cats sleep on the old table", "A long day for all of them, and no rain.")
FEW = EvaluationOptions(replicates=0)
Names = tuple[str, ...]


def source(*texts: Names, labels: tuple[float, ...] = ()) -> MemoryExamples:
    numbers = labels or (None,) * len(texts)
    return MemoryExamples(
        tuple(TextExample(f"id{i}", t, n) for i, (t, n) in enumerate(zip(texts, numbers, strict=True)))
    )


@pytest.fixture
def decoder(bytebpe_tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    """Of GPT-2's kind: no special token is added, so that texts begin with the one for their end."""
    return LoadedModel("gpt2", build("GPT2LMHeadModel", len(bytebpe_tokenizer)), bytebpe_tokenizer, None)


@pytest.fixture
def encoder(wordpiece_tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    return LoadedModel("bert", build("BertForMaskedLM", len(wordpiece_tokenizer)), wordpiece_tokenizer, None)


def log_probabilities(model: PreTrainedModel, ids: list[int]) -> Tensor:
    """Of the whole vocabulary after every token, (tokens, vocabulary)."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double().log_softmax(-1)


def token_by_token(loaded: LoadedModel, text: str, context: str = "") -> list[float]:
    """Log-probabilities of the tokens of a text, each from a pass over those before it alone."""
    assert loaded.tokenizer is not None
    ids = [loaded.tokenizer.eos_token_id, *loaded.tokenizer(context + text)["input_ids"]]
    known = 1 + len(loaded.tokenizer(context)["input_ids"]) if context else 1
    return [float(log_probabilities(loaded.model, ids[:place])[-1, ids[place]]) for place in range(known, len(ids))]


def test_every_token_of_a_text_is_predicted_from_those_before_it(decoder: LoadedModel) -> None:
    measured = evaluate(CausalLM(), decoder, source(*((text,) for text in SENTENCES)), FEW)
    expected = [token_by_token(decoder, text) for text in SENTENCES]
    np.testing.assert_allclose(measured.records[:, 0], [-sum(one) for one in expected], rtol=1e-5)
    assert list(measured.records[:, 1]) == [len(one) for one in expected]
    mean = -sum(map(sum, expected)) / sum(map(len, expected))
    assert measured.metrics["loss"].value == pytest.approx(mean, rel=1e-5)
    assert measured.metrics["perplexity"].value == pytest.approx(np.exp(mean), rel=1e-5)


@given(st.integers(0, 40), st.integers(2, 12), st.booleans())
def test_windows_predict_every_token_once(length: int, size: int, begins: bool) -> None:
    ids, first = tuple(range(100, 100 + length)), (1,) if begins else ()
    rows = list(windows(first, ids, size))
    predicted = [label for row in rows for label in row.labels if label != IGNORED]
    assert predicted == list(ids[0 if begins else 1 :])
    room = size - len(first)
    for number, row in enumerate(rows):
        assert len(row.ids) == len(row.labels) <= size
        assert row.ids[: len(first)] == first
        text = row.ids[len(first) :]
        assert text == ids[text[0] - 100 : text[0] - 100 + len(text)], "a stretch of the text"
        if number:
            known = [place for place, label in enumerate(row.labels) if label != IGNORED]
            assert known[0] - len(first) >= room - max(1, room // 2), "half a window before what is predicted"


@pytest.mark.parametrize("size", [1, 0])
def test_a_window_with_no_room_for_a_token_holds_none(size: int) -> None:
    assert list(windows((1,), (5, 6, 7), size)) == []


def test_a_long_text_is_read_in_windows(decoder: LoadedModel) -> None:
    """With a window of 12 tokens: the end of texts, then 11; the next ones begin 5 tokens later."""
    assert decoder.tokenizer is not None
    text = " ".join(SENTENCES)
    first, ids = decoder.tokenizer.eos_token_id, decoder.tokenizer(text)["input_ids"]
    expected, done = 0.0, 0
    while done < len(ids):
        end = min(len(ids), 11 if not done else done + 5)
        start = max(0, end - 11)
        logs = log_probabilities(decoder.model, [first, *ids[start:end]])
        expected += sum(float(logs[place - start, ids[place]]) for place in range(done, end))
        done = end
    measured = evaluate(CausalLM(window=12), decoder, source((text,), (SENTENCES[0],)), FEW)
    assert measured.records[0, 0] == pytest.approx(-expected, rel=1e-5)
    assert measured.records[0, 1] == len(ids)
    assert measured.records[1, 0] == pytest.approx(-sum(token_by_token(decoder, SENTENCES[0])), rel=1e-5)


@pytest.mark.parametrize(
    "name", rest_slow(["LlamaForCausalLM", "GPTNeoXForCausalLM", "OPTForCausalLM"], ["LlamaForCausalLM"])
)
def test_the_loss_is_that_of_transformers(name: str, bytebpe_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded = LoadedModel("tiny", build(name, len(bytebpe_tokenizer)), bytebpe_tokenizer, None)
    ids = torch.tensor([[bytebpe_tokenizer.eos_token_id, *bytebpe_tokenizer(SENTENCES[2])["input_ids"]]])
    with torch.no_grad():
        expected = float(loaded.model(input_ids=ids, labels=ids).loss)
    assert evaluate(CausalLM(), loaded, source((SENTENCES[2],)), FEW).metrics["loss"].value == pytest.approx(
        expected, rel=1e-5
    )


@pytest.mark.parametrize("make", [CausalLM, LogitDifference])
def test_a_model_that_sees_what_comes_after_predicts_no_next_token(
    make: Callable[[], Task], encoder: LoadedModel
) -> None:
    with pytest.raises(OptionError, match="is for decoders such as GPT-2; the tokens of this model see those after"):
        evaluate(make(), encoder, source(("The cat", " a", " b")), FEW)


def test_a_decoder_scores_whole_sentences(decoder: LoadedModel) -> None:
    pairs = [
        ("The cats sleep.", "The cats sleeps."),
        ("A long day.", "An long day."),
        ("She took it.", "She took them all."),
    ]
    measured = evaluate(MinimalPairs(), decoder, source(*pairs, labels=(0, 1, 0)), FEW)
    sums = np.array([[sum(token_by_token(decoder, text)) for text in pair] for pair in pairs])
    assert list(measured.records[:, 1]) == list(sums.argmax(1))
    right = sums[[0, 1, 2], [0, 1, 0]]
    np.testing.assert_allclose(measured.records[:, 2], 2 * right - sums.sum(1), rtol=1e-4)
    assert measured.metrics["accuracy"].value == np.mean(sums.argmax(1) == [0, 1, 0])


def test_an_encoder_scores_sentences_by_pseudo_log_likelihood(encoder: LoadedModel) -> None:
    """Every token with itself and the later pieces of its word masked (Kauf and Ivanova 2023)."""
    assert encoder.tokenizer is not None
    pairs = [("The unbelievable cats sleep.", "The unbelievable cats sleeps."), ("no rain today", "none rain today")]

    def score(text: str) -> float:
        encoding = encoder.tokenizer(text)
        ids, words = encoding["input_ids"], encoding.word_ids()
        total = 0.0
        for place, word in enumerate(words):
            if word is None:
                continue
            row = [
                encoder.tokenizer.mask_token_id if other == word and n >= place else token
                for n, (token, other) in enumerate(zip(ids, words, strict=True))
            ]
            with torch.no_grad():
                logits = encoder.model(input_ids=torch.tensor([row])).logits[0, place].double()
            total += float(logits.log_softmax(-1)[ids[place]])
        return total

    assert any(w == v for w, v in zip(*[encoder.tokenizer(pairs[0][0]).word_ids()[i:] for i in (1, 2)], strict=False))
    measured = evaluate(MinimalPairs(), encoder, source(*pairs, labels=(0, 1)), FEW)
    sums = np.array([[score(text) for text in pair] for pair in pairs])
    np.testing.assert_allclose(measured.records[:, 2], (sums[:, 0] - sums[:, 1]) * [1, -1], rtol=1e-4)
    assert any("Kauf and Ivanova" in note for note in measured.notes)


@pytest.mark.parametrize(
    "name", ["RobertaForMaskedLM", "ElectraForMaskedLM", "DistilBertForMaskedLM", "AlbertForMaskedLM"]
)
def test_other_encoders_score_pairs_too(name: str, wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded = LoadedModel("tiny", build(name, len(wordpiece_tokenizer)), wordpiece_tokenizer, None)
    measured = evaluate(MinimalPairs(), loaded, source(("The cats sleep.", "The cats sleeps."), labels=(0,)), FEW)
    assert np.isfinite(measured.records).all()


def test_continuations_are_scored_after_their_context(decoder: LoadedModel) -> None:
    texts = ("She took", "the old cat.", "a table")
    measured = evaluate(Cloze(), decoder, source(texts, labels=(1,)), FEW)
    scores = [sum(token_by_token(decoder, f" {ending}", texts[0])) for ending in texts[1:]]
    assert measured.records[0, 2] == pytest.approx(scores[1] - scores[0], rel=1e-4)
    by_bytes = [score / len(f" {ending}".encode()) for score, ending in zip(scores, texts[1:], strict=True)]
    assert measured.records[0, 4] == np.argmax(by_bytes)
    assert measured.metrics["acc_norm"].value == float(np.argmax(by_bytes) == 1)


def test_the_logits_of_two_answers_are_compared_at_the_end_of_the_prompt(decoder: LoadedModel) -> None:
    """Prompts of different lengths, so that all but one are padded."""
    assert decoder.tokenizer is not None
    prompts = [("She took the", " a", " t"), ("The cats sleep on", " t", " a"), ("A", " s", " a")]
    tokens = {a: decoder.tokenizer(a)["input_ids"] for a in (" a", " t", " s")}
    assert all(len(ids) == 1 for ids in tokens.values())
    measured = evaluate(LogitDifference(), decoder, source(*prompts), FEW)
    for (prompt, right, wrong), record in zip(prompts, measured.records, strict=True):
        ids = [decoder.tokenizer.eos_token_id, *decoder.tokenizer(prompt)["input_ids"]]
        logs = log_probabilities(decoder.model, ids)[-1]
        assert record[0] == pytest.approx(float(logs[tokens[right][0]] - logs[tokens[wrong][0]]), abs=1e-4)
    assert measured.metrics["logit_difference"].value == pytest.approx(measured.records.mean())
    assert measured.metrics["accuracy"].value == np.mean(measured.records > 0)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ((" unbelievable", " a"), "The answer ' unbelievable' of example id0 is not one token of its own"),
        ((" a", "a"), "Both answers of example id0 are the same token"),
    ],
)
def test_answers_that_cannot_be_compared(decoder: LoadedModel, answers: Names, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        evaluate(LogitDifference(), decoder, source(("She took the", *answers)), FEW)


@pytest.mark.parametrize("good", ["sentence_good", "sen", "good"])
def test_published_files_are_read_as_they_are(good: str, tmp_path: Path) -> None:
    bad = {"sentence_good": "sentence_bad", "sen": "wrong_sen", "good": "bad"}[good]
    rows = [(f"The {number} cats sleep.", f"The {number} cats sleeps.") for number in range(40)]
    lines = "".join(f"{n}\t{one}\t{other}\n" for n, (one, other) in enumerate(rows))
    (tmp_path / "pairs.tsv").write_text(f"UID\t{good}\t{bad}\n{lines}")
    _, examples = open_task("minimal-pairs", tmp_path / "pairs.tsv", DataOptions())
    read = [example for example in examples.read(SourceCounts()) if isinstance(example, TextExample)]
    assert [example.texts[int(example.label or 0)] for example in read] == [one for one, _ in rows]
    # A model that always prefers the first is right in about half of them.
    assert 10 < sum(example.label or 0 for example in read) < 30


def test_two_texts_that_are_the_same_are_no_pair(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("good\tbad\nIt rains.\tIt rains.\nIt rains.\tIt rain.\n")
    _, examples = open_task("minimal-pairs", tmp_path / "pairs.tsv")
    counts = SourceCounts()
    assert [example.id for example in examples.read(counts)] == ["2"]
    assert counts.rows == 2


def test_margins_of_loss_and_perplexity_are_the_same() -> None:
    """1 % of a loss, and what that makes of its exponential; a tenth of a logit, however near to 0 the baseline is."""
    for loss in (0.5, 5.04, 10.35):
        assert np.exp(loss + usual_margin("loss", loss)) == pytest.approx(
            np.exp(loss) + usual_margin("perplexity", np.exp(loss))
        )
    assert usual_margin("logit_difference", 0.001) == usual_margin("logit_difference", -3.0) == 0.1


def test_bundled_pairs_and_prompts_are_balanced() -> None:
    for name, columns in (("minimal_pairs", 3), ("name_copying", 5)):
        with (DATA / f"{name}.tsv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
        assert {len(row) for row in rows} == {columns}
        assert len({tuple(row[:2]) for row in rows}) == len(rows)
        kinds = [row[2 if columns == 3 else 3] for row in rows]
        assert len({kinds.count(kind) for kind in kinds}) == 1
    for prompt, right, wrong, order, reference in rows:
        assert prompt.count(right) == 1, "the answer occurs once"
        assert prompt.count(wrong) == 2
        assert (prompt.index(right) < prompt.index(wrong)) == (order == "ABBA")
        assert reference.count(right) == reference.count(wrong) == 1


@pytest.mark.parametrize("name", ["minimal-pairs", "cloze"])
def test_choices_have_the_chance_of_one_in_two(name: str) -> None:
    task = CATALOGUE[name].task
    assert task.chance(np.zeros((3, len(task.columns)))) == 0.5


BEGINNINGS = ("", "A day. ", "So ", "And ")
PREFERRED = {
    LogitDifference(): ([(f"{b}The day", " is", " the") for b in BEGINNINGS], "' is'", "' the'"),
    Cloze(): ([(f"{b}The day", "is long", "was long") for b in BEGINNINGS], "'is'", "'was'"),
    MinimalPairs(): ([(f"{b}The cats sleep.", f"{b}The cats sleeps.") for b in BEGINNINGS], "'sleep.'", "'sleeps.'"),
}


@pytest.mark.parametrize("task", PREFERRED, ids=lambda task: task.name)
def test_a_preference_that_does_without_reading_is_noted(decoder: LoadedModel, task: Task) -> None:
    """No chance level shows it: a model that prefers one word to another has all of it right."""
    right, *answers = PREFERRED[task]
    wrong = [(*texts[:-2], texts[-1], texts[-2]) for texts in right]

    def notes(*texts: Names, labels: tuple[float, ...]) -> list[str]:
        found = evaluate(task, decoder, source(*texts, labels=labels), FEW).notes
        return [note for note in found if "without reading" in note]

    told = f"4 of 4 examples have the same right answer ({answers[0]}) and the same wrong one ({answers[1]}): a model"
    (note,) = notes(*right, labels=(0.0,) * 4)
    assert note.startswith(told)
    if not isinstance(task, LogitDifference):  # the right candidate is the second one, and the same text
        assert notes(*right[:2], *wrong[2:], labels=(0.0, 0.0, 1.0, 1.0)) == [note]
    assert not notes(*right[:2], *wrong[2:], labels=(0.0,) * 4)
    assert not notes(right[0], labels=(0.0,))


def test_texts_in_windows_are_counted(decoder: LoadedModel) -> None:
    found = evaluate(CausalLM(window=8), decoder, source(("She took",), (" ".join(SENTENCES),)), FEW)
    assert "1 text of more than 8 tokens is read in windows of as many, which overlap by half." in found.notes
    whole = evaluate(CausalLM(), decoder, source(("She took",)), FEW)
    assert not any("windows" in note for note in whole.notes)


def test_texts_begin_as_the_tokenizer_has_it(
    bytebpe_tokenizer: PreTrainedTokenizerBase, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    end = bytebpe_tokenizer.eos_token_id
    assert Reader(bytebpe_tokenizer).beginning_and_text("a cat") == (
        (end,),
        tuple(bytebpe_tokenizer("a cat")["input_ids"]),
    )
    ids = wordpiece_tokenizer("a cat")["input_ids"]
    assert Reader(wordpiece_tokenizer).beginning_and_text("a cat") == ((ids[0],), tuple(ids[1:-1]))


PROMPTS = {
    LogitDifference(): [("She took the", " a", " t"), ("The cats sleep on", " t", " a"), ("A", " s", " a")],
    Cloze(): [("She took", "the old cat.", "a table"), ("A long day for", "them", "all of them")],
    MinimalPairs(): [("The cats sleep on.", "The cats sleeps on."), ("A long day", "A long days")],
    CausalLM(window=8): [(text,) for text in SENTENCES],
}
NOT_READ = ("XLNet", "GPT-J", "BLOOM", "Falcon")  # compute attention by themselves
DECODERS = [family for family in FAMILIES if family.kind == "decoder" and family.name not in NOT_READ]
FIRST = [family for family in DECODERS if family.name in ("GPT-2", "Llama", "OPT")]


@pytest.mark.parametrize("family", rest_slow(DECODERS, FIRST), ids=lambda family: family.name)
def test_only_logits_that_are_read_are_asked_for(
    family: Family, bytebpe_tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = LoadedModel("tiny", family.build(len(bytebpe_tokenizer)), bytebpe_tokenizer, None)
    shapes: list[int] = []
    loaded.model.get_output_embeddings().register_forward_hook(lambda *hooked: shapes.append(hooked[2].shape[1]))
    for task, texts in PROMPTS.items():
        labels = (0,) * len(texts) if isinstance(task, Cloze | MinimalPairs) else ()
        few = evaluate(task, loaded, source(*texts, labels=labels), FEW).records
        least = shapes[-1]
        with monkeypatch.context() as patch:
            for module in (language_modeling, task_module):
                patch.setattr(module, "first_place", lambda _: 0)
            all_of_them = evaluate(task, loaded, source(*texts, labels=labels), FEW).records
        np.testing.assert_allclose(few, all_of_them, atol=1e-4)
        if "logits_to_keep" in inspect.signature(type(loaded.model).forward).parameters and task.name != "causal-lm":
            assert least < shapes[-1], task.name
