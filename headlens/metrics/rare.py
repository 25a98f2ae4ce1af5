"""Whether a head points at the rarest word of a sentence (Voita et al. 2019, section 5.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from headlens.attention.edits_and_observers import Tokens
from headlens.attention.rows import RowNeeds
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
    title = "How often heads point at the rarest words"
    heading = "Rare words"
    caption = (
        "How often every head points at the least frequent word of the sentence (left) or at one of the two least "
        "frequent (right); above each map, what chance and uniform attention give. A head is compared with uniform "
        "attention, which points at the words of most subwords, often the rare ones."
    )
    columns = (
        MetricColumn(
            "rare_words",
            "Number of query words, punctuation among them, in sentences of five or more words other than punctuation.",
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
            instances="rare_words",
            interval=True,
            contract=True,
            null=True,
        ),
        MetricColumn(
            "rare_top2",
            "Share of words that attend most to one of the two least frequent words of the sentence.",
            panel="one of the two rarest",
            scale="share of query words",
            chance="rare_chance2",
            interval=True,
            contract=True,
            null=True,
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

    def facts(self, queries: Tokens, keys: Tokens) -> tuple[Tensor, ...] | None:
        """Returns `rare_facts`; None without `rarity` in the batch."""
        return None if keys.rarity is None else rare_facts(queries, keys)

    def needs(self, queries: Tokens, keys: Tokens) -> RowNeeds | None:
        """Returns that it needs the most attended words, where there are rare ones."""
        return RowNeeds(words=self.facts(queries, keys) is not None)

    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        """Returns sums of the query words that attend most to a rarest word, and of the number expected by chance.

        Each sum is (heads,), for the rarest word and for the two rarest; without `rarity` in the batch there are none.
        """
        queried = view.queried
        if (facts := self.facts(queried.queries, queried.keys)) is None:
            return {}
        rank, counted, up_to, rarest, two_rarest = facts
        chosen, targets = queried.plan, view.targets(queried.plan)
        target = targets.token  # (rows, heads)
        hit = rank[chosen.sentence[:, None], target.clamp(min=0)] * (target >= 0)
        sums: dict[str, Tensor] = {}
        # In a causal decoder a word can point at earlier words alone, of which none may be the rarest.
        last = chosen.word if view.causal else -1
        kinds = ("rare_top1", "rare_chance", 2, rarest), ("rare_top2", "rare_chance2", 1, two_rarest)
        for name, by_chance, least, rare in kinds:
            chance = rare[chosen.sentence, last] / up_to[chosen.sentence, last].clamp(min=1)
            sums |= row_sums(name, view, chosen.sentence, targets.mean(hit >= least), counted)
            sums |= row_sums(by_chance, view, chosen.sentence, chance[:, None], counted)
        return sums


@once_per_batch
def rare_facts(queries: Tokens, keys: Tokens) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What the metric needs to know about a batch whose keys have `rarity`.

    Returns:
        Rarity of the word that begins at a token, 0 where none does, (batch, length of the keys); whether a row of
        `GatherPlan` is a query word of a sentence with rare words, (rows,); how many words there are up to each, and
        how many of them are the rarest of the whole sentence, or among its two rarest, (batch, words) each.
    """
    assert keys.rarity is not None
    eligible, words = (keys.rarity > 0).any(1), keys.n_pieces > 0
    rank = keys.rarity.gather(1, keys.word.clamp(min=0)) * places(keys).starts
    up_to, rarest, two_rarest = (c.cumsum(1) for c in (words, words & (keys.rarity >= 2), words & (keys.rarity >= 1)))
    return rank, eligible[plan(queries, keys).sentence], up_to, rarest, two_rarest
