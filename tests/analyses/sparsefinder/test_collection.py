"""Queries and keys of a corpus, collected through the same feed as everything else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from made_tasks import text
from transformers import PreTrainedTokenizerBase

from headlens.analyses.sparsefinder.query_key_store import collect
from headlens.attention.model_normalizer import switch
from headlens.attention.normalizers import Entmax
from headlens.corpora.corpus_options import CorpusOptions
from headlens.corpora.sentence import Corpus
from headlens.corpora.sources import open_corpus
from headlens.errors import CorpusError
from headlens.models.loading import LoadedModel


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{text(n)}\n" for n in range(30)), encoding="utf-8")
    return open_corpus(str(path), CorpusOptions())


@pytest.fixture
def loaded(wordpiece_tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    from made_tasks import build

    model = build("BertModel", len(wordpiece_tokenizer), max_position_embeddings=60)
    switch(model, Entmax())
    return LoadedModel("tiny", model.eval(), wordpiece_tokenizer, None)


def test_every_sentence_is_there_whatever_the_batches(loaded: LoadedModel, corpus: Corpus, tmp_path: Path) -> None:
    kept = []
    for tokens in (40, 4000):
        store = collect(loaded, corpus, tmp_path / f"store-{tokens}", batch_tokens=tokens)
        assert store.sites() == ["encoder.0", "encoder.1"]
        rows = list(store.batches("encoder.1", 1))
        assert len(rows) == 30
        # Batches are of sentences of alike length: the order is theirs.
        kept.append(sorted(rows, key=lambda own: (own.queries.shape[2], own.queries.double().sum().item())))
    for one, other in zip(*kept, strict=True):
        assert torch.allclose(one.queries, other.queries, atol=2e-3)
        assert bool(one.gold.any(dim=-1).all())


def test_a_corpus_of_nothing(loaded: LoadedModel, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("cat " * 100 + "\n", encoding="utf-8")
    with pytest.raises(CorpusError, match="the model can read no sentence"):
        collect(loaded, open_corpus(str(tmp_path / "long.txt"), CorpusOptions()), tmp_path / "store")
