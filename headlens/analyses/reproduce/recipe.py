"""`reproduce`: the steps of a paper's recipe one after the other, and its tables with our numbers beside them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
from huggingface_hub import constants

from headlens.analyses.commands import commands
from headlens.analyses.reproduce.claims import NOTHING_RUN, Claim
from headlens.analyses.reproduce.comparison_figure import comparison_figures
from headlens.analyses.reproduce.options import ReproduceRequest, Scale
from headlens.analyses.reproduce.paper_agreement import NOTHING_TO_COMPARE, column_agreement, with_agreement
from headlens.analyses.reproduce.paper_recipe import PaperRecipe, Step, read_recipe, recipe_names
from headlens.analyses.reproduce.paper_tables import ComparedFigure, ComparedTable, comparison_markdown, in_words
from headlens.errors import HeadlensError, OptionError, counted, did_you_mean
from headlens.files import write_json
from headlens.findings.without_skill import REPRODUCED
from headlens.hub_access import hub_answers
from headlens.models.loading import choose_device
from headlens.pages.formatting import NOTHING, escaped
from headlens.runs.folder import RunFolder
from headlens.runs.progress import Reporter
from headlens.runs.run import FinishedRun
from headlens.runs.run_record import RUN_FILE, read_run
from headlens.tables.reproduce_tables import CLAIMS, COLUMN_AGREEMENT, COMPARISON
from headlens.tables.table_schema import TableSchema

_AGREEMENT, _CLAIMS, _FIGURES = "Agreement by column", "Claims in the text", "Figures of the paper"
_NOT_THE_PAPER = {
    "small": "the stand-ins only show that the pipeline works; do not compare them with the paper's numbers.",
    "card": "the setting is smaller than the paper's: compare orders and signs in its tables, and not the numbers.",
}
_OURS = {"small": "stand-in", "card": "smaller setting", "full": "ours"}  # in names of columns
_HUB = "hub:"
_ON_HUB = re.compile(r"(?:[\w-]+=)?hub:([^:]+)")  # also of another task, as in `mnli-mm=hub:nyu-mll/glue:mnli`
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class ReproduceRun(FinishedRun):
    """The result of `headlens reproduce`, whose folder has those of its steps.

    Its tables are `comparison`, a row for each cell of the paper's tables, with ours or what it needs; `agreement`, a
    row for each of their columns; `claims`, verdicts on what stands in the paper's text.

    Args:
        recipe: what was run.
        scale: at which it was run.
        lines: the paper's tables by title, with our numbers, as they are shown.
        missing: what steps that were not run would need, by their names.
    """

    recipe: PaperRecipe
    scale: Scale
    lines: list[tuple[str, list[dict[str, str]]]]
    missing: dict[str, str]

    def summary(self) -> dict[str, Any]:
        """Returns the run as JSON values: folder, paper, the rows of its tables, what was not run, and notes."""
        filled = {name: table.astype(object).where(table.notna(), None) for name, table in self.tables.items()}
        tables = {name: table.to_dict("records") for name, table in filled.items()}
        paper = {"out": str(self.folder), "paper": self.recipe.name, "scale": self.scale}
        return {**paper, **tables, "not_run": self.missing, "notes": self.notes}


def requested_recipe(request: ReproduceRequest) -> tuple[PaperRecipe, str]:
    """Returns the recipe that a request names, at the scale that it asks for, and the text of its file.

    Raises:
        OptionError: if there is no such recipe, or a step of it has a command that there is not.
    """
    if request.paper is None:
        raise OptionError("No paper was named.", f"Available recipes: {', '.join(recipe_names())}.")
    recipe, text = read_recipe(request.paper)
    known = commands()
    for step in recipe.steps:
        if step.command not in known:
            hint = did_you_mean(step.command, known, "headlens --help lists all commands.")
            raise OptionError(f"{recipe.name}: step {step.name}: there is no command {step.command!r}.", hint)
    return recipe.at(request.scale), text


def run_reproduce(
    request: ReproduceRequest,
    reporter: Reporter | None = None,
    *,
    announce: Callable[[str, str], None] = lambda _step, _why: None,
    quiet: bool = True,
) -> ReproduceRun:
    """Runs the steps of a recipe, each in a process of its own, then their report, and compares the tables.

    Steps that need what is not here, see `missing_of`, are left out, and what takes something of them.

    Args:
        request: which recipe.
        reporter: shows progress of what is done here.
        announce: called before every step with its number, the number of steps, and what it is for.
        quiet: whether the commands of the steps print nothing.

    Raises:
        HeadlensError: if a step fails; what was done is kept, and `--resume` goes on from there.
    """
    del reporter
    recipe, _ = requested_recipe(request)
    place = request.place
    with RunFolder.create(
        place.out, command="reproduce", model=recipe.name, overwrite=place.overwrite, resume=place.resume
    ) as folder:
        folder.start({"arguments": {"paper": request.paper, "scale": request.scale}})
        steps = folder.path
        missing = missing_of(recipe.steps)
        here = [step for step in recipe.steps if step.name not in missing]
        # What an interrupted run goes on from is in the folders of its steps.
        write_json({"steps": [s.name for s in recipe.steps]}, steps / RunFolder.KEPT / "steps.json")
        for number, step in enumerate(here, 1):
            options = step.filled({s.name: str(steps / s.name) for s in recipe.steps})
            announce(f"Step {number} of {len(here)}, {step.name}", step.why)
            # As --config takes them.
            file = write_json({"command": step.command, "arguments": options}, steps / f"{step.name}.json")
            _run_step(step, file, steps / step.name, resume=place.resume, quiet=quiet)
            if request.scale in _NOT_THE_PAPER:
                note = f"{REPRODUCED}{request.paper} --scale {request.scale}: {_NOT_THE_PAPER[request.scale]}"
                _note_first(steps / step.name / RUN_FILE, note)
        if here:
            page = ["report", *(str(steps / s.name) for s in here), "--out", str(steps / "report"), "--overwrite"]
            _headlens(page, quiet=quiet)
        result = _compared(recipe, folder, missing, request.scale)
        folder.finish({"notes": result.notes, "not_run": missing})
    return replace(result, files=folder.files)


def _run_step(step: Step, options: Path, folder: Path, *, resume: bool, quiet: bool) -> None:
    """Runs a step, resumes it if it was interrupted, or skips it if a resumed run has finished it."""
    record = read_run(folder) if folder.is_dir() else None
    if record is not None and resume and record.get("status") == "finished":
        return
    words = ["--config", str(options), "--out", str(folder), *["--overwrite"] * (record is not None)]
    if record is not None and resume and (folder / RunFolder.KEPT).is_dir():
        words = ["--resume", str(folder)]
    _headlens([step.command, *words], quiet=quiet)


def _note_first(file: Path, note: str) -> None:
    """Puts a note before those of a finished run, once."""
    record = json.loads(file.read_text(encoding="utf-8"))
    if note not in record["notes"]:
        write_json({**record, "notes": [note, *record["notes"]]}, file)


def _headlens(words: list[str], *, quiet: bool) -> None:
    """Runs a command in a process of its own, whose memory is given back; its errors end this one, too."""
    program = [sys.executable, "-m", "headlens_cli", *words, *["--quiet"] * quiet]
    if code := subprocess.run(program, check=False).returncode:  # noqa: S603
        error = HeadlensError(f"headlens {words[0]} ended with exit code {code}; the reason is printed above.")
        error.add_note(f"To run it by hand: {shlex.join(['headlens', *words])}")
        raise error


def _compared(recipe: PaperRecipe, folder: RunFolder, missing: dict[str, str], scale: Scale) -> ReproduceRun:
    """Writes the tables of the paper with our numbers, and returns the result; `folder` is not finished yet."""
    tables, absent = [ComparedTable.of(table) for table in recipe.tables], {**missing, **recipe.stand_ins}
    here = {step.name for step in recipe.steps}
    left_out = {name: needs for name, needs in absent.items() if name not in here}
    own = {**left_out, **missing}  # of tables of this scale
    compared = [with_agreement(t, t.compared(folder.path, absent if t.shown_scale == "full" else own)) for t in tables]
    claims = [Claim.of(claim).judged(folder.path, absent) for claim in recipe.claims]
    frames = {
        "comparison": _joined(compared, COMPARISON),
        "agreement": _joined([*map(column_agreement, tables, compared)], COLUMN_AGREEMENT),
        "claims": _joined(claims, CLAIMS),
    }
    lines = [(t.title, t.lines(f, _OURS[t.shown_scale])) for t, f in zip(tables, compared, strict=True)]
    lines += [(_AGREEMENT, in_words(frames["agreement"])), (_CLAIMS, in_words(frames["claims"]))]
    figures = [ComparedFigure.of(figure).line(folder.path, absent) for figure in recipe.figures]
    lines = [(title, rows) for title, rows in [*lines, (_FIGURES, figures)] if rows]
    notes = [f"Numbers of the paper: {recipe.citation}."]
    steps_by_need = {needs: [s for s, n in missing.items() if n == needs] for needs in missing.values()}
    notes += [f"Not run here: {', '.join(steps)}: needs {needs}." for needs, steps in steps_by_need.items()]
    if scale != "full":
        notes.append(f"--scale {scale}: {_NOT_THE_PAPER[scale]}")
    notes += [recipe.setting] * bool(recipe.setting)
    for name, frame in frames.items():
        if name != "claims" or claims:
            folder.table(name, frame)
    for name, figure in comparison_figures(frames["comparison"], recipe.name):
        folder.figure(name, figure)
    with folder.file("comparison.md") as path:
        about = "\n\n".join(map(escaped, notes))
        path.write_text(f"# {escaped(recipe.title)}\n\n{about}\n\n{comparison_markdown(lines)}", encoding="utf-8")
    # What nothing was run for is not for the screen; comparison.md has it.
    empty = {table.title for table, frame in zip(tables, compared, strict=True) if not frame["ours"].notna().any()}
    shown = {title: rows for title, rows in lines if title not in empty}
    if _AGREEMENT in shown:
        shown[_AGREEMENT] = [row for row in shown[_AGREEMENT] if row["agreement"] != NOTHING_TO_COMPARE]
    if _CLAIMS in shown:
        shown[_CLAIMS] = [row for row in shown[_CLAIMS] if not row["verdict"].startswith(NOTHING_RUN)]
    if _FIGURES in shown:
        shown[_FIGURES] = [row for row in shown[_FIGURES] if row["ours"] != NOTHING]
    lines = [(title, rows) for title, rows in shown.items() if rows]
    if empty:
        ours = sum(t.shown_scale != "full" for t in tables if t.title in empty)
        both = ((len(empty) - ours, "of the paper"), (ours, f"of the scale {scale}"))
        which = " and ".join(f"{counted(number, 'table')} {of}" for number, of in both if number)
        notes.append(f"{which} {'has' if len(empty) == 1 else 'have'} no number of ours: see comparison.md.")
    if left := int((frames["claims"]["verdict"] == NOTHING_RUN).sum()):
        notes.append(f"{counted(left, 'verdict')} on claims of the paper's text need more runs: see comparison.md.")
    return ReproduceRun(folder.path, [], frames, notes, recipe, scale=scale, lines=lines, missing=missing)


def _joined(frames: list[pd.DataFrame], schema: TableSchema) -> pd.DataFrame:
    filled = [frame for frame in frames if len(frame)]
    return pd.concat(filled, ignore_index=True) if filled else schema.frame([])


def missing_of(steps: Sequence[Step]) -> dict[str, str]:
    """Returns what steps would need to be run here, by name; those that can be run are left out.

    That is a GPU, the hub, a model of a parser, or an earlier step.

    Args:
        steps: in order, before what earlier ones leave is filled in.
    """
    accelerated, answers = cache(lambda: choose_device("auto").type != "cpu"), cache(hub_answers)
    missing: dict[str, list[str]] = {}
    for step in steps:
        needs = [text for name in sorted(step.references) for text in missing.get(name, [])]
        needs += ["a GPU"] * (step.gpu and not accelerated())
        repositories = [found[1] for text in step.texts() if (found := _ON_HUB.match(text))]
        models = step.texts("model", "models")
        repositories += [model for model in models if _REPOSITORY.fullmatch(model) and not Path(model).exists()]
        uncached = [name for name in repositories if not _is_cached(name)]
        needs += [f"{_HUB}{name}" for name in uncached] if uncached and not answers() else []
        parser, _, name = str(step.options.get("parser")).partition(":")
        # spaCy finds a package, or a folder.
        if parser == "spacy" and not (Path(name).exists() or (name.isidentifier() and find_spec(name) is not None)):
            needs.append(f"the spaCy model {name}")
        if needs:
            missing[step.name] = list(dict.fromkeys(needs))
    return {name: ", ".join(needs) for name, needs in missing.items()}


def _is_cached(name: str) -> bool:
    """Whether the caches of the hub's client or of `datasets` have something of a repository."""
    hub = [Path(constants.HF_HUB_CACHE) / f"{kind}--{name.replace('/', '--')}" for kind in ("models", "datasets")]
    prepared = Path(constants.HF_HOME) / "datasets" / name.replace("/", "___")
    return any(folder.is_dir() for folder in (*hub, prepared))
