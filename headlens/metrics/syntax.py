"""Whether a head follows dependency relations (Voita et al. 2019, section 5.2; Clark et al. 2019, section 4)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from headlens.attention.edits_and_observers import Tokens
from headlens.attention.rows import RowNeeds
from headlens.attention.sites import Site
from headlens.heads import HeadTable, Stack
from headlens.metrics.accumulator import Array
from headlens.metrics.attention_view import CallView, NullView
from headlens.metrics.batch_cache import once_per_batch
from headlens.metrics.metric import NULL, Metric, MetricSettings, Sums
from headlens.metrics.reductions import count
from headlens.metrics.words import places, plan
from headlens.statistics.intervals import wilson
from headlens.statistics.paired_tests import holm, mcnemar_greater
from headlens.tables.classify_tables import DIRECTIONS, RELATION_REACH, offsets_to

# Offsets beyond the reach are counted together and cannot be the baseline's.
_WIDTH = 2 * RELATION_REACH + 3


@dataclass(frozen=True)
class Syntax(Metric):
    """Counts of relation instances whose source word attends most to the target word.

    Args:
        relations: names of the relations, numbered as in `Tokens.arcs`.
        exclude_self: whether a word's attention to itself is left out.
        baseline: by stack, offsets chosen on another corpus (`most_frequent_offsets`); for stacks that are
            not there, and by default, they are chosen on the measured corpus.

    The counts are kept by offset (target - source), so that the accuracy of always choosing one offset is known
    without a second pass, and paired with the head's instance by instance. Offsets are in units, see `Alignment`:
    words, of which those that share characters or a token, as in a contraction, are one. Voita et al. (2019) have words
    only; but a head finds units, and one that always looks at the next unit would beat the best offset in words.
    """

    relations: tuple[str, ...] = ()
    exclude_self: bool = False
    baseline: Mapping[Stack, Array] | None = None
    name = "syntax"
    sums_of_tokens = frozenset({"n"})
    parts_of_sentences = True
    own_table = True
    drawn = False  # a panel for every relation
    stacks = ("encoder", "decoder")

    @classmethod
    def of(cls, settings: MetricSettings) -> Self:
        """Returns the metric with the relations, the baseline and the treatment of self-attention of a run."""
        return cls(settings.relations, settings.exclude_self, settings.baseline)

    def facts(self, queries: Tokens, keys: Tokens) -> tuple[Tensor, Tensor, Tensor] | None:
        """Returns `arc_facts`; None without trees."""
        return None if keys.arcs is None else arc_facts(queries, keys)

    def needs(self, queries: Tokens, keys: Tokens) -> RowNeeds | None:
        """Returns that it needs the most attended words, or other words, where there are trees."""
        has_trees = self.facts(queries, keys) is not None
        return RowNeeds(words=has_trees and not self.exclude_self, other_words=has_trees and self.exclude_self)

    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        """`n`: (relation, direction, offset); `correct`: (heads, relation, direction, offset)."""
        if (facts := self.facts(view.queried.queries, view.queried.keys)) is None:
            return {}
        row, goal, slot = facts
        targets = view.targets(view.queried.plan, others=self.exclude_self).at(row)
        right = targets.mean(targets.token == goal[:, None])  # (2 x arcs, heads)
        shape = len(self.relations), len(DIRECTIONS), _WIDTH
        right = right.long() if right.dtype == torch.bool else right  # of the null head, shares
        counts = torch.zeros((math.prod(shape), right.shape[1]), dtype=right.dtype, device=right.device)
        correct = counts.index_add_(0, slot, right).T.view(-1, *shape)
        return {"n": count(slot, math.prod(shape)).view(shape), "correct": correct}

    def null(self, view: NullView) -> Mapping[str, Tensor]:
        """Returns the sums of the null head."""
        return self.measure(view)

    def table(self, sums: Mapping[Site, Sums]) -> HeadTable | None:
        """Rows of syntax.csv without the roles: one per head, relation and direction.

        `accuracy` comes with its Wilson interval; `p_value` is the exact one-sided McNemar test of the head against
        the baseline, `p_holm` corrects over all rows of the table that have instances.
        """
        frames = [self._site_rows(site, site_sums) for site, site_sums in sums.items() if site_sums["n"].any()]
        if not frames:
            return None
        rows = pd.concat(frames, ignore_index=True)
        rows["p_holm"] = holm(rows["p_value"].to_numpy())
        return HeadTable(rows)

    def more_tables(self, sums: Mapping[Site, Sums]) -> Mapping[str, pd.DataFrame]:
        """`relation_offsets`: where the other word of a relation stands, which is what the baseline chooses from.

        Rows are those with instances: stack, relation, direction, offset (target - source in units, the two tails
        beyond 63 by name), n and share of the relation. The first layer of a stack tells of all: trees are the same.
        """
        firsts: dict[Stack, Array] = {}
        for site, site_sums in sums.items():
            if site_sums["n"].any():
                firsts.setdefault(site.stack, site_sums["n"])
        names = np.array(offsets_to(RELATION_REACH))
        frames = []
        for stack, n in firsts.items():
            relation, direction, offset = n.nonzero()
            kinds = {"relation": np.array(self.relations)[relation], "direction": np.array(DIRECTIONS)[direction]}
            counts = n[relation, direction, offset]
            columns = {**kinds, "offset": names[offset], "n": counts, "share": counts / n.sum(2)[relation, direction]}
            frames.append(pd.DataFrame({"stack": stack, **columns}))
        return {"relation_offsets": pd.concat(frames, ignore_index=True)} if frames else {}

    def _site_rows(self, site: Site, sums: Sums) -> pd.DataFrame:
        n, correct = sums["n"], sums["correct"]
        chosen = (self.baseline or {}).get(site.stack)
        offsets = most_frequent_offsets(n) if chosen is None else chosen
        at = offsets[:, :, None]
        n_baseline = np.take_along_axis(n, at, 2)[:, :, 0]  # instances the baseline has right
        both = np.take_along_axis(correct, at[None], 3)[:, :, :, 0]  # (heads, relation, direction)
        right = correct.sum(3)
        count, base, offset = (np.broadcast_to(v, right.shape).ravel() for v in (n.sum(2), n_baseline, offsets))
        low, high = wilson(right.ravel(), count)
        with np.errstate(invalid="ignore"):
            accuracy, baseline = right.ravel() / count, base / count
        place, relation, direction = np.indices(right.shape).reshape(3, -1)
        return pd.DataFrame(
            {
                "stack": site.stack,
                "layer": site.layer,
                # A compacted model's heads keep the numbers of the original.
                "head": np.array([h.head for h in site.heads])[place],
                "relation": np.array(self.relations)[relation],
                "direction": np.array(DIRECTIONS)[direction],
                "n": count,
                "correct": right.ravel(),
                "accuracy": accuracy,
                "ci_low": low,
                "ci_high": high,
                "baseline_offset": np.where(count > 0, offset - RELATION_REACH - 1, np.nan),
                "baseline": baseline,
                "p_value": mcnemar_greater((right - both).ravel(), base - both.ravel(), count),
                "accuracy_null": self._null_accuracy(sums, right.shape),
            }
        )

    def _null_accuracy(self, sums: Sums, shape: tuple[int, ...]) -> Array:
        """Accuracy of the null head, of every row of a site; NaN where it is not known."""
        if (correct := sums.get(f"{NULL}correct")) is None:
            return np.full(math.prod(shape), np.nan)
        with np.errstate(invalid="ignore"):
            accuracy: Array = np.broadcast_to(correct.sum(3) / sums["n"].sum(2), shape).ravel()
        return accuracy


@once_per_batch
def arc_facts(queries: Tokens, keys: Tokens) -> tuple[Tensor, Tensor, Tensor]:
    """The relation instances of a batch that has `arcs`, of those whose source word is among the queries.

    Returns:
        First all from dependent to head, then all from head to dependent: the row of the source word in `GatherPlan`,
        the first token of the target word, and relation, direction and offset as one number.
    """
    assert keys.arcs is not None
    sentence, dependent, head, _ = keys.arcs.unbind(1)
    rows, first = plan(queries, keys).row_of_word, places(keys).first
    row = torch.cat([rows[sentence, dependent], rows[sentence, head]])
    goal = torch.cat([first[sentence, head], first[sentence, dependent]])
    here = row >= 0
    return row[here], goal[here], _slots(keys.arcs)[here]


def _slots(arcs: Tensor) -> Tensor:
    """Relation, direction and offset of all arcs in one direction, then of all in the other, as one number."""
    _, dependent, head, relation = arcs.unbind(1)
    direction = torch.arange(len(DIRECTIONS), device=arcs.device)[:, None]
    column = torch.stack([head - dependent, dependent - head]).clamp(-RELATION_REACH - 1, RELATION_REACH + 1)
    column = column + RELATION_REACH + 1
    return ((relation * len(DIRECTIONS) + direction) * _WIDTH + column).flatten()


def count_offsets(arcs: Tensor, n_relations: int) -> Tensor:
    """Count relation instances by direction and offset (target - source) in units.

    Args:
        arcs: as in `Tokens.arcs`.
        n_relations: how many relations are numbered.

    Returns:
        Counts (relation, direction, offset).
    """
    shape = n_relations, len(DIRECTIONS), _WIDTH
    return count(_slots(arcs), math.prod(shape)).view(shape)


def most_frequent_offsets(n: Array) -> Array:
    """The baseline's offset for every relation and direction; ties go to the nearer, then the left one.

    Args:
        n: instances by (relation, direction, offset).

    Returns:
        Index into the offset axis; (relation, direction).
    """
    preference = sorted(range(1, n.shape[2] - 1), key=lambda i: (abs(i - RELATION_REACH - 1), i))
    chosen: Array = np.array(preference)[n[:, :, preference].argmax(2)]
    return chosen
