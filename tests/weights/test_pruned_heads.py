"""Checkpoints that `prune_heads` of transformers 4 left: read as the whole model with those heads silent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from saved import Weights, build, prefixed, rewrite, save
from torch import Tensor
from transformers import PreTrainedModel

from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.errors import ModelError
from headlens.heads import Head
from headlens.interventions.compacting import removed_heads
from headlens.interventions.gates import HeadGates
from headlens.models.loading import load

HEADS, SIZE = 4, 8
SETTINGS: dict[str, dict[str, Any]] = {
    "DistilBert": {"hidden_dim": 16},
    "Electra": {"embedding_size": 8},
    "Albert": {"embedding_size": 8, "num_hidden_groups": 2},
    "GPT2": {"n_embd": 32, "n_head": HEADS},
}
# Where the projections of a layer are, as transformers 4 cut them: into the heads, and out of them.
PLACES = {
    "Bert": ("encoder.layer.{}.attention.", ("self.query", "self.key", "self.value"), "output.dense"),
    "Roberta": ("encoder.layer.{}.attention.", ("self.query", "self.key", "self.value"), "output.dense"),
    "Electra": ("encoder.layer.{}.attention.", ("self.query", "self.key", "self.value"), "output.dense"),
    "DistilBert": ("transformer.layer.{}.attention.", ("q_lin", "k_lin", "v_lin"), "out_lin"),
    "Albert": (
        "encoder.albert_layer_groups.{}.albert_layers.0.attention.",
        ("query", "key", "value"),
        "dense",
    ),
}
GONE = {0: [1, 2], 1: [3]}
IDS = torch.tensor([[5, 6, 7, 8, 9], [9, 8, 7, 6, 5]])


def whole(family: str, head: str = "Model", vocabulary: int = 60) -> PreTrainedModel:
    usual = {"hidden_size": HEADS * SIZE, "num_attention_heads": HEADS} if family != "GPT2" else {}
    return build(f"{family}{head}", vocabulary, **usual, **SETTINGS.get(family, {}))


def cut(family: str, gone: Mapping[int, list[int]], base: str = "") -> Any:
    """Takes the rows and columns of heads out of the weights of a checkpoint."""
    place, inward, output = PLACES[family]

    def change(weights: Weights) -> None:
        for layer, heads in gone.items():
            kept = [h * SIZE + i for h in range(HEADS) if h not in heads for i in range(SIZE)]
            for name in inward:
                for part in ("weight", "bias"):
                    key = f"{base}{place.format(layer)}{name}.{part}"
                    weights[key] = weights[key][kept]
            key = f"{base}{place.format(layer)}{output}.weight"
            weights[key] = weights[key][:, kept]

    return change


def pruned(path: Path, family: str, gone: Mapping[int, list[int]] = GONE) -> str:
    names = {str(layer): heads for layer, heads in gone.items()}
    return rewrite(save(whole(family), path), cut(family, gone), pruned_heads=names)


def gated(model: PreTrainedModel, gone: Mapping[int, list[int]]) -> Tensor:
    """The last hidden states of a whole model with heads times zero."""
    gates = HeadGates({Head("encoder", layer, h): 0.0 for layer, heads in gone.items() for h in heads})
    with AttentionSession(model, edits=[gates]), torch.no_grad():
        states: Tensor = model(IDS)[0]
    return states


@pytest.mark.parametrize("family", PLACES)
def test_outputs_are_those_of_the_whole_model_with_these_heads_silent(tmp_path: Path, family: str) -> None:
    loaded = load(pruned(tmp_path / "model", family))
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(IDS)[0], gated(whole(family), GONE))
    assert removed_heads(loaded.model) == [Head("encoder", 0, 1), Head("encoder", 0, 2), Head("encoder", 1, 3)]
    assert [[h.head for h in s.heads] for s in find_sites(loaded.model)] == [[0, 3], [0, 1, 2]]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(gone=st.dictionaries(st.integers(0, 1), st.lists(st.integers(0, 3), unique=True, max_size=3), min_size=1))
def test_any_heads(tmp_path_factory: pytest.TempPathFactory, gone: dict[int, list[int]]) -> None:
    loaded = load(pruned(tmp_path_factory.mktemp("any") / "model", "Bert", gone))
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(IDS)[0], gated(whole("Bert"), gone))


def test_under_a_head_and_a_prefix(tmp_path: Path) -> None:
    model = whole("Bert", "ForSequenceClassification")
    folder = rewrite(save(model, tmp_path / "model"), cut("Bert", GONE, "bert."), pruned_heads={"0": [1, 2], "1": [3]})
    loaded = load(rewrite(folder, prefixed("module.")))
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(IDS)[0], gated(model, GONE))
    assert "module." in loaded.notes[0]


@pytest.mark.parametrize(
    "named", [{"0": [4]}, {"2": [0]}, {"-1": [0]}, {"0": [1, 1]}, {"x": [1]}, {"0": 3}, {"0": ["1"]}, [1, 2], "0", 7]
)
def test_what_it_may_not_say(tmp_path: Path, named: object) -> None:
    folder = rewrite(save(whole("Bert"), tmp_path / "model"), lambda w: None, pruned_heads=named)
    with pytest.raises(ModelError) as caught:
        load(folder)
    assert "pruned_heads" in caught.value.message
    assert caught.value.advice


def test_a_model_whose_heads_cannot_be_cut_out(tmp_path: Path) -> None:
    folder = rewrite(save(whole("GPT2"), tmp_path / "model"), lambda w: None, pruned_heads={"0": [1]})
    with pytest.raises(
        ModelError, match=r"\(pruned_heads\), which headlens cannot do in a GPT2Model: it finds no separate layers"
    ):
        load(folder)


def test_no_class(tmp_path: Path) -> None:
    folder = rewrite(pruned(tmp_path / "model", "Bert"), lambda w: None, architectures=None)
    with pytest.raises(ModelError, match=r"names no class of transformers, which a checkpoint with pruned_heads needs"):
        load(folder)


@pytest.mark.parametrize("named", [{}, None, {"0": []}])
def test_no_heads_gone(tmp_path: Path, named: object) -> None:
    loaded = load(rewrite(save(whole("Bert"), tmp_path / "model"), lambda w: None, pruned_heads=named))
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(IDS)[0], gated(whole("Bert"), {}))
    assert removed_heads(loaded.model) == []


def test_weights_that_were_not_cut(tmp_path: Path) -> None:
    folder = rewrite(save(whole("Bert"), tmp_path / "model"), lambda w: None, pruned_heads={"0": [1]})
    with pytest.raises(ModelError, match=r"have other shapes than its config\.json says"):
        load(folder)
