"""Vocabularies and texts that are larger than a model: refused, left out with a note, or cut to what it reads."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made_tasks import text
from saved import build, save
from tiers import rest_slow
from transformers import PreTrainedTokenizerBase

Headlens = Callable[..., Any]
Tokenizer = PreTrainedTokenizerBase
LABELS = {"id2label": {0: "negative", 1: "positive"}, "label2id": {"negative": 0, "positive": 1}}
LIMIT = 38  # of RoBERTa with 40 positions, which it counts from 2


@pytest.fixture
def folder(headlens: Headlens) -> Path:
    """Sentences of few words, and one of a hundred, in the empty working folder."""
    del headlens  # which goes to that folder
    lines = [f"{text(n)} {text(n, 3)}" for n in range(60)]
    Path("short.txt").write_text("\n".join(lines[:12]), encoding="utf-8")
    Path("long.txt").write_text("\n".join([*lines, "cat " * 100]), encoding="utf-8")
    rows = [*((line, n % 2) for n, line in enumerate(lines[:20])), ("cat " * 100, 1)]
    Path("dev.tsv").write_text("sentence\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in rows), encoding="utf-8")
    return Path()


@pytest.fixture
def roberta(folder: Path, tokenizer_of_made_texts: Tokenizer) -> str:
    model = build("RobertaForSequenceClassification", len(tokenizer_of_made_texts), **LABELS)
    return save(model, folder / "model", tokenizer_of_made_texts)


TUNE = ("--task", "sst2", "--data", "dev.tsv", "--dev-data", "dev.tsv", "--steps", 1, "--batch-tokens", 600)
TEXT = ("--task", "mlm", "--corpus", "long.txt", "--steps", 1, "--batch-tokens", 600)
GRID = ("--methods", "windows=3,groups=2,thresholds=1,clusters=2", "--epochs", 1, "--task", "none")
COMMANDS: dict[str, tuple[object, ...]] = {
    "train": ("train", "model", *TEXT),
    "fine-tuning": ("train", "model", *TUNE),
    "train-dam on text": ("train-dam", "model", *TEXT, "--lambdas", 0),
    "train-dam": ("train-dam", "model", *TUNE, "--lambdas", 0),
    "prune": ("prune", "model", *TUNE, "--lambdas", 0, "--no-figures"),
    "masks": ("masks", "model", *TUNE, "--pattern", "star", "--no-controls", "--no-figures"),
    "classify": ("classify", "model", "--corpus", "long.txt", "--no-figures"),
    "relevance": ("relevance", "model", "--corpus", "long.txt", "--no-figures"),
    "probe": ("probe", "model", "--no-figures"),
    "ablate": ("ablate", "model", "--task", "sst2", "--data", "dev.tsv", "--replicates", 100, "--no-figures"),
    "sparsefinder": ("sparsefinder", "model", "--corpus", "long.txt", *GRID, "--attention", "entmax15", "--no-figures"),
}


@pytest.mark.usefixtures("roberta")
@pytest.mark.parametrize("command", rest_slow(COMMANDS, ("train", "ablate")))
def test_what_is_longer_than_the_model_reads_is_cut_or_left_out(headlens: Headlens, command: str) -> None:
    """No command runs past the last position of RoBERTa, which has fewer than its config.json says."""
    done = headlens(*COMMANDS[command], "--out", "run")
    assert done.code == 0, done.err
    notes = " ".join(json.loads(Path("run/run.json").read_text())["notes"]).lower()
    if "train" not in command or command == "train-dam":  # text for language models goes on in another block
        assert "longer than" in notes or "left out" in notes


@pytest.mark.usefixtures("roberta")
@pytest.mark.parametrize("command", rest_slow(["train", "train-dam on text"]))
@pytest.mark.parametrize("longest", [LIMIT, LIMIT + 1])
def test_blocks_are_as_long_as_the_model_reads_and_no_longer(headlens: Headlens, command: str, longest: int) -> None:
    done = headlens(*COMMANDS[command], "--data-args", f"longest={longest}", "--out", "run")
    assert done.code == (0 if longest == LIMIT else 2), done.err
    if longest > LIMIT:
        assert f"--data-args longest {longest} is more than the {LIMIT} tokens that model reads." in done.err
        assert f"Give {LIMIT} or fewer." in done.err


@pytest.mark.usefixtures("roberta")
def test_attention_of_a_text_that_is_too_long(headlens: Headlens) -> None:
    done = headlens("attend", "model", "--text", "cat " * (LIMIT - 2), "--layer", 0, "--out", "run")
    assert done.code == 0, done.err
    done = headlens("attend", "model", "--text", "cat " * (LIMIT - 1), "--out", "other")
    assert done.code == 2
    assert str(LIMIT) in done.err


@pytest.mark.parametrize("command", rest_slow(["classify", "relevance", "attend"], ["attend"]))
def test_a_padding_token_without_an_embedding_changes_nothing(
    headlens: Headlens, folder: Path, bytebpe_tokenizer: Tokenizer, command: str
) -> None:
    """As people add [PAD] to GPT-2: beside the vocabulary. Padding is never attended to, so its id does not matter."""
    model = build("GPT2LMHeadModel", len(bytebpe_tokenizer), n_positions=60)
    tables = {}
    for name, pad in (("added", "[PAD]"), ("end", bytebpe_tokenizer.eos_token), ("word", "Z")):
        tokenizer = copy.deepcopy(bytebpe_tokenizer)
        tokenizer.add_special_tokens({"pad_token": pad})
        assert (tokenizer.pad_token_id >= model.config.vocab_size) == (name == "added")
        save(model, folder / "model", tokenizer)
        texts, corpus = ("--text", "the old cat", "--text", "a cat"), ("--corpus", "short.txt", "--no-figures")
        done = headlens(command, "model", *(texts if command == "attend" else corpus), "--out", name)
        assert done.code == 0, done.err
        file = {"classify": "heads.csv", "relevance": "relevance.csv", "attend": "labels.json"}[command]
        tables[name] = Path(name, file)
    if command == "attend":
        assert len({Path(name, "attention.safetensors").read_bytes() for name in tables}) == 1
    else:
        one, two, three = (pd.read_csv(place) for place in tables.values())
        pd.testing.assert_frame_equal(one, two, rtol=1e-5)
        pd.testing.assert_frame_equal(one, three, rtol=1e-5)


def test_a_causal_model_with_an_added_padding_token_is_trained(
    headlens: Headlens, folder: Path, bytebpe_tokenizer: Tokenizer
) -> None:
    tokenizer = copy.deepcopy(bytebpe_tokenizer)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    model = build("GPT2ForSequenceClassification", len(bytebpe_tokenizer), n_positions=60, **LABELS)
    save(model, folder / "model", tokenizer)
    for command in ("fine-tuning", "ablate"):
        done = headlens(*COMMANDS[command], "--out", command)
        assert done.code == 0, done.err
