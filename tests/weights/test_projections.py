"""Where the weights of heads are, for every family that heads can be cut out of; and who is refused."""

import pytest
import torch
import zoo
from torch import nn

from headlens.attention.sites import find_sites
from headlens.errors import UnsupportedModelError
from headlens.weights.head_slicing import input_features, projections

FAMILIES = ["bert", "albert", "roberta", "distilbert", "electra", "bart", "marian", "m2m100", "bert-cross-decoder"]
FAMILIES += ["gpt2", "modernbert", "llama", "qwen2", "phi", "gpt-oss", "vit"]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_site_has_projections_of_its_heads(name: str) -> None:
    model = zoo.ZOO[name].build()
    for site in find_sites(model):
        parts = projections(model, site.module)
        assert parts.output is zoo.projection(model, site)
        assert parts.n_heads == site.n_heads
        assert parts.n_heads * parts.head_size == input_features(parts.output) == zoo.HIDDEN
        fused = name in ("gpt2", "modernbert")
        assert len({id(layer) for layer in (*(p.module for p in parts.inward), parts.output)}) == (2 if fused else 4)
        assert parts.shared_by == (2 if name in ("llama", "qwen2", "gpt-oss") else 1)


@pytest.mark.parametrize("name", ["bert", "distilbert", "marian"])
def test_queries_keys_and_values_are_not_mixed_up(name: str) -> None:
    """Attention called with the outputs of these layers is what the module computes."""
    model = zoo.ZOO[name].build()
    site = find_sites(model)[0]
    module, parts = model.get_submodule(site.module), projections(model, site.module)
    hidden = torch.randn(2, 5, zoo.HIDDEN, generator=torch.Generator().manual_seed(1))
    # Each is (batch, heads, tokens, d).
    query, key, value = (p.module(hidden).view(2, 5, site.n_heads, -1).transpose(1, 2) for p in parts.inward)
    context = nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
    found = module(hidden)[0]
    expected = context if "output" in module._modules or name == "bert" else parts.output(context)
    torch.testing.assert_close(found, expected)


def test_other_layouts_are_refused() -> None:
    """T5's heads have a bias of positions in common, which the first layer hands to the others."""
    model = zoo.ZOO["t5"].build()
    with pytest.raises(UnsupportedModelError, match=r"cannot be cut out: .*\n.*compact --stock writes zeros in place"):
        projections(model, find_sites(model)[0].module)


def test_weights_that_heads_have_in_common_are_refused() -> None:
    model = zoo.ZOO["llama"].build()
    place = find_sites(model)[0].module
    model.get_submodule(place).q_norm = nn.LayerNorm(zoo.HIDDEN)  # of all heads together, as OLMo 2 has it
    with pytest.raises(UnsupportedModelError, match=r"they have q_norm.weight of the shape \(32,\) in common"):
        projections(model, place)
    model.get_submodule(place).q_norm = nn.LayerNorm(8)  # of one head, as Qwen 3 has it
    assert projections(model, place).n_heads == 4


def test_layers_that_are_not_plain_are_refused() -> None:
    class Quantised(nn.Linear):
        pass

    model = zoo.ZOO["bert"].build()
    name = find_sites(model)[0].module
    model.get_submodule(name).key = Quantised(zoo.HIDDEN, zoo.HIDDEN)
    with pytest.raises(UnsupportedModelError, match="no plain layers of queries"):
        projections(model, name)
