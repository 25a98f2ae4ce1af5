"""Forty families: what is recorded of their commands is what happens, and their numbers are those of a naive code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import architectures
import numpy as np
import pytest
import torch
from architectures import FAMILIES, SENTENCES, outcomes, tokenizer_of
from tiers import rest_slow
from torch import Tensor, nn
from transformers import PreTrainedModel

import headlens
from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.attention.supported_models import UNSUPPORTED, commands_by_family
from headlens.errors import UnsupportedModelError
from headlens.heads import Head
from headlens.interventions.compacting import can_cut, compact_model
from headlens.interventions.gates import HeadGates
from headlens.replay.head_ablation import Replay
from headlens.weights.head_slicing import output_projection

BY_NAME = {family.name: family for family in FAMILIES}
SEEN = [name for name in BY_NAME if not commands_by_family()[name]["classify"]]
VOCABULARY = 90


def test_the_record_is_of_all_families_and_commands() -> None:
    recorded = commands_by_family()
    assert list(recorded) == list(BY_NAME)
    for family in FAMILIES:
        assert list(recorded[family.name]) == list(architectures.commands_of(family, "model"))
    hidden = {name for name, told in recorded.items() if all("computes attention itself" in t for t in told.values())}
    assert hidden <= {name.replace(" v2", "") for name in UNSUPPORTED} | {"DeBERTa v2"}
    assert len(recorded) - len(hidden) >= 40


# A command each in the default tier, as somebody types it; all of them take minutes.
@pytest.mark.parametrize("name", rest_slow(list(BY_NAME), ["OLMo 2", "Falcon"]))
def test_commands_do_what_is_recorded(name: str, request: pytest.FixtureRequest) -> None:
    whole = request.node.get_closest_marker("slow") is not None
    told = commands_by_family()[name]
    found = outcomes(BY_NAME[name], told if whole else ["compact"])
    assert found == {command: told[command] for command in found}


def made(name: str) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    """A tiny model with eager attention, and two texts of different length."""
    family = BY_NAME[name]
    model = family.build(VOCABULARY)
    model.set_attn_implementation("eager")
    ids = torch.randint(5, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    inputs = {"input_ids": ids.masked_fill(mask == 0, 1), "attention_mask": mask}
    if family.kind == "pair":
        inputs |= {"decoder_input_ids": ids.flip(1), "decoder_attention_mask": torch.ones_like(ids)}
    return model, inputs


def logits(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(**inputs, **({} if model.config.model_type == "bert" else {"use_cache": False})).logits
    return found


def without(model: PreTrainedModel, inputs: dict[str, Tensor], head: Head) -> Tensor:
    """The logits with a head's features set to 0 by a hook before the output projection, at every depth it is at."""
    site = next(s for s in find_sites(model) if (s.stack, s.layer) == (head.stack, head.layer))
    calls = [s for s in find_sites(model) if s.module == site.module]
    depth, turn = [s.layer for s in calls].index(head.layer), 0
    size = output_projection(model, site.module).weight.numel() // model.config.hidden_size // site.n_heads

    def zeroed(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal turn
        turn += 1
        if turn != depth + 1:
            return given
        changed = given[0].clone()
        changed[..., head.head * size : (head.head + 1) * size] = 0
        return (changed, *given[1:])

    handle = output_projection(model, site.module).register_forward_pre_hook(zeroed)
    try:
        return logits(model, inputs)
    finally:
        handle.remove()


@pytest.mark.parametrize("name", rest_slow(SEEN, ["Llama", "GPT-NeoX", "T5"]))
def test_ablation_is_a_hook_before_the_output_projection(name: str) -> None:
    model, inputs = made(name)
    sites = find_sites(model)
    heads = [s.heads[n % s.n_heads] for n, s in enumerate(sites)]
    expected = {head: without(model, inputs, head) for head in heads}
    with Replay(model) as replay:
        found = {v.head: v.outputs.logits.clone() for v in replay.run(inputs).variants(heads)}
    intact = logits(model, inputs)
    for head in heads:
        torch.testing.assert_close(found[head], expected[head], rtol=1e-4, atol=1e-5)
        assert not torch.allclose(expected[head], intact, atol=1e-5), head


@pytest.mark.parametrize("name", rest_slow(SEEN, ["Qwen 3", "GPT-2"]))
def test_a_model_without_heads_is_one_whose_heads_are_closed(name: str) -> None:
    model, inputs = made(name)
    sites = find_sites(model)
    grouped = {s.module: getattr(model.get_submodule(s.module), "num_key_value_groups", 1) for s in sites}
    heads = [h for s in sites for h in s.heads if h.head % max(1, grouped[s.module]) == 0 and h.head < s.n_heads - 1]
    heads = heads if BY_NAME[name].name != "ALBERT" else [h for s in sites for h in s.heads if h.head == 0]
    if not can_cut(model, heads):
        assert commands_by_family()[name]["compact"]
        with pytest.raises(UnsupportedModelError):
            compact_model(model, heads)
        return
    with torch.no_grad(), AttentionSession(model, edits=[HeadGates(dict.fromkeys(heads, 0.0))]):
        expected = model(**inputs).logits
    done = compact_model(model, heads)
    assert set(done.cut) == set(heads)
    torch.testing.assert_close(logits(model, inputs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", rest_slow(SEEN, ["Gemma 2", "BART"]))
def test_confidence_is_that_of_the_weights_of_eager_attention(name: str, tmp_path: Path) -> None:
    """`confidence_all` of every head: the mean of the largest weight of every query."""
    family, texts = BY_NAME[name], SENTENCES[:3]
    tokenizer = tokenizer_of(family.kind)
    model = family.build(len(tokenizer))
    pair = family.kind == "pair"
    for file in ("a.txt", "b.txt"):
        (tmp_path / file).write_text("\n".join(texts), encoding="utf-8")
    target = {"target": tmp_path / "b.txt"} if pair else {}
    heads = headlens.classify((model, tokenizer), corpus=str(tmp_path / "a.txt"), **target).tables["heads"]
    model.set_attn_implementation("eager")
    largest: dict[tuple[str, int], list[Tensor]] = {}
    for text in texts:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        written = {"decoder_input_ids": model._shift_right(ids) if name == "T5" else shifted(ids)} if pair else {}
        with torch.no_grad():
            outputs = model(input_ids=ids, output_attentions=True, **written)
        for stack in ("encoder", "decoder", "cross") if pair else (family.kind,):
            for layer, weights in enumerate(outputs[f"{stack}_attentions" if pair else "attentions"]):
                # Of rows with a learned sink (GPT-OSS) weights over tokens, given that it is none of the sink.
                rows = weights[0] / weights[0].sum(dim=-1, keepdim=True)
                largest.setdefault((stack, layer), []).append(rows.max(dim=-1).values)  # (heads, queries)
    for (stack, layer), found in largest.items():
        own = heads[(heads["stack"] == stack) & (heads["layer"] == layer)].sort_values("head")
        expected = torch.cat(found, dim=1).double().mean(dim=1)
        np.testing.assert_allclose(own["confidence_all"], expected.numpy(), atol=1e-5)


def shifted(ids: Tensor) -> Tensor:
    """What a decoder reads under teacher forcing: the start token, then all but the last."""
    return torch.cat([torch.tensor([[2]]), ids[:, :-1]], dim=1)
