"""Whether a head aligns the words of a text with those of its translation, against a gold alignment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from headlens.attention.edits_and_observers import Tokens
from headlens.attention.rows import RowNeeds
from headlens.metrics.accumulator import Array
from headlens.metrics.attention_view import CallView, Targets
from headlens.metrics.batch_cache import once_per_batch
from headlens.metrics.metric import Sums
from headlens.metrics.metric_column import MetricColumn
from headlens.metrics.ratio_estimator import MeanMetric, ratio_mean, row_sums, sentence_sums, share_columns
from headlens.metrics.words import GatherPlan, places, plan


@dataclass(frozen=True)
class WordAlignment(MeanMetric):
    """How well the most attended words of the other text agree with a gold alignment.

    Word level. A word links to the word of the other text that it attends to most: in cross-attention a target word to
    a source word, when the decoder has read it (`aer`), or when it is to write it, one step before (`aer_written`;
    Chen et al. 2020); of two texts in one sequence a word of the second to one of the first (`aer`), and the other way
    round (`aer_reverse`). The alignment error rate of links A, sure gold links S and possible ones P, S among them, is
    1 - (|A and S| + |A and P|) / (|A| + |S|) (Och and Ney 2003). Pairs without any gold link are left out.
    """

    name = "alignment"
    title = "How often heads align words"
    heading = "Word alignment"
    caption = (
        "Among the words of the other text, how often each head attends most to one linked in the gold alignment; "
        "above the map the share that a head pointing at random and uniform attention would have."
    )
    columns = (
        MetricColumn("aligned_words", "Number of words that the gold alignment links.", unit="words"),
        MetricColumn(
            "aligned",
            "Share of linked words whose most attended word in the other text is one of their gold partners.",
            "points at a gold-aligned word",
            "share of linked words",
            panel="a gold-aligned word",
            scale="share of linked words",
            chance="aligned_chance",
            instances="aligned_words",
            interval=True,
            null=True,
        ),
        MetricColumn("aligned_chance", "`aligned` of a head that points at random."),
        MetricColumn(
            "aer",
            "Alignment error rate of the links of target words at the step that reads them, or of the words "
            "of the second text of a pair.",
            interval=True,
        ),
        MetricColumn(
            "aer_written", "The same at the step that generates a target word; cross-attention only.", interval=True
        ),
        MetricColumn(
            "aer_reverse", "The same for the links of the first text; only for pairs in one sequence.", interval=True
        ),
    )

    def facts(self, queries: Tokens, keys: Tokens) -> Tensor | None:
        """Returns the gold alignment, (batch, source words, target words); None without one, or of a single text."""
        if queries.links is None or not len(queries.links) or (queries.are(keys) and queries.segment is None):
            return None
        return _gold(queries, keys)

    def needs(self, queries: Tokens, keys: Tokens) -> RowNeeds | None:
        """Returns that it needs weights where there is a gold alignment: some words may not be pointed at."""
        return None if self.facts(queries, keys) is not None else RowNeeds()

    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        """Returns sums of the words that link to a gold partner, and of what error rates need; without gold none.

        All are sums by sentence as in `sentence_sums`. Of an error rate x is |A and S| + |A and P|, and n |A| + |S|.
        """
        queries, keys = view.queried.queries, view.queried.keys
        if (gold := self.facts(queries, keys)) is None:
            return {}
        sure = (gold == 2).sum((1, 2))  # (batch,)
        has_gold = gold.flatten(1).any(1)  # (batch,)
        chosen, begins = view.queried.plan, places(keys).starts  # (batch, key)
        starts = begins[chosen.sentence]  # (rows, key)
        linked = has_gold[chosen.sentence]  # (rows,)
        if view.crosses:
            by_query = gold.transpose(1, 2)
            links = _links(view, chosen, by_query, starts)
            sums = _rate("aer", view, links, linked, sure)
            before = plan(_written(queries), keys)
            written = _links(view, before, by_query, begins[before.sentence])
            sums |= _rate("aer_written", view, written, has_gold[before.sentence], sure)
        else:
            assert keys.segment is not None
            side = keys.segment[chosen.sentence, chosen.token]  # (rows,)
            starts = starts & (keys.segment[chosen.sentence] == 1 - side[:, None]) & (side >= 0)[:, None]
            # A link is kept once, from the first to the second text; a row reads it from its own end.
            links = _links(view, chosen, torch.maximum(gold, gold.transpose(1, 2)), starts)
            sums = _rate("aer", view, links, linked & (side == 1), sure)
            sums |= _rate("aer_reverse", view, links, linked & (side == 0), sure)
        has_link, chance = links.partners > 0, links.partners / starts.sum(1).clamp(min=1)
        sums |= row_sums("aligned", view, chosen.sentence, links.points.mean(links.levels > 0), has_link)
        return sums | row_sums("aligned_chance", view, chosen.sentence, chance[:, None], has_link)

    def compute(self, sums: Sums) -> Mapping[str, Array]:
        """Returns the share, what chance gives, the number of words, and error rates, with their intervals."""
        columns = {"aligned_words": sums["aligned.n"], **share_columns("aligned", sums)}
        columns["aligned_chance"] = ratio_mean("aligned_chance", sums)
        unknown = [np.full_like(sums["aligned.x"], np.nan)] * 3
        for name in ("aer", "aer_written", "aer_reverse"):
            right, low, high = share_columns(name, sums).values() if f"{name}.n" in sums else unknown
            columns |= {name: 1 - right, f"{name}_ci_low": 1 - high, f"{name}_ci_high": 1 - low}
        return columns


@once_per_batch
def _gold(queries: Tokens, keys: Tokens) -> Tensor:
    """2 for a sure link, 1 for a possible one, else 0; (batch, source words, target words)."""
    assert queries.links is not None
    sentence, source, target, sure = queries.links.unbind(1)
    shape = len(queries.n_pieces), keys.n_pieces.shape[1], queries.n_pieces.shape[1]
    gold = torch.zeros(shape, dtype=torch.int64, device=sure.device)
    gold[sentence, source, target] = 1 + sure
    return gold


@once_per_batch
def _written(queries: Tokens) -> Tokens:
    """The tokens of a decoder at the steps that write them, which are one before those that read them."""
    word = torch.nn.functional.pad(queries.word[:, 1:], (0, 1), value=-1)
    begun = queries.word[:, :1]  # read and never written
    n_pieces = queries.n_pieces.scatter_add(1, begun.clamp(min=0), -(begun >= 0).long())
    return replace(queries, word=word, n_pieces=n_pieces)


class _Links(NamedTuple):
    """How rows link to the words that they point at.

    Args:
        sentence: of every row; (rows,).
        target: words that they point at, -1 for none; (rows, heads).
        points: the tokens that they point at, and the shares of these.
        levels: 2 where gold has the link for sure, 1 where it is possible, else 0; (rows, heads).
        partners: number of words that gold links to a row; (rows,).
    """

    sentence: Tensor
    target: Tensor
    points: Targets
    levels: Tensor
    partners: Tensor


def _links(view: CallView, chosen: GatherPlan, gold: Tensor, allowed: Tensor) -> _Links:
    """The links of rows, given the words they may point at, (rows, key).

    Args:
        view: the call.
        chosen: the rows.
        gold: (batch, words that attend, words attended to).
        allowed: first tokens of words that a row may point at; (rows, key).
    """
    targets = view.targets(chosen, allowed=allowed)
    token = targets.token
    target = view.queried.keys.word[chosen.sentence[:, None], token.clamp(min=0)].masked_fill_(token < 0, -1)
    partners = gold[chosen.sentence, chosen.word]  # (rows, words)
    levels = partners.gather(1, target.clamp(min=0)).masked_fill_(target < 0, 0)
    return _Links(chosen.sentence, target, targets, levels, (partners > 0).sum(1))


def _rate(name: str, view: CallView, links: _Links, counted: Tensor, sure: Tensor) -> dict[str, Tensor]:
    """What the error rate of the links of the counted rows needs, by sentence.

    Args:
        name: of the rate.
        view: the call, for the type of sums.
        links: of all rows.
        counted: which rows count; (rows,).
        sure: sure gold links of every sentence; (batch,).
    """
    counted_of_heads = counted[:, None]
    right = links.points.mean(((links.levels == 2).long() + (links.levels > 0).long()) * counted_of_heads)
    linked = links.points.mean(((links.target >= 0) & counted_of_heads).long())
    none = right.new_zeros(len(sure), right.shape[1])
    x, given = (none.index_add(0, links.sentence, rows) for rows in (right, linked))
    return sentence_sums(name, view, x.to(view.sums_dtype), given + sure[:, None])
