"""`headlens reproduce`: the setting of a paper, and its table with our numbers beside the published ones."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer

from headlens.options import CORPUS, OUTPUT, option
from headlens.runs.output_options import OutputOptions

from .command import command
from .recipe import PaperRecipe, Step, read_recipe, recipe_names
from .screen import Screen

if TYPE_CHECKING:
    from headlens.runs.folder import RunFolder


@dataclass(frozen=True)
class ReproduceRequest:
    """What `headlens reproduce` is asked for."""

    paper: str | None = option(
        None,
        "A recipe that comes along, or a TOML file of your own; none lists them.",
        "",
        metavar="PAPER",
        shown="",
        argument=True,
    )
    small: bool = option(
        False, "Embedded data and models, in minutes and without a network: the path, not the paper's numbers.", CORPUS
    )
    show: bool = option(False, "Print the recipe, for a file of your own.", OUTPUT)
    place: OutputOptions = field(default_factory=OutputOptions)


def _planned(request: ReproduceRequest, screen: Screen, resumed: Path | None) -> None:
    del resumed
    if (recipe := _asked_for(request, screen)) is not None:
        _plan(recipe, screen)


@command("Results", ReproduceRequest, plan=_planned)
def reproduce(request: ReproduceRequest, screen: Screen) -> None:
    """Run the setting of a paper, command by command, and write its table with our numbers beside the published ones.

    Examples: headlens reproduce · headlens reproduce voita2019 --small · headlens reproduce sparsebert2021 --dry-run
    """
    if (recipe := _asked_for(request, screen)) is not None:
        _run(recipe, request, screen)


def _asked_for(request: ReproduceRequest, screen: Screen) -> PaperRecipe | None:
    """The recipe to be run; None where recipes are only listed or shown."""
    if request.paper is None and request.place.resume:
        raise _refused(f"--resume {request.place.out}: no interrupted run is there.", "Give the folder of one.")
    if request.paper is None:
        _list(screen)
        return None
    recipe, text = read_recipe(request.paper)
    if request.show and request.small:
        raise _refused("--show prints the whole recipe, --small and all.", "Leave --small out.")
    _check_commands(recipe)
    if request.show:
        sys.stdout.write(text)
        return None
    return recipe.small() if request.small else recipe


def _refused(message: str, advice: str) -> Exception:
    from headlens.errors import OptionError

    return OptionError(message, advice)


def _check_commands(recipe: PaperRecipe) -> None:
    """Refuse steps whose command there is not."""
    from .app import app

    known: Any = typer.main.get_command(app)
    for step in recipe.steps:
        if step.command not in known.commands:
            close = get_close_matches(step.command, known.commands, n=1)
            hint = f"Did you mean {close[0]}?" if close else "headlens --help lists all commands."
            raise _refused(f"{recipe.name}: step {step.name}: there is no command {step.command!r}.", hint)


def _list(screen: Screen) -> None:
    from headlens.pages.console import summary_table

    recipes = [read_recipe(name)[0] for name in recipe_names()]
    rows = [{"paper": r.name, "title": r.title, "steps": ", ".join(s.name for s in r.steps)} for r in recipes]
    screen.show(summary_table("Papers", rows))
    screen.finish({"papers": rows}, [], f"headlens reproduce {recipes[0].name} --small")


def _plan(recipe: PaperRecipe, screen: Screen) -> None:
    """What every step would do, asked of the command itself."""
    from headlens.errors import HeadlensError
    from headlens.pages.console import summary_table

    from .plan import duration, size_text

    rows, plans, models = [], [], dict[str, str]()
    for step in recipe.steps:
        options = recipe.filled(step, {name: name for name in models}, models)
        with screen.status(f"planning {step.name}"):
            try:
                plan = _asked(step, options)
            except HeadlensError as error:
                error.add_note(f"That is in step {step.name} of {recipe.name}.")
                raise
        plans.append(plan)
        # What a step would leave has the shape of what it begins with.
        models[step.name] = Step(step.name, step.command, step.why, options).model or "demo"
        seconds = plan["seconds"]
        rows.append(
            {
                "step": step.name,
                "what": step.why,
                "command": step.command,
                "time, about": "not known" if seconds is None else duration(seconds),
                "memory, about": size_text(plan["bytes"]),
            }
        )
    screen.show(summary_table(f"{recipe.name}: {recipe.title}", rows))
    notes = [f"{s.name}: {note}" for s, plan in zip(recipe.steps, plans, strict=True) for note in plan["notes"]]
    whole = [plan["seconds"] for plan in plans]
    total = None if None in whole else sum(whole)
    in_all = (
        "How long all of it takes depends on data that is not here" if total is None else f"{duration(total)} in all"
    )
    screen.notes([*[recipe.setting] * bool(recipe.setting), *notes, f"{in_all}, on {plans[-1]['device']}."])
    command = [word for word in sys.argv[1:] if word != "--dry-run"]
    steps = {step.name: plan for step, plan in zip(recipe.steps, plans, strict=True)}
    screen.finish({"paper": recipe.name, "seconds": total, "steps": steps}, [], shlex.join(["headlens", *command]))


def _asked(step: Step, options: dict[str, Any]) -> dict[str, Any]:
    """The plan of a step, as its command with --dry-run --json prints it."""
    from .app import app

    with TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as printed:
        file = _write_options(Path(folder) / f"{step.name}.json", step, options)
        command = typer.main.get_command(app)
        command.main([step.command, "--config", str(file), "--dry-run", "--json"], "headlens", standalone_mode=False)
    found: dict[str, Any] = json.loads(printed.getvalue())
    return found


def _write_options(file: Path, step: Step, options: dict[str, Any]) -> Path:
    """The options of a step as --config takes them."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"command": step.command, "arguments": options}, indent=2) + "\n", encoding="utf-8")
    return file


def _run(recipe: PaperRecipe, request: ReproduceRequest, screen: Screen) -> None:
    from headlens.runs.folder import RunFolder

    place = request.place
    with RunFolder.create(
        place.out, command="reproduce", model=recipe.name, overwrite=place.overwrite, resume=place.resume
    ) as folder:
        folder.start({"arguments": {"paper": request.paper, "small": request.small}})
        steps = folder.path
        # What an interrupted run goes on from is in the folders of its steps.
        (steps / RunFolder.KEPT).mkdir(exist_ok=True)
        (steps / RunFolder.KEPT / "steps.txt").write_text("\n".join(s.name for s in recipe.steps), encoding="utf-8")
        for number, step in enumerate(recipe.steps, 1):
            options = recipe.filled(step, {s.name: str(steps / s.name) for s in recipe.steps})
            screen.show(f"[bold]Step {number} of {len(recipe.steps)}, {step.name}[/bold]: {step.why}")
            file = _write_options(steps / f"{step.name}.json", step, options)
            _do(step, file, steps / step.name, screen, resume=place.resume)
        page = ["report", *(str(steps / s.name) for s in recipe.steps), "--out", str(steps / "report"), "--overwrite"]
        _headlens(page, screen)
        summary, notes = _compare(recipe, folder, screen, small=request.small)
        folder.finish({"notes": notes})
    screen.notes(notes)
    screen.finish(summary, folder.files, f"open {steps / 'report' / 'report.html'} in a browser")


def _do(step: Step, options: Path, folder: Path, screen: Screen, *, resume: bool) -> None:
    """Runs a step, resumes it if it was interrupted, or skips it if a resumed run has finished it."""
    from headlens.runs.folder import RunFolder, read_run

    record = read_run(folder) if folder.is_dir() else None
    if record is not None and record.get("status") == "finished" and resume:
        return
    if record is not None and resume and (folder / RunFolder.KEPT).is_dir():
        _headlens([step.command, "--resume", str(folder)], screen)
        return
    again = ["--overwrite"] if record is not None else []
    _headlens([step.command, "--config", str(options), "--out", str(folder), *again], screen)


def _headlens(words: list[str], screen: Screen) -> None:
    """Run a command in a process of its own, whose memory is given back; its errors end this one, too."""
    from headlens.errors import HeadlensError

    quiet = ["--quiet"] if screen.silent else []
    done = subprocess.run([sys.executable, "-m", "headlens_cli", *words, *quiet], check=False)  # noqa: S603
    if done.returncode:
        error = HeadlensError(f"headlens {words[0]} ended with exit code {done.returncode}; it says why above.")
        error.add_note(f"By hand: {shlex.join(['headlens', *words])}")
        raise error


def _compare(
    recipe: PaperRecipe, folder: RunFolder, screen: Screen, *, small: bool
) -> tuple[dict[str, Any], list[str]]:
    """The tables of the paper with our numbers: shown, and written as CSV and Markdown."""
    import pandas as pd

    from headlens.analyses.report.paper_tables import COMPARISON_COLUMNS, ComparedTable, comparison_markdown
    from headlens.pages.console import summary_table

    tables = [ComparedTable.of(table) for table in recipe.tables]
    found = [table.compared(folder.path / table.step) for table in tables]
    lines = [
        (table.title, table.lines(own, "ours, small" if small else "ours"))
        for table, own in zip(tables, found, strict=True)
    ]
    for title, rows in lines:
        screen.show(summary_table(title, rows))
    notes = [f"Numbers of the paper: {recipe.citation}."]
    if small:
        notes.append("--small: our numbers show that the path works, and are not to be compared with the paper's.")
    notes += [recipe.setting] * bool(recipe.setting)
    whole = pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=COMPARISON_COLUMNS)
    folder.table("comparison", whole)
    with folder.file("comparison.md") as path:
        about = "\n\n".join(notes)
        path.write_text(f"# {recipe.title}\n\n{about}\n\n{comparison_markdown(lines)}", encoding="utf-8")
    cells = [
        {str(k): v for k, v in row.items()}
        for row in whole.astype(object).where(whole.notna(), None).to_dict("records")
    ]
    return {"out": str(folder.path), "paper": recipe.name, "small": small, "comparison": cells, "notes": notes}, notes
