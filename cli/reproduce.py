"""`headlens reproduce`: the setting of a paper, and its table with our numbers beside the published ones."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headlens.analyses.commands import commands
from headlens.errors import HeadlensError, ModelError, OptionError
from headlens.visible_text import visible_text

from .command import command
from .screen import Screen, duration, size_text

if TYPE_CHECKING:
    from headlens.analyses.reproduce.options import ReproduceRequest


def _planned(request: ReproduceRequest, screen: Screen, resumed: Path | None) -> None:
    """Show what every step would do, asked of its plan, for `--dry-run`."""
    del resumed
    if _listed_or_shown(request, screen):
        return
    from headlens.analyses.reproduce.paper_recipe import Step
    from headlens.analyses.reproduce.recipe import missing_of, requested_recipe
    from headlens.planning.plan import plan_of

    recipe = requested_recipe(request)[0]
    plans, models = dict[str, dict[str, Any]](), dict[str, str]()
    screen.show(f"{recipe.name}: {recipe.title}")
    missing = missing_of(recipe.steps)
    for step in recipe.steps:
        options = step.filled({name: name for name in models}, models)
        plan: dict[str, Any] = {"plan": step.command, "seconds": None, "bytes": None, "notes": []}
        with screen.status(f"planning {step.name}"):
            try:
                declared = commands()[step.command]
                values = declared.by_field(options, f"{recipe.name}.toml")
                declared.refuse_trust(values, f"{recipe.name}.toml")
                step_request = declared.request(values)
                plan = plan_of(step_request).summary() if request.thorough else plan
            except ModelError:
                # Its weights may be on the hub alone: the needs of other steps are shown nevertheless.
                model = Step(step.name, step.command, step.why, options).model
                missing[step.name] = f"the model {model}, which is not on this machine"
            except HeadlensError as error:
                error.add_note(f"That is in step {step.name} of {recipe.name}.")
                raise
        plans[step.name] = {**plan, "needs": missing.get(step.name)}
        # What a step would leave has the shape of what it begins with.
        models[step.name] = Step(step.name, step.command, step.why, options).model or "demo"
        memory = "unknown" if plan["bytes"] is None else size_text(plan["bytes"])
        cost = f"; time about {_time_text(plan)}, memory about {memory}" * request.thorough
        needs = f"; cannot run here: needs {missing[step.name]}" if step.name in missing else ""
        screen.show(f"- {step.name} ({step.command}): {step.why}{cost}{needs}")
    notes = [f"{name}: {note}" for name, plan in plans.items() for note in plan["notes"]]
    seconds = [plan["seconds"] for plan in plans.values()]
    total = None if None in seconds else sum(seconds)
    if not request.thorough:
        in_all = "--thorough also times a batch of every step, for time and memory"
    elif total is None:
        in_all = "How long the whole recipe takes depends on data that is not available here"
    else:
        in_all = f"{duration(total)} in all"
    device = next((f", on {plan['device']}" for plan in plans.values() if "device" in plan), "")
    screen.notes([*[recipe.setting] * bool(recipe.setting), *notes, f"{in_all}{device}."])
    words = [word for word in sys.argv[1:] if word not in ("--dry-run", "--thorough")]
    screen.finish({"paper": recipe.name, "seconds": total, "steps": plans}, [], shlex.join(["headlens", *words]))


def _time_text(plan: dict[str, Any]) -> str:
    """How long a step takes; of a step with data of unknown size, how long the rest of it does."""
    known = sum(work["seconds"] or 0.0 for work in plan.get("work", ()))
    at_least = f"at least {duration(known)}" if known else "unknown"
    return at_least if plan["seconds"] is None else duration(plan["seconds"])


@command("Results", plan=_planned)
def reproduce(request: ReproduceRequest, screen: Screen) -> None:
    """Reproduce the experiments of a paper, and write its tables with our numbers next to the published ones.

    Examples: headlens reproduce · headlens reproduce voita2019 --scale small ·
    headlens reproduce sparsebert2021 --dry-run
    """
    if _listed_or_shown(request, screen):
        return
    from headlens.analyses.reproduce.recipe import run_reproduce

    run = run_reproduce(request, screen, announce=lambda step, why: screen.show(f"{step}: {why}"), quiet=screen.silent)
    for title, rows in run.lines:
        screen.table(title, rows)
    screen.notes(run.notes)
    page = run.folder / "report" / "report.html"  # of the steps, where any was run
    following = f"open {page} in a browser" if page.is_file() else f"read {run.folder / 'comparison.md'}"
    screen.finish_run("reproduce", run, following)


def _listed_or_shown(request: ReproduceRequest, screen: Screen) -> bool:
    """Whether recipes are only listed or shown, which is done then."""
    from headlens.analyses.reproduce.paper_recipe import read_recipe, recipe_names

    if request.paper is None:
        if request.place.resume:
            raise OptionError(
                f"--resume {request.place.out}: there is no interrupted run there.",
                "Give the folder of an interrupted run.",
            )
        recipes = [read_recipe(name)[0] for name in recipe_names()]
        rows = [{"paper": r.name, "title": r.title, "steps": ", ".join(s.name for s in r.steps)} for r in recipes]
        screen.table("Papers", rows)
        screen.finish({"papers": rows}, [], f"headlens reproduce {recipes[0].name} --scale small")
        return True
    if request.show:
        if request.scale != "full":
            raise OptionError("--show prints the whole recipe, with the settings of all scales.", "Leave --scale out.")
        from headlens.analyses.reproduce.recipe import requested_recipe

        sys.stdout.write(visible_text(requested_recipe(request)[1]))
    return request.show
