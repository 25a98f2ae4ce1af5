"""Whether a cross-attention head walks forward through the source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from headlens.attention.rows import RowNeeds
from headlens.metrics.attention_view import CallView, NullView
from headlens.metrics.metric_column import MetricColumn
from headlens.metrics.ratio_estimator import MeanMetric, ratio_sums


@dataclass(frozen=True)
class Monotonicity(MeanMetric):
    """Share of steps from one target token to the next at which the most attended source token does not move backwards.

    Special tokens are left out on both sides, as in `Positions`.
    """

    name = "monotonicity"
    row_needs = RowNeeds(peak=True)
    drawn = False
    columns = (
        MetricColumn(
            "monotonicity",
            "Share of steps to the next target token at which the most attended source token does not move backwards.",
            "monotonicity",
            "share of steps",
            null=True,
        ),
        MetricColumn(
            "monotonicity_stays",
            "Share of steps at which the most attended source token stays the same. `monotonicity` counts them, too: "
            "that of a head fixed on one token is 1.",
            "monotonicity: steps that stay",
            "share of steps",
            null=True,
            part_of="monotonicity",
        ),
    )
    stacks = ("cross",)

    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        """Returns sums over sentences of steps between target tokens, of those not backwards and of those that stay."""
        steps = view.peaked[:, :, 1:] & view.peaked[:, :, :-1]
        before, after = view.peak.key[:, :, :-1], view.peak.key[:, :, 1:]
        forward = ratio_sums("monotonicity", view, (after >= before).to(view.peak.weight.dtype), steps)
        return forward | ratio_sums("monotonicity_stays", view, (after == before).to(view.peak.weight.dtype), steps)

    def null(self, view: NullView) -> Mapping[str, Tensor]:
        """Returns the same of the null head, over all pairs of source tokens that a step may lead from and to."""
        forward, stays, steps = view.peak_steps()
        return ratio_sums("monotonicity", view, forward[:, None], steps) | ratio_sums(
            "monotonicity_stays", view, stays[:, None], steps
        )
