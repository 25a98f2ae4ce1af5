"""`headlens train-dam` as a user runs it."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from made_tasks import text
from safetensors.torch import load_file
from tiers import rest_slow

import headlens as package
from headlens.attention_masks.attention_mask import AttentionMask
from headlens.errors import Interrupted
from headlens.learning.training_run import CheckpointFolder
from headlens.pages.formatting import escaped
from headlens.tables.mask_tables import SWEEP_OF_MASKS

Headlens = Callable[..., Any]
BRIEF = ("--steps", 6, "--batch-tokens", 150, "--training-args", "log-every=3", "--data-args", "longest=40")
SHORT = (*BRIEF, "--lambdas", "0,0.1")
TABLES = ("sweep", "sparsity", "positions", "importance", "log")
RUNS = ("penalty-0", "penalty-0.1")


@pytest.fixture
def run(headlens: Headlens, made: Callable[..., str], sentiment: tuple[str, ...]) -> Headlens:
    def run(*more: object, out: str = "run") -> Any:
        usual = BRIEF if "--lambdas" in more else SHORT
        return headlens("train-dam", made("judge"), *sentiment, *usual, "--out", out, *more)

    return run


def figures(*runs: str) -> set[str]:
    masks = (f"{kind}_{name}" for kind in ("mask", "p") for name in runs)
    return {"quality", "importance", "importance_over_training", *masks}


def assert_same(one: str, two: str, runs: Sequence[str] = RUNS) -> None:
    for name in (*(f"{t}.csv" for t in TABLES), *(f"models/{r}/model.safetensors" for r in runs)):
        assert Path(one, name).read_bytes() == Path(two, name).read_bytes(), name
    for name, key in (("mask", "allowed"), ("probabilities", "p")):
        for own in runs:
            # The order of what else a file says of its mask differs from process to process.
            first, second = (load_file(f"{folder}/masks/{own}/{name}.safetensors")[key] for folder in (one, two))
            assert torch.equal(first, second), own


@pytest.mark.parametrize(
    "thorough", [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.figures])], ids=["tables", "figures"]
)
@pytest.mark.usefixtures("skilled")
def test_writes_tables_masks_models_and_figures(run: Headlens, headlens: Headlens, thorough: bool) -> None:
    # Faster, all models would give every example the same answer, of which there is no verdict.
    done = run("--law", "per-layer", "--learning-rate", "1e-5")
    assert done.code == 0, done.err
    sweep, sparsity, positions, importance, log = (pd.read_csv(f"run/{name}.csv") for name in TABLES)
    assert sweep.columns.tolist() == SWEEP_OF_MASKS.names
    assert sweep["run"].tolist() == ["plain", "unmasked", *RUNS]
    for row in sweep.iloc[2:].to_dict("records"):
        kept = load_file(f"run/{row['mask']}")["allowed"]
        assert (kept.dtype, kept.shape[2:]) == (torch.bool, (40, 40))
        assert row["sparsity"] == pytest.approx(1 - float(kept.float().mean()), abs=1e-6)
        own = sparsity[sparsity["mask"] == row["run"]]
        assert own["sparsity"].iloc[-1] == pytest.approx(row["sparsity"])
        assert own["layer"].iloc[:-1].nunique() == kept.shape[0] > 1
        assert package.load(f"run/{row['checkpoint']}").model.config.num_hidden_layers == kept.shape[0]
    assert sweep["sparsity"].is_monotonic_increasing
    assert sweep["delta"].iloc[:2].isna().all()
    assert sweep["delta"].iloc[2:].to_numpy() == pytest.approx(sweep["value"].iloc[2:] - sweep["value"].iloc[1])
    assert (sweep["delta_low"].iloc[2:] <= sweep["delta"].iloc[2:]).all()
    assert all(word in done.out for word in ("difference", "unmasked"))  # wrapped where the screen is narrow
    assert sweep["verdict"].isna().tolist() == [True, True, *[False] * len(RUNS)]
    unmasked = sweep[sweep["run"] == "unmasked"].iloc[0]
    usual = min(0.01, 0.1 * (unmasked["value"] - unmasked["chance"]))
    assert sweep["margin"].iloc[2:].to_numpy() == pytest.approx(usual)
    assert "of text positions masked (penalty-" in " ".join(done.out.split())
    assert set(positions["class"]) == {"special", "diagonal", "neighbourhood", "rest", "offset"}
    assert log.groupby("run").size().to_dict() == dict.fromkeys(RUNS, 2)
    assert importance.groupby(["run", "class"])["step"].apply(list).tolist() == [[0, 3, 6]] * 2 * 3
    assert sweep["diagonal"].all()
    assert sweep["diagonal_delta"].isna().all()
    record = json.loads(Path("run/run.json").read_text())
    assert (record["status"], record["dam"]["updates"], record["dam"]["mask"]["longest"]) == ("finished", 6, 40)
    assert not Path("run/.resume").exists()
    written = Path("run/results.md").read_text(encoding="utf-8")
    assert written.endswith("".join(f"- {escaped(note)}\n" for note in record["notes"]))
    assert any("is still between 0.1 and 0.9" in note for note in record["notes"])
    shown = " ".join(done.out.split())
    assert "No text to learn from has more than 14 tokens" in shown
    assert ("under λ = 0 nothing decides them" in shown) == ("penalty-0" in RUNS)
    assert "under a penalty, P may fall with distance for this reason alone" in shown
    assert ("under λ = 0, P stays nearer to 1/2" in shown) == ("penalty-0" in RUNS)
    assert ("would let those settle that some text has" in shown) == ("penalty-0" in RUNS)
    if thorough:
        assert {path.stem for path in Path("run/figures").glob("*.png")} == figures(*RUNS)
        assert headlens("report", "run").code == 0
        page = Path("run/report.html").read_text(encoding="utf-8")
        assert "The mask" in page
        assert "Masks and what models achieve under them" in page


@pytest.mark.figures(blank=True)
def test_figures_of_one_mask(run: Headlens) -> None:
    assert run("--lambdas", 0.1, "--steps", 1, "--training-args", "log-every=1,freeze=all").code == 0
    assert {path.stem for path in Path("run/figures").glob("*.png")} == figures("penalty-0.1")


@pytest.mark.slow
def test_the_same_training_without_a_mask(run: Headlens, headlens: Headlens, made: Callable[..., str]) -> None:
    """What `train` makes of the model, so that a mask is not compared with a model that was trained less."""
    how = ("--learning-rate", 2e-3, "--seed", 3)
    assert run(*how, "--lambdas", 0.1, "--no-figures").code == 0
    # Nothing is held out, so that the last update counts, not the best.
    usual = (
        "--task",
        "sst2",
        "--data",
        "train.tsv",
        "--data-args",
        "dev-share=0",
        "--steps",
        6,
        "--batch-tokens",
        150,
        *how,
    )
    done = headlens("train", made("judge"), *usual, "--data-args", "longest=40", "--no-figures", "--out", "alone")
    assert done.code == 0, done.err
    sweep = pd.read_csv("run/sweep.csv").set_index("run")
    one, two = (load_file(f"{place}/model.safetensors") for place in ("run/models/unmasked", "alone/model"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    under = load_file("run/models/penalty-0.1/model.safetensors")
    assert not all(torch.equal(one[name], under[name]) for name in one)
    measured = headlens("ablate", "run/models/unmasked", "--task", "sst2", "--data", "dev.tsv", "--replicates", 100)
    assert measured.code == 0, measured.err
    (found,) = Path("runs").glob("ablate-*/ablation.csv")
    assert pd.read_csv(found)["baseline"].iloc[0] == pytest.approx(sweep["value"]["unmasked"])


@pytest.mark.slow
@pytest.mark.parametrize("runs", rest_slow([RUNS[1:], RUNS]), ids=["one penalty", "two penalties"])
def test_each_mask_without_the_diagonal_too(run: Headlens, headlens: Headlens, runs: tuple[str, ...]) -> None:
    """As a run without it gives it, compared also with the same mask with it, example by example."""
    names = [f"{name}{end}" for name in runs for end in ("", "-no-diagonal")]
    few = (
        "--training-args",
        "freeze=all",
        "--steps",
        2,
        "--lambdas",
        ",".join(name.removeprefix("penalty-") for name in runs),
    )
    done = run("--controls", *few)
    assert done.code == 0, done.err
    sweep = pd.read_csv("run/sweep.csv").set_index("run")
    assert sweep.index.tolist() == ["plain", *names]
    assert sweep["diagonal"].tolist() == [True, *[True, False] * len(runs)]
    for name in runs:
        row, own = sweep.loc[f"{name}-no-diagonal"], sweep.loc[name]
        assert row["diagonal_delta"] == pytest.approx(row["value"] - own["value"])
        assert row["diagonal_delta_low"] <= row["diagonal_delta"] <= row["diagonal_delta_high"]
        assert row["delta"] == pytest.approx(row["value"] - sweep.loc["plain", "value"])
        assert np.isnan(own["diagonal_delta"])
        assert not AttentionMask.load(f"run/{row['mask']}").block(9).diagonal(dim1=2, dim2=3).any()
    assert "With the diagonal and without it" in Path("run/results.md").read_text(encoding="utf-8")
    assert run("--law", "diagonal=false", *few, out="alone").code == 0
    alone = pd.read_csv("alone/sweep.csv").set_index("run")
    for name in runs:
        assert alone.loc[name, "value"] == sweep.loc[f"{name}-no-diagonal", "value"]
        assert alone.loc[name, "sparsity"] == sweep.loc[f"{name}-no-diagonal", "sparsity"]
    assert headlens("report", "run").code == 0
    refused = run("--controls", "--law", "diagonal=false", out="none")
    assert refused.code == 2
    assert "--controls learns masks both with and without the diagonal.\nLeave --law diagonal=false out." in refused.err


def test_where_the_mask_alone_is_trained_the_model_is_its_own_comparison(run: Headlens) -> None:
    assert run("--training-args", "freeze=all", "--lambdas", 0.1, "--no-figures").code == 0
    sweep = pd.read_csv("run/sweep.csv")
    assert sweep["run"].tolist() == ["plain", "penalty-0.1"]
    assert sweep["delta"].iloc[1] == pytest.approx(sweep["value"].iloc[1] - sweep["value"].iloc[0])
    assert not Path("run/models/unmasked").exists()


@pytest.mark.slow
def test_masks_of_some_layers(run: Headlens, headlens: Headlens) -> None:
    assert run("--layers", "last:1", "--law", "form=renormalised", "--no-figures").code == 0
    sweep = pd.read_csv("run/sweep.csv").set_index("run")
    kept = load_file("run/masks/penalty-0.1/mask.safetensors")["allowed"]
    assert len(kept) > 1
    assert bool(kept[:-1].all())
    assert not bool(kept[-1].all())
    assert sweep["sparsity"]["penalty-0.1"] == pytest.approx(1 - float(kept[-1].float().mean()), abs=1e-6)
    positions, sparsity = pd.read_csv("run/positions.csv"), pd.read_csv("run/sparsity.csv")
    assert set(positions["layer"]) == set(sparsity["layer"].dropna()) == {len(kept) - 1}
    again = headlens("train-dam", "--config", "run/run.json", "--out", "again", "-q")
    assert again.code == 0, again.err
    assert_same("run", "again")
    refused = run("--layers", "9", out="none")
    assert refused.code == 2
    assert "there is no layer 9 with heads in the encoder" in refused.err
    assert not Path("none").exists()


@pytest.mark.slow
def test_no_diagonal_in_some_layers_alone(run: Headlens, headlens: Headlens) -> None:
    """The file leaves the others as they are, and is what the metrics were measured under."""
    assert run("--layers", "last:1", "--law", "diagonal=false", "--lambdas", "0.1", "--no-figures").code == 0
    row = pd.read_csv("run/sweep.csv").iloc[-1]
    mask = AttentionMask.load(f"run/{row['mask']}")
    for n in (5, 40):
        diagonals = mask.block(n).diagonal(dim1=2, dim2=3)
        assert bool(diagonals[:-1].all())
        assert not bool(diagonals[-1].any())
        assert bool(mask.block(n)[:-1].all())
    args = ("--task", "sst2", "--data", "dev.tsv", "--mask", f"run/{row['mask']}", "--no-figures", "--replicates", 100)
    done = headlens("ablate", f"run/{row['checkpoint']}", *args, "--out", "under")
    assert done.code == 0, done.err
    assert pd.read_csv("under/ablation.csv")["baseline"].iloc[0] == pytest.approx(row["value"])
    positions = pd.read_csv("run/positions.csv").set_index("class").loc["diagonal"]
    assert (positions["positions"] == 0).all()
    assert positions[["p", "kept"]].isna().all(axis=None)  # held closed, so nothing was learned of it


@pytest.mark.slow
def test_what_is_masked_of_the_texts(
    run: Headlens, headlens: Headlens, made: Callable[..., str], sentiment: tuple[str, ...]
) -> None:
    """A mask of 40 positions says nothing of texts of a few tokens: counted text by text, as `masks` does."""
    for name in ("train.tsv", "dev.tsv"):
        lines = Path(name).read_text(encoding="utf-8").splitlines(keepends=True)
        Path(name).write_text("".join([*lines, *lines[-3:]]), encoding="utf-8")  # a text counts once
    done = run("--lambdas", "0.1", "--steps", 2)
    assert "masked in texts" in done.out
    row = pd.read_csv("run/sweep.csv").iloc[-1]
    kept = load_file(f"run/{row['mask']}")["allowed"]
    tokenizer = package.load(f"run/{row['checkpoint']}").tokenizer
    assert tokenizer is not None
    shares = []
    for sentence in {s for name in ("train", "dev") for s in pd.read_csv(f"{name}.tsv", sep="\t")["sentence"]}:
        n = len(tokenizer(sentence)["input_ids"])
        own = kept[:, :, :n, :n].clone()
        own[:, :, [0, n - 1]] = True
        own[:, :, :, [0, n - 1]] = True
        shares.append(1 - float(own.double().mean()))
    assert row["sparsity_texts"] == pytest.approx(np.mean(shares))
    assert row["sparsity_texts"] < row["sparsity"]
    under = ("--mask", f"run/{row['mask']}", "--no-controls", "--length", 40, "--no-figures", "--out", "under")
    assert headlens("masks", made("judge"), *sentiment, "--steps", 1, *under).code == 0
    assert pd.read_csv("under/masks.csv")["sparsity_texts"].iloc[-1] == pytest.approx(row["sparsity_texts"])


@pytest.mark.slow
def test_penalties_that_differ_little_are_runs_of_their_own(run: Headlens) -> None:
    assert run("--lambdas", "0.1,0.10000000000001", "--no-figures").code == 0
    assert pd.read_csv("run/sweep.csv")["run"].tolist()[2:] == ["penalty-0.1", "penalty-0.10000000000001"]


@pytest.mark.slow
def test_masks_that_are_drawn_while_the_model_is_measured(run: Headlens) -> None:
    """Beside the same training measured under its final mask; the same numbers again."""
    more = ("--lambdas", "0", "--law", "structured=false", "--no-figures", "--learning-rate", 2e-3)
    done = run("--law", "noise=always", *more, out="noisy")
    assert "under masks that are resampled for every batch" in " ".join(done.out.split())
    for name in ("again", "plain"):
        assert run("--law", "noise=always" if name == "again" else "noise=training", *more, out=name).code == 0
    noisy, again, plain = (pd.read_csv(f"{name}/sweep.csv") for name in ("noisy", "again", "plain"))
    pd.testing.assert_frame_equal(noisy, again)
    one, two = (load_file(f"{name}/models/penalty-0/model.safetensors") for name in ("noisy", "plain"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert noisy["sparsity"].tolist() == plain["sparsity"].tolist()


@pytest.mark.slow
def test_a_report_draws_what_the_run_did_not(run: Headlens, headlens: Headlens) -> None:
    assert run("--no-figures").code == 0
    done = headlens("report", "run", "--out", "page")
    assert done.code == 0, done.err
    drawn = {path.stem.removeprefix("run_") for path in Path("page").rglob("*.png")}
    expected = figures(*RUNS)
    assert {name for name in expected if any(name in other for other in drawn)} == expected, drawn
    Path("run/masks/penalty-0/mask.safetensors").write_bytes(b"none")
    done = headlens("report", "run", "--out", "other")
    assert done.code == 2
    assert "penalty-0 does not hold a mask" in " ".join(done.err.split())


@pytest.mark.slow
def test_other_commands_take_the_mask(run: Headlens, headlens: Headlens) -> None:
    assert run("--no-figures", "--law", "diagonal=false").code == 0
    last = pd.read_csv("run/sweep.csv").iloc[-1]
    mask = ("--mask", f"run/{last['mask']}", "--no-figures", "--replicates", 100)
    done = headlens(
        "ablate", f"run/{last['checkpoint']}", "--task", "sst2", "--data", "dev.tsv", *mask, "--out", "under"
    )
    assert done.code == 0, done.err
    assert pd.read_csv("under/ablation.csv")["baseline"].iloc[0] == pytest.approx(last["value"])


def test_masks_for_more_than_the_model_reads(run: Headlens) -> None:
    done = run("--data-args", "longest=4096", out="none")
    assert done.code == 2
    assert re.search(
        r"--data-args longest 4096 is more than the \d+ tokens that judge reads", " ".join(done.err.split())
    )
    assert not Path("none").exists()


@pytest.mark.slow
def test_the_same_again_from_its_own_record(run: Headlens, headlens: Headlens) -> None:
    assert (
        run(
            "--law", "straight-through=false,final-temperature=0.5,structured=false,diagonal=false", "--no-figures"
        ).code
        == 0
    )
    again = headlens("train-dam", "--config", "run/run.json", "--out", "again", "-q")
    assert again.code == 0, again.err
    assert_same("run", "again")
    kept = load_file("run/masks/penalty-0/mask.safetensors")["allowed"]
    assert not bool(kept.diagonal(dim1=2, dim2=3).any())


@pytest.mark.parametrize(
    ("call", "runs", "steps"),
    [(4, RUNS[1:], 2), *(pytest.param(n, RUNS, 6, marks=pytest.mark.slow) for n in (3, 9))],
    ids=["few steps", "first run", "second run"],
)
def test_interrupted_and_gone_on_with(
    run: Headlens, headlens: Headlens, monkeypatch: pytest.MonkeyPatch, call: int, runs: tuple[str, ...], steps: int
) -> None:
    """Bit by bit as if it had never stopped."""
    penalties = ",".join(name.removeprefix("penalty-") for name in runs)
    options = ("--law", "final-temperature=0.5", "--steps", steps, "--lambdas", penalties)
    assert run(*options, out="whole").code == 0
    calls: list[int] = []

    def obey(_: CheckpointFolder) -> None:
        calls.append(1)
        if len(calls) == call:
            raise Interrupted(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFolder, "due", lambda _: True)
        patch.setattr(CheckpointFolder, "obey", obey)
        done = run(*options)
    assert done.code == 130
    assert "headlens train-dam --resume run" in done.err
    torch.manual_seed(1)
    done = headlens("train-dam", "--resume", "run")
    assert done.code == 0, done.err
    assert_same("run", "whole", runs)


def test_masked_tokens_of_text_from_random_weights(headlens: Headlens) -> None:
    Path("text.txt").write_text("\n".join(text(n) for n in range(60)), encoding="utf-8")
    options = (
        "--task",
        "mlm",
        "--corpus",
        "text.txt",
        "--model-args",
        "vocabulary=100",
        "--law",
        "form=multiplicative",
        *SHORT,
        "--steps",
        2,
    )
    done = headlens("train-dam", "new:bert-tiny", *options, "--out", "run")
    assert done.code == 0, done.err
    sweep = pd.read_csv("run/sweep.csv")
    assert sweep["task"].unique().tolist() == ["mlm"]
    assert sweep["metric"].tolist() == ["accuracy", "loss"] * 4
    assert [head for head in ("accuracy", "loss") if f" {head} " not in done.out] == []
    # Of a model that knows nothing
    assert sweep.loc[sweep["metric"] == "loss", "value"].to_numpy() == pytest.approx(np.log(100), rel=0.2)


def test_text_that_nobody_named_is_told(headlens: Headlens) -> None:
    options = ("--task", "mlm", "--limit", 60, "--model-args", "vocabulary=100", *BRIEF, "--lambdas", 0, "--steps", 1)
    done = headlens("train-dam", "new:bert-tiny", *options, "--out", "run")
    assert done.code == 0, done.err
    assert "The training text is that of the bundled treebank, only 60 sentences." in " ".join(done.out.split())


def test_examples_that_are_too_long_to_be_measured_on_are_told(run: Headlens) -> None:
    done = run("--data-args", "longest=6", "--steps", 1, "--lambdas", 0)
    assert done.code == 0, done.err
    assert re.search(
        r"Left out: \d+ examples of \S+, too long for 6 tokens or without text to score", " ".join(done.out.split())
    )


@pytest.mark.slow
def test_masks_of_an_earlier_sweep_go(run: Headlens) -> None:
    assert run("--no-figures").code == 0
    assert run("--no-figures", "--overwrite", "--lambdas", "1").code == 0
    assert [path.name for path in Path("run/masks").iterdir()] == ["penalty-1"]
    assert sorted(path.name for path in Path("run/models").iterdir()) == ["penalty-1", "unmasked"]


def test_lambdas_that_are_none(run: Headlens) -> None:
    done = run("--lambdas", "a,b")
    assert done.code == 2
    assert "not a list of numbers" in done.err


def test_next_sentences_go_with_text_alone(headlens: Headlens) -> None:
    done = headlens("train-dam", "demo", "--training-args", "next-sentence")
    assert done.code == 2
    assert "--training-args next-sentence is not for --task auto.\nIt goes with --task mlm." in done.err


def test_heads_of_which_nothing_is_left_are_told(run: Headlens) -> None:
    done = run("--lambdas", "1000", "--law", "mask-learning-rate=5,structured=false")
    assert done.code == 0, done.err
    said = " ".join(done.out.split())
    assert re.search(
        r"penalty-1000: everything is masked in (\d+) of \1 heads, so the output of these heads is meaningless", said
    )
