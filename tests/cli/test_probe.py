"""`headlens probe`: what is written, what is said, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from saved import Memory

import headlens as package
from headlens.analyses.probe import analysis
from headlens.corpora.sentence import Example
from headlens.errors import OptionError

from .conftest import Headlens

ROWS = ((1, "The", 2, "det"), (2, "dog", 3, "nsubj"), (3, "sleeps", 0, "root"))
TREE = "".join(f"{n}\t{form}\t_\t_\t_\t_\t{head}\t{relation}\t_\t_\n" for n, form, head, relation in ROWS) + "\n"
NO_TREE = "1\tCats\t_\t_\t_\t_\t_\t_\t_\t_\n2\tsleep\t_\t_\t_\t_\t_\t_\t_\t_\n\n"


def check_contract(out: str, model: str, *, heads: int, sentences: int) -> tuple[pd.Series, pd.Series]:
    """What a run writes and says, of which a fifth of the sentences is held out; the scores of probe and next word."""
    scores = pd.read_csv("run/probe.csv").set_index("method")
    assert list(scores.index) == ["attention probe", "right-branching", "best offset", "uniform attention"]
    probe, following = scores.loc["attention probe"], scores.loc["right-branching"]
    assert following["delta"] == pytest.approx(probe["uas"] - following["uas"])
    weights = pd.read_csv("run/probe_weights.csv")
    assert len(weights) == heads
    assert weights[["dep_to_head", "head_to_dep"]].notna().all().all()
    record = json.loads(Path("run/run.json").read_text())
    assert record["held_out"]["sentences"] == sentences // 5
    assert record["corpus"]["sentences"] == sentences - sentences // 5
    assert Path("run/figures/probe_weights.png").is_file()
    shown = " ".join(out.split())
    assert "the attention of all heads together finds the governor of" in shown
    assert "right-branching (+1)" in shown
    assert "MB of attention were kept." in shown
    return probe, following


@pytest.mark.figures
def test_writes_the_tables_and_figures_of_the_contract(headlens: Headlens, tiny_bert: Path) -> None:
    done = headlens("probe", tiny_bert, "--limit", 40, "--replicates", 100, "--out", "run")
    assert done.code == 0, done.err
    check_contract(done.out, "tiny-bert", heads=6, sentences=40)


@pytest.mark.slow
@pytest.mark.figures
def test_the_demo_model_finds_governors(headlens: Headlens) -> None:
    """Far above both baselines, of which the better one is the next word."""
    done = headlens("probe", "--limit", 150, "--replicates", 100, "--out", "run")
    assert done.code == 0, done.err
    probe, following = check_contract(done.out, "MiniLM-L6", heads=72, sentences=150)
    assert 0.25 < following["uas"] < 0.45
    assert probe["ci_low"] > following["ci_high"] + 0.05
    assert following["delta_low"] > 0.05
    assert json.loads(Path("run/run.json").read_text())["fit"]["converged"]
    assert headlens("report", "run").code == 0
    assert "Governors found by the attention probe" in Path("run/report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_probe_with_word_embeddings(headlens: Headlens, tiny_bert: Path) -> None:
    words = ("probe", tiny_bert, "--limit", 40, "--replicates", 100, "--no-figures")
    assert headlens(*words, "--out", "alone").code == 0
    done = headlens(*words, "--data-args", "embeddings=model", "--out", "run")
    assert done.code == 0, done.err
    scores = pd.read_csv("run/probe.csv").set_index("method")
    assert scores.index[4:].tolist() == ["attention and embeddings", "distances and embeddings"]
    alone = pd.read_csv("alone/probe.csv").set_index("method")
    pd.testing.assert_frame_equal(scores.iloc[:4][alone.columns], alone)
    uas = scores["uas"]
    assert scores["embedded_delta"].drop("attention and embeddings").to_dict() == pytest.approx(
        (uas["attention and embeddings"] - uas.drop("attention and embeddings")).to_dict()
    )
    assert "attention and word embeddings together find the governor of" in " ".join(done.out.split())
    fit = json.loads(Path("run/run.json").read_text())["fit"]
    assert fit["attention and embeddings"]["loss"] < fit["loss"], "what attention alone can do, it can do with them"


def test_vectors_of_a_file(headlens: Headlens, tiny_bert: Path) -> None:
    """The word tells which governor is meant, and the vectors tell of which word that is."""
    Path("trees.conllu").write_text(TREE * 10, encoding="utf-8")
    words = ("probe", tiny_bert, "--corpus", "trees.conllu", "--replicates", 100, "--no-figures")
    Path("vectors.txt").write_text("the 1 0\ndog 0 1\nunused x y\n", encoding="utf-8")
    done = headlens(*words, "--data-args", "embeddings=vectors.txt", "--out", "run")
    assert done.code == 0, done.err
    assert "2 of 3 different words of the treebanks have a vector, of 2 numbers." in done.out
    Path("vectors.txt").write_text("the 1 0\ndog 0\n", encoding="utf-8")
    done = headlens(*words, "--data-args", "embeddings=vectors.txt", "--out", "refused")
    assert done.code == 2
    told = " ".join(done.err.split())
    assert "vectors.txt:2: 1 number after a word, not 2: 'dog 0'" in told
    assert "Write one WORD NUMBER NUMBER … per line" in told


@pytest.mark.slow
def test_a_run_again_gives_the_same_files(headlens: Headlens, tiny_bert: Path) -> None:
    data = ("--limit", 60, "--replicates", 100, "--no-figures")
    assert headlens("probe", tiny_bert, *data, "--out", "one").code == 0
    assert headlens("probe", "--config", "one/run.json", "--out", "two").code == 0
    for name in ("probe.csv", "probe_weights.csv"):
        assert Path("one", name).read_bytes() == Path("two", name).read_bytes()
    done = headlens("probe", "--config", "one/run.json", "--json", "--out", "three")
    summary = json.loads(done.out)
    assert 0 <= summary["ci_low"] <= summary["uas"] <= summary["ci_high"] <= 1
    assert summary["words"] > 20


def test_held_out_sentences_of_another_treebank(headlens: Headlens, tiny_bert: Path) -> None:
    Path("train.conllu").write_text(TREE * 9 + NO_TREE, encoding="utf-8")
    Path("dev.conllu").write_text(TREE * 2, encoding="utf-8")
    held_out = ("--corpus", "train.conllu", "--dev", "dev.conllu", "--replicates", 100)
    done = headlens("probe", tiny_bert, *held_out, "--limit", 5, "--out", "run")
    assert done.code == 0, done.err
    scores = pd.read_csv("run/probe.csv").set_index("method")
    assert scores["words"].tolist() == [4, 4, 4, 4], "--limit is that of the training sentences; the root is not scored"
    assert scores.loc["right-branching", "uas"] == 1
    assert "Learned from 10 words of 5 sentences" in done.out
    done = headlens("probe", tiny_bert, *held_out, "--out", "whole")
    assert "train: 1 sentence without a dependency tree left out." in done.out


def test_a_probe_that_was_not_learned_to_the_end_says_so(
    headlens: Headlens, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analysis, "_MOST_STEPS", 1)
    done = headlens("probe", tiny_bert, "--limit", 20, "--replicates", 100, "--out", "run")
    assert done.code == 0, done.err
    assert (
        "Learning has not converged: raise l2, in Python or in a file of --config, or read more sentences." in done.out
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--corpus", "text.txt"), "text: the probe needs dependency trees, and no sentence has one."),
        (("--corpus", "two.conllu"), "two: none of 2 sentences can be held out."),
        (("--corpus", "two.conllu", "--dev", "text.txt"), "text: the probe needs dependency trees"),
        (("--data-args", "dev-share=0.95"), "--data-args dev-share 0.95 is out of range"),
        (("--l2", "-1"), "--l2 is not on the command line: write l2 = 0.0001 in a TOML file"),
        (("--corpus", "none.conllu"), "none.conllu: no such file"),
    ],
)
def test_what_is_refused(headlens: Headlens, tiny_bert: Path, words: tuple[str, ...], message: str) -> None:
    Path("text.txt").write_text("Cats sleep.\n" * 9, encoding="utf-8")
    Path("two.conllu").write_text(TREE * 2, encoding="utf-8")
    done = headlens("probe", tiny_bert, *words, "--no-figures", "--out", "run")
    assert done.code == 2
    assert message in " ".join(done.err.split())
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dev_share": 0.95}, r"--data-args dev-share 0\.95 is out of range"),
        ({"dev_share": 0.0}, r"--data-args dev-share 0\.0 is out of range"),
        ({"l2": -1.0}, r"l2 -1\.0 is out of range"),
        ({"l2": float("nan")}, "l2 nan is not a finite number"),
    ],
)
def test_numbers_out_of_range(options: dict[str, float], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        package.probe(**options)


def test_an_encoder_without_heads_is_refused(headlens: Headlens, tiny_marian: Path) -> None:
    every = "encoder.0.0,encoder.0.1,encoder.1.0,encoder.1.1"
    assert (
        headlens(
            "compact", tiny_marian, "--heads", every, "--limit", 5, "--data-args", "rounds=2", "--out", "small"
        ).code
        == 0
    )
    done = headlens("probe", "small", "--limit", 20, "--no-figures", "--out", "run")
    assert done.code == 2
    assert "There are no heads left in the encoder of small." in done.err


def test_of_a_translation_model_the_encoder_is_probed(headlens: Headlens, tiny_marian: Path) -> None:
    done = headlens("probe", tiny_marian, "--limit", 10, "--replicates", 100, "--out", "run")
    assert done.code == 0, done.err
    assert set(pd.read_csv("run/probe_weights.csv")["stack"]) == {"encoder"}
    assert "only the encoder was analysed" in done.out


def test_pairs_are_refused(tiny_bert: Path) -> None:
    sentence = next(iter(package.open_corpus("demo"))).source
    pairs = Memory([Example(sentence, sentence)] * 10)
    with pytest.raises(OptionError, match=r"The probe reads single sentences, but the corpus has pairs\.\nGive a tree"):
        package.probe(str(tiny_bert), pairs)


def test_from_python(tiny_bert: Path) -> None:
    result = package.probe(str(tiny_bert), limit=60, replicates=100)
    assert list(result.tables) == ["probe", "probe_weights"]
    assert list(result.figures) == ["probe_weights"]
    worse = "significantly worse than right-branching (+1): the attention of all heads together finds the governor of"
    assert result.findings[0].startswith(f"tiny-bert: {worse}")
