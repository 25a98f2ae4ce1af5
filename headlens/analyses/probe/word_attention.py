"""Attention between the words of sentences with gold trees, as a probe reads it: sentence by sentence, all heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from headlens.attention.edits_and_observers import AttentionCall, Observer
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site
from headlens.corpora.alignment import UNALIGNED
from headlens.corpora.annotations import AnnotationCounts, Annotator
from headlens.corpora.batches import Batch
from headlens.corpora.encoded_corpus import EncodingCounts
from headlens.corpora.encoding import EncodedSequence
from headlens.corpora.sentence import OUTSIDE, ROOT, Corpus
from headlens.errors import CorpusError, SelfCheckError, counted
from headlens.metrics.words import word_level, word_weights
from headlens.runs.corpus_pass import CorpusPass, PassState
from headlens.runs.corpus_reader import CorpusReader

PUNCTUATION = "punct"


class ProbedSentence(NamedTuple):
    """One sentence as the probe reads it.

    Args:
        key: tells the sentence from others.
        maps: attention between words in half precision, (words, words, heads): from the first to the second.
        arcs: gold tree, (arcs, 2): dependent and governor; those of the root and of punctuation are left out.
    """

    key: str
    maps: Tensor
    arcs: Tensor


@dataclass
class WordAttention(Observer):
    """Keeps the attention between words of the last forward pass, (words, words, heads) for each sentence.

    Args:
        sites: whose heads stand one after the other in the last axis.
    """

    sites: Sequence[Site]
    maps: list[Tensor] = field(default_factory=list)
    _pending: dict[Site, list[Tensor]] = field(default_factory=dict)
    needs_weights = True

    def observe(self, call: AttentionCall) -> None:
        """Reduces one call to words; special tokens and padding are left out, and rows no longer sum to 1."""
        if call.weights is None or call.queries is None:
            raise SelfCheckError(f"{call.site}: attention between words needs weights and the tokens of the batch.")
        level = word_level(call.queries)
        weights = word_weights(call.weights.detach(), level, level)  # (batch, heads, units, units)
        units = [of_word[: int(n)] for of_word, n in zip(level.of_word, call.queries.n_words, strict=True)]
        self._pending[call.site] = [
            rows[:, own[:, None], own].half().cpu() for rows, own in zip(weights, units, strict=True)
        ]

    def commit(self) -> None:
        """Joins the heads of all layers of the pass that succeeded, sentence by sentence."""
        by_sentence = zip(*(self._pending[site] for site in self.sites), strict=True)
        self.maps = [torch.cat(heads).permute(1, 2, 0).contiguous() for heads in by_sentence]
        self._pending = {}

    def discard(self) -> None:
        """Drops the maps of a pass that failed."""
        self._pending = {}


class TreebankCounts(NamedTuple):
    """What became of the sentences of a treebank, and of their arcs."""

    encoding: EncodingCounts
    annotation: AnnotationCounts

    def notes(self) -> list[str]:
        """Returns what could not be scored, a sentence for each reason."""
        notes, lost, unparsed = [], self.annotation.lost_arcs, self.encoding.no_tree
        if lost:
            why = "the governor is in the same unit or in another window, or has no token"
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
        for example, maps in zip(batch.examples, observer.maps, strict=True):
            arcs = gold_arcs(example.source, counts)
            used += len(arcs)
            if len(arcs):
                use(ProbedSentence(example.key, maps, arcs))
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
