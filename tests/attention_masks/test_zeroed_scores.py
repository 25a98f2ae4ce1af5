"""Masks that multiply the scores, against attention written out in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import zoo
from tiers import rest_slow
from torch import Tensor
from transformers import PreTrainedModel
from watching import Watch, run

from headlens.attention.edits_and_observers import AttentionCall
from headlens.attention.model_normalizer import switch
from headlens.attention.normalizers import Entmax
from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.attention_masks.attention_mask import PatternMask
from headlens.attention_masks.attention_mask_edit import MaskEdit, zeroed_scores
from headlens.attention_masks.patterns import Full, Pattern, Window, parse_pattern
from headlens.errors import OptionError, UnsupportedModelError

MODELS = ["bert", "roberta", "distilbert", "modernbert", "gpt2", "llama"]


def edit_of(model: PreTrainedModel, pattern: Pattern, layers: tuple[int, ...] | None = None) -> MaskEdit:
    return MaskEdit(PatternMask(pattern), layers, find_sites(model)[0].stack)


def first_layer(model: PreTrainedModel, inputs: dict[str, Any]) -> Tensor:
    """What the output projection of the first layer reads: (batch, query, heads x d)."""
    read: list[Tensor] = []
    module = zoo.projection(model, find_sites(model)[0])
    hook = module.register_forward_pre_hook(lambda _, arguments: read.append(arguments[0]))
    run(model, inputs)
    hook.remove()
    return read[0]


def written_out(call: AttentionCall, row: int, length: int, pattern: Pattern) -> Tensor:
    """softmax(M ⊙ QKᵀ / √d) V of a sentence, query by query: (length, heads x d)."""
    allowed = pattern.allowed(length)
    query, key, value = (t[row].double() for t in (call.query, call.key_of_heads, call.value))
    groups = len(query) // len(value)
    rows = []
    for i in range(length):
        seen, outputs = i + 1 if call.causal else length, []
        for head in range(len(query)):
            scores = [float(query[head, i] @ key[head, j]) / query.shape[-1] ** 0.5 for j in range(seen)]
            masked = torch.tensor([s if allowed[i, j] else 0.0 for j, s in enumerate(scores)], dtype=torch.float64)
            outputs.append(torch.softmax(masked, dim=0) @ value[head // groups, :seen])
        rows.append(torch.cat(outputs))
    return torch.stack(rows)


@pytest.mark.parametrize("words", rest_slow(["window:1|global:1", "random:1", "full"]))
@pytest.mark.parametrize("name", rest_slow(MODELS, ["bert", "llama"]))
def test_masked_scores_are_zero(name: str, words: str) -> None:
    entry, pattern, plain = zoo.ZOO[name], parse_pattern(words), Watch(needs_weights=False)
    model, inputs = entry.build(), zoo.padded(entry)
    with AttentionSession(model, observers=[plain]):
        before = run(model, inputs)
    with zeroed_scores(model, edit_of(model, pattern)):
        found = first_layer(model, inputs)
    for row, length in enumerate(zoo.LENGTHS):
        expected = written_out(plain.calls[0], row, length, pattern)
        torch.testing.assert_close(found[row, :length].double(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(run(model, inputs), before, rtol=0, atol=0)


def test_full_masks_nothing_and_other_layers_stay_as_they_are() -> None:
    model, inputs = zoo.ZOO["bert"].build(), zoo.padded(zoo.ZOO["bert"])
    plain = run(model, inputs)
    with zeroed_scores(model, edit_of(model, Full())):
        torch.testing.assert_close(run(model, inputs), plain, rtol=0, atol=1e-5)
    lowest = first_layer(model, inputs)
    with zeroed_scores(model, edit_of(model, Window(0), (1, 2))):
        torch.testing.assert_close(first_layer(model, inputs), lowest, rtol=0, atol=1e-5)
        assert not torch.allclose(run(model, inputs), plain, atol=1e-3)


def test_what_is_masked_has_no_gradient_through_its_score() -> None:
    """Without any allowed key all are looked at alike, so that queries and keys make no difference."""
    entry = zoo.ZOO["bert"]
    model, inputs = entry.build(), {"input_ids": zoo.ids((7,), 1), "attention_mask": zoo.real((7,))}
    with zeroed_scores(model, edit_of(model, parse_pattern("random:0"))):
        model(**inputs)[0].sum().backward()
    attention = model.encoder.layer[0].attention.self
    assert not attention.query.weight.grad.any()
    assert attention.value.weight.grad.any()


def test_models_with_more_than_a_softmax_are_refused() -> None:
    switched = zoo.ZOO["bert"].build()
    switch(switched, Entmax())
    with pytest.raises(
        OptionError, match="--mask-rules zero-scores: the attention of this model is entmax15, not softmax"
    ):
        zeroed_scores(switched, edit_of(switched, Window(1))).__enter__()
    model = zoo.ZOO["gemma2"].build()
    with (
        pytest.raises(UnsupportedModelError, match="not just a softmax"),
        zeroed_scores(model, edit_of(model, Window(1))),
    ):
        run(model, zoo.padded(zoo.ZOO["gemma2"]))
    with pytest.raises(OptionError, match="there is no layer 9"):
        zeroed_scores(zoo.ZOO["bert"].build(), edit_of(zoo.ZOO["bert"].build(), Window(1), (9,))).__enter__()
