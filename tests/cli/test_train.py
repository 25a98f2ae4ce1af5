"""`headlens train` as a user runs it."""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tiers import rest_slow
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoTokenizer

from headlens.errors import Interrupted
from headlens.tasks.translation import Translation

Headlens = Callable[..., Any]
SMALL = (
    "--steps",
    6,
    "--batch-tokens",
    300,
    "--data-args",
    "longest=32",
    "--training-args",
    "log-every=2,evaluate-every=3",
)
LINES = [
    f"the {a} {b} sees the {c}" for a in ("old", "small", "red") for b in ("cat", "dog") for c in ("house", "river")
]


@pytest.mark.figures
def test_a_new_masked_language_model(headlens: Headlens) -> None:
    done = headlens("train", "new:albert-tiny", "--model-args", "vocabulary=400", "--limit", 60, *SMALL, "--out", "run")
    assert done.code == 0, done.err
    log, evaluations = pd.read_csv("run/log.csv"), pd.read_csv("run/evaluations.csv")
    assert log.columns.tolist() == ["step", "epoch", "loss", "learning_rate"]
    assert log["step"].tolist() == [2, 4, 6]
    assert evaluations["step"].tolist() == [3, 6]
    assert {p.name for p in Path("run/figures").iterdir()} == {"training.png", "training.svg"}
    model = AutoModelForMaskedLM.from_pretrained("run/model")
    assert model.config.model_type == "albert"
    tokenizer = AutoTokenizer.from_pretrained("run/model")
    assert len(tokenizer) <= 400
    assert tokenizer.mask_token == "[MASK]"
    assert "Evaluations on held-out data" in done.out
    vocabulary = json.loads(Path("run/model/config.json").read_text())["vocab_size"]
    shown = " ".join(done.out.split())
    assert f"the one with the lowest held-out loss ({pd.read_csv('run/evaluations.csv')['loss'].min():.3f})" in shown
    (chance,) = re.findall(r"; chance level, predicting by frequency, (\d\.\d+)\.", shown)
    assert 0 < float(chance) < math.log(vocabulary), "nothing but the same words would be 0, all of the vocabulary more"
    record = json.loads(Path("run/run.json").read_text())
    assert record["models"][0]["steps"] == 6
    assert record["only_in_training_loss"] == []


@pytest.mark.slow
def test_going_on_from_a_checkpoint_adds_a_head(headlens: Headlens, tiny_bert: Path) -> None:
    done = headlens("train", tiny_bert, *SMALL, "--out", "run", "--json")
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    assert summary["steps"] == 6
    assert summary["evaluations"][0]["loss"] > 0
    assert type(AutoModelForMaskedLM.from_pretrained("run/model")).__name__ == "BertForMaskedLM"
    again = headlens("train", "run/model", *SMALL, "--out", "again", "--quiet", "--no-figures")
    assert again.code == 0, again.err
    done = headlens("classify", "run/model", "--limit", 5, "--out", "heads", "--quiet", "--no-figures")
    assert done.code == 0, done.err


@pytest.mark.slow
@pytest.mark.parametrize("kind", rest_slow(["Bert", "Albert"]))
def test_next_sentences_are_learned_beside_masked_tokens(kind: str, headlens: Headlens) -> None:
    new, halves = f"new:{kind.lower()}-tiny", ("--model-args", "vocabulary=400", "--training-args", "next-sentence")
    done = headlens("train", new, *halves, *SMALL, "--out", "run")
    assert done.code == 0, done.err
    evaluations = pd.read_csv("run/evaluations.csv")
    assert evaluations["next_sentence"].between(0, 1).all()
    config = json.loads(Path("run/model/config.json").read_text())
    assert config["architectures"] == [f"{kind}ForPreTraining"]
    # Masks are learned under both losses, and under that of tokens alone, from the head that was trained for them.
    for name, more in (("both", ["--training-args", "next-sentence"]), ("tokens", [])):
        given = (
            "--task",
            "mlm",
            "--steps",
            2,
            "--data-args",
            "longest=32",
            "--lambdas",
            1,
            "--no-figures",
            "--out",
            name,
        )
        done = headlens("train-dam", "run/model", *given, *more)
        assert done.code == 0, done.err
        config = json.loads(Path(name, "models/penalty-1/config.json").read_text())
        assert config["architectures"] == [f"{kind}For{'PreTraining' if more else 'MaskedLM'}"]
    masked = ("--relevance-target", "masked", "--limit", 9, "--no-figures", "--out", "r")
    assert headlens("relevance", "run/model", *masked).code == 0


@pytest.mark.slow
def test_a_new_translation_model(headlens: Headlens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Translation, "most_tokens", lambda *_: 5)  # of a model that knows no end
    Path("a.txt").write_text("\n".join(LINES * 5))
    Path("b.txt").write_text("\n".join(" ".join(reversed(line.split())) for line in LINES * 5))
    pair = ("--corpus", "a.txt", "--target", "b.txt")
    done = headlens(
        "train",
        "new:marian-tiny",
        "--task",
        "translation",
        *pair,
        "--model-args",
        "vocabulary=60",
        *SMALL,
        "--training-args",
        "bleu=2",
        "--out",
        "run",
    )
    assert done.code == 0, done.err
    metrics = pd.read_csv("run/metrics.csv")
    assert metrics["metric"].tolist() == ["bleu", "chrf"]
    assert "Next: headlens classify run/model --corpus a.txt --target b.txt" in done.out
    # How translations were found and compared.
    record = json.loads(Path("run/run.json").read_text())
    assert record["task"] == {"name": "translation", "beams": 4, "max_tokens": 256, "tokenizer": "13a"}
    assert record["only_in_training_loss"] == ["label smoothing 0.1", "dropout"]
    (note,) = (note for note in record["notes"] if note.startswith("sacreBLEU's signatures: bleu nrefs:1|"))
    assert "|tok:13a|" in note
    assert note in " ".join(done.out.split())
    assert metrics["n"].tolist() == [2, 2]
    model = AutoModelForSeq2SeqLM.from_pretrained("run/model")
    assert model.config.model_type == "marian"
    done = headlens("classify", "run/model", *pair, "--limit", 10, "--out", "heads", "--quiet", "--no-figures")
    assert done.code == 0, done.err
    assert set(pd.read_csv("heads/heads.csv")["stack"]) == {"encoder", "decoder", "cross"}


@pytest.mark.slow
def test_a_run_is_repeated_from_its_record(headlens: Headlens) -> None:
    new = ("new:bert-tiny", "--model-args", "vocabulary=300", "--limit", 60, *SMALL)
    assert headlens("train", *new, "--out", "run", "-q").code == 0
    assert headlens("train", "--config", "run/run.json", "--out", "again", "-q").code == 0
    for name in ("log.csv", "evaluations.csv", "model/model.safetensors", "model/tokenizer.json"):
        assert Path("run", name).read_bytes() == Path("again", name).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (("new:bert-huge",), ("new:bert-huge is not a known model", "new:bert-small")),
        (("new:marian-tiny", "--task", "mlm"), ("new:marian-tiny is not a known model", "new:bert-tiny")),
        # What a new model is made for is its task.
        (("new:marian-tiny",), ("no translations", "--target")),
        (("new:marian-tiny", "--task", "translation"), ("no translations", "--target")),
        (("new:bert-tiny", "--model-args", "vocabulary=3"), ("--model-args vocabulary 3 is too small",)),
        (("demo", "--task", "translation"), ("needs a translation model",)),
        (("demo", "--learning-rate", "0"), ("--learning-rate 0.0 is out of range",)),
        (("demo", "--data-args", "dev-target=x.txt"), ("--data-args dev-target", "--dev")),
        (("demo", "--training-args", "mask-share=2"), ("--training-args mask-share 2.0",)),
        (("demo", "--data-args", "bleu-tokenizer=zh"), ("--data-args bleu-tokenizer is not for --task mlm",)),
        (
            ("new:marian-tiny", "--task", "translation", "--data-args", "bleu-tokenizer=zh"),
            ("nothing is translated", "--training-args bleu=N"),
        ),
        (
            ("new:marian-tiny", "--task", "translation", "--training-args", "next-sentence"),
            ("--training-args next-sentence is not for --task",),
        ),
        (
            ("demo", "--training-args", "next-sentence", "--data-args", "longest=4"),
            ("--data-args longest 4 leaves no room for the two halves",),
        ),
    ],
)
@pytest.mark.usefixtures("small_demo")
def test_what_is_refused(headlens: Headlens, arguments: tuple[str, ...], messages: tuple[str, ...]) -> None:
    done = headlens("train", *arguments, "--limit", "40", "--out", "run")
    assert done.code == 2, done.out + done.err
    assert all(m in done.err for m in messages), done.err
    # Nothing was done that could be gone on with: the corrected command may take the folder.
    assert "Finished work is kept" not in done.err
    assert not Path("run").exists()


KILLED = """
import sys
from headlens.learning import training_run as training_keeper
training_keeper.EVERY = 0.0  # as often as costs little
from headlens_cli.__main__ import main
main()
"""


KILL = getattr(signal, "SIGKILL", 9)  # Windows has no such signal
RHYTHM = ["--steps", "60", "--batch-tokens", "300", "--training-args", "log-every=3,evaluate-every=7"]
TEXT = ["new:bert-tiny", "--model-args", "vocabulary=300", "--data-args", "longest=32", *RHYTHM]
CLASSES = [
    "new:bert-tiny",
    "--model-args",
    "vocabulary=300",
    "--task",
    "sst2",
    "--data",
    "train.tsv",
    "--training-args",
    "patience=5",
    *RHYTHM,
]


@pytest.mark.posix
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "number"), [(TEXT, KILL), (TEXT, signal.SIGTERM), (CLASSES, KILL), (CLASSES, signal.SIGTERM)]
)
def test_killed_and_resumed(headlens: Headlens, tmp_path: Path, options: list[str], number: int) -> None:
    Path("train.tsv").write_text("sentence\tlabel\n" + "".join(f"{t}\t{i % 2}\n" for i, t in enumerate(LINES * 9)))
    assert headlens("train", *options, "--out", "whole", "--quiet").code == 0
    command = [sys.executable, "-c", KILLED, "train", *options, "--out", "run", "--quiet"]
    # With as many threads as here: sums of floats depend on how they are divided.
    process = subprocess.Popen(command, cwd=tmp_path)
    states = tmp_path / "run" / ".resume" / "training"
    deadline = time.monotonic() + 120
    # The first state comes after the first update, later ones the rarer the slower the disk.
    while not any(states.glob("state-*")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait() == (-9 if number == KILL else 143)
    assert not Path("run/model").exists()
    if Path("run/log.csv").exists():
        assert Path("whole/log.csv").read_bytes().startswith(Path("run/log.csv").read_bytes()), "as far as it came"
    done = headlens("train", "--resume", "run")
    assert done.code == 0, done.err
    tables = ("log.csv", "evaluations.csv") if options == TEXT else ("log.csv", "evaluations.csv", "metrics.csv")
    for name in (*tables, "model/model.safetensors"):
        assert Path("run", name).read_bytes() == Path("whole", name).read_bytes(), name
    assert not Path("run/.resume").exists()


MODEL_PARTS = ["the weights of the model", "the configuration or the tokenizer of the model"]


@pytest.mark.parametrize("kind", rest_slow(["text", "task"]))
@pytest.mark.parametrize(
    "changed", rest_slow([*MODEL_PARTS, "the data", "what is held out"], [*MODEL_PARTS[:1], "the data"])
)
def test_nothing_else_is_gone_on_with(
    headlens: Headlens, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch, kind: str, changed: str
) -> None:
    shutil.copytree(tiny_bert, "model")
    train, dev = (Path(name).with_suffix(".txt" if kind == "text" else ".tsv") for name in ("train", "dev"))
    for path, count in ((train, 12), (dev, 6)):
        rows = [t if kind == "text" else f"{t}\t{i % 2}" for i, t in enumerate(LINES[:count])]
        path.write_text("\n".join([*([] if kind == "text" else ["sentence\tlabel"]), *rows]) + "\n")
    data = (
        ("--corpus", train, "--dev", dev) if kind == "text" else ("--task", "sst2", "--data", train, "--dev-data", dev)
    )

    def interrupted(run: Any, model: Any, folder: Path) -> None:
        folder.mkdir(parents=True)
        raise Interrupted(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr("headlens.learning.training_run._keep_best", interrupted)
        assert (
            headlens("train", "model", *data, "--steps", 6, "--training-args", "evaluate-every=3", "--out", "run").code
            == 143
        )
    if changed == "the weights of the model":
        model = AutoModel.from_pretrained("model")
        with torch.no_grad():
            next(iter(model.parameters())).mul_(2)
        model.save_pretrained("model")
    elif changed == MODEL_PARTS[1]:
        config = json.loads(Path("model/config.json").read_text())
        Path("model/config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-3}))
    else:
        path = train if changed == "the data" else dev
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    said = "the corpus" if (kind, changed) == ("text", "the data") else changed
    for _ in range(2):
        done = headlens("train", "--resume", "run")
        assert done.code == 2
        assert f"{said} changed since the run was interrupted." in done.err
    assert headlens("train", "model", *data, "--steps", 6, "--out", "run", "--overwrite", "--no-figures").code == 0
