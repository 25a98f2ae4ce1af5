"""Whether a head points at the rarest word of a sentence (Voita et al. 2019, section 5.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from headlens.attention.edits_and_observers import Tokens
from headlens.metrics.attention_view import CallView
from headlens.metrics.batch_cache import once_per_batch
from headlens.metrics.metric_column import MetricColumn
from headlens.metrics.ratio_estimator import MeanMetric, row_sums
from headlens.metrics.words import places, plan


@dataclass(frozen=True)
class RareWords(MeanMetric):
    """Share of query words whose most attended word is the least frequent one (or one of the two) of the sentence.

    Word level, special tokens left out on both sides; every word of an eligible sentence is a query.
    `rare_chance` is the share that a head pointing at random would reach.
    """

    name = "rare"
    own_table = True
    title = "Heads that point at rare words"
    heading = "Rare words"
    caption = (
        "How often every head points at the least frequent word of the sentence (left) or at one of the two least "
        "frequent (right); above each map, the share expected by chance."
    )
    columns = (
        MetricColumn(
            "rare_words",
            "Number of query words in sentences of five or more words (punctuation not counted).",
            unit="words",
        ),
        MetricColumn(
            "rare_top1",
            "Share of words that attend most to the least frequent word of the sentence.",
            "points at the rarest word",
            "share of words",
            panel="the rarest word",
            scale="share of query words",
            chance="rare_chance",
            interval=True,
            contract=True,
        ),
        MetricColumn(
            "rare_top2",
            "Share of words that attend most to one of the two least frequent words of the sentence.",
            panel="one of the two rarest",
            scale="share of query words",
            chance="rare_chance2",
            interval=True,
            contract=True,
        ),
        MetricColumn(
            "rare_chance",
            "`rare_top1` of a head that points at random, in a causal decoder at the words so far.",
            contract=True,
        ),
        MetricColumn(
            "rare_chance2", "`rare_top2` of a head that points at random, in a causal decoder at the words so far."
        ),
    )
    counts = (("rare_words", "rare_top1"),)

    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        """Returns sums of the query words that attend most to a rarest word, and of the number expected by chance.

        Each sum is (heads,), for the rarest word and for the two rarest; without `rarity` in the batch there are none.
        """
        queried = view.queried
        if queried.keys.rarity is None:
            return {}
        facts = rare_facts(queried.queries, queried.keys)
        target = view.word_targets  # (rows, heads)
        hit = facts.rank[queried.plan.sentence[:, None], target.clamp(min=0)] * (target >= 0)
        sums: dict[str, Tensor] = {}
        sentence = queried.plan.sentence
        # In a causal decoder a word can point at earlier words alone, of which none may be the rarest.
        last = queried.plan.word if view.causal else -1
        n_words = facts.words[sentence, last].clamp(min=1)
        for name, by_chance, least, rare in (
            ("rare_top1", "rare_chance", 2, facts.rarest),
            ("rare_top2", "rare_chance2", 1, facts.two_rarest),
        ):
            chance = (rare[sentence, last] / n_words)[:, None]
            sums |= row_sums(name, view, sentence, hit >= least, facts.counted)
            sums |= row_sums(by_chance, view, sentence, chance, facts.counted)
        return sums


class RareFacts(NamedTuple):
    """What the metric needs to know about a batch.

    Args:
        rank: rarity of the word that begins at a token, 0 where none does; (batch, length of the keys).
        counted: whether a row of `GatherPlan` is a query word of a sentence with rare words; (rows,).
        words, rarest, two_rarest: how many words there are up to each, and how many of them are the rarest of the whole
            sentence, or among its two rarest; (batch, words) each.
    """

    rank: Tensor
    counted: Tensor
    words: Tensor
    rarest: Tensor
    two_rarest: Tensor


@once_per_batch
def rare_facts(queries: Tokens, keys: Tokens) -> RareFacts:
    """Facts of a batch whose keys have `rarity`."""
    assert keys.rarity is not None
    eligible = (keys.rarity > 0).any(1)
    rank = keys.rarity.gather(1, keys.word.clamp(min=0)) * places(keys).starts
    words = keys.n_pieces > 0
    counts = (chosen.cumsum(1) for chosen in (words, words & (keys.rarity >= 2), words & (keys.rarity >= 1)))
    return RareFacts(rank, eligible[plan(queries, keys).sentence], *counts)
