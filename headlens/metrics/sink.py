"""How much of its attention a head gives to no token, as learned sinks let it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from headlens.attention.rows import RowNeeds
from headlens.attention.sites import Site
from headlens.metrics.attention_view import CallView
from headlens.metrics.metric import Sums
from headlens.metrics.metric_column import MetricColumn
from headlens.metrics.ratio_estimator import MeanMetric, ratio_mean, ratio_sums


@dataclass(frozen=True)
class LearnedSink(MeanMetric):
    """Mean share of attention that goes to no token, measured where the rows of a model do not add up to 1.

    With a learned sink s (GPT-OSS) a query weighs key k by exp(score k) / (Σ exp(score) + exp(s)); what is left of 1
    goes to the sink. All other metrics but the norms are of the weights given that attention goes to a token.
    """

    name = "learned_sink"
    row_needs = RowNeeds()
    drawn = False
    without_null = "A head that gives every token the same weight has no sink."
    columns = (
        MetricColumn(
            "to_sink",
            "Mean share of a token's attention that goes to no token, as with a learned sink. Only models whose rows "
            "do not add up to 1 have this column; all other shares of such a head are of what goes to tokens.",
            "attention to no token",
            "share of attention",
        ),
    )

    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        """Returns sums over real query tokens of the share that goes to no token; nothing where rows add up to 1."""
        if view.to_tokens is None:
            return {}
        return ratio_sums("to_sink", view, 1 - view.to_tokens, view.queried.queries.real)

    def notes(self, sums: Mapping[Site, Sums], sites: Sequence[Site]) -> list[str]:
        """The note on what the other numbers are about."""
        if not sums:
            return []
        shares = [float(share) for site_sums in sums.values() for share in ratio_mean("to_sink", site_sums)]
        return [
            f"In {len(sums)} of {len(sites)} layers attention weights do not add up to 1: a part goes to no token, as "
            f"with a learned sink, {min(shares):.2f} to {max(shares):.2f} on average by head (`to_sink`). Entropy, "
            "confidence, positions, roles and all other shares of attention are of the part that goes to tokens; norms "
            "are of what heads read."
        ]
