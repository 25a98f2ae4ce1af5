"""A padding token without an embedding: a text without it is read, one with it is refused."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from saved import Memory, build, save, sentence
from tiers import rest_slow
from transformers import PreTrainedTokenizerBase

from headlens.corpora.sentence import Example
from headlens.errors import ModelError
from headlens.learning.training_text import read_blocks
from headlens.models.loading import LoadedModel, load
from headlens.models.unembedded_padding import UnembeddedPadding
from headlens.roles.head_roles import classify_heads
from headlens.tasks.reader import Reader

KINDS = ["GPT2LMHeadModel", "BertForMaskedLM", "BartForConditionalGeneration"]
REFUSED = r"a text contains '.*', the padding token of the tokenizer, for which the model has no embedding\."


EVERY = [(kind, token) for kind in KINDS for token in (" ", "[NOTHING]", "bookses")]


@pytest.fixture(params=rest_slow(EVERY, [("BartForConditionalGeneration", " ")]))
def loaded(request: Any, tmp_path: Path, wordpiece_tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    """A model whose padding token is the first one beyond its embeddings."""
    kind, token = request.param
    tokenizer = copy.deepcopy(wordpiece_tokenizer)
    words = len(tokenizer)
    tokenizer.add_special_tokens({"pad_token": token})
    assert tokenizer.pad_token_id == words
    return load(save(build(kind, words), tmp_path / "model", tokenizer))


def texts(loaded: LoadedModel) -> tuple[list[str], list[str]]:
    """Words without the padding token, and with it."""
    assert loaded.tokenizer is not None
    token = str(loaded.tokenizer.pad_token)
    return ["books"], ["the", "books"] if token == " " else ["the", token]


def test_a_corpus(loaded: LoadedModel) -> None:
    without, with_it = texts(loaded)
    assert classify_heads(loaded, Memory([Example(sentence(" ".join(without)))])).tables
    with pytest.raises(ModelError, match=REFUSED):
        classify_heads(loaded, Memory([Example(sentence(" ".join(with_it)))]))


def test_examples_of_a_task_and_text_to_train_on(loaded: LoadedModel) -> None:
    without, with_it = texts(loaded)
    reader = Reader.of(replace(loaded))
    for words, refused in ((without, False), (with_it, True)):
        row = reader.sequence(" ".join(words))
        (block,) = read_blocks([" ".join(words)], reader.tokenizer, 20)
        assert row is not None
        for ids in (row.ids, block.tolist()):
            rows = torch.tensor([ids])
            if refused:
                with pytest.raises(ModelError, match=REFUSED):
                    loaded.model(input_ids=rows)
            else:
                loaded.model(input_ids=rows)


def test_a_table_is_watched_once_and_only_where_it_is_needed(
    loaded: LoadedModel, tmp_path: Path, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    def hooks(model: torch.nn.Module) -> list[Any]:
        every = [hook for m in model.modules() for hook in m._forward_pre_hooks.values()]
        return [hook for hook in every if isinstance(hook, UnembeddedPadding)]

    before = len(hooks(loaded.model))
    assert before
    replace(loaded)
    assert len(hooks(loaded.model)) == before
    folder = save(build("BertModel", len(wordpiece_tokenizer)), tmp_path / "whole", wordpiece_tokenizer)
    assert not hooks(load(folder).model)
