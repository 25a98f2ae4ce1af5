"""Layers without attention against gates and biases of zero, and shorter models against layers that do nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import zoo
from tiers import rest_slow
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.attention.sites import Site, find_sites
from headlens.errors import OptionError, UnsupportedModelError
from headlens.interventions.removed_layers import remove_layers, without_attention

# Layers of a kind of their own: T5's first has the positions of all, ALBERT's share weights in turn.
REFUSED = {"t5": (0,), "albert-groups": (0,), "albert-inner": (0,)}
# Pictures have no task here, and no output projection that is known.
KNOWN = [name for name in zoo.ZOO if name != "vit"]
TRIED = rest_slow(KNOWN, ["bert", "albert", "modernbert", "gpt2", "llama", "marian"])


def first_output(model: PreTrainedModel, inputs: dict[str, Any]) -> Tensor:
    with torch.no_grad():
        output: Tensor = model(**inputs)[0]
    return output


def stack_sites(model: PreTrainedModel) -> list[Site]:
    sites = find_sites(model)
    return [site for site in sites if site.stack == sites[0].stack]


@pytest.mark.parametrize("name", TRIED)
def test_no_attention_is_an_output_projection_of_zero(name: str) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(), zoo.padded(entry)
    sites = stack_sites(model)
    before = first_output(model, inputs)
    with without_attention(model, None, sites[0].stack):
        found = first_output(model, inputs)
    zeroed = copy.deepcopy(model)
    with torch.no_grad():
        for site in sites:
            for parameter in zoo.projection(zeroed, site).parameters():
                parameter.zero_()
    torch.testing.assert_close(found, first_output(zeroed, inputs), rtol=0, atol=1e-6)
    assert not torch.equal(found, before)
    assert torch.equal(first_output(model, inputs), before), "undone on leaving"


@pytest.mark.parametrize("name", rest_slow(["bert", "bert-mlm", "distilbert", "llama", "marian"], ["bert"]))
def test_of_some_layers_the_others_are_as_they_were(name: str) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(), zoo.padded(entry)
    *_, last = stack_sites(model)
    with without_attention(model, [last.layer], last.stack):
        found = first_output(model, inputs)
    with torch.no_grad():
        for parameter in zoo.projection(model, last).parameters():
            parameter.zero_()
    torch.testing.assert_close(found, first_output(model, inputs), rtol=0, atol=1e-6)


def test_of_shared_weights_one_depth_alone() -> None:
    """The depths of ALBERT written out one after the other, with the projection of the last one zeroed."""
    entry = zoo.albert()
    model, inputs = entry.build(), zoo.padded(entry)
    apart = zoo.albert(num_hidden_groups=4).build()
    groups, shared = apart.encoder.albert_layer_groups, model.encoder.albert_layer_groups[0]
    apart.load_state_dict({k: v for k, v in model.state_dict().items() if "layer_groups" not in k}, strict=False)
    for group in groups:
        group.load_state_dict(shared.state_dict())
    with torch.no_grad():
        for parameter in groups[2].albert_layers[0].attention.dense.parameters():
            parameter.zero_()
    with without_attention(model, [2], "encoder"):
        found = first_output(model, inputs)
        # A copy made inside is a model of its own.
        assert torch.equal(first_output(copy.deepcopy(model), inputs), first_output(entry.build(), inputs))
    torch.testing.assert_close(found, first_output(apart, inputs), rtol=0, atol=1e-6)


def test_what_has_no_attention_is_not_trained() -> None:
    entry = zoo.ZOO["bert"]
    model, inputs = entry.build(), zoo.padded(entry)
    with without_attention(model, [1], "encoder"):
        model(**inputs)[0].sum().backward()
    assert model.encoder.layer[1].attention.self.query.weight.grad is None
    assert model.encoder.layer[1].intermediate.dense.weight.grad is not None
    assert model.encoder.layer[0].attention.self.query.weight.grad is not None


def skipped(module: nn.Module, arguments: Any, given: Any, output: Any) -> Any:
    """Hook of a layer that gives what it was given."""
    hidden = arguments[0] if arguments else given["hidden_states"]
    return (hidden, *output[1:]) if isinstance(output, tuple) else hidden


@pytest.mark.parametrize("which", [-1, 1])
@pytest.mark.parametrize("name", [p for p in TRIED if getattr(p, "values", (p,))[0] not in zoo.SHARED])
def test_a_removed_layer_gives_what_it_is_given(name: str, which: int) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(), zoo.padded(entry)
    sites = stack_sites(model)
    layer = sites[which].layer
    parts = sites[which].module.split(".")
    place = ".".join(parts[: next(i for i, part in enumerate(parts) if part.isdigit()) + 1])
    shorter = copy.deepcopy(model)
    remove_layers(shorter, [layer], sites[0].stack)
    hook = model.get_submodule(place).register_forward_hook(skipped, with_kwargs=True)
    expected = first_output(model, inputs)
    hook.remove()
    torch.testing.assert_close(first_output(shorter, inputs), expected, rtol=0, atol=1e-6)
    assert len(stack_sites(shorter)) == len(sites) - 1
    if entry.kind == "decoder":  # layers of a cache are counted as they are now
        cached = first_output(shorter, {**inputs, "use_cache": True})
        torch.testing.assert_close(cached, expected, rtol=0, atol=1e-5)


def test_of_shared_weights_there_are_fewer_depths() -> None:
    model, inputs = zoo.albert().build(), zoo.padded(zoo.albert())
    shorter = zoo.albert(num_hidden_layers=2).build()
    shorter.load_state_dict(model.state_dict())
    remove_layers(model, [2, 3], "encoder")
    assert torch.equal(first_output(model, inputs), first_output(shorter, inputs))


@pytest.mark.parametrize("name", [name for name in REFUSED if name in zoo.ZOO])
def test_layers_that_others_need_stay(name: str) -> None:
    model = zoo.ZOO[name].build()
    before = {k: v.shape for k, v in model.state_dict().items()}
    with pytest.raises(UnsupportedModelError, match="Layers cannot be removed from"):
        remove_layers(model, REFUSED[name], "encoder")
    assert {k: v.shape for k, v in model.state_dict().items()} == before


def test_layers_that_there_are_none() -> None:
    model = zoo.ZOO["bert"].build()
    with pytest.raises(OptionError, match="--drop-attention: there is no layer 3 in the encoder"):
        without_attention(model, [1, 3], "encoder").__enter__()
    with pytest.raises(OptionError, match="--drop-layers: there is no layer 3 in the encoder"):
        remove_layers(model, [3], "encoder")
    with pytest.raises(OptionError, match="no layer would be left"):
        remove_layers(model, [0, 1, 2], "encoder")
