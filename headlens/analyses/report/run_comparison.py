"""What `run.json` says, run beside run: everything, and what differs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from headlens.pages.page_tables import Cell, PageTable, number_text, page_table
from headlens.runs.reading import RecordedRun

# shown elsewhere on the page, or about the folder and not about the numbers in it
_ELSEWHERE = ("command", "command_line", "model", "status", "files", "notes", "directory")
_PLACE = ("arguments.out", "arguments.overwrite", "arguments.place", "arguments.resume")
_MATTER = ("arguments", "models", "corpus", "versions", "platform", "git_commit", "weight_hash", "model_name")
_DETAIL = "corpus.relations"
_OPTION = "arguments."
_COUNTED = re.compile(r"^models\.\d+\.(encoding|annotation)\.")  # follows from corpus and model
Wanted = Callable[[str, Sequence[str]], bool]


def facts(runs: Sequence[RecordedRun]) -> PageTable:
    """Everything in the records, a row for each fact and a column for each run."""
    return _table("All that run.json records", runs)


def differences(runs: Sequence[RecordedRun]) -> PageTable:
    """What the runs do not share of their options, models, corpora and versions; options as they are typed.

    Of different commands only options count that two of the runs have.
    """
    several = len({run.command for run in runs}) > 1

    def differs(name: str, values: Sequence[str]) -> bool:
        matters = name.partition(".")[0] in _MATTER and not name.startswith((*_PLACE, _DETAIL))
        if several and name.startswith(_OPTION):
            values = [value for value in values if value]
        return matters and not _COUNTED.search(name) and len(set(values)) > 1

    return _table("Options, models, corpora, versions", runs, differs, _typed)


def counts(run: RecordedRun) -> str:
    """The corpus in a line: its name, sentences and words."""
    found = [f"{run.corpus[key]:,} {key}" for key in ("sentences", "words") if isinstance(run.corpus.get(key), int)]
    trees = run.corpus.get("trees")
    found += [f"{trees:,} trees"] if isinstance(trees, int) and trees else []
    name = run.corpus.get("name")
    return ": ".join(part for part in (str(name or ""), ", ".join(found)) if part)


def flatten(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every fact of a record under its path, `models.1.dtype`; lists of plain values and counts of words are one."""
    if name == _DETAIL and isinstance(value, Mapping):
        yield name, ", ".join(f"{key} {_text('', count)}" for key, count in value.items())
    elif isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from flatten(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for number, inner in enumerate(value, 1):
            yield from flatten(inner, f"{name}.{number}")
    else:
        yield name, _text(name, value)


def _typed(name: str) -> str:
    """Spells a recorded option as the command line does, `MODEL` or `--name`; other names stay unchanged."""
    option = name.removeprefix(_OPTION)
    if option == name:
        return name
    return "MODEL" if option in ("model", "models") else f"--{option.replace('_', '-')}"


def _table(
    title: str,
    runs: Sequence[RecordedRun],
    wanted: Wanted | None = None,
    spelled: Callable[[str], str] = lambda name: name,
) -> PageTable:
    records = [dict(run.record) | models for run, models in zip(runs, _paired([r.record for r in runs]), strict=True)]
    found = [{k: v for k, v in flatten(record) if k.partition(".")[0] not in _ELSEWHERE} for record in records]
    names = sorted({name for own in found for name in own}, key=_rank)
    rows = [(name, [own.get(name, "") for own in found]) for name in names]
    lines = [
        {"": spelled(name), **{run.label: Cell(value) for run, value in zip(runs, values, strict=True)}}
        for name, values in rows
        if wanted is None or wanted(name, values)
    ]
    return page_table(title, lines)


def _paired(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The models of every run by number, so that a model has the same number in the runs that have it.

    Others fill the numbers that are left in their run, in their order.
    """
    numbers: dict[str, int] = {}
    found: list[dict[str, Any]] = []
    for record in records:
        models = record.get("models")
        if not isinstance(models, list) or not all(isinstance(model, Mapping) for model in models):
            found.append({})
            continue
        own: dict[int, Any] = {}
        # the known ones first: nobody takes their number
        for model in sorted(models, key=lambda model: str(model.get("model")) not in numbers):
            free = next(number for number in count(1) if number not in own)
            number = numbers.setdefault(str(model.get("model")), free)
            own[free if number in own else number] = model
        found.append({"models": {str(number): own[number] for number in sorted(own)}})
    return found


def _rank(name: str) -> tuple[int, int, str]:
    """Short facts about the run first, then its arguments, models, corpus and versions."""
    groups = ("arguments", "models", "corpus", "versions")
    first = name.partition(".")[0]
    return (groups.index(first) + 1 if first in groups else 0), int(name == _DETAIL), name


def _text(name: str, value: Any) -> str:
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "peak_memory_bytes" and isinstance(value, int):
        return f"{value / 1e6:,.0f} MB"
    if name == "wall_time_s" and isinstance(value, int | float):
        return f"{value:,.1f} s"
    if isinstance(value, float):
        return number_text(value) if abs(value) < 1e-3 else f"{value:g}"
    if isinstance(value, list):
        return ", ".join(_text("", item) for item in value) or "—"
    return str(value) if not isinstance(value, Mapping) else "—"
