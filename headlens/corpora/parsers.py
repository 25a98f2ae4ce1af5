"""Dependency parsers behind one interface: sentences in, the same sentences with trees out."""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from headlens.corpora.conllu import ConlluCorpus
from headlens.corpora.sentence import (
    ROOT,
    Sentence,
    Word,
    single_root,
    single_spaced,
    single_spaced_places,
    split_surface,
)
from headlens.errors import OptionError, ParserError

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

BATCH = 64
LANGUAGE = re.compile(r"[A-Za-z]+([-_][A-Za-z0-9]+)*")


class Parser(Protocol):
    """Interface of parsers, which add trees to sentences.

    With `keep_words` the words of the sentences are kept, as for a treebank; otherwise the parser finds its own words
    in the raw text. A line that the parser takes for several sentences stays one: later roots hang on the first as
    `parataxis`.
    """

    def parse(self, sentences: Iterable[Sentence]) -> Iterator[Sentence]:
        """Yields the sentences in order, each with a tree."""


@dataclass(frozen=True)
class SpacyParser:
    """A spaCy pipeline with a dependency parser; English models give ClearNLP trees (see `relations`).

    Args:
        model: an installed package or a folder.
        keep_words: parse the given words instead of the raw text.
    """

    model: str
    keep_words: bool = False

    @cached_property
    def pipeline(self) -> Language:
        """Loaded pipeline of the model.

        Raises:
            ParserError: if it is not installed, cannot be loaded, or has no parser.
        """
        import spacy  # noqa: PLC0415 - heavy, and only this parser needs it

        try:
            with warnings.catch_warnings():
                # A model trained with another version of spaCy is worth a warning, but no reason to stop.
                warnings.filterwarnings("default", message=r"\[W09[45]\]", category=UserWarning)
                pipeline = spacy.load(self.model, exclude=["ner", "lemmatizer"])
        except Exception as error:  # what a broken model raises depends on where it is broken
            if "/" in self.model or Path(self.model).is_dir():
                problem, advice = f"the folder holds no usable spaCy model ({error})", "Give another folder."
            else:
                reason = f"cannot be loaded ({error})" if spacy.util.is_package(self.model) else "is not installed"
                problem = f"the spaCy model {self.model} {reason}"
                advice = f"Install it with: python -m spacy download {shlex.quote(self.model)}"
            raise ParserError(f"--parser spacy:{self.model}: {problem}.", advice) from error
        if "parser" not in pipeline.pipe_names:
            names = ", ".join(pipeline.pipe_names) or "a tokenizer"
            message = f"--parser spacy:{self.model}: the model has no dependency parser, only {names}."
            raise ParserError(message, "Choose one with a parser, such as en_core_web_sm.")
        return pipeline

    def parse(self, sentences: Iterable[Sentence]) -> Iterator[Sentence]:
        """Yields the sentences in order, each with a tree."""
        for group in _groups(sentences):
            for sentence, doc in zip(group, self.pipeline.pipe(list(map(self._input, group))), strict=True):
                yield self._with_tree(sentence, doc)

    def vectors(self, words: Sequence[str]) -> npt.NDArray[np.float64]:
        """Returns the static vectors of words, (words, d); zeros for those that have none.

        Raises:
            ParserError: if the model has no word vectors.
        """
        vocabulary = self.pipeline.vocab
        if not vocabulary.vectors_length:
            message = f"--parser spacy:{self.model}: the model has no word vectors."
            raise ParserError(message, "Choose one that has vectors, such as en_core_web_md.")
        rows = [vocabulary.get_vector(word) for word in words]
        return np.array(rows, dtype=np.float64).reshape(len(words), vocabulary.vectors_length)

    def _input(self, sentence: Sentence) -> Doc | str:
        """Returns the raw text, or a document of the given words, so that spaCy finds none of its own."""
        if self.keep_words:
            from spacy.tokens import Doc  # noqa: PLC0415

            words = sentence.words
            spaces = [a.end < b.start for a, b in pairwise(words)] + [False] * bool(words)
            return Doc(self.pipeline.vocab, words=[w.form for w in words], spaces=spaces)
        length, limit = len(sentence.text), self.pipeline.max_length
        if length > limit:
            name = sentence.id or sentence.text[:40]
            message = f"sentence {name!r} has {length} characters; spaCy parses at most {limit}."
            raise ParserError(message, "Give one sentence per line.")
        return sentence.text

    def _with_tree(self, sentence: Sentence, doc: Doc) -> Sentence:
        """Returns the sentence with words and tree of a parsed document."""
        tokens = [t for t in doc if self.keep_words or not t.is_space]
        index = {t.i: n for n, t in enumerate(tokens)}
        word_spans = [(word.start, word.end) for word in sentence.words]
        spans = word_spans if self.keep_words else [(token.idx, token.idx + len(token)) for token in tokens]
        words = []
        for token, (start, end) in zip(tokens, spans, strict=True):
            governor = token.head
            while governor.i not in index and governor.head.i != governor.i:  # white space is no word
                governor = governor.head
            head = ROOT if governor.i == token.i else index.get(governor.i, ROOT)
            label = "root" if head == ROOT else token.dep_
            words.append(Word(token.text, start, end, head, label, token.pos_ or None))
        return Sentence(sentence.text, single_root(words), sentence.id)


@dataclass(frozen=True)
class StanzaParser:
    """A Stanza pipeline; its trees are Universal Dependencies. It never downloads anything.

    Args:
        language: language code, such as "en".
        folder: folder of the models; None for the folder that Stanza downloads to.
        keep_words: parse the given words instead of the raw text.
    """

    language: str
    folder: str | None = None
    keep_words: bool = False

    @cached_property
    def pipeline(self) -> Any:
        """Loaded pipeline of the model.

        Raises:
            ParserError: if the language is not installed.
        """
        import stanza  # noqa: PLC0415 - heavy, and only this parser needs it

        options: dict[str, Any] = {"tokenize_pretokenized": True} if self.keep_words else {"tokenize_no_ssplit": True}
        if self.folder is not None:
            options["dir"] = self.folder
        # Stanza itself adds the processor for multiword tokens where the language has one.
        processors = "tokenize,pos,lemma,depparse"
        try:
            return stanza.Pipeline(
                self.language, processors=processors, download_method=None, verbose=False, use_gpu=False, **options
            )
        except Exception as error:  # Stanza's own kinds differ by version
            place, folder = ("", "") if self.folder is None else (f" in {self.folder}", f", model_dir={self.folder!r}")
            message = f"--parser stanza:{self.language}: no usable Stanza model for {self.language!r}{place} ({error})."
            code = f"import stanza; stanza.download({self.language!r}{folder})"
            # A shell must read it as it is, whatever the name of the folder.
            code = shlex.quote(code) if set(code) & set('"$`\\') else f'"{code}"'
            raise ParserError(message, f"Install it with: python -c {code}") from error

    def parse(self, sentences: Iterable[Sentence]) -> Iterator[Sentence]:
        """Yields the sentences in order, each with a tree."""
        for group in _groups(sentences):
            # Stanza stumbles over sentences without words.
            full = [bool(s.words if self.keep_words else s.text.strip()) for s in group]
            words = (self._kept if self.keep_words else self._raw)(list(compress(group, full)))
            for sentence, is_full in zip(group, full, strict=True):
                yield Sentence(sentence.text, single_root(next(words)) if is_full else (), sentence.id)

    def _kept(self, group: list[Sentence]) -> Iterator[list[Word]]:
        """Parses the words of sentences, one list of words with heads per sentence."""
        # A space inside a word would make Stanza count differently.
        document = self.pipeline([[w.form.replace(" ", "\N{NO-BREAK SPACE}") for w in s.words] for s in group])
        for sentence, parsed in zip(group, document.sentences, strict=True):
            yield [
                Word(word.form, word.start, word.end, tree.head - 1, tree.deprel, tree.upos)
                for word, tree in zip(sentence.words, parsed.words, strict=True)
            ]

    def _raw(self, group: list[Sentence]) -> Iterator[list[Word]]:
        """Parses the raw text of sentences, one list of words per text, though Stanza may see several sentences."""
        import stanza  # noqa: PLC0415

        for document in self.pipeline.bulk_process([stanza.Document([], text=s.text) for s in group]):
            words: list[Word] = []
            for parsed in document.sentences:
                first = len(words)  # heads count from the first word of the parsed sentence
                for token in parsed.tokens:
                    surface = document.text[token.start_char : token.end_char]  # token.text of very long ones is <UNK>
                    forms = [surface] if len(token.words) == 1 else [w.text for w in token.words]
                    spans = split_surface(surface, forms, token.start_char)
                    for word, form, span in zip(token.words, forms, spans, strict=True):
                        head = ROOT if word.head == 0 else word.head - 1 + first
                        words.append(Word(form, *span, head, word.deprel, word.upos))
            yield words


@dataclass(frozen=True)
class TreebankParser:
    """Trees of a treebank, such as the corrected output of a parser, found by the text of the sentence.

    Words are those of the treebank, whatever words the sentence came with.

    Args:
        path: path of a CoNLL-U file, which is held in memory.
    """

    path: str

    @cached_property
    def trees(self) -> dict[str, Sentence]:
        """Sentences with trees by their text, with single spaces; the first of several."""
        sentences = [example.source for example in ConlluCorpus(Path(self.path))]
        return {" ".join(sentence.text.split()): sentence for sentence in reversed(sentences)}

    def parse(self, sentences: Iterable[Sentence]) -> Iterator[Sentence]:
        """Yields the sentences in order, each with its tree.

        Raises:
            ParserError: if the treebank has none of a sentence.
        """
        for sentence in sentences:
            text = " ".join(sentence.text.split())
            tree = self.trees.get(text)
            if tree is None or not tree.has_tree:
                shown = text if len(text) < 60 else f"{text[:57]}..."
                advice = "Its `# text` must be the entire text, treated as one sentence."
                raise ParserError(f"--parser conllu:{self.path}: it has no tree for {shown!r}.", advice)
            # The texts may differ in white space.
            here = single_spaced_places(sentence.text)
            words = (replace(w, start=here[w.start], end=here[w.end - 1] + 1) for w in single_spaced(tree).words)
            yield Sentence(sentence.text, tuple(words), sentence.id)


def make_parser(spec: str, *, keep_words: bool) -> Parser | None:
    """Returns the parser that an option names; None for `gold`, the trees of the corpus.

    Args:
        spec: `spacy:MODEL`, `stanza:LANG`, `stanza:LANG@DIR`, `conllu:FILE`, or `gold` for none.
        keep_words: parse the given words instead of the raw text.

    Raises:
        OptionError: for anything else.
    """
    kind, _, name = spec.partition(":")
    if spec == "gold":
        return None
    if kind == "spacy" and name:
        return SpacyParser(name, keep_words)
    if kind == "conllu" and name:
        return TreebankParser(name)
    language, _, folder = name.partition("@")
    # Stanza makes a path of the language: the language must hold no slashes or dots.
    if kind == "stanza" and LANGUAGE.fullmatch(language):
        return StanzaParser(language, folder or None, keep_words)
    advice = "Give gold, spacy:MODEL, stanza:LANG, stanza:LANG@FOLDER or conllu:FILE."
    raise OptionError(f"--parser {spec!r} is not a parser.", advice)


def _groups(sentences: Iterable[Sentence]) -> Iterator[list[Sentence]]:
    """Groups sentences to batches for a parser."""
    iterator = iter(sentences)
    return iter(lambda: list(islice(iterator, BATCH)), [])
