"""Run folders read back: `run.json` and the tables, with an error that says which file is wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from headlens.errors import InputError, counted, read_errors, reason_of
from headlens.files import csv_rows, read_csv
from headlens.heads import MOST_HEADS
from headlens.runs.folder import FIGURES
from headlens.runs.run_record import RUN_FILE, read_record

# Columns whose cells are words even where they look like numbers or truth values: a model may be called 12
WORDS = (
    "model", "stack", "role", "roles", "roles_by_weight", "nearest", "role_pruned", "relation", "direction", "offset",
    "rule", "other_rule", "target",
    "of", "scope", "task", "metric", "mode", "strategy", "removed", "run", "init", "checkpoint", "mask", "pattern",
    "parameter", "penalty_kind", "other_model", "quantity", "statistic",
)  # fmt: skip
_MEND = "Run the command again, or leave this run out."


@dataclass(frozen=True)
class Columns:
    """What the figures drawn from a table count on.

    Args:
        keys: columns of whole numbers from 0, such as layer and head.
        numbers: columns of finite numbers, which may be empty.
        words: columns of words, with the words that are allowed; none for any. Columns that are not declared
            here, and are not of words in every table (`WORDS`), hold either words or numbers and truth values.
        identity: columns that tell one row from another.
        together: groups of columns that tables of earlier versions do not have, each with all of its columns or none;
            of numbers, or of words that may be empty where they are declared among the words.
        counts: those of the numbers that are whole and not below 0.
        filled: those of the words that are never empty.
        optional: columns of numbers that may be missing.
        truths: columns of truth values, which may be empty.
        shares: those of the numbers that are not below 0 and not above 1.
        later_identity: columns of words that tell rows apart, too, and that tables of earlier versions do not have.
    """

    keys: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)
    identity: tuple[str, ...] = ()
    together: tuple[tuple[str, ...], ...] = ()
    counts: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    truths: tuple[str, ...] = ()
    shares: tuple[str, ...] = ()
    later_identity: tuple[str, ...] = ()

    def check(self, frame: pd.DataFrame, path: Path) -> None:
        """Checks the columns and cells of a table.

        Raises:
            InputError: if a column is missing or has a cell that cannot be meant, or a row is there twice; names the
                file, column and row.
        """
        later = {name for group in self.together for name in group}
        there = {name for group in self.together if {*group} & {*frame.columns} for name in group}
        words = {name: allowed for name, allowed in self.words.items() if name not in later or name in there}
        numbers = (*self.numbers, *(name for name in there if name not in words))
        needed = dict.fromkeys((*self.keys, *words, *numbers, *self.truths, *self.identity))
        missing = [name for name in needed if name not in frame]
        if missing:
            raise InputError(f"{path}: no column {', '.join(missing)}.", _MEND)
        self._check_numbers(frame, path, numbers)
        self._check_others(frame, path, words, later)
        identity = [*self.identity, *(name for name in self.later_identity if name in frame)]
        twice = np.flatnonzero(frame.duplicated(identity)) if self.identity else np.array([])
        if twice.size:
            row = int(twice[0])
            what = ", ".join(str(frame[name].iloc[row]) for name in identity)
            raise InputError(f"{path}:{_line(path, row)}: a row for {what} appears twice.", _MEND)

    def _check_numbers(self, frame: pd.DataFrame, path: Path, numbers: Sequence[str]) -> None:
        for name in (*self.keys, *numbers, *(name for name in self.optional if name in frame)):
            values = pd.to_numeric(frame[name], errors="coerce")
            wrong, expected = (values.isna() & frame[name].notna()) | np.isinf(values), "a finite number"
            if name in self.keys:
                wrong |= ~values.between(0, MOST_HEADS) | (values % 1 != 0)
                expected = f"a whole number from 0 to {MOST_HEADS}"
            elif name in self.counts:
                wrong |= (values < 0) | (values % 1 != 0) & values.notna()
                expected = "a whole number of at least 0"
            elif name in self.shares:
                wrong |= ~values.between(0, 1) & values.notna()
                expected = "a number from 0 to 1"
            _refuse(frame, name, wrong, expected, path)

    def _check_others(
        self, frame: pd.DataFrame, path: Path, words: Mapping[str, Sequence[str]], later: Collection[str]
    ) -> None:
        for name in self.filled:
            _refuse(frame, name, frame[name].isna(), "a word", path)
        for name, allowed in words.items():
            if allowed:
                wrong = ~frame[name].isin(allowed) & (frame[name].notna() if name in later else True)
                _refuse(frame, name, wrong, f"one of {', '.join(allowed)}", path)
        for name in frame.columns.difference([*WORDS, *self.words, *self.later_identity], sort=False):
            truth = frame[name].map(lambda cell: isinstance(cell, bool))
            if name in self.truths:
                _refuse(frame, name, frame[name].notna() & ~truth, "True or False", path)
            elif not pd.api.types.is_numeric_dtype(frame[name].dtype):
                # A column of words that somebody added is none of ours; numbers among words are damage.
                like = truth | pd.to_numeric(frame[name], errors="coerce").notna()
                like |= frame[name].isin(["True", "False"])
                _refuse(frame, name, frame[name].notna() & ~like & bool(like.any()), "a number or truth value", path)
            else:
                _refuse(frame, name, np.isinf(frame[name]), "a finite number", path)


def _refuse(frame: pd.DataFrame, name: str, wrong: pd.Series[bool], expected: str, path: Path) -> None:
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        cell = frame[name].iloc[row]
        content = "is empty" if pd.isna(cell) else f"holds {str(cell)[:60]!r}"
        raise InputError(f"{path}:{_line(path, row)}: column {name} {content}; expected {expected}.", _MEND)


def _line(path: Path, row: int) -> int:
    """Returns the line of a file where a row of its table begins; the first line has the names of the columns."""
    with contextlib.suppress(OSError, ValueError):
        return next(islice((line for line, _ in csv_rows(path)), row, None), row + 2)
    return row + 2


@dataclass(frozen=True)
class RecordedRun:
    """A run as it is recorded in its folder.

    Args:
        folder: the run folder.
        label: its name on a page with other runs.
        record: the content of `run.json`.
        tables: by name without `.csv`, in the order they were written.
    """

    folder: Path
    label: str
    record: Mapping[str, Any]
    tables: Mapping[str, pd.DataFrame]

    @property
    def command(self) -> str:
        """Name of the headlens command that wrote the run, or `unknown` where the record has none."""
        return str(self.record.get("command", "unknown"))

    @property
    def command_line(self) -> str:
        """The command as it was typed, quoted for a shell; empty where that is not known."""
        return str(self.record.get("command_line") or "")

    @property
    def status(self) -> str:
        """How the run ended; `running` also for a run that was killed."""
        return str(self.record.get("status", "unknown"))

    @property
    def finished(self) -> bool:
        """Whether the run completed, that is, ended with the status `finished`."""
        return self.status == "finished"

    @property
    def notes(self) -> list[str]:
        """Notes that the run recorded about its own numbers, as text."""
        return [str(note) for note in _list(self.record.get("notes"))]

    @property
    def corpus(self) -> Mapping[str, Any]:
        """Name and counts of the corpus; empty where the command has none."""
        return mapping(self.record.get("corpus"))

    @property
    def corpus_name(self) -> str:
        """Name of the corpus that the run read, as titles of figures have it; empty where it read none."""
        return str(self.corpus.get("name") or "")

    @property
    def models(self) -> list[str]:
        """Names of the models, as tables have them."""
        known = [str(m["model"]) for m in map(mapping, _list(self.record.get("models"))) if m.get("model")]
        return known or [str(self.record.get("model_name") or self.record.get("model") or "unknown")]

    def heads_removed(self, model: str) -> frozenset[str]:
        """Returns the names of the heads that a model of the run had lost before."""
        return frozenset(map(str, _list(self._model_facts(model).get("heads_removed"))))

    def weights_of(self, model: str) -> str:
        """Returns the hash of a model's weights; empty for a model that has none."""
        return str(self._model_facts(model).get("weight_hash") or "")

    def encoding_of(self, model: str) -> Mapping[str, Any]:
        """Returns the counts of what a model read of the corpus, such as `sentences`; empty where there are none."""
        return mapping(self._model_facts(model).get("encoding"))

    def _model_facts(self, model: str) -> Mapping[str, Any]:
        models = map(mapping, _list(self.record.get("models")))
        return next((facts for facts in models if facts.get("model") == model), {})

    @property
    def pictures(self) -> list[Path]:
        """The PNG files in the run's folder of figures, by name."""
        return sorted(p for p in (self.folder / FIGURES).glob("*.png") if p.is_file())

    def argument(self, name: str, default: Any) -> Any:
        """Returns the value that the run was given for an option."""
        return mapping(self.record.get("arguments")).get(name, default)


def read_recorded(folder: Path, label: str) -> RecordedRun:
    """Reads a run folder.

    A finished run has all the tables that its record lists; of another one, whatever is there is read.

    Raises:
        InputError: if the folder, its `run.json` or a table is missing or cannot be read.
    """
    record = _record(folder)
    names = [name for name in record.get("files", ()) if name.endswith(".csv") and Path(name).name == name]
    names += sorted(p.name for p in folder.glob("*.csv") if p.name not in names)
    tables = {}
    for path in (folder / name for name in names):
        if path.is_file():
            with read_errors(path, "cannot be read", _MEND):
                tables[path.stem] = read_csv(path, words=WORDS)
            check_rows(path, len(tables[path.stem]), record)
        elif record.get("status") == "finished":
            raise InputError(f"{path} is missing, though {RUN_FILE} lists it.", _MEND)
    return RecordedRun(folder, label, record, tables)


def tables_of(runs: Sequence[RecordedRun], name: str) -> list[tuple[RecordedRun, pd.DataFrame]]:
    """Returns every run that has rows in the table of that name, with the table."""
    return [(run, run.tables[name]) for run in runs if name in run.tables and len(run.tables[name])]


def run_label(run: RecordedRun, runs: Sequence[RecordedRun]) -> dict[str, Any]:
    """Returns the first cell of a row, the label of its run; nothing where there is only one run."""
    return {"run": run.label} if len(runs) > 1 else {}


def mapping(value: Any) -> Mapping[str, Any]:
    """Returns a value of `run.json` that should be an object; an empty mapping where it is none."""
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _record(folder: Path) -> dict[str, Any]:
    path = folder / RUN_FILE
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {what}; a run is a folder with {RUN_FILE}.", "Name the folder that --out gave.")
    try:
        return read_record(folder)
    except FileNotFoundError as problem:
        raise InputError(
            f"{folder} holds no {RUN_FILE}: it is not a run folder.", "Name a folder that a command of headlens wrote."
        ) from problem
    except (OSError, ValueError) as problem:
        raise InputError(f"{path} cannot be read: {reason_of(problem)}.", _MEND) from problem


def check_rows(path: Path, rows: int, record: Mapping[str, Any] | None) -> None:
    """Refuses a table that has another number of rows than its run wrote: whole lines may be cut off a file, too.

    Args:
        path: the table.
        rows: how many it has.
        record: the `run.json` beside it; None where there is none.

    Raises:
        InputError: naming both numbers.
    """
    recorded = mapping((record or {}).get("rows")).get(path.name, rows)
    if rows != recorded:
        raise InputError(
            f"{path} has {counted(rows, 'row')}; {RUN_FILE} says {recorded}: it was truncated or changed.", _MEND
        )


def rows_of_runs(runs: Sequence[RecordedRun], table: str) -> list[dict[str, Any]]:
    """Rows of a table of all runs that have it, each with the name of the run's folder."""
    return [
        {"folder": run.folder.name, **{str(k): v for k, v in row.items()}}
        for run in runs
        if table in run.tables
        for row in run.tables[table].to_dict("records")
    ]
