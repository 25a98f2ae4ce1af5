"""Graphs of the texts that a task asks about: masks that differ from text to text (Brahma et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from headlens.attention_masks.model_mask import is_causal_stack
from headlens.corpora.conllu import write_conllu
from headlens.corpora.encoding import EncodedSequence, SentenceEncoder
from headlens.corpora.parsers import Parser, SpacyParser, TreebankParser
from headlens.corpora.sentence import Example, Sentence, single_spaced
from headlens.corpora.text import split_words
from headlens.corpora.word_graphs import GraphCache, GraphOptions, GraphWords, form_means, parse_graph, word_graph
from headlens.errors import CorpusError, OptionError, counted
from headlens.files import atomic_path
from headlens.learning.open_training_set import OpenedTraining
from headlens.models.loading import LoadedModel, tokenizer_of
from headlens.runs.run import Run
from headlens.tasks.examples import TextExample
from headlens.tasks.task import PreparedExample
from headlens.visible_text import warn_visibly

TREES = "parsed.conllu"
_BATCH = 256  # examples that are parsed together
Row = tuple[str, ...]  # the text or the two texts of a row
Books = Mapping[str, GraphCache]  # by the graphs' words


@dataclass(frozen=True)
class StudyTexts:
    """What a run learns from and measures on.

    Args:
        lengths: how many different texts there are of each number of tokens.
        books: their graphs.
        causal: whether a token of them sees only those up to itself, whatever the mask.
    """

    lengths: Mapping[int, int]
    books: Books
    causal: bool = False

    @property
    def count(self) -> int:
        """Number of different texts of all lengths."""
        return sum(self.lengths.values())

    @property
    def longest(self) -> int:
        """Length of the longest text in tokens."""
        return max(self.lengths)

    @property
    def mean_length(self) -> float:
        """Mean length of the texts in tokens."""
        return sum(n * count for n, count in self.lengths.items()) / self.count


def study_texts(run: Run, opened: OpenedTraining, graphs: Iterable[str], parser: Parser | None = None) -> StudyTexts:
    """The texts that are learned and measured on, and their graphs, which are made once in a run and kept.

    Args:
        run: under way.
        opened: model and lesson.
        graphs: in words, see `parse_graph`.
        parser: see `make_books`.

    Raises:
        OptionError: if graphs cannot be made of what the task shows.
    """
    options = {name: parse_graph(name) for name in sorted(graphs)}
    # Each text once, as in the books.
    lengths, causal = opened.training_set.text_lengths(), is_causal_stack(opened.loaded.model)
    if not options:
        return StudyTexts(lengths, {}, causal)
    prepared = list(opened.training_set.prepared())
    if not prepared:
        raise OptionError("Graphs need a task with labelled examples.", "Choose one such as sst2, rte or snli.")
    places = {name: run.kept(f"graphs-{number}.npz") for number, name in enumerate(options)}
    if not run.processes.share(all(place.is_file() for place in places.values())):
        trees: dict[str, Sentence] = {}
        with run.reporter.progress("graphs (examples)", len(prepared)) as advance:
            books = make_books(opened.loaded, prepared, options, parser, advance, trees)
        if parser is not None and run.writes and not isinstance(parser, TreebankParser):
            with run.file(TREES) as path:
                _write_trees(trees.values(), path)
        for name, place in places.items() if run.writes else ():
            with atomic_path(place) as path:
                books[name].save(path)
        run.processes.gather(None)
    return StudyTexts(lengths, {name: GraphCache.load(place) for name, place in places.items()}, causal)


def _write_trees(trees: Iterable[Sentence], path: Path) -> None:
    """Trees for `--parser conllu:FILE`, which matches texts whatever their white space."""
    left_out = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for tree in trees:
            try:
                write_conllu([single_spaced(tree)], file)
            except CorpusError:
                left_out += 1
    if left_out:
        warn_visibly(f"{counted(left_out, 'parsed text')} cannot be written as CoNLL-U, and not kept in {TREES}.")


def make_books(
    loaded: LoadedModel,
    prepared: Iterable[PreparedExample],
    graphs: Mapping[str, GraphOptions],
    parser: Parser | None = None,
    advance: Callable[[int], None] = lambda _: None,
    trees: dict[str, Sentence] | None = None,
) -> dict[str, GraphCache]:
    """The graphs of all texts of some examples, of every kind in a book.

    All graphs are over the same words: the parser's, or without a parser letters and punctuation, see `split_words`.
    So graphs of all kinds have the same number of edges in every sentence, where no degree says otherwise.

    Args:
        loaded: the model that reads the texts; words have the mean of its input embeddings as vectors.
        prepared: examples as the model reads them.
        graphs: by the names of the books.
        parser: adds trees, which syntax graphs need.
        advance: called with the number of examples done.
        trees: takes the sentences with their words and trees, by text.

    Raises:
        OptionError: if a syntax graph is asked for without a parser, or spaCy's vectors without spaCy, or the rows of a
            task do not tell their texts, as where tokens are masked.
    """
    vectors = {options.vectors for options in graphs.values() if options.kind == "lexical"}
    layer: Any = loaded.model.get_input_embeddings() if "model" in vectors else None
    embeddings = None if layer is None else layer.weight.detach().float().cpu().numpy().astype(np.float64)
    static = parser if isinstance(parser, SpacyParser) else None
    if "spacy" in vectors and static is None:
        raise OptionError("vectors=spacy needs a spaCy model.", "Name one: --parser spacy:en_core_web_md.")
    if parser is None and any(options.kind == "syntax" for options in graphs.values()):
        raise OptionError("A syntax graph needs dependency trees.", "Name a parser: --parser spacy:en_core_web_sm.")
    books = {name: GraphCache(name, vars(options)) for name, options in graphs.items()}
    encoder = SentenceEncoder(tokenizer_of(loaded), pairing="joined")
    examples = iter(prepared)
    while group := list(islice(examples, _BATCH)):
        rows = [
            (row.ids, texts)
            for example in group
            for row, texts in zip(example.rows, _texts_of_rows(example), strict=True)
        ]
        # The texts with their words, and trees where there is a parser.
        plain = (Sentence(text, tuple(split_words(text)), text[:40]) for _, texts in rows for text in texts)
        parsed = iter(plain if parser is None else parser.parse(plain))
        for ids, texts in rows:
            sentences = tuple(islice(parsed, len(texts)))
            if trees is not None:
                trees |= {sentence.text.strip(): sentence for sentence in sentences}
            if any(ids not in book for book in books.values()):
                sequence = _encoded(encoder, sentences, ids)
                second = len(texts[0]) + 1 if len(texts) > 1 else None
                words = by_form = GraphWords.of(sequence, "\x1e".join(texts), second, embeddings)
                if static is not None and "spacy" in vectors:
                    forms = [word.form for word in sequence.sentence.words]
                    by_form = replace(words, vectors=form_means(sequence, static.vectors(forms)))
                for name, options in graphs.items():
                    shown = by_form if options.vectors == "spacy" else words
                    books[name].add(sequence, word_graph(shown, options))
        advance(len(group))
    return books


def _texts_of_rows(prepared: PreparedExample) -> list[Row]:
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
        "Graphs need a task whose rows are one text or two, but question answering splits its texts into windows.",
        "Choose a task such as sst2, rte, mrpc, cola, snli or paraphrase.",
    )


def _encoded(encoder: SentenceEncoder, sentences: tuple[Sentence, ...], ids: tuple[int, ...]) -> EncodedSequence:
    encoded = encoder.encode(Example(*sentences))
    if encoded is None or encoded.source.ids != ids:
        raise OptionError(
            "The tokens of an example differ from those of its texts, for example because some are masked.",
            "Graphs need a task that leaves texts unchanged, such as sst2, rte, mrpc, cola, snli or paraphrase.",
        )
    return encoded.source
