"""The records of `run.json`, run beside run: all facts, and those that differ."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from headlens.pages.page_tables import Cell, PageTable, number_text, page_table
from headlens.runs.reading import RecordedRun

# Facts that the page shows elsewhere, or that are about the folder and not about the numbers in it.
_ELSEWHERE = ("command", "command_line", "model", "status", "files", "notes", "directory")
_PLACE = ("arguments.out", "arguments.overwrite", "arguments.place", "arguments.resume")
_MATTER = ("arguments", "models", "corpus", "versions", "platform", "git_commit", "weight_hash", "model_name")
_DETAIL = "corpus.relations"
_OPTION = "arguments."
_COUNTED = re.compile(r"^models\.\d+\.(encoding|annotation)\.")  # counts that follow from corpus and model


def facts(runs: Sequence[RecordedRun]) -> PageTable:
    """Returns all that the records hold, a row for each fact and a column for each run."""
    return _table("All that run.json records", runs, _values(runs).items())


def differences(runs: Sequence[RecordedRun]) -> PageTable:
    """Returns the options, models, corpora and versions that the runs do not share; options as they are typed.

    Of different commands only options count that two of the runs have.
    """
    several = len({run.command for run in runs}) > 1
    rows = []
    for name, values in _values(runs).items():
        is_option = name.startswith(_OPTION)
        matters = name.partition(".")[0] in _MATTER and not name.startswith((*_PLACE, _DETAIL))
        if matters and not _COUNTED.search(name) and len({v for v in values if v or not (several and is_option)}) > 1:
            option = name.removeprefix(_OPTION)
            typed = "MODEL" if option in ("model", "models") else f"--{option.replace('_', '-')}"
            rows.append((typed if is_option else name, values))
    return _table("Options, models, corpora, versions", runs, rows)


def counts(run: RecordedRun) -> str:
    """Describes the corpus in a line: its name, sentences and words."""
    sizes = {key: run.corpus.get(key) for key in ("sentences", "words", "trees")}
    # A corpus without trees has none to be counted.
    texts = [f"{n:,} {key}" for key, n in sizes.items() if isinstance(n, int) and (n or key != "trees")]
    return ": ".join(part for part in (run.corpus_name, ", ".join(texts)) if part)


def flatten(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yields every fact of a record with its path, `models.1.dtype`; a list of plain values is one fact."""
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


def _values(runs: Sequence[RecordedRun]) -> dict[str, list[str]]:
    """Returns every fact that a record holds with its value in every run, empty where a run has none."""
    records = [dict(run.record) | models for run, models in zip(runs, _paired([r.record for r in runs]), strict=True)]
    facts = [{k: v for k, v in flatten(record) if k.partition(".")[0] not in _ELSEWHERE} for record in records]
    names = sorted({name for run_facts in facts for name in run_facts}, key=_rank)
    return {name: [run_facts.get(name, "") for run_facts in facts] for name in names}


def _table(title: str, runs: Sequence[RecordedRun], rows: Iterable[tuple[str, Sequence[str]]]) -> PageTable:
    labels = [run.label for run in runs]
    records = [{"": name} | dict(zip(labels, map(Cell, values), strict=True)) for name, values in rows]
    return page_table(title, records)


def _paired(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Numbers the models of every run, so that a model has the same number in all runs that have it.

    Others fill the numbers that are left in their run, in their order.
    """
    numbers: dict[str, int] = {}
    paired: list[dict[str, Any]] = []
    for record in records:
        models = record.get("models")
        if not isinstance(models, list) or not all(isinstance(model, Mapping) for model in models):
            paired.append({})
            continue
        by_number: dict[int, Any] = {}
        # Known models come first, so that no other takes their number.
        for model in sorted(models, key=lambda model: str(model.get("model")) not in numbers):
            free = next(number for number in count(1) if number not in by_number)
            number = numbers.setdefault(str(model.get("model")), free)
            by_number[free if number in by_number else number] = model
        paired.append({"models": {str(number): by_number[number] for number in sorted(by_number)}})
    return paired


def _rank(name: str) -> tuple[int, int, str]:
    """Sort key of a fact: short facts about the run first, then its arguments, models, corpus and versions."""
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
        # What was typed stays as it was typed.
        return number_text(value) if abs(value) < 1e-3 else f"{value:{'' if name.startswith(_OPTION) else '.4'}g}"
    if isinstance(value, list):
        return ", ".join(_text("", item) for item in value) or "—"
    return str(value) if not isinstance(value, Mapping) else "—"
