"""Collecting queries, keys and attention weights from the sentences of a corpus."""

from __future__ import annotations

from pathlib import Path

import torch

from headlens.analyses.notes import reading_notes
from headlens.analyses.sparsefinder import query_key_store
from headlens.analyses.sparsefinder.query_key_store import QueryKeyCollector, QueryKeyStore
from headlens.attention.session import AttentionSession
from headlens.corpora.annotations import AnnotationCounts, Annotator
from headlens.corpora.batches import Batch
from headlens.corpora.corpus_options import LongSentences
from headlens.corpora.encoding import EncodedSequence, TokenKind
from headlens.corpora.sentence import Corpus
from headlens.errors import CorpusError
from headlens.files import write_json
from headlens.models.loading import LoadedModel
from headlens.runs.corpus_pass import CorpusPass, PassState
from headlens.runs.corpus_reader import CorpusReader


def collect(
    loaded: LoadedModel,
    corpus: Corpus,
    folder: Path,
    batch_tokens: int = 2048,
    long_sentences: LongSentences = "skip",
    corpus_pass: CorpusPass | None = None,
) -> QueryKeyStore:
    """Runs a model over a corpus and keeps queries, keys and the pairs that have weight, of every site, in a folder.

    Parts of speech are kept too, where the corpus has any. Memory does not grow with the corpus.

    Args:
        loaded: an encoder, decoder or encoder-decoder with its tokenizer.
        corpus: sentences, in pairs for decoder and cross-attention.
        folder: of the store; made, and empty.
        batch_tokens: tokens of a batch, padding included.
        long_sentences: what becomes of sentences that are longer than the model reads.
        corpus_pass: progress.

    Raises:
        ModelError: if the model has no tokenizer.
        CorpusError: if nothing of the corpus can be used.
        OutputError: if the folder cannot be written.
    """
    first = next(iter(corpus), None)
    if first is None:
        raise CorpusError("the corpus is empty.", "It must hold at least one sentence.", path=corpus.name)
    reader = CorpusReader.of(loaded, first, long_sentences)
    annotator, collector, state = Annotator(()), QueryKeyCollector(folder), PassState({})
    session = AttentionSession(reader.model, observers=[collector])

    def step(batch: Batch) -> AnnotationCounts:
        counts = AnnotationCounts()
        with session.batch(annotator.annotate(batch, counts, decoder_only=reader.decoder_only)):
            reader.model(**batch.inputs, **reader.arguments)
        query_key_store.write_tags(folder, "source", (token_tags(example.source) for example in batch.examples))
        if batch.target is not None:
            targets = [example.target for example in batch.examples if example.target is not None]
            query_key_store.write_tags(folder, "target", map(token_tags, targets))
        return counts

    with session, torch.inference_mode():
        (corpus_pass or CorpusPass()).run(reader, corpus, step, state, batch_tokens)
    collector.flush()
    if not state.encoding.sentences:
        raise CorpusError("the model can read no sentence.", "Give shorter ones.", path=corpus.name)
    record = {"sentences": state.encoding.sentences, "notes": reading_notes(reader, state.encoding)}
    write_json(record, folder / query_key_store.RECORD)
    return QueryKeyStore(folder)


def token_tags(row: EncodedSequence) -> list[str]:
    """Universal part of speech of the word that every token is of; `special`, and `unknown` where nobody says."""
    tag_of_unit: dict[int, str] = {}
    for word, unit in zip(row.sentence.words, row.unit_of_word, strict=True):
        # Of several words in one unit, as in German "zum", the first counts.
        tag_of_unit.setdefault(unit, word.upos or query_key_store.UNKNOWN)
    return [
        query_key_store.SPECIAL if kind & TokenKind.SPECIAL else tag_of_unit.get(unit, query_key_store.UNKNOWN)
        for kind, unit in zip(row.kinds, row.units, strict=True)
    ]
