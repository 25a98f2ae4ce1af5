"""Logit attribution against logits that are added up from their parts, and against changed heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
import torch
import zoo
from naive_logit_attribution import (
    Stream,
    bert_class_logits,
    bert_masked_logits,
    gpt2_logits,
    llama_logits,
    marian_logits,
    seen_by,
)
from relevance_neurons import SINGLE, FirstNeurons, cast, model_and_inputs
from tiers import rest_slow
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.attention.sites import Site
from headlens.errors import UnsupportedModelError
from headlens.relevance_propagation.epsilon_rule import ConservationLedger, times
from headlens.relevance_propagation.logit_attribution_rule import DirectRules, direct_paths
from headlens.relevance_propagation.relevance_session import HeadRelevance, RelevanceSession
from headlens.relevance_propagation.targets import EveryPosition, MaskedTokenLogits, PredictedClass, Target
from headlens.relevance_propagation.tracing import Tracer

MASK = 4
Walk = Callable[[Any, Mapping[str, Any]], tuple[Tensor, Stream]]
WALKS: dict[str, tuple[Walk, Target]] = {
    "bert-classifier": (bert_class_logits, PredictedClass()),
    "bert-mlm": (bert_masked_logits, MaskedTokenLogits(MASK)),
    "gpt2": (gpt2_logits, EveryPosition()),
    "llama": (llama_logits, EveryPosition()),
    "marian": (marian_logits, EveryPosition()),
}
# Without a path that torch's functions could follow, as for every other rule but gradxact and taylor.
CONVOLUTIONS = ("vit", "whisper")


def direct(model: PreTrainedModel, inputs: dict[str, Any], target: Target | None = None) -> HeadRelevance:
    with RelevanceSession(model, target or FirstNeurons(), "logit-attribution") as session:
        return session.relevance(inputs)


def made(name: str) -> tuple[PreTrainedModel, dict[str, Any]]:
    model, inputs = zoo.ZOO[name].build().double(), cast(zoo.padded(zoo.ZOO[name]), torch.float64)
    if name == "bert-mlm":
        inputs["input_ids"][:, 2] = MASK
    return model, inputs


def chosen(logits: Tensor, target: Target, inputs: Mapping[str, Any]) -> Tensor:
    """1 for the largest logit at every position where relevance starts, 0 for the others."""
    side = "decoder_" if "decoder_input_ids" in inputs else ""
    starts = inputs[f"{side}attention_mask"].bool()
    if isinstance(target, PredictedClass):
        starts = starts[:, :1]
    if isinstance(target, MaskedTokenLogits):
        starts = inputs["input_ids"] == MASK
    return nn.functional.one_hot(logits.argmax(dim=-1), logits.shape[-1]) * starts[..., None]


@pytest.mark.parametrize("name", WALKS)
def test_heads_and_the_remainder_are_the_logit_as_it_is_added_up_part_by_part(name: str) -> None:
    walk, target = WALKS[name]
    model, inputs = made(name)
    with torch.no_grad():
        logits, stream = walk(model, inputs)
    picked = chosen(logits, target, inputs)
    parts = {part: (numbers * picked).sum(dim=(1, 2)) for part, numbers in stream.parts.items()}
    heads = {part: own for part, own in parts.items() if isinstance(part, tuple)}
    logit = (logits * picked).sum(dim=(1, 2))
    assert torch.allclose(sum(parts.values(), torch.zeros(())), logit, rtol=0, atol=1e-10)
    found = direct(model, inputs, target)
    assert torch.allclose(found.start, logit, rtol=0, atol=1e-10)
    for site, raw in found.raw.items():
        if name == "marian" and site.stack == "encoder":
            assert not raw.any()
            continue
        expected = torch.stack([heads.pop((str(site), head)) for head in range(site.n_heads)], dim=1)
        # Attention and norms of Llama are computed in single precision, by other kernels here than there.
        assert torch.allclose(raw, expected, rtol=0, atol=1e-5 if name == "llama" else 1e-10), site
    assert not heads
    others = {part: float(own.sum()) for part, own in parts.items() if isinstance(part, str)}
    told = {"embeddings": found.inputs, "biases": found.biases, **found.others}
    written = sum(float(own.sum()) for part, own in parts.items() if isinstance(part, tuple))
    assert told.pop("heads") == pytest.approx(written, abs=1e-5)
    assert told == pytest.approx({"biases": 0.0} | others, abs=1e-5 if name == "llama" else 1e-9)


def held(norm: nn.LayerNorm, x: Tensor) -> Callable[..., Tensor]:
    """A hook by which a norm has the deviation of these numbers, whatever it reads."""
    inverse = 1 / (x.var(dim=-1, keepdim=True, correction=0) + norm.eps).sqrt()
    return lambda _, read, gave: (read[0] - read[0].mean(dim=-1, keepdim=True)) * inverse * norm.weight + norm.bias


@pytest.mark.parametrize("name", ["gpt2", "bert-classifier"])
def test_a_head_gives_what_changes_with_it_while_scales_mlps_and_other_heads_are_held(name: str) -> None:
    """By finite differences; the last projection of MLPs reads what it read, and so does that of attention."""
    model, inputs = made(name)
    target, step = WALKS[name][1], 1e-5
    _, seen = seen_by(model, inputs)
    found = direct(model, inputs, target)
    ends = (".mlp.c_proj", ".attn.c_proj") if name == "gpt2" else (".attention.output.dense", ".output.dense")
    layer, head, heads = 1, 2, 4

    def start(factor: float) -> Tensor:
        with ExitStack() as undo, torch.no_grad():
            for path, module in model.named_modules():
                if isinstance(module, nn.LayerNorm):
                    undo.callback(module.register_forward_hook(held(module, seen[path][0])).remove)
                if path.endswith(ends):
                    read = seen[path][0].clone()
                    if f".{layer}.att" in path:
                        size = read.shape[-1] // heads
                        read[..., head * size : (head + 1) * size] *= factor
                    rest = lambda _, args, read=read: (read, *args[1:])  # noqa: E731
                    undo.callback(module.register_forward_pre_hook(rest).remove)
            logits = model(**inputs).logits
        picked = chosen(logits if name == "gpt2" else logits[:, None], target, inputs)
        return ((logits if name == "gpt2" else logits[:, None]) * picked).sum(dim=(1, 2))

    assert torch.allclose(start(1.0), found.start, atol=1e-10)
    difference = (start(1 + step) - start(1 - step)) / (2 * step)
    site = next(site for site in found.raw if site.layer == layer)
    assert torch.allclose(found.raw[site][:, head], difference, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    "name",
    rest_slow([n for n in zoo.ZOO if n not in CONVOLUTIONS], [*zoo.REPRESENTATIVES[:-2], "gpt-oss", "albert-inner"]),
)
def test_on_every_architecture_parts_add_up_and_every_stack_at_the_target_has_heads(name: str) -> None:
    entry = zoo.ZOO[name]
    single = name in (*SINGLE, *zoo.MORE_THAN_SOFTMAX)
    model, inputs = (entry.build(), zoo.padded(entry)) if single else model_and_inputs(name)
    found = direct(model, inputs)
    assert found.lost == pytest.approx(0, abs=1e-5 if single else 1e-10)
    given = [site for site, raw in found.raw.items() if raw.any()]
    assert given == [site for site in found.raw if entry.kind != "pair" or site.stack != "encoder"]
    written = float(sum(raw.sum() for raw in found.raw.values()))
    assert found.others["heads"] == pytest.approx(written, abs=1e-5 if single else 1e-9)
    assert found.others["mlps"] != 0


MIXTURES = {
    "Mixtral": {"num_local_experts": 2, "num_experts_per_tok": 1},
    "DeepseekV3": {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 8}
    | {"kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "num_key_value_heads": 4}
    | {"num_experts_per_tok": 2, "moe_intermediate_size": 16},
}


@pytest.mark.parametrize("family", MIXTURES)
def test_experts_are_mlps(family: str) -> None:
    settings = zoo.ROTARY | MIXTURES[family]
    settings.pop("head_dim")
    model = zoo.Entry(f"{family}ForCausalLM", f"{family}Config", "decoder", settings).build()
    inputs = zoo.padded(zoo.ZOO["llama"])
    found = direct(model, inputs, EveryPosition())
    assert found.lost == pytest.approx(0, abs=1e-5)
    _, seen = seen_by(model, inputs)
    # The last norm reads embeddings, heads and MLPs; of its scale there are as many as tokens.
    real, state = inputs["attention_mask"].bool(), seen["model.norm"]
    written = torch.zeros(())
    for number in range(3):
        gave = seen[f"model.layers.{number}.mlp"][1]
        written = written + (gave[0] if isinstance(gave, tuple) else gave)
    with torch.no_grad():
        logits = model(**inputs).logits
        rows = model.lm_head.weight[logits.argmax(dim=-1)] * (state[1] / state[0])
    assert found.others["mlps"] == pytest.approx(float((written * rows).sum(dim=-1)[real].sum()), rel=1e-3)


def test_a_soft_cap_of_the_logits_is_left_out_and_comes_back() -> None:
    entry = zoo.ZOO["gemma2"]
    model, inputs = entry.build(final_logit_softcapping=5.0), zoo.padded(entry)
    with torch.no_grad():
        capped = model(**inputs).logits
    assert capped.abs().max() < 5
    found = direct(model, inputs, EveryPosition())
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, capped)
    before = 5 * torch.atanh(capped.double() / 5).amax(dim=-1)
    expected = (before * inputs["attention_mask"]).sum(dim=1)
    assert torch.allclose(found.start, expected, rtol=1e-3)
    assert "curvature" not in found.others


def test_a_residual_stream_that_breaks_off_is_refused() -> None:
    model, inputs = model_and_inputs("bert")
    norm = model.encoder.layer[1].output
    norm.LayerNorm = nn.Sequential(norm.LayerNorm, nn.Tanh())
    with pytest.raises(UnsupportedModelError, match=r"from the heads of encoder\.0, encoder\.1 to the target"):
        direct(model, inputs)
    model.encoder.layer[2].output.LayerNorm = nn.Sequential(model.encoder.layer[2].output.LayerNorm, nn.Tanh())
    with pytest.raises(UnsupportedModelError, match=r"from the heads of encoder\.0, encoder\.1, encoder\.2 to"):
        direct(model, inputs)


def test_products_behind_the_layers_are_refused() -> None:
    class Square(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x

    model, inputs = model_and_inputs("bert-classifier")
    model.bert.pooler.activation = Square()
    with pytest.raises(UnsupportedModelError, match=r"of two activations outside of the layers.*Square at bert.pooler"):
        direct(model, inputs)


def test_attention_that_is_in_no_list_of_layers_is_refused() -> None:
    ledger = ConservationLedger(times)
    tracer = Tracer(nn.Module(), DirectRules(ledger))
    sites = [Site("encoder", 0, 2, "only.attention")]
    with pytest.raises(UnsupportedModelError, match=r"only\.attention of Module is in no list of layers"):
        direct_paths(nn.Module(), sites, tracer).__enter__()
