"""`headlens relevance` and `headlens classify --relevance` as a user runs them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from saved import build, save
from transformers import BertForSequenceClassification, PreTrainedTokenizerBase

Headlens = Callable[..., Any]
Tokenizer = PreTrainedTokenizerBase
RELEVANCE = ["model", "stack", "layer", "head", "relevance", "ci_low", "ci_high", "raw", "rule", "target"]
MORE = ["signed", "signed_low", "signed_high", "n", "cancelled", "negative", "raw_low", "raw_high"]
MORE += ["layer_raw", "layer_raw_low", "layer_raw_high", "same_output"]
MORE += ["remainder", "remainder_low", "remainder_high", "even_output", "few_answers"]
CORRELATIONS = ["model", "stack", "rule", "other_rule", "of", "scope", "n", "spearman", "ci_low", "ci_high"]
LABELS = {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}
MARIAN = {"pad_token_id": 0, "eos_token_id": 102, "decoder_start_token_id": 0}
LINES = ["the old teacher sold a house near the river", "a cat cannot see books", "she is not reading"]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory, wordpiece_tokenizer: Tokenizer) -> str:
    model = build("BertForSequenceClassification", len(wordpiece_tokenizer), **LABELS)
    return save(model, tmp_path_factory.mktemp("models") / "judge", wordpiece_tokenizer)


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory, tokenizer_of_made_texts: Tokenizer) -> str:
    model = build("MarianMTModel", len(tokenizer_of_made_texts), **MARIAN)
    return save(model, tmp_path_factory.mktemp("models") / "translator", tokenizer_of_made_texts)


@pytest.fixture
def run(headlens: Headlens, tiny_bert: Path) -> Callable[..., Any]:
    return lambda *more: headlens("relevance", tiny_bert, "--limit", 12, "--out", "run", *more)


@pytest.mark.figures(blank=True)
def test_writes_the_tables_and_figures_of_the_contract(run: Callable[..., Any]) -> None:
    done = run()
    assert done.code == 0, done.err
    rows = pd.read_csv("run/relevance.csv")
    assert rows.columns.tolist() == RELEVANCE + MORE
    assert len(rows) == 12
    assert rows["rule"].tolist()[:2] == ["epsilon", "taylor"]
    assert set(rows["target"]) == {"embedding"}
    # Heads of layers that nearly cancel in some examples have fewer than ten.
    known = rows.dropna(subset="ci_low")
    assert len(known) > 6
    assert (known["ci_low"] <= known["relevance"]).all()
    assert (known["relevance"] <= known["ci_high"]).all()
    correlations = pd.read_csv("run/correlations.csv")
    assert correlations.columns.tolist() == CORRELATIONS
    assert {p.stem for p in Path("run/figures").glob("*.png")} == {
        *("relevance", "relevance_raw", "relevance_intervals", "rule_agreement")
    }
    for words in (
        "Largest contributions of tiny-bert, encoder (rule epsilon, target embedding)",
        "Largest positive shares of their layer, of heads in layers that serve the target whose share and raw are "
        "significantly above 0 (not comparable between layers) of tiny-bert, encoder: an equal share would be",
        "Spearman",
        "95 % CI over examples",
        "arrived at embeddings",
    ):
        assert words in done.out
    assert "Next: headlens ablate " in done.out


@pytest.mark.slow
@pytest.mark.figures(blank=True)
def test_logit_attribution_of_a_translation_model(headlens: Headlens, translator: str) -> None:
    Path("en.txt").write_text("\n".join(LINES * 4))
    options = ("--corpus", "en.txt", "--target", "en.txt", "--rule", "logit-attribution", "--compare", "epsilon")
    done = headlens("relevance", translator, *options, "--out", "run")
    assert done.code == 0, done.err
    rows = pd.read_csv("run/relevance.csv")
    direct = rows[rows["rule"] == "logit-attribution"]
    assert set(direct[direct["raw"].notna()]["stack"]) == {"decoder", "cross"}
    assert len(direct["remainder"].unique()) == 1
    assert "Largest contributions of translator, cross (rule logit-attribution, target positions)" in done.out
    assert "encoder.0.0" not in done.out
    for note in ("logit-attribution: of the target, heads give", "heads of the encoder write nothing into the"):
        assert note in done.out
    done = headlens("report", "run", "--out", "page")
    assert done.code == 0, done.err
    page = next(Path("page").glob("*.html")).read_text()
    assert "All heads together give" in page
    classified = headlens(
        *("classify", translator, "--corpus", "en.txt", "--target", "en.txt", "--frequency", "none", "--out", "roles"),
        *("--relevance", "--rule", "logit-attribution"),
    )
    assert classified.code == 0, classified.err
    heads = pd.read_csv("roles/heads.csv")
    assert heads[heads["stack"] == "encoder"]["relevance"].isna().all()
    assert heads[heads["stack"] == "cross"]["relevance"].notna().any()


def test_json_and_the_record(run: Callable[..., Any], tiny_bert: Path) -> None:
    summary = json.loads(run("--json", "--no-figures", "--compare", "none").out)
    rows = pd.read_csv("run/relevance.csv")
    best = rows.loc[rows["relevance"].idxmax()]
    assert summary["most_relevant"][0]["relevance"] == best["relevance"]
    assert summary["correlations"] == []
    assert not Path("run/correlations.csv").exists()
    assert not Path("run/figures").exists()
    flow = summary["conservation"]["epsilon"]
    assert flow["inputs"] + flow["biases"] + flow["lost"] == pytest.approx(1)
    assert abs(flow["lost"]) < 1e-5
    record = json.loads(Path("run/run.json").read_text())
    assert record["models"][0]["conservation"]["epsilon"] == flow
    assert record["models"][0]["target"] == "embedding"
    assert record["arguments"]["compare"] == []
    assert record["arguments"]["model"] == str(tiny_bert)
    assert record["corpus"]["sentences"] == 12


def test_a_run_is_repeated_from_its_record(headlens: Headlens, run: Callable[..., Any]) -> None:
    options = ("--rule", "attnlrp", "--compare", "gradxact,epsilon", "--seed", 3, "--replicates", 100)
    assert run(*options, "--no-figures").code == 0
    done = headlens("relevance", "--config", "run/run.json", "--out", "again", "--quiet")
    assert done.code == 0, done.err
    for name in ("relevance", "correlations"):
        assert Path(f"run/{name}.csv").read_bytes() == Path(f"again/{name}.csv").read_bytes()
    done = headlens("relevance", "--resume", "run")
    assert done.code == 2
    assert "there is nothing left to do" in done.err


def test_classes_by_name(headlens: Headlens, classifier: str) -> None:
    found = {}
    for target in ("predicted", "class:good", "class:bad"):
        done = headlens(
            "relevance", classifier, "--limit", 5, "--relevance-target", target, "--out", target, "-q", "--no-figures"
        )
        assert done.code == 0, done.err
        found[target] = pd.read_csv(f"{target}/relevance.csv")
    assert set(found["class:good"]["target"]) == {"class:1"}
    assert not found["class:good"]["raw"].equals(found["class:bad"]["raw"])


@pytest.mark.parametrize("deaf", [True, False])
@pytest.mark.parametrize("name", ["BertForSequenceClassification", "GPT2LMHeadModel", "BertModel"])
def test_a_model_that_ignores_its_input_is_told_of(
    headlens: Headlens, tmp_path: Path, wordpiece_tokenizer: Tokenizer, name: str, *, deaf: bool
) -> None:
    model = build(name, len(wordpiece_tokenizer))
    if deaf:  # Every token and position is embedded alike.
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding):
                module.weight.data[:] = module.weight.data[0]
    folder = save(model, tmp_path / "model", wordpiece_tokenizer)
    done = headlens("relevance", folder, "--limit", 6, "--compare", "none", "--out", "run", "--no-figures")
    assert done.code == 0, done.err
    said = "The model gives the same output for every example (all "
    assert (said in done.err.replace("\n", " ")) == (said in done.out) == deaf
    assert (json.loads(Path("run/run.json").read_text())["notes"][0].startswith(said)) == deaf


def test_a_model_with_one_answer_is_told_of(headlens: Headlens, classifier: str, tmp_path: Path) -> None:
    """Its outputs differ, the class that is predicted does not."""
    model = BertForSequenceClassification.from_pretrained(classifier)
    model.classifier.bias.data[:] = torch.tensor([0.0, 50.0])
    model.save_pretrained(tmp_path / "biased")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "biased" / name).write_bytes((Path(classifier) / name).read_bytes())
    done = headlens("relevance", str(tmp_path / "biased"), "--limit", 6, "--out", "run", "--no-figures")
    assert done.code == 0, done.err
    said = "The model nearly always gives the same answer (100 % of what relevance started from)"
    assert said in " ".join(done.out.split())
    assert json.loads(Path("run/run.json").read_text())["notes"][0].startswith(said)


@pytest.mark.slow
def test_pairs_for_a_classifier_and_for_embeddings(headlens: Headlens, classifier: str, tiny_bert: Path) -> None:
    Path("pairs.tsv").write_text("\n".join(f"{a}\t{b}" for a in LINES for b in LINES))
    columns = ("--corpus", "pairs.tsv", "--column", 1, "--data-args", "target-column=2")
    for model, target in ((classifier, "predicted"), (tiny_bert, "similarity")):
        done = headlens("relevance", model, *columns, "--out", target, "--quiet", "--no-figures")
        assert done.code == 0, done.err
        rows = pd.read_csv(f"{target}/relevance.csv")
        assert set(rows["target"]) == {target}
        assert (rows["n"] + rows["cancelled"] == 9).all()


@pytest.mark.slow
def test_translations_given_and_written(headlens: Headlens, translator: str) -> None:
    Path("src.txt").write_text("\n".join(LINES))
    Path("tgt.txt").write_text("\n".join(LINES[::-1]))
    for name, more in (("given", ("--target", "tgt.txt")), ("written", ())):
        done = headlens("relevance", translator, "--corpus", "src.txt", *more, "--out", name, "--no-figures")
        assert done.code == 0, done.err
        assert set(pd.read_csv(f"{name}/relevance.csv")["stack"]) == {"encoder", "decoder", "cross"}
        assert set(pd.read_csv(f"{name}/correlations.csv")["stack"]) == {"encoder", "decoder", "cross", "all"}
        assert ("relevance starts at the model's own output" in done.out) == (name == "written")


@pytest.mark.slow
@pytest.mark.figures
def test_classify_takes_relevance_along(headlens: Headlens, classifier: str) -> None:
    plain = headlens("classify", classifier, "--limit", 30, "--out", "plain", "--quiet")
    assert plain.code == 0, plain.err
    done = headlens("classify", classifier, "--limit", 30, "--relevance", "--out", "run")
    assert done.code == 0, done.err
    heads, before = pd.read_csv("run/heads.csv"), pd.read_csv("plain/heads.csv")
    assert before["relevance"].isna().all()
    pd.testing.assert_frame_equal(heads.drop(columns="relevance"), before.drop(columns="relevance"))
    rows = pd.read_csv("run/relevance.csv")
    assert rows.columns.tolist() == RELEVANCE + MORE
    assert set(rows["rule"]) == {"epsilon"}
    pd.testing.assert_series_equal(heads["relevance"], rows["relevance"])
    alone = headlens(
        "relevance", classifier, "--limit", 30, "--out", "alone", "--quiet", "--compare", "none", "--no-figures"
    )
    assert alone.code == 0, alone.err
    assert Path("alone/relevance.csv").read_bytes() == Path("run/relevance.csv").read_bytes()
    drawn = {p.stem for p in Path("run/figures").glob("*.png")}
    assert {"relevance", "relevance_raw", "relevance_intervals", "confidence_relevance"} <= drawn
    assert not Path("plain/figures/confidence_relevance.png").exists()


@pytest.mark.slow
def test_two_models_and_a_report(headlens: Headlens, classifier: str, tiny_bert: Path) -> None:
    done = headlens(
        "classify", classifier, tiny_bert, "--limit", 12, "--relevance", "--out", "both", "--quiet", "--no-figures"
    )
    assert done.code == 0, done.err
    heads = pd.read_csv("both/heads.csv")
    assert heads["relevance"].notna().any()
    assert pd.read_csv("both/relevance.csv").groupby("model")["target"].first().to_dict() == {
        "judge": "predicted",
        "tiny-bert": "embedding",
    }
    assert headlens("relevance", tiny_bert, "--limit", 12, "--out", "one", "--quiet", "--no-figures").code == 0
    done = headlens("report", "one", "both", "--out", "page")
    assert done.code == 0, done.err
    page = Path("page/report.html").read_text()
    assert "Largest positive shares of their layer" in page
    assert "Confidence against relevance" in page


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (("--relevance-target", "nonsense"), ("--relevance-target nonsense", "predicted, class:LABEL")),
        (("--relevance-target", "class:1"), ("does not classify sentences", "--relevance-target auto")),
        (("--relevance-target", "similarity"), ("needs pairs", "--data-args target-column")),
        (("--compare", "lrp"), ("--compare 'lrp' is unknown", "attnlrp")),
        (("--rule", "lrp"), ("--rule", "epsilon")),
        (("--replicates", "0"), ("--replicates", "100")),
    ],
)
def test_what_is_refused(run: Callable[..., Any], arguments: tuple[str, ...], messages: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.code == 2, done.out
    assert all(m in done.err.replace("\n", " ") for m in messages), done.err
    assert "Traceback" not in done.err
    assert not Path("run/relevance.csv").exists()


def test_bad_mask_shares(headlens: Headlens, tmp_path: Path, wordpiece_tokenizer: Tokenizer) -> None:
    model = save(build("BertForMaskedLM", len(wordpiece_tokenizer)), tmp_path / "filler", wordpiece_tokenizer)
    Path("none.toml").write_text("mask-share = 0\n")
    Path("half.toml").write_text("mask-share = 0.5\n")
    done = headlens("relevance", model, "--limit", 5, "--config", "none.toml", "--out", "run")
    assert done.code == 2
    assert "mask-share 0 is not above 0" in done.err
    done = headlens("relevance", model, "--limit", 5, "--config", "half.toml", "--out", "fine", "--no-figures")
    assert done.code == 0, done.err
    assert set(pd.read_csv("fine/relevance.csv")["target"]) == {"masked"}


def test_classify_refuses_a_target_before_any_work(headlens: Headlens, tiny_bert: Path) -> None:
    done = headlens("classify", tiny_bert, "--relevance", "--relevance-target", "predicted", "--out", "run")
    assert done.code == 2
    assert "does not classify sentences" in done.err


@pytest.mark.parametrize(("more", "following"), [((), "report run"), (("--target", "b.txt"), "ablate ")])
def test_translations_are_needed_to_ablate_a_translation_model(
    headlens: Headlens, tiny_marian: Path, more: tuple[str, ...], following: str
) -> None:
    for name in ("a.txt", "b.txt"):
        Path(name).write_text("\n".join(LINES), encoding="utf-8")
    done = headlens("relevance", tiny_marian, "--corpus", "a.txt", *more, "--out", "run")
    assert done.code == 0, done.err
    assert f"Next: headlens {following}" in done.out
    assert ("--task translation-loss" in done.out) is bool(more)
