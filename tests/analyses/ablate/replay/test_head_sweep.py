"""The sweep over batches: records of all examples, without growing, whatever memory there is."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
import zoo
from tiers import rest_slow
from torch import Tensor, nn

from headlens.analyses.ablate.options import Mode
from headlens.analyses.ablate.replay.head_ablation import Replay
from headlens.analyses.ablate.replay.head_sweep import HeadSweepOptions, SweepRecords, concatenate_records, sweep
from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.errors import ModelError, SelfCheckError
from headlens.heads import Head
from headlens.interventions.compacting import compact_model
from headlens.interventions.gates import HeadGates


def read(outputs: Any, inputs: Any) -> Tensor:
    """The first neurons of each first position."""
    del inputs
    return outputs[0].flatten(1)[:, :3]


def batches(name: str) -> list[dict[str, Any]]:
    return [zoo.padded(zoo.ZOO[name]), *zoo.unpadded(zoo.ZOO[name])[:2]]


@pytest.mark.parametrize("name", ["bert-classifier", "albert", "gpt2", "marian"])
def test_records_are_those_of_full_passes(name: str) -> None:
    model, seen = zoo.ZOO[name].build().double(), []
    found = sweep(model, batches(name), read, HeadSweepOptions(tokens=40), seen.append)
    assert seen == [3, 1, 1]
    heads = [h for s in find_sites(model) for h in s.heads]
    assert list(found.without) == heads
    for head in [None, *heads]:
        with AttentionSession(model, edits=[HeadGates({} if head is None else {head: 0.0})]), torch.no_grad():
            expected = torch.cat([read(model(**b), b) for b in batches(name)]).numpy()
        records = found.intact if head is None else found.without[head]
        assert np.allclose(records, expected, rtol=1e-9, atol=1e-12)
        assert head is None or not np.allclose(records, found.intact, rtol=1e-6)


def test_some_heads_alone() -> None:
    model, wanted = zoo.ZOO["bert"].build(), (Head("encoder", 2, 1), Head("encoder", 0, 3))
    every = sweep(model, batches("bert"), read)
    found = sweep(model, batches("bert"), read, HeadSweepOptions(heads=wanted))
    assert set(found.without) == set(wanted)
    for head in wanted:
        assert np.allclose(found.without[head], every.without[head], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("bert-classifier", ["encoder.0.0", "encoder.0.2", "encoder.2.1", *(f"encoder.1.{h}" for h in range(4))]),
        ("marian", ["encoder.0.1", "encoder.2.0", "decoder.0.0", "cross.1.0", "cross.0.0", "cross.0.1"]),
        ("albert", [f"encoder.{layer}.1" for layer in range(4)]),
    ],
)
@pytest.mark.parametrize("mode", ["zero", "keep-only"])
def test_heads_of_a_compacted_model_are_known_by_their_original_numbers(name: str, gone: list[str], mode: Mode) -> None:
    whole, removed = zoo.ZOO[name].build().double(), [Head.parse(h) for h in gone]
    model = deepcopy(whole)
    compact_model(model, removed)
    found = sweep(model, batches(name), read, HeadSweepOptions(mode=mode))
    for head, records in found.without.items():
        others = [h for s in find_sites(whole) for h in s.heads if h[:2] == head[:2] and h != head]
        gates = dict.fromkeys([*removed, *(others if mode == "keep-only" else [head])], 0.0)
        with AttentionSession(whole, edits=[HeadGates(gates)]), torch.no_grad():
            expected = torch.cat([read(whole(**b), b) for b in batches(name)]).numpy()
        assert np.allclose(records, expected, rtol=1e-9, atol=1e-12)


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
    expected = sweep(model, batches("bert"), read)
    scarce = Scarce(model, rows)
    found = sweep(model, batches("bert"), read)
    assert scarce.refused > 0
    assert np.allclose(found.intact, expected.intact, atol=1e-12)
    for head, records in found.without.items():
        assert np.allclose(records, expected.without[head], atol=1e-12)


def test_too_little_memory_for_anything_is_told() -> None:
    model = zoo.ZOO["bert"].build()
    Scarce(model, 0)
    with pytest.raises(ModelError, match="not have enough memory for a single example"):
        sweep(model, batches("bert"), read)


@pytest.mark.slow
def test_memory_that_fits_the_intact_pass_but_no_replay_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Replay, "changed", fail)
    with pytest.raises(ModelError, match="not have enough memory for a single example of 7 tokens"):
        sweep(zoo.ZOO["bert"].build(), batches("bert"), read)


def test_other_errors_are_not_taken_for_memory() -> None:
    def broken(outputs: Any, inputs: Any) -> Tensor:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        sweep(zoo.ZOO["bert"].build(), batches("bert"), broken)


def test_what_is_read_must_be_a_row_for_each_example() -> None:
    with pytest.raises(SelfCheckError, match=r"batch of 3 examples gave records of the shape \(3, 7, 32\)"):
        sweep(zoo.ZOO["bert"].build(), batches("bert"), lambda outputs, _: outputs[0])


def test_no_batches_give_no_records_and_batches_must_have_the_same_heads() -> None:
    assert sweep(zoo.ZOO["bert"].build(), [], read).without == {}
    one = SweepRecords(np.ones((1, 1)), {Head("encoder", 0, 0): np.ones((1, 1))})
    with pytest.raises(SelfCheckError, match="different layers"):
        concatenate_records([one, SweepRecords(np.ones((1, 1)), {})])
