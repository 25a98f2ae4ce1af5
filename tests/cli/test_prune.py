"""`headlens prune` as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import naive_statistics
import pandas as pd
import pytest
import torch
from made_tasks import sentiment_table, text
from scipy import stats
from transformers import AutoModelForSequenceClassification

import headlens as package
from headlens.errors import Interrupted
from headlens.heads import Head
from headlens.interventions.compacting import heads_of_model
from headlens.learning.training_run import CheckpointFolder
from headlens.tables.prune_tables import GATES, ROLES_KEPT, SWEEP
from headlens.tasks.evaluation import EvaluationOptions
from headlens.tasks.skill import skill_of

Headlens = Callable[..., Any]
SHORT = ("--steps", 8, "--batch-tokens", 150, "--training-args", "log-every=4", "--no-figures")
# Closes some gates of a model that has learned nothing, but not all, within a few updates.
STRONG = ("--lambdas", "0,0.05", "--law", "gate-learning-rate=1.0", "--training-args", "schedule=constant")
TABLES = ("gates", "sweep", "log", "results")


@pytest.fixture
def run(headlens: Headlens, made: Callable[..., str], sentiment: tuple[str, ...]) -> Headlens:
    return lambda *more, out="run": headlens("prune", made("judge"), *sentiment, *SHORT, "--out", out, *more)


@pytest.mark.usefixtures("skilled")
def test_writes_the_tables_of_the_contract_and_models_that_do_as_they_say(run: Headlens) -> None:
    done = run(*STRONG)
    assert done.code == 0, done.err
    gates, sweep = pd.read_csv("run/gates.csv"), pd.read_csv("run/sweep.csv")
    assert gates.columns.tolist() == GATES.names
    assert sweep.columns.tolist() == SWEEP.names
    assert sweep["run"].tolist() == ["unpruned", "penalty-0", "penalty-0.05"]
    assert gates.groupby("run", sort=False).size().to_dict() == {"penalty-0": 12, "penalty-0.05": 12}
    assert gates["step"].unique().tolist() == [0, 4, 8]
    assert sweep[["metric", "init", "n", "n_heads", "total_encoder"]].drop_duplicates().to_numpy().tolist() == [
        ["accuracy", "trained", 13, 4, 4]
    ]
    assert sweep[["heads_decoder", "heads_cross"]].isna().all().all()
    task, source = package.open_task("sst2", "dev.tsv")
    for row in sweep.iloc[1:].to_dict("records"):
        loaded = package.load(f"run/{row['checkpoint']}")
        found = package.evaluate(task, loaded, source, EvaluationOptions(replicates=1000)).metrics["accuracy"]
        assert (row["value"], row["ci_low"], row["ci_high"]) == (found.value, found.ci_low, found.ci_high)
        last = gates[(gates["run"] == row["run"]) & (gates["step"] == 8)]
        closed = [str(Head(*k)) for k in last[last["gate"] == 0][["stack", "layer", "head"]].itertuples(index=False)]
        assert closed == ("" if pd.isna(row["removed"]) else row["removed"]).split()
        assert [str(h) for h in heads_of_model(loaded.model).removed] == closed
        assert row["heads_encoder"] == 4 - len(closed)
    assert sweep["heads_encoder"].iloc[1] == 4 > sweep["heads_encoder"].iloc[2] > 0
    assert sweep["verdict"].fillna("").tolist() == ["", "", "not decided"], "no head is pruned at 0"
    assert "13 examples of sst2 with 95 % intervals" in " ".join(done.out.split())
    assert "is not decided for a margin of 1 point: accuracy" in " ".join(done.out.split())
    assert "λ multiplies the mean over attention modules" in done.out
    assert "Next: headlens report run" in done.out
    record = json.loads(Path("run/run.json").read_text())
    assert record["gates"]["updates"] == 8
    assert record["task"]["name"] == "sst2"
    assert record["status"] == "finished"
    assert not Path("run/.resume").exists()


@pytest.mark.slow
def test_every_run_is_compared_with_the_unpruned_model_example_by_example(
    run: Headlens, made: Callable[..., str]
) -> None:
    assert run(*STRONG, "--from-scratch", "--loss-margin", 0.05).code == 0
    sweep = pd.read_csv("run/sweep.csv")
    task, source = package.open_task("sst2", "dev.tsv")
    whole = package.evaluate(task, package.load(made("judge")), source)
    assert not skill_of(task, whole.records).better
    for _, row in sweep[sweep["run"] != "unpruned"].iterrows():
        own = package.evaluate(task, package.load(f"run/{row['checkpoint']}"), source)
        ours, theirs = (found.records[:, 0] == found.records[:, 1] for found in (own, whole))
        assert row["delta"] == pytest.approx(ours.mean() - theirs.mean())
        lost, gained = int((theirs & ~ours).sum()), int((ours & ~theirs).sum())
        interval = naive_statistics.paired_score_interval(gained, lost, len(ours))
        assert (row["delta_low"], row["delta_high"]) == pytest.approx(interval, abs=1e-6)
        expected = stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
        assert row["p_value"] == pytest.approx(expected)
        # The unpruned model is no better than guesses: nothing shows what it needs.
        assert row[["p_margin", "margin", "verdict"]].isna().all()
    assert sweep[sweep["run"] == "unpruned"].query("init == 'trained'")["delta"].isna().all()
    written = Path("run/results.md").read_text()
    assert "difference from unpruned [paired]" in written
    assert "\n## Notes\n" in written
    results = pd.read_csv("run/results.csv")
    expected = sweep[sweep["init"] == "trained"].set_index("run")["delta"]
    assert results.set_index("run")["trained_delta"].to_dict() == pytest.approx(expected.to_dict(), nan_ok=True)


@pytest.mark.slow
def test_updates_that_cannot_close_a_gate_are_told_before(run: Headlens) -> None:
    done = run("--lambdas", 0.1, "--law", "gate-learning-rate=0.1")
    assert done.code == 0, done.err
    assert "No gate can close: in 8 updates log α moves by about" in " ".join(done.err.split())
    assert "No gate can close" not in run(*STRONG, out="other").err


def test_a_model_without_any_head_left_is_told(run: Headlens) -> None:
    fast = ("--law", "gate-learning-rate=4.0", "--steps", 4)
    done = run("--lambdas", 100, *fast, "--training-args", "schedule=constant,freeze=all")
    assert done.code == 0, done.err
    assert "without any head left, the checkpoint keeps its shape" in " ".join(done.out.split())


@pytest.mark.slow
def test_the_same_again_from_its_own_record(run: Headlens, headlens: Headlens) -> None:
    assert run(*STRONG, "--training-args", "freeze=embeddings,head", "--from-scratch").code == 0
    again = headlens("prune", "--config", "run/run.json", "--out", "again", "-q")
    assert again.code == 0, again.err
    for name in TABLES:
        assert Path("run", f"{name}.csv").read_bytes() == Path("again", f"{name}.csv").read_bytes(), name
    for name in ("penalty-0", "penalty-0.05", "penalty-0.05-scratch"):
        file = f"models/{name}/model.safetensors"
        assert Path("run", file).read_bytes() == Path("again", file).read_bytes(), name


def stop_at(call: int, patch: pytest.MonkeyPatch) -> None:
    """Save after every update, and be interrupted after so many."""
    calls = []

    def obey(_: CheckpointFolder) -> None:
        calls.append(1)
        if len(calls) == call:
            raise Interrupted(signal.SIGINT)

    patch.setattr(CheckpointFolder, "due", lambda _: True)
    patch.setattr(CheckpointFolder, "obey", obey)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "more"),
    [
        (5, ("--steps", 3)),
        *(
            pytest.param(call, ("--from-scratch", "--training-args", "scratch-steps=5"), marks=pytest.mark.slow)
            for call in (3, 12, 25)
        ),
    ],
    ids=["few steps", "first run", "second run", "from scratch"],
)
def test_interrupted_and_gone_on_with(
    run: Headlens, headlens: Headlens, monkeypatch: pytest.MonkeyPatch, call: int, more: tuple[object, ...]
) -> None:
    options = (*STRONG, *more)
    assert run(*options, out="whole").code == 0
    with monkeypatch.context() as patch:
        stop_at(call, patch)
        done = run(*options)
        assert done.code == 130
        assert "headlens prune --resume run" in done.err
    torch.manual_seed(1)
    done = headlens("prune", "--resume", "run")
    assert done.code == 0, done.err
    for name in TABLES:
        assert Path("run", f"{name}.csv").read_bytes() == Path("whole", f"{name}.csv").read_bytes(), name
    models = {path.name for path in Path("whole/models").iterdir()}
    scratch = {"penalty-0.05-scratch", "unpruned-scratch"} if "--from-scratch" in options else set()
    assert models == {"penalty-0", "penalty-0.05"} | scratch
    for name in models:
        file = f"models/{name}/model.safetensors"
        assert Path("run", file).read_bytes() == Path("whole", file).read_bytes(), name


@pytest.mark.slow
def test_from_scratch_has_the_same_heads(run: Headlens) -> None:
    done = run(*STRONG, "--from-scratch", "--json")
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    sweep = pd.read_csv("run/sweep.csv")
    assert sweep.groupby("run", sort=False)["init"].agg(list).tolist() == [["trained", "scratch"]] * 3
    assert [row["run"] for row in summary["sweep"]] == sweep["run"].tolist()
    whole = sweep[(sweep["init"] == "scratch") & (sweep["heads_encoder"] == 4)]
    assert whole["checkpoint"].tolist() == ["models/unpruned-scratch"] * 2, "the same shape is trained once"
    trained, scratch = (package.load(f"run/models/penalty-0.05{end}").model for end in ("", "-scratch"))
    assert heads_of_model(trained) == heads_of_model(scratch)
    results = pd.read_csv("run/results.csv")
    assert results["scratch"].notna().all()
    assert "from scratch" in Path("run/results.md").read_text()


@pytest.mark.slow
def test_folded_models_are_read_by_plain_from_pretrained(run: Headlens) -> None:
    assert run(*STRONG, out="cut").code == 0
    assert run(*STRONG, "--training-args", "save=folded").code == 0
    whole = AutoModelForSequenceClassification.from_pretrained("run/models/penalty-0.05").eval()
    cut = package.load("cut/models/penalty-0.05").model
    assert sum(p.numel() for p in cut.parameters()) < sum(p.numel() for p in whole.parameters())
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        torch.testing.assert_close(whole(ids).logits, cut(ids).logits, rtol=1e-5, atol=1e-5)
    assert Path("run/sweep.csv").read_bytes() == Path("cut/sweep.csv").read_bytes()


@pytest.mark.slow
def test_models_of_another_sweep_go(run: Headlens) -> None:
    assert run("--lambdas", "0.01", "--steps", 1).code == 0
    Path("run/models/mine").mkdir()
    assert run("--lambdas", "0.02", "--steps", 1, "--overwrite").code == 0
    assert sorted(p.name for p in Path("run/models").iterdir()) == ["mine", "penalty-0.02"]


@pytest.mark.slow
def test_shared_weights(headlens: Headlens, made: Callable[..., str], sentiment: tuple[str, ...]) -> None:
    """Gates that differ by depth: every command sees the model that was measured."""
    one_rate = ("--lambdas", "0.02", "--law", "gate-learning-rate=0.7", "--training-args", "schedule=constant")
    done = headlens("prune", made("sharer", "Albert"), *sentiment, *SHORT, *one_rate, "--out", "run")
    assert done.code == 0, done.err
    row = pd.read_csv("run/sweep.csv").iloc[1]
    assert row["between"] > 0
    model = f"run/{row['checkpoint']}"
    assert "scales" in Path(model, "heads_removed.json").read_text()
    task, source = package.open_task("sst2", "dev.tsv")
    found = package.evaluate(task, package.load(model), source).metrics["accuracy"]
    assert (row["value"], row["ci_low"]) == (found.value, found.ci_low)
    for command in (["ablate", "--task", "sst2", "--data", "dev.tsv"], ["relevance", "--limit", 5]):
        done = headlens(command[0], model, *command[1:], "--no-figures", "--out", command[0])
        assert done.code == 0, done.err


@pytest.mark.slow
def test_a_number_of_heads(run: Headlens) -> None:
    done = run("--target-heads", 2, "--law", "gate-learning-rate=1.0,most-runs=5")
    assert done.code == 0, done.err
    sweep = pd.read_csv("run/sweep.csv")
    assert 2 <= len(sweep) <= 6
    reached = (sweep["heads_encoder"] - 2).abs().min()
    assert ("2 heads with gates left by" if reached == 0 else "the closest") in done.out


def test_broken_rows_of_both_parts_are_told(run: Headlens) -> None:
    for name in ("train.tsv", "dev.tsv"):
        Path(name).write_text(Path(name).read_text(encoding="utf-8") + "cut\n", encoding="utf-8")
    assert run("--data-args", "skip-broken", "--lambdas", 0, "--steps", 1).code == 0
    notes = json.loads(Path("run/run.json").read_text())["notes"]
    for place, rows in (("train.tsv:32", 31), ("dev.tsv:15", 14)):
        assert (
            f"Left out by --data-args skip-broken: 1 of {rows} rows. {place}: 1 column where there should be 2."
            in notes
        )


@pytest.mark.slow
@pytest.mark.figures
def test_figures_and_a_page(run: Headlens, headlens: Headlens) -> None:
    done = run(*STRONG, "--figures")
    assert done.code == 0, done.err
    assert {"quality.png", "kept.svg"} <= {p.name for p in Path("run/figures").iterdir()}
    assert headlens("report", "run").code == 0
    assert Path("run/report.html").is_file()


def test_too_little_text_for_roles_is_told(run: Headlens) -> None:
    Path("some.txt").write_text("".join(f"{text(n)} {text(n, 1)}\n" for n in range(20)))
    few = run("--lambdas", 0, "--steps", 1, "--roles-corpus", "some.txt", "--frequency", "none")
    assert few.code == 0, few.err
    assert " ".join(few.out.split()).count("No roles are assigned: 20 sentences with ") == 1
    assert not Path("run/roles.csv").is_file() or pd.read_csv("run/roles.csv")["role"].isna().all()


@pytest.mark.slow
def test_roles_before_and_after(run: Headlens) -> None:
    Path("some.txt").write_text("".join(f"{text(n)} {text(n, 1)}\n" for n in range(20)))
    # Heads of so small a model attend nearly evenly, a little more to the first token or a little less.
    least = ("--thresholds", "min-sentences=20,min-tokens=20,sink=0.01")
    done = run(*STRONG, "--roles-corpus", "some.txt", "--frequency", "none", *least)
    assert done.code == 0, done.err
    assert "No roles are assigned" not in done.out
    roles, sweep = pd.read_csv("run/roles.csv"), pd.read_csv("run/sweep.csv")
    assert roles.columns.tolist() == ROLES_KEPT.names
    assert len(roles) == 2 * 4
    assert roles.groupby("run")["kept"].sum().tolist() == sweep["heads_encoder"].tolist()[1:]
    # Heads without a role have an empty one, too.
    assert roles["role"].notna().any()
    assert roles[roles["kept"]]["role_pruned"].notna().any()
    assert roles[~roles["kept"]]["role_pruned"].isna().all()
    assert "--roles-corpus" not in done.out


def test_roles_that_nobody_measured_are_not_said_to_be_none(run: Headlens) -> None:
    done = run("--lambdas", 5, "--law", "gate-learning-rate=5,gate-start=0", "--training-args", "schedule=constant")
    assert done.code == 0, done.err
    assert pd.read_csv("run/sweep.csv")["heads_encoder"].tolist() == [4, 0]
    assert "No head has a role" not in done.out


@pytest.mark.slow
def test_thresholds_of_roles_are_those_of_classify(run: Headlens, headlens: Headlens) -> None:
    Path("some.txt").write_text("\n".join(["The cat sat on the mat.", "She liked it very much."] * 20))
    own = ("--thresholds", "sink=0.01,positional=0.2,min-tokens=100")
    done = run(*STRONG, "--roles-corpus", "some.txt", "--frequency", "none", *own)
    assert done.code == 0, done.err
    roles = pd.read_csv("run/roles.csv")
    assert roles["roles"].astype(str).str.contains("sink").any()
    model = json.loads(Path("run/run.json").read_text())["model"]
    alike = headlens("classify", model, "--corpus", "some.txt", "--frequency", "none", *own, "--out", "alike")
    assert alike.code == 0, alike.err
    expected = pd.read_csv("alike/heads.csv").set_index(["layer", "head"])["roles"].fillna("")
    for _, rows in roles.fillna({"roles": ""}).groupby("run"):
        assert rows.set_index(["layer", "head"])["roles"].to_dict() == expected.to_dict()


@pytest.mark.slow
def test_an_encoder_that_loses_all_its_heads_has_no_roles_left(headlens: Headlens, tiny_marian: Path) -> None:
    for name in ("a.txt", "b.txt"):
        Path(name).write_text("".join(f"{text(n)}\n" for n in range(24)))
    given = (
        "--task",
        "translation",
        "--corpus",
        "a.txt",
        "--target",
        "b.txt",
        "--data-args",
        "dev-share=0.1",
        "--law",
        "gates=encoder",
    )
    strong = ("--lambdas", 1000, "--law", "gate-learning-rate=1.0", "--training-args", "schedule=constant")
    roles = ("--roles-corpus", "a.txt", "--frequency", "none")
    done = headlens("prune", tiny_marian, *given, *SHORT, *strong, *roles, "--out", "run")
    assert done.code == 0, done.err
    assert pd.read_csv("run/sweep.csv")["heads_encoder"].tolist()[-1] == 0
    found = pd.read_csv("run/roles.csv")
    assert not found["kept"].any()
    assert found["role_pruned"].isna().all()


@pytest.mark.slow
def test_a_translation_model(headlens: Headlens, tiny_marian: Path) -> None:
    for name in ("a.txt", "b.txt"):
        Path(name).write_text("".join(f"{text(n)}\n" for n in range(24)))
    pair = ("--task", "translation", "--corpus", "a.txt", "--target", "b.txt", "--data-args", "dev-share=0.25")
    # Who does not learn to stop writes to the limit: the metric is not what is looked at here.
    done = headlens("prune", tiny_marian, *pair, *SHORT, *STRONG, "--law", "gates=encoder,cross", "--out", "run")
    assert done.code == 0, done.err
    gates, sweep = pd.read_csv("run/gates.csv"), pd.read_csv("run/sweep.csv")
    assert set(gates["stack"]) == {"encoder", "cross"}
    assert sweep["metric"].tolist() == ["bleu", "chrf"] * 3
    assert sweep["heads_decoder"].unique().tolist() == [4]
    assert sweep["n_heads"].unique().tolist() == [8]
    assert sweep["n"].unique().tolist() == [6]
    assert package.load("run/models/penalty-0.05").model.config.model_type == "marian"


@pytest.mark.slow
def test_a_masked_language_model(headlens: Headlens, tiny_bert: Path) -> None:
    done = headlens("prune", tiny_bert, "--task", "mlm", *SHORT, *STRONG, "--limit", 60, "--out", "run")
    assert done.code == 0, done.err
    sweep = pd.read_csv("run/sweep.csv")
    assert sweep["metric"].tolist() == ["accuracy", "loss"] * 3
    assert sweep["n"].unique().tolist() == [6]


@pytest.mark.slow
@pytest.mark.usefixtures("small_demo")
def test_without_arguments_it_learns_gates_alone(headlens: Headlens) -> None:
    done = headlens("prune", "--steps", 1, "--lambdas", "0.1", "--out", "run")
    assert done.code == 0, done.err
    assert "note: Frozen: all." in done.out
    assert "To see what the remaining heads do, give --roles-corpus FILE.conllu" in done.out
    assert pd.read_csv("run/sweep.csv")["n"].unique().tolist() == [111]


@pytest.mark.slow
def test_two_processes(run: Headlens, made: Callable[..., str], sentiment: tuple[str, ...], tmp_path: Path) -> None:
    assert run(*STRONG, out="one").code == 0
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "headlens_cli", "prune"]
    data = (made("judge"), *sentiment)
    done = subprocess.run(
        [*command, *map(str, (*data, *SHORT, *STRONG, "--from-scratch", "--out", "two", "--json"))],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    one, two = (pd.read_csv(tmp_path / name / "sweep.csv") for name in ("one", "two"))
    assert two[two["init"] == "trained"]["run"].tolist() == one["run"].tolist()
    assert two["value"].iloc[0] == one["value"].iloc[0]
    assert json.loads(done.stdout)["sweep"][0]["run"] == "unpruned"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--lambdas", "-1"], "--lambdas -1.0 is out of range"),
        (["--lambdas", "much"], "not a list of numbers"),
        (["--law", "gates=decoder"], "--law gates decoder: BertForSequenceClassification has no such heads"),
        (["--law", "gates=lower"], "--law gates 'lower' is unknown"),
        (["--training-args", "freeze=pooler"], "--training-args freeze pooler: unknown part"),
        (["--target-heads", "0"], "'--target-heads': Input should be greater than or equal to 1"),
        (["--target-heads", "4"], "of 4 heads with gates, at least one has to be pruned"),
        (["--corpus", "a.txt"], "--corpus is not for --task sst2"),
        (["--roles-corpus", "nowhere.conllu"], "nowhere.conllu"),
        (["--thresholds", "positional=0.5"], "Role thresholds only apply with --roles-corpus"),
        (["--dev-data", "nowhere.tsv"], "nowhere.tsv"),
        (["--law", "gate-learning-rate=0"], "--law gate-learning-rate 0.0 is out of range"),
        (["--law", "gate-start=-2.4"], "--law gate-start -2.4 closes all gates before training"),
    ],
)
def test_what_is_refused(run: Headlens, more: list[str], message: str) -> None:
    done = run(*more)
    assert done.code == 2, done.out
    assert message in " ".join(done.err.split())
    assert not Path("run").exists()


def test_random_weights_are_to_be_trained_first(headlens: Headlens) -> None:
    done = headlens("prune", "new:bert-tiny", "--out", "run")
    assert done.code == 2
    assert "new:bert-tiny would have random weights.\nTrain it first: headlens train new:bert-tiny." in done.err


def test_too_little_to_hold_out(headlens: Headlens, made: Callable[..., str]) -> None:
    Path("few.tsv").write_text(sentiment_table(4))
    done = headlens("prune", made("judge"), "--task", "sst2", "--data", "few.tsv", *SHORT, "--out", "run")
    assert done.code == 2
    assert "few.tsv: too few examples to hold some out." in done.err
