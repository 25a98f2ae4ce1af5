"""`report`: the figures of earlier runs again, and one page that shows them, side by side where there are several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from headlens.analyses.report.options import ReportRequest
from headlens.analyses.report.page import Picture, RunSection, overviews, picture, render
from headlens.analyses.report.registry import report_of, report_of_run
from headlens.errors import InputError, OptionError, OutputError, counted
from headlens.pages.formatting import slug
from headlens.pages.latex_tables import latex_table
from headlens.pages.self_contained import LARGE_PAGE
from headlens.plots.style import COLUMN_WIDTH, drawn_for
from headlens.runs.folder import PAGE, RunFolder
from headlens.runs.progress import Reporter
from headlens.runs.reading import RecordedRun, read_recorded
from headlens.runs.run_record import RUN_FILE, read_run
from headlens.shared_options import arguments

MOST_PICTURES = 24_000_000  # bytes of pictures on a page
_ENDS = {
    "interrupted": "This run was interrupted: below is what it had written up to that point.",
    "failed": "This run failed: below is what it had written up to that point.",
    "running": "This run is still in progress or was killed: below is what it had written when this page was made.",
}
_ALL = "all runs"
_OTHER_END = "This run is not recorded as finished: below is what its folder contains."


@dataclass(frozen=True)
class ReportRun:
    """Result of a report: the folder with the page, the files written, and what the page shows of the runs."""

    folder: Path
    files: list[Path]
    sections: list[RunSection]
    notes: list[str]

    @property
    def page(self) -> Path:
        """Path of the HTML page that the report wrote."""
        return self.folder / PAGE

    def summary(self) -> dict[str, Any]:
        """Returns a summary of the result, for `--json`."""
        return {"out": str(self.folder), "page": str(self.page), "runs": self.rows(), "notes": self.notes}

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row for every run: its command, model and status, and how many tables and figures it has."""
        return [
            {"run": run.label, "command": run.command, "model": ", ".join(run.models), "status": run.status}
            | {"tables": len(run.tables), "figures": sum(picture.run != _ALL for picture in section.pictures)}
            for section in self.sections
            for run in [section.run]
        ]


def run_report(request: ReportRequest, reporter: Reporter | None = None) -> ReportRun:
    """Reads the runs, draws their figures from their tables, and writes the page.

    Raises:
        InputError: if a run cannot be read or drawn, or the place cannot be written; nothing is written before all
            runs were read.
    """
    reporter = reporter or Reporter()
    with reporter.status("reading"):
        runs = _read(request.runs)
    with _opened(request, runs) as folder, drawn_for(request.width):
        sections: list[RunSection] = []
        files: list[Path] = []
        for number, run in enumerate(runs, 1):
            prefix = f"{number}_" if len(runs) > 1 else ""
            room = MOST_PICTURES - sum(len(p.uri) for section in sections for p in section.pictures)
            pictures, undrawn = list[tuple[Path, str]](), list[str]()  # the former with the names of their figures
            report = report_of(run.command)
            if report.draws:
                with reporter.progress(f"drawing {run.label}", None) as advance:
                    for name, figure in report.figures(run):
                        if figure is None:
                            undrawn.append(name)
                        else:
                            pictures.append((folder.figure(prefix + name, figure, request.formats)[0], name))
                        advance(1)
                files += [path for path, _ in pictures]
            else:
                pictures = [(path, path.stem) for path in run.pictures]
            sections.append(_section(run, pictures, undrawn, room))
        before = list(folder.files)
        sections = _together(sections, folder, request.formats)
        titles = Counter[str]()
        for table in overviews(runs) if request.latex else ():
            name = slug(table.name or table.title)
            titles[name] += 1
            # Of two tables with one title the second has a number.
            label = f"{name}-{titles[name]}" if titles[name] > 1 else name
            with folder.file(f"{label}.tex") as path:
                path.write_text(latex_table(table, request.width, label), encoding="utf-8", newline="\n")
        more = [path for path in folder.files if path not in before]
        with reporter.status("writing the page"), folder.file(PAGE) as path:
            path.write_text(render(sections), encoding="utf-8", newline="\n")
        # The picture on the page first, then the figure in the formats asked for.
        suffixes = [f".{name}" for name in request.formats]
        written = [path.with_suffix(suffix) for path in files for suffix in dict.fromkeys([path.suffix, *suffixes])]
        files = [*(path for path in written if path in folder.files), *more, folder.path / PAGE]
    several = len(runs) > 1
    reports = [str(named) for named in request.runs if named not in {run.folder for run in runs}]
    notes = [f"Left out, as they hold reports and no runs: {', '.join(reports)}."] * bool(reports)
    notes += [f"{section.run.label}: {text}" if several else text for section in sections for text in section.remarks]
    wide = [p for section in sections for p in section.pictures if p.inches > COLUMN_WIDTH + 0.05]
    if wide and request.width == "column":
        names = dict.fromkeys(f"{p.name} ({p.run})" if several else p.name for p in wide)
        notes.append(f"Figures wider than a column ({COLUMN_WIDTH} inches): {', '.join(names)}.")
    if (size := (folder.path / PAGE).stat().st_size) > LARGE_PAGE:
        drawn = sum(len(picture.uri) for section in sections for picture in section.pictures)
        notes.append(
            f"{PAGE} is {size / 1e6:.1f} MB: pictures are {drawn / 1e6:.1f} MB of it, the rest is tables and the "
            f"numbers of all heads.{' headlens report on fewer runs gives a smaller page.' if several else ''}"
        )
    return ReportRun(folder.path, files, sections, notes)


def _read(folders: Sequence[Path]) -> list[RecordedRun]:
    """Reads the run folders, each under a label of its own, and checks that they can be shown."""
    if not folders:
        raise OptionError("No run was given.", "Name one run folder or several.")
    places = [folder.resolve() for folder in folders]
    if twice := [folder for folder, place in zip(folders, places, strict=True) if places.count(place) > 1]:
        raise OptionError(f"{twice[0]} is given twice.", "Name every run once.")
    names = [place.name or str(place) for place in places]
    labels = [name if names.count(name) == 1 else str(folder) for name, folder in zip(names, folders, strict=True)]
    runs = list(map(read_recorded, folders, labels))
    # `runs/*` names the pages made before, too.
    if any(run.command != "report" for run in runs):
        runs = [run for run in runs if run.command != "report"]
    for run in runs:
        if run.command == "report":
            sources = ", ".join(map(str, run.argument("runs", []))) or "the runs themselves"
            raise InputError(f"{run.folder} holds a report, not a run.", f"Name the runs it was made from: {sources}")
        if run.command == "reproduce":
            steps = sorted({place.parent.name for place in run.folder.glob("*/run.json")} - {"report"})
            raise InputError(
                f"{run.folder} holds the runs of a recipe: {', '.join(steps)}.",
                f"Their page is {run.folder / 'report' / PAGE}; or name them: headlens report {run.folder}/STEP ...",
            )
        report_of_run(run).check(run)
    return runs


@contextmanager
def _opened(request: ReportRequest, runs: Sequence[RecordedRun]) -> Iterator[RunFolder]:
    """Opens the folder that the page goes into: that of the only run, or one that the report makes."""
    place, out = request.place, request.place.out
    inside = next((run for run in runs if out is not None and run.folder.resolve() == out.resolve()), None)
    if inside is not None and len(runs) > 1:
        raise OptionError(f"--out {out} is one of the runs.", "Name another folder for the page of several runs.")
    target = runs[0].folder if out is None and len(runs) == 1 else out
    page = None if target is None or place.overwrite else target / PAGE
    if page is not None and page.exists() and PAGE not in ((read_run(page.parent) or {}).get("files") or []):
        raise OutputError(
            f"{page} exists, and {RUN_FILE} there does not say that headlens wrote it.",
            "Name another folder with --out, or give --overwrite to replace it.",
        )
    if inside is not None or (target is not None and out is None):
        with RunFolder.reopen(runs[0].folder) as folder:
            yield folder
        return
    label = runs[0].label if len(runs) == 1 else f"{runs[0].label}-and-{len(runs) - 1}-more"
    with RunFolder.create(
        target, command="report", model=Path(label).name, overwrite=place.overwrite, resume=place.resume
    ) as folder:
        folder.start({"arguments": arguments(request)})
        yield folder


def _together(sections: Sequence[RunSection], folder: RunFolder, formats: Sequence[str]) -> list[RunSection]:
    """Adds what several runs of one command give together, pictures to the first of them."""
    merged = {section.run.label: section for section in sections}
    for command in dict.fromkeys(section.run.command for section in sections):
        first, *others = (section for section in sections if section.run.command == command)
        if not others:
            continue
        report, runs = report_of(command), [first.run, *(section.run for section in others)]
        pictures: list[Picture | None] = []
        for name, result in report.together(runs):
            if isinstance(result, pd.DataFrame):
                folder.table(name, result)
            elif isinstance(result, str):
                with folder.file(f"{name}.md") as path:
                    path.write_text(result, encoding="utf-8")
            elif result is not None:
                pictures.append(picture(folder.figure(name, result, formats)[0], name, _ALL))
        remarks = [*first.remarks, *report.left_out(runs)]
        drawn = [*first.pictures, *filter(None, pictures)]
        merged[first.run.label] = replace(first, remarks=remarks, pictures=drawn)
    return list(merged.values())


def _section(run: RecordedRun, files: Sequence[tuple[Path, str]], undrawn: Sequence[str], room: int) -> RunSection:
    """Returns the pictures that fit the page, and remarks about those that do not.

    Args:
        run: the run.
        files: pictures with the names of their figures.
        undrawn: names of the figures without numbers.
        room: bytes left for pictures on the page.
    """
    remarks = [] if run.finished else [_ENDS.get(run.status, _OTHER_END)]
    pictures: list[Picture] = []
    for number, (path, name) in enumerate(files):
        if (embedded := picture(path, name, run.label)) is None:
            remarks.append(f"figures/{path.name} is not a whole {path.suffix[1:].upper()} file and is not shown.")
            continue
        if (room := room - len(embedded.uri)) < 0:
            more = len(files) - number
            verb = "is" if more == 1 else "are"
            remarks.append(f"{counted(more, 'further figure')} {verb} left out to keep this page small: see figures/.")
            break
        pictures.append(embedded)
    return RunSection(run, pictures, remarks, undrawn)
