"""Whether a head points from a mention to an earlier mention of the same entity (Clark et al. 2019, section 5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from headlens.attention.edits_and_observers import Tokens
from headlens.attention.rows import RowNeeds
from headlens.attention.sites import Site
from headlens.heads import HeadTable
from headlens.metrics.accumulator import Array
from headlens.metrics.attention_view import CallView
from headlens.metrics.batch_cache import once_per_batch
from headlens.metrics.metric import Sums
from headlens.metrics.metric_column import MetricColumn
from headlens.metrics.ratio_estimator import MeanMetric, row_sums
from headlens.metrics.words import plan
from headlens.statistics.paired_tests import holm, mcnemar_greater

_BASELINES = ("coreference_nearest", "coreference_same_word")
_TOO = "_too"  # ends the names of sums of what both a head and a baseline have right


@dataclass(frozen=True)
class Coreference(MeanMetric):
    """Share of mentions whose head word attends most to the head word of an antecedent.

    Word level, special tokens left out as keys. Mentions that have an antecedent count: an earlier mention of the same
    entity in the text that the model reads at once, as a rule a sentence. Baselines are the share of them whose nearest
    earlier mention, of any entity, is an antecedent, and the share whose nearest earlier occurrence of the same word is
    the head word of one. The p-value is of the exact one-sided paired test against the better baseline.
    """

    name = "coreference"
    title = "How often heads find antecedents"
    heading = "Coreference"
    caption = (
        "How often every head points from the head word of a mention at that of an earlier mention of the same entity; "
        "above the map, how often the nearest earlier mention, the nearest earlier occurrence of the same word and "
        "uniform attention find one. A head is compared with the best of these."
    )
    columns = (
        MetricColumn("mentions", "Number of mentions that have an antecedent in their text.", unit="mentions"),
        MetricColumn(
            "coreference",
            "How often the head word of a mention attends most to the head word of an antecedent.",
            "points at an antecedent",
            "share of mentions",
            panel="an antecedent",
            scale="share of mentions",
            instances="mentions",
            interval=True,
            null=True,
        ),
        MetricColumn(
            "coreference_nearest",
            "Share of mentions for which the nearest earlier mention of any entity is an antecedent.",
        ),
        MetricColumn(
            "coreference_same_word",
            "Share of mentions for which the nearest earlier occurrence of the same word is the head word of an "
            "antecedent.",
        ),
        MetricColumn(
            "coreference_p_value",
            "Exact one-sided McNemar test of whether the head finds more antecedents than the better baseline.",
            unit="probability",
        ),
        MetricColumn(
            "coreference_p_holm",
            "The same with Holm's correction over all heads of the model.",
            unit="probability",
        ),
    )
    stacks = ("encoder", "decoder")
    counts = (("mentions", "coreference"),)

    def facts(self, queries: Tokens, keys: Tokens) -> tuple[Tensor, Tensor, Tensor] | None:
        """Returns `asked_mentions` and `mention_heads`; None without mentions."""
        return None if keys.mentions is None else (*asked_mentions(queries, keys), mention_heads(keys))

    def needs(self, queries: Tokens, keys: Tokens) -> RowNeeds | None:
        """Returns that it needs the most attended words, where there are mentions."""
        return RowNeeds(words=self.facts(queries, keys) is not None)

    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        """Returns sums of the mentions that point at an antecedent, of those that a baseline has right, and of both.

        All are sums by sentence, see `sentence_sums`; there are none without mentions.
        """
        tokens = view.queried.keys
        if (facts := self.facts(view.queried.queries, tokens)) is None:
            return {}
        row, mentions, heads = facts
        sentence, word, entity = mentions[:, :3].unbind(1)
        has_earlier, *found = mentions[:, 3:].bool().unbind(1)
        targets = view.targets(view.queried.plan).at(row)
        target = targets.token  # (mentions, heads)
        pointed = tokens.word[sentence[:, None], target.clamp(min=0)]
        same_entity = heads[sentence[:, None], pointed, entity[:, None]]
        hit = same_entity & (target >= 0) & (pointed < word[:, None])
        hits = targets.mean(hit)
        sums = row_sums("coreference", view, sentence, hits, has_earlier)
        for name, of_baseline in zip(_BASELINES, found, strict=True):
            sums |= row_sums(name, view, sentence, of_baseline[:, None], has_earlier)
            sums |= row_sums(f"{name}{_TOO}", view, sentence, hits * of_baseline[:, None], has_earlier)
        return sums

    def compute(self, sums: Sums) -> Mapping[str, Array]:
        """Returns the shares, and the p-value of every head of a site, which `head_table` corrects."""
        better = max(_BASELINES, key=lambda name: sums[f"{name}.x"].sum())
        both, base = sums[f"{better}{_TOO}.x"], sums[f"{better}.x"]
        p_value = mcnemar_greater(sums["coreference.x"] - both, base - both, sums["coreference.n"])
        return {**super().compute(sums), "coreference_p_value": p_value, "coreference_p_holm": p_value}

    def head_table(self, sums: Mapping[Site, Sums]) -> HeadTable | None:
        """Returns the columns of heads.csv, with Holm's correction over the heads of all sites."""
        table = super().head_table(sums)
        return table and HeadTable(
            table.rows.assign(coreference_p_holm=holm(table.rows["coreference_p_value"].to_numpy()))
        )


@once_per_batch
def asked_mentions(queries: Tokens, keys: Tokens) -> tuple[Tensor, Tensor]:
    """The mentions whose head word is among the queries: its row in `GatherPlan`, and what is known of it."""
    assert keys.mentions is not None
    row = plan(queries, keys).row_of_word[keys.mentions[:, 0], keys.mentions[:, 1]]
    return row[row >= 0], keys.mentions[row >= 0]


@once_per_batch
def mention_heads(tokens: Tokens) -> Tensor:
    """Whether a word is the head of a mention of an entity: (batch, words, entities), of tokens with mentions."""
    assert tokens.mentions is not None
    sentence, word, entity = tokens.mentions[:, :3].unbind(1)
    # A part of a batch may have none.
    n_entities = int(entity.amax()) + 1 if len(entity) else 0
    heads = tokens.real.new_zeros(*tokens.n_pieces.shape, n_entities)
    heads[sentence, word, entity] = True
    return heads
