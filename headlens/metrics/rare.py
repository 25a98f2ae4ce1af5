"""Whether a head points at the rarest word of a sentence (Voita et al. 2019, section 5.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from headlens.metrics.base import Metric, Sums
from headlens.metrics.ratios import ratio_interval, ratio_mean, ratio_sums
from headlens.metrics.totals import Array
from headlens.metrics.view import CallView, peak_among


@dataclass(frozen=True)
class RareWords(Metric):
    """Share of query words whose most attended word is the least frequent one (or one of the two) of the sentence.

    Word level, special tokens left out on both sides; every word of an eligible sentence is a query.
    `rare_chance` is the share that a head pointing at random would reach.
    """

    name: ClassVar[str] = "rare"

    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        """Counts of hits, and chance."""
        keys, queries = view.key_words, view.query_words.tokens
        rarity = keys.tokens.rarity
        if rarity is None:
            return {}
        # From words to units: (batch, key units); special tokens have rarity 0.
        words = keys.tokens.word
        rank = rarity.gather(1, words.clamp(min=0)) * (words >= 0)
        target = peak_among(view.word_weights, words >= 0).key  # (batch, heads, query units)
        eligible = (rarity > 0).any(1)
        counted = (queries.word >= 0) & eligible[:, None]
        hit = rank[:, None].expand(-1, target.shape[1], -1).gather(2, target.clamp(min=0)) * (target >= 0)
        n_words = (words >= 0).sum(1).clamp(min=1)
        sums: dict[str, Tensor] = {}
        for name, least in (("rare_top1", 2), ("rare_top2", 1)):
            value = (hit >= least).to(view.weights.dtype)
            chance = ((rank >= least).sum(1) / n_words).to(view.weights.dtype)[:, None, None].expand_as(value)
            sums |= ratio_sums(name, view, value, counted)
            sums |= ratio_sums(name.replace("top", "chance"), view, chance, counted)
        return sums

    def compute(self, sums: Sums) -> Mapping[str, Array]:
        """Shares with 95 % intervals, chance, and the number of query words."""
        columns: dict[str, Array] = {}
        for name in ("rare_top1", "rare_top2"):
            columns[name] = ratio_mean(name, sums)
            columns[f"{name}_ci_low"], columns[f"{name}_ci_high"] = ratio_interval(name, sums, within=(0, 1))
        columns["rare_chance"] = ratio_mean("rare_chance1", sums)
        columns["rare_chance2"] = ratio_mean("rare_chance2", sums)
        columns["rare_words"] = sums["rare_top1.n"]
        return columns
