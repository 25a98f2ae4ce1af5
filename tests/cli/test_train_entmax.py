"""`headlens train --attention`: models with sparse attention, and what other commands make of them."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from made_tasks import text
from safetensors.torch import load_file
from tiers import rest_slow

import headlens as package
from headlens.attention.model_normalizer import attention_name, learned_alphas
from headlens.errors import Interrupted
from headlens.heads import KEY_COLUMNS
from headlens.learning.training_run import CheckpointFolder

Headlens = Callable[..., Any]
SHORT = ("--steps", 3, "--batch-tokens", 150, "--learning-rate", "1e-3", "--no-figures")


def test_a_task_is_trained_and_measured_under_it(
    headlens: Headlens, made: Callable[..., str], sentiment: tuple[str, ...]
) -> None:
    done = headlens("train", made("judge"), *sentiment, *SHORT, "--attention", "entmax15", "--out", "run")
    assert done.code == 0, done.err
    assert "Attention is entmax15; programs other than headlens will load this checkpoint without it" in done.out
    assert json.loads(Path("run/model/config.json").read_text())["headlens_attention"] == "entmax15"
    trained = json.loads(Path("run/run.json").read_text())["models"][0]
    assert (trained["attention"], trained["entmax"]) == ("entmax15", "package entmax: the device is a cpu")
    assert attention_name(package.load("run/model").model) == "entmax15"
    metrics = pd.read_csv("run/metrics.csv").set_index("metric")["value"]
    data = ("--task", "sst2", "--data", "dev.tsv", "--no-figures", "--replicates", 100)
    done = headlens("ablate", "run/model", *data, "--out", "ablated")
    assert done.code == 0, done.err
    assert pd.read_csv("ablated/ablation.csv")["baseline"].iloc[0] == pytest.approx(metrics["accuracy"])
    assert json.loads(Path("ablated/run.json").read_text())["models"][0]["attention"] == "entmax15"


@pytest.mark.slow
def test_a_checkpoint_keeps_it_until_another_is_named(
    headlens: Headlens, made: Callable[..., str], sentiment: tuple[str, ...]
) -> None:
    done = headlens("train", made("judge"), *sentiment, *SHORT, "--attention", "entmax15", "--out", "run")
    assert done.code == 0, done.err
    again = headlens("train", "--config", "run/run.json", "--out", "again", "-q")
    assert again.code == 0, again.err
    one, two = (load_file(f"{name}/model/model.safetensors") for name in ("run", "again"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    # From a checkpoint that has it, it stays; softmax is asked for.
    for more, name in ((), "entmax15"), (("softmax",), "softmax"), (("entmax:1.2",), "entmax:1.2"):
        asked = ("--attention", *more) if more else ()
        done = headlens("train", "run/model", *sentiment, *SHORT, "--steps", 1, *asked, "--out", "next", "--overwrite")
        assert done.code == 0, done.err
        assert attention_name(package.load("next/model").model) == name


@pytest.mark.parametrize(
    "thorough",
    [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.figures])],
    ids=["training", "every command"],
)
def test_heads_learn_their_alphas_which_every_command_reads(
    headlens: Headlens, made: Callable[..., str], sentiment: tuple[str, ...], thorough: bool
) -> None:
    Path("text.txt").write_text("".join(f"{text(n)}\n" for n in range(60)), encoding="utf-8")
    words = ("--task", "mlm", "--corpus", "text.txt", "--steps", 4, "--batch-tokens", 150, "--learning-rate", "1e-2")
    done = headlens("train", made("judge"), *words, "--attention", "entmax:learned", "--out", "run")
    assert done.code == 0, done.err
    assert "Attention is entmax:learned; programs other than headlens will load this checkpoint without it" in done.out
    assert "Learned alphas of entmax, mean and range over heads: encoder 1." in done.out
    assert json.loads(Path("run/run.json").read_text())["models"][0]["attention"] == "entmax:learned"
    if thorough:
        assert Path("run/alphas.png").is_file() or Path("run/figures/alphas.png").is_file()
    model = package.load("run/model").model
    table, own = pd.read_csv("run/alphas.csv"), learned_alphas(model)
    assert own is not None
    assert list(table) == ["model", *KEY_COLUMNS, "alpha"]
    assert table["alpha"].tolist() == own.rows["alpha"].tolist()
    assert (table["alpha"] != 1.5).all(), "all of them have learned"
    # Another head on top keeps them, and goes on learning.
    done = headlens("train", "run/model", *sentiment, *SHORT, "--out", "next")
    assert done.code == 0, done.err
    after = pd.read_csv("next/alphas.csv")["alpha"]
    assert ((after - table["alpha"]).abs() < 0.01).all()
    assert (after != table["alpha"]).any()
    done = headlens(
        "sparsefinder", made("judge"), "--corpus", "text.txt", "--attention", "entmax:learned", "--out", "no"
    )
    assert done.code == 2
    assert "have not learned any alpha" in done.err
    assert "headlens train MODEL --attention entmax:learned" in done.err
    if not thorough:
        return
    data = ("--task", "sst2", "--data", "dev.tsv", "--no-figures", "--replicates", 100)
    done = headlens("ablate", "next/model", *data, "--out", "ablated")
    assert done.code == 0, done.err
    metrics = pd.read_csv("next/metrics.csv").set_index("metric")["value"]
    assert pd.read_csv("ablated/ablation.csv")["baseline"].iloc[0] == pytest.approx(metrics["accuracy"])
    done = headlens("compact", "next/model", "--heads", "encoder.0.1", "--out", "smaller")
    assert done.code == 0, done.err
    left = learned_alphas(package.load("smaller").model)
    assert left is not None
    assert left.rows["alpha"].tolist() == after.drop(index=1).tolist()
    small = ("--methods", "windows=0,3,thresholds=1,groups=2", "--epochs", 1, "--task", "none")
    done = headlens("sparsefinder", "run/model", "--corpus", "text.txt", *small, "--out", "found")
    assert done.code == 0, done.err
    assert pd.read_csv("found/alphas.csv")["alpha"].tolist() == table["alpha"].tolist()
    assert "Learned alphas of entmax" in done.out


@pytest.mark.parametrize("task", rest_slow(["mlm", "translation"]))
def test_text_is_learned_under_it(headlens: Headlens, task: str) -> None:
    Path("text.txt").write_text("".join(f"{text(n)} {text(n, 2)}\n" for n in range(60)), encoding="utf-8")
    name = "marian" if task == "translation" else "albert"
    pair = ("--target", "text.txt", "--training-args", "bleu=3") if task == "translation" else ()
    options = (
        "--task",
        task,
        "--corpus",
        "text.txt",
        *pair,
        "--model-args",
        "vocabulary=100",
        "--attention",
        "sparsemax",
        *SHORT,
    )
    done = headlens("train", f"new:{name}-tiny", *options, "--out", "run")
    assert done.code == 0, done.err
    assert attention_name(package.load("run/model").model) == "sparsemax"
    if task == "mlm":
        done = headlens("attend", "run/model", "--text", text(3), "--out", "maps")
        assert done.code == 0, done.err
        maps = load_file("maps/attention.safetensors")
        assert any(bool((own == 0).any()) for own in maps.values() if own.is_floating_point())


@pytest.mark.slow
def test_interrupted_and_gone_on_with(
    headlens: Headlens, made: Callable[..., str], sentiment: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("train", made("judge"), *sentiment, *SHORT, "--attention", "entmax15")
    assert headlens(*command, "--out", "whole").code == 0
    seen, obey = 0, CheckpointFolder.obey

    def stopping(self: CheckpointFolder) -> None:
        nonlocal seen
        seen += 1
        obey(self)
        if seen == 2:
            raise Interrupted(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFolder, "due", lambda _: True)
        patch.setattr(CheckpointFolder, "obey", stopping)
        assert headlens(*command, "--out", "run").code in {130, 143}
    done = headlens("train", "--resume", "run")
    assert done.code == 0, done.err
    one, two = (load_file(f"{name}/model/model.safetensors") for name in ("run", "whole"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert attention_name(package.load("run/model").model) == "entmax15"


def test_attention_that_there_is_none(headlens: Headlens, made: Callable[..., str], sentiment: tuple[str, ...]) -> None:
    for name, words in (
        ("none", "--attention 'none' is unknown.\nChoose one of softmax, entmax15, sparsemax"),
        ("softmax:3", "--attention 'softmax:3' is unknown"),
        ("entmax:0.9", "entmax with alpha 0.9 is not supported"),
    ):
        for task in (sentiment, ("--task", "mlm", "--corpus", "train.tsv")):
            done = headlens("train", made("judge"), *task, *SHORT, "--attention", name, "--out", "no")
            assert done.code == 2
            assert words in done.err
            assert not Path("no").exists()
