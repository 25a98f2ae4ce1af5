"""`headlens attend` as a user runs it."""

from __future__ import annotations

import base64
import json
import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from saved import build, save
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerBase

TEXT = "The children's tricycle rusted."
Headlens = Callable[..., Any]


def test_maps_equal_those_of_transformers(headlens: Headlens, tiny_bert: Path) -> None:
    done = headlens("attend", tiny_bert, "--text", TEXT, "--out", "run")
    assert done.code == 0, done.err
    maps = load_file("run/attention.safetensors")["1.encoder"]
    model = AutoModel.from_pretrained(tiny_bert, attn_implementation="eager")
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    with torch.no_grad():
        outputs = model(**tokenizer(TEXT, return_tensors="pt"), output_attentions=True)
    assert torch.equal(maps, torch.cat(outputs.attentions))
    labels = json.loads(Path("run/labels.json").read_text())["1"]["encoder"]
    assert labels["queries"] == tokenizer.convert_ids_to_tokens(tokenizer(TEXT)["input_ids"])


@pytest.mark.slow
@pytest.mark.figures
def test_every_layer_is_drawn(headlens: Headlens, tiny_bert: Path) -> None:
    assert headlens("attend", tiny_bert, "--text", TEXT, "--out", "run").code == 0
    assert {p.name for p in Path("run/figures").glob("*.png")} == {
        "sentence1_encoder_layer0.png",
        "sentence1_encoder_layer1.png",
    }


def test_word_level_rows_sum_to_one(headlens: Headlens, tiny_bert: Path) -> None:
    assert (
        headlens("attend", tiny_bert, "--text", TEXT, "--data-args", "level=word", "--layer", 1, "--out", "run").code
        == 0
    )
    maps = load_file("run/attention.safetensors")["1.encoder"]
    labels = json.loads(Path("run/labels.json").read_text())["1"]["encoder"]["keys"]
    assert labels == ["[CLS]", "The", "children's", "tricycle", "rusted", ".", "[SEP]"]
    assert maps.shape == (2, 3, 7, 7)
    torch.testing.assert_close(maps.sum(-1), torch.ones_like(maps.sum(-1)), atol=1e-6, rtol=0)


@pytest.mark.figures
def test_one_head(headlens: Headlens, tiny_bert: Path) -> None:
    assert headlens("attend", tiny_bert, "--text", TEXT, "--layer", 1, "--head", 2, "--out", "run").code == 0
    assert [p.name for p in Path("run/figures").glob("*.png")] == ["sentence1_encoder_layer1_head2.png"]


def test_three_stacks_of_a_translation(headlens: Headlens, tiny_marian: Path) -> None:
    arguments = ("--text", "A cat sold books?", "--target-text", "She cannot see it.")
    assert headlens("attend", tiny_marian, *arguments, "--out", "run").code == 0
    maps = load_file("run/attention.safetensors")
    assert set(maps) == {"1.encoder", "1.decoder", "1.cross"}
    labels = json.loads(Path("run/labels.json").read_text())["1"]["cross"]
    assert maps["1.cross"].shape == (2, 2, len(labels["queries"]), len(labels["keys"]))
    assert labels["queries"][0] == "<pad>"


def page_data(page: str = "run/attention.html") -> dict[str, Any]:
    """What the page of a run shows."""
    text = re.search(r"<template>(.*)</template>", Path(page).read_text(encoding="utf-8"), re.S)
    assert text is not None
    return json.loads(text[1])


def test_sentences_are_arguments(headlens: Headlens, tiny_bert: Path) -> None:
    done = headlens("attend", tiny_bert, TEXT, "She sold nothing.", "--no-figures", "--out", "run")
    assert done.code == 0, done.err
    assert "open run/attention.html in a browser" in done.out
    assert not Path("run/figures").exists()
    data = page_data()
    assert [one["text"] for one in data["sentences"]] == [TEXT, "She sold nothing."]
    (own,) = data["sentences"][0]["maps"]
    maps = load_file("run/attention.safetensors")["1.encoder"]
    roots = torch.frombuffer(bytearray(zlib.decompress(base64.b64decode(own["weights"]))), dtype=torch.uint8)
    torch.testing.assert_close((roots / 255).square().view_as(maps), maps, atol=1 / 255, rtol=0)
    assert own["key_groups"]["forms"] == ["[CLS]", "The", "children's", "tricycle", "rusted", ".", "[SEP]"]
    record = json.loads(Path("run/run.json").read_text())
    assert record["arguments"]["text"] == [TEXT, "She sold nothing."]
    again = headlens("attend", "--config", "run/run.json", "--out", "again")
    assert again.code == 0, again.err
    assert page_data("again/attention.html") == data


def test_without_a_sentence_an_example_is_shown_and_told(headlens: Headlens, tiny_bert: Path) -> None:
    done = headlens("attend", tiny_bert, "--no-figures", "--out", "run")
    assert "No sentence was given, and this one is shown: The quick brown fox" in " ".join(done.out.split())
    assert "No sentence" not in headlens("attend", tiny_bert, TEXT, "--no-figures", "--out", "own").out


def test_two_models_and_two_states_are_side_by_side(headlens: Headlens, tiny_bert: Path, tmp_path: Path) -> None:
    other = tmp_path / "other-bert"
    shutil.copytree(tiny_bert, other)
    assert headlens("attend", tiny_bert, other, TEXT, "--no-figures", "--out", "run").code == 0
    data = page_data()
    assert (data["states"], data["linked"]) == (["tiny-bert", "other-bert"], False)
    first, second = data["sentences"][0]["maps"]
    assert first["weights"] == second["weights"]
    more = ("--without", "encoder.0.1", "--mask", "window:3")
    assert headlens("attend", tiny_bert, TEXT, *more, "--no-figures", "--out", "states").code == 0
    data = page_data("states/attention.html")
    assert data["states"] == ["tiny-bert under window:width=3 without encoder.0.1", "tiny-bert"]
    assert data["linked"]
    masked, whole = data["sentences"][0]["maps"]
    assert (masked["missing"], whole["missing"]) == ([[0, 1]], [])
    assert whole["weights"] == first["weights"]
    done = headlens("report", "states", "run", "--out", "page")
    assert done.code == 0, done.err
    page = Path("page/report.html").read_text(encoding="utf-8")
    assert page.count('<div class="attention-view">') == 2
    assert whole["weights"] in page
    assert masked["weights"] in page


@pytest.mark.slow
@pytest.mark.figures
def test_heads_of_two_models_are_drawn_side_by_side(headlens: Headlens, tiny_bert: Path, tmp_path: Path) -> None:
    other = tmp_path / "other-bert"
    shutil.copytree(tiny_bert, other)
    one = ("--layer", 0, "--heads", "0-1")
    assert headlens("attend", tiny_bert, other, TEXT, *one, "--out", "one").code == 0
    assert [p.name for p in Path("one/figures").glob("*.png")] == ["sentence1_encoder_layer0.png"]
    drawn = Path("one/figures/sentence1_encoder_layer0.svg").read_text(encoding="utf-8")
    assert all(f"{name}, encoder.0.{head}" in drawn for name in ("tiny-bert", "other-bert") for head in (0, 1))
    assert "encoder.0.2" not in drawn


def test_queries_and_keys_are_those_of_the_chosen_heads(headlens: Headlens, tiny_bert: Path) -> None:
    assert headlens("attend", tiny_bert, TEXT, "--layer", 1, "--heads", "0,2", "--no-figures", "--out", "run").code == 0
    (own,) = page_data()["sentences"][0]["maps"]
    ((layer, heads),) = [(parts["layer"], parts["heads"]) for parts in own["scores"]]
    assert (layer, heads) == (1, [0, 2])
    kept = load_file("run/queries_keys.safetensors")
    queries, keys = kept["1.encoder.1.queries"], kept["1.encoder.1.keys"]
    weights = load_file("run/attention.safetensors")["1.encoder"][1, [0, 2]]
    made = (queries @ keys.transpose(1, 2) / queries.shape[-1] ** 0.5).softmax(-1)
    torch.testing.assert_close(made, weights, atol=1e-5, rtol=0)
    # The report of the run shows them, too.
    assert headlens("report", "run", "--out", "page").code == 0
    assert own["scores"][0]["queries"] in Path("page/report.html").read_text(encoding="utf-8")


def test_an_encoder_reads_two_texts_as_one(headlens: Headlens, tiny_bert: Path) -> None:
    arguments = ("--text", "she sold books", "--target-text", "a cat")
    assert headlens("attend", tiny_bert, *arguments, "--out", "run").code == 0
    labels = json.loads(Path("run/labels.json").read_text())["1"]["encoder"]
    assert labels["queries"] == labels["keys"] == ["[CLS]", "she", "sold", "books", "[SEP]", "a", "cat", "[SEP]"]
    assert labels["key_groups"]["texts"] == [0, 0, 0, 0, 0, 1, 1, 1]


def test_a_decoder_reads_no_two_texts(
    headlens: Headlens, tmp_path: Path, bytebpe_tokenizer: PreTrainedTokenizerBase
) -> None:
    gpt2 = save(build("GPT2LMHeadModel", len(bytebpe_tokenizer)), tmp_path / "gpt2", bytebpe_tokenizer)
    done = headlens("attend", gpt2, "--text", "a cat", "--target-text", "Ein Satz.")
    assert done.code == 2
    assert "source and a target" in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--without", "encoder.7.0"], "There is no head encoder.7.0"),
        (["--without", "2.8"], "'2.8' is not the name of a head"),
        (["second", "third"], "at most two models"),
        (["second", "--without", "encoder.0.0"], "--without removes heads from one model"),
        (["A sentence.", "--text", "Another."], "Some sentences are given as arguments"),
        (["--layer", "2"], "--layer 2 is out of range"),
        (["--layer", "0", "--head", "3"], "--head 3 is out of range"),
        (["--stack", "cross"], "--stack cross"),
        (["--text", "a", "--text", "b", "--target-text", "c"], "--target-text"),
        (["--text", "  "], "--text"),
        (["--text", "word " * 600], "longer than"),
    ],
)
def test_bad_input(headlens: Headlens, tiny_bert: Path, arguments: list[str], message: str) -> None:
    done = headlens("attend", tiny_bert, *arguments)
    assert done.code == 2, done.out
    assert message in done.err
    assert not Path("runs").exists()
