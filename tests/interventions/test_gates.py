from functools import partial
from typing import Any

import pytest
import torch
import zoo
from tiers import rest_slow
from torch import nn
from watching import AddToMask, Watch, run

from headlens.attention.session import AttentionSession
from headlens.attention.sites import find_sites
from headlens.errors import OptionError
from headlens.heads import Head
from headlens.interventions.gates import HeadGates

UNSHARED = [n for n in zoo.ZOO if n not in zoo.SHARED]


@pytest.mark.parametrize("name", rest_slow(UNSHARED, zoo.REPRESENTATIVES))
def test_gate_0_is_the_output_projection_without_the_head_at_every_site(name: str) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(), zoo.padded(entry)
    plain = run(model, inputs)
    for i, site in enumerate(find_sites(model)):
        head = site.heads[i % site.n_heads]
        with AttentionSession(model, edits=[HeadGates({head: 0.0})]):
            gated = run(model, inputs)
        layer = zoo.projection(model, site)
        weight = layer.weight.clone()
        zoo.without_head(layer, head.head, site.n_heads)
        assert torch.allclose(gated, run(model, inputs), atol=1e-5)
        layer.weight.data = weight
        assert not torch.allclose(gated, plain, atol=1e-4)


def cut_input(calls: list[nn.Module], depth: int, head: int, layer: nn.Module, args: Any) -> Any:
    """A hook that zeroes one head's slice of what an output projection gets, at one of its calls."""
    calls.append(layer)
    if len(calls) - 1 != depth:
        return None
    hidden = args[0].clone()
    hidden.unflatten(-1, (4, -1))[..., head, :] = 0
    return (hidden,)


@pytest.mark.parametrize("kernel", rest_slow(["eager", "sdpa"]))
@pytest.mark.parametrize("name", rest_slow(zoo.SHARED, 2))
def test_with_shared_weights_a_gate_holds_at_its_depth_only(name: str, kernel: str) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(kernel), zoo.padded(entry)
    sites = find_sites(model)
    for depth, site in enumerate(sites):
        head = site.heads[depth % site.n_heads]
        with AttentionSession(model, edits=[HeadGates({head: 0.0})]):
            gated = run(model, inputs)
        calls: list[nn.Module] = []
        cut = partial(cut_input, calls, depth, head.head)
        layers = {id(p): p for p in (zoo.projection(model, s) for s in sites)}.values()
        hooks = [p.register_forward_pre_hook(cut) for p in layers]
        expected = run(model, inputs)
        for hook in hooks:
            hook.remove()
        assert len(calls) == len(sites)
        assert torch.allclose(gated, expected, atol=1e-6)
        assert not torch.allclose(gated, run(model, inputs), atol=1e-4)


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["bert", "llama", "marian"])
def test_gates_of_1_change_nothing_and_both_kernels_agree(name: str, kernel: str) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(kernel), zoo.padded(entry)
    expected = run(model, inputs)
    sites = find_sites(model)
    with AttentionSession(model, edits=[HeadGates({h: 1.0 for s in sites for h in s.heads})]):
        assert torch.equal(run(model, inputs), expected)
    with AttentionSession(model, edits=[HeadGates({})]):
        assert torch.equal(run(model, inputs), expected)
    some = HeadGates({h: 0.5 * h.head for s in sites for h in s.heads})
    results = []
    for each in ("eager", "sdpa"):
        with AttentionSession(model, edits=[some], kernel=each):
            results.append(run(model, inputs))
    assert torch.allclose(*results, atol=1e-5)


def test_heads_and_tensors_say_the_same_and_compose() -> None:
    entry = zoo.ZOO["bert"]
    model, inputs = entry.build(), zoo.padded(entry)
    site = find_sites(model)[1]
    results = []
    for edits in (
        [HeadGates({Head("encoder", 1, 2): 0.25})],
        [HeadGates({site: torch.tensor([1, 1, 0.25, 1])})],
        [HeadGates({site: torch.tensor([[1, 1, 0.25, 1]]).expand(3, 4)})],
        [HeadGates({Head("encoder", 1, 2): 0.5}), HeadGates({site: torch.tensor([1, 1, 0.5, 1])})],
    ):
        with AttentionSession(model, edits=edits):
            results.append(run(model, inputs))
    for other in results[1:]:
        assert torch.allclose(other, results[0], atol=1e-6)


def test_gates_can_differ_by_example() -> None:
    entry = zoo.ZOO["bert"]
    model, inputs = entry.build(), zoo.padded(entry)
    site = find_sites(model)[0]
    gates = torch.eye(4)[:3]
    with AttentionSession(model, edits=[HeadGates({site: gates})]):
        together = run(model, inputs)
    for i, row in enumerate(gates):
        with AttentionSession(model, edits=[HeadGates({site: row})]):
            assert torch.allclose(run(model, inputs)[i], together[i], atol=1e-6)


def test_gates_learn() -> None:
    entry = zoo.ZOO["marian"]
    model, inputs = entry.build(), zoo.padded(entry)
    gates = {s: torch.full((s.n_heads,), 0.7, requires_grad=True) for s in find_sites(model)}
    with AttentionSession(model, edits=[HeadGates(gates)]):
        (model(**inputs)[0] ** 2).mean().backward()
    site = next(s for s in gates if s.stack == "cross")
    losses = []
    for step in (1e-2, -1e-2):
        moved = {site: gates[site].detach() + torch.tensor([0.0, step])}
        with AttentionSession(model, edits=[HeadGates({s: g.detach() for s, g in gates.items()} | moved)]):
            losses.append((run(model, inputs) ** 2).mean())
    assert gates[site].grad[1].item() == pytest.approx((losses[0] - losses[1]).item() / 2e-2, rel=0.02)
    assert all(g.grad.abs().sum() > 0 for g in gates.values())


def test_gates_stand_beside_mask_edits_and_observers_see_gated_outputs() -> None:
    entry = zoo.ZOO["bert"]
    model, watch = entry.build().to(torch.bfloat16), Watch()
    edits = [AddToMask(torch.zeros((), dtype=torch.bfloat16)), HeadGates({Head("encoder", 0, 3): 0.0})]
    with AttentionSession(model, observers=[watch], edits=edits):
        assert run(model, zoo.padded(entry)).dtype == torch.bfloat16
    output = watch.calls[0].output
    assert (output[:, :, 3] == 0).all()
    assert (output[:, :, :3] != 0).any()


@pytest.mark.parametrize(
    "head", [Head("encoder", 0, 4), Head("encoder", 3, 0), Head("decoder", 0, 2), Head("cross", 2, 0)]
)
def test_heads_out_of_range_are_refused_with_what_there_is(head: Head) -> None:
    model = zoo.ZOO["marian"].build()
    with pytest.raises(OptionError, match=f"There is no head {head}") as caught:
        AttentionSession(model, edits=[HeadGates({head: 0.0})])
    assert caught.value.advice == (
        "The model has encoder.0 to encoder.2 with 4 heads each; decoder.0 to decoder.1 with 2 heads each; "
        "cross.0 to cross.1 with 2 heads each."
    )


def test_tensors_of_the_wrong_shape_or_for_another_model_are_refused() -> None:
    site = find_sites(zoo.ZOO["marian"].build())[0]
    cross = find_sites(zoo.ZOO["marian"].build())[-1]
    model = zoo.ZOO["bert"].build()
    with pytest.raises(OptionError, match=r"gates of encoder.0 have the shape \(3,\)") as caught:
        AttentionSession(model, edits=[HeadGates({site: torch.ones(3)})])
    assert "(4,) or (batch, 4)" in caught.value.advice
    with pytest.raises(OptionError, match=r"shape \(1, 1, 4\)"):
        AttentionSession(model, edits=[HeadGates({site: torch.ones(1, 1, 4)})])
    with pytest.raises(OptionError, match=r"no layer cross\.1"):
        AttentionSession(model, edits=[HeadGates({cross: torch.ones(2)})])
