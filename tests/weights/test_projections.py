"""Where the weights of heads are, for every family that heads can be cut out of; and who is refused."""

import pytest
import torch
import zoo
from torch import nn

from headlens.attention.sites import find_sites
from headlens.errors import UnsupportedModelError
from headlens.weights.head_slicing import LAYOUTS, projections

FAMILIES = ["bert", "albert", "roberta", "distilbert", "electra", "bart", "marian", "m2m100", "bert-cross-decoder"]
REFUSED = ["gpt2", "modernbert", "llama", "qwen2", "t5", "gpt-oss"]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_site_has_projections_of_its_heads(name: str) -> None:
    model = zoo.ZOO[name].build()
    for site in find_sites(model):
        parts = projections(model, site.module)
        assert parts.output is zoo.projection(model, site)
        assert parts.n_heads == site.n_heads
        assert parts.n_heads * parts.head_size == parts.output.in_features == zoo.HIDDEN
        assert len({id(layer) for layer in (*parts.inward, parts.output)}) == 4


@pytest.mark.parametrize("name", ["bert", "distilbert", "marian"])
def test_queries_keys_and_values_are_not_mixed_up(name: str) -> None:
    """Attention called with the outputs of these layers is what the module computes."""
    model = zoo.ZOO[name].build()
    site = find_sites(model)[0]
    module, parts = model.get_submodule(site.module), projections(model, site.module)
    hidden = torch.randn(2, 5, zoo.HIDDEN, generator=torch.Generator().manual_seed(1))
    # Each is (batch, heads, tokens, d).
    query, key, value = (p(hidden).view(2, 5, site.n_heads, -1).transpose(1, 2) for p in parts.inward)
    context = nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
    found = module(hidden)[0]
    expected = context if "output" in module._modules or name == "bert" else parts.output(context)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", REFUSED)
def test_other_layouts_are_refused(name: str) -> None:
    model = zoo.ZOO[name].build()
    with pytest.raises(
        UnsupportedModelError, match=r"cannot be cut out: .*\nIt can cut out heads of BERT, RoBERTa, ELECTRA, ALBERT"
    ):
        projections(model, find_sites(model)[0].module)


def test_layers_that_are_not_plain_are_refused() -> None:
    class Quantised(nn.Linear):
        pass

    model = zoo.ZOO["bert"].build()
    name = find_sites(model)[0].module
    model.get_submodule(name).key = Quantised(zoo.HIDDEN, zoo.HIDDEN)
    with pytest.raises(UnsupportedModelError, match="no separate linear layers"):
        projections(model, name)


def test_every_layout_is_used() -> None:
    assert len(LAYOUTS) == 4
    for layout, name in zip(LAYOUTS, ["bert", "albert", "distilbert", "marian"], strict=True):
        model = zoo.ZOO[name].build()
        parts = projections(model, find_sites(model)[0].module)
        names = [n for n, m in model.named_modules() if m in (*parts.inward, parts.output)]
        ends = {p.removeprefix("../") for p in (layout.query, layout.key, layout.value, layout.output)}
        assert all(any(n.endswith(f".{e}") for e in ends) for n in names)
