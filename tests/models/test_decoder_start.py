"""The token that decoders start with: that of `generate`, from whichever file it comes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from saved import build, save
from tiers import rest_slow, rest_slow_rows

from headlens.errors import ModelError
from headlens.models.loading import LoadedModel, load

MARIAN, BART, T5 = "MarianMTModel", "BartForConditionalGeneration", "T5ForConditionalGeneration"
ENDS: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 3}


def saved(folder: Path, kind: str, config: dict[str, Any], generation: dict[str, Any] | None) -> str:
    """A model whose files have only these tokens."""
    model = build(kind, **ENDS, **({} if kind == T5 else {"forced_eos_token_id": 3}), decoder_start_token_id=5)
    name = save(model, folder)
    path = folder / "config.json"
    content = json.loads(path.read_text()) | {"decoder_start_token_id": None, "bos_token_id": None} | config
    if kind.startswith("Marian") and content["decoder_start_token_id"] is None:  # which Marian refuses
        del content["decoder_start_token_id"]
    path.write_text(json.dumps(content))
    place = folder / "generation_config.json"
    if generation is None:
        place.unlink(missing_ok=True)
    else:
        place.write_text(json.dumps({**ENDS, **generation}))
    return name


def start_of_generate(model: Any) -> int:
    with torch.no_grad():
        return int(model.generate(torch.tensor([[8, 9]]), max_new_tokens=2, num_beams=1, do_sample=False)[0, 0])


@pytest.mark.parametrize("kind", rest_slow([MARIAN, BART, T5], [BART]))
@pytest.mark.parametrize(
    ("config", "generation"),
    rest_slow_rows(
        [
            ({"decoder_start_token_id": 5}, None),
            ({"decoder_start_token_id": 5, "bos_token_id": 4}, None),
            ({"decoder_start_token_id": 5}, {"decoder_start_token_id": 5}),
            ({"decoder_start_token_id": 5}, {"decoder_start_token_id": 7}),
            ({"decoder_start_token_id": 5}, {"decoder_start_token_id": [7]}),
            ({"bos_token_id": 4}, {"decoder_start_token_id": 7}),
            ({}, {"decoder_start_token_id": 7, "bos_token_id": 6}),
            ({}, {"bos_token_id": 6}),
            ({"bos_token_id": 4}, {"bos_token_id": 6}),
            ({"bos_token_id": 4}, None),
        ],
        4,
    ),
)
def test_it_is_where_generate_starts(
    tmp_path: Path, kind: str, config: dict[str, Any], generation: dict[str, Any] | None
) -> None:
    if kind == MARIAN and "decoder_start_token_id" not in config and "decoder_start_token_id" not in (generation or {}):
        pytest.skip("Marian's own start is beyond this vocabulary, see below")
    folder = saved(tmp_path / "model", kind, config, generation)
    expected = start_of_generate(getattr(transformers, kind).from_pretrained(folder))
    loaded = load(folder)
    assert loaded.decoder_start_id == expected == start_of_generate(loaded.model)
    two = torch.tensor([[8, 9], [9, 8]])
    model: Any = loaded.model
    assert model.generate(two, max_new_tokens=2)[:, 0].tolist() == [expected, expected]


@pytest.mark.parametrize("kind", ["MarianModel", "BartModel", "T5Model"])
@pytest.mark.parametrize("token", [7, [7]])
def test_a_class_that_cannot_generate(tmp_path: Path, kind: str, token: object) -> None:
    folder = saved(tmp_path / "model", kind, {"decoder_start_token_id": 5}, {"decoder_start_token_id": token})
    assert load(folder).decoder_start_id == 7


@pytest.mark.parametrize("kind", [MARIAN, BART, "MarianModel"])
def test_files_that_differ_are_told(tmp_path: Path, kind: str) -> None:
    folder = saved(tmp_path / "model", kind, {"decoder_start_token_id": 5}, {"decoder_start_token_id": 7})
    (note,) = load(folder).notes
    assert note == ("The decoder starts with token 5 by config.json, with 7 by generation_config.json: 7 is used.")


@pytest.mark.parametrize("kind", [MARIAN, BART])
def test_what_training_starts_with_goes_before_what_begins_sentences(tmp_path: Path, kind: str) -> None:
    """generate would start with the token 6, which no decoder has read first."""
    folder = saved(tmp_path / "model", kind, {"decoder_start_token_id": 5}, {"bos_token_id": 6})
    loaded = load(folder)
    assert loaded.decoder_start_id == 5 == start_of_generate(loaded.model)
    assert "with 6 by generation_config.json: 5 is used." in loaded.notes[0]


@pytest.mark.parametrize("tokens", [[5, 7], []])
def test_several_tokens_are_refused(tmp_path: Path, tokens: list[int]) -> None:
    folder = saved(tmp_path / "model", BART, {"decoder_start_token_id": 5}, {"decoder_start_token_id": tokens})
    with pytest.raises(ModelError, match=r"decoder_start_token_id is \[.*\]\.\nA decoder starts with one token"):
        load(folder)


def test_no_token(tmp_path: Path) -> None:
    loaded = load(saved(tmp_path / "model", BART, {}, None))
    with pytest.raises(ModelError, match=r"does not say which token its decoder starts with\.\nWrite decoder_start"):
        _ = loaded.decoder_start_id


def test_a_token_without_an_embedding(tmp_path: Path) -> None:
    """Marian's configuration has the start of its first models, 58100, where config.json says nothing."""
    loaded = load(saved(tmp_path / "model", MARIAN, {}, None))
    with pytest.raises(ModelError, match=r"decoder starts with token 58100, but there are 60 embeddings\.\nWrite"):
        _ = loaded.decoder_start_id


def test_a_model_from_memory() -> None:
    assert LoadedModel("tiny", build(BART, decoder_start_token_id=5), None, None).decoder_start_id == 5
