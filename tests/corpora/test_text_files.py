"""Lines of text files, and what broken files get."""

import gzip
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlens.corpora.text_files import Line, file_stem, open_text
from headlens.errors import CorpusError


def save(folder: Path, data: bytes, name: str = "a.txt") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"\xef\xbb\xbf", []),
        (b"\xef\xbb\xbf\n", [""]),
        (b"one\n\xef\xbb\xbf", ["one", "\ufeff"]),
        (b"one\ntwo", ["one", "two"]),
        (b"one\r\n\r\ntwo\r\n", ["one", "", "two"]),
        (b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n", ["one", "\ufefftwo"]),
        ("a\u2028b\x0cc\x85d\rd\n".encode(), ["a\u2028b\x0cc\x85d\rd"]),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_lines(tmp_path: Path, data: bytes, lines: list[str], name: str) -> None:
    path = save(tmp_path, gzip.compress(data) if name.endswith(".gz") else data, name)
    assert list(open_text(path)) == list(open_text(str(path))) == [Line(i, text) for i, text in enumerate(lines, 1)]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\r\ufeff"))))
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = save(tmp_path_factory.getbasetemp(), "".join(f"{line}\n" for line in lines).encode())
    assert [line.text for line in open_text(path)] == lines


def test_reading_is_lazy(tmp_path: Path) -> None:
    lines = open_text(save(tmp_path, b"good\n\xff\n"))
    assert next(lines) == (1, "good")
    with pytest.raises(CorpusError):
        next(lines)


@pytest.mark.parametrize(
    ("data", "line", "message", "advice"),
    [
        (b"one\ntw\xf6\n", 2, "not UTF-8: byte 0xf6 at byte 3 of the line", "iconv -f latin1 -t utf-8 a.txt"),
        (b"\xe2\x82\n", 1, "not UTF-8: byte 0xe2 at byte 1", "iconv"),
        (b"\xed\xa0\x80\n", 1, "not UTF-8: byte 0xed at byte 1", "iconv"),
        (b"one\n\ntwo\0\n", 3, "a NUL character", "binary or UTF-16"),
        ("one\n".encode("utf-16"), 1, "not UTF-8: byte 0xff", "iconv -f utf-16"),
        ("one\n".encode("utf-16-be"), 1, "a NUL character", "UTF-16"),
    ],
)
def test_what_is_no_text(tmp_path: Path, data: bytes, line: int, message: str, advice: str) -> None:
    path = save(tmp_path, data)
    with pytest.raises(CorpusError) as caught:
        list(open_text(path))
    assert (caught.value.path, caught.value.line) == (path, line)
    assert str(caught.value).startswith(f"{path}:{line}: {message}")
    assert advice in caught.value.advice


PACKED = gzip.compress(b"".join(b"line %d\n" % i for i in range(50_000)))
BROKEN_GZIP = {
    "not gzipped": b"one\n",
    "cut off": PACKED[: len(PACKED) // 2],
    "without its end": PACKED[:-4],
    "damaged": PACKED[:2000] + b"\xff" * 200 + PACKED[2200:],
    "header only": PACKED[:4],
    "followed by rubbish": gzip.compress(b"one\n") + b"rubbish",
}


@pytest.mark.parametrize("name", BROKEN_GZIP)
def test_broken_gzip(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, BROKEN_GZIP[name], "a.txt.gz")
    read = []
    with pytest.raises(CorpusError, match="broken gzip file") as caught:
        read.extend(open_text(path))
    assert caught.value.line is not None
    assert "must not end in .gz" in caught.value.advice


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"gone\.txt: no such file\nCheck the spelling"):
        next(open_text(tmp_path / "gone.txt"))
    with pytest.raises(CorpusError, match=r"is a folder, not a file\nName a file in it"):
        next(open_text(tmp_path))
    folder = tmp_path / "folder.gz"
    folder.mkdir()
    with pytest.raises(CorpusError, match="is a folder"):
        next(open_text(folder))


def test_what_can_be_read_only_once(tmp_path: Path) -> None:
    """A pipe without a writer would be waited for without end."""
    os.mkfifo(tmp_path / "pipe.txt")
    for path in (tmp_path / "pipe.txt", Path("/dev/null")):
        with pytest.raises(CorpusError, match=r"is a pipe or a device, not a file\nSave it as a file first"):
            next(open_text(path))


def test_unreadable_file(tmp_path: Path) -> None:
    path = save(tmp_path, b"one\n")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("needs a user whom file permissions concern")
    with pytest.raises(CorpusError, match="cannot be read: Permission denied"):
        next(open_text(path))


@pytest.mark.parametrize("name", ["x" * 300, "a/b.txt"])
def test_names_that_cannot_be_opened(tmp_path: Path, name: str) -> None:
    save(tmp_path, b"a file, not a folder", "a")
    with pytest.raises(CorpusError, match="cannot be read"):
        next(open_text(tmp_path / name))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("data/en_ewt-ud-test.conllu", "en_ewt-ud-test"),
        ("a.txt", "a"),
        ("a.tsv.gz", "a"),
        ("train.en.gz", "train.en"),
        ("test.de", "test.de"),
        ("a.b.jsonl", "a.b"),
        ("A.parquet", "A"),
        (".txt", ".txt"),
        ("notes", "notes"),
    ],
)
def test_short_name(path: str, name: str) -> None:
    assert file_stem(path) == file_stem(Path(path)) == name
