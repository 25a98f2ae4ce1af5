"""Plain and parallel text: files of one sentence a line, and the splitter that finds words without a parser."""

from __future__ import annotations

import gzip
import logging
import re
import unicodedata
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from itertools import chain, zip_longest
from pathlib import Path
from typing import IO, NamedTuple, cast

from headlens.corpora.sentence import CheckedCorpus, Corpus, Example, Sentence, Word, readings, sound
from headlens.errors import CorpusError, OptionError, counted
from headlens.unchanged_files import unchanged

BOM = b"\xef\xbb\xbf"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_CONTROLS = re.compile("[\0-\x1f\x7f-\x9f]")  # all of the Unicode category Cc, which never changes
# Planes of Unicode with combining marks; to look at all characters takes ten times as long, once a process.
_PLANES_WITH_MARKS = range(0x20000), range(0xE0000, 0xF0000)
LONGEST_TEXT = 1_000_000  # characters; no model reads as many tokens at once
ONLY_ONCE = "Save it as a file first: a corpus is read more than once."


class Line(NamedTuple):
    """A line of a file: its number from 1, and its text without the line end."""

    number: int
    text: str


def open_text(path: str | Path) -> Generator[Line]:
    """Streams the lines of a UTF-8 file as `text_lines` does.

    Raises:
        CorpusError: as there, and for a line that is not UTF-8 or holds NUL.
    """
    with closing(text_lines(path)) as lines:
        yield from sound(lines)


def text_lines(path: str | Path) -> Generator[Line | CorpusError]:
    r"""Streams the lines of a UTF-8 file, or what is wrong with a line; `.gz` is unpacked on the way.

    Byte order marks at the beginning of a file, of which joined files may have several, and Windows line ends are
    taken off. Only `\n` ends a line, so that the numbers are
    those of an editor.

    Raises:
        CorpusError: the file is missing or unreadable, is UTF-16, or is a broken gzip file.
        InputError: somebody changed the file while it was read, see `unchanged`.
    """
    number = 0
    try:
        with unchanged(path), _open_binary(Path(path)) as raw:
            for number, line in enumerate(raw, 1):
                if number == 1 and line and not _without_marks(line):
                    continue  # a file of nothing else is empty
                read = _decoded(line, path, number)
                if isinstance(read, CorpusError) and number == 1 and line.startswith(UTF_16):
                    raise read
                yield read
    except FileNotFoundError as error:
        raise CorpusError("no such file", "Check the spelling and the folder.", path=path) from error
    except IsADirectoryError as error:
        raise CorpusError("is a folder, not a file", "Name a file in it.", path=path) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        advice = "Copy or download it again; a file that is not gzipped must not end in .gz."
        raise CorpusError(f"broken gzip file: {error}", advice, path=path, line=number + 1) from error
    except OSError as error:
        raise CorpusError(f"cannot be read: {error.strerror or error}", "Check its permissions.", path=path) from error


def file_stem(path: str | Path) -> str:
    """Returns a file's name without `.gz` and one further ending: `train.en.gz` is `train.en`, `a.txt` is `a`."""
    name = Path(path).name.removesuffix(".gz")
    endings = (".conllu", ".conll", ".txt", ".tsv", ".csv", ".jsonl", ".ndjson", ".json", ".parquet", ".arrow")
    return next((name.removesuffix(ending) for ending in endings if name.endswith(ending) and name != ending), name)


def distinct_names(names: Sequence[str], files: Sequence[str | Path]) -> list[str]:
    """Returns short names of files; where two files would share one, their whole names, or else their paths.

    Args:
        names: the short names.
        files: the files, in the same order.
    """
    paths, file_names = [str(file) for file in files], [Path(file).name for file in files]
    return next(list(labels) for labels in (names, file_names, paths) if len(set(labels)) == len(set(paths)))


def file_kind(path: str | Path) -> str:
    """Returns the ending of a file's name in lower case, that of the unpacked file for `.gz`; `.tsv` for `a.TSV.gz`."""
    return Path(str(path).removesuffix(".gz")).suffix.lower()


def is_no_file(path: Path) -> bool:
    """Whether a path is a pipe or a device, which could be read only once."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _open_binary(path: Path) -> IO[bytes]:
    if is_no_file(path):
        raise CorpusError("is a pipe or a device, not a file", ONLY_ONCE, path=path)
    return cast("IO[bytes]", gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _without_marks(line: bytes) -> bytes:
    while line.startswith(BOM):
        line = line.removeprefix(BOM)
    return line


def _decoded(line: bytes, path: str | Path, number: int) -> Line | CorpusError:
    """Decodes a line of UTF-8 text without a byte order mark and the line ending, or tells what is wrong with it."""
    if number == 1:
        line = _without_marks(line)
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"not UTF-8: byte 0x{line[error.start]:02x} at byte {error.start + 1} of the line"
        encoding = "utf-16" if number == 1 and line.startswith(UTF_16) else "latin1"
        advice = f"Convert the file, such as: iconv -f {encoding} -t utf-8 {Path(path).name} > new-file"
        return CorpusError(message, advice, path=path, line=number)
    if "\0" in text:
        advice = "This looks like a binary or UTF-16 file; save it as UTF-8 text."
        return CorpusError("a NUL character", advice, path=path, line=number)
    return Line(number, text.removesuffix("\n").removesuffix("\r"))


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NamedFile:
    """Base of corpora and rows that are read from one file."""

    path: str | Path

    @property
    def name(self) -> str:
        """Name of the file without its ending."""
        return file_stem(self.path)


@dataclass(frozen=True)
class TextCorpus(NamedFile, CheckedCorpus):
    """A UTF-8 file (also `.gz`) with one sentence a line; blank lines are skipped.

    Words are those of `split_words`, without trees. A sentence's id is its line number. Errors: see `open_text`.
    """

    def readings(self) -> Iterator[Example | CorpusError]:
        """Reads the lines from the start; yields what is wrong with a line that cannot be read."""
        return full_examples(self.rows(), self.name)

    def rows(self) -> Iterator[Example | CorpusError]:
        """Yields an example for every line, also for blank ones (without words), so that two files stay in step."""
        for line in text_lines(self.path):
            if isinstance(line, CorpusError):
                yield line
            else:
                refused = too_long(line.text, self.path, line.number)
                yield refused or Example(plain_sentence(line.text, str(line.number)))


@dataclass(frozen=True)
class TextList:
    """Sentences from Python, with words and without trees; those without words are skipped.

    Args:
        texts: one sentence each.
        name: of the corpus.

    Raises:
        OptionError: for what is no text.
    """

    texts: tuple[str, ...]
    name: str = "texts"

    def __post_init__(self) -> None:
        for number, text in enumerate(self.texts):
            if not isinstance(text, str):
                raise OptionError(
                    f"The corpus is a list whose item {number} is a {type(text).__name__}, not a text.",
                    "Give a list of sentences; pairs and trees are read from files.",
                )

    def __iter__(self) -> Iterator[Example]:
        """Yields the sentences from the start."""
        for number, text in enumerate(self.texts, 1):
            check_length(text, self.name, number)
            sentence = plain_sentence(text, str(number))
            if sentence.words:
                yield Example(sentence)


def too_long(text: str, path: str | Path | None, line: int | None) -> CorpusError | None:
    """The error for a text that is too long to be a sentence: tokenizing megabytes would take minutes."""
    if len(text) <= LONGEST_TEXT:
        return None
    message = f"a text of {len(text):,} characters, where at most {LONGEST_TEXT:,} are read as one."
    return CorpusError(message, "Put each sentence on its own line or row.", path=path, line=line)


def check_length(text: str, path: str | Path | None, line: int | None) -> None:
    """Refuses a text that is no sentence, see `too_long`.

    Raises:
        CorpusError: naming its place.
    """
    if error := too_long(text, path, line):
        raise error


def plain_sentence(text: str, identifier: str) -> Sentence:
    """Makes a sentence of raw text, with the words of `split_words`.

    Control characters count as spaces, runs of white space become one space, the ends are trimmed.
    """
    spaced = " ".join(_CONTROLS.sub(" ", text).split())
    return Sentence(spaced, tuple(split_words(spaced)), identifier, "" if spaced == text else text)


def as_written(sentence: Sentence) -> Sentence:
    """The sentence with the white space of its file, which a model counts that predicts every token."""
    if not sentence.written:
        return sentence
    return Sentence(sentence.written, tuple(split_words(_CONTROLS.sub(" ", sentence.written))), sentence.id)


def split_words(text: str) -> Iterator[Word]:
    """Yields words and punctuation of a text, with their spans and without a tree.

    Letters, digits and combining marks of any script make a word, together with single apostrophes and hyphens
    inside it ("don't", "well-known"), points and commas between digits ("1,000.5") and the invisible joiners of
    Persian or Indic scripts. Any other character that is not white space is a word of its own, a run of the
    same one ("...", "--") a single word. Scripts that write no spaces between words (Chinese, Thai) are not
    split: use a parser for them.
    """
    return (Word(match[0], match.start(), match.end()) for match in _word_pattern().finditer(text))


def full_examples(rows: Iterable[Example | CorpusError], name: str) -> Iterator[Example | CorpusError]:
    """Yields the examples of rows of a file, without the blank ones; errors in the place of rows as they are.

    A pair with one empty side is no translation: it is skipped, and how many there were is logged at the end.
    """
    skipped = 0
    for row in rows:
        if isinstance(row, CorpusError) or (row.source.words and (row.target is None or row.target.words)):
            yield row
        elif row.target is not None and (row.source.words or row.target.words):
            skipped += 1
    if skipped:
        logger.warning("%s: skipped %s in which one side is empty", name, counted(skipped, "pair"))


def sentence_examples(texts: Sequence[str], translations: Sequence[str] = ()) -> list[Example]:
    """Makes examples of sentences, with or without their translations; they have words, but no trees.

    Raises:
        OptionError: if a sentence has no words or the numbers of sentences and translations differ.
    """
    if translations and len(translations) != len(texts):
        raise OptionError(
            f"--target-text: {counted(len(translations), 'translation')} for {counted(len(texts), 'sentence')}.",
            "Give one translation for each sentence.",
        )
    sources = [plain_sentence(t, f"sentence-{i}") for i, t in enumerate(texts, 1)]
    targets = [plain_sentence(t, f"target-{i}") for i, t in enumerate(translations, 1)]
    if not all(s.words for s in [*sources, *targets]):
        raise OptionError("--text: a sentence has no words.", "Give some text.")
    return [Example(s, targets[i] if targets else None) for i, s in enumerate(sources)]


@cache
def _word_pattern() -> re.Pattern[str]:
    """Compiles the pattern of words as `split_words` describes them."""
    # Of the marks of Unicode, `re` itself knows no class.
    marks = "".join(f"\\U{c:08x}" for c in chain(*_PLANES_WITH_MARKS) if unicodedata.category(chr(c))[0] == "M")
    letter = rf"(?:[^\W_]|[{marks}\u200c\u200d\u00ad])"
    inner = r"(?:['’\-\u2010\u2011]|(?<=\d)[.,](?=\d))"
    return re.compile(rf"[^\W_]{letter}*(?:{inner}[^\W_]{letter}*)*|(\S)\1*")


@dataclass(frozen=True)
class ParallelCorpus(CheckedCorpus):
    """Two corpora of the same length, sentence by sentence; a table of pairs is a `TableCorpus`.

    Pairs of plain text files are read line by line, blank lines too, so that one missing line does not shift all that
    follow; a pair with a blank side is left out (and logged, if the other is not blank). Blank lines at the end of
    the longer file do not count.
    """

    source: Corpus
    target: Corpus

    @property
    def name(self) -> str:
        """Names of the source and the target corpus, joined by a plus sign; other than those of two files as one."""
        names = [side.name for side in (self.source, self.target)]
        files = [side.path if isinstance(side, NamedFile) else side.name for side in (self.source, self.target)]
        return "+".join(distinct_names(names, files))

    def readings(self) -> Iterator[Example | CorpusError]:
        """Reads both sides from the start; yields what is wrong with a pair of which a side cannot be read.

        Raises:
            CorpusError: if one side ends before the other.
        """
        return full_examples(self._pairs(), self.name)

    def _pairs(self) -> Iterator[Example | CorpusError]:
        """Yields pairs until one side ends; then nothing but blank lines may be left of the other."""
        sides, last = (_rows(self.source), _rows(self.target)), [0, 0]  # the last that is not blank, of either
        for common, (source, target) in enumerate(zip_longest(*sides)):
            if source is not None and target is not None:
                last = [common + 1 if _has_text(row) else n for row, n in zip((source, target), last, strict=True)]
                errors = [row for row in (source, target) if isinstance(row, CorpusError)]
                yield errors[0] if errors else Example(source.source, target.source)  # type: ignore[union-attr]
                continue
            left = chain([s for s in (source, target) if s is not None], *sides)
            rest = max((i for i, row in enumerate(left, 1) if _has_text(row)), default=0)
            if rest:
                shorter, longer = (self.source, self.target) if source is None else (self.target, self.source)
                unit = "line" if isinstance(shorter, TextCorpus) and isinstance(longer, TextCorpus) else "sentence"
                raise CorpusError(
                    f"the sides differ in length: {_file_name(shorter)} has "
                    f"{counted(last[source is not None], unit)}, {_file_name(longer)} has {common + rest}.",
                    "Line N of one file must be the translation of line N of the other.",
                    path=longer.path if isinstance(longer, TextCorpus) else self.name,
                    line=common + 1 if isinstance(longer, TextCorpus) else None,
                )


def _file_name(corpus: Corpus) -> str:
    """Returns the whole name of a corpus's file; of other corpora their name."""
    return Path(corpus.path).name if isinstance(corpus, NamedFile) else corpus.name


def _has_text(row: Example | CorpusError) -> bool:
    return isinstance(row, CorpusError) or bool(row.source.words)


def _rows(corpus: Corpus) -> Iterator[Example | CorpusError]:
    """Yields the examples of a corpus, also blank lines of a text file."""
    return corpus.rows() if isinstance(corpus, TextCorpus) else readings(corpus)
