"""Factors of what is left of a layer, against normal equations of naive loops in float64."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import zoo
from tiers import rest_slow
from torch import nn

from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.errors import UnsupportedModelError
from headlens.heads import Head
from headlens.interventions.compacting import compact_model, zero_heads
from headlens.interventions.gates import HeadGates
from headlens.interventions.rescaling import rescaling, scale_layers

NAMES = ["llama", "gpt2", "bert", "marian", "gpt-oss"]


def by_hand(model: Any, module: str, path: nn.Module, removed: set[int], n_heads: int, name: str) -> float:
    """α = Σ y·z / Σ z·z over real tokens, head by head, of single texts."""
    seen: list[np.ndarray[Any, Any]] = []
    hook = path.register_forward_pre_hook(lambda _, given: seen.append(given[0][0].detach().double().numpy()))
    with torch.no_grad():
        for row in zoo.unpadded(zoo.ZOO[name]):
            model(**row)
    hook.remove()
    weight = path.weight.detach().double().numpy()
    weight = weight if type(path).__name__ == "Conv1D" else weight.T  # (heads x d, features)
    top = bottom = 0.0
    for context in seen:
        size = context.shape[-1] // n_heads
        for token in context:
            parts = [token[h * size : (h + 1) * size] @ weight[h * size : (h + 1) * size] for h in range(n_heads)]
            y, z = sum(parts), sum(part for h, part in enumerate(parts) if h not in removed)
            top, bottom = top + y @ z, bottom + z @ z
    return float(top / bottom)


@pytest.mark.parametrize("name", rest_slow(NAMES, ["llama", "bert"]))
def test_factors_are_those_of_least_squares(name: str) -> None:
    model = zoo.ZOO[name].build()
    sites = find_sites(model)
    removed = [Head(s.stack, s.layer, h) for s in sites if s.layer < 2 for h in range(0, s.n_heads, 2)]
    factors = rescaling(model, removed, [zoo.padded(zoo.ZOO[name])])
    assert set(factors) == {s for s in sites if s.layer < 2}
    for site, factor in factors.items():
        expected = by_hand(
            model, site.module, zoo.projection(model, site), set(range(0, site.n_heads, 2)), site.n_heads, name
        )
        assert factor == pytest.approx(expected, rel=1e-4)
        assert factor != pytest.approx(1.0, abs=1e-3)


def test_no_other_factor_comes_nearer() -> None:
    """Of the layer itself: the squared error of its output is smallest at the factor, on both sides of it."""
    model, inputs = zoo.ZOO["llama"].build(), zoo.padded(zoo.ZOO["llama"])
    removed = [Head("decoder", 0, 0), Head("decoder", 0, 2)]
    (site, factor), *_ = rescaling(model, removed, [inputs]).items()
    outputs: list[torch.Tensor] = []
    model.get_submodule(site.module).register_forward_hook(lambda _, __, given: outputs.append(given[0].detach()))

    def error(alpha: float) -> float:
        values = {h: 0.0 if h in removed else alpha for h in site.heads}
        with torch.no_grad():
            model(**inputs)
            with AttentionSession(model, edits=[HeadGates(values)]):
                model(**inputs)
        whole, left = outputs[-2:]
        real = inputs["attention_mask"].bool()
        return float((whole - left)[real].double().square().sum())

    errors = [error(alpha) for alpha in (factor - 0.02, factor, factor + 0.02)]
    assert errors[1] < min(errors[0], errors[2])
    # A parabola: the vertex of the three points is the factor.
    bend = (errors[0] - errors[2]) / (2 * (errors[0] - 2 * errors[1] + errors[2])) * 0.02
    assert abs(bend) < 1e-4


@pytest.mark.parametrize(("name", "stock"), [("llama", False), ("llama", True), ("bert", False)])
def test_weights_hold_the_factors(name: str, *, stock: bool) -> None:
    model, inputs = zoo.ZOO[name].build(), zoo.padded(zoo.ZOO[name])
    sites = find_sites(model)
    removed = [Head(s.stack, s.layer, h) for s in sites for h in (0, 2) if s.layer < 2]
    factors = rescaling(model, removed, [inputs])
    small = copy.deepcopy(model)
    (zero_heads if stock else compact_model)(small, removed)
    scale_layers(small, factors)
    values = {h: factors.get(s, 1.0) for s in sites for h in s.heads} | dict.fromkeys(removed, 0.0)
    with torch.no_grad(), AttentionSession(model, edits=[HeadGates(values)]):
        expected = model(**inputs)[0]
    with torch.no_grad():
        assert (small(**inputs)[0] - expected).abs().max() <= 2e-5


def test_layers_that_keep_all_or_nothing_have_no_factor() -> None:
    model = zoo.ZOO["bert"].build()
    removed = [Head("encoder", 1, h) for h in range(4)]
    assert rescaling(model, removed, [zoo.padded(zoo.ZOO["bert"])]) == {}


def test_heads_that_give_nothing_leave_the_factor_at_1() -> None:
    model = zoo.ZOO["llama"].build()
    projection = zoo.projection(model, find_sites(model)[0])
    zoo.without_head(projection, 1, 4)
    zoo.without_head(projection, 3, 4)
    found = rescaling(model, [Head("decoder", 0, 0), Head("decoder", 0, 2)], [zoo.padded(zoo.ZOO["llama"])])
    assert list(found.values()) == [1.0]


def test_shared_weights_are_refused() -> None:
    model = zoo.ZOO["albert"].build()
    with pytest.raises(UnsupportedModelError, match="shares its weights"):
        rescaling(model, [Head("encoder", layer, 0) for layer in range(4)], [zoo.padded(zoo.ZOO["albert"])])
