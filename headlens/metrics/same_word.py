"""Whether a head points at another occurrence of the same word (duplicate-token heads, Wang et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headlens.metrics.attention_view import CallView
from headlens.metrics.metric_column import MetricColumn
from headlens.metrics.ratio_estimator import MeanMetric, row_sums
from headlens.metrics.words import places, repeats


@dataclass(frozen=True)
class SameWord(MeanMetric):
    """Share of repeated words whose most attended word is another occurrence of the same word form.

    Word level, special tokens left out on both sides; forms are compared without case, and punctuation is none. A word
    is repeated if the query may attend to another occurrence: in a causal decoder to an earlier one.
    """

    name = "same_word"
    title = "Heads that point at the same word"
    heading = "Same word"
    caption = (
        "How often every head points from a word that occurs more than once in its text at another occurrence of it; "
        "above the map, the share expected by chance."
    )
    columns = (
        MetricColumn("repeated_words", "Number of words that occur more than once in their text.", unit="words"),
        MetricColumn(
            "same_word",
            "Share of repeated words that attend most to another occurrence of the same word.",
            "points at the same word",
            "share of repeated words",
            panel="another occurrence of the word",
            scale="share of repeated words",
            chance="same_word_chance",
            interval=True,
        ),
        MetricColumn("same_word_chance", "`same_word` of a head that points at random."),
    )
    stacks = ("encoder", "decoder")
    counts = (("repeated_words", "same_word"),)

    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        """Returns sums of the repeated words that attend most to another occurrence, and of what chance gives.

        Each sum is (heads,); without `forms` in the batch there are none.
        """
        tokens, chosen = view.queried.keys, view.queried.plan
        if tokens.forms is None:
            return {}
        found, own = repeats(tokens.forms), tokens.forms[chosen.sentence, chosen.word]  # (rows,)
        there = (found.earlier if view.causal else found.others)[chosen.sentence, chosen.word]
        form_at = torch.where(places(tokens).starts, tokens.forms.gather(1, tokens.word.clamp(min=0)), -1)
        target = view.word_targets  # (rows, heads)
        same = form_at[chosen.sentence[:, None], target.clamp(min=0)] == own[:, None]
        same &= (target >= 0) & (target != chosen.own[:, None])
        words = (tokens.n_pieces > 0).long()
        available = words.cumsum(1) if view.causal else words.sum(1, keepdim=True).expand_as(words)
        chance = there / available[chosen.sentence, chosen.word].clamp(min=1)  # (rows,)
        return {
            **row_sums("same_word", view, chosen.sentence, same, there > 0),
            **row_sums("same_word_chance", view, chosen.sentence, chance[:, None], there > 0),
        }
