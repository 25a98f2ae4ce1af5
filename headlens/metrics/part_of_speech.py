"""From which part of speech to which the attention of a head goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headlens.attention.edits_and_observers import PARTS_OF_SPEECH, Tokens
from headlens.attention.sites import Site
from headlens.heads import HeadTable
from headlens.metrics.accumulator import Array
from headlens.metrics.attention_view import CallView
from headlens.metrics.batch_cache import once_per_batch
from headlens.metrics.metric import Metric, Sums
from headlens.statistics.weighted_means import ratio

# What is no word, such as special tokens, receives attention, too; and words whose part of speech is unknown.
OTHER = "other"
RECEIVERS = (*PARTS_OF_SPEECH, OTHER)
# From how many keys on adding rows of weights is faster than a product with the matrix of all parts, on a processor.
_LONG = 128


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

    def measure(self, view: CallView) -> Mapping[str, Tensor]:
        """Returns sums of weights, (heads, from, to), and the number of tokens of each part of speech, `n`."""
        if (facts := self.facts(view.queries, view.keys)) is None:
            return {}
        queries, keys = facts
        weight = torch.einsum("bhfk,bkt->hft", _from_parts(view), keys.to(view.weights.dtype))
        return {"weight": weight.to(view.sums_dtype), "n": queries[..., :-1].sum((0, 1)).long()}

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


def _from_parts(view: CallView) -> Tensor:
    """Weights added up over the queries of each part of speech: (batch, heads, from, key)."""
    weights, parts = view.weights, one_hot_upos(view.queries)
    if weights.device.type == "cpu" and weights.shape[3] >= _LONG:
        sums = weights.new_zeros(*weights.shape[:2], parts.shape[2] + 1, weights.shape[3])
        # Padding is of no part: it goes to the last row.
        row = torch.where(view.queries.real, parts.argmax(2), parts.shape[2])
        for sums_of_sentence, number, sentence in zip(sums, row, weights, strict=True):
            sums_of_sentence.index_add_(1, number, sentence)
        return sums[:, :, : len(PARTS_OF_SPEECH)]
    return torch.matmul(parts[..., :-1].to(weights.dtype).transpose(1, 2)[:, None], weights)


@once_per_batch
def one_hot_upos(tokens: Tokens) -> Tensor:
    """1 where a token is of a part of speech, or of none; float, (batch, length, receivers), 0 for padding."""
    assert tokens.upos is not None
    part = torch.where(tokens.word >= 0, tokens.upos.gather(1, tokens.word.clamp(min=0)), -1)
    part = torch.where(part >= 0, part, len(PARTS_OF_SPEECH))
    return torch.nn.functional.one_hot(part, len(RECEIVERS)).float() * tokens.real[..., None]
