"""`headlens models`: which models work, and what headlens finds in one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headlens.options import CommandOptions

from .command import ALSO, COMMANDS, CommandEntry, Folder, ListsOnce, program_values, with_options
from .next_steps import next_step
from .screen import Screen


def models(
    ctx: typer.Context,
    everything: Annotated[
        bool, typer.Option("--all", help="List all supported model types of the installed version of transformers.")
    ] = False,
) -> None:
    """List the models headlens knows, or check one."""
    if ctx.invoked_subcommand is not None:
        return
    from headlens.attention.supported_models import (
        FAMILIES,
        UNSUPPORTED,
        commands_by_family,
        dispatching_model_types,
    )

    screen = Screen(json=bool(program_values(ctx).get("json")), quiet=bool(program_values(ctx).get("quiet")))
    rows = [{"model": f.title, "stacks": ", ".join(f.stacks), "example": f.example} for f in FAMILIES]
    screen.table("Tested with every release", rows)
    told = commands_by_family()
    if everything:
        refused = {name: [c for c, reason in by.items() if reason] for name, by in told.items()}
        families = [
            {"family": name, "refused by": "all commands" if len(by) == len(told[name]) else ", ".join(by)}
            for name, by in refused.items()
        ]
        screen.table(f"Commands that refuse a family, of {len(next(iter(told.values())))} tried with each", families)
    screen.show(f"Refused, because they compute attention themselves: {', '.join(UNSUPPORTED)}.")
    types = dispatching_model_types() if everything else []
    if everything:
        screen.show(f"\nAll {len(types)} model types that use transformers' attention registry:", " ".join(types))
    else:
        screen.show("Many more work (--all lists them).")
    summary = {"tested": rows, "refused": UNSUPPORTED, "types": types, "commands": told}
    screen.finish(summary, [], "headlens models check NAME")


def check(request: Any, screen: Screen) -> None:
    """Load a model and show what headlens finds in it: layers of heads per stack, tokenizer, parameters.

    Example: headlens models check demo
    """
    from headlens.analyses.model_check import check_model as run
    from headlens.errors import ModelError
    from headlens.heads import layers_text
    from headlens.models.loading import load, tokenizer_of

    with screen.status(f"loading {request.model}"):
        loaded = load(request.model, request.model_options)
        facts = run(loaded)
    following, refusal = next_step("classify", request, request.model), []
    try:
        tokenizer_of(loaded)
    except ModelError as error:
        following, refusal = "", [str(error)]
    screen.table(facts.name, [{"": key, "value": value} for key, value in facts.facts().items()])
    known = ("hidden_width", "shared_weights", "first_module")
    stacks = [
        {"stack": s.stack, "heads": layers_text(s.layer_heads), **{name: getattr(s, name) for name in known}}
        for s in facts.stacks
    ]
    screen.table("Attention", stacks)
    screen.table("Weights", [vars(p) for p in facts.parts])
    screen.notes([*facts.notes, *refusal])
    screen.finish(facts.as_json(), [], following)


def _build() -> Any:
    from headlens.models.model_options import CheckRequest

    app = typer.Typer(name="models", help=models.__doc__, invoke_without_command=True, cls=Folder, epilog=ALSO)
    app.callback()(models)
    app.command(cls=ListsOnce, epilog=ALSO)(with_options(check, CommandOptions("check", (CheckRequest,), "")))
    return typer.main.get_group(app)


COMMANDS["models"] = CommandEntry("Models", models.__doc__ or "", _build)
