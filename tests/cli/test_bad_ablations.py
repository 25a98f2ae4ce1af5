"""Everything a user may get wrong with `ablate`: exit code 2, what and where, advice, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from made_tasks import text
from safetensors.torch import load_file, save_file
from saved import build, save
from transformers import PreTrainedTokenizerBase

from headlens.analyses.ablate.sweep import HeadRecords

Headlens = Callable[..., Any]
Made = Callable[..., str]
ROWS = "sentence\tlabel\n" + "".join(f"{text(n)}\t{n % 2}\n" for n in range(30))
PAIRS = "sentence1\tsentence2\tlabel\n" + "".join(f"{text(n)}\t{text(n, 2)}\t{n % 6}\n" for n in range(9))
TRAIN = "headlens train MODEL --task sst2"
MARIAN = {"pad_token_id": 0, "eos_token_id": 102, "decoder_start_token_id": 0}
FILES = {
    "dev.tsv": ROWS,
    "empty.tsv": "",
    "header.tsv": "sentence\tlabel\n",
    "hidden.tsv": "sentence\tlabel\nthe cat\t-1\na house\t-1\n",
    "plain.tsv": "sentence\nthe cat\na house\n",
    "broken.tsv": "sentence\tlabel\nyes\t1\nno\t7\n",
    "long.tsv": f"sentence\tlabel\n{'river ' * 60}\t1\n{'house ' * 60}\t0\n",
    "latin.tsv": b"sentence\tlabel\nna\xefve\t1\n",
    "pairs.tsv": PAIRS,
    "both.tsv": "source\ttarget\n" + "".join(f"{text(n)}\t{text(n, 2)}\n" for n in range(4)),
}
DEV = ("--task", "sst2", "--data", "dev.tsv")
REFUSED: dict[str, tuple[Sequence[object], Sequence[str]]] = {
    "unknown metric": ((*DEV, "--metric", "bleu"), ["The task sst2 has no metric 'bleu'", "can be accuracy"]),
    "unknown task": (("--task", "sst3"), ["'--task': 'sst3' is not a task", "sst2"]),
    "unknown mode": ((*DEV, "--mode", "half"), ["--mode", "'zero', 'mean', 'uniform'"]),
    "keep-only is no mode": ((*DEV, "--mode", "keep-only"), ["--mode"]),
    "unknown strategy": (
        (*DEV, "--prune", 1, "--strategies", "best"),
        ["Unknown strategy 'best'", "ranked, importance"],
    ),
    "one of them unknown": ((*DEV, "--prune", 1, "--strategies", "ranked,finest"), ["Unknown strategy 'finest'"]),
    "no strategy": ((*DEV, "--prune", 1, "--strategies", ","), ["--strategies is empty", "ranked"]),
    "no strategy without pruning": ((*DEV, "--strategies", "best"), ["Unknown strategy 'best'"]),
    "no heads": ((*DEV, "--prune", 0), ["0 heads cannot be pruned", "at least 1"]),
    "less than none": ((*DEV, "--prune=-2"), ["-2 heads cannot be pruned", "at least 1"]),
    "words": ((*DEV, "--prune", "some"), ["'--prune': 'some' is not a list of whole numbers", "Write 3,10,20,30"]),
    "half a head": ((*DEV, "--prune", "1,1.5"), ["'--prune': '1,1.5' is not a list of whole numbers"]),
    "more than there are": ((*DEV, "--prune", "1,5"), ["5 heads cannot be pruned: the model has 4", "up to"]),
    "all of them": ((*DEV, "--prune", 4), ["4 heads cannot be pruned: nothing would be left", "up to 3"]),
    "nothing to rank on": (
        (*DEV, "--prune", 1, "--strategy-args", "rank-split=0"),
        ["--strategy-args rank-split 0.0 leaves nothing", "0.5"],
    ),
    "nothing to evaluate": (
        (*DEV, "--prune", 1, "--strategy-args", "rank-split=1"),
        ["--strategy-args rank-split 1.0 leaves nothing", "0.5"],
    ),
    "no share": (
        (*DEV, "--prune", 1, "--strategy-args", "rank-split=2"),
        ["--strategy-args rank-split: 2 is not a number from 0 to 1"],
    ),
    "a share of NaN": (
        (*DEV, "--prune", 1, "--strategy-args", "rank-split=nan"),
        ["--strategy-args rank-split: nan is not a number"],
    ),
    "too few to split": ((*DEV, "--prune", 1, "--limit", 3), ["3 examples cannot be split", "Give more --data"]),
    "beam of none": ((*DEV, "--strategy-args", "beam=0"), ["--strategy-args beam"]),
    "orders of none": ((*DEV, "--strategy-args", "orders=0"), ["--strategy-args orders"]),
    "no samples": ((*DEV, "--replicates", 0), ["--replicates"]),
    "no tokens": ((*DEV, "--batch-tokens", 0), ["--batch-tokens"]),
    "no seed": ((*DEV, "--seed", -1), ["--seed"]),
    "no such file": (("--task", "sst2", "--data", "none.tsv"), ["none.tsv: no such file", "hub:NAME"]),
    "empty": (("--task", "sst2", "--data", "empty.tsv"), ["empty.tsv: no examples", "Choose another file"]),
    "too short": ((*DEV, "--data-args", "min-words=99"), ["fewer than 99 words", "with --data-args min-words"]),
    "only a header": (("--task", "sst2", "--data", "header.tsv"), ["header.tsv: no examples", "Choose another file"]),
    "no labels": (("--task", "sst2", "--data", "hidden.tsv"), ["hidden.tsv: no examples: none of its 2 rows has a"]),
    "no label column": (("--task", "sst2", "--data", "plain.tsv"), ["plain.tsv:2: which columns are", "--columns"]),
    "another label": (("--task", "sst2", "--data", "broken.tsv"), ["broken.tsv:3: 'label' has the unknown label '7'"]),
    "too long": (("--task", "sst2", "--data", "long.tsv"), ["long: none of its 2 examples can be used", "40 tokens"]),
    "not UTF-8": (("--task", "sst2", "--data", "latin.tsv"), ["latin.tsv:2: not UTF-8"]),
    "no column": ((*DEV, "--columns", "text"), ["--columns text: not understood"]),
    "no data set": (("--task", "sst2", "--data", "hub:"), ["hub: names no data set", "hub:nyu-mll/glue:sst2"]),
    "targets": ((*DEV, "--target", "dev.tsv"), ["The task sst2 has no translations", "Leave --target out"]),
    "a score": (("--task", "stsb", "--data", "pairs.tsv"), ["but the model has 2 classes", "--task stsb"]),
    "a translation": (("--task", "translation", "--data", "both.tsv"), ["needs an encoder-decoder", "Marian"]),
    "words to fill in": (("--task", "mlm", "--data", "plain.tsv"), ["a language-model head", "shape (1, 2)"]),
    "offline": (("--task", "sst2", "--offline"), ["glue", "--offline"]),
    "output is a file": ((*DEV, "--out", "dev.tsv"), ["Cannot write dev.tsv", "--out"]),
    "resume and elsewhere": (("--resume", "run", "--out", "other"), ["--resume continues a run in its own folder"]),
    "nothing to resume": (("--resume", "nowhere"), ["nowhere holds no run"]),
    "no such device": ((*DEV, "--device", "tpu"), ["--device"]),
}  # fmt: skip


def everything() -> set[str]:
    """All files and folders."""
    return {str(p) for p in Path().rglob("*")}


@pytest.fixture
def assert_refused(headlens: Headlens) -> Callable[..., None]:
    """Run `ablate` and see that it is refused, with the messages, and leaves nothing behind."""
    for name, content in FILES.items():
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())

    def check(*arguments: object, say: Sequence[str]) -> None:
        before = everything()
        done = headlens("ablate", *arguments, "--no-figures")
        assert done.code == 2, done.out + done.err
        said = " ".join(done.err.replace("│", " ").split())
        for message in say:
            assert message in said
        assert "Traceback" not in done.err
        assert done.err.startswith(("Error: ", "Usage: ")), "nothing but the message"
        assert done.out == ""
        assert len(done.err.strip().splitlines()) >= 2, "an error says what to do"
        assert everything() == before

    return check


@pytest.mark.usefixtures("loads_once")
@pytest.mark.parametrize("case", REFUSED)
def test_refused(assert_refused: Callable[..., None], made: Made, case: str) -> None:
    arguments, say = REFUSED[case]
    assert_refused(made("judge"), *arguments, say=say)


def test_a_model_without_the_head(assert_refused: Callable[..., None], made: Made, tiny_bert: Path) -> None:
    for more in ((), ("--mode", "mean"), ("--prune", 1)):
        assert_refused(tiny_bert, *DEV, *more, say=["needs a model with 2 classes; this one gives no logits", TRAIN])
    # also where it comes second: nothing is swept in vain
    assert_refused(made("judge"), tiny_bert, *DEV, say=["this one gives no logits", TRAIN])


def test_other_classes(assert_refused: Callable[..., None], made: Made) -> None:
    three = made("of-mnli", task="mnli")
    say = ["The task sst2 has 2 classes (negative, positive), the model 3 (entailment, neutral, contradiction)", TRAIN]
    assert_refused(three, *DEV, say=say)
    assert_refused(made("judge"), three, *DEV, say=say)


def test_a_second_model_with_fewer_heads(
    assert_refused: Callable[..., None], made: Made, wordpiece_tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    flat = build("BertForSequenceClassification", len(wordpiece_tokenizer), num_hidden_layers=1)
    save(flat, tmp_path / "flat", wordpiece_tokenizer)
    assert_refused(
        made("judge"), "flat", *DEV, "--prune", 3, say=["3 heads cannot be pruned: the model has 2", "up to"]
    )


def test_three_models(assert_refused: Callable[..., None], made: Made) -> None:
    assert_refused(*[made("judge")] * 3, *DEV, say=["3 models were given", "two to compare"])


def test_translation_models(
    assert_refused: Callable[..., None], tokenizer_of_made_texts: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    save(build("MarianMTModel", len(tokenizer_of_made_texts), **MARIAN), tmp_path / "mt", tokenizer_of_made_texts)
    for mode in ("mean", "uniform"):
        say = ["generates token by token", "--mode zero, or a task scored in a single pass, such as translation-loss"]
        assert_refused("mt", "--task", "translation", "--data", "both.tsv", "--mode", mode, say=say)
    lacks = "sst2 needs a model with a sequence-classification head; mt is a MarianMTModel"
    assert_refused("mt", *DEV, say=[lacks, "mt cannot be trained for it."])
    assert_refused("mt", "--task", "mlm", "--data", "plain.tsv", say=["needs a model with a masked-lm head"])


def damaged(model: str, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    shutil.copytree(model, "damaged")
    weights = load_file("damaged/model.safetensors")
    change(weights)
    save_file(weights, "damaged/model.safetensors", metadata={"format": "pt"})


def test_a_checkpoint_with_nan(assert_refused: Callable[..., None], made: Made) -> None:
    damaged(made("judge"), lambda w: w["bert.encoder.layer.1.attention.self.key.weight"].fill_(float("nan")))
    assert_refused("damaged", *DEV, say=["damaged: 1 weight holds NaN", "diverged"])
    assert_refused(made("judge"), "damaged", *DEV, say=["damaged: 1 weight holds NaN"])


def test_no_tokenizer(assert_refused: Callable[..., None], made: Made) -> None:
    damaged(made("judge"), lambda w: w)
    for file in Path("damaged").glob("token*"):
        file.unlink()
    assert_refused("damaged", *DEV, say=["damaged has no tokenizer", "Save its tokenizer beside it"])


@pytest.mark.parametrize(
    ("lines", "say"),
    [
        (['strategies = ["best"]'], ["Unknown strategy 'best'"]),
        (['prune = "x"'], ["--prune: 'x' is not a list of whole numbers"]),
        (["prune = [1, 2.5]"], ["--prune: [1, 2.5] is not a list of whole numbers"]),
        (["prune = true"], ["--prune"]),
        (["rank-split = nan"], ["--strategy-args rank-split"]),
        (["strategy = 'ranked'"], ["ablate has no option 'strategy'", "Did you mean strategies"]),
        (["metric = 'f1'"], ["no metric 'f1'"]),
    ],
)
def test_options_from_a_file(assert_refused: Callable[..., None], made: Made, lines: list[str], say: list[str]) -> None:
    Path("o.toml").write_text("\n".join(["[ablate]", "task = 'sst2'", "data = ['dev.tsv']", *lines]))
    assert_refused(made("judge"), "--config", "o.toml", say=say)


def test_a_resumed_run_takes_no_other_options(
    headlens: Headlens, assert_refused: Callable[..., None], made: Made
) -> None:
    assert headlens("ablate", made("judge"), *DEV, "--out", "run", "-q", "--no-figures").code == 0
    assert_refused("--resume", "run", say=["run holds a finished run: there is nothing left to do"])
    record = json.loads(Path("run/run.json").read_text())
    Path("run/run.json").write_text(json.dumps(record | {"status": "interrupted"}))
    assert_refused("--resume", "run", "--seed", 5, say=["seed was 0 and is 5"])
    assert_refused("--resume", "run", "--mode", "mean", say=["mode was", "zero", "mean"])


def test_an_error_after_hours_keeps_what_was_done(
    headlens: Headlens, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up when the tables are written."""
    Path("dev.tsv").write_text(ROWS)
    arguments = (made("judge"), *DEV, "--no-figures", "-q")
    assert headlens("ablate", *arguments, "--out", "whole").code == 0

    def full(number: int) -> None:
        if list(Path("run").glob(".*.csv")):
            raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        done = headlens("ablate", *arguments, "--out", "run")
    assert done.code == 2
    assert "No space left on device" in done.err
    assert "headlens ablate --resume run" in done.err
    assert not list(Path("run").glob("*.csv"))

    def never(*_: object) -> None:
        pytest.fail("this was swept before")

    monkeypatch.setattr(HeadRecords, "put", never)
    assert headlens("ablate", "--resume", "run", "-q").code == 0
    assert Path("run/ablation.csv").read_bytes() == Path("whole/ablation.csv").read_bytes()


def test_labels_of_one_of_two_models(headlens: Headlens) -> None:
    done = headlens("ablate", "one", "two", "--task", "sst2", "--labels", "model=negative,positive")
    assert done.code == 2
    assert "names the outputs of one model, but several were given" in done.err
    assert "Run them one after the other" in done.err
