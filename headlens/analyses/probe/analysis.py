"""The probes of Clark et al. (2019, section 5): governors from the attention of all heads, and word embeddings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from headlens.analyses.probe.embeddings import WordEmbeddings
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
_NEAR = 5  # words; distances up to it are told one by one
_CELLS = 2**22  # numbers of the maps that are worked on at a time
PUNCTUATION = "punct"


class ProbedSentence(NamedTuple):
    """One sentence as the probe reads it.

    Args:
        key: tells the sentence from others.
        maps: attention between words in half precision, (words, words, heads): from the first to the second.
        uniform: the same of a head that gives the same weight to every token that a query may see; of several, where
            layers differ in what they see.
        arcs: gold tree, (arcs, 2): dependent and governor; those of the root and of punctuation are left out.
        vectors: word embeddings in half precision, (words, d); None for a probe of attention alone.
    """

    key: str
    maps: Tensor
    uniform: Tensor
    arcs: Tensor
    vectors: Tensor | None = None

    @property
    def of_attention(self) -> ProbedSentence:
        """The same sentence without word embeddings."""
        return self._replace(vectors=None)

    @property
    def of_uniform(self) -> ProbedSentence:
        """The same sentence under uniform attention, as of a model that has learned nothing."""
        return self._replace(maps=self.uniform, vectors=None)

    @property
    def of_distances(self) -> ProbedSentence:
        """The same sentence with word embeddings, and how far apart words are in place of attention."""
        return self._replace(maps=distance_maps(len(self.maps)))


@dataclass
class WordAttention(Observer):
    """Keeps the attention between words of the last forward pass, (words, words, heads) for each sentence.

    Args:
        sites: whose heads stand one after the other in the last axis.
        maps: of each sentence.
        uniform: of each sentence, that of heads with uniform attention: one, or one for each window of the layers.
    """

    sites: Sequence[Site]
    maps: list[Tensor] = field(default_factory=list)
    uniform: list[Tensor] = field(default_factory=list)
    _pending: dict[Site, list[Tensor]] = field(default_factory=dict)
    _null: dict[int | None, list[Tensor]] = field(default_factory=dict)  # by the layer's window
    needs_weights = True

    def observe(self, call: AttentionCall) -> None:
        """Reduces one call to words; special tokens and padding are left out, and rows no longer sum to 1."""
        if call.weights is None or call.queries is None:
            raise SelfCheckError(f"{call.site}: attention between words needs weights and the tokens of the batch.")
        self._pending[call.site] = _by_sentence(call.weights.detach(), call.queries)
        if call.window not in self._null:
            self._null[call.window] = _by_sentence(NullView(call).weights, call.queries)

    def commit(self) -> None:
        """Joins the heads of all layers of the pass that succeeded, sentence by sentence."""
        by_sentence = zip(*(self._pending[site] for site in self.sites), strict=True)
        self.maps = [torch.cat(heads).permute(1, 2, 0).contiguous() for heads in by_sentence]
        uniform = zip(*self._null.values(), strict=True)
        self.uniform = [torch.cat(heads).permute(1, 2, 0).contiguous() for heads in uniform]
        self._pending, self._null = {}, {}

    def discard(self) -> None:
        """Drops the maps of a pass that failed."""
        self._pending, self._null = {}, {}


def distance_maps(words: int) -> Tensor:
    """Tells how far apart two words are, as if by heads that look to the right alone.

    Returns:
        (words, words, heads) in half precision: whether the second word is 1, 2, 3, 4 or 5 places to the right of the
        first one, one head each; whether it is to the right at all; and one divided by the distance.
    """
    places = torch.arange(words)
    offsets = (places - places[:, None])[..., None]
    near = offsets == torch.arange(1, _NEAR + 1)
    right = offsets > 0
    return torch.cat([near, right, right / offsets.clamp(min=1)], dim=-1).half()


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
    embeddings: WordEmbeddings | None = None,
) -> TreebankCounts:
    """Runs a model over a treebank and passes on every sentence that has a word to score; keeps none of them.

    Args:
        reader: the model, and the way of a corpus into it.
        corpus: sentences with trees.
        use: called with one sentence after the other.
        batch_tokens: tokens of a batch, padding included; None for what suits the device.
        corpus_pass: progress.
        embeddings: of the words, for a probe that reads them.

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
                vectors = None if embeddings is None else embeddings(example.source).half()
                use(ProbedSentence(example.key, maps, uniform, arcs, vectors))
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


def attachment_scores(maps: Tensor, weights: Tensor, vectors: Tensor | None = None) -> Tensor:
    """Scores every word as governor of every other word: the sum over heads in the exponent of the paper's equations.

    With word embeddings the weight of a head is a linear function of those of both words.

    Args:
        maps: attention from word to word, (..., words, words, heads), in the type of the weights.
        weights: (2, heads): of attention from dependent to governor (u of the paper), and from governor to dependent
            (w). With embeddings (2, 2, heads, d): by these directions, then what is multiplied by the vector of the
            word that attends, and of that which is attended to (together rows of U and W).
        vectors: of the words, (..., words, d).

    Returns:
        (..., dependent, governor); minus infinity where both are the same word.
    """
    if vectors is None:
        both = maps @ weights.T
    else:
        attending, attended = (torch.einsum("...wd,rhd->...whr", vectors, part) for part in weights.unbind(1))
        both = maps @ attending + (maps.transpose(-3, -2) @ attended).transpose(-3, -2)  # (..., from, to, directions)
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

    def blocks(self) -> Iterator[tuple[Tensor, Tensor | None, Tensor]]:
        """Yields all sentences, those of equally many words together: their maps, vectors and trees.

        Maps are (sentences, words, words, heads) and vectors, if any, (sentences, words, d), in half precision. Trees
        are (sentences, dependent, governor): how many words each pair stands for, 0 or 1, or more where several words
        are one unit.
        """
        for length, same_length in self._by_length.items():
            size = max(1, _CELLS // (length * length * same_length[0].maps.shape[2]))
            for part in (same_length[start : start + size] for start in range(0, len(same_length), size)):
                gold = torch.zeros(len(part), length, length, dtype=torch.float64)
                for number, sentence in enumerate(part):
                    one = torch.ones(len(sentence.arcs), dtype=torch.float64)
                    gold[number].index_put_(tuple(sentence.arcs.T), one, accumulate=True)
                vectors = [s.vectors for s in part if s.vectors is not None]
                yield torch.stack([s.maps for s in part]), torch.stack(vectors) if vectors else None, gold


def negative_log_likelihood(weights: Tensor, data: TreeAttention, l2: float) -> tuple[float, Tensor]:
    """Returns the mean negative log-likelihood of the gold governors in nats per word, penalised, and its gradient.

    It is convex in the weights, strictly for a positive `l2`: a multinomial logit over the other words of a sentence.

    Args:
        weights: see `attachment_scores`, float64.
        data: the sentences.
        l2: half of this times the sum of the squared weights is added.
    """
    weights = weights.detach().requires_grad_()
    penalty = l2 / 2 * weights.square().sum()
    torch.autograd.backward(penalty)
    total = float(penalty.detach())
    for maps, vectors, gold in data.blocks():
        scores = attachment_scores(maps.double(), weights, None if vectors is None else vectors.double())
        log_p = scores.log_softmax(-1)  # (sentences, dependent, governor)
        loss = -(gold * log_p.masked_fill(gold == 0, 0)).sum() / data.arcs
        torch.autograd.backward(loss)  # a block at a time, so that only its scores are in memory
        total += float(loss.detach())
    assert weights.grad is not None
    return total, weights.grad


@dataclass(frozen=True)
class FittedProbe:
    """A probe that was learned.

    Args:
        weights: see `attachment_scores`.
        loss: penalised mean negative log-likelihood of the training sentences.
        steps: of L-BFGS.
        converged: whether the optimum was reached.
    """

    weights: Tensor
    loss: float
    steps: int
    converged: bool

    def record(self) -> dict[str, Any]:
        """Returns how it was learned, as JSON values."""
        return {"loss": self.loss, "steps": self.steps, "converged": self.converged}


def fit_probe(data: TreeAttention, l2: float) -> FittedProbe:
    """Maximises the likelihood by full-batch L-BFGS from weights of 0; nothing is random."""
    from scipy.optimize import minimize

    maps, vectors, _ = next(data.blocks())
    heads = maps.shape[-1]
    shape = (2, heads) if vectors is None else (2, 2, heads, vectors.shape[-1])

    def objective(flat: Floats) -> tuple[float, Floats]:
        value, gradient = negative_log_likelihood(torch.from_numpy(flat).view(shape), data, l2)
        return value, gradient.numpy().ravel()

    options: Any = {"maxiter": _MOST_STEPS, "maxfun": 2 * _MOST_STEPS, "gtol": 1e-6, "ftol": 1e-10}
    best = minimize(objective, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B", options=options)
    return FittedProbe(torch.from_numpy(best.x).view(shape), float(best.fun), int(best.nit), bool(best.success))


@dataclass
class AttachmentCounts:
    """Words with the right governor, sentence by sentence, of the probe and of three baselines.

    Args:
        weights: of the probe.
        offset: of the second baseline.
        uniform: weights of the third: of a probe that was learned from uniform attention.
        embedded: weights of the probe with word embeddings, and of that with distances in place of attention; None
            where these are not asked for.
    """

    weights: Tensor
    offset: int
    uniform: Tensor
    embedded: tuple[Tensor, Tensor] | None = None
    _keys: list[str] = field(default_factory=list)
    _right: list[tuple[float, ...]] = field(default_factory=list)

    def add(self, sentence: ProbedSentence) -> None:
        """Counts one held-out sentence, of which nothing else is kept."""
        dependent, governor = sentence.arcs.T
        by_offset = [int((dependent + offset == governor).sum()) for offset in (1, self.offset)]
        probes = [(sentence.of_attention, self.weights), (sentence.of_uniform, self.uniform)]
        if self.embedded is not None:
            probes += zip((sentence, sentence.of_distances), self.embedded, strict=True)
        of_probe, *of_others = (_found(read, weights) for read, weights in probes)
        self._keys.append(sentence.key)
        self._right.append((of_probe, *by_offset, *of_others, len(governor)))

    def table(self, replicates: int, seed: int) -> pd.DataFrame:
        """Returns the scores with their intervals, see `score_table`."""
        right = np.array(self._right, np.float64)
        return score_table(right, self.offset, Draws.of(self._keys, replicates, seed))


def _found(sentence: ProbedSentence, weights: Tensor) -> float:
    """How many governors have the highest score; where several words have it, each counts by its share."""
    vectors = None if sentence.vectors is None else sentence.vectors.double()
    scores = attachment_scores(sentence.maps.double(), weights, vectors)
    highest = scores == scores.amax(-1, keepdim=True)
    dependent, governor = sentence.arcs.T
    return float((highest[dependent, governor] / highest.sum(-1)[dependent]).sum())
