"""Reader and writer of treebanks in the CoNLL-U format (https://universaldependencies.org/format.html)."""

from __future__ import annotations

import gzip
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, TextIO

from headlens.corpora.sentence import ROOT, CheckedCorpus, Example, Sentence, Word, find_tree_fault, join_tokens, sound
from headlens.corpora.text import Line, NamedFile, text_lines
from headlens.errors import CorpusError, counted
from headlens.files import atomic_path

N_COLUMNS = 10
# The id of a word (3), of a multiword token (3-4) or of an empty node (3.1).
# Python reads no numbers of more than 4300 digits.
NUMBER = "[1-9][0-9]{0,4299}"
WORD_ID = re.compile(rf"(?P<word>0|{NUMBER})|(?P<first>{NUMBER})-(?P<last>{NUMBER})|[0-9]{{1,4300}}\.{NUMBER}")
HEAD = re.compile(rf"0|-?{NUMBER}")
# A mention that is opened, or closed as well, or one that is closed: (e1-person  (e1-person-1)  e1)
_BRACKET = re.compile(r"\((?P<opened>[^()]+)(?P<single>\))?|(?P<closed>[^()]+)\)")
_ATTRIBUTES = re.compile(r"#\s*global\.Entity\s*=\s*(.*)")
ADVICE = "Correct the line; https://universaldependencies.org/format.html describes the format."
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ConlluCorpus(NamedFile, CheckedCorpus):
    """The sentences of a CoNLL-U file (also `.gz`), with their trees where the file has them."""

    def readings(self) -> Iterator[Example | CorpusError]:
        """Streams the sentences of the file; yields what is wrong with one that cannot be read.

        The text is put together from the surface tokens and `SpaceAfter=No`; a `# text` comment that disagrees is
        only logged, once per file. Words of a multiword token whose forms spell it ("do" + "n't") have spans of
        their own, others ("zu" + "dem" for "zum") share its span. Empty nodes are left out. A sentence may come
        without a tree: every head `_`. Of the mentions of entities (`Entity=` in MISC, CorefUD 1.x) the head words are
        kept: the word of the span whose head is outside of it, the highest one in the tree of several; mentions of
        several words in sentences without a tree have none. Sentences without `# sent_id` get their running number.

        What is wrong may be, with file and line: not UTF-8, not ten columns, ids not consecutive, no number as head,
        head out of range, no relation, no root or several, a cycle, heads for some words only, brackets of `Entity=`
        that do not match within their sentence.
        """
        disagreed = False
        count = place = 0
        # An error that is kept, or an iterator that is not read to its end, would keep the file open.
        with closing(text_lines(self.path)) as file:
            for is_blank, lines in groupby(file, key=lambda line: isinstance(line, Line) and not line.text.strip()):
                if is_blank:
                    continue
                try:
                    block = list(sound(lines))
                    place = _entity_place(block, place)
                    sentence: Sentence | CorpusError = _parse_block(block, place)
                except _FaultError as fault:
                    sentence = CorpusError(fault.args[0], ADVICE, path=self.path, line=fault.args[1])
                except CorpusError as error:  # a line that is no text
                    sentence = error
                if isinstance(sentence, CorpusError):
                    count += 1
                    yield sentence
                elif sentence.words:
                    count += 1
                    comment = _comment(block, "text").split()
                    if not disagreed and comment and comment != sentence.text.split():
                        disagreed = True
                        problem = "the text comment differs from the words; the words count"
                        logger.warning("%s:%d: %s", self.path, block[0].number, problem)
                    yield Example(Sentence(sentence.text, sentence.words, sentence.id or str(count)))


def write_conllu(sentences: Iterable[Sentence], target: str | Path | TextIO) -> None:
    """Writes sentences so that `ConlluCorpus` gives back the same texts, spans, forms, heads and relations.

    A file is written under another name first and then renamed, so that no reader sees half of it.

    Raises:
        CorpusError: a sentence that CoNLL-U cannot hold: no words, text outside of words other than single
            spaces, words out of order, heads that are no tree.
        OutputError: if the file cannot be written.
    """
    if not isinstance(target, str | Path):
        target.writelines(map(_format_block, sentences))
        return
    with atomic_path(target) as path:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "wt", encoding="utf-8", newline="\n") as handle:
            handle.writelines(map(_format_block, sentences))


class _FaultError(Exception):
    """A fault of a treebank: message and line; the reader adds the file."""


class _Row(NamedTuple):
    """A line of ten columns, of a word, a multiword token or an empty node."""

    line: int
    columns: list[str]

    @property
    def space_after(self) -> bool:
        features = [feature.split("=") for feature in self.columns[9].split("|")]
        return {feature[0]: feature[1:2] for feature in features}.get("SpaceAfter") != ["No"]


def _parse_block(block: Sequence[Line], entity_place: int = 0) -> Sentence:
    """Reads one sentence; `id` is empty without a comment, and there are no words in a block of comments.

    Args:
        block: lines of the sentence.
        entity_place: place of the name among the attributes of `Entity=`.
    """
    tokens = _group(_parse_row(line) for line in block if not line.text.startswith("#"))
    rows = [row for _, words in tokens for row in words]
    surface = [(token.columns[1], [word.columns[1] for word in words], token.space_after) for token, words in tokens]
    text, spans = join_tokens(surface)
    heads = _parse_heads(rows)
    entities: dict[int, list[str]] = {}
    for entity, mentioned in _mentions(block, entity_place):
        if (top := _head_word(mentioned, heads)) is not None:
            entities.setdefault(top, []).append(entity)
    words = tuple(
        Word(
            row.columns[1],
            start,
            end,
            head,
            None if head is None else row.columns[7],
            _nullable(row.columns[3]),
            tuple(dict.fromkeys(entities.get(place, ()))),
        )
        for place, (row, (start, end), head) in enumerate(zip(rows, spans, heads, strict=True))
    )
    return Sentence(text, words, _comment(block, "sent_id"))


def _parse_row(line: Line) -> _Row:
    """Splits a line into its ten columns, of which the word id and the form are checked."""
    columns = [column.strip(" ") for column in line.text.split("\t")]
    if len(columns) != N_COLUMNS:
        raise _FaultError(f"{counted(len(columns), 'column')} instead of {N_COLUMNS} between tabs", line.number)
    identifier = WORD_ID.fullmatch(columns[0])
    if identifier is None or (identifier["first"] and int(identifier["first"]) > int(identifier["last"])):
        raise _FaultError(f"{_shown(columns[0])} is not a word id (3, 3-4 or 3.1)", line.number)
    if not columns[1]:
        raise _FaultError("the word form is empty", line.number)
    return _Row(line.number, columns)


def _group(rows: Iterable[_Row]) -> list[tuple[_Row, list[_Row]]]:
    """Groups words under the rows that stand in the text: their own, or a multiword token; without empty nodes.

    Ids must be consecutive.
    """
    tokens: list[tuple[_Row, list[_Row]]] = []
    count = range_end = 0
    for row in rows:
        first, dash, last = row.columns[0].partition("-")
        if "." in first:
            continue
        if int(first) != count + 1 or (dash and count < range_end):
            raise _FaultError(f"id {row.columns[0]} where {count + 1} was expected", row.line)
        if dash:
            range_end = int(last)
        if dash or count >= range_end:
            tokens.append((row, []))
        if not dash:
            tokens[-1][1].append(row)
            count += 1
    if count < range_end:
        row = tokens[-1][0]
        raise _FaultError(f"multiword token {row.columns[0]} extends beyond the last word ({count})", row.line)
    return tokens


def _parse_heads(rows: Sequence[_Row]) -> Sequence[int | None]:
    """Reads the heads as indices; all None where the sentence has no tree."""
    for row in rows:
        cell = row.columns[6]
        if cell != "_" and HEAD.fullmatch(cell) is None:
            raise _FaultError(f"head {_shown(cell)} is not a number", row.line)
        if cell.startswith("-"):
            raise _FaultError(f"head {_shown(cell)} is out of range", row.line)
    # One less than in the file, where 0 is the root and here -1 (`ROOT`).
    heads = [None if row.columns[6] == "_" else int(row.columns[6]) + ROOT for row in rows]
    tree = [head for head in heads if head is not None]
    if not tree:
        return heads
    if len(tree) < len(heads):
        raise _FaultError("no head here, while other words of the sentence have one", rows[heads.index(None)].line)
    if unnamed := next((row for row in rows if _nullable(row.columns[7]) is None), None):
        raise _FaultError("a head but no relation", unnamed.line)
    if fault := find_tree_fault(tree):
        raise _FaultError(fault[1], rows[fault[0]].line)
    return tree


def _entity_place(block: Sequence[Line], place: int) -> int:
    """Returns where the name of an entity stands among its attributes; `# global.Entity` tells it of what follows."""
    for line in block:
        if match := _ATTRIBUTES.fullmatch(line.text.strip()):
            names = match[1].lower().split("-")
            places = [i for i, name in enumerate(names) if name in ("eid", "grp")]
            if not places:
                raise _FaultError("global.Entity names no attribute eid or GRP, the name of an entity", line.number)
            place = places[0]
    return place


def _mentions(block: Sequence[Line], place: int) -> Iterator[tuple[str, set[int]]]:
    """Yields the mentions of a sentence as they end: the name of the entity, and the indices of the words.

    A part of a mention is called `e1[1/2]`; a mention without words is one of empty nodes alone, and is left out.
    """
    opened: dict[str, list[tuple[int, int]]] = {}  # first word and line of each that is open, by name and part
    parts: dict[tuple[str, str], set[int]] = {}
    for first, after, line, bracket in _entity_brackets(block):
        attributes = (bracket["opened"] or bracket["closed"]).split("-")
        name = attributes[min(place, len(attributes) - 1)]
        if bracket["opened"]:
            opened.setdefault(name, []).append((first, line))
        if bracket["opened"] and not bracket["single"]:
            continue
        if not opened.get(name):
            raise _FaultError(f"entity {_shown(name)} is closed but was not opened in the same sentence", line)
        entity, _, part = name.partition("[")
        number, _, number_of_parts = part.rstrip("]").partition("/")
        words = parts.pop((entity, number_of_parts), set()) | set(range(opened[name].pop()[0], after))
        if number != number_of_parts:
            parts[entity, number_of_parts] = words
        elif words:
            yield entity, words
    for name, line in ((name, line) for name, lines in opened.items() for _, line in lines):
        raise _FaultError(f"entity {_shown(name)} is opened but not closed in the same sentence", line)
    for entity, _ in parts:
        raise _FaultError(f"the last part of a mention of entity {_shown(entity)} is missing", block[-1].number)


def _entity_brackets(block: Sequence[Line]) -> Iterator[tuple[int, int, int, re.Match[str]]]:
    """Yields the brackets of `Entity=`: index of the word, or of that after an empty node, of the next, line, match."""
    count = 0
    for line in block:
        columns = [column.strip(" ") for column in line.text.split("\t")]
        if line.text.startswith("#") or "-" in columns[0]:
            continue
        is_word = columns[0].isdecimal()
        count += is_word
        value = "".join(f.partition("=")[2] for f in columns[9].split("|") if f.startswith("Entity="))
        brackets = list(_BRACKET.finditer(value))
        if "".join(bracket[0] for bracket in brackets) != value:
            raise _FaultError(f"Entity={_shown(value)[1:-1]} has brackets that do not form mentions", line.number)
        yield from ((count - is_word, count, line.number, bracket) for bracket in brackets)


def _head_word(words: set[int], heads: Sequence[int | None]) -> int | None:
    """Returns the word of a mention that is highest in the tree; None for several words without a tree."""

    def depth(word: int) -> int:
        head, steps = heads[word], 0
        while head is not None and head != ROOT:
            head, steps = heads[head], steps + 1
        return steps

    without_tree = any(heads[word] is None for word in words)
    return None if without_tree and len(words) > 1 else min(sorted(words), key=depth)


def _shown(column: str, most: int = 40) -> str:
    """Quotes the text of a column for an error message, cut after `most` characters."""
    return repr(column if len(column) <= most else f"{column[:most]}…")


def _nullable(column: str) -> str | None:
    """Returns the text of a column, None where it is empty or `_`."""
    return None if column in {"", "_"} else column


def _comment(block: Sequence[Line], key: str) -> str:
    """Returns the value of a comment `# key = value`; empty without one."""
    for line in block:
        name, _, value = line.text.removeprefix("#").partition("=")
        if line.text.startswith("#") and name.strip() == key:
            return value.strip()
    return ""


def _format_block(sentence: Sentence) -> str:
    """Writes the lines of a sentence and checks that they read back as the same sentence."""
    lines = [f"# sent_id = {' '.join(sentence.id.split())}"] if sentence.id else []
    lines += [f"# text = {' '.join(sentence.text.split())}", *_format_rows(sentence)]
    block = "".join(f"{line}\n" for line in lines)
    if "\0" in block:
        raise _unwritable(sentence, "it holds a NUL character")
    try:  # split anew: a word may hold a line feed
        read = _parse_block([Line(i, text) for i, text in enumerate(block[:-1].split("\n"), 1)])
    except _FaultError as fault:
        raise _unwritable(sentence, fault.args[0]) from fault
    if not read.words or (read.text, read.words) != (sentence.text, sentence.words):
        raise _unwritable(sentence, "its words do not add up to its text")
    return f"{block}\n"


def _format_rows(sentence: Sentence) -> Iterator[str]:
    """Yields the rows of the words, and before words that share a span that of their multiword token."""
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
            # Spans of mentions are not kept: the head word stands for them.
            entities = "Entity=" + "".join(f"({entity})" for entity in w.entities) if w.entities else ""
            features = "|".join(feature for feature in (entities, misc.strip("_")) if feature) or "_"
            yield "\t".join([str(i), w.form, "_", w.upos or "_", "_", "_", head, w.relation or "_", "_", features])


def _unwritable(sentence: Sentence, reason: str) -> CorpusError:
    return CorpusError(f"sentence {sentence.id or sentence.text[:40]!r} cannot be written as CoNLL-U: {reason}")
