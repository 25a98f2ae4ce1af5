"""Layers that see a window of a long text: what uniform attention has there, and what a query may attend to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import zoo
from metrics.test_against_naive import Examples, trees
from tiers import rest_slow
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.attention.edits_and_observers import AttentionCall, BatchTokens, Observer
from headlens.attention.kernels import blocked_softmax
from headlens.attention.session import AttentionSession
from headlens.corpora.sentence import Example
from headlens.corpora.text import plain_sentence
from headlens.metrics.attention_view import Level
from headlens.models.loading import LoadedModel
from headlens.roles.head_roles import classify_heads
from headlens.roles.role_options import ClassifyOptions

LEVELS: tuple[Level, Level] = ("token", "word")
# Layers that look at a few tokens, and in most of these models others that look at all.
LOCAL: dict[str, zoo.Entry] = {
    **{name: zoo.ZOO[name] for name in ("modernbert", "mistral", "gemma2", "gpt-oss")},
    "llama4": zoo.Entry(
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        "decoder",
        zoo.ROTARY
        | {"attention_chunk_size": 4, "num_local_experts": 2, "intermediate_size_mlp": 40}
        | {"layer_types": ["chunked_attention", "full_attention", "chunked_attention"]},
    ),
}


def without_queries(model: PreTrainedModel) -> PreTrainedModel:
    """The model whose heads all spread their attention evenly over what they see."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name:
                parameter.zero_()
            elif "Wqkv" in name:
                parameter[: len(parameter) // 3] = 0
            elif name.endswith("sinks"):
                parameter.fill_(-1e4)
    return model


@pytest.mark.parametrize("kernel", ["eager", "fast"])
@pytest.mark.parametrize("name", rest_slow(list(LOCAL), ["modernbert", "mistral"]))
def test_even_heads_have_what_uniform_attention_has(
    name: str, kernel: Any, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    """Batches of texts shorter and longer than the window count as what they are."""
    size = {"vocab_size": len(wordpiece_tokenizer), "max_position_embeddings": 200}
    loaded = LoadedModel(name, without_queries(LOCAL[name].build(**size)), wordpiece_tokenizer, None)
    corpus = trees(8)
    options = ClassifyOptions(("nsubj",), kernel=kernel, batch_tokens=40)
    rows = classify_heads(loaded, corpus, options).tables["heads"].rows
    assert set(rows["layer"]) == set(range(3))
    compared = {c.removesuffix("_null") for c in rows if c.endswith("_null") and c.startswith(("confidence", "to_"))}
    assert {"confidence", "to_prev", "to_self", "to_first"} <= compared
    for column in compared:
        found, null = rows[column].to_numpy(float), rows[f"{column}_null"].to_numpy(float)
        np.testing.assert_allclose(found, null, rtol=1e-5, err_msg=column)
    np.testing.assert_allclose(rows[["entropy_norm", "entropy_norm_null"]], 1, rtol=1e-6)
    by_kind = rows.groupby(rows["layer"].map(dict(enumerate(kinds_of(loaded.model)))))["confidence_null"]
    levels = {kind: own.item() for kind, own in by_kind.unique().items()}  # one for all heads of a kind
    widest = levels.pop("full_attention", 0)
    assert all(level > 1.5 * widest for level in levels.values())


@pytest.mark.parametrize("name", ["modernbert", "mistral"])
def test_words_are_counted_that_a_word_sees(name: str, wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    """Of words of one token each the numbers between words are those between tokens."""
    size = {"vocab_size": len(wordpiece_tokenizer), "max_position_embeddings": 200}
    loaded = LoadedModel(name, without_queries(LOCAL[name].build(**size)), wordpiece_tokenizer, None)
    whole = sorted(word for word in wordpiece_tokenizer.get_vocab() if word.isascii() and word.isalpha())
    texts = (" ".join(whole[:10]), " ".join(whole[20:26]))
    corpus = Examples(tuple(Example(plain_sentence(text, "")) for text in texts))
    results = [classify_heads(loaded, corpus, ClassifyOptions((), level=level)) for level in LEVELS]
    assert [any(n.startswith("Measured between words") for n in result.notes) for result in results] == [False, True]
    found = [result.tables["heads"].rows for result in results]
    for column in ("entropy_norm", "entropy_norm_null", "confidence_all", "confidence_all_null", "punct_chance"):
        np.testing.assert_allclose(found[1][column], found[0][column], rtol=1e-5, err_msg=column)
    np.testing.assert_allclose(found[1]["entropy_norm"], 1, rtol=1e-5)


def kinds_of(model: PreTrainedModel) -> list[str]:
    return getattr(model.config, "layer_types", None) or ["sliding_attention"] * 3


class Seen(Observer):
    """Which keys have weight, and which a query may attend to."""

    def __init__(self) -> None:
        self.windows: dict[int, tuple[int | None, bool]] = {}

    def observe(self, call: AttentionCall) -> None:
        assert call.weights is not None
        assert call.queries is not None
        n = call.query.shape[2]
        every = torch.ones(n, call.key.shape[2], dtype=torch.bool).tril() if call.causal else torch.ones(n, n).bool()
        allowed = every if call.allowed is None else call.allowed
        real = call.queries.real[:, None]
        same = (call.weights > 0) == (allowed & real[:, :, None])
        assert same[real.expand(len(real), call.weights.shape[1], n)].all(), call.site
        self.windows[call.site.layer] = call.window, call.allowed is not None


@pytest.mark.parametrize("length", [3, 9])
@pytest.mark.parametrize("name", LOCAL)
def test_keys_in_sight_are_those_that_have_weight(name: str, length: int) -> None:
    entry, lengths = LOCAL[name], (length, length - 1)
    model, tokens = entry.build(), zoo.tokens(lengths)
    observer = Seen()
    batch = BatchTokens(encoder=tokens) if entry.kind == "encoder" else BatchTokens(decoder=tokens)
    with AttentionSession(model, observers=[observer]) as session, session.batch(batch), torch.no_grad():
        model(input_ids=zoo.ids(lengths, 1), attention_mask=zoo.real(lengths), use_cache=False)
    for layer, (window, is_shown) in observer.windows.items():
        assert (window is None) == (kinds_of(model)[layer] == "full_attention")
        # Encoders may count both sides: a mask that hides nothing does no harm.
        assert is_shown == (window is not None and length > window // (2 if entry.kind == "encoder" else 1))


def test_parts_of_a_text_keep_their_window(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = set[int]()

    class Parts(Observer):
        parts = parts_of_sentences = True

        def observe(self, call: AttentionCall) -> None:
            starts.add(call.start)
            assert call.allowed is not None
            assert call.weights is not None
            assert call.allowed.shape[2:] == call.weights.shape[2:]
            assert torch.equal(call.weights > 0, call.allowed.expand_as(call.weights))

    monkeypatch.setattr(blocked_softmax, "BLOCK", {"cpu": 1, "other": 1})
    monkeypatch.setattr(blocked_softmax, "FEWEST_QUERIES", 3)
    model = LOCAL["mistral"].build()
    session = AttentionSession(model, observers=[Parts()], kernel="fast")
    with session, session.batch(BatchTokens(decoder=zoo.tokens((9, 9)))), torch.no_grad():
        model(input_ids=zoo.ids((9, 9), 1), use_cache=False)
    assert starts == {0, 3, 6}
