"""JSON files with an array of objects, and the line each of them begins at."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headlens.corpora.text_files import open_text
from headlens.errors import CorpusError


def json_array(path: str | Path) -> Iterator[tuple[int | None, Mapping[str, Any]]]:
    """The objects of a JSON array, each with the line it begins at, or of the array `data` in an object, without.

    Raises:
        CorpusError: with the line: broken JSON, or something other than an array of objects.
    """
    text = "\n".join(line.text for line in open_text(path))
    content = parse_json(text, path)
    rows = content.get("data") if isinstance(content, dict) else content
    if not isinstance(rows, list):
        raise CorpusError("no array of objects.", "Write [{…}, {…}], or one object per line as .jsonl.", path=path)
    starts: Sequence[int | None] = [None] * len(rows) if isinstance(content, dict) else _starts(text)
    for number, (line, row) in enumerate(zip(starts, rows, strict=True)):
        if not isinstance(row, dict):
            raise CorpusError(f"element {number + 1} is no JSON object.", "Write {…}.", path=path, line=line)
        yield line, row


def parse_json(text: str, path: str | Path) -> Any:
    """What a JSON file holds.

    Raises:
        CorpusError: with the line: broken JSON.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise CorpusError("broken JSON: nested too deeply.", "Mend the file.", path=path) from error
    except ValueError as error:  # also numbers of thousands of digits
        line = getattr(error, "lineno", None)
        reason = getattr(error, "msg", str(error))
        raise CorpusError(f"broken JSON: {reason}.", "Mend the line.", path=path, line=line) from error


def _starts(text: str) -> list[int]:
    """Lines at which the elements of an array begin; found by reading them once more, one by one."""
    decoder, lines, line, last = json.JSONDecoder(), list[int](), 1, 0
    place = _skip(text, text.index("[") + 1)
    while text[place] != "]":
        line += text.count("\n", last, place)
        lines.append(line)
        last = place
        _, place = decoder.raw_decode(text, place)
        place = _skip(text, place)
    return lines


def _skip(text: str, place: int) -> int:
    """The next place that is neither white space nor a comma."""
    while text[place] in " \t\r\n,":
        place += 1
    return place
