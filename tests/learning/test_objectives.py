"""Losses add up over units."""

from __future__ import annotations

import pytest
import torch
from made_training import ModelLoss
from saved import build
from torch import nn

from headlens.learning.objectives import IGNORED, MaskedTokenLoss, SmoothedTokens, parameter_groups

IDS = torch.tensor([[5, 6, 7, 8], [9, 10, 1, 1]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])


@pytest.mark.parametrize(
    ("name", "labels", "units"),
    [
        ("BertForSequenceClassification", torch.tensor([0, 1]), 2),
        ("BertForMaskedLM", torch.tensor([[IGNORED, 3, IGNORED, 4], [2, IGNORED, IGNORED, IGNORED]]), 3),
        ("BertForTokenClassification", torch.tensor([[0, 1, 1, 0], [1, 0, IGNORED, IGNORED]]), 6),
    ],
)
def test_the_loss_of_a_batch_is_the_sum_of_its_rows(name: str, labels: torch.Tensor, units: int) -> None:
    model = build(name).double()
    inputs = {"input_ids": IDS, "attention_mask": MASK, "labels": labels}
    objective = ModelLoss()
    rows = [{k: v[i : i + 1] for k, v in inputs.items()} for i in range(2)]
    assert objective.units(inputs) == units == sum(map(objective.units, rows))
    whole = objective.loss(model, inputs)
    parts = sum((objective.loss(model, row) for row in rows), torch.tensor(0.0))
    torch.testing.assert_close(whole, parts.double(), rtol=1e-9, atol=0)


def test_regression_and_questions() -> None:
    scores = {"input_ids": IDS, "attention_mask": MASK, "labels": torch.tensor([0.5, 2.0])}
    model = build("BertForSequenceClassification", num_labels=1)
    assert ModelLoss().units(scores) == 2
    expected = ((model(IDS, MASK).logits[:, 0] - scores["labels"]) ** 2).sum()
    torch.testing.assert_close(ModelLoss().loss(model, scores), expected)
    spans = {"input_ids": IDS, "start_positions": torch.tensor([1, 0]), "end_positions": torch.tensor([2, 0])}
    assert ModelLoss().units(spans) == 2
    assert torch.isfinite(ModelLoss().loss(build("BertForQuestionAnswering"), spans))


@pytest.mark.parametrize("kind", ["Bert", "Albert", "Roberta", "DistilBert", "Electra", "ModernBert"])
def test_masked_tokens_are_the_models_own_loss(kind: str) -> None:
    labels = torch.tensor([[IGNORED, 3, IGNORED, 4], [2, IGNORED, IGNORED, IGNORED]])
    model = build(f"{kind}ForMaskedLM", pad_token_id=1).eval()
    inputs = {"input_ids": IDS, "attention_mask": MASK, "labels": labels}
    objective = MaskedTokenLoss()
    assert objective.units(inputs) == 3
    gradients = []
    for name in (objective, ModelLoss()):
        model.zero_grad()
        loss = name.loss(model, inputs)
        loss.backward()
        gradients.append([loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)
    wrapped = nn.Module()
    wrapped.module, wrapped.forward = model, model.forward
    assert float(objective.loss(wrapped, inputs).detach()) == pytest.approx(float(gradients[0][0]))
    assert model(IDS, MASK).logits.shape[:2] == (2, 4), "the model is as it was"


def test_smoothed_tokens_by_hand() -> None:
    model = build("BartForConditionalGeneration", pad_token_id=1, bos_token_id=2, eos_token_id=3)
    labels = torch.tensor([[4, 5, 6, 3], [7, 3, IGNORED, IGNORED]])
    inputs = {"input_ids": IDS, "attention_mask": MASK, "labels": labels}
    objective = SmoothedTokens(0.2)
    assert objective.units(inputs) == 6
    logits = model(**inputs).logits.detach().double().log_softmax(-1)
    expected = 0.0
    for row in range(2):
        for place in range(4):
            if labels[row, place] != IGNORED:
                own = logits[row, place]
                expected -= 0.8 * float(own[labels[row, place]]) + 0.2 * float(own.mean())
    assert float(objective.loss(model, inputs).detach()) == pytest.approx(expected, rel=1e-5)


def test_decay_is_for_matrices() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    next(iter(model.parameters())).requires_grad_(requires_grad=False)
    decayed, free = parameter_groups(model, 0.1)
    assert [p.shape for p in decayed["params"]] == [(2, 4)]
    assert all(p.dim() == 1 for p in free["params"])
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)
    assert len(free["params"]) == 4
