"""Checkpoints that `train` saves on its way, and `classify` and `ablate` over them, as a user runs them."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

from headlens.models.loading import load

Headlens = Callable[..., Any]
SMALL = ("--limit", 40, "--batch-tokens", 200, "--model-args", "vocabulary=300")
DEV = ("--task", "sst2", "--data", "dev.tsv")


def test_the_model_at_every_few_updates(headlens: Headlens) -> None:
    """As a training that ends there leaves it; an overwritten run takes its own away, and nothing else."""
    new = ("train", "new:bert-tiny", *SMALL, "--out", "the run")
    rhythm = "schedule=constant,warmup=0,save-every"
    done = headlens(*new, "--steps", 3, "--training-args", f"{rhythm}=2")
    assert done.code == 0, done.err
    places = {path.name: path for path in Path("the run/checkpoints").iterdir()}
    assert set(places) == {"checkpoint-0", "checkpoint-2", "checkpoint-3"}
    note = "The model as it was during the training: 3 checkpoints, updates 0 to 3, in checkpoints/."
    assert note in " ".join(done.out.split())
    assert done.out.partition("Next: ")[2].strip() == "headlens classify 'the run/checkpoints/checkpoint-'*"
    weights = {name: load_file(path / "model.safetensors") for name, path in places.items()}
    for name, path in places.items():
        plain = AutoModelForMaskedLM.from_pretrained(path).state_dict()
        assert all(torch.equal(plain[key], tensor) for key, tensor in weights[name].items())
        assert len(AutoTokenizer.from_pretrained(path)) <= 300
        assert load(str(path)).short_name == name
    # The last evaluation is the best of one, so that its weights are those of the model.
    last = load_file("the run/model/model.safetensors")
    assert all(torch.equal(last[key], tensor) for key, tensor in weights["checkpoint-3"].items())
    assert not all(torch.equal(last[key], tensor) for key, tensor in weights["checkpoint-0"].items())
    Path("the run/checkpoints/mine.txt").touch()
    done = headlens(*new, "--steps", 2, "--training-args", f"{rhythm}=1", "--overwrite", "--json")
    assert done.code == 0, done.err
    names = [f"checkpoint-{step}" for step in range(3)]
    assert sorted(path.name for path in Path("the run/checkpoints").iterdir()) == [*names, "mine.txt"]
    assert json.loads(done.out)["checkpoints"] == [f"the run/checkpoints/{name}" for name in names]
    stopped = load_file("the run/model/model.safetensors")
    assert all(torch.equal(stopped[key], tensor) for key, tensor in weights["checkpoint-2"].items())


@pytest.fixture
def trained(made: Callable[..., str], tmp_path: Path) -> list[str]:
    """Three models as one training leaves them, in the order of a shell, and sentences with labels."""
    names = [f"run/checkpoint-{step}" for step in (0, 100, 20)]
    for number, name in enumerate(names):
        shutil.copytree(made("judge"), tmp_path / name)
        weights = load_file(tmp_path / name / "model.safetensors")
        keys = [key for key in weights if key.endswith(("query.weight", "key.weight"))]
        save_file(
            {k: w * (1 + 9 * number * (k in keys)) for k, w in weights.items()}, tmp_path / name / "model.safetensors"
        )
    rows = "".join(f"{word} thing number {n}\t{n % 2}\n" for n, word in enumerate(("old", "small", "red") * 8))
    (tmp_path / "dev.tsv").write_text(f"sentence\tlabel\n{rows}", encoding="utf-8")
    return names


ORDER = ["checkpoint-0", "checkpoint-20", "checkpoint-100"]


@pytest.mark.slow
@pytest.mark.figures(blank=True)
def test_roles_over_training(headlens: Headlens, trained: list[str]) -> None:
    done = headlens("classify", *trained, "--limit", 4, "--out", "out")
    assert done.code == 0, done.err
    heads = pd.read_csv("out/heads.csv", keep_default_na=False)
    assert list(heads["model"].unique()) == ORDER
    assert Path("out/figures/over_training.png").exists()
    agreement, smoothness = pd.read_csv("out/agreement.csv"), pd.read_csv("out/smoothness.csv")
    assert set(zip(agreement["model"], agreement["other_model"], strict=True)) == {(ORDER[0], ORDER[2])}
    assert set(smoothness["model"]) <= {ORDER[0], ORDER[2]}
    # The last one is told in full, and the others by step.
    assert "Over the training (3 checkpoints): heads with a role: " in " ".join(done.out.split())
    assert "checkpoint-20" not in done.out
    lines = done.out.partition("Heads that hold each role, over the training")[2].splitlines()
    shown = [line.split() for line in lines if line.split()[1:2] == ["encoder"]][:3]
    assert [int(row[0]) for row in shown] == [0, 20, 100]
    means = heads.groupby("model", sort=False)["confidence"].mean()
    assert [float(row[-2]) for row in shown] == pytest.approx(means.tolist(), abs=1e-3)
    assert shlex.split(done.out.partition("Next: ")[2])[-2] == "run/checkpoint-100"


@pytest.mark.figures(blank=True)
def test_worth_over_training(headlens: Headlens, trained: list[str]) -> None:
    done = headlens("ablate", *trained, *DEV, "--replicates", 100, "--out", "out")
    assert done.code == 0, done.err
    ablation = pd.read_csv("out/ablation.csv")
    assert list(ablation["model"].unique()) == ORDER
    assert Path("out/figures/over_training.png").exists()
    record = json.loads(Path("out/run.json").read_text())
    assert record["arguments"]["models"] == [f"run/{name}" for name in ORDER]
    # The best answer without reading: that of the more frequent class.
    assert [facts["chance"] for facts in record["models"]] == [{"accuracy": 0.5}] * 3
    assert "Over the training (3 checkpoints): accuracy with all heads" in " ".join(done.out.split())
    assert "; 3 checkpoints without verdicts." in " ".join(done.out.split())
    report = headlens("report", "out")
    assert report.code == 0, report.err
    assert "What heads are worth over training" in Path("out/report.html").read_text()


def test_other_models_are_no_checkpoints_of_one_training(headlens: Headlens, trained: list[str]) -> None:
    shutil.copytree(trained[0], "other/checkpoint-7")
    done = headlens("ablate", *trained, "other/checkpoint-7", *DEV, "--out", "out")
    assert done.code == 2
    assert "4 models were given." in done.err
    assert "checkpoints of one training" in done.err
    done = headlens("ablate", *trained, *DEV, "--predict", "dev.tsv", "--out", "out")
    assert (done.code, "but several were given" in done.err) == (2, True)
