"""Batches with all heads and without each: records of all examples, whatever memory there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
import zoo
from tiers import rest_slow, rest_slow_rows
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.analyses.ablate.sweep import sweep_batch
from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.errors import ModelError
from headlens.heads import Head
from headlens.interventions.compacting import compact_model
from headlens.interventions.gates import HeadGates
from headlens.memory import SplitWhenOutOfMemory
from headlens.replay.head_ablation import Replay
from headlens.replay.modes import Mode
from headlens.replay.nested_tensors import part
from headlens.tasks.task import Floats


def read(outputs: Any) -> Tensor:
    """The first neurons of each first position."""
    return outputs[0].flatten(1)[:, :3]


def every_head(model: PreTrainedModel) -> list[Head]:
    return [h for s in find_sites(model) for h in s.heads]


def sweep(
    model: PreTrainedModel,
    name: str,
    heads: Sequence[Head],
    mode: Mode = "zero",
    tokens: int | None = None,
    read: Callable[[Any], Tensor] = read,
) -> dict[Head | None, Floats]:
    """Records of all batches, in as many parts as memory requires: with all heads (None) and without each."""
    found = []
    with Replay(model, mode, tokens=tokens) as replay:
        for inputs in batches(name):
            rows = len(inputs["input_ids"])

            def run(numbers: Sequence[int], inputs: Any = inputs, rows: int = rows) -> Floats:
                chunk = part(inputs, numbers[0], numbers[-1] + 1, rows)
                return sweep_batch(replay, chunk, lambda outputs: read(outputs).detach().double().numpy(), heads)

            def tokens_of(numbers: Sequence[int], length: int = inputs["input_ids"].shape[1]) -> int:
                return len(numbers) * length

            in_parts = SplitWhenOutOfMemory(
                model.device,
                run,
                lambda a, b: np.concatenate([a, b], axis=1),
                tokens_of,
                lambda _: None,
            )
            found.append(in_parts(range(rows)))
    return dict(zip([None, *heads], np.concatenate(found, axis=1), strict=True))


def batches(name: str) -> list[dict[str, Any]]:
    return [zoo.padded(zoo.ZOO[name]), *zoo.unpadded(zoo.ZOO[name])[:2]]


@pytest.mark.parametrize("name", rest_slow(["bert-classifier", "albert", "gpt2", "marian"], ("albert",)))
def test_records_are_those_of_full_passes(name: str) -> None:
    model = zoo.ZOO[name].build().double()
    found = sweep(model, name, every_head(model), tokens=40)
    for head, records in found.items():
        with AttentionSession(model, edits=[HeadGates({} if head is None else {head: 0.0})]), torch.no_grad():
            expected = torch.cat([read(model(**b)) for b in batches(name)]).numpy()
        assert np.allclose(records, expected, rtol=1e-9, atol=1e-12)
        assert head is None or not np.allclose(records, found[None], rtol=1e-6)


def test_some_heads_alone() -> None:
    model, wanted = zoo.ZOO["bert"].build(), (Head("encoder", 2, 1), Head("encoder", 0, 3))
    every = sweep(model, "bert", every_head(model))
    for head, records in sweep(model, "bert", wanted).items():
        assert np.allclose(records, every[head], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "gone"),
    rest_slow_rows(
        [
            ("bert-classifier", ["encoder.0.0", "encoder.0.2", "encoder.2.1", *(f"encoder.1.{h}" for h in range(4))]),
            ("marian", ["encoder.0.1", "encoder.2.0", "decoder.0.0", "cross.1.0", "cross.0.0", "cross.0.1"]),
            ("albert", [f"encoder.{layer}.1" for layer in range(4)]),
        ]
    ),
)
@pytest.mark.parametrize("mode", rest_slow(["zero", "keep-only"], ["keep-only"]))
def test_heads_of_a_compacted_model_are_known_by_their_original_numbers(name: str, gone: list[str], mode: Mode) -> None:
    whole, removed = zoo.ZOO[name].build().double(), [Head.parse(h) for h in gone]
    model = deepcopy(whole)
    compact_model(model, removed)
    heads = every_head(model)
    found = sweep(model, name, heads, mode)
    for head in heads:
        others = [h for s in find_sites(whole) for h in s.heads if h[:2] == head[:2] and h != head]
        gates = dict.fromkeys([*removed, *(others if mode == "keep-only" else [head])], 0.0)
        with AttentionSession(whole, edits=[HeadGates(gates)]), torch.no_grad():
            expected = torch.cat([read(whole(**b)) for b in batches(name)]).numpy()
        assert np.allclose(found[head], expected, rtol=1e-9, atol=1e-12)


class Scarce:
    """Passes with more rows than fit run out of memory."""

    def __init__(self, model: nn.Module, rows: int) -> None:
        self.refused = 0
        self.rows = rows
        # What runs in every replay, wherever it starts.
        model.encoder.layer[-1].register_forward_hook(self)

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if args[0].shape[0] > self.rows:
            self.refused += 1
            raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize("rows", rest_slow([7, 3, 2, 1], [3]))
def test_too_little_memory_gives_the_same_in_smaller_parts(rows: int) -> None:
    model = zoo.ZOO["bert"].build().double()
    expected = sweep(model, "bert", every_head(model))
    scarce = Scarce(model, rows)
    found = sweep(model, "bert", every_head(model))
    assert scarce.refused > 0
    for head, records in found.items():
        assert np.allclose(records, expected[head], atol=1e-12)


def test_too_little_memory_for_anything_is_told() -> None:
    model = zoo.ZOO["bert"].build()
    Scarce(model, 0)
    with pytest.raises(ModelError, match="not have enough memory for a single example"):
        sweep(model, "bert", every_head(model))


@pytest.mark.slow
def test_memory_that_fits_the_intact_pass_but_no_replay_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Replay, "changed", fail)
    with pytest.raises(ModelError, match="not have enough memory for a single example of 7 tokens"):
        sweep(zoo.ZOO["bert"].build(), "bert", [Head("encoder", 0, 0)])


def test_other_errors_are_not_taken_for_memory() -> None:
    def broken(outputs: Any) -> Tensor:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        sweep(zoo.ZOO["bert"].build(), "bert", [], read=broken)
