"""From what a user writes to a corpus."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from headlens.corpora.conllu import ConlluCorpus
from headlens.corpora.corpus_options import CorpusOptions
from headlens.corpora.demo import demo_corpus
from headlens.corpora.hub import READERS, HubCorpus
from headlens.corpora.parallel import ParallelCorpus
from headlens.corpora.parsers import Parser, make_parser
from headlens.corpora.sentence import Corpus, Example, Sentence
from headlens.corpora.table import JSON_LINES, SEPARATORS, TableCorpus
from headlens.corpora.text import TextCorpus
from headlens.corpora.text_files import ONLY_ONCE, is_no_file
from headlens.errors import CorpusError, OptionError
from headlens.options import DEMO, Given

SOURCES = "Give 'demo', a file .conllu, .txt, .tsv, .csv or .jsonl (also .gz), or hub:NAME."
TREEBANKS = (".conllu", ".conll")
# What commands ask for when nothing is said.
_USUAL_SPLITS = ("test", "train")
TEXTS = (".txt", ".text", "")
LANGUAGE = re.compile(r"\.[a-z]{2}")  # parallel text is often named by its language: test.en, test.de


@dataclass(frozen=True)
class FirstExamples:
    """The first examples of a corpus, at most `limit` of them.

    Args:
        corpus: the corpus that examples are read from.
        limit: the largest number of examples.
    """

    corpus: Corpus
    limit: int

    @property
    def name(self) -> str:
        """Name of the corpus that is cut short, unchanged."""
        return self.corpus.name

    def __iter__(self) -> Iterator[Example]:
        """Read from the start, and no further than needed."""
        return islice(iter(self.corpus), self.limit)


@dataclass(frozen=True)
class NamedCorpus:
    """A corpus under another name."""

    corpus: Corpus
    name: str

    def __iter__(self) -> Iterator[Example]:
        """Yields the examples of the wrapped corpus, unchanged and from the first one on."""
        return iter(self.corpus)


@dataclass(frozen=True)
class ParsedCorpus:
    """A corpus whose sources are parsed every time it is read; write it once to parse only once."""

    corpus: Corpus
    parser: Parser

    @property
    def name(self) -> str:
        """Name of the corpus whose sources are parsed, unchanged."""
        return self.corpus.name

    def __iter__(self) -> Iterator[Example]:
        """Read and parse from the start."""
        waiting = deque[Example]()

        def sources() -> Iterator[Sentence]:
            for example in self.corpus:
                waiting.append(example)
                yield example.source

        for sentence in self.parser.parse(sources()):
            yield replace(waiting.popleft(), source=sentence)


def open_corpus(spec: str = DEMO, options: CorpusOptions | None = None, parser: str = "gold") -> Corpus:
    """The corpus a user names.

    Args:
        spec: `demo`; a file `.conllu`, `.txt`, `.tsv`, `.csv`, `.jsonl`, each also `.gz`; or `hub:NAME[:CONFIG]`.
        options: how it is read.
        parser: where trees come from: `gold`, `spacy:MODEL`, `stanza:LANG`, `stanza:LANG@DIR`; source side only.

    Raises:
        CorpusError: if there is no such file, or its kind is unknown.
        OptionError: if a table comes without the name of its column, for two kinds of translations, for a parser
            that is none, for a limit below 1.
    """
    options = options or CorpusOptions()
    source: Corpus = spec.value if isinstance(spec, Given) else _open(spec, options)
    corpus = source
    if options.target is not None:
        if options.target_column is not None:
            raise OptionError("--target and --target-column both name translations.", "Give one of them.")
        corpus = ParallelCorpus(source, _open(options.target, options))
    if options.limit is not None:
        if options.limit < 1:
            raise OptionError(f"--limit {options.limit} is not a positive number.", "Leave it out to read everything.")
        corpus = FirstExamples(corpus, options.limit)
    made = make_parser(parser, keep_words=isinstance(source, ConlluCorpus))
    return corpus if made is None else ParsedCorpus(corpus, made)


def refuse_unused(options: CorpusOptions, *specs: str | None) -> None:
    """Refuse columns and splits where no corpus has any, which would say that they were looked at.

    Args:
        options: for all corpora of a run.
        specs: the corpora, as `open_corpus` takes them; None for one that is not asked for.

    Raises:
        OptionError: naming the option.
    """
    named = [spec for spec in specs if spec is not None]
    if not any(map(_has_columns, named)):
        where = "tables (.tsv, .csv, .jsonl) and data sets (hub:NAME, .parquet)"
        _refuse("--column", options.column, named, "columns", where)
        _refuse("--target-column", options.target_column, named, "columns", where)
    if not any(map(_is_data_set, named)):
        split = None if options.split in _USUAL_SPLITS else options.split
        _refuse("--split", split, named, "splits", "data sets (hub:NAME, .parquet)")


def _refuse(option: str, value: str | None, named: Sequence[str], parts: str, where: str) -> None:
    if value is not None:
        raise OptionError(
            f"{option} {value}: {' and '.join(named)} ha{'s' if len(named) == 1 else 've'} no {parts}.",
            f"Leave {option} out: only {where} have {parts}.",
        )


def _has_columns(spec: str) -> bool:
    return _is_data_set(spec) or _kind(spec) in (*SEPARATORS, *JSON_LINES)


def _is_data_set(spec: str) -> bool:
    kind = _kind(spec)
    return spec.startswith("hub:") or (kind in READERS and kind not in (*SEPARATORS, *JSON_LINES))


def _open(spec: str, options: CorpusOptions) -> Corpus:
    if spec == DEMO:
        return demo_corpus()
    if spec.startswith("hub:"):
        return _open_hub(spec.removeprefix("hub:"), options)
    kind = _kind(spec)
    if not spec:
        raise OptionError("The corpus has no name.", SOURCES)
    if is_no_file(Path(spec)):
        raise CorpusError("is a pipe or a device, not a file.", ONLY_ONCE, path=spec)
    if not Path(spec).is_file():
        problem = "is a folder" if Path(spec).is_dir() else "no such file"
        raise CorpusError(f"{problem}.", SOURCES, path=spec)
    if kind in TREEBANKS:
        return ConlluCorpus(spec)
    if kind in (*SEPARATORS, *JSON_LINES):
        return TableCorpus(spec, _column(spec, options), options.target_column)
    if kind in READERS:
        return _open_hub(spec, options)
    if kind in TEXTS or LANGUAGE.fullmatch(kind):
        return TextCorpus(spec)
    raise CorpusError(
        f"headlens reads no {kind} files.", "Save it as .conllu, .txt, .tsv, .csv, .jsonl or .parquet.", path=spec
    )


def _kind(spec: str) -> str:
    return Path(spec.removesuffix(".gz")).suffix.lower()


def _open_hub(name: str, options: CorpusOptions) -> HubCorpus:
    if not name.strip(":"):
        raise OptionError("hub: names no data set.", "Write hub:NAME, such as hub:nyu-mll/glue:sst2.")
    return HubCorpus(name, _column(name, options), options.split, options.target_column, options.offline)


def _column(spec: str, options: CorpusOptions) -> str:
    if options.column is None:
        raise OptionError(f"{spec} is a table: which column holds the sentences?", "Name it with --column NAME.")
    return options.column
