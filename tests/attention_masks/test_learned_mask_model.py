"""A model and its mask as one module: when masks are drawn, and whose lengths they see."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
import zoo
from watching import run

from headlens.attention_masks.learned_mask import LearnedAttentionMask, LearnedMaskOptions, masked_sites
from headlens.interventions.edited_model import EditedModel


def made(name: str, *, structured: bool = True) -> EditedModel[LearnedAttentionMask]:
    model = zoo.ZOO[name].build()
    mask = LearnedAttentionMask(masked_sites(model), LearnedMaskOptions(12, structured=structured))
    with torch.no_grad():
        torch.manual_seed(2)
        mask.alpha.normal_()
    return EditedModel(model, mask).eval()


def test_only_inside_with() -> None:
    masked, inputs = made("bert"), zoo.padded(zoo.ZOO["bert"])
    with pytest.raises(RuntimeError, match=r"inside `with edited\.opened\(\)`"):
        masked(**inputs)
    plain = run(masked.module, inputs)
    with masked.opened():
        inside = run(masked, inputs)
    assert not torch.allclose(inside, plain, atol=1e-3)
    assert torch.equal(run(masked.module, inputs), plain)
    assert not masked.module._forward_pre_hooks


def test_the_model_itself_and_models_within_it_are_masked() -> None:
    """As evaluation calls them; a pass draws once, however many models it goes through."""
    masked, inputs = made("marian"), zoo.padded(zoo.ZOO["marian"])
    model = masked.module
    with masked.opened(), mock.patch.object(masked.edit, "draw", wraps=masked.edit.draw) as draw:
        through = run(masked, inputs)
        assert torch.equal(run(model, inputs), through)
        assert draw.call_count == 2
        encoded = model.get_encoder()(inputs["input_ids"], attention_mask=inputs["attention_mask"])
        assert draw.call_count == 3
        rest = {k: v for k, v in inputs.items() if k != "input_ids"}
        torch.testing.assert_close(run(model, {**rest, "encoder_outputs": encoded}), through, rtol=0, atol=1e-6)
    plain = model.get_encoder()(inputs["input_ids"], attention_mask=inputs["attention_mask"])[0]
    assert not torch.allclose(encoded[0], plain, atol=1e-3)


def test_without_an_attention_mask_all_tokens_count() -> None:
    masked = made("bert")
    ids = zoo.padded(zoo.ZOO["bert"])["input_ids"]
    with masked.opened():
        found = run(masked, {"input_ids": ids})
        expected = run(masked, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        by_place = masked.module(ids)[0].detach()
    assert torch.equal(found, expected)
    assert torch.equal(by_place, expected)


def test_a_pass_that_failed_leaves_nothing_behind() -> None:
    masked, inputs = made("bert"), zoo.padded(zoo.ZOO["bert"])
    with masked.opened():
        expected = run(masked, inputs)
        with pytest.raises(IndexError):
            masked(input_ids=torch.full((2, 3), 10**6))
        assert torch.equal(run(masked, inputs), expected)


def test_generation_is_masked() -> None:
    masked, inputs = made("marian"), zoo.padded(zoo.ZOO["marian"])
    texts = {k: inputs[k] for k in ("input_ids", "attention_mask")}
    with masked.opened():
        found = masked.module.generate(**texts, max_new_tokens=4, num_beams=2, do_sample=False)
    assert found.shape[0] == len(texts["input_ids"])
