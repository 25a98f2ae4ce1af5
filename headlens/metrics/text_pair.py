"""Whether a head attends from one text of a pair to the other, where a model reads both as one sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headlens.attention.edits_and_observers import Tokens
from headlens.attention.rows import RowNeeds
from headlens.metrics.attention_view import CallView, NullView, peak_among
from headlens.metrics.metric_column import MetricColumn
from headlens.metrics.ratio_estimator import MeanMetric, ratio_sums


@dataclass(frozen=True)
class TextPair(MeanMetric):
    """Mean attention weight from the tokens of each text of a pair to those of the other.

    Token level, whatever the level of the run. Without a gold alignment, equal tokens stand for it: of the tokens,
    punctuation left out, that have an equal one in the other text, the share whose most attended token of the other
    text is an equal one. In a causal decoder only the second text can attend to the other.
    """

    name = "pair"
    title = "Heads between the texts of a pair"
    heading = "Pairs of texts"
    caption = (
        "Left: the mean weight that the tokens of both texts give to the other text. Right: how often a token that "
        "also occurs in the other text attends most, within that text, to an identical token. Above each map stands "
        "what uniform attention gives, on the right also the share expected by chance."
    )
    columns = (
        MetricColumn("pair_tokens", "Number of tokens in both texts of all pairs.", unit="tokens"),
        MetricColumn(
            "to_pair",
            "Mean attention weight from the tokens of both texts of a pair to the other text.",
            "weight to the other text",
            panel="to the other text",
            scale="attention weight",
            instances="pair_tokens",
            interval=True,
            null=True,
        ),
        MetricColumn("first_to_second", "`to_pair`, only from the first text to the second.", interval=True, null=True),
        MetricColumn("second_to_first", "`to_pair`, only from the second text to the first.", interval=True, null=True),
        MetricColumn(
            "equal_tokens", "Number of tokens, without punctuation, that also occur in the other text.", unit="tokens"
        ),
        MetricColumn(
            "to_equal",
            "How often a token that also occurs in the other text attends most, within that text, to an identical "
            "token.",
            "points at an identical token of the other text",
            "share of such tokens",
            panel="to an identical token",
            scale="share of such tokens",
            chance="to_equal_chance",
            interval=True,
            null=True,
        ),
        MetricColumn("to_equal_chance", "`to_equal` of a head that points at random."),
    )
    stacks = ("encoder", "decoder")
    counts = (("pair_tokens", "to_pair"), ("equal_tokens", "to_equal"))

    def needs(self, queries: Tokens, keys: Tokens) -> RowNeeds | None:
        """Returns that it needs weights of pairs of texts."""
        del queries
        return RowNeeds() if keys.segment is None else None

    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        """Returns sums of weights by direction and of tokens that point at an equal one; without pairs there are none.

        Each sum is (heads,), see `ratio_sums`.
        """
        tokens = view.queried.keys
        if tokens.segment is None or tokens.ids is None:
            return {}
        of_text = torch.stack([tokens.segment == side for side in (0, 1)])  # (text, batch, length)
        other = of_text[0][:, :, None] & of_text[1][:, None] | of_text[1][:, :, None] & of_text[0][:, None]
        if view.causal:
            other = other.tril()
        sees = other.any(2)  # (batch, query)
        # What either text gets: (batch, heads, query, 2).
        received = view.given_to(of_text.permute(1, 2, 0))
        to_other = torch.where(of_text[0][:, None], received[..., 1], received[..., 0])
        sums = ratio_sums("to_pair", view, to_other, sees)
        for name, direction_sums in zip(("first_to_second", "second_to_first"), of_text, strict=True):
            sums |= ratio_sums(name, view, to_other, sees & direction_sums)
        equal = other & (tokens.ids[:, :, None] == tokens.ids[:, None])  # (batch, query, key)
        has_equal = equal.any(2) & ~tokens.punct
        chance = (equal.sum(2) / other.sum(2).clamp(min=1)).to(received.dtype)[:, None].expand(received.shape[:3])
        if isinstance(view, NullView):  # all tokens of the other text tie
            return (
                sums
                | ratio_sums("to_equal", view, chance, has_equal)
                | ratio_sums("to_equal_chance", view, chance, has_equal)
            )
        weights = view.token_weights
        target = peak_among(weights, other).key  # (batch, heads, query)
        places = equal[:, None].expand(weights.shape).gather(3, target.clamp(min=0)[..., None])[..., 0]
        sums |= ratio_sums("to_equal", view, (places & (target >= 0)).to(weights.dtype), has_equal)
        return sums | ratio_sums("to_equal_chance", view, chance, has_equal)
