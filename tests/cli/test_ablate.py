"""`headlens ablate` as a user runs it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import naive_statistics
import numpy as np
import pandas as pd
import pytest
import torch
from made_tasks import text
from safetensors.torch import load_file, save_file
from saved import build, save
from tiers import rest_slow, rest_slow_rows
from transformers import PreTrainedTokenizerBase

from headlens.analyses.ablate.figures import receiver_text
from headlens.analyses.ablate.options import STRATEGIES
from headlens.analyses.ablate.pruning_strategies import CONTROLS
from headlens.replay.modes import WITH_PAIRS, ReplacementMode
from headlens.statistics.grid_smoothness import morans_i
from headlens.tasks.catalogue import CATALOGUE
from headlens.tasks.skill import Skill

Headlens = Callable[..., Any]
Tokenizer = PreTrainedTokenizerBase
# The contract; further columns may follow.
ABLATION = [
    *("model", "task", "metric", "mode", "stack", "layer", "head", "n", "baseline", "value", "delta"),
    *("ci_low", "ci_high", "p_value", "p_holm"),
    *("p_margin", "p_margin_holm", "margin", "verdict", "n_to_decide", "baseline_answer_share"),
]
PRUNING = [
    *("model", "task", "metric", "strategy", "seed", "n_pruned", "n_heads", "value", "ci_low", "ci_high"),
    *("parameters", "speedup", "removed"),
]
MORE = ["delta", "delta_low", "delta_high", "p_value", "n", "ranking_value"]
MORE += ["p_holm", "p_margin", "p_margin_holm", "margin", "verdict", "n_to_decide", "chance", "answer_share"]
# What `all` stands for.
ALL = tuple(name for name in STRATEGIES if name not in (*CONTROLS, "gates"))
MARIAN = {"pad_token_id": 0, "eos_token_id": 102, "decoder_start_token_id": 0}
# Asked of a model with the classes of sst2.
OTHER_TASK = ("--task", "cola", "--labels", "model=unacceptable,acceptable")
TASKS = {"sst2": 1, "cola": 1, "rte": 2, "stsb": 2}
HEADS = {"judge": 4, "sharer": 4}


def table(task: str = "sst2", rows: int = 30) -> str:
    """A small file of a task, as the hub's data sets have it."""
    if TASKS[task] == 1:
        return "sentence\tlabel\n" + "".join(f"{text(n)} {text(n, 3)}\t{n % 3 % 2}\n" for n in range(rows))
    labels = [str(n % 6) if task == "stsb" else CATALOGUE[task].task.labels[n % 2] for n in range(rows)]
    return "sentence1\tsentence2\tlabel\n" + "".join(f"{text(n)}\t{text(n, 2)}\t{labels[n]}\n" for n in range(rows))


@pytest.fixture
def judge(made: Callable[..., str]) -> str:
    return made("judge")


@pytest.fixture
def run(headlens: Headlens, judge: str) -> Callable[..., Any]:
    Path("dev.tsv").write_text(table(), encoding="utf-8")
    data = ("--task", "sst2", "--data", "dev.tsv", "--replicates", 100)
    return lambda *more, models=(judge,): headlens("ablate", *models, *data, "--out", "run", *more)


def test_heads_that_are_not_needed_are_cut_out_next(
    run: Callable[..., Any], headlens: Headlens, judge: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headlens.analyses.ablate.pruning_experiment.skill_of", lambda *_: Skill(better=True))
    done = run("--prune", 1, "--strategies", "ranked", "--margin", 0.99, "--device", "cpu")
    following = shlex.split(done.out.partition("Next: ")[2])
    cut = ["--from", "run/pruning.csv", "--where", "strategy=ranked,n_pruned=1"]
    assert following == ["headlens", "compact", judge, *cut, "--device", "cpu"]
    made = headlens(*following[1:], "--limit", 4, "--data-args", "rounds=2", "--out", "small")
    assert made.code == 0, made.err
    assert "Next: headlens classify small --limit 4 --device cpu" in " ".join(made.out.split())


@pytest.mark.figures(blank=True)
def test_writes_the_figures_of_the_contract(run: Callable[..., Any]) -> None:
    assert run("--keep-only", "--prune", 1, "--strategies", "ranked", "--limit", 8).code == 0
    assert {p.stem for p in Path("run/figures").glob("*.png")} == {"ablation", "keep_only", "pruning"}
    assert {p.stem for p in Path("run/figures").glob("*.svg")} == {"ablation", "keep_only", "pruning"}


def test_writes_the_tables_of_the_contract(run: Callable[..., Any]) -> None:
    done = run("--keep-only", "--prune", "1,3", "--strategies", "all", "--strategy-args", "orders=2,beam=2")
    assert done.code == 0, done.err
    ablation, pruning = pd.read_csv("run/ablation.csv"), pd.read_csv("run/pruning.csv")
    assert ablation.columns.tolist() == ABLATION
    assert pruning.columns.tolist() == PRUNING + MORE
    assert ablation.groupby("mode", sort=False).size().to_dict() == {"zero": 4, "keep-only": 4}
    assert set(ablation["model"] + ablation["task"] + ablation["metric"]) == {"judgesst2accuracy"}
    assert (ablation["delta"] == ablation["value"] - ablation["baseline"]).all()
    assert ablation["delta"].any()
    assert (ablation["n"] == 30).all()
    assert pruning.groupby("strategy", sort=False).size().to_dict() == {
        "none": 1,
        **{name: 4 if name == "random" else 2 for name in ALL},
    }
    assert (pruning["n_pruned"] + pruning["n_heads"] == 4).all()
    names = pruning["removed"].fillna("").str.split()
    assert (names.map(len) == pruning["n_pruned"]).all()
    for words in (
        "All heads, 30 examples of dev",
        "Largest losses without a head (zero ablation), judge (none is significant)",
        "Best head of each layer when it is the only one kept, judge",
        f"judge pruned, evaluated on {pruning['n'].iloc[0]} held-out examples",
        "Next: headlens report run",
    ):
        assert words in done.out


def test_json_and_the_record(run: Callable[..., Any], judge: str) -> None:
    done = run("--json", "--no-figures", "--prune", 2, "--strategies", "ranked")
    summary = json.loads(done.out)
    assert done.err == ""
    record = json.loads(Path("run/run.json").read_text())
    ablation, pruning = pd.read_csv("run/ablation.csv"), pd.read_csv("run/pruning.csv")
    assert summary["models"][0]["evaluation"]["accuracy"]["value"] == ablation["baseline"].iloc[0]
    assert summary["models"][0]["data"]["examples"] == 30
    assert record["task"] == {
        "name": "sst2",
        "classes": ["negative", "positive"],
        "scores": ["accuracy"],
        "outputs": [],
    }
    sure = ablation[ablation["p_holm"] < 0.05]
    assert summary["significant"] == {"judge zero": len(sure)}
    assert summary["significantly_better"] == {"judge zero": int((sure["delta"] > 0).sum())}, "of accuracy"
    assert [row["seed"] for row in summary["pruning"]] == [None, None]
    assert [row["value"] for row in summary["pruning"]] == pruning["value"].tolist()
    assert all(Path(f).is_file() for f in summary["files"])
    assert record["status"] == "finished"
    assert record["arguments"]["models"] == [judge]
    assert record["arguments"]["prune"] == [2]
    assert record["arguments"]["strategies"] == ["ranked"]
    assert record["models"][0]["data"]["sha256"] == summary["models"][0]["data"]["sha256"]
    assert not Path("run/figures").exists()


def test_quiet_prints_nothing(run: Callable[..., Any]) -> None:
    done = run("--quiet", "--prune", 1, "--strategies", "ranked", "--limit", 8)
    assert (done.code, done.out, done.err) == (0, "", "")
    assert Path("run/pruning.csv").is_file()
    assert not Path("run/.resume").exists()


@pytest.mark.usefixtures("skilled")
@pytest.mark.parametrize("strategy", rest_slow(ALL, ("random",)))
def test_every_strategy_alone(run: Callable[..., Any], strategy: str) -> None:
    done = run("--prune", 1, "--strategies", strategy, "--strategy-args", "orders=2")
    assert done.code == 0, done.err
    pruning = pd.read_csv("run/pruning.csv", dtype=str)
    seeds = ["0", "1"] if strategy == "random" else [None]
    assert pruning["seed"].astype(object).where(pruning["seed"].notna(), None).tolist() == [None, *seeds]
    assert strategy in done.out


@pytest.mark.slow
@pytest.mark.usefixtures("skilled")
def test_random_sets_beside_those_of_strategies(run: Callable[..., Any], headlens: Headlens) -> None:
    refused = run("--prune", 1, "--strategies", "placebo")
    assert refused.code == 2
    assert "Name one that chooses heads, too" in " ".join(refused.err.split())
    controls = ("--strategies", "ranked,importance,random,random-by-layer,placebo", "--strategy-args", "orders=3")
    done = run("--prune", "1,2", *controls)
    assert done.code == 0, done.err
    rows, areas = pd.read_csv("run/pruning.csv"), pd.read_csv("run/pruning_areas.csv")
    assert rows.columns.tolist()[-2:] == ["control_of", "possible_sets"]
    own = rows[rows["seed"].isna()].set_index(["strategy", "n_pruned"])["removed"]
    beside = rows[rows["control_of"].notna()]
    assert len(beside) == 2 * 2 * 2 * 3
    for row in beside.itertuples():
        gone, theirs = (set(names.split()) for names in (row.removed, own[row.control_of, row.n_pruned]))
        assert len(gone) == row.n_pruned
        layers = [sorted(name.split(".")[1] for name in names) for names in (gone, theirs)]
        assert gone.isdisjoint(theirs) if row.strategy == "placebo" else layers[0] == layers[1]
    assert rows.groupby("removed")["value"].nunique().eq(1).all()
    of_ranked = areas[areas["strategy"] == "ranked"].iloc[0]
    drawn = areas[(areas["strategy"] == "random-by-layer") & (areas["control_of"] == "ranked")].iloc[0]
    assert of_ranked["by_layer_low"] <= drawn["area"] <= of_ranked["by_layer_high"]
    said = " ".join(done.out.split())
    assert "random-by-layer (3 random sets of as many heads in every layer beside each set): mean accuracy" in said
    assert "Random sets beside those of strategies are in pruning.csv." in said
    assert headlens("report", "run", "--out", "page").code == 0
    page = Path("page/report.html").read_text(encoding="utf-8")
    assert "random-by-layer (importance), mean of 3" in page
    planned = headlens("ablate", "--dry-run", "--prune", 1, *controls)
    assert "random-by-layer: evaluate with 1 heads removed" in " ".join(planned.out.split())


@pytest.mark.figures(blank=True)
@pytest.mark.usefixtures("skilled")
def test_a_few_heads_are_ablated_and_the_others_screened(
    run: Callable[..., Any], headlens: Headlens, judge: str
) -> None:
    done = run("--strategy-args", "confirm=2,subsets=8", "--prune", 1, "--strategies", "attribution")
    assert done.code == 0, done.err
    found = pd.read_csv("run/ablation.csv")
    columns = ["attribution", "confirmed", "subset_effect", "subset_bound"]
    assert found.columns.tolist() == [*ABLATION, *columns]
    others = found[~found["confirmed"]]
    assert len(others) == 2
    assert found["value"].isna().tolist() == found["verdict"].isna().tolist() == (~found["confirmed"]).tolist()
    facts = json.loads(Path("run/run.json").read_text())["models"][0]["screening"]
    assert (facts["confirmed"], facts["heads"], facts["subsets"]) == (2, 4, 8)
    assert facts["bound"] == pytest.approx(others["subset_bound"].max())
    said = " ".join(done.out.split())
    assert (
        "2 other heads whose attribution is smaller in size were not ablated; with 95 % confidence, none of them "
        "changes" in said
    )
    assert "8 random subsets of 2 other heads" in said
    with np.load("run/records.npz") as file:
        assert len(file["judge/heads"]) == len(file["judge/zero"]) == 2
    assert headlens("report", "run", "--out", "page").code == 0
    page = Path("page/report.html").read_text(encoding="utf-8")
    assert "were not ablated; with 95 % confidence" in page
    by_loss = headlens("compact", judge, "--from", "run/ablation.csv", "--heads", 1, "--out", "small")
    assert by_loss.code == 2
    assert "is no number to rank by" in by_loss.err
    data = ("--task", "sst2", "--data", "dev.tsv")
    planned = headlens("ablate", judge, *data, "--dry-run", "--json", "--strategy-args", "confirm=2")
    assert [part["work"].partition(": ")[2] for part in json.loads(planned.out)["work"]] == [
        "attribution of 4 heads",
        "without each of 2 heads with the attribution of largest size, of 4",
        "random subsets of the other 2 heads",
    ]
    refused = run("--strategy-args", "confirm=2", "--prune", 1, "--overwrite")
    assert refused.code == 2
    assert "--strategies attribution,random" in refused.err


@pytest.mark.slow
@pytest.mark.figures
@pytest.mark.usefixtures("skilled")
def test_heads_of_two_models_are_screened(run: Callable[..., Any], made: Any) -> None:
    models = (made("judge"), made("sharer", "Albert"))
    done = run("--strategy-args", "confirm=3", models=models)
    assert done.code == 0, done.err
    found = pd.read_csv("run/ablation.csv")
    assert found.groupby("model", sort=False)["confirmed"].sum().to_dict() == dict.fromkeys(HEADS, 3)
    assert not Path("run/smoothness.csv").exists()
    said = " ".join(done.out.split())
    for name in HEADS:
        assert f"{name}: its changes are not looked at for smoothness, as heads are left out." in said
        assert f"{name}: 32 random subsets of 1 other head" in said
    assert run("--strategy-args", "confirm=4", "--overwrite", models=models).code == 0
    every = pd.read_csv("run/ablation.csv")
    assert run("--overwrite", models=models).code == 0
    plain = pd.read_csv("run/ablation.csv")
    pd.testing.assert_frame_equal(every[plain.columns], plain)
    assert Path("run/smoothness.csv").exists()


def test_how_stable_rankings_are_is_told(run: Callable[..., Any], headlens: Headlens) -> None:
    strategies = ("--strategies", "ranked,attribution,shapley", "--strategy-args", "rounds=2")
    done = run("--prune", 1, *strategies, "--no-figures")
    assert done.code == 0, done.err
    found, agreement = pd.read_csv("run/ranking_variance.csv"), pd.read_csv("run/ranking_agreement.csv")
    assert (found["strategy"] + " " + found["source"]).tolist()[:6] == [
        *("all heads", "all strategy", "all examples"),
        *("ranked examples", "attribution examples", "shapley examples"),
    ]
    assert found["share"][:3].sum() == pytest.approx(1)
    assert agreement.columns[-1] == "corrected"
    said = " ".join(done.out.split())
    assert "is common to the 3 strategies that rank all heads" in said
    assert "Reliability of rankings over examples (split halves, Spearman-Brown): ranked " in said
    assert headlens("report", "run", "--out", "page").code == 0
    assert "How stable are the rankings?" in Path("page/report.html").read_text(encoding="utf-8")


@pytest.mark.figures(blank=True)
def test_pairs_of_heads_interact(run: Callable[..., Any], headlens: Headlens, judge: str) -> None:
    arguments = ("--prune", 1, "--strategies", "shapley", "--strategy-args", "interactions=3")
    done = run(*arguments, "--limit", 24)
    assert done.code == 0, done.err
    found = pd.read_csv("run/interactions.csv")
    assert len(found) == 3
    heads = {
        tuple(key) for side in ("", "other_") for key in found[[f"{side}layer", f"{side}head"]].to_numpy().tolist()
    }
    assert len(heads) == 3
    assert found["p_holm"].notna().all()
    assert (found["n"] == (pd.read_csv("run/examples.csv")["part"] == "ranking").sum()).all()
    assert "Shapley interactions of 3 pairs of the 3 heads" in " ".join(done.out.split())
    assert Path("run/figures/interactions.png").is_file()
    assert headlens("report", "run", "--out", "page").code == 0
    assert "Which heads stand in for each other" in Path("page/report.html").read_text(encoding="utf-8")
    planned = headlens("ablate", judge, "--task", "sst2", "--data", "dev.tsv", "--dry-run", "--json", *arguments)
    assert "shapley: interactions of 3 pairs of heads" in planned.out


# The others ask for more texts, see `test_heads_on_changed_texts`.
ALONE = tuple(mode for mode in get_args(ReplacementMode) if mode not in WITH_PAIRS)


@pytest.mark.parametrize("mode", rest_slow(ALONE, ("uniform",)))
def test_modes(run: Callable[..., Any], mode: str) -> None:
    # Other labels, of which the model knows more than chance, so that it has something to lose.
    Path("dev.tsv").write_text(re.sub(r"[01]$", lambda label: str(1 - int(label[0])), table(), flags=re.MULTILINE))
    done = run("--mode", mode)
    assert done.code == 0, done.err
    rows = pd.read_csv("run/ablation.csv")
    assert set(rows["mode"]) == {mode}
    assert re.search(rf"Largest losses with\w* .*\ba head\s+\({mode}\s+ablation\)", done.out)
    assert ("without a head" in done.out) == (mode == "zero")


@pytest.mark.slow
def test_modes_differ(run: Callable[..., Any]) -> None:
    found = {}
    for mode in ("zero", "mean", "uniform"):
        assert run("--mode", mode, "--metric", "accuracy", "--overwrite", "--quiet").code == 0
        found[mode] = Path("run/ablation.csv").read_bytes().replace(mode.encode(), b"")
    assert len(set(found.values())) == 3


@pytest.mark.parametrize("prune", rest_slow(["", "2"]))
def test_a_run_is_repeated_from_its_record(headlens: Headlens, run: Callable[..., Any], prune: str) -> None:
    options = (
        "--mode",
        "mean",
        "--keep-only",
        "--seed",
        3,
        "--batch-tokens",
        99,
        "--strategy-args",
        "rank-split=0.4",
        "--limit",
        12,
    )
    pruning = (
        ("--prune", prune, "--strategies", "importance-steps,random", "--strategy-args", "orders=2") if prune else ()
    )
    assert run(*options, *pruning, "-q").code == 0
    done = headlens("ablate", "--config", "run/run.json", "--out", "again", "--quiet")
    assert done.code == 0, done.err
    names = {p.name for p in Path("run").glob("*.csv")}
    tables = {"ablation.csv", "examples.csv", *["pruning.csv", "pruning_areas.csv"] * bool(prune)}
    assert names == {p.name for p in Path("again").glob("*.csv")} == tables
    for name in {*names, "records.npz"}:
        assert Path("run", name).read_bytes() == Path("again", name).read_bytes()
    first, second = (json.loads(Path(f, "run.json").read_text())["arguments"] for f in ("run", "again"))
    assert first == second


@pytest.mark.slow
def test_options_from_a_file(headlens: Headlens, judge: str) -> None:
    Path("dev.tsv").write_text(table(), encoding="utf-8")
    few = [
        'task = "sst2"',
        'data = ["dev.tsv"]',
        "replicates = 100",
        "limit = 12",
        "[ablate]",
        "orders = 1",
        "beam = 1",
    ]
    lines = [*few, "prune = [1, 2]", "keep-only = true"]
    for number, strategies in enumerate(('"ranked"', '["ranked"]')):
        Path("o.toml").write_text("\n".join([*lines, f"strategies = {strategies}"]))
        done = headlens("ablate", judge, "--config", "o.toml", "--out", f"{number}", "-q", "--no-figures")
        assert done.code == 0, done.err
        assert pd.read_csv(f"{number}/pruning.csv")["n_pruned"].tolist() == [0, 1, 2]
    Path("o.toml").write_text("\n".join([*few, "prune = 2", 'strategies = "all"']))
    assert headlens("ablate", judge, "--config", "o.toml", "--out", "all", "-q", "--no-figures").code == 0
    assert set(pd.read_csv("all/pruning.csv")["strategy"]) == {"none", *ALL}


def test_every_number_can_be_computed_again_from_what_is_kept_of_every_example(run: Callable[..., Any]) -> None:
    more = (
        "--keep-only",
        "--prune",
        "1,3",
        "--strategies",
        "ranked,random",
        "--strategy-args",
        "orders=1",
        "--limit",
        10,
    )
    assert run(*more).code == 0
    examples = pd.read_csv("run/examples.csv")
    assert examples.columns.tolist() == ["model", "task", "example", "id", "part", "label", "predicted", "nll"]
    assert examples["example"].tolist() == list(range(10))
    with np.load("run/records.npz") as file:
        records = {name.removeprefix("judge/"): file[name] for name in file}
    assert set(records) == {"heads", "zero", "keep-only", "pruned"}

    def accuracy(found: Any) -> float:
        return float((found[:, 0] == found[:, 1]).mean())

    whole = examples[["label", "predicted", "nll"]].to_numpy()
    for row in pd.read_csv("run/ablation.csv").itertuples():
        number = records["heads"].tolist().index(f"{row.stack}.{row.layer}.{row.head}")
        assert row.baseline == pytest.approx(accuracy(whole))
        assert row.value == pytest.approx(accuracy(records[row.mode][number]))
    evaluated = (examples["part"] == "evaluation").to_numpy()
    assert set(examples["part"]) == {"evaluation", "ranking"}
    for row, found in zip(pd.read_csv("run/pruning.csv").itertuples(), records["pruned"], strict=True):
        assert row.value == pytest.approx(accuracy(found[evaluated]))
        assert row.ranking_value == pytest.approx(accuracy(found[~evaluated]))
        assert row.n == evaluated.sum()


@pytest.mark.slow
def test_tables_are_whole_in_a_pipe(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    done = run("--prune", "1,3", "--strategies", "importance,importance-steps", "--no-figures")
    assert "…" not in done.out
    for words in ("parameters", "importance-steps"):
        assert words in done.out


def test_what_pruned_models_are_is_told_where_heads_are_replaced(run: Callable[..., Any]) -> None:
    done = run("--mode", "mean", "--prune", "1", "--strategies", "ranked")
    assert done.code == 0, done.err
    assert "In pruned models the heads are removed altogether" in " ".join(done.out.split())
    assert "the heads are removed altogether" not in run("--prune", "1", "--strategies", "ranked", "--overwrite").out


# Half of its columns belong to each head of layer 1.
OUTPUTS = "bert.encoder.layer.1.attention.output.dense.weight"


@pytest.fixture
def always_the_same(judge: str) -> str:
    """A model with classes of other names that gives the same answer to every example."""
    shutil.copytree(judge, "other")
    config = json.loads(Path("other/config.json").read_text())
    config |= {"id2label": {"0": "sad", "1": "glad"}, "label2id": {"sad": 0, "glad": 1}}
    Path("other/config.json").write_text(json.dumps(config))
    weights = load_file("other/model.safetensors")
    weights["classifier.bias"] += torch.tensor([100.0, 0.0])
    weights[OUTPUTS][:, :8] = 0.0  # without head 0 every number is the same
    save_file(weights, "other/model.safetensors", metadata={"format": "pt"})
    return "other"


def test_classes_of_other_names(run: Callable[..., Any], always_the_same: str) -> None:
    done = run(models=(always_the_same,))
    assert done.code == 2
    for words in ("sad, glad", "negative, positive", "'sad' is not one of", "--labels model=NAME,NAME"):
        assert words in " ".join(done.err.split())
    for order, said in (("negative,positive", "negative"), ("POS,NEG", "positive")):
        done = run("--limit", 10, "--overwrite", "--labels", f"model={order}", models=(always_the_same,))
        assert done.code == 0, done.err
        assert f"The model gives the same answer to all examples: {said!r}." in " ".join(done.out.split())


def test_a_model_that_always_says_the_same(headlens: Headlens, run: Callable[..., Any], always_the_same: str) -> None:
    assert "to all examples" not in " ".join(run("--limit", 10).out.split())
    done = run("--overwrite", "--labels", "model=POS,NEG", "--prune", "1,2", models=(always_the_same,))
    assert done.out.startswith("other: the model gives the same answer to all 30 examples, so that nothing can be")
    for words in ("verdict", "decide", "or better", "Removed singly"):
        assert words not in done.out
    for name in ("ablation", "pruning"):
        table = pd.read_csv(f"run/{name}.csv")
        assert table[["verdict", "n_to_decide"]].isna().all(axis=None)
        assert table["p_value"].notna().sum() >= len(table) - 1
    assert headlens("report", "run", "--out", "page").code == 0
    page = Path("page/report.html").read_text(encoding="utf-8")
    assert "gives the same answer to all 30 examples" in page


def test_classes_read_by_position_are_told_everywhere(headlens: Headlens, run: Callable[..., Any], judge: str) -> None:
    shutil.copytree(judge, "other")
    config = json.loads(Path("other/config.json").read_text())
    config |= {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}}
    Path("other/config.json").write_text(json.dumps(config))
    done = run("--no-figures", models=("other",))
    assert done.code == 0, done.err
    assert headlens("report", "run", "--out", "page").code == 0
    shown = (done.out, Path("page/report.html").read_text(encoding="utf-8"), Path("run/run.json").read_text())
    for words in (
        "The outputs of other have no names (LABEL_0, LABEL_1); they are assumed to be negative, positive",
        "The classes of dev are numbers without names; they are read as 0 (negative), 1 (positive)",
    ):
        assert all(words in " ".join(text.split()) for text in shown)
    told = ("--labels", "model=negative,positive", "--labels", "data=negative,positive")
    again = run("--no-figures", "--overwrite", *told, models=("other",))
    assert "no names" not in again.out + Path("run/run.json").read_text()
    assert "without names" not in again.out


@pytest.mark.slow
@pytest.mark.figures
@pytest.mark.usefixtures("skilled")
def test_two_models_side_by_side_and_a_report(headlens: Headlens, run: Callable[..., Any], made: Any) -> None:
    done = run("--prune", "1", "--strategies", "ranked", models=(made("judge"), made("sharer", "Albert")))
    assert done.code == 0, done.err
    ablation, pruning = pd.read_csv("run/ablation.csv"), pd.read_csv("run/pruning.csv")
    assert ablation.groupby("model", sort=False).size().to_dict() == HEADS
    assert pruning.groupby("model", sort=False).size().to_dict() == {"judge": 2, "sharer": 2}
    # both are ranked and evaluated on the same examples
    assert len(set(pruning["n"])) == 1
    # so few heads stand side by side with their numbers
    assert {p.stem for p in Path("run/figures").glob("*.png")} == {"ablation", "pruning", "smoothness"}
    for model in HEADS:
        assert f"{model} pruned, evaluated on" in done.out
    smoothness = pd.read_csv("run/smoothness.csv")
    assert set(smoothness["quantity"]) == {"delta"}
    for model, own in ablation.groupby("model"):
        (row,) = smoothness[(smoothness["model"] == model) & (smoothness["statistic"] == "morans_i")].to_dict("records")
        grid = own.pivot_table(index="layer", columns="head", values="delta").to_numpy()
        assert row["value"] == pytest.approx(morans_i(grid).value)
        assert f"{row['value']:.3f}" in done.out
    assert headlens("ablate", made("judge"), "--config", "run/run.json", "--out", "one", "-q", "--overwrite").code == 0
    done = headlens("report", "run", "one", "--out", "page")
    assert done.code == 0, done.err
    page = Path("page/report.html").read_text(encoding="utf-8")
    for words in ("Largest losses without a head", "Pruned models", "Single heads", "Pruning many heads"):
        assert words in page
    assert page.count("How smoothly heads vary over depth") > 1
    assert "Nothing to draw, so no figure" not in page


def test_the_model_it_is_about_may_be_named_twice(run: Callable[..., Any], judge: str) -> None:
    done = run("--no-figures", models=(judge, judge))
    assert done.code == 0, done.err
    rows = pd.read_csv("run/ablation.csv")
    assert not Path("run/smoothness.csv").exists(), "changes of models that guess are chance"
    assert " ".join(done.out.split()).count("its changes are not looked at for smoothness, as it has no verdicts") == 2
    first, second = (own.drop(columns="model").reset_index(drop=True) for _, own in rows.groupby("model", sort=False))
    pd.testing.assert_frame_equal(first, second)


@pytest.mark.parametrize(
    ("task", "metric"), rest_slow_rows([("cola", "matthews"), ("cola", "accuracy"), ("stsb", "spearman")])
)
def test_metrics(headlens: Headlens, made: Callable[..., str], task: str, metric: str) -> None:
    Path("dev.tsv").write_text(table(task), encoding="utf-8")
    options = ("--data", "dev.tsv", "--metric", metric, "--prune", "1", "--replicates", 100, "--no-figures")
    done = headlens("ablate", made(f"of-{task}", task=task), "--task", task, *options, "--out", "run")
    assert done.code == 0, done.err
    for name in ("ablation", "pruning"):
        assert set(pd.read_csv(f"run/{name}.csv")["metric"]) == {metric}
    # all metrics of the whole model are shown
    assert all(name in done.out for name in CATALOGUE[task].task.metrics)


def test_masked_words_and_a_loss(headlens: Headlens, tmp_path: Path, tokenizer_of_made_texts: Tokenizer) -> None:
    filler = build("BertForMaskedLM", len(tokenizer_of_made_texts))
    model = save(filler, tmp_path / "filler", tokenizer_of_made_texts)
    Path("text.txt").write_text("".join(f"{text(n)} {text(n, 1)} {text(n, 2)}\n" for n in range(30)))
    # Heads are ranked on most of what they are ablated on, so that the worst one is the same.
    options = (
        "--metric",
        "loss",
        "--prune",
        2,
        "--strategies",
        "ranked",
        "--strategy-args",
        "rank-split=0.8",
        "--replicates",
        100,
    )
    done = headlens("ablate", model, "--task", "mlm", "--data", "text.txt", *options, "--out", "run")
    assert done.code == 0, done.err
    rows = pd.read_csv("run/ablation.csv")
    worst = rows.loc[rows["delta"].idxmax()]
    shown = done.out.split("Largest losses without a head")[1].splitlines()[4]
    assert shown.split()[0] == f"encoder.{worst['layer']}.{worst['head']}", "a larger loss is worse"
    removed = pd.read_csv("run/pruning.csv")["removed"].iloc[1].split()
    assert f"encoder.{worst['layer']}.{worst['head']}" not in removed


@pytest.mark.slow
def test_translation_by_gates_and_by_its_loss(
    headlens: Headlens, tmp_path: Path, wordpiece_tokenizer: Tokenizer
) -> None:
    model = save(build("MarianMTModel", len(wordpiece_tokenizer), **MARIAN), tmp_path / "mt", wordpiece_tokenizer)
    Path("one.txt").write_text("".join(f"{text(n)}\n" for n in range(4)))
    Path("two.txt").write_text("".join(f"{text(n, 2)}\n" for n in range(4)))
    data = ("--data", "one.txt", "--target", "two.txt", "--replicates", 100, "--no-figures")
    done = headlens("ablate", model, "--task", "translation", *data, "--out", "run")
    assert done.code == 0, done.err
    rows = pd.read_csv("run/ablation.csv")
    assert set(rows["stack"]) == {"encoder", "decoder", "cross"}
    assert set(rows["metric"]) == {"bleu"}
    # A model that never learned to stop: all of its translations are as long as may be.
    assert pd.read_csv("run/examples.csv")["cut"].tolist() == [1, 1, 1, 1]
    assert "4 translations were cut" in " ".join(done.out.split())
    done = headlens("ablate", model, "--task", "translation-loss", *data, "--metric", "perplexity", "--out", "loss")
    assert done.code == 0, done.err
    assert set(pd.read_csv("loss/ablation.csv")["metric"]) == {"perplexity"}
    few = ("--strategy-args", "confirm=3,subsets=8", "--out", "few")
    assert headlens("ablate", model, "--task", "translation", *data, *few).code == 0
    screened = pd.read_csv("few/ablation.csv")
    assert screened["confirmed"].sum() == 3
    exact = rows.assign(confirmed=screened["confirmed"])[screened["confirmed"]]
    assert screened[screened["confirmed"]]["value"].tolist() == exact["value"].tolist()


def test_what_was_left_out_is_told(run: Callable[..., Any]) -> None:
    long = " ".join(["river"] * 60)
    Path("dev.tsv").write_text(table() + f"{long}\t1\nthe cat\t-1\n", encoding="utf-8")
    out = " ".join(run("--no-figures").out.split())
    assert "Left out: 1 example of dev, without a label, an answer or text." in out
    assert re.search(r"Left out: 1 example of dev, too long for \d+ tokens or without text to score\.", out)
    assert (pd.read_csv("run/ablation.csv")["n"] == 30).all()


def test_broken_rows_that_are_left_out_are_told(headlens: Headlens, judge: str) -> None:
    rows = table().splitlines()
    Path("dev.tsv").write_text("\n".join([*rows[:9], "a sentence", "cut in two\t1\tmore", *rows[9:]]), encoding="utf-8")
    data = ("--task", "sst2", "--data", "dev.tsv", "--replicates", 100, "--no-figures", "--out", "run")
    done = headlens("ablate", judge, *data)
    assert done.code == 2
    assert "dev.tsv:10: 1 column where there should be 2." in " ".join(done.err.split())
    assert "--data-args skip-broken" in done.err
    done = headlens("ablate", judge, *data, "--data-args", "skip-broken")
    assert done.code == 0, done.err
    first = ["dev.tsv:10: 1 column where there should be 2.", "dev.tsv:11: 3 columns where there should be 2."]
    note = f"Left out by --data-args skip-broken: 2 of 32 rows. {' '.join(first)}"
    assert note in " ".join(done.out.split())
    record = json.loads(Path("run/run.json").read_text())
    assert note in record["notes"]
    counted = {name: record["models"][0]["data"][name] for name in ("rows", "broken", "first_broken", "examples")}
    assert counted == {"rows": 32, "broken": 2, "first_broken": first, "examples": 30}
    assert headlens("report", "run").code == 0
    assert note in Path("run/report.html").read_text(encoding="utf-8")


def test_answers_in_cells_are_those_of_the_data_set(
    headlens: Headlens, tmp_path: Path, wordpiece_tokenizer: Tokenizer
) -> None:
    """The same questions as JSON lines and as JSON in a CSV: the same numbers to the last digit."""
    model = build("BertForQuestionAnswering", len(wordpiece_tokenizer))
    reader = save(model, tmp_path / "reader", wordpiece_tokenizer)
    context = "the old cat sees a red house"
    row = {"question": "who sees", "context": context, "answers": {"text": ["old cat"], "answer_start": [4]}}
    rows = [{"id": str(n), **row} for n in range(4)]
    Path("s.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pd.DataFrame([{**row, "answers": json.dumps(row["answers"])} for row in rows]).to_csv("j.csv", index=False)
    records = []
    for name in ("s.jsonl", "j.csv"):
        options = ("--task", "squad", "--data", name, "--no-figures", "--out", name[0])
        assert headlens("ablate", reader, *options).code == 0
        records.append(json.loads(Path(name[0], "run.json").read_text())["models"][0])
    assert len({record["data"]["sha256"] for record in records}) == 1
    assert records[0]["evaluation"] == records[1]["evaluation"]


def test_what_guessing_gives_is_told(run: Callable[..., Any]) -> None:
    assert run("--no-figures").code == 0
    share = pd.read_csv("run/examples.csv")["label"].value_counts(normalize=True).max()
    notes = json.loads(Path("run/run.json").read_text())["notes"]
    assert [
        n for n in notes if n.startswith(f"Always giving the most frequent answer has an accuracy of {share:.3f} (")
    ]
    assert run("--no-figures", "--overwrite", "--prune", 1, "--strategies", "ranked").code == 0
    rows, notes = pd.read_csv("run/examples.csv"), json.loads(Path("run/run.json").read_text())["notes"]
    part = rows[rows["part"] == "evaluation"]["label"].value_counts(normalize=True).max()
    guess = "Always giving the most frequent answer has an accuracy"
    told = f"{guess} of {share:.3f} (chance level) on all 30 examples, and of {part:.3f} on the"
    assert [n for n in notes if n.startswith(told)]
    assert pd.read_csv("run/pruning.csv")["chance"].tolist() == pytest.approx([part] * 2)


def test_too_few_examples_for_the_bootstrap(run: Callable[..., Any]) -> None:
    done = run("--limit", 4, *OTHER_TASK)
    assert done.code == 0, done.err
    rows = pd.read_csv("run/ablation.csv")
    assert (rows["n"] == 4).all()
    assert rows[["ci_low", "ci_high"]].isna().all(axis=None)
    assert run("--limit", 10, *OTHER_TASK, "--no-figures", "--overwrite").code == 0
    assert pd.read_csv("run/ablation.csv")[["ci_low", "ci_high"]].notna().all(axis=None)


@pytest.fixture
def skilled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that guess have no verdicts, and other sentences."""
    for place in ("single_heads", "pruning_experiment"):
        monkeypatch.setattr(f"headlens.analyses.ablate.{place}.skill_of", lambda *_: Skill(better=True))


@pytest.mark.usefixtures("skilled")
@pytest.mark.parametrize(("limit", "told"), rest_slow_rows([(29, True), (30, False)]))
def test_what_few_examples_cannot_tell_is_said_everywhere(
    headlens: Headlens, run: Callable[..., Any], limit: int, told: bool
) -> None:
    few = "29 examples, fewer than 30: too few to tell which heads"
    done = run("--limit", limit, *OTHER_TASK, "--prune", 1)
    assert done.code == 0, done.err
    report = headlens("report", "run", "--out", "page")
    assert report.code == 0, report.err
    notes = " ".join(json.loads(Path("run/run.json").read_text())["notes"])
    page = Path("page/report.html").read_text(encoding="utf-8")
    for said in (" ".join(done.out.split()), notes, page):
        assert (few in said) == told
    if told:
        assert "Largest losses without a head" not in done.out
        assert "Largest losses without a head" not in page
    for said in (done.out, page):
        first = "none of 4 heads is needed for cola on its own|suffers most without|without any one of 4 heads"
        assert bool(re.search(first, said)) != told


@pytest.mark.slow
def test_intervals_of_models_and_of_differences_agree_where_examples_are_few(run: Callable[..., Any]) -> None:
    for metric, known in (("accuracy", True), ("matthews", False)):
        few = (
            *OTHER_TASK,
            "--limit",
            6,
            "--strategy-args",
            "rank-split=0.5",
            "--prune",
            1,
            "--strategies",
            "random",
            "--no-figures",
        )
        assert run(*few, "--metric", metric, "--overwrite").code == 0
        rows = pd.read_csv("run/pruning.csv")
        assert (rows["n"] < 5).all()
        assert (rows[["ci_low", "ci_high", "delta_low", "delta_high"]].notna() == known).all(axis=None)
        if known:
            expected = [naive_statistics.wilson(round(r.value * r.n), r.n) for r in rows.itertuples()]
            assert rows[["ci_low", "ci_high"]].to_numpy() == pytest.approx(np.array(expected))


def test_a_finished_run_is_left_alone(headlens: Headlens, run: Callable[..., Any]) -> None:
    assert run("--quiet").code == 0
    before = Path("run/ablation.csv").read_bytes()
    refused = run("--seed", 1)
    assert refused.code == 2
    assert "--overwrite" in refused.err
    resumed = headlens("ablate", "--resume", "run")
    assert resumed.code == 2
    assert "there is nothing left to do" in resumed.err
    assert Path("run/ablation.csv").read_bytes() == before


@pytest.mark.slow
def test_heads_that_were_chosen_can_be_cut_out(headlens: Headlens, run: Callable[..., Any], judge: str) -> None:
    assert run("--prune", "1,2", "--limit", 16, "--quiet").code == 0
    chosen = ("--from", "run/pruning.csv", "--where", "strategy=random,seed=1,n_pruned=2")
    done = headlens("compact", judge, *chosen, "--out", "small", "--data-args", "rounds=2", "--limit", 5, "--json")
    assert done.code == 0, done.err
    rows = pd.read_csv("run/pruning.csv")
    row = rows[(rows["strategy"] == "random") & (rows["seed"] == 1) & (rows["n_pruned"] == 2)].iloc[0]
    assert json.loads(Path("small/run.json").read_text())["arguments"]["where"] == chosen[3].split(",")
    again = headlens("ablate", "small", "--config", "run/run.json", "--prune", "", "--out", "again", "-q")
    assert again.code == 0, again.err
    heads = pd.read_csv("again/ablation.csv")
    names = set(heads["stack"] + "." + heads["layer"].astype(str) + "." + heads["head"].astype(str))
    assert names.isdisjoint(row["removed"].split())
    assert len(names) == 2


def test_what_takes_long_is_told_before(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its duration, and the heads that matter so far; with --json nothing but the summary."""
    monkeypatch.setattr("headlens_cli.screen.LONG", 0.0)
    monkeypatch.setattr("headlens.analyses.ablate.sweep.LONG", 0.0)
    monkeypatch.setattr("headlens.analyses.ablate.sweep.FEW_EXAMPLES", 1)
    monkeypatch.setattr("headlens_cli.screen.Forecast.FIRST", 0.0)
    options = ("--no-figures", "--batch-tokens", 60)
    shown = run(*options).err
    assert re.search(
        r"judge without each of 4 heads, 30 examples: about 1 s, estimated from the first \d of 30\n", shown
    )
    assert re.search(r"preliminary, after \d+ of 30 examples, short ones first: accuracy ", shown)
    assert run(*options, "--overwrite", "--json").err == ""
    assert run(*options, "--overwrite", "--quiet").err == ""


def test_heads_on_changed_texts(run: Callable[..., Any]) -> None:
    reversed_words()
    done = run("--mode", "counterfactual", "--pairs", "changed.tsv")
    assert done.code == 0, done.err
    assert "head outputs on the changed text stand in" in " ".join(done.out.split())
    found = pd.read_csv("run/ablation.csv")
    assert set(found["on_changed"]) == {found["on_changed"][0]}
    assert found["texts_delta"].tolist() == pytest.approx((found["on_changed"] - found["baseline"]).tolist())
    assert (found["texts_low"] <= 0).all()
    assert (found["texts_high"] >= 0).all()
    assert found[["kept", "verdict"]].isna().all(axis=None), "so few texts do not show that the two differ"
    assert "not shown that there is anything to lose" in " ".join(done.out.split())
    lines = Path("changed.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    Path("short.tsv").write_text("".join(lines[:-1]), encoding="utf-8")
    refused = run("--mode", "counterfactual", "--pairs", "short.tsv", "--overwrite")
    assert (refused.code, "--pairs has" in refused.err) == (2, True)
    assert run("--mode", "counterfactual", "--overwrite").code == 2
    assert run("--pairs", "changed.tsv", "--overwrite").code == 2


def reversed_words() -> None:
    """Writes changed.tsv, in which words stand the other way round, which are as many tokens."""
    rows = [line.split("\t") for line in table().splitlines()]
    text = rows[0].index("sentence")
    for row in rows[1:]:
        row[text] = " ".join(reversed(row[text].split()))
    Path("changed.tsv").write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def test_what_original_outputs_restore(run: Callable[..., Any]) -> None:
    """Denoising starts where all heads are on the changed texts, which is where noising would end."""
    reversed_words()
    pairs = ("--pairs", "changed.tsv", "--no-figures")
    assert run("--mode", "counterfactual", *pairs).code == 0
    noised = pd.read_csv("run/ablation.csv")
    done = run("--mode", "denoise", *pairs, "--overwrite")
    assert done.code == 0, done.err
    found = pd.read_csv("run/ablation.csv")
    assert found["baseline"].tolist() == pytest.approx(noised["on_changed"].tolist())
    assert found["on_original"].tolist() == pytest.approx(noised["baseline"].tolist())
    assert found["delta"].tolist() == pytest.approx((found["value"] - found["baseline"]).tolist())
    assert found["verdict"].isna().all()
    facts = json.loads(Path("run/run.json").read_text())["models"][0]["evaluation"]
    assert facts[found["metric"][0]]["value"] == pytest.approx(found["on_original"][0]), "that of the texts of the data"
    refused = run("--mode", "denoise", *pairs, "--overwrite", "--prune", "1")
    assert (refused.code, "which --mode denoise does not measure" in refused.err) == (2, True)


def test_direct_paths(run: Callable[..., Any]) -> None:
    """Heads of the last layer have no other way to the outputs; those before it lead to a head of that layer."""
    reversed_words()
    pairs = ("--pairs", "changed.tsv", "--no-figures", "--overwrite")
    assert run("--mode", "counterfactual", *pairs).code == 0
    everywhere = pd.read_csv("run/ablation.csv")
    done = run("--mode", "path", *pairs)
    assert done.code == 0, done.err
    direct = pd.read_csv("run/ablation.csv")
    assert set(direct["receiver"]) == {"outputs"}
    last = direct["layer"] == direct["layer"].max()
    assert direct[last]["value"].tolist() == pytest.approx(everywhere[last]["value"].tolist())
    to = f"encoder.{direct['layer'].max()}.1"
    done = run("--mode", "path", *pairs, "--strategy-args", f"receiver={to}.v")
    assert done.code == 0, done.err
    assert "the other heads give what they gave" in " ".join(done.out.split())
    found = pd.read_csv("run/ablation.csv")
    assert receiver_text(found) == f" to {to}.v"
    assert receiver_text(direct) == " to the outputs"
    assert receiver_text(everywhere) == ""
    assert (set(found["receiver"]), set(found["layer"])) == ({f"{to}.v"}, set(direct[~last]["layer"]))
    for receiver, said in (
        ("encoder.9.0", "There is no head encoder.9.0"),
        ("encoder.0.0", "No head has a direct path to encoder.0.0"),
        ("encoder.1.0.z", "is not the name of a receiver"),
    ):
        for dry in ((), ("--dry-run",)):
            refused = run("--mode", "path", *pairs, "--strategy-args", f"receiver={receiver}", *dry)
            assert (refused.code, said in refused.err) == (2, True), refused.err
    refused = run("--strategy-args", "receiver=encoder.1.0", "--overwrite")
    assert (refused.code, "is for --mode path" in refused.err) == (2, True)


def test_the_head_of_a_classifier_is_said_to_be_unused_by_embeddings(headlens: Headlens, judge: str) -> None:
    done = headlens("ablate", judge, "--limit", 6, "--replicates", 100, "--out", "run", "--no-figures")
    assert done.code == 0, done.err
    said = " ".join(done.out.split())
    assert "paraphrase compares mean hidden states: the head of BertForSequenceClassification is not used" in said
    assert "examples, fewer than 30: too few to tell which heads the task needs most" in said
