"""What a command says to do next, on the same model and data: a study by pasting what is printed; names of data."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tiers import rest_slow

from headlens.analyses.ablate.options import AblateRequest
from headlens.analyses.classify.options import ClassifyRequest
from headlens.analyses.commands import commands
from headlens.attention_masks.mask_options import MaskOptions
from headlens.tasks.task_options import TaskData
from headlens_cli.ablate import following
from headlens_cli.next_steps import as_started, next_step

Headlens = Callable[..., Any]
LINES = ["a cat sees the dog", "the dog sees a cat", "a dog chases the old cat", "the cat sleeps on a mat"]
# Short runs, whatever they show.
QUICK: dict[str, tuple[object, ...]] = {
    "classify": ("--limit", 24),
    "ablate": ("--replicates", 100),
    "prune": ("--steps", 2, "--target-heads", 1, "--law", "most-runs=1"),
}
STEPS = ["classify", "relevance", "ablate", "prune", "report"]
NEW = ("--steps", 2, "--model-args", "vocabulary=300", "--batch-tokens", 64)
STARTS: dict[str, tuple[object, ...]] = {
    "encoder": ("new:bert-1x2x16", "--corpus", "a.txt"),
    "decoder": ("new:gpt2-1x2x16", "--corpus", "a.txt"),
    "translation": ("new:marian-1x2x16", "--corpus", "a.txt", "--target", "b.txt"),
}


def said(out: str) -> list[str]:
    """The first of the commands that are named as next ones, as words."""
    return shlex.split(out.partition("Next: ")[2].split(", or ")[0])


@pytest.mark.parametrize("kind", rest_slow(list(STARTS), ["decoder"]))
def test_a_study_follows_what_is_printed(headlens: Headlens, kind: str) -> None:
    for name in ("a.txt", "b.txt"):
        Path(name).write_text("\n".join(LINES * 8), encoding="utf-8")
    done = headlens("train", *STARTS[kind], *NEW, "--out", "trained", "--device", "cpu")
    model, data = str(Path("trained/model")), ["a.txt", "b.txt"] if kind == "translation" else ["a.txt"]
    for number, step in enumerate(STEPS):
        assert done.code == 0, done.err
        program, name, about, *words = said(done.out)
        assert (program, name) == ("headlens", step)
        if step == "report":
            return
        assert about == model
        assert words[-2:] == ["--device", "cpu"] or "--device" in words
        assert [word for word in words if word.endswith(".txt")] == data
        done = headlens(name, about, *words, *QUICK.get(step, ()), "--out", f"step{number}")
    pytest.fail("no report at the end")


def test_what_was_typed_about_model_and_data_is_repeated() -> None:
    values = {"models": ("m",), "corpus": "a b.txt", "column": "text", "limit": 5, "device": "cpu", "seed": 3}
    request = commands()["classify"].request({**values, "source_language": "de", "batch_tokens": 9, "offline": True})
    assert isinstance(request, ClassifyRequest)
    words = shlex.split(next_step("relevance", request, "m"))
    assert words[:3] == ["headlens", "relevance", "m"]
    found = " ".join(words[3:])
    for told in ("--corpus a b.txt", "--column text", "--limit 5", "--device cpu", "source-language=de", "--offline"):
        assert told in found
    assert "seed" not in found
    assert "9" not in found
    assert "--corpus" not in next_step("ablate", request, "m"), "examples of a task are something else"


@pytest.mark.parametrize(
    ("started", "first"),
    [
        ("headlens", "headlens"),
        ("/somewhere/else/bin/headlens", "/somewhere/else/bin/headlens"),
        ("a folder/bin/headlens", "'a folder/bin/headlens'"),
        ("/x/headlens_cli/__main__.py", f"{shlex.quote(sys.executable)} -m headlens_cli"),
    ],
)
def test_next_steps_are_written_as_the_program_was_started(
    started: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [started, "classify"])
    text = "headlens report 'headlens run', or open x in a browser, or headlens attend demo"
    assert as_started(text) == f"{first} report 'headlens run', or open x in a browser, or {first} attend demo"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("ablate", "demo", "--corpus", "no.tsv", "--task", "sst2"), "no.tsv: no such file"),
        (("ablate", "demo", "--corpus=no.tsv", "--task", "sst2", "--column", "a"), "no.tsv: no such file"),
        (("classify", "demo", "--data", "no.conllu"), "no.conllu: no such file"),
        (("relevance", "demo", "--data", "no.tsv", "--text", "a"), "no.tsv: no such file"),
        (("probe", "demo", "--data", "no.conllu", "--dev-data", "no.conllu"), "no.conllu: no such file"),
        (("train", "demo", "--task", "mlm", "--data", "no.txt"), "no.txt: no such file"),
        (("prune", "demo", "--task", "mlm", "--data", "no.txt"), "no.txt: no such file"),
        (("masks", "demo", "--task", "sst2", "--corpus", "no.tsv", "--column", "a"), "no.tsv: no such file"),
        (("classify", "demo", "--text", "test_a.txt"), "That is a file: name it with --corpus."),
        (("train", "demo", "--data", "no.tsv", "--label", "a"), "with labels, give --task classification"),
        (
            ("train", "demo", "--data", "no.tsv", "--task", "sst2", "--labels", "a"),
            "The column of the labels is --label a.",
        ),
        (("train", "demo", "--lr", "1"), "No such option: --lr, which is --learning-rate here."),
        (("report", "run", "--output-dir", "a"), "No such option: --output-dir, which is --out here."),
        (("train", "demo", "--prune", "3"), "which train does not have: it is one of ablate."),
        (("classify", "demo", "--corpsu", "a"), "No such option: --corpsu (Possible options: --co"),
        # What a command has no data of its own for is refused as before.
        (("attend", "demo", "A cat.", "--column", "a"), "No such option: --column"),
        (("sparsefinder", "--column", "a", "--data", "no.tsv"), "--data is given, but no task"),
    ],
)
def test_data_is_understood_by_either_name(headlens: Headlens, words: tuple[str, ...], named: str) -> None:
    Path("test_a.txt").write_text("A cat.\n", encoding="utf-8")
    refused = headlens(*words)
    assert refused.code == 2
    assert named in " ".join(refused.err.replace("│", " ").split())


def ablated(request: AblateRequest, **tables: pd.DataFrame) -> str | None:
    """What follows a run of `ablate` with these tables."""
    return following(SimpleNamespace(tables=tables, folder=Path("run")), request)


def test_translations_in_columns_are_not_what_prune_reads() -> None:
    """It would refuse --columns: a next step that fails is none."""
    ablation = pd.DataFrame({"task": ["translation"]})
    in_columns = AblateRequest(("m",), TaskData("translation", data=("a.tsv",), columns=("source=de", "target=en")))
    assert ablated(in_columns, ablation=ablation) is None
    lines = AblateRequest(("m",), TaskData("translation", data=("a.de",), target="a.en"))
    assert ablated(lines, ablation=ablation) == "headlens prune m --task translation --data a.de --target a.en"


def test_prune_is_given_neither_a_few_examples_nor_a_model_under_a_mask() -> None:
    """A limit of 60 would leave 6 to evaluate on; the mask would be gone without a word."""
    data = TaskData("sst2", data=("dev.tsv",), limit=60)
    ablation = pd.DataFrame({"task": ["sst2"]})
    assert ablated(AblateRequest(("m",), data), ablation=ablation) == "headlens prune m --task sst2 --data dev.tsv"
    masked = AblateRequest(("m",), data, mask=MaskOptions(mask="star"))
    assert ablated(masked, ablation=ablation) is None


@pytest.mark.parametrize("parameters", [1000.0, np.nan])
def test_heads_that_cannot_be_cut_out_become_zeros(parameters: float) -> None:
    sets = pd.DataFrame({"strategy": ["none", "ranked"], "n_pruned": [0, 3], "verdict": [None, "not needed"]})
    found = ablated(AblateRequest(("m",)), pruning=sets.assign(parameters=parameters), ablation=sets)
    assert found is not None
    assert "--where strategy=ranked,n_pruned=3" in found
    assert found.endswith(" --stock") == np.isnan(parameters)


@pytest.mark.parametrize(
    ("data", "read"),
    [
        (TaskData("translation-loss", data=("a.de",), target="a.en"), "--corpus a.de --target a.en"),
        (TaskData("mlm", data=("a.txt",), limit=60), "--corpus a.txt --limit 60"),
        (TaskData("causal-lm", data=("b c.txt.gz",)), "--corpus 'b c.txt.gz'"),
        (TaskData("sst2", data=("dev.tsv",), limit=60), ""),
        (TaskData("mlm", data=("a.txt", "b.txt")), ""),
        (TaskData(), ""),
    ],
)
def test_heads_are_cut_out_on_the_text_that_they_were_ablated_on(data: TaskData, read: str) -> None:
    sets = pd.DataFrame({"strategy": ["ranked"], "n_pruned": [3], "verdict": ["not needed"], "parameters": [10.0]})
    found = ablated(AblateRequest(("m",), data), pruning=sets, ablation=sets)
    rows = "headlens compact m --from run/pruning.csv --where strategy=ranked,n_pruned=3"
    assert found == f"{rows} {read}".strip()
