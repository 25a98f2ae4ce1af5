"""Files damaged as people, editors, exports and disks damage them; and how many of them a test looks at."""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from headlens.errors import InputError

Blow = tuple[int, int, int]  # which kind, and two numbers that say where and what
MOST = 2**16 - 1

ODD_CELLS = [
    *("", "_", "0", "1", "2", "9", "-1", "+3", "03", "3-", "3-4", "4-3", "3-4-5", "1-99999999", "1.1", "0.1", "1.0"),
    *("99999999999999999999", "9" * 5000, "²", "٣", "１", "Ⅷ", "1e3", "nan", " 3", "3 ", "a b", "a  b", "x" * 3000),
    *("SpaceAfter=No", "SpaceAfter", "SpaceAfter=No=No", "SpaceAfter=No|SpaceAfter=Yes", "|", "=", "#", "# text = x"),
    *('"', '""', '"a', 'a"b', ",", "'", "\\", "{", "{}", "[1]", "null", '{"text": "x"}', "\\ud83d", '\\"', "[" * 3000),
    *("\u200b", "\u200d", "\ufeff", "\u00a0", "\u3000", "\u00ad", "İ", "ß", "e\u0301", "\u0301", "ﬁ", "שלום", "漢字"),
    *("👩\u200d👧", "\U0010ffff", "\ue000", "\ufffd", "\u202e", "\x1f", "\x7f", "\x9f", "\x1b[31m"),
]
LINE_ENDS = [b"\r\n", b"\r", "\x85".encode(), "\u2028".encode(), "\u2029".encode(), b"\x0b", b"\x0c", b"\n\n", b" \n"]
ODD_BYTES = [
    b"\0",
    b"\xff",
    b"\xfe\xff",
    b"\xef\xbb\xbf",
    b"\xc3",
    b"\xe2\x82",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xc0\x80",
]


def _any_byte(data: bytes, a: int, b: int) -> bytes:
    at = a % (len(data) + 1)
    return data[:at] + bytes([b % 256]) + data[at + b // 256 % 2 :]


def _odd_bytes(data: bytes, a: int, b: int) -> bytes:
    at = a % (len(data) + 1)
    return data[:at] + ODD_BYTES[b % len(ODD_BYTES)] + data[at:]


def _without(data: bytes, a: int, b: int) -> bytes:
    at = a % (len(data) + 1)
    return data[:at] + data[at + 1 + b % 7 :]


def _cut(data: bytes, a: int, b: int) -> bytes:
    at = (a * (MOST + 1) + b) % (len(data) + 1)
    return data[:at]


def _any_character(data: bytes, a: int, b: int) -> bytes:
    at = a % (len(data) + 1)
    code = (a * 31 + b * 17) % 0x110000
    return data[:at] + chr(code).encode("utf-8", "surrogatepass") + data[at:]


def _other_digit(data: bytes, a: int, b: int) -> bytes:
    digits = [i for i, byte in enumerate(data) if 48 <= byte < 58]
    if not digits:
        return data
    at = digits[a % len(digits)]
    return data[:at] + b"%d" % (b % 10) + data[at + 1 :]


def _lines(change: Callable[[list[bytes], int, int], None]) -> Callable[[bytes, int, int], bytes]:
    def on_lines(data: bytes, a: int, b: int) -> bytes:
        lines = data.split(b"\n")
        change(lines, a % len(lines), b)
        return b"\n".join(lines)

    return on_lines


def _drop(lines: list[bytes], at: int, b: int) -> None:
    del lines[at : at + 1 + b % 3]


def _double(lines: list[bytes], at: int, b: int) -> None:
    lines.insert((at + b % 4) % (len(lines) + 1), lines[at])


def _swap(lines: list[bytes], at: int, b: int) -> None:
    other = b % len(lines)
    lines[at], lines[other] = lines[other], lines[at]


def _join(lines: list[bytes], at: int, b: int) -> None:
    lines[at : at + 2] = [(b"", b" ", b"\t", b",")[b % 4].join(lines[at : at + 2])]


def _end_otherwise(lines: list[bytes], at: int, b: int) -> None:
    lines[at : at + 2] = [LINE_ENDS[b % len(LINE_ENDS)].join(lines[at : at + 2])]


def _end_all_otherwise(data: bytes, a: int, b: int) -> bytes:
    del a
    return data.replace(b"\n", LINE_ENDS[b % len(LINE_ENDS)])


def _cells(change: Callable[[list[bytes], int, int], None]) -> Callable[[list[bytes], int, int], None]:
    def on_cells(lines: list[bytes], at: int, b: int) -> None:
        separator = b"\t" if b"\t" in lines[at] else b","
        cells = lines[at].split(separator)
        change(cells, b % len(cells), b // len(cells))
        lines[at] = separator.join(cells)

    return on_cells


def _odd_cell(cells: list[bytes], at: int, b: int) -> None:
    cells[at] = ODD_CELLS[b % len(ODD_CELLS)].encode()


def _odd_ending(cells: list[bytes], at: int, b: int) -> None:
    cells[at] += ODD_CELLS[b % len(ODD_CELLS)].encode()


def _no_cell(cells: list[bytes], at: int, b: int) -> None:
    del b, cells[at]


def _two_cells(cells: list[bytes], at: int, b: int) -> None:
    del b
    cells.insert(at, cells[at])


def _exchanged_cells(cells: list[bytes], at: int, b: int) -> None:
    other = b % len(cells)
    cells[at], cells[other] = cells[other], cells[at]


BLOWS: Sequence[Callable[[bytes, int, int], bytes]] = [
    *(_any_byte, _odd_bytes, _without, _cut, _any_character, _other_digit, _other_digit, _end_all_otherwise),
    *map(_lines, (_drop, _double, _swap, _join, _end_otherwise)),
    *(_lines(_cells(c)) for c in (_odd_cell, _odd_cell, _odd_ending, _no_cell, _two_cells, _exchanged_cells)),
]


def damaged(data: bytes, blows: Sequence[Blow]) -> bytes:
    """The data after these blows; not always broken."""
    for kind, a, b in blows:
        data = BLOWS[kind](data, a, b)
    return data


def blows(most: int = 4, least: int = 0) -> st.SearchStrategy[list[Blow]]:
    numbers = st.integers(0, MOST)
    return st.lists(st.tuples(st.integers(0, len(BLOWS) - 1), numbers, numbers), min_size=least, max_size=most)


def fuzzing(examples: int, share: float = 1.0) -> settings:
    """Few examples, a share of them where each takes long, or HEADLENS_FUZZ times so many for a long run."""
    times = os.environ.get("HEADLENS_FUZZ")
    return settings(
        max_examples=examples * int(times) if times else min(examples, int(share * settings().max_examples)),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
    )


# What an editor, another program or a joke puts in the place of a value.
ODD_VALUES: list[object] = [
    *(None, True, False, 0, -1, 1, 3.5, 1e400, -1e400, float("nan"), 10**9, 10**30, -(10**12), 99_999_999_999),
    *("", " ", "\0", "0", "12", "1.0", "nan", "x" * 3000, "\ud800", "../../etc/passwd", "/etc/passwd", "é漢👩"),
    *([], {}, [[]], [None], [1, "a"], {"": {}}, {"a": [1]}, [[[[[[[[1]]]]]]]], ["x"] * 500, list(range(50))),
]


def edited(content: Any, blows: Sequence[Blow]) -> Any:
    """A copy of the content of a JSON file with other values, keys or items in some places."""
    content = copy.deepcopy(content)
    for kind, a, b in blows:
        places = list(_places(content))
        if not places:
            break
        inside, key = places[a % len(places)]
        if kind % 5 == 0:
            del inside[key]
        elif kind % 5 == 1 and isinstance(inside, dict):
            inside[f"{key}x"] = inside.pop(key)
        elif kind % 5 == 2 and isinstance(inside[key], int | float) and not isinstance(inside[key], bool):
            inside[key] = (-inside[key], inside[key] * 1000, inside[key] + 1, str(inside[key]), inside[key] / 3)[b % 5]
        else:
            inside[key] = copy.deepcopy(ODD_VALUES[b % len(ODD_VALUES)])
    return content


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield content, key
        yield from islice(_places(value), 200)


def damaged_json(content: Any, blows: Sequence[Blow]) -> bytes:
    """A JSON file in which values are odd or, every third time, bytes."""
    whole = json.dumps(content, indent=2)
    if blows and blows[0][1] % 3 == 0:
        return damaged(whole.encode(), blows)
    return json.dumps(edited(content, blows)).encode()


def told(read: Callable[[], Any]) -> Any:
    """What a reader gives, or the message of its refusal, without much work; any other exception fails the test."""
    began = time.process_time()
    try:
        return read()
    except InputError as error:
        refused = error
    finally:
        assert time.process_time() - began < 10
    assert refused.message
    assert refused.advice
    assert len(str(refused)) < 3000
    return refused
