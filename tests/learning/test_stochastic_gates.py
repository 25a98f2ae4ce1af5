"""Learned gates: what they do to a model, what is penalised, and gradients against finite differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import zoo
from spread_gates import spread
from watching import run

from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site
from headlens.errors import OptionError
from headlens.heads import Stack
from headlens.interventions.edited_model import EditedModel
from headlens.interventions.gates import HeadGates
from headlens.interventions.hard_concrete import HardConcrete
from headlens.learning.gate_training import StochasticGates, gated_sites

MODELS = ["bert", "albert", "marian", "roberta", "gpt2"]


@pytest.mark.parametrize("name", MODELS)
def test_at_evaluation_they_are_head_gates(name: str) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(), zoo.padded(entry)
    gates = spread(StochasticGates(gated_sites(model))).eval()
    with EditedModel(model, gates).eval().opened():
        found = run(model, inputs)
    with AttentionSession(model, edits=[HeadGates(gates.values())]):
        expected = run(model, inputs)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert not torch.allclose(found, run(model, inputs), atol=1e-3)
    assert {h for h, v in gates.values().items() if v == 0.0} == set(gates.closed())
    assert 0 < len(gates.closed()) < len(gates.heads)


def test_before_training_nothing_is_changed() -> None:
    entry = zoo.ZOO["bert"]
    model, inputs = entry.build(), zoo.padded(entry)
    with EditedModel(model, StochasticGates(gated_sites(model))).eval().opened():
        found = run(model, inputs)
    assert torch.equal(found, run(model, inputs))


def test_in_training_a_gate_is_drawn_in_every_pass_for_all_sentences() -> None:
    """What the gates do is what the law gives for torch's own noise, call by call."""
    entry = zoo.ZOO["albert"]
    model, inputs = entry.build(), zoo.padded(entry)
    gates = spread(StochasticGates(gated_sites(model))).train()
    torch.manual_seed(5)
    law = HardConcrete()
    with torch.no_grad():
        values = {s: law.sample(a, law.noise(a)) for s, a in zip(gates.sites, gates.log_alpha.values(), strict=True)}
    with AttentionSession(model, edits=[HeadGates(values)]):
        expected = run(model, inputs)
    with AttentionSession(model, edits=[gates]):
        torch.manual_seed(5)
        assert torch.equal(run(model, inputs), expected)
        assert not torch.allclose(run(model, inputs), expected, atol=1e-4)


def test_penalty_is_the_expected_number_of_open_gates() -> None:
    sites = [Site("encoder", 0, 2, "a"), Site("cross", 0, 4, "b")]
    gates = StochasticGates(sites, start=0.0)
    open_probability = 1 / (1 + 11**-0.33)
    assert float(gates.penalty("sum").detach()) == pytest.approx(6 * open_probability, rel=1e-6)
    assert float(gates.penalty("mean").detach()) == pytest.approx(3 * open_probability, rel=1e-5)


def test_gradients_by_finite_differences() -> None:
    """Of a loss and the penalty, by every log α, with noise that stays as it is."""
    entry = zoo.ZOO["bert"]
    model, inputs = entry.build().double(), zoo.padded(entry)
    gates = StochasticGates(gated_sites(model), start=0.3).double()
    gated = EditedModel(model, gates)

    def loss() -> torch.Tensor:
        torch.manual_seed(11)
        model.eval()
        gates.train()
        outputs: Any = gated(**inputs).last_hidden_state
        return outputs.tanh().sum() + 0.7 * gates.penalty()

    with gated.opened():
        parameters = list(gates.parameters())
        exact = torch.autograd.grad(loss(), parameters)
        checked = 0
        for parameter, gradient in zip(parameters, exact, strict=True):
            for place in range(len(parameter)):
                ends = []
                for step in (1e-6, -1e-6):
                    with torch.no_grad():
                        parameter[place] += step
                        ends.append(float(loss()))
                        parameter[place] -= step
                assert float(gradient[place]) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-4, abs=1e-6)
                checked += abs(float(gradient[place])) > 1e-3
        assert checked > 6


@pytest.mark.parametrize(
    ("name", "stacks", "expected"),
    [
        ("marian", None, {"encoder", "decoder", "cross"}),
        ("marian", ["encoder"], {"encoder"}),
        ("marian", ["cross", "decoder"], {"decoder", "cross"}),
        ("bert", None, {"encoder"}),
    ],
)
def test_any_subset_of_the_stacks(name: str, stacks: list[Stack] | None, expected: set[str]) -> None:
    assert {s.stack for s in gated_sites(zoo.ZOO[name].build(), stacks)} == expected


def test_stacks_that_are_not_there() -> None:
    model = zoo.ZOO["bert"].build()
    with pytest.raises(OptionError, match=r"--law gates decoder: BertModel has no such heads\.\nIt has encoder\."):
        gated_sites(model, ["encoder", "decoder"])
    with pytest.raises(OptionError, match="No stack was chosen for gates"):
        gated_sites(model, [])


def test_gates_of_another_model() -> None:
    gates = StochasticGates([Site("encoder", 0, 3, "somewhere")])
    with pytest.raises(OptionError, match=r"The gates of encoder\.0 cannot belong to this model"):
        AttentionSession(zoo.ZOO["bert"].build(), edits=[gates])


def test_only_inside_with() -> None:
    entry = zoo.ZOO["bert"]
    gated = EditedModel(entry.build(), StochasticGates(gated_sites(entry.build())))
    with pytest.raises(RuntimeError, match=r"inside `with edited\.opened\(\)`"):
        gated(**zoo.padded(entry))
