"""Every rule against a reference that writes all contributions out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import zoo
from naive_relevance import NaiveBert, relevance
from tiers import rest_slow
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel

from headlens.relevance_propagation.relevance_options import RULES
from headlens.relevance_propagation.relevance_session import RelevanceSession
from headlens.relevance_propagation.targets import Inputs, PredictedClass

IDS = [[2, 17, 9, 41, 23, 3], [2, 30, 3], [2, 8, 8, 55, 3]]


def tiny(seed: int) -> PreTrainedModel:
    config = BertConfig(
        vocab_size=60,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=10,
        num_labels=3,
    )
    return zoo.randomized(BertForSequenceClassification(config), seed).double()


def naive(model: PreTrainedModel) -> NaiveBert:
    state = {k: v.numpy() for k, v in model.state_dict().items()}
    return NaiveBert(state, n_layers=2, n_heads=2, eps=model.config.layer_norm_eps)


@pytest.mark.parametrize("ids", IDS, ids=len)
@pytest.mark.parametrize("seed", rest_slow([0, 1], [0]))
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_equals_contributions_written_out(rule: str, seed: int, ids: list[int]) -> None:
    model = tiny(seed)
    expected, at_inputs = relevance(naive(model), ids, rule)
    with RelevanceSession(model, PredictedClass(), rule) as session:
        found = session.relevance({"input_ids": torch.tensor([ids])})
    heads = np.stack([found.raw[site][0].numpy() for site in session.sites])
    np.testing.assert_allclose(heads, expected, rtol=1e-8, atol=1e-10)
    if rule in ("epsilon", "attnlrp", "logit-attribution"):
        assert found.inputs == pytest.approx(at_inputs.sum(), rel=1e-8)


class EveryClass(PredictedClass):
    def parts(self, outputs: Any, inputs: Inputs) -> Tensor:
        logits: Tensor = outputs.logits
        return logits


@pytest.mark.parametrize("rule", RULES)
def test_logits_of_both_signs_start_together(rule: str) -> None:
    """Only so can relevance cancel under alpha-beta, whose shares are never negative; with this seed it does."""
    model = tiny(3)
    expected, _ = relevance(naive(model), IDS[0], rule, every=True)
    with RelevanceSession(model, EveryClass(), rule) as session:
        found = session.relevance({"input_ids": torch.tensor([IDS[0]])})
    logits = model(input_ids=torch.tensor([IDS[0]])).logits
    assert logits.min() < 0 < logits.max()
    heads = np.stack([found.raw[site][0].numpy() for site in session.sites])
    np.testing.assert_allclose(heads, expected, rtol=1e-8, atol=1e-10)


def test_the_reference_runs_the_same_model() -> None:
    model = tiny(3)
    logits = model(input_ids=torch.tensor([IDS[0]])).logits[0].detach().numpy()
    np.testing.assert_allclose(naive(model).forward(IDS[0]).real, logits, rtol=1e-12)
