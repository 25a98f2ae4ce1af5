"""Reading text files: UTF-8, plain or gzipped, with line numbers in every error."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, cast

from headlens.errors import CorpusError

BOM = b"\xef\xbb\xbf"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
ONLY_ONCE = "Save it as a file first: a corpus is read more than once."


class Line(NamedTuple):
    """A line of a file: its number from 1, and its text without the line end."""

    number: int
    text: str


def open_text(path: str | Path) -> Iterator[Line]:
    r"""Stream the lines of a UTF-8 file; `.gz` is unpacked on the way.

    A byte order mark and Windows line ends are taken off. Only `\n` ends a line, so that the numbers are
    those of an editor.

    Raises:
        CorpusError: the file is missing or unreadable, is not UTF-8, holds NUL, or is a broken gzip file.
    """
    number = 0
    try:
        with _open_binary(Path(path)) as raw:
            for number, line in enumerate(raw, 1):
                if number > 1 or line != BOM:  # a file of nothing else is empty
                    yield Line(number, _decode(line, path, number))
    except FileNotFoundError as error:
        raise CorpusError("no such file", "Check the spelling and the folder.", path=path) from error
    except IsADirectoryError as error:
        raise CorpusError("is a folder, not a file", "Name a file in it.", path=path) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        advice = "Copy or download it again; a file that is not gzipped must not end in .gz."
        raise CorpusError(f"broken gzip file: {error}", advice, path=path, line=number + 1) from error
    except OSError as error:
        raise CorpusError(f"cannot be read: {error.strerror or error}", "Check who may read it.", path=path) from error


def file_stem(path: str | Path) -> str:
    """The file's name without `.gz` and without one further ending: `train.en.gz` is `train.en`, `a.txt` is `a`."""
    name = Path(path).name
    known = (".conllu", ".conll", ".txt", ".tsv", ".csv", ".jsonl", ".ndjson", ".json", ".parquet", ".arrow")
    name = name.removesuffix(".gz")
    return next((name.removesuffix(k) for k in known if name.endswith(k) and name != k), name)


def is_no_file(path: Path) -> bool:
    """Whether there is a pipe or a device, which could be read only once."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _open_binary(path: Path) -> IO[bytes]:
    if is_no_file(path):
        raise CorpusError("is a pipe or a device, not a file", ONLY_ONCE, path=path)
    return cast("IO[bytes]", gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _decode(line: bytes, path: str | Path, number: int) -> str:
    if number == 1:
        line = line.removeprefix(BOM)
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"not UTF-8: byte 0x{line[error.start]:02x} at byte {error.start + 1} of the line"
        encoding = "utf-16" if number == 1 and line.startswith(UTF_16) else "latin1"
        advice = f"Convert the file, such as: iconv -f {encoding} -t utf-8 {Path(path).name} > new-file"
        raise CorpusError(message, advice, path=path, line=number) from error
    if "\0" in text:
        advice = "This looks like a binary or UTF-16 file; save it as UTF-8 text."
        raise CorpusError("a NUL character", advice, path=path, line=number)
    return text.removesuffix("\n").removesuffix("\r")
