"""Where the attention of a head goes on average (Clark et al. 2019, section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from headlens.attention.edits_and_observers import Tokens
from headlens.attention.rows import RowNeeds
from headlens.metrics.accumulator import Array
from headlens.metrics.attention_view import CallView
from headlens.metrics.metric import Metric, Sums
from headlens.metrics.metric_column import MetricColumn

KINDS = ("cls", "sep", "bos", "eos", "punct")
NEIGHBOURS = {"self": 0, "prev": -1, "next": 1}
# What receives weight, in the words of the column and of its title.
_RECEIVERS = {
    "cls": ("given to [CLS]", "[CLS]"),
    "sep": ("given to [SEP]", "[SEP]"),
    "bos": ("given to the beginning-of-sentence token", "the beginning-of-sentence token"),
    "eos": ("given to the end-of-sentence token", "the end-of-sentence token"),
    "punct": ("given to punctuation", "punctuation"),
    "self": ("of a token to itself", "itself"),
    "prev": ("given to the previous token", "the previous token"),
    "next": ("given to the next token", "the next token"),
}


@dataclass(frozen=True)
class Mass(Metric):
    """Mean attention mass per query token to kinds of keys, and the mean distance of attention in tokens.

    `to_first` is the first token whatever it is; a kind that never occurs in the corpus has an empty cell.
    `to_self`, `to_prev`, `to_next` and `distance` compare positions, so cross-attention has none.
    """

    name = "mass"
    sums_of_tokens = frozenset()
    parts_of_sentences = True
    title = "Where attention goes"
    heading = "Where attention goes"
    caption = (
        "The mean attention weight that tokens give to special tokens, punctuation, themselves and their neighbours. A "
        "token that has two names, such as RoBERTa's <s>, is drawn once, under both; tokens that a model does not have "
        "are left out. Above each map stands what uniform attention gives."
    )
    columns = (
        *(
            MetricColumn(
                f"to_{key}",
                f"Mean attention weight {to}.",
                f"weight to {title}",
                panel=f"to {title}",
                scale="mean attention weight",
                contract=True,
                null=True,
            )
            for key, (to, title) in _RECEIVERS.items()
        ),
        MetricColumn(
            "distance",
            "Mean distance in tokens between a query and its keys, weighted by attention.",
            "mean distance",
            "tokens",
            high=None,
            contract=True,
        ),
        MetricColumn(
            "to_first",
            "Mean attention weight given to the first token, special or not.",
            "weight to the first token",
            panel="to the first token",
            scale="mean attention weight",
            null=True,
        ),
        MetricColumn(
            "punct_chance",
            "`to_punct` of a head that attends equally to all tokens that a query may see, between words to all words.",
        ),
        MetricColumn(
            "mass_left",
            "Mean attention weight left for content: given neither to the first token, nor to a "
            "[CLS], separator, beginning or end token, nor to punctuation.",
            "weight left for content",
        ),
    )

    def needs(self, queries: Tokens, keys: Tokens) -> RowNeeds | None:
        """Returns that it needs what keys receive, and in self-attention distances and neighbours."""
        return RowNeeds(received=True, places=queries.are(keys))

    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        """Returns sums over real queries of the attention weights on kinds of keys and of the distance; (heads,) each.

        Each kind's number of keys and the number of queries, `n`, are scalars; cross-attention has no sums by position.
        """
        real, kind = view.queries.real, view.sums_dtype
        received = view.received.to(kind)  # (batch, heads, key)
        keys = view.keys
        resting = keys.cls | keys.separator | keys.bos | keys.punct
        resting[:, 0] = True
        sums = {
            "n": real.sum(),
            "first": received[:, :, 0].sum(0),
            "resting": (received * resting[:, None]).sum((0, 2)),
        }
        if view.allowed is not None:
            seen = (view.allowed & keys.punct[:, None, None]).sum(3)  # (batch, 1 or heads, query)
            chance = seen / view.allowed.sum(3).clamp(min=1) * real[:, None]
            sums["punct.chance"] = chance.sum((0, 2), dtype=kind).expand(received.shape[1])
        else:
            seen = keys.punct.sum(1, keepdim=True)
            if view.causal:
                seen = keys.punct.long().cumsum(1)[:, view.start : view.start + real.shape[1]]
            sums["punct.chance"] = (seen / view.available.clamp(min=1) * real).sum(dtype=kind)
        for name in KINDS:
            flag = getattr(keys, name)
            sums[name] = (received * flag[:, None]).sum((0, 2))
            sums[f"{name}.keys"] = flag.sum() * int(not view.start)  # once, where queries come in parts
        if view.crosses:
            return sums
        distances = view.distances
        flags = real.to(distances.dtype)[:, None]
        for name, offset in NEIGHBOURS.items():
            pairs, queries, _ = view.neighbour_weights(offset)
            sums[name] = (pairs * flags[..., queries]).sum((0, 2), dtype=kind)
        return sums | {"distance": (distances * flags).sum((0, 2), dtype=kind)}

    def compute(self, sums: Sums) -> Mapping[str, Array]:
        """Returns mean attention weights by kind of key, and the mean distance in tokens; (heads,), NaN for none."""
        names = ("first", *KINDS, *NEIGHBOURS, "distance")
        # Kinds that never occur, and what compares positions in cross-attention, are known of no head.
        known = [name for name in names if name in sums and (name not in KINDS or sums[f"{name}.keys"])]
        means = {name: sums[name] / sums["n"] for name in known}
        empty = np.full_like(sums["first"], np.nan)
        columns = {name if name == "distance" else f"to_{name}": means.get(name, empty) for name in names}
        chance = sums["punct.chance"] / sums["n"] if sums["punct.keys"] else np.nan
        return columns | {"punct_chance": np.full_like(empty, chance), "mass_left": 1 - sums["resting"] / sums["n"]}
