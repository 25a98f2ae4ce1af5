"""Text of token ids for models without a tokenizer, and tokenizers that have no token for unknown words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from saved import build, save
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import headlens as package
from headlens.corpora.alignment import known_word, tokenize
from headlens.errors import CorpusError, OptionError
from headlens.models.loading import load
from headlens.models.model_options import ModelOptions

Run = Callable[..., Any]
IDS = ModelOptions(tokenizer="ids")
WORDS = ["ab", "cd", "ef", "gh"]
CLOSED: dict[str, Callable[[], Any]] = {
    "WordLevel": lambda: models.WordLevel({word: i for i, word in enumerate(WORDS)}),
    "WordPiece": lambda: models.WordPiece({word: i for i, word in enumerate(WORDS)}),
    "Unigram": lambda: models.Unigram([*((word, -1.0) for word in WORDS), *((c, -9.0) for c in "abcdefgh")]),
}


def closed(kind: str) -> PreTrainedTokenizerFast:
    backend = Tokenizer(CLOSED[kind]())
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def texts(folder: Path, *lines: str) -> str:
    (folder / "texts.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / "texts.txt")


def test_attention_is_that_of_the_ids(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 90, (4, 9))
    model = build("LlamaForCausalLM", 90)
    folder, path = save(model, tmp_path / "m"), texts(tmp_path, *(" ".join(map(str, row)) for row in rows))
    found = package.classify(folder, corpus=path, tokenizer="ids", frequency="none").tables["heads"]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = torch.stack(model.double().eval()(torch.tensor(rows), output_attentions=True).attentions)
    expected = weights.max(-1).values.mean((1, 3)).flatten()
    assert found["confidence_all"].to_numpy() == pytest.approx(expected.numpy(), abs=1e-6)
    assert len(found) == 4


@pytest.mark.parametrize("word", ["90", "-1", "1.0", "the", "７"])
def test_what_is_no_id_is_refused_and_named(tmp_path: Path, word: str) -> None:
    loaded = load(save(build("LlamaModel", 90), tmp_path / "m"), IDS)
    assert tokenize(loaded.tokenizer, "89 0  5").ids == (89, 0, 5)  # type: ignore[arg-type]
    with pytest.raises(CorpusError, match=f"does not know '{word}'"):
        tokenize(loaded.tokenizer, f"5 6 {word}")  # type: ignore[arg-type]


def test_a_model_without_tokens_has_no_ids(tmp_path: Path) -> None:
    folder = save(build("ViTModel", 90, image_size=8, patch_size=4), tmp_path / "m")
    with pytest.raises(OptionError, match="no embeddings of tokens"):
        load(folder, IDS)


@pytest.mark.parametrize("kind", CLOSED)
def test_a_vocabulary_without_unknown_words_reads_its_own(headlens: Run, tmp_path: Path, kind: str) -> None:
    tokenizer = closed(kind)
    folder = save(build("LlamaForCausalLM", len(tokenizer)), tmp_path / "m", tokenizer)
    loaded = load(folder)
    assert tokenize(loaded.tokenizer, "gh ab").ids == (3, 0)  # type: ignore[arg-type]
    assert tokenizer(known_word(tokenizer))["input_ids"]
    path = texts(tmp_path, "ab cd", "ef zz gh")
    for command in (("classify", folder, "--corpus", path), ("ablate", folder, "--data", path)):
        refused = headlens(*command, "--out", str(tmp_path / "run"))
        assert refused.code == 2
        assert "does not know 'zz'" in refused.err


def test_training_refuses_words_that_are_unknown_too(headlens: Run, tmp_path: Path) -> None:
    tokenizer = closed("WordLevel")
    folder, path = save(build("LlamaForCausalLM", 4), tmp_path / "m", tokenizer), texts(tmp_path, "ab cd ef", "gh zz")
    refused = headlens("train", folder, "--task", "causal-lm", "--corpus", path, "--out", str(tmp_path / "run"))
    assert refused.code == 2
    assert "does not know 'zz'" in refused.err
