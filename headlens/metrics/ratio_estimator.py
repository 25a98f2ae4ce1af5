"""Means over the tokens of a corpus, with intervals that respect that tokens come in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy import special
from torch import Tensor

from headlens.metrics.accumulator import Array
from headlens.metrics.attention_view import CallView
from headlens.metrics.metric import Metric, Sums
from headlens.statistics.intervals import wilson
from headlens.statistics.weighted_means import ratio

_MOMENTS = ("x", "n", "xx", "xn", "nn", "sentences")


@dataclass(frozen=True)
class MeanMetric(Metric):
    """A metric whose columns are means; for each of them `measure` gives the sums of `ratio_sums` or `row_sums`.

    Attributes:
        counts: columns of numbers of instances, and the mean that each belongs to.
    """

    counts: ClassVar[tuple[tuple[str, str], ...]] = ()
    sums_of_tokens = frozenset()
    parts_of_sentences = True

    def compute(self, sums: Sums) -> Mapping[str, Array]:
        """Returns numbers of instances, and means with the 95 % intervals that are declared; (heads,) each.

        Columns without sums are no means, and for the metric to add.
        """
        columns = {name: sums[f"{mean}.n"] for name, mean in self.counts}
        for column in self.columns:
            if column.interval:
                columns |= share_columns(column.name, sums)
            elif column.name not in columns and f"{column.name}.x" in sums:
                columns[column.name] = ratio_mean(column.name, sums)
        return columns


def ratio_sums(name: str, view: CallView, values: Tensor, counted: Tensor) -> dict[str, Tensor]:
    """Sums for the mean of `values` over the counted queries, and for its interval.

    Args:
        name: prefix of the sums.
        view: the call, for the type of sums.
        values: (batch, heads, query).
        counted: (batch, query) or (batch, heads, query).

    Returns:
        Per head: sums over sentences of x (sum of values), n (count), x², xn, n², and the number of sentences
        with n > 0; (heads,) each.
    """
    mask = counted if counted.dim() == 3 else counted[:, None]
    return sentence_sums(name, view, values.masked_fill(~mask, 0).sum(-1, dtype=view.sums_dtype), mask.sum(-1))


def sentence_sums(name: str, view: CallView, x: Tensor, n: Tensor) -> dict[str, Tensor]:
    """Sums as `ratio_sums`, from those of every sentence; none while queries of the sentences follow in another view.

    Args:
        name: prefix of the sums.
        view: the call.
        x: sum of the values of every sentence; (batch, heads).
        n: how many they are; (batch, heads), or (batch, 1) if the heads do not differ.
    """
    totals = view.of_sentences(name, x, n)
    if totals is None:
        return {}
    x, n = totals
    # Two sums of three moments each: on a GPU the number of operations counts, not their size.
    sums_of_x = torch.stack([x, x * x, x * n]).sum(1)
    sums_of_n = torch.stack([n, n * n, (n > 0).to(n.dtype)]).sum(1).expand(-1, x.shape[1])
    moments = dict(zip(("x", "xx", "xn", "n", "nn", "sentences"), (*sums_of_x, *sums_of_n), strict=True))
    return {f"{name}.{key}": moments[key] for key in _MOMENTS}


def row_sums(name: str, view: CallView, sentence: Tensor, hits: Tensor, counted: Tensor) -> dict[str, Tensor]:
    """Sums as `ratio_sums`, from rows that each belong to a sentence, such as words that metrics ask about.

    Args:
        name: prefix of the sums.
        view: the call, for the number of sentences and the type of sums.
        sentence: of every row; (rows,).
        hits: value of every row; (rows, heads), or (rows, 1) if the heads do not differ.
        counted: which rows count; (rows,).
    """
    n_sentences, n_heads = view.queries.shape[0], view.n_heads
    values = hits.to(view.sums_dtype).masked_fill(~counted[:, None], 0).expand(-1, n_heads)
    x = values.new_zeros(n_sentences, n_heads).index_add_(0, sentence, values)
    n = sentence.new_zeros(n_sentences, 1).index_add_(0, sentence, counted.long()[:, None])
    return sentence_sums(name, view, x, n)


def ratio_mean(name: str, sums: Mapping[str, Array]) -> Array:
    """Mean per head; NaN where nothing was counted."""
    return ratio(sums[f"{name}.x"], sums[f"{name}.n"])


def ratio_interval(
    name: str, sums: Mapping[str, Array], *, share: bool = False, level: float = 0.95
) -> tuple[Array, Array]:
    """Interval of a mean over tokens drawn sentence by sentence.

    A ratio estimator with its linearised (delta-method) variance, clustered by sentence: the tokens of a
    sentence are not independent, an interval that takes them to be is too narrow (Cochran 1977, section 6.4). A
    share of exactly 0 or 1, where all sentences agree, has no variance: its interval is Wilson's of as many sentences.

    Args:
        name: prefix of the sums.
        sums: of one site.
        share: whether the quantity is from 0 to 1; the interval is cut to that.
        level: confidence level.
    """
    n, xx, xn, nn, sentences = (sums[f"{name}.{moment}"] for moment in _MOMENTS[1:])
    mean = ratio_mean(name, sums)
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = np.maximum(xx - 2 * mean * xn + mean**2 * nn, 0.0)
        error = np.sqrt(spread * sentences / (sentences - 1)) / n
        wide = special.stdtrit(sentences - 1, 0.5 + level / 2) * error
    if not share:
        return mean - wide, mean + wide
    alike = np.isin(mean, (0, 1)) & (sentences > 1)
    scores = wilson(np.where(mean == 1, sentences, 0), sentences, level)
    low, high = (
        np.where(alike, score, np.clip(end, 0, 1))
        for score, end in zip(scores, (mean - wide, mean + wide), strict=True)
    )
    return low, high


def share_columns(name: str, sums: Mapping[str, Array]) -> dict[str, Array]:
    """Columns of heads.csv of a share: its mean, and `ratio_interval` from 0 to 1."""
    low, high = ratio_interval(name, sums, share=True)
    return {name: ratio_mean(name, sums), f"{name}_ci_low": low, f"{name}_ci_high": high}
