"""Ablation on a device that has too little memory: batches in parts, the same numbers, one warning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from made_tasks import given_examples, text
from saved import build, save
from tiers import rest_slow
from torch import nn
from transformers import PreTrainedTokenizerBase

from headlens import memory
from headlens.analyses.ablate.options import STRATEGIES, AblateRequest, AblationOptions, PruneOptions
from headlens.analyses.ablate.recipe import run_ablate
from headlens.analyses.ablate.scorers import ImportanceEstimator
from headlens.analyses.ablate.sweep import HeadRecords, TaskSweep
from headlens.errors import ModelError
from headlens.heads import Head
from headlens.models.loading import LoadedModel
from headlens.replay.modes import Mode
from headlens.shared_options import OutputOptions
from headlens.tasks.catalogue import CATALOGUE
from headlens.tasks.task_examples import Examples
from headlens.tasks.task_heads import with_task_head
from headlens.tasks.task_options import TaskData

SST2, TRANSLATION = (CATALOGUE[name].task for name in ("sst2", "translation"))
TOKENS = 60  # of a batch: the examples have up to 8
INNER = 24


@contextmanager
def scarce(tokens: int) -> Iterator[list[int]]:
    """Whatever model runs, its inner layers have memory for so many tokens; the list holds the sizes refused."""
    refused: list[int] = []

    def check(module: nn.Module, args: tuple[Any, ...]) -> None:
        # no other layer of the models here is so wide
        if getattr(module, "out_features", 0) == INNER and (size := args[0][..., 0].numel()) > tokens:
            refused.append(size)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    handle = nn.modules.module.register_module_forward_pre_hook(check)
    try:
        yield refused
    finally:
        handle.remove()


@pytest.fixture(autouse=True)
def _no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lack of memory collects garbage, which takes long in a process with many modules; see tests of `memory`."""
    monkeypatch.setattr(memory, "free", lambda _: None)


@pytest.fixture(scope="module")
def loaded(wordpiece_tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    bare = build("BertModel", len(wordpiece_tokenizer), intermediate_size=INNER)
    model = with_task_head(LoadedModel("tiny", bare, wordpiece_tokenizer, None), SST2, 0).model.double()
    return LoadedModel("tiny", model, wordpiece_tokenizer, None)


@pytest.fixture(scope="module")
def examples(loaded: LoadedModel, wordpiece_tokenizer: PreTrainedTokenizerBase) -> Examples:
    return given_examples(SST2, loaded.model, wordpiece_tokenizer, 30)


def assert_same(found: HeadRecords, expected: HeadRecords) -> None:
    assert found.there.all()
    np.testing.assert_allclose(found.intact, expected.intact, rtol=1e-10)
    for head, records in expected.items():
        np.testing.assert_allclose(dict(found.items())[head], records, rtol=1e-10)


@pytest.mark.parametrize("tokens", rest_slow([8, 20, 40], [20]))
@pytest.mark.parametrize("mode", rest_slow(["zero", "mean", "uniform", "keep-only"], ("zero",)))
def test_a_sweep_in_parts_gives_the_same(loaded: LoadedModel, examples: Examples, mode: Mode, tokens: int) -> None:
    expected = TaskSweep(mode, TOKENS).run(loaded.model, examples)
    warnings: list[str] = []
    done: list[int] = []
    with scarce(tokens) as refused:
        found = TaskSweep(mode, TOKENS, done.append, warnings.append).run(loaded.model, examples)
    assert refused, "the test must have made memory run out"
    assert_same(found, expected)
    assert sum(done) == len(examples)
    assert len(warnings) == (2 if mode == "mean" else 1), "once a pass, and means are a pass of their own"
    assert all("batches are halved" in text and "--batch-tokens" in text for text in warnings)


def test_a_size_that_failed_is_not_tried_again(loaded: LoadedModel, examples: Examples) -> None:
    with scarce(20) as refused:
        TaskSweep("zero", TOKENS, warn=lambda _: None).run(loaded.model, examples)
    # the room of a batch and that for heads are halved from 60 and from thousands of tokens
    assert len(refused) <= 12


@pytest.mark.parametrize("mode", ["zero", "mean"])
def test_no_memory_for_a_single_example(loaded: LoadedModel, examples: Examples, mode: Mode) -> None:
    with scarce(0), pytest.raises(ModelError, match=r"(?s)not have enough memory for a single example.*--device cpu"):
        TaskSweep(mode, TOKENS, warn=lambda _: None).run(loaded.model, examples)
    # nothing is left of it
    assert_same(TaskSweep(mode).run(loaded.model, examples), TaskSweep(mode).run(loaded.model, examples))


def test_importances_in_parts(loaded: LoadedModel, examples: Examples) -> None:
    removed = frozenset([Head("encoder", 0, 1)])
    expected = ImportanceEstimator(loaded.model, examples, TOKENS, pytest.fail)(removed)
    warnings: list[str] = []
    with scarce(20) as refused:
        found = ImportanceEstimator(loaded.model, examples, TOKENS, warnings.append)(removed)
    assert refused
    assert len(warnings) == 1
    assert found == pytest.approx(expected, rel=1e-10)
    with scarce(0), pytest.raises(ModelError, match="not have enough memory for a single example"):
        ImportanceEstimator(loaded.model, examples, TOKENS, lambda _: None)(removed)


@pytest.mark.slow
def test_written_translations_in_parts(marian_tokenizer: PreTrainedTokenizerBase) -> None:
    ids = {"pad_token_id": marian_tokenizer.pad_token_id, "eos_token_id": marian_tokenizer.eos_token_id}
    ids |= {"decoder_start_token_id": ids["pad_token_id"], "forced_eos_token_id": None}
    wide = {"encoder_ffn_dim": INNER, "decoder_ffn_dim": INNER}
    model = build("MarianMTModel", len(marian_tokenizer), **ids, **wide).double()
    examples = given_examples(TRANSLATION, model, marian_tokenizer, 6)
    heads = [Head("encoder", 0, 0), Head("cross", 1, 1)]
    expected = TaskSweep("zero", 40).run(model, examples, heads)
    warnings: list[str] = []
    with scarce(16) as refused:
        found = TaskSweep("zero", 40, warn=warnings.append).run(model, examples, heads)
    assert refused
    assert len(warnings) == 1
    assert_same(found, expected)


Ask = Callable[..., AblateRequest]


@pytest.fixture(scope="module")
def ask(wordpiece_tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory) -> Ask:
    folder = tmp_path_factory.mktemp("scarce")
    names = {"id2label": {0: "negative", 1: "positive"}, "label2id": {"negative": 0, "positive": 1}}
    model = build("BertForSequenceClassification", len(wordpiece_tokenizer), intermediate_size=INNER, **names)
    name = save(model, folder / "model", wordpiece_tokenizer)
    data = folder / "dev.tsv"
    rows = "".join(f"{text(n)} {text(n, 3)}\t{n % 3 % 2}\n" for n in range(20))
    data.write_text(f"sentence\tlabel\n{rows}", encoding="utf-8")
    options = AblationOptions("mean", keep_only=True, replicates=100, batch_tokens=200)
    pruning = PruneOptions((2,), tuple(name for name in STRATEGIES if name != "gates"), beam=2, orders=1)
    return lambda out: AblateRequest(
        (name,), TaskData("sst2", (str(data),)), options, pruning, figures=False, place=OutputOptions(out)
    )


@pytest.mark.slow
def test_a_whole_run_in_parts(ask: Ask, tmp_path: Path) -> None:
    expected = run_ablate(ask(tmp_path / "whole"))
    with scarce(50) as refused:
        found = run_ablate(ask(tmp_path / "parts"))
    assert refused
    for name, table in expected.tables.items():
        # Sums in single precision, in another order, of which some nearly cancel.
        pd.testing.assert_frame_equal(found.tables[name], table, rtol=1e-6, atol=1e-7)
    assert len([note for note in found.notes if "batches are halved" in note]) == 1, "however many the passes"
    assert not [note for note in expected.notes if "halved" in note]


def test_a_run_without_memory_leaves_nothing(ask: Ask, tmp_path: Path) -> None:
    with scarce(0), pytest.raises(ModelError, match="not have enough memory for a single example"):
        run_ablate(ask(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
