"""Whether a head points at another occurrence of the same word (duplicate-token heads, Wang et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headlens.attention.edits_and_observers import Tokens
from headlens.attention.rows import RowNeeds
from headlens.metrics.attention_view import CallView
from headlens.metrics.batch_cache import once_per_batch
from headlens.metrics.metric_column import MetricColumn
from headlens.metrics.ratio_estimator import MeanMetric, row_sums
from headlens.metrics.words import places, plan, repeats


@dataclass(frozen=True)
class SameWord(MeanMetric):
    """Share of repeated words whose most attended word is another occurrence of the same word form.

    Word level, special tokens left out on both sides; forms are compared without case, and punctuation is none. A word
    is repeated if the query may attend to another occurrence: in a causal decoder to an earlier one.
    """

    name = "same_word"
    title = "How often heads point at the same word"
    heading = "Same word"
    caption = (
        "How often every head points from a word that occurs more than once in its text, in upper or lower case, at "
        "another occurrence of it; above the map, what chance and uniform attention give. A head is compared with both."
    )
    columns = (
        MetricColumn(
            "repeated_words",
            "Number of words, without punctuation, that occur more than once in their text, in upper or lower case; in "
            "a causal decoder of those that occurred before.",
            unit="words",
        ),
        MetricColumn(
            "same_word",
            "Share of repeated words that attend most to another occurrence of the same word.",
            "points at the same word",
            "share of repeated words",
            panel="another occurrence of the word",
            scale="share of repeated words",
            chance="same_word_chance",
            instances="repeated_words",
            interval=True,
            null=True,
        ),
        MetricColumn("same_word_chance", "`same_word` of a head that points at random."),
    )
    stacks = ("encoder", "decoder")
    counts = (("repeated_words", "same_word"),)

    def facts(self, queries: Tokens, keys: Tokens) -> tuple[Any, ...] | None:
        """Returns `form_facts`; None without `forms` in the batch."""
        return None if keys.forms is None else form_facts(queries, keys)

    def needs(self, queries: Tokens, keys: Tokens) -> RowNeeds | None:
        """Returns that it needs the most attended words, where words have forms."""
        return RowNeeds(words=self.facts(queries, keys) is not None)

    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        """Returns sums of the repeated words that attend most to another occurrence, and of what chance gives.

        Each sum is (heads,); without `forms` in the batch there are none.
        """
        queries, keys, chosen = view.queried
        if (facts := self.facts(queries, keys)) is None:
            return {}
        form, form_at, *by_reach = facts
        has_repeat, chance = by_reach[view.causal]
        targets = view.targets(chosen)
        target = targets.token  # (rows, heads)
        same = form_at[chosen.sentence[:, None], target.clamp(min=0)] == form[:, None]
        same &= (target >= 0) & (target != chosen.own_key[:, None])
        return {
            **row_sums("same_word", view, chosen.sentence, targets.mean(same), has_repeat),
            **row_sums("same_word_chance", view, chosen.sentence, chance[:, None], has_repeat),
        }


@once_per_batch
def form_facts(queries: Tokens, keys: Tokens) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """What the metric needs to know about a batch whose keys have `forms`, by row of `GatherPlan` and by token.

    Returns:
        The form of every row, (rows,); the form of the word that begins at a token, -1 where none does, (batch, length
        of the keys); and twice, for queries that may attend to all words and for those that may to the words so far,
        whether there is another occurrence of the row's form, and the share of words that are one, (rows,) each.
    """
    assert keys.forms is not None
    chosen, words, repeated = plan(queries, keys), (keys.n_pieces > 0).long(), repeats(keys.forms)
    sentence, word = chosen.sentence, chosen.word

    def reached(others: Tensor, available: Tensor) -> tuple[Tensor, Tensor]:
        count = others[sentence, word]
        return count > 0, count / available[sentence, word].clamp(min=1)

    form_at = torch.where(places(keys).starts, keys.forms.gather(1, keys.word.clamp(min=0)), -1)
    all_words = words.sum(1, keepdim=True).expand_as(words)
    so_far = reached(repeated.earlier, words.cumsum(1))
    return keys.forms[sentence, word], form_at, reached(repeated.others, all_words), so_far
