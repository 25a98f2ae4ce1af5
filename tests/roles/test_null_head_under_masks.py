"""Under a mask uniform attention is that over what the mask allows: a model without queries attends exactly so."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from saved import build
from tiers import rest_slow_rows
from transformers import PreTrainedTokenizerBase

import headlens
from headlens.models.loading import LoadedModel

TEXTS = ["The old cat sees a house, and sleeps.", "Dogs bark.", "She cannot see it today, it rains."]


def without_queries(kind: str, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    """A model all of whose scores are 0."""
    model = build(kind, len(tokenizer), pad_token_id=0).eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if ".query." in name or ".q_proj." in name:
                weights.zero_()
            elif ".c_attn." in name:
                weights[..., : weights.shape[-1] // 3] = 0
    return LoadedModel("tiny", model, tokenizer, None)


@pytest.mark.parametrize(
    ("kind", "mask", "rules"),
    rest_slow_rows(
        [
            ("BertModel", "window:1", "layers=1"),
            ("BertModel", "window:1", ""),
            ("BertModel", "star", "no-diagonal"),
            ("GPT2Model", "window:2", ""),
            ("MarianMTModel", "window:1", ""),
        ]
    ),
)
def test_heads_of_uniform_attention_have_what_the_null_head_has(
    kind: str, mask: str, rules: str, wordpiece_tokenizer: PreTrainedTokenizerBase
) -> None:
    loaded, settings = without_queries(kind, wordpiece_tokenizer), {"no_diagonal": True} if "no" in rules else {}
    if rules.startswith("layers"):
        settings["layers"] = "1"
    result = headlens.classify(loaded, TEXTS, mask=mask, similarity="off", frequency="none", **settings)
    heads = result.tables["heads"]
    for name in ("to_prev", "to_next", "to_self", "to_first", "to_sep"):
        np.testing.assert_allclose(heads[name], heads[f"{name}_null"], rtol=1e-6, equal_nan=True, err_msg=name)
    np.testing.assert_allclose(heads["punct_chance"], heads["to_punct"], rtol=1e-6)
    np.testing.assert_allclose(heads["entropy_norm"], 1, rtol=1e-6)
    # Nothing is learned here, under a mask or not.
    assert any("evenly" in finding for finding in result.findings)
    assert (heads["role"] == "").all()


def test_the_null_head_is_another_one_under_a_mask(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded = without_queries("BertModel", wordpiece_tokenizer)
    plain, masked = (
        headlens.classify(loaded, TEXTS, mask=mask, similarity="off", frequency="none").tables["heads"]
        for mask in (None, "window:1")
    )
    assert (masked["to_prev_null"] > 2 * plain["to_prev_null"]).all()
