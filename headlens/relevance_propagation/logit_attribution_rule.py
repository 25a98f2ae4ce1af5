"""Logit attribution by head: what each head itself writes of the target, along the residual stream.

The output of a head goes through its part of the output projection into the residual stream, is carried along by it,
and goes through the last norm and the unembedding into the logit ("direct logit attribution", Elhage et al. 2021).
With the scale of every norm on the way held at its value this path is linear, so that the logit is a sum of heads,
MLPs, embeddings and biases. What a head does by way of other heads and of MLPs is theirs: nothing is passed into them.

Activation functions between the last layer and the target (a pooler's tanh, those of the head of a masked language
model) are no part of a sum. There it is the tangent at the value that is linear: f(x) = f'(x) x + (f(x) - f'(x) x).
A soft cap of the logits is left out: the target is the logit before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headlens.attention.install import configs_of, put
from headlens.attention.sites import Site
from headlens.errors import UnsupportedModelError
from headlens.relevance_propagation.epsilon_rule import (
    Arguments,
    ConservationLedger,
    Function,
    GradientRules,
    Keywords,
    is_active,
)
from headlens.relevance_propagation.op_rules import OpKind
from headlens.relevance_propagation.tracing import Tracer

HEADS, MLPS, CURVATURE = "heads", "mlps", "curvature"
# Of configurations, and of models that copy it.
_SOFT_CAP = "final_logit_softcapping"
_ADVICE = "The rules gradxact and taylor need no path of their own."


class DirectRules(GradientRules):
    """The rules of `epsilon` on the way along the residual stream, which ends at heads and MLPs.

    Args:
        ledger: records what heads, MLPs, embeddings and biases give.
    """

    def __init__(self, ledger: ConservationLedger) -> None:
        super().__init__(ledger)
        self.in_layer = False

    def apply(self, kind: OpKind, function: Function, args: Arguments, kwargs: Keywords) -> Any:
        """Run an operation on something active so that its backward follows the rule of its kind.

        Raises:
            LookupError: if there is no rule for it.
        """
        if kind is OpKind.MULTIPLY and all(map(is_active, args)):
            if not self.in_layer:
                raise LookupError("of two activations outside of the layers")
            return self.stop(function(*args, **kwargs), MLPS)
        return super().apply(kind, function, args, kwargs)

    def stop(self, output: Tensor, part: str) -> Tensor:
        """The same numbers, at which the path ends."""
        return self.ledger.enter(output.detach(), part)

    def activate(self, x: Tensor, function: Function) -> Tensor:
        """An activation function: in a layer it is one of an MLP, where the path ends; behind them its tangent."""
        if self.in_layer:
            return self.stop(function(x.detach()), MLPS)
        point = x.detach().requires_grad_()
        value = function(point)
        (slope,) = torch.autograd.grad(value, point, torch.ones_like(value))
        output: Tensor = function(x)
        self.ledger.keep(output, value.detach() - slope * point.detach(), CURVATURE)
        return output


@contextmanager
def direct_paths(model: nn.Module, sites: Sequence[Site], tracer: Tracer) -> Iterator[None]:
    """Tells the rules of a tracer, inside `with`, what is a layer; switches soft caps of logits off.

    Nothing is looked up in an attention module before its attention function, nor in experts and their routers: no path
    leads there.

    Args:
        model: the model.
        sites: where its heads are.
        tracer: of `DirectRules`.

    Raises:
        UnsupportedModelError: if it is not known which modules are the layers.
    """
    layers = _layers(model, sites)
    attention = {model.get_submodule(site.module) for site in sites}
    with ExitStack() as undo:
        for layer in layers:
            _run_by(_in_layer, layer, tracer, undo)
            for inner in layer.modules():
                if "experts" in dict(inner.named_children()) and attention.isdisjoint(inner.modules()):
                    _run_by(_stopped, inner, tracer, undo)
        for module in attention:
            _run_by(_until_attention, module, tracer, undo)
        for owner in (*configs_of(model), *model.modules()):
            if getattr(owner, _SOFT_CAP, None) is not None:
                put(owner, _SOFT_CAP, None, undo)
        yield


def check_direct_paths(sites: Sequence[Site], reached: set[Site]) -> None:
    """Refuse a residual stream that does not lead from all heads of a stack to the target.

    None of the heads of an encoder write into the stream of its decoder: what they give themselves is 0.

    Raises:
        UnsupportedModelError: if the stream breaks off.
    """
    stacks = {site.stack for site in reached}
    if missing := [str(s) for s in sites if s not in reached and (s.stack in stacks or not stacks)]:
        raise UnsupportedModelError(
            f"No path along the residual stream leads from the heads of {', '.join(missing)} to the target.", _ADVICE
        )


def _layers(model: nn.Module, sites: Sequence[Site]) -> list[nn.Module]:
    """The modules of all lists of layers that hold heads."""
    if outside := [site.module for site in sites if not site.layer_list]:
        raise UnsupportedModelError(
            f"The attention module {outside[0]} of {type(model).__name__} is in no list of layers, so that headlens "
            "cannot tell what is a part of a layer.",
            _ADVICE,
        )
    lists = dict.fromkeys(site.layer_list for site in sites)
    return [layer for name in lists for layer in model.get_submodule(name).children()]


def _run_by(way: Any, module: nn.Module, tracer: Tracer, undo: ExitStack) -> None:
    put(module, "forward", partial(way, tracer, module.forward), undo)


def _in_layer(tracer: Tracer, forward: Function, *args: Any, **kwargs: Any) -> Any:
    rules = tracer.rules
    if not isinstance(rules, DirectRules):
        return forward(*args, **kwargs)
    before, rules.in_layer = rules.in_layer, True
    try:
        return forward(*args, **kwargs)
    finally:
        rules.in_layer = before


def _until_attention(tracer: Tracer, forward: Function, *args: Any, **kwargs: Any) -> Any:
    tracer.paused = True  # `HeadOutputs.output` ends it
    return forward(*args, **kwargs)


def _stopped(tracer: Tracer, forward: Function, *args: Any, **kwargs: Any) -> Any:
    """Experts as one function, where the path ends."""
    rules, before = tracer.rules, tracer.paused
    if not isinstance(rules, DirectRules):
        return forward(*args, **kwargs)
    tracer.paused = True
    try:
        with torch.no_grad():
            output = forward(*args, **kwargs)
        if isinstance(output, Tensor):
            return rules.stop(output, MLPS)
        numbers = (isinstance(part, Tensor) and part.is_floating_point() for part in output)
        return tuple(rules.stop(part, MLPS) if is_one else part for part, is_one in zip(output, numbers, strict=True))
    finally:
        tracer.paused = before
