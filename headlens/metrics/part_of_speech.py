"""From which part of speech to which the attention of a head goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from headlens.attention.edits_and_observers import PARTS_OF_SPEECH, Tokens
from headlens.attention.rows import RowNeeds
from headlens.attention.sites import Site
from headlens.heads import HeadTable
from headlens.metrics.accumulator import Array
from headlens.metrics.attention_view import CallView
from headlens.metrics.metric import Metric, Sums
from headlens.metrics.words import RECEIVERS, one_hot_upos
from headlens.statistics.weighted_means import ratio


@dataclass(frozen=True)
class PartOfSpeech(Metric):
    """Mean attention weight from tokens of each part of speech to tokens of each other part of speech, see `pos.csv`.

    The parts of speech are the universal ones of the corpus; `other` is all that has none, such as special tokens, so
    that the weights of a head from one part of speech add up to 1.
    """

    name = "pos"
    without_null = "Its table has weights between all parts of speech, and no score."
    sums_of_tokens = frozenset({"n"})
    parts_of_sentences = True
    own_table = True
    drawn = False

    def facts(self, queries: Tokens, keys: Tokens) -> tuple[Tensor, Tensor] | None:
        """Returns `one_hot_upos` of both sides; None where parts of speech are not known."""
        return None if queries.upos is None or keys.upos is None else (one_hot_upos(queries), one_hot_upos(keys))

    def needs(self, queries: Tokens, keys: Tokens) -> RowNeeds | None:
        """Returns that it needs weights between parts of speech, where these are known."""
        return RowNeeds(parts=self.facts(queries, keys) is not None)

    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        """Returns sums of weights, (heads, from, to), and the number of tokens of each part of speech, `n`."""
        if (facts := self.facts(view.queries, view.keys)) is None:
            return {}
        weight = view.between_parts(*facts)
        return {"weight": weight.to(view.sums_dtype), "n": facts[0][..., :-1].sum((0, 1)).long()}

    def table(self, sums: Mapping[Site, Sums]) -> HeadTable | None:
        """Rows of pos.csv: one per head and pair of parts of speech, of those that occur."""
        table = super().table(sums)
        rows = None if table is None else table.rows[table.rows["n"] > 0]
        return None if rows is None or rows.empty else HeadTable(rows)

    def compute(self, sums: Sums) -> Mapping[str, Array]:
        """Returns columns (heads, rows): the two parts of speech, the mean weight, and the number of tokens."""
        weight, n = sums["weight"], sums["n"][:, None]
        parts = {"from": np.array(PARTS_OF_SPEECH, object)[:, None], "to": np.array(RECEIVERS, object)}
        columns = {**parts, "weight": ratio(weight, n), "n": n}
        return {name: np.broadcast_to(c, weight.shape).reshape(len(weight), -1) for name, c in columns.items()}
