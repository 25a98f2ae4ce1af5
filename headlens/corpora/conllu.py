"""Treebanks in the CoNLL-U format (https://universaldependencies.org/format.html): read and written."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, TextIO, cast

from conllu.exceptions import ParseException
from conllu.parser import parse_dict_value, parse_id_value, parse_int_value

from headlens.corpora.sentence import ROOT, Example, Sentence, Word
from headlens.corpora.spans import SurfaceToken, join_tokens
from headlens.corpora.text_files import Line, file_stem, open_text
from headlens.corpora.trees import find_fault
from headlens.errors import CorpusError, counted

N_COLUMNS = 10
ADVICE = "Mend the line; https://universaldependencies.org/format.html describes the format."
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ConlluCorpus:
    """The sentences of a CoNLL-U file (also `.gz`), with their trees where the file has them."""

    path: str | Path

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return file_stem(self.path)

    def __iter__(self) -> Iterator[Example]:
        """Read from the start; errors as in `read_conllu`."""
        return (Example(s) for s in read_conllu(self.path))


def read_conllu(path: str | Path) -> Iterator[Sentence]:
    """Stream the sentences of a CoNLL-U file.

    The text is put together from the surface tokens and `SpaceAfter=No`; a `# text` comment that disagrees is
    only logged, once per file. Words of a multiword token whose forms spell it ("do" + "n't") have spans of
    their own, others ("zu" + "dem" for "zum") share its span. Empty nodes are left out. A sentence may come
    without a tree: every head `_`. Sentences without `# sent_id` get their running number.

    Raises:
        CorpusError: with file and line: not UTF-8, not ten columns, ids not consecutive, no number as head,
            head out of range, no relation, no root or several, a cycle, heads for some words only.
    """
    disagreed = False
    count = 0
    for block in _blocks(open_text(path)):
        try:
            sentence = _parse_block(block)
        except _FaultError as fault:
            raise CorpusError(fault.message, ADVICE, path=path, line=fault.line) from fault
        if not sentence.words:
            continue
        count += 1
        if not disagreed and (disagreed := _disagrees(block, sentence)):
            logger.warning("%s:%d: the text comment differs from the words; the words count", path, block[0].number)
        yield Sentence(sentence.text, sentence.words, sentence.id or str(count))


def write_conllu(sentences: Iterable[Sentence], target: str | Path | TextIO) -> None:
    """Write sentences so that `read_conllu` gives back the same texts, spans, forms, heads and relations.

    A file is written under another name first and then renamed, so that no reader sees half of it.

    Raises:
        CorpusError: a sentence that CoNLL-U cannot hold: no words, text outside of words other than single
            spaces, words out of order, heads that are no tree.
    """
    if not isinstance(target, str | Path):
        target.writelines(map(_format_block, sentences))
        return
    path = Path(target)
    part = path.with_name(f".{path.name}.part")
    try:
        with _create_text(part, compress=path.suffix == ".gz") as handle:
            handle.writelines(map(_format_block, sentences))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


class _FaultError(Exception):
    """What is wrong, and at which line; the reader adds the file."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


class _Row(NamedTuple):
    """A line of ten columns; `id` is 3, (3, "-", 4) for a multiword token or (3, ".", 1) for an empty node."""

    line: int
    id: int | tuple[int, str, int]
    columns: list[str]

    @property
    def form(self) -> str:
        return self.columns[1]

    @property
    def space_after(self) -> bool:
        misc = self.columns[9]
        return "SpaceAfter" not in misc or (parse_dict_value(misc) or {}).get("SpaceAfter") != "No"


class _Token(NamedTuple):
    """A row that stands in the text, and the rows of its words: itself, or those of a multiword token."""

    row: _Row
    words: list[_Row]


def _blocks(lines: Iterable[Line]) -> Iterator[list[Line]]:
    for blank, block in groupby(lines, key=lambda line: not line.text.strip()):
        if not blank:
            yield list(block)


def _parse_block(block: Sequence[Line]) -> Sentence:
    """One sentence; `id` is empty without a comment, and there are no words in a block of comments."""
    tokens = _group([_parse_row(line) for line in block if not line.text.startswith("#")])
    rows = [row for token in tokens for row in token.words]
    surface = [SurfaceToken(t.row.form, tuple(w.form for w in t.words), t.row.space_after) for t in tokens]
    text, spans = join_tokens(surface)
    heads = _parse_heads(rows)
    words = tuple(
        Word(row.form, start, end, head, None if head is None else row.columns[7], _nullable(row.columns[3]))
        for row, (start, end), head in zip(rows, spans, heads, strict=True)
    )
    return Sentence(text, words, _comment(block, "sent_id"))


def _parse_row(line: Line) -> _Row:
    columns = [column.strip(" ") for column in line.text.split("\t")]
    if len(columns) != N_COLUMNS:
        raise _FaultError(f"{counted(len(columns), 'column')} instead of {N_COLUMNS} between tabs", line.number)
    try:
        identifier = parse_id_value(columns[0])
    except (ParseException, ValueError):
        identifier = None
    if identifier is None:
        raise _FaultError(f"{_shown(columns[0])} is no word id (3, 3-4 or 3.1)", line.number)
    if not columns[1]:
        raise _FaultError("the word form is empty", line.number)
    return _Row(line.number, identifier, columns)


def _group(rows: Iterable[_Row]) -> list[_Token]:
    tokens: list[_Token] = []
    count = range_end = 0
    for row in rows:
        if isinstance(row.id, tuple) and row.id[1] == ".":
            continue
        first = row.id if isinstance(row.id, int) else row.id[0]
        if first != count + 1 or (isinstance(row.id, tuple) and count < range_end):
            raise _FaultError(f"id {row.columns[0]} where {count + 1} was expected", row.line)
        if isinstance(row.id, tuple):
            range_end = row.id[2]
            tokens.append(_Token(row, []))
            continue
        count += 1
        if count > range_end:
            tokens.append(_Token(row, []))
        tokens[-1].words.append(row)
    if count < range_end:
        row = tokens[-1].row
        raise _FaultError(f"multiword token {row.columns[0]} goes on after the last word ({count})", row.line)
    return tokens


def _parse_heads(rows: Sequence[_Row]) -> Sequence[int | None]:
    """The heads as indices; all None where the sentence has no tree."""
    heads = [_parse_head(row) for row in rows]
    given = [head for head in heads if head is not None]
    if not given:
        return heads
    if len(given) < len(heads):
        raise _FaultError("no head here, while other words of the sentence have one", rows[heads.index(None)].line)
    unnamed = next((row for row in rows if _nullable(row.columns[7]) is None), None)
    if unnamed:
        raise _FaultError("a head without a relation", unnamed.line)
    if fault := find_fault(given):
        raise _FaultError(fault[1], rows[fault[0]].line)
    return given


def _parse_head(row: _Row) -> int | None:
    """0 in the file is ROOT, -1, here; so every head is one less."""
    try:
        head = parse_int_value(row.columns[6])
    except (ParseException, ValueError):
        raise _FaultError(f"head {_shown(row.columns[6])} is not a number", row.line) from None
    if head is not None and head < 0:
        raise _FaultError(f"head {_shown(row.columns[6])} is out of range", row.line)
    return None if head is None else head + ROOT


def _shown(column: str, most: int = 40) -> str:
    """Quotes the text of a column for an error message, cut after `most` characters."""
    return repr(column if len(column) <= most else f"{column[:most]}…")


def _nullable(column: str) -> str | None:
    return None if column in {"", "_"} else column


def _comment(block: Sequence[Line], key: str) -> str:
    for line in block:
        name, _, value = line.text.removeprefix("#").partition("=")
        if line.text.startswith("#") and name.strip() == key:
            return value.strip()
    return ""


def _disagrees(block: Sequence[Line], sentence: Sentence) -> bool:
    comment = _comment(block, "text")
    return bool(comment) and comment.split() != sentence.text.split()


def _create_text(path: Path, *, compress: bool) -> TextIO:
    if compress:
        return cast("TextIO", gzip.open(path, "wt", encoding="utf-8", newline="\n"))
    return path.open("w", encoding="utf-8", newline="\n")


def _format_block(sentence: Sentence) -> str:
    """The lines of a sentence; read back at once, since a cache that changes its content is worse than none."""
    lines = [f"# sent_id = {' '.join(sentence.id.split())}"] if sentence.id else []
    lines += [f"# text = {' '.join(sentence.text.split())}", *_format_rows(sentence)]
    block = "".join(f"{line}\n" for line in lines)
    if "\0" in block:
        raise _unwritable(sentence, "it holds a NUL character")
    try:  # split anew: a word may hold a line feed
        read = _parse_block([Line(i, text) for i, text in enumerate(block[:-1].split("\n"), 1)])
    except _FaultError as fault:
        raise _unwritable(sentence, fault.message) from fault
    if not read.words or (read.text, read.words) != (sentence.text, sentence.words):
        raise _unwritable(sentence, "its words do not make up its text")
    return f"{block}\n"


def _format_rows(sentence: Sentence) -> Iterator[str]:
    number = 0
    for (start, end), group in groupby(sentence.words, key=lambda w: (w.start, w.end)):
        words = list(group)
        first, number = number + 1, number + len(words)
        surface = sentence.text[start:end]
        misc = "_" if sentence.text[end : end + 1] in {" ", ""} else "SpaceAfter=No"
        if len(words) > 1 or words[0].form != surface:
            yield "\t".join([f"{first}-{number}", surface, *"_______", misc])
            misc = "_"
        for i, w in enumerate(words, first):
            head = "_" if w.head is None else str(w.head - ROOT)
            yield "\t".join([str(i), w.form, "_", w.upos or "_", "_", "_", head, w.relation or "_", "_", misc])


def _unwritable(sentence: Sentence, why: str) -> CorpusError:
    return CorpusError(f"sentence {sentence.id or sentence.text[:40]!r} cannot be written as CoNLL-U: {why}")
