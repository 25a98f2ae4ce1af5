import copy

import pytest
import torch
import zoo
from transformers import AttentionInterface, AttentionMaskInterface, BertConfig, BertModel
from watching import Watch, run

from headlens.attention.interface import EAGER, NAMES, SDPA, additive, causal_mask, register_attention
from headlens.attention.session import AttentionSession

LOWEST = torch.finfo(torch.float32).min


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_an_attention_and_a_mask_function_also_when_registered_twice(name: str) -> None:
    register_attention()
    assert name in AttentionInterface()
    assert name in AttentionMaskInterface()


@pytest.mark.parametrize(("kernel", "registered"), [("eager", EAGER), ("sdpa", SDPA)])
@pytest.mark.parametrize("name", ["bert", "albert", "llama", "marian"])
def test_attention_only_registration_loses_the_mask(
    name: str, kernel: str, registered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(kernel), zoo.padded(entry)
    expected = run(model, inputs)
    with AttentionSession(model, kernel=kernel):
        assert torch.equal(run(model, inputs), expected)
        monkeypatch.delitem(AttentionMaskInterface._global_mapping, registered)
        assert not torch.allclose(run(model, inputs), expected, atol=1e-2)


def test_masks_that_are_not_additive_become_so() -> None:
    assert additive(None, torch.float32) is None
    expected = torch.tensor([0.0, LOWEST])
    assert torch.equal(additive(torch.tensor([True, False]), torch.float32), expected)
    assert torch.equal(additive(torch.tensor([1, 0]), torch.float32), expected)
    mask = torch.tensor([0.0, -3.0])
    assert additive(mask, torch.float32) is mask
    low = additive(torch.tensor([False]), torch.bfloat16)
    assert low.dtype == torch.bfloat16
    assert torch.isfinite(low).all()


def test_the_causal_mask_is_sdpas() -> None:
    query, key = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
    attend = torch.nn.functional.scaled_dot_product_attention
    assert torch.allclose(
        attend(query, key, key, attn_mask=causal_mask(query, key)), attend(query, key, key, is_causal=True), atol=1e-6
    )


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_another_model_with_the_same_config_object_is_left_alone(kernel: str) -> None:
    config = BertConfig(**zoo.TEXT, attn_implementation=kernel)
    first, second = zoo.randomized(BertModel(config), 1), zoo.randomized(BertModel(config), 2)
    assert first.config is second.config
    inputs = zoo.padded(zoo.ZOO["bert"])
    expected = run(second, inputs)
    watch = Watch(needs_weights=False)
    with AttentionSession(first, observers=[watch], kernel=kernel):
        assert torch.equal(run(second, inputs), expected)
        run(copy.deepcopy(second), inputs)
    assert watch.calls == []
