"""The attention-only probe of Clark et al. (2019, section 5): governors from the attention of all heads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from headlens.analyses.probe.tables import Floats, score_table
from headlens.attention.edits_and_observers import AttentionCall, Observer, Tokens
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site
from headlens.corpora.alignment import UNALIGNED
from headlens.corpora.annotations import AnnotationCounts, Annotator
from headlens.corpora.batches import Batch
from headlens.corpora.encoded_corpus import EncodingCounts
from headlens.corpora.encoding import EncodedSequence
from headlens.corpora.sentence import OUTSIDE, ROOT, Corpus
from headlens.errors import CorpusError, SelfCheckError, counted
from headlens.metrics.attention_view import NullView
from headlens.metrics.words import word_level, word_weights
from headlens.runs.corpus_pass import CorpusPass, CorpusReader, PassState
from headlens.statistics.bootstrap import Draws

_MOST_STEPS = 1000
_CELLS = 2**22  # numbers of the maps that are worked on at a time
PUNCTUATION = "punct"


class ProbedSentence(NamedTuple):
    """One sentence as the probe reads it.

    Args:
        key: tells the sentence from others.
        maps: attention between words in half precision, (words, words, heads): from the first to the second.
        uniform: the same of one head that gives the same weight to every token that a query may see.
        arcs: gold tree, (arcs, 2): dependent and governor; those of the root and of punctuation are left out.
    """

    key: str
    maps: Tensor
    uniform: Tensor
    arcs: Tensor

    @property
    def of_uniform(self) -> ProbedSentence:
        """The same sentence under uniform attention, as of a model that has learned nothing."""
        return self._replace(maps=self.uniform)


@dataclass
class WordAttention(Observer):
    """Keeps the attention between words of the last forward pass, (words, words, heads) for each sentence.

    Args:
        sites: whose heads stand one after the other in the last axis.
        maps: of each sentence.
        uniform: of each sentence, that of one head with uniform attention.
    """

    sites: Sequence[Site]
    maps: list[Tensor] = field(default_factory=list)
    uniform: list[Tensor] = field(default_factory=list)
    _pending: dict[Site, list[Tensor]] = field(default_factory=dict)
    _null: list[Tensor] = field(default_factory=list)
    needs_weights = True

    def observe(self, call: AttentionCall) -> None:
        """Reduces one call to words; special tokens and padding are left out, and rows no longer sum to 1."""
        if call.weights is None or call.queries is None:
            raise SelfCheckError(f"{call.site}: attention between words needs weights and the tokens of the batch.")
        self._pending[call.site] = _by_sentence(call.weights.detach(), call.queries)
        if call.site == self.sites[0]:
            self._null = _by_sentence(NullView(call).weights, call.queries)

    def commit(self) -> None:
        """Joins the heads of all layers of the pass that succeeded, sentence by sentence."""
        by_sentence = zip(*(self._pending[site] for site in self.sites), strict=True)
        self.maps = [torch.cat(heads).permute(1, 2, 0).contiguous() for heads in by_sentence]
        self.uniform = [null.permute(1, 2, 0).contiguous() for null in self._null]
        self._pending = {}

    def discard(self) -> None:
        """Drops the maps of a pass that failed."""
        self._pending = {}


def _by_sentence(weights: Tensor, tokens: Tokens) -> list[Tensor]:
    """From weights (batch, heads, query, key) to those between the words of each sentence, (heads, words, words)."""
    level = word_level(tokens)
    between = word_weights(weights, level, level)  # (batch, heads, units, units)
    units = [of_word[: int(n)] for of_word, n in zip(level.of_word, tokens.n_words, strict=True)]
    return [rows[:, unit[:, None], unit].half().cpu() for rows, unit in zip(between, units, strict=True)]


class TreebankCounts(NamedTuple):
    """What became of the sentences of a treebank, and of their arcs."""

    encoding: EncodingCounts
    annotation: AnnotationCounts

    def notes(self) -> list[str]:
        """Returns what could not be scored, a sentence for each reason."""
        lost, unparsed = self.annotation.lost_arcs, self.encoding.no_tree
        why = "the governor is in the same unit or in another window, or has no token"
        notes = []
        if lost:
            notes.append(f"{counted(lost, 'word')} not scored: {why}.")
        if unparsed:
            notes.append(f"{counted(unparsed, 'sentence')} without a dependency tree left out.")
        return notes


def gold_arcs(row: EncodedSequence, counts: AnnotationCounts) -> Tensor:
    """Lists dependent and governor of every word that is scored: (arcs, 2), in units.

    The root has no governor, and punctuation is not scored, as is usual for English. Words whose governor shares
    a unit, is in another window or has no token cannot be found and are counted in `counts.lost_arcs`.
    """
    arcs = []
    for unit, word in zip(row.unit_of_word, row.sentence.words, strict=True):
        if word.head is None or word.head == ROOT or (word.relation or "").partition(":")[0] == PUNCTUATION:
            continue
        head = UNALIGNED if word.head == OUTSIDE else row.unit_of_word[word.head]
        if unit == head or UNALIGNED in (unit, head):
            counts.lost_arcs += 1
        else:
            arcs.append((unit, head))
    return torch.tensor(arcs, dtype=torch.int64).view(-1, 2)


def read_word_attention(
    reader: CorpusReader,
    corpus: Corpus,
    use: Callable[[ProbedSentence], None],
    batch_tokens: int | None = None,
    corpus_pass: CorpusPass | None = None,
) -> TreebankCounts:
    """Runs a model over a treebank and passes on every sentence that has a word to score; keeps none of them.

    Args:
        reader: the model, and the way of a corpus into it.
        corpus: sentences with trees.
        use: called with one sentence after the other.
        batch_tokens: tokens of a batch, padding included; None for what suits the device.
        corpus_pass: progress.

    Returns:
        What became of the sentences, and of their arcs.

    Raises:
        CorpusError: if there is no word to score.
    """
    observer, annotator, state, used = WordAttention(reader.sites), Annotator(sample=False), PassState({}), 0
    session = AttentionSession(reader.model, observers=[observer])

    def step(batch: Batch) -> AnnotationCounts:
        nonlocal used
        counts = AnnotationCounts()
        with session.batch(annotator.annotate(batch, counts, decoder_only=reader.decoder_only)):
            reader.model(**batch.inputs, **reader.arguments)
        for example, maps, uniform in zip(batch.examples, observer.maps, observer.uniform, strict=True):
            arcs = gold_arcs(example.source, counts)
            used += len(arcs)
            if len(arcs):
                use(ProbedSentence(example.key, maps, uniform, arcs))
        return counts

    with session, torch.inference_mode():
        (corpus_pass or CorpusPass()).run(reader, corpus, step, state, batch_tokens)
    if not used:
        raise CorpusError(
            "no word has a governor that the probe could find.",
            "Give a treebank with gold trees (FILE.conllu), of sentences that the model can read.",
            path=corpus.name,
        )
    return TreebankCounts(state.encoding, state.annotation)


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
        return sum(s.maps.nbytes for sentences in self._by_length.values() for s in sentences)

    @property
    def best_offset(self) -> int:
        """The most frequent offset of a governor; of equally frequent ones the nearer, then the left one."""
        return min(self.offsets, key=lambda offset: (-self.offsets[offset], abs(offset), offset))

    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields all sentences, those of equally many words together: their maps and trees.

        Maps are (sentences, words, words, heads), in half precision. Trees are (sentences, dependent, governor): how
        many words each pair stands for, 0 or 1, or more where several words are one unit.
        """
        for length, same_length in self._by_length.items():
            size = max(1, _CELLS // (length * length * same_length[0].maps.shape[2]))
            for part in (same_length[start : start + size] for start in range(0, len(same_length), size)):
                gold = torch.zeros(len(part), length, length, dtype=torch.float64)
                for number, sentence in enumerate(part):
                    one = torch.ones(len(sentence.arcs), dtype=torch.float64)
                    gold[number].index_put_(tuple(sentence.arcs.T), one, accumulate=True)
                yield torch.stack([s.maps for s in part]), gold


def negative_log_likelihood(weights: Tensor, data: TreeAttention, l2: float) -> tuple[float, Tensor]:
    """Returns the mean negative log-likelihood of the gold governors in nats per word, penalised, and its gradient.

    It is convex in the weights, strictly for a positive `l2`: a multinomial logit over the other words of a sentence.

    Args:
        weights: (2, heads), float64.
        data: the sentences.
        l2: half of this times the sum of the squared weights is added.
    """
    total, gradient = 0.0, torch.zeros_like(weights)
    for halves, gold in data.blocks():
        maps = halves.double()
        log_p = attachment_scores(maps, weights).log_softmax(-1)  # (sentences, dependent, governor)
        total -= float((gold * log_p.masked_fill(gold == 0, 0)).sum())
        # Derivative by the scores: expected minus observed governors.
        error = log_p.exp() * gold.sum(-1, keepdim=True) - gold
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
    from scipy.optimize import minimize

    def objective(flat: Floats) -> tuple[float, Floats]:
        value, gradient = negative_log_likelihood(torch.from_numpy(flat).view(2, -1), data, l2)
        return value, gradient.numpy().ravel()

    options: Any = {"maxiter": _MOST_STEPS, "maxfun": 2 * _MOST_STEPS, "gtol": 1e-6, "ftol": 1e-10}
    heads = next(data.blocks())[0].shape[-1]
    best = minimize(objective, np.zeros(2 * heads), jac=True, method="L-BFGS-B", options=options)
    return FittedProbe(torch.from_numpy(best.x).view(2, -1), float(best.fun), int(best.nit), bool(best.success))


@dataclass
class AttachmentCounts:
    """Words with the right governor, sentence by sentence, of the probe and of three baselines.

    Args:
        weights: of the probe.
        offset: of the second baseline.
        uniform: weights of the third: of a probe that was learned from uniform attention.
    """

    weights: Tensor
    offset: int
    uniform: Tensor
    _keys: list[str] = field(default_factory=list)
    _right: list[tuple[float, ...]] = field(default_factory=list)

    def add(self, sentence: ProbedSentence) -> None:
        """Counts one held-out sentence, of which nothing else is kept."""
        dependent, governor = sentence.arcs.T
        by_offset = [int((dependent + offset == governor).sum()) for offset in (1, self.offset)]
        of_probe = _found(sentence, self.weights)
        self._keys.append(sentence.key)
        self._right.append((of_probe, *by_offset, _found(sentence.of_uniform, self.uniform), len(governor)))

    def table(self, replicates: int, seed: int) -> pd.DataFrame:
        """Returns the scores with their intervals, see `score_table`."""
        right = np.array(self._right, np.float64)
        return score_table(right, self.offset, Draws.of(self._keys, replicates, seed))


def _found(sentence: ProbedSentence, weights: Tensor) -> float:
    """How many governors have the highest score; where several words have it, each counts by its share."""
    scores = attachment_scores(sentence.maps.double(), weights)
    highest = scores == scores.amax(-1, keepdim=True)
    dependent, governor = sentence.arcs.T
    return float((highest[dependent, governor] / highest.sum(-1)[dependent]).sum())
