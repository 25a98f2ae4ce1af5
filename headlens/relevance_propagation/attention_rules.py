"""What the seam does for relevance: attention by its rule, and the relevance of head outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import mul
from typing import Literal

import torch
from torch import Tensor, nn

from headlens.attention.edits_and_observers import CallContext, Edit
from headlens.attention.model_normalizer import attention_of
from headlens.attention.normalizers import CallNormalizer, ModelNormalizer, Normalizer, softmax
from headlens.attention.sites import Site
from headlens.errors import UnsupportedModelError
from headlens.relevance_propagation.alpha_beta_rule import explicit_attention
from headlens.relevance_propagation.epsilon_rule import Read, on_gradient, times
from headlens.relevance_propagation.logit_attribution_rule import HEADS
from headlens.relevance_propagation.tracing import Tracer

# constant: all relevance goes to the values; halves: products are shared, the softmax is linearised; end: it goes no
# further than the head outputs.
AttentionRule = Literal["constant", "halves", "gradient", "explicit", "end"]


@dataclass(frozen=True, eq=False)
class ConstantNormalizer(CallNormalizer):
    """The normaliser of a model, whose weights are constants to the backward pass.

    Args:
        model: the model that the calls are of.
        switched_to: the normaliser that it was switched to; None for softmax.
    """

    model: nn.Module
    switched_to: ModelNormalizer | None

    def at(self, context: CallContext) -> Normalizer:
        """Returns the normaliser of the module of a call, from scores that pass no gradient on."""
        module = self.model.get_submodule(context.site.module)
        normalizer = softmax if self.switched_to is None else self.switched_to.of_module(module)
        return lambda scores: normalizer(scores.detach()).detach()


def normalizer_of(model: nn.Module, rule: AttentionRule) -> Normalizer | CallNormalizer | None:
    """What a rule computes weights with; None for the model's own attention.

    Raises:
        UnsupportedModelError: if the model was switched to an attention that the rule has nothing to say about.
    """
    if rule in ("gradient", "end"):
        return None
    model_normalizer = attention_of(model)
    if rule == "constant":
        return ConstantNormalizer(model, model_normalizer)
    if model_normalizer is None:
        # The model's own, but computed by a core that refuses what is more than a softmax of scaled scores.
        return softmax
    raise UnsupportedModelError(
        f"Attention of this model is {model_normalizer}, but this rule is only defined for softmax.",
        "Choose the rule epsilon, gradxact, taylor or logit-attribution.",
    )


def contributions(ratio: Tensor, output: Tensor) -> Tensor:
    """Signed relevance of heads, sum over queries and neurons of c · output: (batch, heads)."""
    return times(ratio, output).sum(dim=-1).sum(dim=1)


def magnitudes(gradient: Tensor, output: Tensor) -> Tensor:
    """Sum over queries of |sum over neurons of gradient · output| (Michel et al. 2019): (batch, heads)."""
    return times(gradient, output).sum(dim=-1).abs().sum(dim=1)


class HeadOutputs(Edit):
    """Reads relevance off the head outputs before the output projection, during the backward pass.

    Args:
        rule: how attention passes relevance on.
        reading: from a gradient and head outputs, (batch, query, heads, d) each, to a number for each head.
        tracer: paused while an attention function runs, which has its own rule.
    """

    edits_mask = True

    def __init__(self, rule: AttentionRule, reading: Read, tracer: Tracer) -> None:
        self.relevance: dict[Site, Tensor] = {}
        self.reached: set[Site] = set()  # in the pass before the last `take`
        self._rule, self._reading, self._tracer = rule, reading, tracer

    def mask(self, context: CallContext, mask: Tensor | None) -> Tensor | None:
        """The mask as it is; what comes before the attention function is done here."""
        self._tracer.paused = True
        if self._rule == "halves":
            # Two products and a softmax in between: a half of a half for queries and keys, a half for values.
            for tensor, share in ((context.query, 0.25), (context.key, 0.25), (context.value, 0.5)):
                if tensor.requires_grad:
                    on_gradient(tensor, partial(mul, share))
        return mask

    def output(self, context: CallContext, output: Tensor) -> Tensor:
        """The head outputs as they are, (batch, query, heads, d); their relevance is read when it passes."""
        if self._rule == "end":
            output = self._tracer.rules.ledger.enter(output.detach(), HEADS)
        self._tracer.paused = False
        if self._rule == "explicit":
            output = explicit_attention(context, output)
        if output.requires_grad:
            on_gradient(output, partial(self._keep, context.site, output.detach()))
        return output

    def take(self, sites: Sequence[Site], rows: int) -> dict[Site, Tensor]:
        """What was read since the last time, (rows, heads) in double precision on the CPU; zeros where no path led."""
        relevance, self.relevance = self.relevance, {}
        self.reached = set(relevance)
        return {s: relevance.get(s, torch.zeros(())).cpu().double().expand(rows, s.n_heads).clone() for s in sites}

    def _keep(self, site: Site, output: Tensor, gradient: Tensor) -> None:
        self.relevance[site] = self._reading(gradient, output)
