"""Parameters without gradients for a while."""

from __future__ import annotations

import pytest
from torch import nn

from headlens.models.freezing import frozen


def test_parameters_ask_for_gradients_as_before() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].bias.requires_grad = False
    before = [p.requires_grad for p in model.parameters()]
    with frozen(model):
        assert not any(p.requires_grad for p in model.parameters())
    with pytest.raises(ZeroDivisionError), frozen(model):
        _ = 1 / 0
    assert [p.requires_grad for p in model.parameters()] == before == [True, False, True, True]
