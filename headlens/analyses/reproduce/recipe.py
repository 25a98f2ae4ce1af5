"""`reproduce`: the steps of a paper's recipe one after the other, and its tables with our numbers beside them."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pandas as pd

from headlens.analyses.commands import commands
from headlens.analyses.report.paper_tables import COMPARISON_COLUMNS, ComparedTable, comparison_markdown
from headlens.analyses.reproduce.options import ReproduceRequest
from headlens.analyses.reproduce.paper_recipe import PaperRecipe, Step, read_recipe, recipe_names
from headlens.errors import HeadlensError, OptionError
from headlens.files import write_json
from headlens.pages.formatting import escaped
from headlens.runs.folder import RunFolder
from headlens.runs.progress import Reporter
from headlens.runs.run_record import read_run


@dataclass(frozen=True)
class ReproduceRun:
    """The result of `headlens reproduce`.

    Args:
        folder: of the run; those of its steps lie in it.
        files: written there.
        tables: `comparison`, a row for each cell of the paper's tables.
        notes: what the reader should know.
        recipe: what was run.
        small: whether it was the small one.
        lines: the paper's tables by title, with our numbers, as they are shown.
    """

    folder: Path
    files: list[Path]
    tables: dict[str, pd.DataFrame]
    notes: list[str]
    recipe: PaperRecipe
    small: bool
    lines: list[tuple[str, list[dict[str, str]]]]

    def summary(self) -> dict[str, Any]:
        """Returns the run as JSON values: folder, paper, the cells of its tables, and notes."""
        table = self.tables["comparison"]
        cells = table.astype(object).where(table.notna(), None).to_dict("records")
        paper = {"out": str(self.folder), "paper": self.recipe.name, "small": self.small}
        return {**paper, "comparison": cells, "notes": self.notes}


def asked_recipe(request: ReproduceRequest) -> tuple[PaperRecipe, str]:
    """Returns the recipe that a request names, the small one where it asks for that, and the text of its file.

    Raises:
        OptionError: if there is no such recipe, or a step of it has a command that there is not.
    """
    if request.paper is None:
        raise OptionError("No paper is named.", f"There are recipes of {', '.join(recipe_names())}.")
    recipe, text = read_recipe(request.paper)
    known = commands()
    for step in recipe.steps:
        if step.command not in known:
            close = get_close_matches(step.command, known, n=1)
            hint = f"Did you mean {close[0]}?" if close else "headlens --help lists all commands."
            raise OptionError(f"{recipe.name}: step {step.name}: there is no command {step.command!r}.", hint)
    return recipe.small() if request.small else recipe, text


def run_reproduce(
    request: ReproduceRequest,
    reporter: Reporter | None = None,
    *,
    announce: Callable[[str, str], None] | None = None,
    quiet: bool = True,
) -> ReproduceRun:
    """Runs the steps of a recipe, each in a process of its own, then their report, and compares the tables.

    Args:
        request: which recipe.
        reporter: shows progress of what is done here.
        announce: is told of every step before it begins: its number of how many, and what it is for.
        quiet: whether the commands of the steps print nothing.

    Raises:
        HeadlensError: if a step fails; what was done is kept, and `--resume` goes on from there.
    """
    del reporter
    recipe, _ = asked_recipe(request)
    place = request.place
    with RunFolder.create(
        place.out, command="reproduce", model=recipe.name, overwrite=place.overwrite, resume=place.resume
    ) as folder:
        folder.start({"arguments": {"paper": request.paper, "small": request.small}})
        steps = folder.path
        # What an interrupted run goes on from is in the folders of its steps.
        write_json({"steps": [s.name for s in recipe.steps]}, steps / RunFolder.KEPT / "steps.json")
        for number, step in enumerate(recipe.steps, 1):
            options = recipe.filled(step, {s.name: str(steps / s.name) for s in recipe.steps})
            if announce is not None:
                announce(f"Step {number} of {len(recipe.steps)}, {step.name}", step.why)
            # As --config takes them.
            file = write_json({"command": step.command, "arguments": options}, steps / f"{step.name}.json")
            _run_step(step, file, steps / step.name, resume=place.resume, quiet=quiet)
        page = ["report", *(str(steps / s.name) for s in recipe.steps), "--out", str(steps / "report"), "--overwrite"]
        _headlens(page, quiet=quiet)
        table, lines, notes = _compared(recipe, folder, small=request.small)
        folder.finish({"notes": notes})
    return ReproduceRun(
        folder.path, folder.files, {"comparison": table}, notes, recipe, small=request.small, lines=lines
    )


def _run_step(step: Step, options: Path, folder: Path, *, resume: bool, quiet: bool) -> None:
    """Runs a step, resumes it if it was interrupted, or skips it if a resumed run has finished it."""
    record = read_run(folder) if folder.is_dir() else None
    if record is not None and resume and record.get("status") == "finished":
        return
    words = ["--config", str(options), "--out", str(folder), *["--overwrite"] * (record is not None)]
    if record is not None and resume and (folder / RunFolder.KEPT).is_dir():
        words = ["--resume", str(folder)]
    _headlens([step.command, *words], quiet=quiet)


def _headlens(words: list[str], *, quiet: bool) -> None:
    """Runs a command in a process of its own, whose memory is given back; its errors end this one, too."""
    silence = ["--quiet"] if quiet else []
    done = subprocess.run([sys.executable, "-m", "headlens_cli", *words, *silence], check=False)  # noqa: S603
    if done.returncode:
        error = HeadlensError(f"headlens {words[0]} ended with exit code {done.returncode}; it says why above.")
        error.add_note(f"By hand: {shlex.join(['headlens', *words])}")
        raise error


def _compared(
    recipe: PaperRecipe, folder: RunFolder, *, small: bool
) -> tuple[pd.DataFrame, list[tuple[str, list[dict[str, str]]]], list[str]]:
    """The tables of the paper with our numbers, as they are written and as they are shown, and what to know."""
    tables = [ComparedTable.of(table) for table in recipe.tables]
    frames = [table.compared(folder.path / table.step) for table in tables]
    ours = "ours, small" if small else "ours"
    lines = [(table.title, table.lines(frame, ours)) for table, frame in zip(tables, frames, strict=True)]
    notes = [f"Numbers of the paper: {recipe.citation}."]
    if small:
        notes.append("--small: our numbers show that the path works, and are not to be compared with the paper's.")
    notes += [recipe.setting] * bool(recipe.setting)
    comparison = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=COMPARISON_COLUMNS)
    folder.table("comparison", comparison)
    with folder.file("comparison.md") as path:
        about = "\n\n".join(map(escaped, notes))
        path.write_text(f"# {escaped(recipe.title)}\n\n{about}\n\n{comparison_markdown(lines)}", encoding="utf-8")
    return comparison, lines, notes
