"""`compact_model` with everything around it: a model by name, heads from a list, a folder with the smaller model."""

from __future__ import annotations

import copy
import csv
import math
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from transformers import PreTrainedModel

from headlens.analyses.compact.analysis import (
    Difference,
    Inputs,
    Size,
    compact_table,
    difference_to_masked,
    model_inputs,
    seconds_per_forward,
)
from headlens.analyses.compact.options import CompactRequest
from headlens.corpora.encoded_corpus import EncodingCounts
from headlens.corpora.sentence import summarise
from headlens.corpora.sources import open_corpus, refuse_unused
from headlens.errors import OptionError, OutputError, counted, read_errors
from headlens.files import csv_rows, output_errors
from headlens.heads import KEY_COLUMNS, Head, parse_heads
from headlens.interventions.compacting import Compaction, compact_model, refilled, save_compacted
from headlens.models.loading import LoadedModel, load, quiet
from headlens.runs.model_record import model_record
from headlens.runs.progress import Reporter
from headlens.runs.reading import check_rows
from headlens.runs.run import Run, open_run
from headlens.runs.run_record import read_run
from headlens.weights.head_map import FILE

_CONFIG = "config.json"
REMOVED = "removed"
_YES, _NO = ("true", "1", "yes"), ("false", "0", "no", "")
Row = dict[str, str]


@dataclass(frozen=True)
class CompactRun:
    """What a run gave: the folder with the model, the table as written, what to know about it."""

    folder: Path
    files: list[Path]
    table: pd.DataFrame
    compaction: Compaction
    difference: Difference
    notes: list[str]

    def summary(self) -> dict[str, Any]:
        """Returns the run as JSON values: removed and masked heads, differences of outputs, sizes and notes."""
        return {
            "out": str(self.folder),
            "cut": [str(h) for h in self.compaction.cut],
            "masked": [str(h) for h in self.compaction.masked],
            "difference": asdict(self.difference),
            "states": self.table.to_dict("records"),
            "notes": self.notes,
        }


def chosen_heads(request: CompactRequest) -> list[Head]:
    """The heads to remove.

    Raises:
        OptionError: if there are none, or what names them cannot be read.
    """
    if request.from_file is not None and request.heads:
        raise OptionError("--heads and --from cannot be combined.", "Give one of them.")
    if request.from_file is not None:
        return read_heads(request.from_file, request.where)
    if request.where:
        raise OptionError("--where selects rows of a table, but no table is given.", "Name the table with --from.")
    if not request.heads:
        raise OptionError(
            "No heads to cut out were given.", "Name them with --heads encoder.3.1,encoder.4.0 or --from FILE."
        )
    return parse_heads(request.heads)


def run_compact(request: CompactRequest, reporter: Reporter | None = None) -> CompactRun:
    """Cut the heads out, save the model, read it again, compare it with the masked one, write the folder.

    Raises:
        InputError: whatever is wrong with what was asked for; no half of a model is left.
        SelfCheckError: if the smaller model computes something else than the masked one; it is not written then.
    """
    heads = chosen_heads(request)
    refuse_unused(request.corpus_options, request.corpus, request.corpus_options.target)
    _refuse_models_folder(request)
    with open_run("compact", request.model, request, reporter) as run:
        loaded = run.load(request.model, request.model_options)
        with run.reporter.status("cutting heads out"):
            small = copy.deepcopy(loaded.model)
            done = compact_model(small, heads)
            small = refilled(small) if request.stock else small
        corpus, counts = open_corpus(request.corpus, request.corpus_options), EncodingCounts()
        with run.reporter.progress(f"reading {corpus.name}", None) as advance:
            summary = summarise(corpus, advance)
        inputs = model_inputs(loaded, corpus, request.measure.batch_tokens, counts)
        with _saved(run, loaded, small) as folder:
            difference, table = _compared(request, run, loaded, folder, inputs, done)
            if run.folder is not None:
                _move(run, folder)
        notes = _notes(request, loaded, done, counts) + run.warnings
        if run.folder is not None:
            run.folder.table("compact", table)
            facts = model_record(loaded, loaded.short_name) | {"encoding": asdict(counts)}
            removed = {"removed": [str(h) for h in done.heads.removed], "self_check": asdict(difference)}
            run.folder.finish({"models": [facts], "corpus": asdict(summary), **removed, "notes": notes})
        return CompactRun(run.path, run.files, table, done, difference, notes)


def _refuse_models_folder(request: CompactRequest) -> None:
    """Never write into the folder of a model, that of the original least of all."""
    out = request.place.out
    if out is None or not (out / _CONFIG).is_file() or request.place.resume:
        return
    if out.resolve() == Path(request.model).expanduser().resolve():
        raise OptionError(f"--out {out} is the folder of the model itself.", "Name another folder.")
    if not (out / FILE).is_file() and not (out / "run.json").is_file():
        raise OutputError(f"{out} holds a model already.", "Name another folder with --out.")


def _compared(
    request: CompactRequest, run: Run, loaded: LoadedModel, folder: Path, inputs: Sequence[Inputs], done: Compaction
) -> tuple[Difference, pd.DataFrame]:
    """What was saved, read again, beside the masked model and the original."""
    # What was saved is loaded as the original was.
    kind: Any = str(loaded.model.dtype).removeprefix("torch.")
    small = load(str(folder), replace(request.model_options, dtype=kind, revision=None, offline=True))
    with run.reporter.status("comparing with the masked model"):
        difference = difference_to_masked(loaded.model, small.model, done.heads.removed, inputs)
    difference.check()
    rounds = request.measure.rounds
    with run.reporter.progress("timing", rounds + 1) as advance:
        seconds = seconds_per_forward([loaded.model, small.model], inputs, rounds, advance)
    sizes = [Size.of(loaded.model), Size.of(small.model)]
    states = ["original", "stock" if request.stock else "compacted"]
    return difference, compact_table(loaded.short_name, states, sizes, seconds)


@contextmanager
def _saved(run: Run, loaded: LoadedModel, small: PreTrainedModel) -> Iterator[Path]:
    """A folder with the smaller model, for as long as it is looked at."""
    folder = run.kept(f".saving-{run.processes.rank}")
    try:
        with run.reporter.status("saving"), output_errors(run.path), quiet():
            shutil.rmtree(folder, ignore_errors=True)
            save_compacted(small, folder)
            if loaded.tokenizer is not None:
                loaded.tokenizer.save_pretrained(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _move(run: Run, folder: Path) -> None:
    """The files of the model to the run folder; the configuration last, for without it there is no model."""
    files = sorted((f for f in folder.iterdir() if f.is_file()), key=lambda f: (f.name == _CONFIG, f.name))
    for file in files:
        with run.file(file.name) as path:
            shutil.move(file, path)


def _notes(request: CompactRequest, loaded: LoadedModel, done: Compaction, counts: EncodingCounts) -> list[str]:
    notes = []
    if done.masked:
        names = " ".join(map(str, done.masked))
        whose = "its" if len(done.masked) == 1 else "their"
        notes.append(
            f"{counted(len(done.masked), 'head')} only masked, because other layers need the same weights; "
            f"headlens.load keeps {whose} output at zero: {names}."
        )
    if done.again:
        notes.append(f"{counted(len(done.again), 'head')} had already been removed.")
    if not request.stock:
        notes.append(
            f"Plain from_pretrained cannot read the folder: load it with headlens.load, or write one that it reads "
            f"with --stock. Heads keep the numbers of the original; {FILE} lists those that are left."
        )
    emptied = [f"{s.stack}.{s.layer}" for s in done.heads.sites if not s.left]
    if "decoder.0" in emptied and not request.stock:
        notes.append(
            "decoder.0 has no heads left, so the length of a key-value cache cannot be determined: use_cache is off "
            "and generation is slower."
        )
    if loaded.model.config.is_encoder_decoder and request.corpus_options.target is None:
        notes.append("The corpus has no target side: the decoder read the source for the comparison.")
    if counts.too_long:
        notes.append(f"{counted(counts.too_long, 'sentence')} too long for the model left out of the comparison.")
    return notes


def read_heads(path: Path, where: Sequence[str] = ()) -> list[Head]:
    """The heads that a file says are removed.

    Args:
        path: a table with a column `removed` that lists heads (`pruning.csv`) or says yes or no of the head that the
            columns stack, layer and head name; or a plain list of heads, with `#` before remarks.
        where: of a table, which rows count: `COLUMN=VALUE`, all of them.

    Raises:
        OptionError: if it cannot be read, names no head, or has rows that name different heads.
    """
    try:
        lines = path.read_bytes().decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else f"cannot be read: {error.strerror}"
        raise OptionError(f"--from: {path} {reason}.", "Give a pruning.csv, or a list of heads.") from error
    columns = next(csv.reader(lines[:1]), []) if lines and len(lines[0]) < csv.field_size_limit() else []
    if REMOVED in columns:
        with read_errors(f"--from: {path}", "cannot be read", "Give a complete table.", OptionError):
            rows = list(csv_rows(path))
        check_rows(path, len(rows), read_run(path.parent))
        heads = _of_table(path, rows, where)
    elif where:
        raise OptionError(f"--where: {path} has no column {REMOVED!r}.", "Leave --where out for a plain list.")
    else:
        named = ((number, re.split(r"[\s,;]+", line.partition("#")[0])) for number, line in enumerate(lines, 1))
        heads = [_head(path, number, name) for number, names in named for name in names if name]
    if not heads:
        raise OptionError(f"--from: {path} names no head.", "Write one on each line, such as encoder.3.1.")
    return list(dict.fromkeys(heads))


def _of_table(path: Path, rows: Sequence[tuple[int, Row]], where: Sequence[str]) -> list[Head]:
    numbered = [(number, row) for number, row in rows if all(_holds(path, row, w) for w in where)]
    if not numbered:
        raise OptionError(
            f"--from: {path} has no row{' with ' + ', '.join(where) if where else 's'}.", "Check the table."
        )
    if set(KEY_COLUMNS) <= set(rows[0][1]):
        return [
            _head(path, number, ".".join(row[k] for k in KEY_COLUMNS))
            for number, row in numbered
            if _is_removed(path, number, row)
        ]
    lists = [[_head(path, number, name) for name in row[REMOVED].split()] for number, row in numbered]
    if len({frozenset(heads) for heads in lists}) > 1:
        raise _ambiguous(path, [row for _, row in numbered])
    return lists[0]


def _holds(path: Path, row: Row, condition: str) -> bool:
    column, equals, value = (part.strip() for part in condition.partition("="))
    if not equals or column not in row:
        raise OptionError(
            f"--where {condition}: {path} has no column {column!r}."
            if equals
            else f"--where {condition!r} is not a condition.",
            f"Write COLUMN=VALUE; columns: {', '.join(row)}.",
        )
    try:
        number = float(value)
        # Beyond all floats every number is infinite, so that digits alone tell them apart.
        return row[column] == value or (math.isfinite(number) and float(row[column]) == number)
    except ValueError:
        return row[column] == value


def _is_removed(path: Path, number: int, row: Row) -> bool:
    answer = row[REMOVED].strip().lower()
    if answer not in (*_YES, *_NO):
        raise OptionError(f"--from: {path}:{number}: removed is {answer!r}.", "Write True or False.")
    return answer in _YES


def _head(path: Path, number: int, name: str) -> Head:
    try:
        return Head.parse(name)
    except OptionError as error:
        raise OptionError(f"--from: {path}:{number}: {error.message}", error.advice) from error


def _ambiguous(path: Path, rows: Sequence[Row]) -> OptionError:
    telling = ("model", "task", "strategy", "seed", "n_pruned")
    several = [c for c in telling if c in rows[0] and len({r[c] for r in rows}) > 1]
    example = ",".join(f"{c}={rows[-1][c]}" for c in several) or "COLUMN=VALUE"
    return OptionError(
        f"--from: {path} has {len(rows)} rows that name different heads.", f"Choose one, such as --where {example}."
    )
