"""What stays as it is when a model is trained."""

from __future__ import annotations

import pytest
import zoo
from saved import build

from headlens.errors import OptionError
from headlens.models.freezing import freeze


def trained(name: str, *parts: str) -> set[str]:
    model = zoo.ZOO[name].build()
    freeze(model, parts)
    return {n for n, p in model.named_parameters() if p.requires_grad}


def test_parts_of_an_encoder() -> None:
    whole = trained("bert-classifier")
    assert whole - trained("bert-classifier", "encoder") == {n for n in whole if n.startswith("bert.encoder.")}
    assert whole - trained("bert-classifier", "embeddings") == {n for n in whole if n.startswith("bert.embeddings.")}
    assert whole - trained("bert-classifier", "head") == {n for n in whole if not n.startswith("bert.")}
    assert trained("bert-classifier", "all") == set()
    assert trained("albert", "encoder") == {n for n in trained("albert") if not n.startswith("encoder.")}
    assert not [n for n in trained("distilbert", "encoder") if n.startswith("transformer.")]


def test_parts_of_a_translator_with_what_they_share() -> None:
    whole = trained("marian")
    left = trained("marian", "decoder")
    assert left == {n for n in whole if n.startswith("model.encoder.") and "embed" not in n}
    assert trained("marian", "decoder", "encoder") == set()
    assert not [n for n in trained("marian", "embeddings") if "shared" in n or "embed_tokens" in n]
    assert [n for n in trained("marian", "embeddings") if n.startswith("model.decoder.layers.")]


def test_parts_that_are_not_there() -> None:
    with pytest.raises(
        OptionError, match=r"--training-args freeze pooler: unknown part\.\nParts: encoder, decoder, emb"
    ):
        trained("bert", "pooler")
    with pytest.raises(OptionError, match="--training-args freeze decoder: BertModel has no such weights"):
        trained("bert", "decoder")
    with pytest.raises(OptionError, match="--training-args freeze head: BertModel has no such weights"):
        freeze(build("BertModel"), ["head"])
