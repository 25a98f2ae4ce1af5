"""Replays against one full pass for every head."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import zoo
from relevance_neurons import SINGLE, model_and_inputs
from torch import Tensor
from transformers import PreTrainedModel

from headlens.attention.contract import CallContext, Edit
from headlens.attention.replaced import MODES, HeadMeans, Mode
from headlens.attention.replay import Replay
from headlens.attention.rows import tensors
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site, find_sites
from headlens.errors import OptionError, SelfCheckError
from headlens.heads import Head
from headlens.interventions.gates import HeadGates

FAMILIES = ["bert-classifier", "albert-groups", "roberta", "distilbert", "electra", "gpt2", "marian", "bart"]


class Instead(Edit):
    """Puts a number for each neuron in the place of one head's output."""

    def __init__(self, head: Head, mean: Tensor) -> None:
        self.head, self.mean = head, mean

    def output(self, context: CallContext, output: Tensor) -> Tensor:
        if (context.site.stack, context.site.layer) != self.head[:2]:
            return output
        output = output.clone()
        output[:, :, self.head.head] = self.mean[self.head.head].to(output)
        return output


class Evenly(Edit):
    """Averages values over the keys a query may look at, query by query."""

    edits_mask = True

    def __init__(self, head: Head) -> None:
        self.head, self.seen = head, None

    def mask(self, context: CallContext, mask: Tensor | None) -> Tensor | None:
        self.seen = mask
        return mask

    def output(self, context: CallContext, output: Tensor) -> Tensor:
        if (context.site.stack, context.site.layer) != self.head[:2]:
            return output
        output = output.clone()
        groups = context.query.shape[1] // context.value.shape[1]
        for row in range(output.shape[0]):
            for query in range(output.shape[1]):
                values = context.value[row, self.head.head // groups]
                keys = self._keys(row, query, query + 1 if context.causal else len(values))
                output[row, query, self.head.head] = values[keys].mean(dim=0)
        return output

    def _keys(self, row: int, query: int, n_keys: int) -> list[int]:
        if self.seen is None:
            return list(range(n_keys))
        mask = self.seen[row % self.seen.shape[0], 0, query % self.seen.shape[2]]
        kept = [k for k in range(n_keys) if (bool(mask[k]) if mask.dtype is torch.bool else float(mask[k]) > -1e30)]
        return kept or list(range(n_keys))


def edit_for(mode: Mode, head: Head, site: Site, means: dict[Site, Tensor] | None) -> Edit:
    if mode == "zero":
        return HeadGates({head: 0.0})
    if mode == "keep-only":
        return HeadGates({h: 0.0 for h in site.heads if h != head})
    return Evenly(head) if means is None else Instead(head, means[site])


def full(model: PreTrainedModel, inputs: dict[str, Any], edit: Edit) -> Any:
    cache = {} if all(s.stack == "encoder" for s in find_sites(model)) else {"use_cache": False}
    with AttentionSession(model, edits=[edit]), torch.no_grad():
        return model(**{**inputs, **cache})


def random_means(model: PreTrainedModel, mode: Mode) -> dict[Site, Tensor] | None:
    if mode != "mean":
        return None
    generator = torch.Generator().manual_seed(3)
    size = model.config.hidden_size
    return {s: torch.randn(s.n_heads, size // s.n_heads, generator=generator) for s in find_sites(model)}


def assert_same(ours: Any, theirs: Any, tolerance: float) -> None:
    pairs = list(zip(tensors(ours), tensors(theirs), strict=True))
    assert pairs
    for own, other in pairs:
        assert own.shape == other.shape
        assert float((own - other).abs().max()) <= tolerance * float(other.abs().max())


def compare(model: PreTrainedModel, inputs: dict[str, Any], mode: Mode, tolerance: float, tokens: int = 2**14) -> None:
    means = random_means(model, mode)
    met = []
    with Replay(model, mode, means, tokens=tokens) as replay:
        found = list(replay.run(inputs).variants())
    by_head = {h: s for s in find_sites(model) for h in s.heads}
    for variant in found:
        edit = edit_for(mode, variant.head, by_head[variant.head], means)
        assert_same(variant.outputs, full(model, inputs, edit), tolerance)
        met.append(variant.head)
    assert met == list(by_head)


@pytest.mark.parametrize("name", [n for n in zoo.ZOO if n not in FAMILIES])
def test_every_architecture_gives_what_full_passes_give(name: str) -> None:
    if name in (*SINGLE, "gemma2", "gpt-oss"):
        compare(zoo.ZOO[name].build(), zoo.padded(zoo.ZOO[name]), "zero", 1e-5)
    else:
        compare(*model_and_inputs(name), "zero", 1e-10)


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_mode_gives_what_full_passes_give(name: str, mode: Mode, kernel: str) -> None:
    compare(*model_and_inputs(name, kernel=kernel), mode, 1e-10)
