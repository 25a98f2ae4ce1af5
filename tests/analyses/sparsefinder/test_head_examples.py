"""Heads on a sentence, against the model's own weights and graphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from made_tasks import build
from saved import Memory, sentence
from transformers import PreTrainedTokenizerBase

from headlens.analyses.sparsefinder.predictors import Predictor, empty_predictor, pattern_predictor
from headlens.analyses.sparsefinder.tables import example_heads
from headlens.attention.model_normalizer import switch
from headlens.attention.normalizers import Entmax
from headlens.attention_masks.patterns import Window
from headlens.corpora.sentence import Example
from headlens.heads import Head
from headlens.maps.sentence_attention import shown_examples
from headlens.models.loading import LoadedModel
from headlens.tables.sparsefinder_tables import EXAMPLES_OF_HEADS

TEXT = "the old cat sees a red house near the river"


@pytest.fixture
def loaded(wordpiece_tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    model = build("BertModel", len(wordpiece_tokenizer), max_position_embeddings=60)
    switch(model, Entmax())
    return LoadedModel("tiny", model.eval(), wordpiece_tokenizer, None)


@pytest.mark.parametrize("predictor", [lambda: pattern_predictor(Window(1)), empty_predictor])
def test_weights_before_and_after(loaded: LoadedModel, predictor: Callable[[], Predictor]) -> None:
    heads = [Head("encoder", 1, 0), Head("encoder", 0, 1)]
    predictors = {f"encoder.{layer}": predictor() for layer in (0, 1)}
    found = example_heads(loaded, Example(sentence(TEXT)), predictors, heads)
    assert found.columns.tolist() == EXAMPLES_OF_HEADS.names[1:11]
    inputs = loaded.tokenizer(TEXT, return_tensors="pt")
    n = inputs["input_ids"].shape[1]
    words = loaded.tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist())
    assert len(found) == len(heads) * n * n
    with torch.inference_mode():
        maps = loaded.model(**inputs, output_attentions=True).attentions
    for head in heads:
        own = found[(found["layer"] == head.layer) & (found["head"] == head.head)]
        weights = own.pivot_table(index="query", columns="key", values="weight").to_numpy()
        if maps:  # as transformers tells it, where it can
            assert weights == pytest.approx(maps[head.layer][0, head.head].numpy(), abs=1e-5)
        assert own.drop_duplicates("key")["key_token"].tolist() == words
        graph = own.pivot_table(index="query", columns="key", values="predicted").to_numpy()
        near = np.abs(np.subtract.outer(np.arange(n), np.arange(n))) <= 1
        assert (graph == (near if predictor is not empty_predictor else 0)).all()
        restricted = own.pivot_table(index="query", columns="key", values="restricted").to_numpy()
        assert restricted.sum(axis=1) == pytest.approx(1, abs=1e-5)
        # A query without any predicted key looks at itself.
        allowed = graph > 0 if graph.any() else np.eye(n, dtype=bool)
        assert (restricted[~allowed] == 0).all()
        inside = (weights > 0) <= allowed
        for i in np.flatnonzero(inside.all(axis=1)):
            assert restricted[i] == pytest.approx(weights[i], abs=1e-5)


def test_a_sentence_that_can_be_looked_at(loaded: LoadedModel) -> None:
    short, long = sentence("a cat"), sentence(" ".join(["cat"] * 40))
    good = Example(sentence(TEXT))
    corpus = Memory([Example(short), Example(long), good, Example(short), good, good])
    assert shown_examples(corpus, loaded) == [good]
    assert shown_examples(corpus, loaded, 2) == [good, good]
    assert shown_examples(Memory([Example(short), Example(long)]), loaded) == []
