"""What attention modules do with the output of their heads: as their code says, and as their tensors show."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import zoo
from tiers import rest_slow
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.models.auto import CONFIG_MAPPING
from transformers.models.kosmos2.configuration_kosmos2 import Kosmos2TextConfig
from transformers.models.kosmos2.modeling_kosmos2 import Kosmos2TextForCausalLM

from headlens.attention.attach_edit import attach_edit
from headlens.attention.edits_and_observers import CallContext, Edit
from headlens.attention.sites import find_sites
from headlens.errors import UnsupportedModelError
from headlens.heads import Head
from headlens.interventions.compacting import compact_model
from headlens.interventions.gates import HeadGates
from headlens.weights.after_heads import module_after_heads
from headlens.weights.head_slicing import output_projection, projections

SMALL: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "num_local_experts": 2}
PLAIN = (
    *("gemma3_text", "olmo2", "smollm3", "stablelm", "starcoder2", "granite", "cohere", "glm"),
    *("phi3", "gpt_neox", "qwen3", "mistral", "ernie4_5", "exaone4", "nemotron", "seed_oss"),
)
MOE = ("mixtral", "qwen3_moe", "olmoe")


class Given(Edit):
    """Notes the last output of an attention function, (batch, query, heads x d)."""

    last: torch.Tensor

    def output(self, context: CallContext, output: torch.Tensor) -> torch.Tensor:
        """Keeps it, and changes nothing."""
        del context
        self.last = output.flatten(2)
        return output


def check_projections(model: nn.Module, run: Any) -> None:
    """Every output projection gets exactly what the heads gave."""
    given, seen = Given(), []
    for site in find_sites(model):

        def look(_: nn.Module, inputs: tuple[torch.Tensor, ...], site: Any = site) -> None:
            seen.append(site.module)
            assert torch.equal(inputs[0], given.last), site

        output_projection(model, site.module).register_forward_pre_hook(look)
    with attach_edit(model, given):
        run()
    assert set(seen) == {site.module for site in find_sites(model)}


@pytest.mark.parametrize("family", rest_slow([*PLAIN, *MOE], ["gemma3_text", "gpt_neox", "phi3"]))
def test_the_output_projection_of_decoders_gets_what_their_heads_give(family: str) -> None:
    config = CONFIG_MAPPING[family](**SMALL, **(EXPERTS if family in MOE else {}))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    ids = torch.arange(3, 13)[None]
    with torch.no_grad():
        check_projections(model, lambda: model(input_ids=ids))


@pytest.mark.parametrize("name", rest_slow([n for n in zoo.ZOO if n != "vit"], ["bert", "gpt2", "t5", "modernbert"]))
def test_the_output_projection_of_known_models_gets_what_their_heads_give(name: str) -> None:
    entry = zoo.ZOO[name]
    model = entry.build().eval()
    with torch.no_grad():
        check_projections(model, lambda: model(**zoo.padded(entry)))


@pytest.mark.parametrize("family", ["bitnet", "qwen3_next"])
def test_a_gate_or_a_normalisation_before_the_projection_is_refused(family: str) -> None:
    config = CONFIG_MAPPING[family](**SMALL, **(EXPERTS if family == "qwen3_next" else {}))
    config.layer_types = ["full_attention"] * 2
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for site in find_sites(model):
        for of in (output_projection, projections):
            with pytest.raises(UnsupportedModelError, match="does something else with the output of its heads"):
                of(model, site.module)


def test_a_normalisation_beside_projections_of_usual_names_is_refused() -> None:
    """Heads of Kosmos-2 were projected and cut out as if it were not there."""
    config = Kosmos2TextConfig(vocab_size=60, embed_dim=32, layers=2, ffn_dim=40, attention_heads=4)
    config._attn_implementation = "eager"
    model = Kosmos2TextForCausalLM(config)
    for site in find_sites(model):
        assert hasattr(model.get_submodule(site.module), "out_proj")
        for of in (output_projection, projections):
            with pytest.raises(UnsupportedModelError, match="KosmosTextAttention does something else"):
                of(model, site.module)


def attention_interface(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, None]:
    """Stands for the function of the registry."""
    del module
    return x, None


class Plain(nn.Module):
    """An attention module as modeling files have it."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.norm, self.drop = nn.Linear(4, 4), nn.LayerNorm(4), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> Any:
        """Projects what the heads give."""
        attn_output, attn_weights = attention_interface(self, x)
        shape = (*attn_output.shape[:-1], -1)
        attn_output = attn_output.reshape(shape).contiguous()
        return self.drop(self.out(attn_output)), attn_weights


class OtherName(Plain):
    """Its tensor has another name after it was reshaped."""

    def forward(self, x: torch.Tensor) -> Any:
        """Projects a view of what the heads give."""
        output, _ = attention_interface(self, x)
        merged = output.view(*output.shape[:-1], -1).to(x.dtype)
        return self.out(merged)


class Returned(Plain):
    """As BERT's: the projection stands in the module around."""

    def forward(self, x: torch.Tensor) -> Any:
        """Gives what the heads give."""
        context, weights = attention_interface(self, x)
        context = context.reshape(context.shape).contiguous()
        return context, weights


class Gated(Plain):
    """A gate before the projection."""

    def forward(self, x: torch.Tensor) -> Any:
        """Projects a product."""
        output, _ = attention_interface(self, x)
        output = output * torch.sigmoid(x)
        return self.out(output)


class GatedInCall(Plain):
    """The same within the call."""

    def forward(self, x: torch.Tensor) -> Any:
        """Projects a product."""
        output, _ = attention_interface(self, x)
        return self.out(output * torch.sigmoid(x))


class GatedByAssignment(Plain):
    """The same with an assignment in place."""

    def forward(self, x: torch.Tensor) -> Any:
        """Projects a product."""
        output = attention_interface(self, x)[0]
        output *= torch.sigmoid(x)
        return self.out(output)


class GatedByMethod(Plain):
    """The same with a method that works in place."""

    def forward(self, x: torch.Tensor) -> Any:
        """Projects a product."""
        output: torch.Tensor = attention_interface(self, x)[0]
        output.mul_(torch.sigmoid(x))
        return self.out(output)


class Turned(Plain):
    """Features in another order."""

    def forward(self, x: torch.Tensor) -> Any:
        """Projects a permutation."""
        output, _ = attention_interface(self, x)
        output = output.transpose(0, 1)
        return self.out(output)


class Normed(Plain):
    """A normalisation before the projection."""

    def forward(self, x: torch.Tensor) -> Any:
        """Projects what was normalised."""
        output, _ = attention_interface(self, x)
        output = self.norm(output)
        return self.out(output)


CHANGED = (Gated, GatedInCall, GatedByAssignment, GatedByMethod, Turned, Normed)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Plain, "out"),
        (OtherName, "out"),
        (Returned, ""),
        *((kind, None) for kind in CHANGED),
    ],
)
def test_code_is_read(kind: type[nn.Module], name: str | None) -> None:
    if name is None:
        with pytest.raises(UnsupportedModelError, match=f"{kind.__name__} does something else"):
            module_after_heads(kind())
    else:
        assert module_after_heads(kind()) == name


def test_code_that_cannot_be_read_says_nothing() -> None:
    module = type("Made", (nn.Module,), {"forward": len})()
    assert module_after_heads(module) == ""


# Norms over the queries of all heads together; numbers of heads that are those of the configuration.
UNCUT = {"olmo2": "they have q_norm", "olmoe": "they have q_norm", "phi3": "headlens finds no plain layers"}


@pytest.mark.parametrize("family", rest_slow([*PLAIN, *MOE], ["gpt_neox", "phi3", "olmo2"]))
def test_heads_of_decoders_are_cut_or_refused_in_words(family: str) -> None:
    config = CONFIG_MAPPING[family](**SMALL, **(EXPERTS if family in MOE else {}))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    ids = torch.arange(3, 13)[None]
    heads = [Head("decoder", 0, 0), Head("decoder", 0, 2), Head("decoder", 1, 2), Head("decoder", 1, 3)]
    if family in UNCUT:
        with pytest.raises(UnsupportedModelError, match=f"cannot be cut out: {UNCUT[family]}"):
            compact_model(model, heads)
        return
    with attach_edit(model, HeadGates(dict.fromkeys(heads, 0.0))), torch.no_grad():
        expected = model(input_ids=ids).logits
    with torch.no_grad():
        intact = model(input_ids=ids).logits
        compact_model(model, heads)
        torch.testing.assert_close(model(input_ids=ids).logits, expected, atol=1e-4, rtol=1e-4)
    assert (intact - expected).abs().max() > 1e-2
