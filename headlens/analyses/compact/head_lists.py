"""Lists of heads to cut out, as tables of other commands and plain files hold them."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from headlens.errors import OptionError, read_errors
from headlens.files import csv_rows
from headlens.heads import KEY_COLUMNS, Head
from headlens.option_values import text_of_file
from headlens.runs.reading import check_rows
from headlens.runs.run_record import read_run
from headlens.statistics.non_inferiority import NOT_NEEDED
from headlens.tasks.task_options import LOWER_IS_BETTER

REMOVED = "removed"
_TELLING = (
    "model",
    "task",
    "run",
    "strategy",
    "control_of",
    "seed",
    "n_pruned",
)  # columns that tell the rows of a table apart
_TAKEN = (
    "Give a pruning.csv of headlens ablate --prune, a list of heads, or with --heads NUMBER an ablation.csv that ranks "
    "them."
)
_YES, _NO = ("true", "1", "yes"), ("false", "0", "no", "")
Row = dict[str, str]


def table_of(path: Path, columns: Sequence[str]) -> Path:
    """The file itself, or of a run folder the only table with these columns.

    Raises:
        OptionError: if there is none in a folder, or there are several.
    """
    if not path.is_dir():
        return path
    fitting = [file for file in sorted(path.glob("*.csv")) if table_with(columns, file) is not None]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = ", ".join(file.name for file in fitting)
        raise OptionError(f"--from: {path} is a folder with several such tables.", f"Name one of them: {names}.")
    missing = ", ".join(columns)
    raise OptionError(f"--from: {path} is a folder without a table of heads that has {missing}.", _advice(path))


def _advice(folder: Path, ranking: Path | None = None) -> str:
    """What to give instead of the folder of a run, or of a table in it that may rank heads but lists none."""
    if (sweep := folder / "sweep.csv").is_file():
        return f"{sweep} lists heads; the models of prune, in {folder / 'models'}, have lost theirs already."
    if (ranking := ranking or folder / "ablation.csv").is_file():
        return (
            f"To cut out the least important heads of {ranking}, say how many with --heads NUMBER. headlens ablate "
            "--prune writes a pruning.csv, which lists heads."
        )
    return _TAKEN


def read_heads(path: Path, where: Sequence[str] = ()) -> list[Head]:
    """The heads that a file says are removed.

    Args:
        path: a table with a column `removed` that lists heads (`pruning.csv`) or says yes or no of the head that the
            columns stack, layer and head name; or a plain list of heads, with `#` before remarks; or the folder of a
            run with one such table.
        where: of a table, which rows count: `COLUMN=VALUE`, all of them.

    Raises:
        OptionError: if it cannot be read, names no head, or has rows that name different heads.
    """
    path = table_of(path, (REMOVED,))
    if (rows := table_with((REMOVED,), path)) is not None:
        heads = _of_table(path, rows, where)
    elif where:
        raise OptionError(f"--where: {path} has no column {REMOVED!r}.", "Leave --where out for a plain list.")
    else:
        heads = listed_heads(path)
    if not heads:
        write = "Write one on each line, such as encoder.3.1."
        advice = write if rows is None else "None was removed there: name another row with --where, or another file."
        raise OptionError(f"--from: {path} names no head.", advice)
    return list(dict.fromkeys(heads))


def _lines(path: Path) -> list[str]:
    return text_of_file(path, "--from", _TAKEN).lstrip("\ufeff").splitlines()


def table_with(columns: Sequence[str], path: Path) -> list[tuple[int, Row]] | None:
    """The rows of a table with their numbers; None for a file whose first line does not have these columns.

    Raises:
        OptionError: if it cannot be read, or is not as long as its run says.
    """
    lines = _lines(path)
    first = next(csv.reader(lines[:1]), []) if lines and len(lines[0]) < csv.field_size_limit() else []
    if not set(columns) <= set(first):
        return None
    with read_errors(f"--from: {path}", "cannot be read", "Give a complete table.", OptionError):
        rows = list(csv_rows(path))
    check_rows(path, len(rows), read_run(path.parent))
    return rows


def listed_heads(path: Path) -> list[Head]:
    """The heads of a plain list in its order, with `#` before remarks.

    Raises:
        OptionError: if it cannot be read, is a table, or a word in it is no head.
    """
    if path.suffix == ".csv" and len(columns := next(iter(_lines(path)), "").split(",")) > 1 and "." not in columns[0]:
        ranking = path if set(KEY_COLUMNS) <= set(columns) else None
        raise OptionError(f"--from: {path} is a table that lists no heads.", _advice(path.parent, ranking))
    numbered = ((n, re.split(r"[\s,;]+", line.partition("#")[0])) for n, line in enumerate(_lines(path), 1))
    return [head_of_line(path, number, name) for number, names in numbered for name in names if name]


def matching_rows(path: Path, rows: Sequence[tuple[int, Row]], where: Sequence[str]) -> list[tuple[int, Row]]:
    """The rows that hold all of the conditions `COLUMN=VALUE`.

    Raises:
        OptionError: if there is none, or a condition is none on a column of the table.
    """
    matching = [(number, row) for number, row in rows if all(_holds(path, row, w) for w in where)]
    if not matching:
        raise OptionError(
            f"--from: {path} has no row{' with ' + ', '.join(where) if where else 's'}.", "Check the table."
        )
    return matching


def _of_table(path: Path, rows: Sequence[tuple[int, Row]], where: Sequence[str]) -> list[Head]:
    numbered = matching_rows(path, rows, where)
    if set(KEY_COLUMNS) <= set(rows[0][1]):
        gone = [(number, row) for number, row in numbered if _is_removed(path, number, row)]
        return [head_of_line(path, number, ".".join(row[k] for k in KEY_COLUMNS)) for number, row in gone]
    lists = [[head_of_line(path, number, name) for name in row[REMOVED].split()] for number, row in numbered]
    if len({frozenset(heads) for heads in lists}) > 1:
        chosen = [row for _, row in numbered]
        telling = [c for c in _TELLING if c in chosen[0] and len({row[c] for row in chosen}) > 1]
        best = _best_set(chosen)
        example = ",".join(f"{c}={best[c]}" for c in telling if best[c]) or "COLUMN=VALUE"
        raise OptionError(
            f"--from: {path} has {len(chosen)} rows that name different heads.",
            f"Choose one, such as --where {example}.",
        )
    return lists[0]


def _best_set(rows: Sequence[Row]) -> Row:
    """The row of the most heads that a task does not need; where that is shown of none, of the best metric.

    Random sets, which have a seed or belong to another strategy, are asked last, and so is the whole model.
    """

    def order(place: int) -> tuple[bool, bool, float, int]:
        row = rows[place]
        chosen = bool(row[REMOVED].strip()) and not (row.get("seed") or row.get("control_of"))
        spared = row.get("verdict") == NOT_NEEDED
        number = _number(row.get("n_pruned")) if spared else _number(row.get("value"))
        return chosen, spared, -number if not spared and row.get("metric") in LOWER_IS_BETTER else number, place

    return rows[max(range(len(rows)), key=order)]


def _number(cell: str | None) -> float:
    with suppress(TypeError, ValueError):
        return float(cell or 0)
    return 0.0


def _holds(path: Path, row: Row, condition: str) -> bool:
    column, equals, value = (part.strip() for part in condition.partition("="))
    if not equals or column not in row:
        missing, unclear = f"{condition}: {path} has no column {column!r}", f"{condition!r} is not a condition"
        advice = f"Write COLUMN=VALUE; columns: {', '.join(row)}."
        raise OptionError(f"--where {missing if equals else unclear}.", advice)
    # Beyond all floats every number is infinite, so that digits alone tell them apart.
    with suppress(ValueError):
        return row[column] == value or (math.isfinite(float(value)) and float(row[column]) == float(value))
    return False


def _is_removed(path: Path, number: int, row: Row) -> bool:
    answer = row[REMOVED].strip().lower()
    if answer not in (*_YES, *_NO):
        raise OptionError(f"--from: {path}:{number}: removed is {answer!r}.", "Write True or False.")
    return answer in _YES


def head_of_line(path: Path, number: int, name: str) -> Head:
    """The head of a name in a file.

    Raises:
        OptionError: if it is none, with the line.
    """
    try:
        return Head.parse(name)
    except OptionError as error:
        raise OptionError(f"--from: {path}:{number}: {error.message}", error.advice) from error
