"""Graphs of the texts that a task asks about: masks that differ from text to text (Brahma et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

import numpy as np

from headlens.corpora.encoding import EncodedSequence, SentenceEncoder
from headlens.corpora.graph_book import GraphBook
from headlens.corpora.parsers import Parser
from headlens.corpora.sentence import Example, Sentence
from headlens.corpora.text import split_words
from headlens.corpora.word_graphs import Floats, GraphOptions, Words, word_graph
from headlens.errors import OptionError
from headlens.models.loading import LoadedModel, tokenizer_of
from headlens.tasks.base import Prepared
from headlens.tasks.examples import TextExample

_BATCH = 256  # examples that are parsed together
Texts = tuple[str, ...]


def make_books(
    loaded: LoadedModel,
    prepared: Iterable[Prepared],
    graphs: Mapping[str, GraphOptions],
    parser: Parser | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> dict[str, GraphBook]:
    """The graphs of all texts of some examples, of every kind in a book.

    All graphs are over the same words: the parser's, or without a parser letters and punctuation, see `split_words`.
    So graphs of all kinds have the same number of edges in every sentence, where no degree says otherwise.

    Args:
        loaded: the model that reads the texts; words have the mean of its input embeddings as vectors.
        prepared: examples as the model reads them.
        graphs: by the names of the books.
        parser: adds trees, which syntax graphs need.
        advance: called with the number of examples done.

    Raises:
        OptionError: if a syntax graph is asked for without a parser, or the rows of a task do not tell their texts, as
            where tokens are masked.
    """
    needs_vectors = any(options.kind == "lexical" for options in graphs.values())
    embeddings = _embeddings(loaded) if needs_vectors else None
    if parser is None and any(options.kind == "syntax" for options in graphs.values()):
        raise OptionError("A syntax graph needs dependency trees.", "Name a parser: --parser spacy:en_core_web_sm.")
    books = {name: GraphBook(name, vars(options)) for name, options in graphs.items()}
    encoder = SentenceEncoder(tokenizer_of(loaded), pairing="joined")
    examples = iter(prepared)
    while group := list(islice(examples, _BATCH)):
        rows = [(row.ids, texts) for own in group for row, texts in zip(own.rows, _texts_of_rows(own), strict=True)]
        for (ids, texts), sentences in zip(rows, _sentences([texts for _, texts in rows], parser), strict=True):
            if any(ids not in book for book in books.values()):
                sequence = _encoded(encoder, sentences, ids)
                second = len(texts[0]) + 1 if len(texts) > 1 else None
                words = Words.of(sequence, "\x1e".join(texts), second, embeddings)
                for name, options in graphs.items():
                    books[name].add(sequence, word_graph(words, options))
        advance(len(group))
    return books


def _embeddings(loaded: LoadedModel) -> Floats:
    layer: Any = loaded.model.get_input_embeddings()
    found: Floats = layer.weight.detach().float().cpu().numpy().astype(np.float64)
    return found


def _texts_of_rows(prepared: Prepared) -> list[Texts]:
    """The text or the two texts of every row of an example."""
    example, rows = prepared.example, len(prepared.rows)
    if isinstance(example, TextExample):
        texts = example.texts
        if rows == 1 and len(texts) <= 2:
            return [texts]
        if rows == len(texts):
            return [(text,) for text in texts]
        if rows == len(texts) - 1:  # a context and its endings
            return [(texts[0], text) for text in texts[1:]]
    raise OptionError(
        "Graphs need a task whose rows are one text or two, and questions go through a model in windows.",
        "Choose a task such as sst2, rte, mrpc, cola, snli or paraphrase.",
    )


def _sentences(rows: list[Texts], parser: Parser | None) -> Iterator[tuple[Sentence, ...]]:
    """The texts of every row with their words, and trees where there is a parser."""
    plain = (Sentence(text, tuple(split_words(text)), text[:40]) for text in chain.from_iterable(rows))
    found = iter(plain if parser is None else parser.parse(plain))
    return (tuple(islice(found, len(texts))) for texts in rows)


def _encoded(encoder: SentenceEncoder, sentences: tuple[Sentence, ...], ids: tuple[int, ...]) -> EncodedSequence:
    encoded = encoder.encode(Example(*sentences))
    if encoded is None or encoded.source.ids != ids:
        raise OptionError(
            "The tokens of an example are not those of its texts, as where some are masked.",
            "Graphs need a task that shows texts as they are, such as sst2, rte, mrpc, cola, snli or paraphrase.",
        )
    return encoded.source
