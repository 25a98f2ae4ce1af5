"""How sure a head is (Voita et al. 2019, section 4; Song's BERT/ALBERT study)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from headlens.attention.rows import RowNeeds
from headlens.metrics.attention_view import CallView
from headlens.metrics.metric_column import MetricColumn
from headlens.metrics.ratio_estimator import MeanMetric, ratio_sums

_mean_weight = partial(
    MetricColumn,
    unit="share of weight on one token",
    scale="confidence (mean largest weight)",
    interval=True,
    contract=True,
    null=True,
)


@dataclass(frozen=True)
class Confidence(MeanMetric):
    """Mean over query tokens of the largest attention weight.

    `confidence` leaves end-of-sentence and separator tokens out, as keys and as queries, without renormalising
    (Voita et al.); `confidence_all` leaves nothing out (Song's map "with SEP").
    """

    name = "confidence"
    row_needs = RowNeeds(peak=True)
    title = "Confidence of attention heads"
    heading = "Confidence"
    caption = (
        "The mean largest attention weight of every head: 1 (yellow) means that each token attends to a single "
        "token. Separators and end-of-sentence tokens are left out of the first map, nothing of the second; above "
        "them stands what uniform attention has. The last map is the difference: a blue head is more confident when "
        "separators count, both as tokens that attend and as tokens that are attended to."
    )
    difference = "all tokens − separators left out"
    columns = (
        MetricColumn("tokens", "Number of query tokens, special tokens included.", unit="tokens", contract=True),
        _mean_weight(
            "confidence",
            "Mean largest attention weight; separators count neither as queries nor as keys.",
            "confidence",
            panel="separators left out",
        ),
        _mean_weight(
            "confidence_all",
            "Mean largest attention weight of all queries.",
            "confidence with separators",
            panel="all tokens",
        ),
    )
    counts = (("tokens", "confidence_all"),)

    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        """Returns sums of each query's largest attention weight, without separators and over all keys; (heads,)."""
        between, everywhere = view.highest
        someone = (view.keys.real & ~view.keys.separator).any(1, keepdim=True)
        counted = view.queries.real & ~view.queries.separator & someone
        return {
            **ratio_sums("confidence", view, between, counted),
            **ratio_sums("confidence_all", view, everywhere, view.queries.real),
        }
