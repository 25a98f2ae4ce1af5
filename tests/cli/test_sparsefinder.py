"""`headlens sparsefinder` as a user runs it."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from made_tasks import text
from saved import build, save
from tiers import rest_slow
from transformers import PreTrainedTokenizerBase

import headlens as package
from headlens.analyses.sparsefinder import pareto_points as sparsity_sweep
from headlens.analyses.sparsefinder import recipe as run_sparsefinder
from headlens.analyses.sparsefinder.measures import MEASURES
from headlens.analyses.sparsefinder.restricted_task import RestrictedTask
from headlens.attention.capture import Capture
from headlens.attention.model_normalizer import switch
from headlens.attention.normalizers import Entmax
from headlens.attention.session import AttentionSession
from headlens.corpora.conllu import write_conllu
from headlens.corpora.sources import demo_corpus
from headlens.errors import Interrupted
from headlens.tables.sparsefinder_tables import GOLD, METRICS, PARETO
from headlens.tasks.translation import Translation

Headlens = Callable[..., Any]
GRID = ("--methods", "windows=0,3,5,groups=2,4,thresholds=1,3,clusters=4", "--epochs", 1)
FEW = ("--methods", "windows=0,3,groups=2,thresholds=1,clusters=2", "--epochs", 1, "--limit", 25)
METHODS = {"distance", "bucket", "cluster", "routing", "lsh", "longformer", "random", "bigbird", "window"}
TABLES = ("pareto", "areas", "heads", "clusters", "pos_pairs", "examples")
BLOCKS = {"block_v1", "block_v2", "block_bigbird", "block_longformer"}


@pytest.fixture(scope="module")
def sparse(
    tmp_path_factory: pytest.TempPathFactory, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> Callable[..., str]:
    """Tiny models with entmax, whose weights are large enough that attention is sparse."""
    folder = tmp_path_factory.mktemp("sparse")

    def make(kind: str, **more: Any) -> str:
        if not (folder / kind).is_dir():
            model = build(kind, len(wordpiece_tokenizer), **more)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if "query" in name or "key" in name:
                        parameter.mul_(3)
            switch(model, Entmax())
            save(model, folder / kind, wordpiece_tokenizer)
        return str(folder / kind)

    return make


@pytest.fixture
def judge(sparse: Callable[..., str]) -> str:
    labels = {"id2label": {0: "negative", 1: "positive"}, "label2id": {"negative": 0, "positive": 1}}
    return sparse("BertForSequenceClassification", **labels)


def written(folder: str) -> dict[str, pd.DataFrame]:
    return {name: pd.read_csv(f"{folder}/{name}.csv") for name in TABLES}


def sparsity_of_sentences(model: str) -> tuple[list[int], float]:
    """Tokens of the sentences of dev.tsv, and the share of their pairs without weight, sentence by sentence."""
    loaded, lengths, shares = package.load(model), [], []
    for sentence in pd.read_csv("dev.tsv", sep="\t")["sentence"]:
        seen = Capture()
        inputs = loaded.tokenizer(sentence, return_tensors="pt")
        with torch.no_grad(), AttentionSession(loaded.model, observers=[seen]):
            loaded.model(**inputs)
        lengths.append(inputs["input_ids"].shape[1])
        shares.append(np.mean([float((weights == 0).double().mean()) for weights in seen.weights.values()]))
    return lengths, float(np.mean(shares))


def assert_compared_with_attention_itself(metrics: pd.DataFrame) -> None:
    assert metrics.columns.tolist() == ["model", *METRICS.names[1:]]
    itself = metrics["method"] == GOLD
    # The model is no better than guesses on 25 examples: nothing shows what it needs.
    assert metrics["verdict"].isna().all()
    assert set(metrics["same_answer"]) <= {True, False}
    of_metric = metrics["metric"].map(metrics[itself].set_index("metric")["value"])
    assert metrics["delta"][~itself].to_numpy() == pytest.approx((metrics["value"] - of_metric)[~itself])


@pytest.mark.slow
@pytest.mark.figures
def test_a_classifier_over_predicted_graphs(headlens: Headlens, judge: str, sentiment: tuple[str, ...]) -> None:
    task = ("--task", "sst2", "--data", "dev.tsv")
    done = headlens("sparsefinder", judge, "--limit", 25, *GRID, *task, "--methods", "points=9", "--out", "run")
    assert done.code == 0, done.err
    tables = written("run")
    pareto = tables["pareto"]
    assert pareto.columns.tolist() == PARETO.names
    whole, heads = pareto[pareto["head"].isna()], pareto[pareto["head"].notna()]
    assert set(whole["method"]) == METHODS | {GOLD}
    # A head of a layer is a row at every point, and the whole model is their mean.
    assert len(heads) == 4 * len(whole)
    keys, measures = ["method", "value_of_parameter", "window", "global_tokens"], list(MEASURES)
    means, own = (t.fillna({"value_of_parameter": 0}).groupby(keys)[measures].mean() for t in (heads, whole))
    pd.testing.assert_frame_equal(means, own)
    gold = whole[whole["method"] == GOLD].iloc[0]
    assert (gold["recall"], gold["exact"], gold["mass"]) == (1, 1, 1)
    least = whole[(whole["method"] == "window") & (whole["window"] == 0)].iloc[0]
    assert (least["recall"], least["sparsity"], least["mass"]) == (0, 1, 0)
    assert 0.1 < gold["sparsity"] < 1
    # What the task is like without restriction, and in a window alone, other commands tell as well.
    for mask, row in (
        ((), gold),
        (("--mask", "window:1"), whole[(whole["method"] == "window") & (whole["window"] == 3)].iloc[0]),
    ):
        assert row["metric"] == "accuracy"
        other = headlens(
            "ablate", judge, *task, *mask, "--replicates", 100, "--no-figures", "--out", "a", "--overwrite"
        )
        assert other.code == 0, other.err
        assert pd.read_csv("a/ablation.csv")["baseline"].iloc[0] == pytest.approx(row["value"])
    assert_compared_with_attention_itself(pd.read_csv("run/metrics.csv"))
    # How sparse attention was on the task's sentences, from these alone
    lengths, looks = sparsity_of_sentences(judge)
    assert gold["task_sparsity"] == pytest.approx(looks)
    window = whole[(whole["method"] == "window") & (whole["window"] == 3)].iloc[0]
    assert window["task_sparsity"] == pytest.approx(np.mean([1 - (3 * n - 2) / n**2 for n in lengths]))
    nothing = whole[(whole["method"] == "window") & (whole["window"] == 0)].iloc[0]
    assert nothing["task_sparsity"] == pytest.approx(np.mean([1 - 1 / n for n in lengths])), "their own places"
    assert nothing["sparsity"] == 1
    tried = whole[whole["value"].notna()]
    assert tried["task_sparsity"].between(0, 1).all()
    assert tried["on_curve"].all()
    assert set(tried["method"]) == METHODS | {GOLD}
    assert tables["heads"]["sparsity"].mean() == pytest.approx(gold["sparsity"])
    assert set(tables["areas"]["quality"]) == {"recall", "accuracy"}
    ranges = tables["areas"][tables["areas"]["quality"] == "accuracy"]
    assert ranges["area"].between(ranges["ci_low"], ranges["ci_high"]).all()
    assert (ranges["ci_low"] < ranges["ci_high"]).any()
    assert {path.stem for path in Path("run/figures").glob("*.png")} == {
        "pareto",
        "heads",
        "clusters",
        "pos_pairs",
        "examples",
    }
    assert not Path("run/.resume").exists()
    record = json.loads(Path("run/run.json").read_text())
    assert record["restricted"] == ["encoder"]
    assert record["held_out"] == 4
    assert "Sparsity of entmax itself: encoder 0." in done.out
    again = headlens("sparsefinder", "--config", "run/run.json", "--out", "again", "-q")
    assert again.code == 0, again.err
    for name in TABLES:
        assert Path(f"again/{name}.csv").read_bytes() == Path(f"run/{name}.csv").read_bytes(), name
    assert headlens("report", "run").code == 0
    page = Path("run/report.html").read_text(encoding="utf-8")
    for words in (
        "How well attention is predicted",
        "Pareto curves",
        "Contents of clusters",
        "Predicted heads on a sentence",
    ):
        assert words in page


@pytest.mark.slow
def test_clusters_and_heads_on_a_sentence(headlens: Headlens, judge: str) -> None:
    done = headlens("sparsefinder", judge, "--limit", 25, *GRID, "--task", "none", "--no-figures", "--out", "run")
    assert done.code == 0, done.err
    tables = written("run")
    assert tables["pareto"]["value"].isna().all()
    clusters, examples = tables["clusters"], tables["examples"]
    assert {"NOUN", "VERB", "special"} <= set(clusters["tag"])
    assert clusters.groupby(["layer", "head", "cluster", "side"])["share"].sum().to_numpy() == pytest.approx(1)
    # Every token is a query and a key of every head, in one cluster each.
    totals = clusters.groupby(["layer", "head", "side"])["count"].sum()
    assert (totals == totals.iloc[0]).all()
    assert tables["heads"]["information"].between(0, 1).all()
    pairs = tables["pos_pairs"]
    for name in ("gold", "predicted"):
        assert pairs[f"{name}_share"].to_numpy() == pytest.approx((pairs[name] / pairs["pairs"]).to_numpy())
    found = pd.read_csv("run/antecedents.csv")
    assert (found.groupby(["sentence", "mention", "antecedent", "distance"]).size() % 4 == 0).all(), "each head"
    assert (found["gold"] == (found["weight"] > 0)).all()
    assert set(found["predicted"]) <= {0, 1}
    # The heads where distance knows most beyond places, one of a layer
    heads = tables["heads"].set_index(["layer", "head"])
    ahead = heads["area_distance"] - np.maximum(heads["area_window"], heads["area_longformer"])
    best = [own.idxmax() for _, own in ahead.groupby("layer")]
    shown = list(dict.fromkeys(zip(examples["layer"], examples["head"], strict=True)))
    assert shown == sorted(best, key=lambda place: -ahead[place])[:3]
    for _, own in examples.groupby(["layer", "head"]):
        for column in ("weight", "restricted"):
            assert own.groupby("query")[column].sum().to_numpy() == pytest.approx(1, abs=1e-5)
        asked = own.groupby("query")["predicted"].transform("max") > 0
        outside = own[asked & (own["predicted"] == 0)]
        assert (outside["restricted"] == 0).all()
    assert "No task" not in done.out


@pytest.mark.parametrize("thorough", rest_slow([False, True]), ids=["tables", "beside a run without them, and page"])
def test_blocks_beside_tokens(headlens: Headlens, judge: str, sentiment: tuple[str, ...], thorough: bool) -> None:
    """Their recall, sparsity, time and what they are worth on a task; what others have stays as it is."""
    run = ("sparsefinder", judge, *FEW, "--methods", "points=1", "--task", "sst2", "--data", "dev.tsv")
    done = headlens(*run, "--methods", "block-size=3", "--out", "run")
    assert done.code == 0, done.err
    assert "BigBird on blocks" in done.out
    tables = written("run")
    pareto = tables["pareto"]
    assert set(pareto["method"]) == METHODS | BLOCKS | {GOLD}
    assert set(pareto.loc[pareto["value"].notna(), "method"]) == METHODS | BLOCKS | {GOLD}
    assert set(tables["areas"]["method"]) >= BLOCKS
    assert {f"area_{name}" for name in BLOCKS} <= set(tables["heads"].columns)
    times = pd.read_csv("run/times.csv")
    assert set(times["method"]) == METHODS | BLOCKS
    assert (times["cpu_seconds"] >= 0).all()
    if thorough:
        assert headlens(*run, "--out", "plain").code == 0
        assert not Path("plain/times.csv").exists()
        others = pareto[~pareto["method"].isin(BLOCKS)].reset_index(drop=True)
        pd.testing.assert_frame_equal(others, written("plain")["pareto"])
        assert headlens("report", "run").code == 0
        assert "BigBird on blocks" in Path("run/report.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("dev", rest_slow([False, True]))
def test_parts_of_speech_of_a_parser(headlens: Headlens, judge: str, dev: bool) -> None:
    """Plain text with trees that a parser found says what the treebank of these trees says."""
    examples = [example.source for example in islice(demo_corpus(), 30)]
    few = ("--task", "none", "--no-figures", *GRID)
    for name, part in (("train", examples[:25]), ("dev", examples[25:])):
        write_conllu(part, Path(f"{name}.conllu"))
        Path(f"{name}.txt").write_text("".join(f"{sentence.text}\n" for sentence in part), encoding="utf-8")
    write_conllu(examples, Path("trees.conllu"))
    for out, ending, more in (("gold", "conllu", ()), ("run", "txt", ("--parser", "conllu:trees.conllu"))):
        held_out = ("--dev", f"dev.{ending}") if dev else ()
        done = headlens("sparsefinder", judge, "--corpus", f"train.{ending}", *held_out, *more, *few, "--out", out)
        assert done.code == 0, done.err
    for name in ("clusters", "pos_pairs", "antecedents", "pareto"):
        assert Path(f"run/{name}.csv").read_bytes() == Path(f"gold/{name}.csv").read_bytes(), name
    files = json.loads(Path("run/run.json").read_text())["files"]
    assert [name for name in files if name.endswith(".conllu")] == ["parsed.conllu", *["parsed-dev.conllu"] * dev]


@pytest.mark.slow
def test_a_head_and_a_sentence_of_ones_own(headlens: Headlens, judge: str) -> None:
    said = "the cat sees it"
    options = ("--limit", 25, *GRID, "--task", "none", "--no-figures", "--heads", "encoder.1.0", "--text", said)
    done = headlens("sparsefinder", judge, *options, "--out", "run")
    assert done.code == 0, done.err
    examples = written("run")["examples"]
    assert set(zip(examples["stack"], examples["layer"], examples["head"], strict=True)) == {("encoder", 1, 0)}
    tokens = examples.drop_duplicates("query")["query_token"].tolist()
    loaded = package.load(judge)
    assert loaded.tokenizer is not None
    ids = loaded.tokenizer(said, return_tensors="pt")
    assert tokens == loaded.tokenizer.convert_ids_to_tokens(ids["input_ids"][0].tolist())
    with torch.inference_mode():
        weights = loaded.model(**ids, output_attentions=True).attentions[1][0, 0]
    assert examples["weight"].to_numpy() == pytest.approx(weights.flatten().numpy(), abs=1e-6)
    again = headlens("sparsefinder", "--config", "run/run.json", "--out", "again", "-q")
    assert again.code == 0, again.err
    assert Path("again/examples.csv").read_bytes() == Path("run/examples.csv").read_bytes()
    assert set(examples["method"]) == {"distance"}
    done = headlens("sparsefinder", judge, *options, "--methods", "clusters=4,drawn=cluster", "--out", "clusters")
    assert done.code == 0, done.err
    tables = written("clusters")
    drawn = tables["examples"]
    assert drawn["weight"].tolist() == examples["weight"].tolist()
    own = tables["pareto"][lambda points: (points["layer"] == 1) & (points["head"] == 0)]
    own = own[(own["method"] == "cluster") & (own["sparsity"] >= 0.5)]
    point = ["method", "value_of_parameter", "window", "recall", "sparsity"]
    assert drawn[point].drop_duplicates().to_numpy().tolist() == [own.loc[own["recall"].idxmax(), point].tolist()]


@pytest.mark.slow
def test_masked_words_over_predicted_graphs(headlens: Headlens, sparse: Callable[..., str]) -> None:
    Path("text.txt").write_text("".join(f"{text(n)} {text(n, 2)}\n" for n in range(40)), encoding="utf-8")
    model = sparse("AlbertForMaskedLM")
    done = headlens(
        "sparsefinder", model, "--corpus", "text.txt", *GRID, "--methods", "points=1", "--no-figures", "--out", "run"
    )
    assert done.code == 0, done.err
    pareto = pd.read_csv("run/pareto.csv")
    assert set(pareto["task"].dropna()) == {"mlm"}
    assert set(pareto["metric"].dropna()) == {"accuracy"}
    metrics = {name: rows["value"] for name, rows in pd.read_csv("run/metrics.csv").groupby("metric")}
    assert list(metrics) == ["accuracy", "loss", "perplexity"]
    assert metrics["accuracy"].tolist() == pareto["value"].dropna().tolist()
    assert metrics["perplexity"].to_numpy() == pytest.approx(np.exp(metrics["loss"].to_numpy()))
    assert "No parts of speech are known" in done.out
    assert pd.read_csv("run/heads.csv")["information"].isna().all()
    assert package.load(model).model.config.num_hidden_layers == pareto["layer"].nunique()


@pytest.mark.slow
@pytest.mark.parametrize("task", rest_slow(["auto", "translation"]))
def test_translations_over_predicted_graphs(headlens: Headlens, monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    monkeypatch.setattr(Translation, "most_tokens", lambda *_: 5)  # of a model that knows no end
    lines = [f"{text(n)} {text(n, 2)}\n" for n in range(30)]
    for name in ("a.txt", "b.txt"):
        Path(name).write_text("".join(lines), encoding="utf-8")
    pair = ("--corpus", "a.txt", "--target", "b.txt")
    learned = (
        "--task",
        "translation",
        "--model-args",
        "vocabulary=100",
        "--attention",
        "entmax15",
        "--steps",
        2,
        "--no-figures",
    )
    assert headlens("train", "new:marian-tiny", *pair, *learned, "--out", "mt").code == 0
    for name in ("c.txt", "d.txt"):
        Path(name).write_text(text(2), encoding="utf-8")
    more = (
        "--dev",
        "c.txt",
        "--data-args",
        "dev-target=d.txt",
        "--task",
        task,
        "--methods",
        "points=1",
        "--no-figures",
    )
    more = (*more, "--methods", "thresholds=0,1000000", "--limit", 24)
    done = headlens("sparsefinder", "mt/model", *pair, *FEW, *more, "--out", "run")
    assert done.code == 0, done.err
    pareto = pd.read_csv("run/pareto.csv")
    assert list(dict.fromkeys(pareto["stack"])) == ["all", "encoder", "decoder", "cross"]
    tried = pareto[pareto["value"].notna()]
    assert set(tried["stack"]) == {"all"}
    assert set(tried["metric"]) == {"bleu" if task == "translation" else "accuracy"}
    assert tried["task_sparsity"].between(0, 1).all()
    assert GOLD in set(tried["method"])
    record = json.loads(Path("run/run.json").read_text())
    assert record["restricted"] == ["encoder", "decoder", "cross"]
    told = headlens("sparsefinder", "mt/model", *pair, *GRID, "--text", "a", "--heads", "cross.0.0", "--out", "other")
    assert (told.code, Path("other").exists()) == (2, False)
    assert "cross.0.0 needs a translation.\nGive the translation of --text with --target-text." in told.err
    # Causal attention allows a query the keys up to it: what is near at any distance is all of these.
    own = pareto[(pareto["stack"] == "decoder") & (pareto["method"] == "distance") & pareto["head"].isna()]
    assert (own.loc[own["value_of_parameter"] == 1e6, ["sparsity", "recall"]] == [0, 1]).all(axis=None)
    assert (own.loc[(own["value_of_parameter"] == 0) & (own["window"] == 0), "sparsity"] > 0.9).all()


@pytest.mark.slow
def test_interrupted_and_gone_on_with(
    headlens: Headlens, judge: str, sentiment: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = (*FEW, "--task", "sst2", "--data", "dev.tsv", "--methods", "points=1")
    assert headlens("sparsefinder", judge, *options, "--out", "whole").code == 0

    def stopping(at: int, function: Callable[..., Any]) -> Callable[..., Any]:
        seen = iter(range(at))

        def call(*arguments: Any) -> Any:
            if next(seen, None) is None:
                raise Interrupted(signal.SIGTERM)
            return function(*arguments)

        return call

    for place, name, at in ((sparsity_sweep, "fit_site", 1), (RestrictedTask, "measured", 2)):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, stopping(at, getattr(place, name)))
            begun = ("--resume", "run") if Path("run").exists() else (judge, *options, "--out", "run")
            assert headlens("sparsefinder", *begun).code == 143
    done = headlens("sparsefinder", "--resume", "run")
    assert done.code == 0, done.err
    for name in TABLES:
        assert Path(f"run/{name}.csv").read_bytes() == Path(f"whole/{name}.csv").read_bytes(), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed", rest_slow(["the weights of the model", "the corpus", "the held-out data", "the data of the task"])
)
def test_nothing_else_is_gone_on_with(
    headlens: Headlens, judge: str, sentiment: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    shutil.copytree(judge, "model")
    for name, start in (("a.txt", 0), ("b.txt", 5)):
        Path(name).write_text("".join(f"{text(n)} {text(n, 3)}\n" for n in range(start, start + 20)), encoding="utf-8")
    options = (
        "--corpus",
        "a.txt",
        "--dev",
        "b.txt",
        *FEW,
        "--task",
        "sst2",
        "--data",
        "dev.tsv",
        "--methods",
        "points=1",
    )
    with monkeypatch.context() as patch:
        patch.setattr(RestrictedTask, "measured", raising(Interrupted(signal.SIGTERM)))
        assert headlens("sparsefinder", "model", *options, "--no-figures", "--out", "run").code == 143
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file() and path.name != "run.json"}
    if changed == "the weights of the model":
        loaded = package.load("model")
        with torch.no_grad():
            next(iter(loaded.model.parameters())).mul_(2)
        save(loaded.model, Path("model"), loaded.tokenizer)
    else:
        path = Path({"the corpus": "a.txt", "the held-out data": "b.txt", "the data of the task": "dev.tsv"}[changed])
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(lines[:-1]), encoding="utf-8")
    for _ in range(2):
        done = headlens("sparsefinder", "--resume", "run")
        assert done.code == 2
        assert f"{changed} changed since the run was interrupted." in done.err
        assert "start again with --overwrite" in done.err
    assert {path: path.read_bytes() for path in before} == before
    assert headlens("sparsefinder", "model", *options, "--no-figures", "--out", "run", "--overwrite").code == 0
    assert set(json.loads(Path("run/run.json").read_text())["depends_on"]) >= {changed}


def raising(error: BaseException) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        raise error

    return call


@pytest.mark.slow
def test_numbers_that_are_named_twice_count_once(headlens: Headlens, judge: str) -> None:
    grid = ("--methods", "windows=0,3,groups=2,02,thresholds=1,1.0,.5,global-tokens=0,00")
    run = ("sparsefinder", judge, "--limit", 25, "--task", "none", "--no-figures")
    assert headlens(*run, *grid, "--out", "twice").code == 0
    once = ("--methods", "windows=0,3,groups=2,thresholds=1,.5")
    assert headlens(*run, *once, "--out", "once").code == 0
    for name in ("pareto", "areas", "heads"):
        assert Path(f"twice/{name}.csv").read_bytes() == Path(f"once/{name}.csv").read_bytes()


@pytest.mark.slow
def test_a_metric_that_attention_does_not_matter_to(headlens: Headlens, judge: str, sentiment: tuple[str, ...]) -> None:
    loaded = package.load(judge)
    model: Any = loaded.model
    with torch.no_grad():
        model.classifier.weight.zero_()
    save(model, Path("deaf"), loaded.tokenizer)
    with Path("dev.tsv").open("a", encoding="utf-8") as file:
        file.write("cut\n")
    data = ("--task", "sst2", "--data", "dev.tsv", "--data-args", "skip-broken")
    done = headlens(
        "sparsefinder", "deaf", "--limit", 25, *GRID, *data, "--methods", "points=1", "--no-figures", "--out", "run"
    )
    assert done.code == 0, done.err
    notes = json.loads(Path("run/run.json").read_text())["notes"]
    assert "Left out by --data-args skip-broken: 1 of 14 rows. dev.tsv:15: 1 column where there should be 2." in notes
    areas = pd.read_csv("run/areas.csv")
    assert areas.loc[areas["quality"] == "accuracy", "share"].isna().all()
    told = "There is no normalised area of accuracy"
    assert told in " ".join(done.out.split())


@pytest.mark.slow
def test_a_task_that_the_model_cannot_do_is_told_first(
    headlens: Headlens, judge: str, sentiment: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_sparsefinder, "_collected", None)
    for options, words in (
        (("--task", "mlm"), "language-model head"),
        (("--task", "sst2", "--data", "none.tsv"), "none.tsv: no such file"),
    ):
        done = headlens("sparsefinder", judge, "--limit", 25, *GRID, *options, "--out", "no")
        assert done.code == 2, done.err
        assert words in done.err
        assert not Path("no").exists()


@pytest.mark.slow
def test_the_example_that_is_asked_first_can_be_asked(headlens: Headlens, sparse: Callable[..., str]) -> None:
    """A text of one word has nothing to guess a masked word from; it is left out, and no reason to refuse."""
    Path("text.txt").write_text("".join(f"{text(n)}\n" for n in range(24)) + "cat\n" * 6, encoding="utf-8")
    model = sparse("AlbertForMaskedLM")
    done = headlens(
        "sparsefinder", model, "--corpus", "text.txt", *GRID, "--methods", "points=1", "--no-figures", "--out", "run"
    )
    assert done.code == 0, done.err
    assert pd.read_csv("run/pareto.csv")["value"].notna().any()


def test_sentences_that_cannot_be_read_are_counted(headlens: Headlens, judge: str) -> None:
    lines = [text(n) for n in range(20)]
    lines[2] = lines[4] = "cat " * 60
    Path("text.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    options = ("--corpus", "text.txt", *FEW, "--limit", 99, "--task", "none")
    done = headlens("sparsefinder", judge, *options, "--out", "run")
    assert done.code == 0, done.err
    told = " ".join(done.out.split())
    assert "note: 1 sentence longer than 40 tokens was left out." in told
    assert "Held out: 1 sentence longer than 40 tokens was left out." in told
    no_intervals = "areas under curves of recall have no intervals for fewer than 10."
    assert f"Measured on 3 sentences that were held out: {no_intervals}" in told
    assert json.loads(Path("run/run.json").read_text())["held_out"] == 3


WRONG = {
    "clusters that are not tried": (("--methods", "clusters=6"), "--methods clusters 6 is not one of --methods groups"),
    "an even window": (
        ("--methods", "windows=0,4"),
        "--methods windows 4: a window is centred on the query, so its size must be odd",
    ),
    "an odd number of groups": (("--methods", "groups=2,3"), "--methods groups 3: hashes come in pairs"),
    "fewer tokens than none": (
        ("--methods", "global-tokens=0,-1"),
        "--methods global-tokens -1 is out of range",
    ),
    "no distance": (("--methods", "thresholds=-1"), "--methods thresholds -1.0 is out of range"),
    "no list": (("--methods", "thresholds=near"), "is not a list of numbers"),
    "nothing": (("--methods", "windows=,"), "each need at least one number"),
    "blocks without tokens": (
        ("--methods", "block-size=0"),
        "--methods block-size 0 is out of range",
    ),
    "no rounds": (("--methods", "rounds=0"), "--methods rounds 0 is out of range"),
    "no dimensions": (("--projections", "dimensions=0"), "--projections dimensions 0 is out of range"),
    "no margin": (("--projections", "margin=0"), "--projections margin 0.0 is out of range"),
    "no points": (("--methods", "points=0"), "--methods points 0 is out of range"),
    "a share of all": (("--data-args", "dev-share=1"), "--data-args dev-share 1.0 is out of range"),
    "a translation of no text": (("--target-text", "Die Katze."), "--target-text only applies together with --text"),
    "no words": (("--text", " "), "--text: a sentence has no words"),
    "a sentence beyond the model": (("--text", "cat " * 600), "is longer than the model's"),
    "no head": (("--heads", "encoder.9.0"), "There is no head encoder.9.0"),
    "no head's name": (("--heads", "nine"), "'nine' is not the name of a head"),
    "a head of another stack": (("--heads", "cross.0.0"), "There is no head cross.0.0"),
    "translations of nothing": (
        ("--data-args", "dev-target=b.txt"),
        "--data-args dev-target only applies together with --dev",
    ),
    "data for no task": (("--data", "dev.tsv"), "--data is given, but no task"),
    "data for none": (("--task", "none", "--data", "dev.tsv"), "but --task none measures nothing"),
    "labels for no task": (("--labels", "data=a,b"), "--labels is given, but no task"),
    "labels of no classes": (("--task", "mlm", "--labels", "model=a,b"), "The task has no classes: leave --labels out"),
    "other labels": (("--task", "sst2", "--labels", "model=good,bad"), "'good' is not one of the task's classes"),
    "no such task": (("--task", "nonsense"), "Unknown task 'nonsense'"),
    "softmax": (("--attention", "softmax"), "softmax leaves no weight at exactly zero"),
    "no such attention": (("--attention", "soft"), "--attention 'soft' is unknown"),
    "one sentence": (("--limit", 1), "none of 1 sentence can be held out"),
    "no such corpus": (("--corpus", "none.txt"), "none.txt"),
}


@pytest.mark.usefixtures("loads_once")
@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_meant(headlens: Headlens, judge: str, name: str) -> None:
    options, words = WRONG[name]
    done = headlens("sparsefinder", judge, "--limit", 20, *GRID, *options, "--out", "no")
    assert done.code == 2
    assert words in " ".join(done.err.split())
    assert not Path("no").exists()


@pytest.mark.slow
def test_a_model_that_is_not_sparse(headlens: Headlens, tiny_bert: Path) -> None:
    done = headlens("sparsefinder", tiny_bert, *GRID, "--out", "no")
    assert done.code == 2
    assert "attends with softmax, which leaves no weight at exactly zero" in done.err
    assert not Path("no").exists()
    done = headlens(
        "sparsefinder",
        tiny_bert,
        "--limit",
        12,
        *GRID,
        "--attention",
        "sparsemax",
        "--methods",
        "points=1",
        "--out",
        "run",
    )
    assert done.code == 0, done.err
    assert "is switched from softmax to sparsemax without training" in " ".join(done.out.split())
    assert set(pd.read_csv("run/pareto.csv")["task"].dropna()) == {"paraphrase"}
    assert np.isfinite(pd.read_csv("run/areas.csv")["area"]).all()


@pytest.mark.slow
def test_what_a_switched_model_can_do_with_softmax(
    headlens: Headlens, sparse: Callable[..., str], wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    """As `ablate` measures it; afterwards the model has its new attention again."""
    model = package.load(sparse("BertModel")).model
    switch(model, None)
    save(model, Path("softmax"), wordpiece_tokenizer)
    options = (*FEW, "--methods", "points=1", "--no-figures", "--text", "the cat sees it")
    done = headlens("sparsefinder", "softmax", *options, "--attention", "sparsemax", "--out", "run")
    assert done.code == 0, done.err
    metrics = pd.read_csv("run/metrics.csv")
    limit = ("--limit", metrics["n"].iloc[0])
    other = headlens(
        "ablate", "softmax", "--task", "paraphrase", *limit, "--replicates", 100, "--no-figures", "--out", "a"
    )
    assert other.code == 0, other.err
    baseline = pd.read_csv("a/ablation.csv")["baseline"].iloc[0]
    assert baseline != metrics.loc[metrics["method"] == GOLD, "value"].iloc[0]
    (told,) = (note for note in json.loads(Path("run/run.json").read_text())["notes"] if "its own softmax" in note)
    assert told == (
        f"With its own softmax the model has accuracy {baseline:.3f} on the same examples of paraphrase; what is "
        "compared is the model switched to sparsemax."
    )
    assert (written("run")["examples"]["weight"] == 0).any()
    done = headlens("sparsefinder", sparse("BertModel"), *options, "--out", "entmax")
    assert done.code == 0, done.err
    assert "its own softmax" not in Path("entmax/run.json").read_text()
