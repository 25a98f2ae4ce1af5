"""Relevance of all heads of a model for a batch, from one forward and one backward pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.attention.finite_values import not_finite
from headlens.attention.reversible_context import ReversibleContext
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site
from headlens.errors import ModelError, SelfCheckError
from headlens.metrics.reductions import at_once, exact_type, row_chunks
from headlens.models.freezing import frozen
from headlens.relevance_propagation.alpha_beta_rule import AlphaBetaRules
from headlens.relevance_propagation.attention_rules import (
    AttentionRule,
    HeadOutputs,
    contributions,
    magnitudes,
    normalizer_of,
)
from headlens.relevance_propagation.epsilon_rule import ConservationLedger, GradientRules, PlainGradient, Read, times
from headlens.relevance_propagation.logit_attribution_rule import DirectRules, check_direct_paths, direct_paths
from headlens.relevance_propagation.relevance_options import Rule
from headlens.relevance_propagation.targets import Target
from headlens.relevance_propagation.tracing import Tracer, kept_as_a_whole

# Rules under which relevance is conserved: what arrives is compared with what started.
CONSERVING: tuple[Rule, ...] = ("epsilon", "attnlrp", "logit-attribution")


@dataclass(frozen=True)
class HeadRelevance:
    """The relevance of one batch; examples are rows, or groups of rows where a target says so.

    Args:
        raw: signed sums by site, (examples, heads), double precision on the CPU. Never negative for `taylor`.
        start: what relevance started from, (examples,): the logit, or the sum of several.
        inputs: relevance that arrived at the embeddings, of the whole batch.
        biases: relevance that biases kept on the way, of the whole batch; 0 where the rule gives them none.
        others: what else of it ended where, by what that is (`headlens.relevance_propagation.logit_attribution_rule`).
        outputs: numbers that tell one output of the model from another, a row for each that relevance started from.
        answers: how often each of the model's outputs was the largest where relevance started, (outputs,); none where
            the outputs are not logits.
        evenness: the entropy of what the model predicts as a share of the largest possible one, added up over
            `answers`: 1 each where all answers are equally probable.
    """

    raw: Mapping[Site, Tensor]
    start: Tensor
    inputs: float
    biases: float
    outputs: Tensor = field(default_factory=lambda: torch.zeros(0, 3, dtype=torch.float64))
    others: Mapping[str, float] = field(default_factory=dict)
    answers: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    evenness: float = 0.0

    @property
    def lost(self) -> float:
        """What arrived nowhere, as a share of what started: rounding for `epsilon`, the softmax too for `attnlrp`."""
        begun = float(self.start.sum())
        return self.missing / begun if begun else 0.0

    @property
    def missing(self) -> float:
        """What arrived nowhere, in units of the target."""
        return float(self.start.sum()) - self.inputs - self.biases - sum(self.others.values())


@dataclass(frozen=True)
class _Plan:
    """What a relevance rule does in attention, how relevance of heads is read, and the rules of other operations."""

    attention: AttentionRule
    reading: Read
    rules: type[PlainGradient]
    read: Read
    conserves: bool = False


_PLANS: dict[Rule, _Plan] = {
    "epsilon": _Plan("constant", contributions, GradientRules, times, conserves=True),
    "attnlrp": _Plan("halves", contributions, GradientRules, times),
    # Its backward pass carries relevance itself.
    "alpha-beta": _Plan("explicit", lambda r, _outputs: r.sum(dim=(1, 3)), AlphaBetaRules, lambda r, _number: r),
    "gradxact": _Plan("gradient", contributions, PlainGradient, times),
    "taylor": _Plan("gradient", magnitudes, PlainGradient, times),
    "logit-attribution": _Plan("end", contributions, DirectRules, times, conserves=True),
}


class RelevanceSession(ReversibleContext):
    """Passes relevance back through a model while inside `with`; afterwards, also after errors, nothing is left of it.

        with RelevanceSession(model, PredictedClass()) as session:
            relevance = session.relevance(inputs)

    The rules are those of `headlens.relevance_propagation.op_rules`:

    - `epsilon`: R_u = sum_v W_uv u / v · R_v (Bach et al. 2015, equation 58, with a vanishing epsilon) and constant
      attention weights (Ali et al. 2022). What arrives at embeddings and biases is what started, which is checked.
    - `attnlrp`: the same with halves for products and a linearised softmax (Achtibat et al. 2024).
    - `alpha-beta`: the rule of Voita et al.'s own code (`headlens.relevance_propagation.alpha_beta_rule`); slow, for
      small inputs.
    - `gradxact`: gradient times activation at the head outputs; `taylor`: its magnitude by query, the absolute
      value of its sum over neurons (Michel et al. 2019, with the target in place of the loss).
    - `logit-attribution`: what heads write to the target themselves, along the residual stream with the scales of norms
      held constant (`headlens.relevance_propagation.logit_attribution_rule`).

    Args:
        model: in evaluation mode. Its parameters ask for no gradients inside.
        target: where relevance starts.
        rule: how it is passed on.

    Raises:
        UnsupportedModelError: if the model's attention cannot be reached; on running, if a part has no rule.
        ValueError: if the model is in training mode.
    """

    def __init__(self, model: PreTrainedModel, target: Target, rule: Rule = "epsilon") -> None:
        if model.training:
            raise ValueError("relevance of a model in training mode is random: call model.eval() first")
        self.model, self.target, self.rule = model, target, rule
        self._plan = plan = _PLANS[rule]
        self._idle = plan.rules(ConservationLedger(plan.read))
        self._tracer = Tracer(model, self._idle)
        self._outputs = HeadOutputs(plan.attention, plan.reading, self._tracer)
        normalizer = normalizer_of(model, plan.attention)
        self._attention = AttentionSession(model, edits=[self._outputs], normalizer=normalizer)

    @property
    def sites(self) -> list[Site]:
        """The sites of the attention heads whose relevance is measured."""
        return self._attention.sites

    def _change(self, undo: ExitStack) -> None:
        undo.enter_context(frozen(self.model))
        undo.enter_context(self._attention)
        if isinstance(self._idle, GradientRules):
            undo.enter_context(kept_as_a_whole(self.model, self._tracer))
        if isinstance(self._idle, DirectRules):
            undo.enter_context(direct_paths(self.model, self.sites, self._tracer))

    def relevance(self, inputs: Mapping[str, Any]) -> HeadRelevance:
        """The relevance of every head for every example of a batch.

        Args:
            inputs: what the model takes; tensors have the rows first.

        Raises:
            ModelError: if the result is not finite.
            SelfCheckError: if it is all zero, or relevance was lost on the way.
            UnsupportedModelError: if a part of the model has no rule.
            OptionError: if the target does not fit the model or the batch.
        """
        if not self.is_open:
            raise RuntimeError("relevance can only be computed inside the `with` block")
        with torch.inference_mode(mode=False), torch.enable_grad():
            if self.rule != "alpha-beta":
                return self._checked(self._run(inputs))
            # Its rescaling is by sample: one example at a time.
            return self._checked(_joined([self._run(part) for part in _examples(inputs, self.target.rows)]))

    def _run(self, inputs: Mapping[str, Any]) -> HeadRelevance:
        ledger = ConservationLedger(self._plan.read)
        self._tracer.start(self._plan.rules(ledger))
        given = {k: _entered(k, v, ledger) for k, v in inputs.items()}
        cache = {"use_cache": False} if any(s.stack == "decoder" for s in self.sites) else {}
        try:
            with self._tracer:
                outputs = self.model(**{**cache, **given})
                parts = self.target.parts(outputs, inputs)
            arriving, absorbed = ledger.collect(parts, parts.detach() if self.rule == "alpha-beta" else None)
        finally:
            by_site = self._outputs.take(self.sites, _rows(inputs))
            # What the rules noted keeps tensors of the pass alive.
            self._tracer.start(self._idle)
        start = parts.detach().cpu().double().flatten(1).sum(dim=1)
        group = self.target.rows
        raw = {site: r.view(-1, group, r.shape[1]).sum(dim=1) for site, r in by_site.items()}
        read = self.target.outputs(outputs, inputs)
        answers = torch.zeros(0) if self.target.pooled or read.shape[-1] < 2 else answer_counts(read)
        begun, ends = start.view(-1, group).sum(dim=1), (float(arriving), float(absorbed))
        even = normalised_entropy(read) if len(answers) else 0.0
        return HeadRelevance(raw, begun, *ends, output_fingerprints(read), ledger.others, answers.double(), even)

    def _checked(self, relevance: HeadRelevance) -> HeadRelevance:
        numbers = torch.cat([r.flatten() for r in relevance.raw.values()])
        ends = torch.tensor(
            [relevance.inputs, relevance.biases] if self.rule in CONSERVING else [], dtype=torch.float64
        )
        if not torch.isfinite(torch.cat([numbers, relevance.start, ends])).all():
            raise not_finite(self.model, f"the relevance of heads by {self.rule}")
        if isinstance(self._idle, DirectRules):
            reached = self._outputs.reached
            check_direct_paths(self.sites, reached)
            # What heads of an encoder give a decoder's target themselves is not 0 by measurement: they have no path.
            relevance = replace(relevance, raw={s: raw for s, raw in relevance.raw.items() if s in reached})
        if not numbers.any():
            value = "exactly 0" if not relevance.start.any() else "the same whatever the heads give"
            raise ModelError(
                f"No head has any relevance (rule {self.rule}): the target is {value} for these texts, as where the "
                "weights of a classifier are 0.",
                "Train the model first, or choose another --relevance-target.",
            )
        # A logit near 0 is a difference of large numbers, whose rounding must not look like a loss.
        parts = (relevance.inputs, relevance.biases, *relevance.others.values())
        scale, missing = float(relevance.start.abs().sum()) + sum(map(abs, parts)), relevance.missing
        most = max(1e-3, 4 * torch.finfo(self.model.dtype).eps) * scale * len(self.sites) ** 0.5
        if self._plan.conserves and abs(missing) > most:
            raise SelfCheckError(
                f"Relevance was lost: {missing:.3g} of {float(relevance.start.sum()):.3g} was not accounted for.",
                "Part of the model bypasses torch's functions, so no rule was applied to it.",
            )
        return relevance


def _entered(name: str, value: Any, ledger: ConservationLedger) -> Any:
    """Makes an input of real numbers, such as embeddings, a leaf where relevance arrives; others stay as they are."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or name.endswith("mask"):
        return value
    return ledger.enter(value.detach().clone())


def _rows(inputs: Mapping[str, Any]) -> int:
    if (ids := inputs.get("input_ids")) is not None:
        return math.prod(ids.shape[:-1])  # of multiple choice (examples, candidates, length)
    return next(v.shape[0] for v in inputs.values() if isinstance(v, Tensor))


def _examples(inputs: Mapping[str, Any], size: int) -> Iterator[dict[str, Any]]:
    for first in range(0, _rows(inputs), size):
        yield {k: v[first : first + size] if isinstance(v, Tensor) else v for k, v in inputs.items()}


def _joined(parts: Sequence[HeadRelevance]) -> HeadRelevance:
    raw = {site: torch.cat([p.raw[site] for p in parts]) for site in parts[0].raw}
    inputs, biases = sum(p.inputs for p in parts), sum(p.biases for p in parts)
    start, outputs = torch.cat([p.start for p in parts]), torch.cat([p.outputs for p in parts])
    answers = torch.stack([p.answers for p in parts]).sum(dim=0)
    evenness = sum(p.evenness for p in parts)
    return HeadRelevance(raw, start, inputs, biases, outputs, answers=answers, evenness=evenness)


def answer_counts(logits: Tensor) -> Tensor:
    """How often each output is the largest: (outputs,) of logits (rows, outputs)."""
    return torch.bincount(logits.detach().argmax(dim=-1).flatten().cpu(), minlength=logits.shape[-1])


def normalised_entropy(logits: Tensor) -> float:
    """The sum over all rows of the entropy of their softmax, each as a share of ln(outputs): (rows, outputs)."""
    flat, total = logits.detach().flatten(0, -2), 0.0
    # A few rows at a time: of all tokens of a batch and a large vocabulary there would be gigabytes.
    for rows in row_chunks(flat, at_once(flat, flat.shape[-1])):
        log_p = rows.float().log_softmax(dim=-1)
        total -= float((log_p.exp() * log_p).nansum(dtype=exact_type(log_p)))
    return total / math.log(logits.shape[-1])


def output_fingerprints(outputs: Tensor) -> Tensor:
    """Three numbers for every row, (rows, 3), by which equal rows are recognised; others rarely have the same."""
    numbers = outputs.detach().double()
    if not numbers.numel():
        return torch.zeros(0, 3, dtype=torch.float64)
    # Any direction would do that has no two equal parts; which number is the largest would jump by rounding.
    direction = torch.arange(numbers.shape[-1], device=numbers.device, dtype=numbers.dtype).cos()
    statistics = [numbers.amax(dim=-1), numbers.amin(dim=-1), numbers @ direction / len(direction) ** 0.5]
    return torch.stack(statistics, dim=-1).cpu()
