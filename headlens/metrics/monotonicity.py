"""Whether a cross-attention head walks forward through the source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from headlens.metrics.accumulator import Array
from headlens.metrics.attention_view import CallView
from headlens.metrics.metric import Metric, Sums
from headlens.metrics.metric_column import MetricColumn
from headlens.metrics.ratio_estimator import ratio_mean, ratio_sums


@dataclass(frozen=True)
class Monotonicity(Metric):
    """Share of steps from one target token to the next at which the most attended source token does not move backwards.

    Special tokens are left out on both sides, as in `Positions`.
    """

    name = "monotonicity"
    sums_of_tokens = frozenset()
    parts_of_sentences = True  # cross-attention is always seen whole
    drawn = False
    columns = (
        MetricColumn(
            "monotonicity",
            "Share of steps to the next target token at which the most attended source token does not move backwards.",
            "monotonicity",
            "share of steps",
        ),
    )
    stacks = ("cross",)

    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        """Returns sums over sentences of steps between target tokens and of forward steps among them; (heads,) each."""
        steps = view.peaked[:, :, 1:] & view.peaked[:, :, :-1]
        forward = (view.peak.key[:, :, 1:] >= view.peak.key[:, :, :-1]).to(view.weights.dtype)
        return ratio_sums("monotonicity", view, forward, steps)

    def compute(self, sums: Sums) -> Mapping[str, Array]:
        """Share of steps at which the most attended source token does not go back; (heads,), NaN without steps."""
        return {"monotonicity": ratio_mean("monotonicity", sums)}
