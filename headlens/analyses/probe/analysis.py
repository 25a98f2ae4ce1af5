"""The attention-only probe of Clark et al. (2019, section 5): governors from the attention of all heads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.optimize import minimize
from torch import Tensor

from headlens.analyses.probe.tables import Floats, score_table
from headlens.analyses.probe.word_attention import ProbedSentence
from headlens.statistics.bootstrap import Draws

_MOST_STEPS = 1000
_CELLS = 2**22  # numbers of the maps that are worked on at a time


def attachment_scores(maps: Tensor, weights: Tensor) -> Tensor:
    """Scores every word as governor of every other word: the sum over heads in the exponent of the paper's equation.

    Args:
        maps: attention from word to word, (..., words, words, heads), in the type of the weights.
        weights: (2, heads): of attention from dependent to governor (u of the paper), and from governor to dependent
            (w).

    Returns:
        (..., dependent, governor); minus infinity where both are the same word.
    """
    both = maps @ weights.T
    scores = both[..., 0] + both[..., 1].transpose(-1, -2)
    return scores.masked_fill(torch.eye(scores.shape[-1], dtype=torch.bool), -torch.inf)


class SameLength(NamedTuple):
    """Sentences of equally many words.

    Args:
        maps: (sentences, words, words, heads), in half precision.
        gold: how many words of the tree each pair stands for, (sentences, dependent, governor): 0 or 1, or more where
            several words are one unit.
    """

    maps: Tensor
    gold: Tensor


@dataclass
class TreeAttention:
    """Sentences to learn from, without padding; memory grows with the sum of their squared lengths.

    Sentences of equally many words are worked on together, in blocks of bounded size.
    """

    arcs: int = 0
    sentences: int = 0
    offsets: Counter[int] = field(default_factory=Counter)
    _by_length: dict[int, list[ProbedSentence]] = field(default_factory=dict)

    def add(self, sentence: ProbedSentence) -> None:
        """Adds one sentence to learn from."""
        self.arcs += len(sentence.arcs)
        self.sentences += 1
        self.offsets.update((sentence.arcs[:, 1] - sentence.arcs[:, 0]).tolist())
        self._by_length.setdefault(len(sentence.maps), []).append(sentence)

    @property
    def nbytes(self) -> int:
        """Memory of the attention that is kept, in bytes."""
        return sum(s.maps.nbytes for own in self._by_length.values() for s in own)

    @property
    def heads(self) -> int:
        """Number of attention heads in the whole model."""
        return next(iter(self._by_length.values()))[0].maps.shape[2]

    @property
    def best_offset(self) -> int:
        """The most frequent offset of a governor; of equally frequent ones the nearer, then the left one."""
        return min(self.offsets, key=lambda offset: (-self.offsets[offset], abs(offset), offset))

    def blocks(self) -> Iterator[SameLength]:
        """Yields all sentences, those of equally many words together."""
        for length, own in self._by_length.items():
            size = max(1, _CELLS // (length * length * own[0].maps.shape[2]))
            for part in (own[start : start + size] for start in range(0, len(own), size)):
                gold = torch.zeros(len(part), length, length, dtype=torch.float64)
                for number, sentence in enumerate(part):
                    one = torch.ones(len(sentence.arcs), dtype=torch.float64)
                    gold[number].index_put_(tuple(sentence.arcs.T), one, accumulate=True)
                yield SameLength(torch.stack([s.maps for s in part]), gold)


def negative_log_likelihood(weights: Tensor, data: TreeAttention, l2: float) -> tuple[float, Tensor]:
    """Returns the mean negative log-likelihood of the gold governors in nats per word, penalised, and its gradient.

    It is convex in the weights, strictly for a positive `l2`: a multinomial logit over the other words of a sentence.

    Args:
        weights: (2, heads), float64.
        data: the sentences.
        l2: half of this times the sum of the squared weights is added.
    """
    total, gradient = 0.0, torch.zeros_like(weights)
    for block in data.blocks():
        maps = block.maps.double()
        log_p = attachment_scores(maps, weights).log_softmax(-1)  # (sentences, dependent, governor)
        total -= float((block.gold * log_p.masked_fill(block.gold == 0, 0)).sum())
        # Derivative by the scores: expected minus observed governors.
        error = log_p.exp() * block.gold.sum(-1, keepdim=True) - block.gold
        both = torch.stack([error, error.transpose(1, 2)])
        gradient += both.reshape(2, -1) @ maps.reshape(-1, maps.shape[-1])
    penalty = l2 / 2 * float(weights.square().sum())
    return total / data.arcs + penalty, gradient / data.arcs + l2 * weights


@dataclass(frozen=True)
class FittedProbe:
    """A probe that was learned.

    Args:
        weights: (2, heads), see `attachment_scores`.
        loss: penalised mean negative log-likelihood of the training sentences.
        steps: of L-BFGS.
        converged: whether the optimum was reached.
    """

    weights: Tensor
    loss: float
    steps: int
    converged: bool


def fit_probe(data: TreeAttention, l2: float) -> FittedProbe:
    """Maximises the likelihood by full-batch L-BFGS from weights of 0; nothing is random."""

    def objective(flat: Floats) -> tuple[float, Floats]:
        value, gradient = negative_log_likelihood(torch.from_numpy(flat).view(2, -1), data, l2)
        return value, gradient.numpy().ravel()

    options: Any = {"maxiter": _MOST_STEPS, "maxfun": 2 * _MOST_STEPS, "gtol": 1e-6, "ftol": 1e-10}
    found = minimize(objective, np.zeros(2 * data.heads), jac=True, method="L-BFGS-B", options=options)
    return FittedProbe(torch.from_numpy(found.x).view(2, -1), float(found.fun), int(found.nit), bool(found.success))


@dataclass
class AttachmentCounts:
    """Words with the right governor, sentence by sentence, of the probe and of two baselines.

    Args:
        weights: of the probe.
        offset: of the second baseline.
    """

    weights: Tensor
    offset: int
    _keys: list[str] = field(default_factory=list)
    _right: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, sentence: ProbedSentence) -> None:
        """Counts one held-out sentence, of which nothing else is kept."""
        scores = attachment_scores(sentence.maps.double(), self.weights)
        dependent, governor = sentence.arcs.T
        guesses = scores.argmax(-1)[dependent], dependent + 1, dependent + self.offset
        self._keys.append(sentence.key)
        self._right.append((*(int((guess == governor).sum()) for guess in guesses), len(governor)))

    def table(self, replicates: int, seed: int) -> pd.DataFrame:
        """Returns the scores with their intervals, see `score_table`."""
        right = np.array(self._right, np.float64)
        return score_table(right, self.offset, Draws.of(self._keys, replicates, seed))
