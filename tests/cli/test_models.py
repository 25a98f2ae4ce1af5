"""`headlens models` as a user runs it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, DebertaConfig, DebertaModel

from headlens.heads import layers_text

Headlens = Callable[..., Any]


def test_list(headlens: Headlens) -> None:
    done = headlens("models")
    assert done.code == 0
    for name in ("ALBERT", "Marian", "DeBERTa"):
        assert name in done.out


def test_list_all(headlens: Headlens) -> None:
    assert " albert " in headlens("models", "--all").out


def test_check(headlens: Headlens, tiny_marian: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    done = headlens("models", "check", tiny_marian)
    assert done.code == 0, done.err
    for fact in ("MarianMTModel", "encoder", "decoder", "cross", "slow tokenizer"):
        assert fact in done.out
    layers = json.loads(headlens("models", "check", tiny_marian, "--json").out)["stacks"]
    assert [(s["layers"], s["heads"]) for s in layers] == [
        (len(s["layer_heads"]), sum(s["layer_heads"])) for s in layers
    ]
    assert all(layers_text(s["layer_heads"]) in done.out for s in layers)


def test_no_next_step_where_it_would_be_refused(headlens: Headlens, tiny_bert: Path, tmp_path: Path) -> None:
    """The next step is `classify`: it is named if and only if it takes the model."""
    bare, larger = (shutil.copytree(tiny_bert, tmp_path / name) for name in ("bare", "larger"))
    for file in [*bare.glob("*token*"), *bare.glob("vocab*")]:
        file.unlink()
    tokenizer = AutoTokenizer.from_pretrained(larger)
    tokenizer.add_tokens([f"word{number}" for number in range(9)])
    tokenizer.save_pretrained(larger)
    for folder, words in ((bare, "has no tokenizer"), (larger, "It cannot read word")):
        done = headlens("models", "check", folder)
        assert (done.code, "Next:" in done.out) == (0, False), done.err
        refused = headlens("classify", folder, "--limit", 5)
        assert refused.code == 2
        told = [" ".join((done.out + done.err).split()), " ".join(refused.err.split())]
        assert all(words in text for text in told)
    named = headlens("models", "check", tiny_bert).out.split("Next: headlens ")[1].split()
    assert headlens(*named, "--limit", 5, "--no-figures").code == 0


def test_check_as_json(headlens: Headlens, tiny_bert: Path) -> None:
    found = json.loads(headlens("models", "check", tiny_bert, "--json").out)
    assert found["stacks"][0]["heads"] == 6
    assert found["parameters"] > 0


def test_a_model_that_computes_attention_itself_is_refused(headlens: Headlens, tmp_path: Path) -> None:
    config = DebertaConfig(
        vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    DebertaModel(config).save_pretrained(tmp_path / "deberta")
    done = headlens("models", "check", tmp_path / "deberta")
    assert done.code == 2
    assert "computes attention itself" in done.err
    assert "ALBERT" in done.err
