"""One self-contained HTML page about one run or several: no other file and no network is needed to read it.

It has the runs' pictures as data URIs, and what `run.json` says of them side by side: all facts, and those that differ.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from PIL import Image

from headlens.analyses.report.registry import findings_of_run, report_of, report_of_run
from headlens.findings.before_after import pruned_findings, pruned_pairs
from headlens.pages.attention_page import attention_data, view_script, view_style
from headlens.pages.command_report import Caption
from headlens.pages.formatting import number_text
from headlens.pages.head_cards import head_page
from headlens.pages.page_tables import MOST_CELLS, Cell, PageTable, csv_table, page_table
from headlens.pages.self_contained import LARGE_PAGE, script_data, self_contained_page, template_part
from headlens.plots.export import DPI
from headlens.runs.reading import RecordedRun

_HERE = "headlens.analyses.report"
# Facts that the page shows elsewhere, or that are about the folder and not about the numbers in it.
_ELSEWHERE = ("command", "command_line", "model", "status", "files", "notes", "directory")
_PLACE = ("arguments.out", "arguments.overwrite", "arguments.place", "arguments.resume")
_MATTER = ("arguments", "models", "corpus", "versions", "platform", "git_commit", "weight_hash", "model_name")
_DETAIL = "corpus.relations"
_OPTION = "arguments."
_COUNTED = re.compile(r"^models\.\d+\.(encoding|annotation)\.")  # counts that follow from corpus and model
_PNG_END = b"\0\0\0\0IEND\xaeB`\x82"
_LONGEST_WEBP = 16_383  # pixels
_CSS_PIXELS = 114  # of an inch of a figure: somewhat larger than in print


@dataclass(frozen=True)
class Picture:
    """A picture on a page.

    Args:
        name: name of the figure.
        run: label of the run.
        uri: the file as a data URI.
        width: CSS pixels.
        height: CSS pixels.
    """

    name: str
    run: str
    uri: str
    width: int
    height: int

    @property
    def inches(self) -> float:
        """Width of the figure in inches, converted from its width in CSS pixels."""
        return self.width / _CSS_PIXELS


def picture(path: Path, name: str, run: str) -> Picture | None:
    """Reads a PNG file for a page, under the name of its figure and its run; None for what is not a whole one.

    The page has it as WebP without loss, which is a third of the size, unless it is too large for that.
    """
    kind, data = "png", path.read_bytes()
    if not data.endswith(_PNG_END):
        return None
    try:
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            image.load()
            if max(image.size) <= _LONGEST_WEBP:
                image.save(packed := io.BytesIO(), "webp", lossless=True)
                kind, data = "webp", packed.getvalue()
            width, height = (round(side * _CSS_PIXELS / DPI) for side in image.size)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None
    uri = f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
    return Picture(name, run, uri, width, height)


@dataclass(frozen=True)
class RunSection:
    """The part of a run that a page shows.

    Args:
        run: its record and tables.
        pictures: its figures.
        remarks: warnings to the reader, such as that the run was interrupted.
        undrawn: names of the figures for which its tables have no numbers.
    """

    run: RecordedRun
    pictures: Sequence[Picture]
    remarks: Sequence[str] = ()
    undrawn: Sequence[str] = ()


def render(sections: Sequence[RunSection]) -> str:
    """Returns the page as HTML; the same runs give the same bytes."""
    runs = [section.run for section in sections]
    several = len(runs) > 1
    most_cells = max(2_000, MOST_CELLS // len(runs))
    tables: list[PageTable] = []
    for run in runs:
        of_run = f" of {run.label}" if several else ""
        sorted_by = report_of(run.command).first
        for name, frame in run.tables.items():
            file = f"{name}.csv"
            tables.append(csv_table(frame, file + of_run, file, sorted_by.get(name, ""), most_cells).narrowed())
    undrawn = [
        report_of_run(section.run).caption(name).title + (f" ({section.run.label})" if several else "")
        for section in sections
        for name in section.undrawn
    ]
    facts_of_heads = [(run.label_with_mask, report_of(run.command).heads(run)) for run in runs]
    findings = [(run.label_with_mask, findings_of_run(run.command, run)) for run in runs]
    pruned = pruned_pairs(runs)
    heads = head_page(facts_of_heads, pruned, [sentence for _, texts in findings for sentence in texts])
    findings += [(f"{pair.before}, pruned to {pair.after}", pruned_findings(pair)) for pair in pruned]
    views = [(run.label_with_mask, view) for run in runs if (view := report_of_run(run).attention(run)) is not None]
    room = LARGE_PAGE // max(1, len(views))
    return self_contained_page(
        _HERE,
        "report.html",
        style=view_style() + template_part(_HERE, "report.css"),
        script=view_script() + template_part(_HERE, "report.js") + template_part(_HERE, "heads.js"),
        command="report",
        title="Attention heads: " + ", ".join(r.label for r in runs) if several else " and ".join(runs[0].models),
        sections=sections,
        counts=counts,
        findings=[(label, sentences) for label, sentences in findings if sentences],
        heads=script_data(heads) if heads else None,
        attention=[(label, script_data(attention_data(view, room))) for label, view in views],
        overviews=[table.narrowed() for table in overviews(runs)],
        figures=_figures(sections),
        undrawn=undrawn,
        tables=tables,
        differences=differences(runs) if several else None,
        facts=facts(runs),
        several=several,
        wide=several,
    )


def overviews(runs: Sequence[RecordedRun]) -> list[PageTable]:
    """Returns the short tables of all commands, which are read first."""
    by_command = {run.command: [r for r in runs if r.command == run.command] for run in runs}
    return [table for command, of_command in by_command.items() for table in report_of(command).overviews(of_command)]


def _figures(sections: Sequence[RunSection]) -> list[dict[str, Any]]:
    """Figures in the order of the runs that have them, those of one name together, those of one caption in a group.

    A group has the `caption`, the `pictures` of every run, and in their order the `sources`, names of the files that
    they are drawn from, and the `commands`, the command lines of the runs as far as they are known.
    """
    groups: dict[tuple[str, Caption], dict[str, Any]] = {}
    command_lines = {section.run.label: section.run.command_line for section in sections}
    for section in sections:
        report = report_of_run(section.run)
        for picture in section.pictures:
            caption = report.caption(picture.name)
            made = {"caption": caption, "pictures": [], "sources": {}}
            group = groups.setdefault((section.run.command, caption), made)
            group["pictures"].append(picture)
            group["sources"] |= dict.fromkeys(f"{name}.csv" for name in report.drawn_from(picture.name))
    for group in groups.values():
        pictures = group["pictures"]
        by_name = {name: [p for p in pictures if p.name == name] for name in (p.name for p in pictures)}
        group["pictures"] = [*chain(*by_name.values())]
        typed = (command_lines.get(picture.run) for picture in group["pictures"])
        group["commands"] = dict.fromkeys(filter(None, typed))
    return list(groups.values())


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
        option = name.removeprefix(_OPTION) if name.startswith(_OPTION) else ""
        matters = name.partition(".")[0] in _MATTER and not name.startswith((*_PLACE, _DETAIL))
        if matters and not _COUNTED.search(name) and len({v for v in values if v or not (several and option)}) > 1:
            typed = "MODEL" if option in ("model", "models") else f"--{option.replace('_', '-')}"
            rows.append((typed if option else name, values))
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
    numbers: dict[str, int] = {}
    facts = [
        {k: v for k, v in flatten(_numbered(run.record, numbers)) if k.partition(".")[0] not in _ELSEWHERE}
        for run in runs
    ]
    # Short facts about the run first, then its arguments, models, corpus and versions.
    groups = ("", "arguments", "models", "corpus", "versions")

    def place(name: str) -> tuple[int, bool, str]:
        group = name.partition(".")[0]
        return groups.index(group if group in groups else ""), name == _DETAIL, name

    names = sorted({name for run_facts in facts for name in run_facts}, key=place)
    return {name: [run_facts.get(name, "") for run_facts in facts] for name in names}


def _table(title: str, runs: Sequence[RecordedRun], rows: Iterable[tuple[str, Sequence[str]]]) -> PageTable:
    labels = [run.label for run in runs]
    records = [{"": name} | dict(zip(labels, map(Cell, values), strict=True)) for name, values in rows]
    return page_table(title, records)


def _numbered(record: Mapping[str, Any], numbers: dict[str, int]) -> Mapping[str, Any]:
    """Numbers the models of a record, so that a model has the same number in all runs that have it.

    Others fill the numbers that are left in their run, in their order; `numbers` are those of the runs before.
    """
    models = record.get("models")
    if not isinstance(models, list) or not all(isinstance(model, Mapping) for model in models):
        return record
    by_number: dict[int, Any] = {}
    # Known models come first, so that no other takes their number.
    for model in sorted(models, key=lambda model: str(model.get("model")) not in numbers):
        free = next(number for number in count(1) if number not in by_number)
        number = numbers.setdefault(str(model.get("model")), free)
        by_number[free if number in by_number else number] = model
    return {**record, "models": {str(number): model for number, model in sorted(by_number.items())}}


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
