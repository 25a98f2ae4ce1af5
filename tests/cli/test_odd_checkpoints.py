"""Checkpoints that lack weights, name them otherwise or have more: `models check` and the commands say the same."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from made_tasks import sentiment_table, text
from saved import Weights, build, prefixed, rewrite, save, without
from tiers import rest_slow
from transformers import PreTrainedTokenizerBase

Headlens = Callable[..., Any]
Tokenizer = PreTrainedTokenizerBase
Change = Callable[[Weights], Weights | None]
LABELS = {"id2label": {0: "negative", 1: "positive"}, "label2id": {"negative": 0, "positive": 1}}


@pytest.fixture
def odd(tokenizer_of_made_texts: Tokenizer, headlens: Headlens) -> Callable[..., str]:
    """A saved model in the empty working folder, with its weights and config.json changed, and data beside it."""
    del headlens  # which goes to that folder
    Path("dev.tsv").write_text(sentiment_table(13), encoding="utf-8")
    Path("two.txt").write_text("the old cat sees a red house\nshe sleeps near the river\n", encoding="utf-8")
    Path("long.txt").write_text("".join(f"{text(n)} {text(n, 3)}\n" for n in range(90)), encoding="utf-8")

    def make(kind: str, change: Change = lambda w: None, **settings: Any) -> str:
        more = {"embedding_size": 8} if kind.startswith("Electra") else {}
        model = build(kind, len(tokenizer_of_made_texts), **more, **(LABELS if "Sequence" in kind else {}))
        return rewrite(save(model, Path("model"), tokenizer_of_made_texts), change, **settings)

    return make


ABLATE = ("ablate", "model", "--task", "sst2", "--data", "dev.tsv", "--replicates", 100, "--out", "run")
CLASSIFY = ("classify", "model", "--corpus", "two.txt", "--no-figures", "--out", "run")
RELEVANCE = ("relevance", "model", "--corpus", "two.txt", "--no-figures", "--out", "run")


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("BertForSequenceClassification", "classifier"),
        ("BertForSequenceClassification", "bert.pooler.dense"),
        ("RobertaForSequenceClassification", "classifier.out_proj"),
        ("ElectraForSequenceClassification", "classifier.dense"),
    ],
)
def test_a_task_that_reads_random_weights_is_refused(
    headlens: Headlens, odd: Callable[..., str], kind: str, part: str
) -> None:
    odd(kind, without(f"{part}."))
    done = headlens(*ABLATE)
    assert done.code == 2
    said = " ".join(done.err.split())
    assert "The task sst2 depends on 2 weights that the checkpoint does not have, so that they are random" in said
    assert f"{part}.bias, {part}.weight" in said
    assert "headlens train MODEL --task sst2" in said
    assert not Path("run").exists()


RANDOM = {
    "masked": ("BertForMaskedLM", "cls.predictions.transform.dense"),
    "predicted": ("BertForSequenceClassification", "classifier"),
    "class:positive": ("BertForSequenceClassification", "bert.pooler.dense"),
    "positions": ("BertForTokenClassification", "classifier"),
}


@pytest.mark.parametrize("target", rest_slow(RANDOM))
def test_relevance_of_random_weights_is_refused_and_of_embeddings_is_not(
    headlens: Headlens, odd: Callable[..., str], target: str
) -> None:
    kind, part = RANDOM[target]
    odd(kind, without(f"{part}."))
    done = headlens(*RELEVANCE, "--relevance-target", target)
    assert done.code == 2, done.out
    said = " ".join(done.err.split())
    assert "depends on 2 weights that the checkpoint does not have, so that they are random" in said
    assert f"{part}.bias, {part}.weight" in said
    assert "headlens train" in said
    done = headlens(*RELEVANCE, "--relevance-target", "embedding")
    assert done.code == 0, done.err


@pytest.mark.slow
def test_two_loads_give_one_table(headlens: Headlens, odd: Callable[..., str]) -> None:
    """Of a checkpoint without pooler and head, whatever random numbers were drawn before."""
    odd("BertForSequenceClassification", without("pooler", "classifier"))
    tables = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        for command in (CLASSIFY, (*RELEVANCE, "--relevance-target", "embedding", "--replicates", 100)):
            done = headlens(*command, "--overwrite")
            assert done.code == 0, done.err
        tables.append(Path("run/relevance.csv").read_text())
        record = json.loads(Path("run/run.json").read_text())
        tables.append(record["models"][0]["weight_hash"])
    assert tables[:2] == tables[2:]


def test_training_begins_with_the_same_head_every_time(headlens: Headlens, odd: Callable[..., str]) -> None:
    odd("BertForSequenceClassification", without("pooler", "classifier"))
    found = []
    for out in ("one", "two"):
        data = ("--task", "sst2", "--data", "dev.tsv", "--dev-data", "dev.tsv")
        done = headlens("train", "model", *data, "--steps", 2, "--device", "cpu", "--out", out)
        assert done.code == 0, done.err
        assert "random" in done.out
        found.append(Path(out, "model", "model.safetensors").read_bytes())
    assert found[0] == found[1]


STATES = {
    "classifier": ("BertForSequenceClassification", without("classifier."), {"classifier": "missing"}),
    "pooler": ("BertForSequenceClassification", without("pooler."), {"bert.pooler": "missing", "classifier": "there"}),
    "half": ("RobertaForSequenceClassification", without("out_proj."), {"classifier": "partly missing"}),
    "unused": (
        "BertModel",
        lambda w: w | {"scorer.weight": torch.ones(2, 16)},
        {"scorer": "unused", "encoder": "there", "pooler": "there"},
    ),
    "whole": ("BertForMaskedLM", lambda w: None, {"cls": "there", "bert.encoder": "there"}),
}


@pytest.mark.parametrize("case", rest_slow(STATES, 2))
def test_check_says_what_is_there(headlens: Headlens, odd: Callable[..., str], case: str) -> None:
    kind, change, expected = STATES[case]
    odd(kind, change)
    parts = json.loads(headlens("models", "check", "model", "--json").out)["parts"]
    found = {p["part"]: p["state"] for p in parts}
    assert found.items() >= expected.items()
    assert {v for k, v in found.items() if k not in expected} <= {"there"}
    shown = headlens("models", "check", "model").out
    assert all(state in shown for state in expected.values())


TUNE = ("--task", "sst2", "--data", "dev.tsv", "--dev-data", "dev.tsv", "--steps", 1, "--batch-tokens", 600, "--out")
GRID = ("--methods", "windows=3,groups=2,thresholds=1,clusters=2", "--epochs", 1)
ENTMAX = ("--attention", "entmax15")
COMMANDS = {
    "classify": CLASSIFY,
    "attend": ("attend", "model", "--text", "the old cat sees", "--layer", 0, "--out", "run"),
    "relevance": RELEVANCE,
    "ablate": ABLATE,
    "fine-tuning": ("train", "model", *TUNE, "run"),
    "train": ("train", "model", "--corpus", "long.txt", "--steps", 1, "--batch-tokens", 600, "--out", "run"),
    "compact": ("compact", "model", "--heads", "encoder.0.1", "--limit", 2, "--data-args", "rounds=2", "--out", "run"),
    "train-dam": ("train-dam", "model", *TUNE, "run", "--lambdas", 0, "--data-args", "longest=40"),
    "prune": ("prune", "model", *TUNE, "run", "--lambdas", 0),
    "masks": ("masks", "model", *TUNE, "run", "--pattern", "star", "--no-controls"),
    "sparsefinder": ("sparsefinder", "model", "--corpus", "long.txt", *GRID, "--task", "none", "--out", "run", *ENTMAX),
}
FAST = ("ablate", "attend")


@pytest.mark.parametrize("command", rest_slow(COMMANDS, FAST))
def test_what_stood_before_names_is_told_everywhere(headlens: Headlens, odd: Callable[..., str], command: str) -> None:
    odd("BertForSequenceClassification", prefixed("module."))
    note = "The names of all weights begin with 'module.', which was stripped."
    done = headlens(*COMMANDS[command])
    assert done.code == 0, done.err
    assert note in " ".join(f"{done.out} {done.err}".split())
    folder = Path("run/compact") if command == "compact" and Path("run/compact").is_dir() else Path("run")
    assert any(note in said for said in json.loads((folder / "run.json").read_text())["notes"])
    done = headlens("report", "run")
    assert done.code == 0, done.err
    assert note.replace("'", "&#39;") in Path("run/report.html").read_text()


def test_what_stood_before_names_is_told_by_check(headlens: Headlens, odd: Callable[..., str]) -> None:
    odd("BertForSequenceClassification", prefixed("module."))
    assert "which was stripped" in " ".join(headlens("models", "check", "model").out.split())


@pytest.mark.parametrize("command", rest_slow(COMMANDS, ("classify", "attend", "relevance", "ablate")))
def test_tokens_without_an_embedding_are_refused(
    headlens: Headlens, odd: Callable[..., str], tokenizer_of_made_texts: Tokenizer, command: str
) -> None:
    odd("BertForMaskedLM" if command == "train" else "BertForSequenceClassification")
    larger = copy.deepcopy(tokenizer_of_made_texts)
    larger.add_tokens(["zzz", "qqq"])
    larger.save_pretrained("model")
    done = headlens(*COMMANDS[command])
    assert done.code == 2, done.out
    size = len(tokenizer_of_made_texts)
    said = " ".join(done.err.split())
    assert f"the tokenizer has {size + 2} tokens, the model embeddings for {size}. It cannot read zzz, qqq." in said
    assert "resize_token_embeddings" in said
    assert not Path("run").exists()


def test_heads_that_transformers_4_pruned_keep_their_numbers(headlens: Headlens, odd: Callable[..., str]) -> None:
    """In all tables, and after `compact` has cut out more."""
    layer = "encoder.layer.0.attention."

    def cut(weights: Weights) -> None:
        for name in ("query", "key", "value"):
            for part in ("weight", "bias"):
                weights[f"{layer}self.{name}.{part}"] = weights[f"{layer}self.{name}.{part}"][8:]
        weights[f"{layer}output.dense.weight"] = weights[f"{layer}output.dense.weight"][:, 8:]

    odd("BertModel", cut, pruned_heads={"0": [0]})
    done = headlens(*CLASSIFY)
    assert done.code == 0, done.err
    assert [*pd.read_csv("run/heads.csv")[["layer", "head"]].itertuples(index=False, name=None)] == [
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    assert json.loads(Path("run/run.json").read_text())["models"][0]["heads_removed"] == ["encoder.0.0"]
    done = headlens(
        "compact", "model", "--heads", "encoder.1.1", "--limit", 2, "--data-args", "rounds=2", "--out", "small"
    )
    assert done.code == 0, done.err
    done = headlens("classify", "small", *CLASSIFY[2:], "--overwrite")
    assert done.code == 0, done.err
    assert [*pd.read_csv("run/heads.csv")[["layer", "head"]].itertuples(index=False, name=None)] == [(0, 1), (1, 0)]
    removed = json.loads(Path("run/run.json").read_text())["models"][0]["heads_removed"]
    assert removed == ["encoder.0.0", "encoder.1.1"]


def test_a_guess_by_the_weights_is_refused_where_it_cannot_do_the_task(
    headlens: Headlens, odd: Callable[..., str]
) -> None:
    """A classifier of sentences without its pooler has the weights of one of tokens."""
    odd("BertForSequenceClassification", without("pooler."), architectures=None)
    done = headlens(*ABLATE)
    assert done.code == 2
    said = " ".join(done.err.split())
    assert (
        "judging by its weights, the model is a BertForTokenClassification. If it is another class, name it there"
        in said
    )
    assert "headlens train" in said


@pytest.mark.parametrize("command", rest_slow(("fine-tuning", "train-dam", "prune", "masks")))
def test_what_is_trained_may_begin_random_and_is_told(
    headlens: Headlens, odd: Callable[..., str], command: str
) -> None:
    odd("BertForSequenceClassification", without("pooler", "classifier"))
    done = headlens(*COMMANDS[command])
    assert done.code == 0, done.err
    notes = " ".join(json.loads(Path("run/run.json").read_text())["notes"])
    assert "bert.pooler, classifier began random" in notes or (
        "New weights, random before training: " in notes and "bert.pooler" in notes and "classifier" in notes
    )
