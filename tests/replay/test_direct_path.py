"""Path patching against passes in which hooks hold and replace what every output projection gets."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import torch
from relevance_neurons import model_and_inputs
from tiers import rest_slow
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.attention.sites import Site, find_sites
from headlens.errors import OptionError
from headlens.heads import Head
from headlens.replay.direct_path import Receiver, senders
from headlens.replay.head_ablation import Replay
from headlens.replay.nested_tensors import tensors

# What gets the head outputs of an attention module, by what its name ends in.
PROJECTIONS = ("output.dense", "out_lin", "c_proj", "o_proj", "out_proj")
PARTS = {"q": ("query", "q_proj", "q_lin"), "k": ("key", "k_proj", "k_lin"), "v": ("value", "v_proj", "v_lin")}


def projection(model: PreTrainedModel, site: Site) -> nn.Module:
    """The output projection of a site; BERT's stands beside its attention module."""
    place = site.module.removesuffix(".self")
    return next(m for end in PROJECTIONS for n, m in model.named_modules() if n == f"{place}.{end}")


def put(place: Tensor, module: nn.Module, args: Any) -> Any:
    del module
    return (place, *args[1:])


class ByHooks:
    """Passes whose head outputs are replaced before the output projections."""

    def __init__(self, model: PreTrainedModel, inputs: dict[str, Any], changed: dict[str, Any]) -> None:
        self.model, self.sites = model, find_sites(model)
        self.cache = {} if all(s.stack == "encoder" for s in self.sites) else {"use_cache": False}
        self.inputs = inputs
        self.intact, self.projected = self.record(inputs)
        self.changed, _ = self.record(changed)

    def record(self, inputs: dict[str, Any]) -> tuple[dict[Site, Tensor], dict[tuple[Site, str], Tensor]]:
        outputs: dict[Site, Tensor] = {}
        projected: dict[tuple[Site, str], Tensor] = {}
        with ExitStack() as stack:
            for site in self.sites:

                def keep(module: nn.Module, args: Any, site: Site = site) -> None:
                    del module
                    outputs[site] = args[0].clone()

                stack.callback(projection(self.model, site).register_forward_pre_hook(keep).remove)
                for part, module in self.parts(site).items():

                    def hold(m: nn.Module, a: Any, output: Tensor, key: tuple[Site, str] = (site, part)) -> None:
                        del m, a
                        projected[key] = output.clone()

                    stack.callback(module.register_forward_hook(hold).remove)
            self.run(inputs)
        return outputs, projected

    def parts(self, site: Site) -> dict[str, nn.Module]:
        module = self.model.get_submodule(site.module)
        named = dict(module.named_children())
        return {part: named[name] for part, names in PARTS.items() for name in names if name in named}

    def run(self, inputs: dict[str, Any]) -> Any:
        with torch.no_grad():
            return self.model(**{**inputs, **self.cache})

    def with_head(self, site: Site, head: Head, output: Tensor) -> Tensor:
        """The intact head outputs of a site, one of them replaced."""
        size = output.shape[-1] // site.n_heads
        mine = self.intact[site].clone()
        place = slice(head.head * size, (head.head + 1) * size)
        mine[..., place] = output[..., place]
        return mine

    def along(self, head: Head, receiver: Receiver | None) -> Any:
        """The model's outputs where a head's changed output takes the direct path."""
        sent = next(s for s in self.sites if head in s.heads)
        given = {s: self.intact[s] for s in self.sites} | {sent: self.with_head(sent, head, self.changed[sent])}
        if receiver is None:
            return self.replaced(given)
        to = next(s for s in self.sites if receiver.head in s.heads)
        del given[to]
        received: list[Tensor] = []
        with ExitStack() as stack:
            stack.callback(
                projection(self.model, to)
                .register_forward_pre_hook(lambda module, args: received.append(args[0].clone()))
                .remove
            )
            for part, module in self.parts(to).items():
                if part not in receiver.parts:
                    intact = self.projected[to, part]
                    stack.callback(module.register_forward_hook(lambda m, a, o, intact=intact: intact).remove)
            self.replaced(given)
        return self.replaced({to: self.with_head(to, receiver.head, received[0])})

    def replaced(self, given: dict[Site, Tensor]) -> Any:
        with ExitStack() as stack:
            for site, output in given.items():
                hook = partial(put, output)
                stack.callback(projection(self.model, site).register_forward_pre_hook(hook).remove)
            return self.run(self.inputs)


def changed_inputs(inputs: dict[str, Any]) -> dict[str, Any]:
    """Other tokens of the same vocabulary, as many and at the same places."""
    mixed = {}
    for name, value in inputs.items():
        ids = "input_ids" in name
        mixed[name] = value.flip(0) if ids else value
    return mixed


def stand_ins(replay: Replay, hooks: ByHooks) -> dict[Site, Tensor]:
    return {s: o.unflatten(-1, (s.n_heads, -1)) for s, o in hooks.changed.items() if s in replay.sites}


def compare(name: str, receiver: Receiver | None) -> int:
    """Compares all senders of a model; returns how many change its outputs."""
    model, inputs = model_and_inputs(name)
    inputs = {n: v for n, v in inputs.items() if "mask" not in n}
    hooks = ByHooks(model, inputs, changed_inputs(inputs))
    moved = 0
    with Replay(model, "path", receiver=receiver) as replay:
        intact = replay.run(inputs)
        replay.instead_of(stand_ins(replay, hooks))
        heads = senders([h for s in replay.sites for h in s.heads], receiver)
        for variant in intact.variants(heads):
            expected = tensors(hooks.along(variant.head, receiver))[0]
            found = tensors(variant.outputs)[0]
            rounding = 1e-10 if found.dtype is torch.float64 else 1e-6
            assert torch.allclose(found, expected, rtol=0, atol=rounding), str(variant.head)
            moved += not torch.allclose(expected, tensors(intact.outputs)[0], rtol=0, atol=10 * rounding)
    return moved


@pytest.mark.parametrize("name", rest_slow(["bert", "gpt2", "llama", "marian", "bert-classifier", "distilbert"]))
def test_the_direct_path_to_the_outputs_is_that_of_hooks(name: str) -> None:
    assert compare(name, None) >= 2


TO_HEADS = (
    "bert encoder.1.1",
    "bert encoder.1.0.q",
    "llama decoder.1.2.kv",
    "bert encoder.1.1.v",
    "gpt2 decoder.1.0",
    "marian cross.1.1",
    "marian cross.0.0.k",
    "marian decoder.1.1.q",
)


@pytest.mark.parametrize("case", rest_slow(list(TO_HEADS)))
def test_the_path_to_one_head_is_that_of_hooks(case: str) -> None:
    name, receiver = case.split()
    assert compare(name, Receiver.parse(receiver)) >= 1


def test_names_of_receivers() -> None:
    assert Receiver.parse("decoder.5.1") == Receiver(Head("decoder", 5, 1))
    assert str(Receiver.parse("cross.0.1.kv")) == "cross.0.1.kv"
    assert str(Receiver.parse(" encoder.3.0 ")) == "encoder.3.0"
    for wrong in ("decoder.5", "decoder.5.1.x", "decoder.5.1.qq", "q", "decoder.5.1.", "logits"):
        with pytest.raises(OptionError):
            Receiver.parse(wrong)


def test_heads_without_a_path_are_no_senders() -> None:
    heads = [Head(stack, layer, 0) for stack in ("encoder", "decoder", "cross") for layer in (0, 1)]
    assert {str(h) for h in senders(heads, None)} == {"decoder.0.0", "decoder.1.0", "cross.0.0", "cross.1.0"}
    to = partial(senders, heads)
    assert {str(h) for h in to(Receiver.parse("cross.0.0"))} == {"encoder.0.0", "encoder.1.0", "decoder.0.0"}
    assert {str(h) for h in to(Receiver.parse("encoder.1.0"))} == {"encoder.0.0"}
    assert senders(heads, Receiver.parse("encoder.0.0")) == []
    model, inputs = model_and_inputs("bert")
    with Replay(model, "path", receiver=Receiver.parse("encoder.1.0")) as replay:
        intact = replay.run(inputs)
        with pytest.raises(OptionError, match=r"no head encoder\.1\.1"):
            next(intact.variants([Head("encoder", 1, 1)]))
    with pytest.raises(OptionError, match=r"There is no head encoder\.7\.0"):
        Replay(model, "path", receiver=Receiver.parse("encoder.7.0"))
