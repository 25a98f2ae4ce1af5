"""Models without heads: cut out or set to 0, the same outputs, alone and under a mask."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import zoo
from torch import Tensor
from transformers import PreTrainedModel

from headlens.attention.attach_edit import attach_edit
from headlens.attention.persistent_edit import persistent_edit_of
from headlens.attention.sites import find_sites
from headlens.attention_masks.attention_mask import PatternMask
from headlens.attention_masks.attention_mask_edit import MaskEdit
from headlens.attention_masks.patterns import Window
from headlens.errors import OptionError
from headlens.heads import Head
from headlens.interventions import pruned_model as module
from headlens.interventions.compacting import without_heads
from headlens.interventions.pruned_model import can_cut, pruned_model

GONE = [Head("encoder", 0, 1), Head("encoder", 1, 0)]


def outputs(model: PreTrainedModel) -> Tensor:
    ids = torch.arange(3, 15)[None]
    with torch.inference_mode():
        found: Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    return found


@pytest.mark.parametrize("masked", [False, True])
def test_zeros_compute_what_cutting_computes(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.ZOO["bert"].build()
    if masked:
        with attach_edit(model, MaskEdit(PatternMask(Window(3)))):
            _compare(model, monkeypatch)
        return
    _compare(model, monkeypatch)


def _compare(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, cut = outputs(model), outputs(without_heads(model, GONE))
    with pruned_model(model, GONE) as smaller:
        assert smaller is not model
        assert torch.equal(outputs(smaller), cut)
    monkeypatch.setattr(module, "can_cut", lambda *_: False)
    before = persistent_edit_of(model)
    with pruned_model(model, GONE) as zeroed:
        assert zeroed is model
        assert torch.allclose(outputs(zeroed), cut, atol=1e-5)
    assert persistent_edit_of(model) is before
    assert torch.equal(outputs(model), whole)


@pytest.mark.parametrize("kind", ["llama", "t5", "gemma2"])
def test_heads_that_cannot_be_cut_out_are_set_to_zero(kind: str) -> None:
    model = zoo.ZOO[kind].build()
    heads: Sequence[Head] = find_sites(model)[0].heads[:1]
    assert not can_cut(model, heads)
    with pruned_model(model, heads) as zeroed:
        assert zeroed is model
    with pytest.raises(OptionError, match="head"), pruned_model(model, [Head(heads[0].stack, 99, 0)]):
        pass


def test_no_heads_leave_the_model_as_it_is() -> None:
    model = zoo.ZOO["bert"].build()
    with pruned_model(model, []) as same:
        assert same is model
