"""Run folders read back: `run.json` and the tables, with an error that says which file is wrong."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from headlens.errors import InputError, counted, read_errors, reason_of
from headlens.files import read_csv
from headlens.options import BETWEEN_WORDS
from headlens.runs.folder import FIGURES
from headlens.runs.run_record import RUN_FILE, read_record
from headlens.tables.every_table import word_columns
from headlens.tables.table_check import MEND

_FEW = 5  # runs that an error names


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
        arguments = mapping(self.record.get("arguments"))
        other, level = arguments.get("baseline_corpus"), str(arguments.get("level"))
        return titled_corpus(str(self.corpus.get("name") or ""), None if other is None else str(other), level)

    @property
    def mask_name(self) -> str:
        """Name of the mask that the models of the run were under; empty for models as they are."""
        return str(mapping(self.record.get("mask")).get("name") or "")

    @property
    def label_with_mask(self) -> str:
        """The label, with the mask behind it: a model with and without one has the same name."""
        return f"{self.label}, mask {self.mask_name}" if self.mask_name else self.label

    @property
    def models(self) -> list[str]:
        """Names of the models, as tables have them."""
        known = [str(m["model"]) for m in self.model_facts if m.get("model")]
        return known or [str(self.record.get("model_name") or self.record.get("model") or "unknown")]

    @property
    def model_facts(self) -> list[Mapping[str, Any]]:
        """What the run recorded of each of its models."""
        return [mapping(facts) for facts in _list(self.record.get("models"))]

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
        return next((facts for facts in self.model_facts if facts.get("model") == model), {})

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
            with read_errors(path, "cannot be read", MEND):
                tables[path.stem] = read_csv(path, word_columns(record.get("command"), path.stem))
            check_rows(path, len(tables[path.stem]), record)
        elif record.get("status") == "finished":
            raise InputError(f"{path} is missing, though {RUN_FILE} lists it.", MEND)
    return RecordedRun(folder, label, record, tables)


def tables_of(runs: Sequence[RecordedRun], name: str) -> list[tuple[RecordedRun, pd.DataFrame]]:
    """Returns every run that has rows in the table of that name, with the table."""
    return [(run, run.tables[name]) for run in runs if name in run.tables and len(run.tables[name])]


def run_label(run: RecordedRun, runs: Sequence[RecordedRun]) -> dict[str, Any]:
    """Returns the first cell of a row, the label of its run; nothing where there is only one run."""
    return {"run": run.label_with_mask} if len(runs) > 1 else {}


def labelled_records(
    runs: Sequence[RecordedRun], name: str, of: Callable[[pd.DataFrame], Iterable[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Returns what `of` makes of the table of that name of every run that has any, behind the `run_label`."""
    return [run_label(run, runs) | record for run, table in tables_of(runs, name) for record in of(table)]


def labelled_rows(runs: Sequence[RecordedRun], name: str) -> Iterator[tuple[dict[str, Any], dict[Hashable, Any]]]:
    """Yields the rows of the table of that name of every run that has any, each behind the `run_label` of its run."""
    for run, table in tables_of(runs, name):
        yield from ((run_label(run, runs), row) for row in table.to_dict("records"))


def titled_corpus(corpus: str, other: str | None, level: str) -> str:
    """Returns a corpus as titles name it, with the one that fixed offsets are from where that is another one.

    Behind it stands whether attention is `between words`, which the words of titles call tokens.
    """
    of_other = "" if other is None else f", fixed offsets of {Path(other).stem}"
    return f"{corpus}{of_other}{BETWEEN_WORDS * (level == 'word')}"


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
        inside = sorted(str(found.parent) for found in folder.glob(f"*/{RUN_FILE}"))
        advice = f"Runs in it: {', '.join([*inside[:_FEW], '…'] if len(inside) > _FEW else inside)}."
        advice = advice if inside else "Name a folder that a command of headlens wrote."
        raise InputError(f"{folder} holds no {RUN_FILE}: it is not a run folder.", advice) from problem
    except (OSError, ValueError) as problem:
        raise InputError(f"{path} cannot be read: {reason_of(problem)}.", MEND) from problem


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
            f"{path} has {counted(rows, 'row')}; {RUN_FILE} says {recorded}: it was truncated or changed.", MEND
        )


def rows_of_runs(runs: Sequence[RecordedRun], table: str) -> list[dict[str, Any]]:
    """Rows of a table of all runs that have it, each with the name of the run's folder."""
    return [
        {"folder": run.folder.name, **{str(k): v for k, v in row.items()}}
        for run in runs
        if table in run.tables
        for row in run.tables[table].to_dict("records")
    ]
