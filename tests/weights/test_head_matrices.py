"""The matrices of heads against what the model gives its attention function, and what it makes of what that gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import zoo
from tiers import rest_slow
from torch import Tensor, nn

from headlens.attention.edits_and_observers import CallContext, Edit
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site, find_sites
from headlens.errors import UnsupportedModelError
from headlens.weights.head_matrices import head_matrices, inward_layers
from headlens.weights.head_slicing import output_projection

_NEOX = zoo.TEXT | {"num_key_value_heads": 4}
CASES = {
    **{
        name: zoo.ZOO[name] for name in ("bert", "albert", "distilbert", "gpt2", "modernbert", "llama", "phi", "marian")
    },
    **({"t5": zoo.ZOO["t5"]} if "t5" in zoo.ZOO else {}),
    "gpt-neox": zoo.Entry("GPTNeoXForCausalLM", "GPTNeoXConfig", "decoder", _NEOX),
    "phi-3": zoo.Entry("Phi3ForCausalLM", "Phi3Config", "decoder", zoo.ROTARY),
}
ROTATED = ("modernbert", "llama", "phi", "gpt-neox", "phi-3")


class Kept(Edit):
    """What every attention function was given and gave."""

    def __init__(self) -> None:
        self.calls: dict[Site, tuple[Tensor, Tensor, Tensor, Tensor]] = {}

    def output(self, context: CallContext, output: Tensor) -> Tensor:
        self.calls[context.site] = context.query, context.key, context.value, output
        return output


@pytest.mark.parametrize("name", rest_slow(CASES, ["albert", "gpt2", "llama", "gpt-neox", "phi-3", "marian"]))
def test_matrices_make_what_attention_reads_and_add_what_it_gives(name: str) -> None:
    entry = CASES[name]
    model, seen, kept = entry.build(), dict[str, Any](), Kept()
    sites = find_sites(model)
    for site in sites:
        for layer in (*inward_layers(model.get_submodule(site.module)), output_projection(model, site.module)):
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        layers = inward_layers(model.get_submodule(site.module))
        for key, layer in (("first", layers[0]), ("last", layers[-1]), ("out", output_projection(model, site.module))):
            layer.register_forward_hook(lambda _, read, gave, k=(key, site.module): seen.update({k: (read[0], gave)}))
    with AttentionSession(model, edits=[kept]), torch.no_grad():
        model(**zoo.padded(entry))
    last = {site.module: site for site in sites}  # of shared modules the last depth is what was seen last
    for module, site in last.items():
        matrices = head_matrices(model, site.module, site.n_heads)
        query, key, value, output = kept.calls[site]
        shared = query.shape[1] // key.shape[1]
        made = {
            "query": (seen["first", module][0], matrices.query, query),
            "key": (seen["last", module][0], matrices.key, key.repeat_interleave(shared, dim=1)),
            "value": (seen["last", module][0], matrices.value, value.repeat_interleave(shared, dim=1)),
        }
        for part, (read, matrix, expected) in made.items():
            found = torch.einsum("btd,hdk->bhtk", read.reshape(*expected.shape[:1], -1, read.shape[-1]), matrix)
            if name in ROTATED and part != "value":  # a rotation leaves lengths as they are
                found, expected = found.norm(dim=-1), expected.norm(dim=-1)  # noqa: PLW2901
            assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5), part
        added = torch.einsum("bthv,hvd->btd", output, matrices.output)
        assert torch.allclose(added, seen["out", module][1].reshape(added.shape), rtol=1e-4, atol=1e-5)
        for left, right in (("query", "key"), ("value", "output")):
            whole = matrices.factors[left] @ matrices.factors[right].transpose(1, 2)
            other = getattr(matrices, right)
            product = getattr(matrices, left) @ (other if right == "output" else other.transpose(1, 2))
            assert torch.allclose(whole.norm(dim=(1, 2)), product.norm(dim=(1, 2)), rtol=1e-4)


def test_what_is_laid_out_in_another_way_is_refused_by_name() -> None:
    model = zoo.ZOO["bert"].build()
    site = find_sites(model)[0]
    attention = model.get_submodule(site.module)
    attention.value = nn.Sequential(attention.value)
    with pytest.raises(UnsupportedModelError, match=r"queries, keys and values in encoder\.layer\.0\.attention\.self"):
        head_matrices(model, site.module, site.n_heads)
    assert inward_layers(attention) == ()
