"""Antecedents of mentions: which pairs there are, by hand, and what heads find of them, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from made_tasks import build
from saved import Memory, sentence
from transformers import PreTrainedTokenizerBase

from headlens.analyses.sparsefinder.contents import antecedents
from headlens.analyses.sparsefinder.pareto_points import joined_sites
from headlens.analyses.sparsefinder.predictors import pattern_predictor
from headlens.analyses.sparsefinder.query_key_store import QueryKeyStore, collect
from headlens.attention.model_normalizer import switch
from headlens.attention.normalizers import Entmax
from headlens.attention_masks.patterns import Window
from headlens.corpora.sentence import Example
from headlens.errors import OptionError
from headlens.models.loading import LoadedModel
from headlens.tables.sparsefinder_tables import ANTECEDENTS

# What is told of a mention: its word, the nearest earlier one of the same entity, and how many words are between.
SENTENCES = [
    ("the unbelievable cats see it and they sleep", {2: ("a",), 4: ("b",), 6: ("a",)}, [("they", "cats", 2, 6)]),
    ("it rains", {0: ("a",)}, []),
    ("cats see cats see cats", {0: ("a", "b"), 2: ("a",), 4: ("b",)}, [("cats", "cats", 0, 2), ("cats", "cats", 0, 4)]),
    ("a cat sleeps", {}, []),
    ("she sees her cat near her", {0: ("a",), 2: ("a",), 5: ("a",)}, [("her", "she", 0, 2), ("her", "her", 2, 5)]),
]


def entities(text: str, named: dict[int, tuple[str, ...]]) -> Example:
    plain = sentence(text)
    words = tuple(replace(w, entities=named.get(n, ())) for n, w in enumerate(plain.words))
    return Example(replace(plain, words=words))


@pytest.fixture(params=[30, 4000])
def store(
    request: pytest.FixtureRequest, wordpiece_tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> tuple[QueryKeyStore, LoadedModel]:
    model = build("BertModel", len(wordpiece_tokenizer), max_position_embeddings=60)
    switch(model, Entmax())
    loaded = LoadedModel("tiny", model.eval(), wordpiece_tokenizer, None)
    # More than one batch of the store, too.
    corpus = Memory([entities(text, named) for _ in range(5) for text, named, _ in SENTENCES])
    return collect(loaded, corpus, tmp_path / "store", batch_tokens=request.param), loaded


def places(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> list[list[int]]:
    """The tokens of every word, behind [CLS]."""
    found, start = [], 1
    for word in words:
        n = len(tokenizer.tokenize(word))
        found.append(list(range(start, start + n)))
        start += n
    return found


def test_pairs_of_words_token_by_token(store: tuple[QueryKeyStore, LoadedModel]) -> None:
    own, loaded = store
    predictor = pattern_predictor(Window(3))
    table = antecedents(own, "encoder.1", predictor)
    assert table.columns.tolist() == ANTECEDENTS.names[3:-1]
    expected = []
    for text, _, pairs in SENTENCES * 5:
        tokens = places(loaded.tokenizer, text.split())
        with torch.inference_mode():
            maps = loaded.model(**loaded.tokenizer(text, return_tensors="pt"), output_attentions=True).attentions
        for mention, antecedent, earlier, later in pairs:
            for head in range(maps[1].shape[1]):
                weights = [float(maps[1][0, head, i, j]) for i in tokens[later] for j in tokens[earlier]]
                near = any(abs(i - j) <= 3 for i in tokens[later] for j in tokens[earlier])
                apart = tokens[later][0] - tokens[earlier][0]
                expected.append((head, mention, antecedent, apart, int(max(weights) > 0), int(near), max(weights)))
    found = table[["head", "mention", "antecedent", "distance", "gold", "predicted", "weight"]]
    rows = sorted(found.itertuples(index=False, name=None))
    assert [row[:-1] for row in rows] == [row[:-1] for row in sorted(expected)]
    assert [row[-1] for row in rows] == pytest.approx([row[-1] for row in sorted(expected)], abs=1e-3)
    assert len(table) == 5 * 5 * 2
    assert table["predicted"].nunique() == 2
    both = joined_sites({site: antecedents(own, site, predictor) for site in ("encoder.0", "encoder.1")})
    assert both.groupby("layer").size().to_dict() == {0: 50, 1: 50}


def test_without_mentions_there_is_nothing(store: tuple[QueryKeyStore, LoadedModel], tmp_path: Path) -> None:
    own, loaded = store
    bare = collect(loaded, Memory([Example(sentence("a cat sleeps"))]), tmp_path / "bare")
    assert not list(bare.folder.glob("*.antecedents"))
    assert antecedents(bare, "encoder.0", pattern_predictor(Window(1))).empty
    assert antecedents(own, "cross.0", pattern_predictor(Window(1))).empty
    (own.folder / "source.antecedents").write_text("nothing", encoding="utf-8")
    with pytest.raises(OptionError, match=r"source\.antecedents cannot be read"):
        antecedents(own, "encoder.0", pattern_predictor(Window(1)))
