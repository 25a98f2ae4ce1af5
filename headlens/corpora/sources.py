"""Opens corpora from what a user writes: a file, a data set or the demo, limited, parsed or split.

Data sets of the Hugging Face hub and files of data are read through the `datasets` package.
"""

from __future__ import annotations

import glob
import logging
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import tee
from pathlib import Path
from typing import Any

from headlens.corpora.chat import MESSAGES, ChatTemplate, template_of
from headlens.corpora.conllu import ConlluCorpus
from headlens.corpora.corpus_options import CorpusOptions
from headlens.corpora.parsers import Parser, make_parser
from headlens.corpora.sentence import BrokenRows, CheckedCorpus, Corpus, Example, broken_note, readings
from headlens.corpora.table import TABLES, TableCorpus, cell_examples, column_names, refused_bytes
from headlens.corpora.text import (
    ONLY_ONCE,
    NamedFile,
    ParallelCorpus,
    TextCorpus,
    as_written,
    file_kind,
    file_stem,
    is_no_file,
)
from headlens.errors import CorpusError, OptionError, counted
from headlens.files import full_disk
from headlens.hub_access import FULL_CACHE, hub_answers, only_cache
from headlens.options import DEMO, Given
from headlens.unchanged_files import unchanged

# Kinds of single files that `datasets` reads, and the name of its reader.
READERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv", ".arrow": "arrow"}
ADVICE = "Check the name and the network; a local file or a folder with data files works offline."


@dataclass(frozen=True)
class HubCorpus(CheckedCorpus):
    """A data set of the Hugging Face hub, a local folder of data files or a single one, streamed.

    Args:
        dataset: name, with a configuration after a colon ("nyu-mll/glue:sst2"); or a folder, also one that
            `save_to_disk` wrote; or a file `.parquet`, `.json`, `.jsonl`, `.csv`, `.arrow`, which has any split.
        column: the column of sentences; a path for columns in columns ("translation.en").
        split: part of the data set.
        target_column: the column of translations.
        offline: never ask the hub; use what is in its local cache.
        chat: how conversations are written as text.
    """

    dataset: str
    column: str
    split: str = "test"
    target_column: str | None = None
    offline: bool = False
    chat: ChatTemplate | None = None

    @property
    def name(self) -> str:
        """Name, configuration and split; of a file, its name without its ending."""
        return file_stem(self.dataset) if Path(self.dataset).is_file() else f"{self.dataset}:{self.split}"

    def readings(self) -> Iterator[Example | CorpusError]:
        """Reads the rows from the start; rows with blank or null text are left out (pairs so lost are logged).

        Raises:
            CorpusError: no such data set or no network; no such split or column; broken data.
        """
        rows = enumerate(self.rows(), 1)
        return cell_examples(rows, self.column, self.target_column, self.place, self.name, self.chat)

    @property
    def place(self) -> str:
        """Location of the data set in error messages: its path if it exists locally, else `hub:` and its name."""
        return self.dataset if Path(self.dataset).exists() else f"hub:{self.dataset}"

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """Yields rows, whatever columns they have; errors as when sentences are read."""
        with unchanged(self.dataset):
            part = self._part
            with self._datasets_errors("cannot be read completely"):
                for _, cells in refused_bytes(((None, cells) for cells in part), self.place):
                    if isinstance(cells, CorpusError):
                        raise cells
                    yield cells

    def class_names(self, column: str) -> tuple[str, ...]:
        """Returns the names of a column of classes (`ClassLabel`) in the order of their numbers; empty for others.

        Raises:
            CorpusError: as when sentences are read.
        """
        return tuple(getattr((self._part.features or {}).get(column), "names", ()))

    @cached_property
    def _part(self) -> Any:
        """The split, loaded once; it is read from the start any number of times."""
        path = Path(self.dataset)
        with self._datasets_errors("cannot be loaded"):
            splits = _from_file(path, self.split) if path.exists() else self._from_hub()
        if self.split not in splits:
            advice = f"Choose one with --data-args split: {', '.join(splits)}."
            raise CorpusError(f"there is no split {self.split!r}.", advice, path=self.place)
        return splits[self.split]

    def _from_hub(self) -> Mapping[str, Any]:
        import datasets  # noqa: PLC0415 - costs a second, and few corpora come from the hub

        if self.dataset.startswith((".", "/", "~")):
            raise CorpusError("no such file or folder.", "Check the spelling.", path=self.place)
        path, _, configuration = self.dataset.partition(":")
        offline = self.offline or datasets.config.HF_HUB_OFFLINE
        unreachable = not offline and not Path(path).is_dir() and not hub_answers()
        try:
            with only_cache(enabled=offline or unreachable):
                return dict(datasets.load_dataset(path, configuration or None, streaming=True))
        except ConnectionError as error:
            reason = "offline mode is on" if offline else "the hub cannot be reached"
            advice = f"Leave out --offline, unset HF_DATASETS_OFFLINE. {ADVICE}" if offline else ADVICE
            raise CorpusError(f"not in the local cache, and {reason}.", advice, path=self.place) from error

    @contextmanager
    def _datasets_errors(self, problem: str) -> Iterator[None]:
        """Turns what `datasets` raises into an error with its first line, and keeps what it logs off the screen."""
        from datasets import logging  # noqa: PLC0415

        verbosity = logging.get_verbosity()
        logging.set_verbosity(logging.CRITICAL)
        try:
            yield
        except CorpusError:
            raise
        except Exception as error:  # pyarrow's, fsspec's, the network library's or that of `datasets`
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            local = Path(self.dataset).is_file()
            advice = "The file is damaged, or not of the kind that its name suggests." if local else ADVICE
            advice = FULL_CACHE if full_disk(error) is not None else advice
            raise CorpusError(f"{problem}: {reason}", advice, path=self.place) from error
        finally:
            logging.set_verbosity(verbosity)


def _from_file(path: Path, split: str) -> Mapping[str, Any]:
    """Loads the splits of a file, of a folder that `save_to_disk` wrote, or of a folder with data files."""
    import datasets  # noqa: PLC0415

    if path.is_file():
        reader = READERS.get(path.suffix.lower(), "json")
        # `datasets` takes a pattern: "a[1].json" would be no file, "b*.json" several.
        return dict(datasets.load_dataset(reader, data_files={split: glob.escape(str(path))}, streaming=True))
    if (path / "dataset_dict.json").is_file():
        return dict(datasets.load_from_disk(str(path)))
    if (path / "state.json").is_file():
        return {split: datasets.load_from_disk(str(path))}
    return dict(datasets.load_dataset(str(path), streaming=True))


SOURCES = "Give 'demo', a file .conllu, .txt, .tsv, .csv or .jsonl (also .gz), or hub:NAME."
TREEBANKS = (".conllu", ".conll")
# Splits that commands read without `split`.
_USUAL_SPLITS = ("test", "train")
_FEW_FILES = 3  # of a folder, which a message names
TEXTS = (".txt", ".text", "")
LANGUAGE = re.compile(r"\.[a-z]{2}")  # parallel text is often named by its language: test.en, test.de


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CorpusView:
    """Base of corpora that read another corpus and keep its name."""

    corpus: Corpus

    @property
    def name(self) -> str:
        """Name of the corpus that is read, unchanged."""
        return self.corpus.name


@dataclass(frozen=True)
class ReadableExamples(CorpusView):
    """The examples of a corpus that can be read, at most `limit` of them; the log tells which were left out.

    Args:
        skip_broken: whether what cannot be read is left out, as far as `BrokenRows` allows it.
        limit: how many examples to read; None for all.
    """

    skip_broken: bool = False
    limit: int | None = None

    def __iter__(self) -> Iterator[Example]:
        """Reads from the start, and no further than needed.

        Raises:
            CorpusError: for the first that cannot be read, or for too many of them.
        """
        rows, path = 0, self.corpus.path if isinstance(self.corpus, NamedFile) else None
        broken = BrokenRows(self.name, path, self.skip_broken)
        for rows, example in enumerate(readings(self.corpus), 1):
            if isinstance(example, CorpusError):
                broken.add(example)
                continue
            yield example
            if rows - broken.number == self.limit:
                break
        broken.check(rows)
        if broken.number:
            logger.warning("%s: %s", self.name, broken_note(broken.number, rows, broken.first))


@dataclass(frozen=True)
class CorpusPart(CorpusView):
    """Part of a corpus: the held-out examples, or all others."""

    share: float
    held_out: bool

    def __iter__(self) -> Iterator[Example]:
        """Yields the examples of this part in the order of the whole corpus, from the first one on."""
        return (e for number, e in enumerate(self.corpus, 1) if is_held_out(number, self.share) == self.held_out)


@dataclass(frozen=True)
class WrittenCorpus(CorpusView):
    """A corpus with the white space of its file, as examples of tasks have it, see `as_written`."""

    def __iter__(self) -> Iterator[Example]:
        """Yields the examples from the first one on."""
        for example in self.corpus:
            target = None if example.target is None else as_written(example.target)
            yield replace(example, source=as_written(example.source), target=target)


@dataclass(frozen=True)
class ParsedCorpus(CorpusView):
    """A corpus whose sources are parsed every time it is read; write it once to parse only once."""

    parser: Parser

    def __iter__(self) -> Iterator[Example]:
        """Reads and parses from the start."""
        # The parser reads ahead by a batch: `tee` holds the examples until their trees come.
        examples, inputs = tee(self.corpus)
        for sentence in self.parser.parse(example.source for example in inputs):
            yield replace(next(examples), source=sentence)


@dataclass(frozen=True)
class NamedCorpus:
    """A corpus under another name."""

    corpus: Corpus
    name: str

    def __iter__(self) -> Iterator[Example]:
        """Yields the examples of the wrapped corpus, unchanged and from the first one on."""
        return iter(self.corpus)


def open_corpus(spec: str = DEMO, options: CorpusOptions | None = None, parser: str = "gold") -> Corpus:
    """Opens the corpus that a user names.

    Args:
        spec: `demo`; a file `.conllu`, `.txt`, `.tsv`, `.csv`, `.jsonl`, each also `.gz`; or `hub:NAME[:CONFIG]`.
        options: translations, columns, split and limit.
        parser: source of the trees: `gold`, `spacy:MODEL`, `stanza:LANG`, `stanza:LANG@DIR`; source side only.

    Raises:
        CorpusError: if there is no such file, or its kind is unknown.
        OptionError: if a table comes without the name of its column, for two kinds of translations, for an unknown
            parser, or for a limit below 1.
    """
    options = options or CorpusOptions()
    source: Corpus = spec.value if isinstance(spec, Given) else _open(spec, options)
    corpus = source
    if options.target is not None:
        if options.target_column is not None:
            raise OptionError("--target and --data-args target-column both name translations.", "Give one of them.")
        corpus = ParallelCorpus(source, _open(options.target, options))
    if options.limit is not None and options.limit < 1:
        raise OptionError(f"--limit {options.limit} is not a positive number.", "Leave it out to read everything.")
    corpus = ReadableExamples(corpus, options.skip_broken, options.limit)
    tree_parser = make_parser(parser, keep_words=isinstance(source, ConlluCorpus))
    return corpus if tree_parser is None else ParsedCorpus(corpus, tree_parser)


def refuse_unused(options: CorpusOptions, *specs: str | None) -> None:
    """Refuses columns and splits where no corpus has any: ignored silently, they would seem to have an effect.

    Args:
        options: options of all corpora of a run.
        specs: the corpora, as `open_corpus` takes them; None for a corpus that the run does not read.

    Raises:
        OptionError: naming the option.
    """
    given = [spec for spec in specs if spec is not None]
    # Data sets are what the `datasets` package reads, which knows splits; tables have columns, too.
    has_splits = any(spec.startswith("hub:") or file_kind(spec) in READERS.keys() - TABLES for spec in given)
    has_columns = has_splits or any(file_kind(spec) in TABLES for spec in given)
    data_sets, given_split = "data sets (hub:NAME, .parquet)", options.split not in _USUAL_SPLITS
    tables = f"tables (.tsv, .csv, .jsonl) and {data_sets}"
    for option, value, is_used, parts, kinds in (
        ("--column", options.column, has_columns, "columns", tables),
        ("--data-args target-column", options.target_column, has_columns, "columns", tables),
        ("--data-args chat", options.chat, has_columns, "columns", tables),
        ("--data-args split", options.split if given_split else None, has_splits, "splits", data_sets),
    ):
        if value is not None and not is_used:
            has = "has" if len(given) == 1 else "have"
            advice = f"Leave {option} out: only {kinds} have {parts}."
            if option == "--column" and Path(value).is_file():
                advice = "That is a file: name it with --corpus."
            raise OptionError(f"{option} {value}: {' and '.join(given)} {has} no {parts}.", advice)


def _open(spec: str, options: CorpusOptions) -> Corpus:
    """Opens the corpus of one side, by the ending of its file."""
    if spec == DEMO:
        return demo_corpus()
    if spec.startswith("hub:"):
        return _open_hub(spec.removeprefix("hub:"), options)
    kind = file_kind(spec)
    if not spec:
        raise OptionError("The corpus has no name.", SOURCES)
    if is_no_file(Path(spec)):
        raise CorpusError("is a pipe or device, not a regular file.", ONLY_ONCE, path=spec)
    if not Path(spec).is_file():
        raise _no_file(Path(spec))
    if kind in TREEBANKS:
        return ConlluCorpus(spec)
    if kind in TABLES:
        return TableCorpus(
            spec, _column(spec, options), options.target_column, template_of(options.chat, offline=options.offline)
        )
    if kind in READERS:
        return _open_hub(spec, options)
    if is_text(spec):
        return TextCorpus(spec)
    raise CorpusError(
        f"headlens cannot read {kind} files.", "Save it as .conllu, .txt, .tsv, .csv, .jsonl or .parquet.", path=spec
    )


def is_text(path: str | Path) -> bool:
    """Whether the ending of a file is one of plain text, with a sentence on each line."""
    kind = file_kind(path)
    return kind in TEXTS or LANGUAGE.fullmatch(kind) is not None


def _no_file(path: Path) -> CorpusError:
    """Returns the error for a missing file, or for a folder, with files in it that can be read."""
    if not path.is_dir():
        return CorpusError("no such file.", SOURCES, path=path)
    try:
        files = sorted(str(f) for f in path.iterdir() if file_kind(f) in (*TREEBANKS, *TABLES, ".txt"))
    except OSError:
        files = []
    further = f" and {counted(len(files) - _FEW_FILES, 'other')}" if len(files) > _FEW_FILES else ""
    advice = f"Give a file in it: {', '.join(files[:_FEW_FILES])}{further}." if files else SOURCES
    return CorpusError("is a folder.", advice, path=path)


def _open_hub(name: str, options: CorpusOptions) -> HubCorpus:
    if not name.strip(":"):
        raise OptionError("hub: names no data set.", "Write hub:NAME, such as hub:nyu-mll/glue:sst2.")
    column, template = _column(name, options), template_of(options.chat, offline=options.offline)
    return HubCorpus(name, column, options.split, options.target_column, options.offline, template)


def _column(spec: str, options: CorpusOptions) -> str:
    """Returns the column of sentences, which tables have no default for but that of conversations."""
    if options.column is None and options.chat is not None:
        return MESSAGES
    if options.column is None:
        columns = f" Columns: {column_names(spec)}." if file_kind(spec) in TABLES and Path(spec).is_file() else ""
        message = f"{spec} is a table: which column holds the sentences?"
        raise OptionError(message, f"Name it with --column NAME.{columns}")
    return options.column


def demo_corpus() -> ConlluCorpus:
    """Opens the small English treebank written for headlens; see `headlens/corpora/data/README.md`."""
    return ConlluCorpus(Path(__file__).parent / "data" / "demo.conllu")


def held_out_of(share: float, examples: int) -> int:
    """Returns the number of held-out examples: a share of all, rounded down."""
    # The share as it was written: 0.29 of 100 examples are 29, though the float is a little less.
    return math.floor(examples * Fraction(repr(share)))


def is_held_out(number: int, share: float) -> bool:
    """Whether an example is held out, by its number from 1: evenly spread, every fifth for a share of 0.2."""
    return held_out_of(share, number) > held_out_of(share, number - 1)


def split_corpus(corpus: Corpus, share: float, sentences: int) -> tuple[Corpus, Corpus | None]:
    """Splits a corpus into a part to train on and a held-out part, None for fewer than 1 / share sentences."""
    if not held_out_of(share, sentences):
        return corpus, None
    return CorpusPart(corpus, share, held_out=False), CorpusPart(corpus, share, held_out=True)


def require_held_out(name: str, share: float, sentences: int) -> None:
    """Refuses a corpus of which `split_corpus` holds nothing out.

    Raises:
        CorpusError: naming the corpus, and how many sentences it has.
    """
    if not held_out_of(share, sentences):
        message = f"none of {counted(sentences, 'sentence')} can be held out."
        raise CorpusError(message, "Name some with --dev.", path=name)


def first_example(corpus: Corpus) -> Example:
    """Returns the first sentence or pair of a corpus, by which the model is fed.

    Raises:
        CorpusError: if it holds none.
    """
    for example in corpus:
        return example
    raise CorpusError("the corpus is empty.", "It must hold at least one sentence.", path=corpus.name)
