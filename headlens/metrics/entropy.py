"""How broad a head looks (Clark et al. 2019, section 3.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from headlens.attention.rows import RowNeeds
from headlens.metrics.attention_view import CallView
from headlens.metrics.metric_column import MetricColumn
from headlens.metrics.ratio_estimator import MeanMetric, ratio_sums


@dataclass(frozen=True)
class Entropy(MeanMetric):
    """Entropy of the attention of a query, in nats, averaged over all query tokens.

    `entropy_norm` divides each query's entropy by the logarithm of the number of keys it may attend to (in a
    causal stack those up to itself); queries with a single such key do not enter it.
    """

    name = "entropy"
    row_needs = RowNeeds(entropy=True)
    title = "Entropy of attention heads"
    heading = "Entropy"
    caption = (
        "How evenly every head spreads its attention: its entropy as a share of the largest possible one, where 1 "
        "(yellow) means the same weight for every token. heads.csv also has it in nats."
    )
    columns = (
        MetricColumn(
            "entropy",
            "Mean entropy of the attention of a query, in nats.",
            unit="nats",
            contract=True,
        ),
        MetricColumn(
            "entropy_norm",
            "Entropy of attention as a share of that of uniform attention over all keys of the text, in a causal "
            "decoder over those so far, under --mask over those that it allows, in a layer with local attention over "
            "those of its window.",
            "entropy",
            "share of the largest possible",
            panel="share of the largest possible",
            scale="entropy / log(number of keys)",
            contract=True,
            null=True,
        ),
    )

    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        """Returns sums over real queries of the entropy in nats and of the normalised entropy; (heads,) each."""
        values = view.entropies  # (batch, heads, query)
        available = view.available if view.available.dim() == 3 else view.available[:, None]
        ceiling = available.clamp(min=2).to(values.dtype).log()
        counted = view.queries.real[:, None] & (available > 1)
        return {
            **ratio_sums("entropy", view, values, view.queries.real),
            **ratio_sums("entropy_norm", view, values / ceiling, counted),
        }
