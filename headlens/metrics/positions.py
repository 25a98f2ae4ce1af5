"""At which relative position a head looks (Voita et al. 2019, section 5.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headlens.attention.rows import RowNeeds
from headlens.metrics.accumulator import Array
from headlens.metrics.attention_view import CallView, NullView
from headlens.metrics.metric import NULL, Metric, Sums
from headlens.metrics.metric_column import MetricColumn
from headlens.metrics.ratio_estimator import ratio_interval
from headlens.metrics.reductions import count
from headlens.statistics.weighted_means import ratio
from headlens.tables.classify_tables import REACH, offsets_to

OFFSETS = list(offsets_to(REACH))
# Ties between offsets go to the nearer one, then to the left one.
_PREFERENCE = sorted((d for d in range(-REACH, REACH + 1) if d), key=lambda d: (abs(d), d))


@dataclass(frozen=True)
class Positions(Metric):
    """Histogram of the offset k* - q of each query's most attended key.

    Special tokens are left out, as keys and as queries: nearly all heads of some models attend mainly to [CLS] or
    [SEP].
    """

    name = "positions"
    row_needs = RowNeeds(peak=True)
    sums_of_tokens = frozenset()
    parts_of_sentences = True
    own_table = True
    drawn = False  # with the offset in every cell
    columns = (
        MetricColumn(
            "positional_offset",
            "The most frequent non-zero offset, of -8 to 8, from a token to the one it attends to most.",
            unit="tokens",
            contract=True,
        ),
        MetricColumn(
            "positional_share",
            "Share of tokens whose most attended token is at the most frequent non-zero offset of -8 to 8.",
            "most frequent non-zero offset",
            "share of tokens",
            offset="positional_offset",
            interval=True,
            contract=True,
            null=True,
        ),
        MetricColumn("self_share", "Share of tokens that attend most to themselves.", null=True),
    )

    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        """Counts per offset, the two tails at the ends, and what their intervals need; (heads, 19) each."""
        query = view.start + torch.arange(view.peak.key.shape[2], device=view.peak.key.device)
        offset = (view.peak.key - query).clamp(-REACH - 1, REACH + 1) + REACH + 1  # (batch, heads, query)
        rows = torch.arange(offset[:, :, 0].numel(), device=offset.device).view(*offset.shape[:2], 1)
        # What is not counted goes to a column of its own.
        column = offset.masked_fill(~view.peaked, len(OFFSETS)) + rows * (len(OFFSETS) + 1)
        counts = count(column, rows.numel() * (len(OFFSETS) + 1)).view(*offset.shape[:2], -1)[:, :, :-1]
        return self._moments(view, counts)

    def null(self, view: NullView) -> Mapping[str, Tensor]:
        """Returns the same of the null head, whose queries count at many offsets by their shares; (1, 19) each."""
        return self._moments(view, view.peak_offsets(REACH).to(view.sums_dtype)[:, None])

    def _moments(self, view: CallView, counts: Tensor) -> Mapping[str, Tensor]:
        """Sums over sentences, from counts (batch, heads, offset)."""
        totals = view.of_sentences("share", counts)
        if totals is None:
            return {}
        (counts,) = totals
        n = counts.sum(2, keepdim=True)
        moments = {"x": counts, "xx": counts**2, "xn": counts * n, "n": n, "nn": n**2, "sentences": n > 0}
        shape = counts.shape[1:]
        return {
            "count" if name == "x" else f"share.{name}": moment.sum(0).expand(shape) for name, moment in moments.items()
        }

    def head_columns(self, sums: Sums) -> Mapping[str, Array]:
        """The most frequent offset of every head, its share, and the share of offset 0."""
        offset, share, diagonal = positional(sums["count"])
        ends = ratio_interval("share", {"share.x": sums["count"], **sums}, share=True)
        at = np.nan_to_num(offset).astype(int)[:, None] + REACH + 1
        low, high = (np.take_along_axis(end, at, 1)[:, 0] for end in ends)
        shares = {"positional_share": share, "positional_share_ci_low": low, "positional_share_ci_high": high}
        return {"positional_offset": offset, **shares, "self_share": diagonal}

    def compute(self, sums: Sums) -> Mapping[str, Array]:
        """Rows of positions.csv: one per head and offset."""
        counts = sums["count"]
        offsets = np.broadcast_to(np.array(OFFSETS, dtype=object), counts.shape)
        columns = {"offset": offsets, "count": counts, "share": ratio(counts, counts.sum(1, keepdims=True))}
        if (even := sums.get(f"{NULL}count")) is not None:
            columns["share_null"] = np.broadcast_to(ratio(even, even.sum(1, keepdims=True)), counts.shape)
        return columns


def positional(counts: Array) -> tuple[Array, Array, Array]:
    """The most frequent non-zero offset of each head, its share, and the share of offset 0.

    Args:
        counts: (heads, 19), ordered like `OFFSETS`; the tails are no single offset and never win.
    """
    columns = [d + REACH + 1 for d in _PREFERENCE]
    total = counts.sum(1)
    offset = np.where(total > 0, np.array(_PREFERENCE, np.float64)[counts[:, columns].argmax(1)], np.nan)
    return offset, ratio(counts[:, columns].max(1), total), ratio(counts[:, REACH + 1], total)
