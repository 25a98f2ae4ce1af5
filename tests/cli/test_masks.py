"""`headlens masks`, and `--mask` of the other commands, as a user runs them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from made_tasks import text
from naive_masking import float_mask
from safetensors.torch import load_file
from tiers import rest_slow
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from headlens.attention_masks.attention_mask import AttentionMask
from headlens.attention_masks.patterns import Star, Window

TEXT = "The children's tricycle rusted."
Headlens = Callable[..., Any]
ROWS = [(f"{text(n)} {text(n, 3)}", n % 3 % 2) for n in range(30)]


def star(i: int, j: int, n: int) -> bool:
    return abs(i - j) <= 1 or i == 0 or j == 0


@pytest.fixture
def data(headlens: Headlens) -> tuple[str, ...]:
    lines = "".join(f"{sentence}\t{label}\n" for sentence, label in ROWS)
    Path("dev.tsv").write_text(f"sentence\tlabel\n{lines}", encoding="utf-8")
    return ("--task", "sst2", "--data", "dev.tsv")


def logits(folder: str, model_class: Any = AutoModelForSequenceClassification) -> np.ndarray:
    """What a saved model says of every row under the star, by its own eager attention with a mask of floats."""
    model = model_class.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    said = []
    for sentence, _ in ROWS:
        ids = tokenizer(sentence, return_tensors="pt")
        n = ids["input_ids"].shape[1]
        with torch.no_grad():
            said.append(model(**{**ids, "attention_mask": float_mask((n,), star)}).logits[0].numpy())
    return np.array(said)


@pytest.mark.figures
def test_masks_writes_table_picture_and_record(headlens: Headlens) -> None:
    done = headlens("masks", "--out", "run")
    assert done.code == 0, done.err
    table = pd.read_csv("run/sparsity.csv")
    assert table.columns[:6].tolist() == ["mask", "layer", "head", "diagonal", "n", "sparsity"]
    assert list(dict.fromkeys(table["mask"])) == ["strided", "fixed", "longformer", "logsparse", "bigbird", "star"]
    assert (table["n"] == 128).all()
    assert ((table["sparsity"] - table["paper_sparsity"]).abs() < 0.005).all()
    exact = ~table["mask"].isin(["longformer", "bigbird"])
    assert ((table["sparsity"] - table["paper_sparsity"]).abs()[exact] <= 0.0005).all(), "to the digit"
    assert {p.name for p in Path("run/figures").iterdir()} == {"patterns.png", "patterns.svg"}
    assert not list(Path("run").glob("*.safetensors"))
    assert "70.4 / 71.2" in done.out
    assert json.loads(Path("run/run.json").read_text())["arguments"]["length"] == 128
    assert headlens("report", "run").code == 0
    assert "star" in Path("run/report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("options", "told"), [((), True), (("--pattern", "star"), False), (("--length", 64), False)])
def test_the_parameters_of_the_paper_are_told_under_its_own_patterns(
    headlens: Headlens, options: tuple[object, ...], told: bool
) -> None:
    done = headlens("masks", *options, "--no-figures", "--out", "run")
    assert done.code == 0, done.err
    assert ("The paper does not give the parameters" in done.out) == told


@pytest.mark.slow
def test_masks_writes_files_that_can_be_used(headlens: Headlens, tiny_bert: Path) -> None:
    assert headlens("masks", "--pattern", "star", "--length", 20, "--out", "one", "--no-figures").code == 0
    mask = AttentionMask.load("one")
    assert torch.equal(mask.allowed[0, 0], torch.tensor(Star().allowed(20)))
    short = ("--length", 20, "--out")
    done = headlens(
        "masks", "--pattern", "star", "--pattern", "window:2|random:1", "--mask-rules", "no-diagonal", *short, "two"
    )
    assert done.code == 0, done.err
    files = sorted(p.name for p in Path("two").glob("*.safetensors"))
    assert files == ["star.safetensors", "window-2-random-1.safetensors"]
    assert not AttentionMask.load("two/star.safetensors").block(9).diagonal(dim1=2, dim2=3).any()
    assert "headlens ablate --mask star --mask-rules no-diagonal" in done.out
    both = ("--pattern", "window:1|star", "--pattern", "window:1 | star")
    assert headlens("masks", *both, *short, "alike").code == 0
    assert {p.name for p in Path("alike").glob("*.safetensors")} == {
        f"window-1-star{n}.safetensors" for n in ("", "-2")
    }
    # One that is named twice is one.
    assert headlens("masks", *("--pattern", "star") * 2, "--pattern", "window:3", *short, "three").code == 0
    for name, pattern in (("star", Star()), ("window-3", Window(3))):
        allowed = AttentionMask.load(f"three/{name}.safetensors").allowed[0, 0]
        assert torch.equal(allowed, torch.tensor(pattern.allowed(20))), name
    for number, use in enumerate(("star", "one", "one/mask.safetensors")):
        assert headlens("attend", tiny_bert, "--text", TEXT, "--mask", use, "--out", f"run{number}").code == 0
    maps = [load_file(f"run{n}/attention.safetensors")["1.encoder"] for n in range(3)]
    assert torch.equal(maps[0], maps[1])
    assert torch.equal(maps[0], maps[2])


def test_attend_shows_the_masked_model(headlens: Headlens, tiny_bert: Path) -> None:
    done = headlens("attend", tiny_bert, "--text", TEXT, "--mask", "star", "--mask-rules", "layers=1", "--out", "run")
    assert done.code == 0, done.err
    maps = load_file("run/attention.safetensors")["1.encoder"]
    model = AutoModel.from_pretrained(tiny_bert, attn_implementation="eager")
    ids = AutoTokenizer.from_pretrained(tiny_bert)(TEXT, return_tensors="pt")
    n = ids["input_ids"].shape[1]
    with torch.no_grad():
        plain = model(**ids, output_attentions=True).attentions
    assert torch.allclose(maps[0], plain[0][0], atol=1e-6)
    assert torch.equal(maps[1, 0] > 0, torch.tensor(Star().allowed(n)))
    record = json.loads(Path("run/run.json").read_text())
    assert record["mask"]["name"] == "star"
    assert record["mask"]["layers"] == "1"
    assert len(record["mask"]["sha256"]) == 64


@pytest.mark.slow
@pytest.mark.parametrize("kind", rest_slow(["Bert", "Albert"]))
def test_ablate_measures_the_masked_model(
    headlens: Headlens, made: Callable[..., str], data: tuple[str, ...], kind: str
) -> None:
    judge = made("judge" if kind == "Bert" else "sharer", kind)
    more = ("--replicates", 100, "--no-figures", "--prune", 1, "--strategies", "ranked,importance")
    done = headlens("ablate", judge, *data, "--mask", "star", *more, "--out", "run")
    assert done.code == 0, done.err
    said = logits(judge)
    right = np.mean(said.argmax(axis=1) == [label for _, label in ROWS])
    table = pd.read_csv("run/ablation.csv")
    assert table["baseline"].iloc[0] == pytest.approx(right)
    records = np.load("run/records.npz")
    columns = pd.read_csv("run/examples.csv").columns
    predicted = pd.read_csv("run/examples.csv")["predicted"]
    assert "predicted" in columns
    assert (predicted == said.argmax(axis=1)).all()
    model = AutoModelForSequenceClassification.from_pretrained(judge)
    if kind == "Bert":
        # A head gone is its columns of the output projection gone.
        swept = next(records[k] for k in records.files if k.endswith("zero"))
        names = [str(h) for k in records.files if k.endswith("heads") for h in records[k]]
        model.bert.encoder.layer[0].attention.output.dense.weight.data[:, 8:] = 0
        model.save_pretrained("without")
        AutoTokenizer.from_pretrained(judge).save_pretrained("without")
        place = columns.get_loc("predicted") - columns.get_loc(columns[-swept.shape[2]])
        without = swept[names.index("encoder.0.1")][:, place]
        assert (without == logits("without").argmax(axis=1)).all()
    plain = headlens("ablate", judge, *data, *more, "--out", "plain")
    assert plain.code == 0
    before = np.load("plain/records.npz")
    assert any(not np.array_equal(before[k], records[k]) for k in records.files if "heads" not in k)


def test_fine_tuning_and_evaluation_are_under_the_mask(
    headlens: Headlens, made: Callable[..., str], data: tuple[str, ...]
) -> None:
    steps = ("--steps", 3, "--learning-rate", 1e-3, "--no-figures", "--dev-data", "dev.tsv")
    done = headlens("train", made("judge"), *data, *steps, "--mask", "star", "--out", "run")
    assert done.code == 0, done.err
    assert "--mask star" in done.out
    said = logits("run/model")
    # Full precision and other batches: the classes are those of the naive mask.
    assert (pd.read_csv("run/examples.csv")["predicted"] == said.argmax(axis=1)).all()
    assert headlens("train", made("judge"), *data, *steps, "--out", "plain").code == 0
    masked, plain = (load_file(f"{run}/model/model.safetensors") for run in ("run", "plain"))
    assert any(not torch.allclose(masked[k], plain[k]) for k in masked)


def test_classify_takes_masks(headlens: Headlens, tiny_bert: Path) -> None:
    Path("text.txt").write_text("The cat sleeps .\nA house near the river .\n" * 4, encoding="utf-8")
    found = {}
    for name, options in {"near": ("--mask", "window:0"), "none": ("--mask-rules", "no-diagonal")}.items():
        more = ("--corpus", "text.txt", "--frequency", "none", "--out", name, *options)
        done = headlens("classify", tiny_bert, *more)
        assert done.code == 0, done.err
        found[name] = pd.read_csv(f"{name}/heads.csv")
        mask = json.loads(Path(name, "run.json").read_text())["mask"]["name"]
        told = f"under the mask {mask}, not of the model as it is."
        assert any(told in note for note in json.loads(Path(name, "run.json").read_text())["notes"])
        assert told in " ".join(done.out.split())
        assert "masks of their own" not in done.out
    assert (found["near"]["to_self"] == 1).all()
    assert (found["none"]["to_self"] == 0).all()


@pytest.mark.slow
def test_relevance_takes_masks(headlens: Headlens, tiny_bert: Path) -> None:
    Path("text.txt").write_text("The cat sleeps .\nA house near the river .\n" * 4, encoding="utf-8")
    shares = []
    for name, options in {"r0": (), "r1": ("--mask", "window:0")}.items():
        done = headlens("relevance", tiny_bert, "--corpus", "text.txt", "--no-figures", "--out", name, *options)
        assert done.code == 0, done.err
        shares.append(pd.read_csv(f"{name}/relevance.csv")["raw"])
    assert not np.allclose(*shares)


REFUSED = {
    "no pattern": (("--mask", "windwo:3"), ["no attention pattern 'windwo'", "Did you mean window?"]),
    "no file": (("--mask", "masks/x.safetensors"), ["masks/x.safetensors: there is no such mask file"]),
    "no mask": (("--mask", "text.safetensors"), ["cannot be read as a mask"]),
    "wrong shape": (("--mask", "heads.safetensors"), ["wrong shape for this model: 1 layer of 7 heads", "3 heads"]),
    "too short": (("--mask", "short.safetensors"), ["is for 3 tokens, but a sentence has"]),
    "layers": (("--mask", "star", "--mask-rules", "layers=2"), ["there is no layer 2", "0 to 1"]),
    "no layers": (("--mask", "star", "--mask-rules", "layers=x"), ["--mask-rules layers 'x' is not a range"]),
    "layers of nothing": (("--mask-rules", "layers=0"), ["Give --mask as well"]),
    "two controls": (
        ("--mask-rules", "no-diagonal,drop-random"),
        ["--mask-rules no-diagonal and --mask-rules drop-random cannot be combined"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_masks_are_refused(headlens: Headlens, tiny_bert: Path, name: str) -> None:
    options, messages = REFUSED[name]
    Path("text.safetensors").write_text("no mask", encoding="utf-8")
    AttentionMask(torch.ones(1, 7, 30, 30) > 0).save("heads.safetensors")
    AttentionMask(torch.ones(1, 1, 3, 3) > 0).save("short.safetensors")
    done = headlens("attend", tiny_bert, "--text", TEXT, *options, "--out", "run")
    assert done.code == 2, done.err
    for message in messages:
        assert message in done.err
    assert not Path("run").exists()
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--pattern", "sta"), "Did you mean star?"),
        (("--length", 0), "--length 0 is out of range"),
        (("--mask-rules", "no-diagonal"), "--mask-rules no-diagonal only applies together with --pattern"),
    ],
)
def test_bad_patterns_are_refused(headlens: Headlens, options: tuple[object, ...], message: str) -> None:
    done = headlens("masks", *options, "--out", "run")
    assert done.code == 2
    assert message in done.err
    assert not Path("run").exists()


def test_a_run_is_not_gone_on_with_under_another_mask(headlens: Headlens, tiny_bert: Path) -> None:
    for length in (30, 31):
        AttentionMask(torch.ones(1, 1, length, length) > 0).save("mask.safetensors")
        if length == 30:
            assert headlens("attend", tiny_bert, "--text", TEXT, "--mask", "mask.safetensors", "--out", "run").code == 0
            record = json.loads(Path("run/run.json").read_text())
            Path("run/run.json").write_text(json.dumps(record | {"status": "interrupted"}))
    done = headlens("attend", "--resume", "run")
    assert done.code == 2
    assert "content of the mask was" in done.err
