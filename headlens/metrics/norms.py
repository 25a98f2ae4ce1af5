"""What heads read, by norm: attention weights alone do not show it (Kobayashi et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from headlens.attention.edits_and_observers import Tokens
from headlens.attention.rows import RowNeeds
from headlens.attention.sites import Site
from headlens.errors import listed
from headlens.metrics.accumulator import Array
from headlens.metrics.attention_view import CallView
from headlens.metrics.mass import NEIGHBOURS
from headlens.metrics.metric import Sums
from headlens.metrics.metric_column import MetricColumn
from headlens.metrics.ratio_estimator import MeanMetric, ratio_mean

# A key has nearly nothing to give where its value's norm is less than this share of the mean of its text. In BERT those
# of [SEP] are far below, those of other tokens near it (Kobayashi et al. 2020, section 4; Bondarenko et al. 2023).
NEARLY_NOTHING = 0.1
_RECEIVERS = {
    "first": "the first token",
    "special": "special tokens",
    "punct": "punctuation",
    "self": "the token itself",
    "prev": "the previous token",
    "next": "the next token",
}


@dataclass(frozen=True)
class Norms(MeanMetric):
    """Norms of the values that a head reads by kind of key, the share of its output in its layer, and idle attention.

    What query q reads of key k is a(q, k) v(k) W_O, the value weighted by attention and projected as the head's part of
    the output projection does; its norm is a(q, k) times that of v(k) W_O. Norms are summed over all queries, token
    level whatever the level of the run; kinds may overlap, as in `Mass`.
    """

    name = "norms"
    without_null = "Heads read values of their own, whatever their weights."
    drawn = False
    columns = (
        MetricColumn(
            "norm_share",
            "Norm of the head's outputs as a share of the norms of all heads of its layer.",
            "norm of the head's output",
            "share of its layer",
        ),
        *(
            MetricColumn(
                f"norm_to_{kind}", f"Share of the summed norms of the weighted value vectors that comes from {words}."
            )
            for kind, words in _RECEIVERS.items()
        ),
        MetricColumn(
            "norm_to_other",
            "The same share for all other tokens: not special, not the first, not punctuation, not the query token "
            "or a neighbour.",
        ),
        MetricColumn(
            "idle",
            "Share of attention weight on keys that contribute almost nothing: the norm of their projected value is "
            f"less than {NEARLY_NOTHING} of the mean norm in their text.",
            "idle attention (on keys that contribute almost nothing)",
        ),
    )

    def needs(self, queries: Tokens, keys: Tokens) -> RowNeeds | None:
        """Returns that it needs what keys receive, norms, and in self-attention neighbours."""
        return RowNeeds(received=True, norms=True, places=queries.are(keys))

    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        """Returns sums of norms, (heads,) each; none where the output projection is not known."""
        if view.value_norms is None or view.output_norms is None:
            return {}
        queries, keys, kind = view.queried.queries, view.queried.keys, view.sums_dtype
        norms = view.value_norms * keys.real[:, None]  # (batch, heads, key)
        received = view.token_received
        read = (view.read_received * norms).to(kind)
        first = keys.real.new_zeros(keys.shape)
        first[:, 0] = True
        masks = {"first": first, "special": keys.special, "punct": keys.punct}
        sums = {name: (read * mask[:, None]).sum((0, 2)) for name, mask in masks.items()}
        in_classes = first | keys.special | keys.punct
        left = (read * ~in_classes[:, None]).sum((0, 2))
        real = queries.real.to(norms.dtype)[:, None]
        for name, offset in NEIGHBOURS.items() if not view.crosses else ():
            pairs, of_queries, of_keys = view.read_neighbour_weights(offset)
            part = pairs * real[..., of_queries] * norms[..., of_keys]
            sums[name] = part.sum((0, 2), dtype=kind)
            left = left - (part * ~in_classes[:, None, of_keys]).sum((0, 2), dtype=kind)
        mean = norms.sum(2, keepdim=True) / keys.real.sum(1)[:, None, None]
        idle = (received * (norms < NEARLY_NOTHING * mean)).sum((0, 2), dtype=kind)
        count = queries.real.sum().expand(idle.shape)
        sums |= {"other": left, "read": read.sum((0, 2)), "idle.x": idle, "idle.n": count, "norm.n": count}
        return sums | {"norm.x": (view.output_norms * real).sum((0, 2), dtype=kind)}

    def notes(self, sums: Mapping[Site, Sums], sites: Sequence[Site]) -> list[str]:
        """The note on sites where norms are not known."""
        unknown = [str(site) for site in sites if site not in sums]
        if not unknown:
            return []
        where = f"where headlens does not know the output projection of heads: {listed(unknown)}"
        return [f"Norms are not measured {where}."]

    def compute(self, sums: Sums) -> Mapping[str, Array]:
        """Returns shares, (heads,) each; NaN where a kind of key was not measured, or nothing was read."""
        empty = np.full_like(sums["read"], np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = {f"norm_to_{kind}": sums.get(kind, empty) / sums["read"] for kind in (*_RECEIVERS, "other")}
            return {"norm_share": sums["norm.x"] / sums["norm.x"].sum(), **shares, "idle": ratio_mean("idle", sums)}
