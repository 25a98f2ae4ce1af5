"""`headlens attend`: attention maps of given sentences."""

from __future__ import annotations

import shlex
from typing import Annotated, Literal

import typer

from . import options as o
from . import role_options as r
from .groups import LoadGroup, MaskGroup, RunGroup, grouped
from .options import CORPUS, STATISTICS

EXAMPLE = "The quick brown fox jumps over the lazy dog because it is bored."


@grouped
def attend(
    load: LoadGroup,
    masking: MaskGroup,
    output: RunGroup,
    model: o.ModelArgument = "demo",
    text: Annotated[
        list[str] | None, typer.Option(help="A sentence; can be given again.", rich_help_panel=CORPUS)
    ] = None,
    target_text: Annotated[
        list[str] | None, typer.Option(help="Its translation, for decoder and cross-attention.", rich_help_panel=CORPUS)
    ] = None,
    stack: Annotated[
        Literal["encoder", "decoder", "cross"] | None, typer.Option(help="Only this stack.", rich_help_panel=STATISTICS)
    ] = None,
    layer: Annotated[int | None, typer.Option(min=0, help="Only this layer.", rich_help_panel=STATISTICS)] = None,
    head: Annotated[int | None, typer.Option(min=0, help="Only this head, large.", rich_help_panel=STATISTICS)] = None,
    level: r.LevelOption = o.Level.token,
) -> None:
    """Draw the attention maps of given sentences: a figure per layer, or one head large.

    Example: headlens attend demo --text "The cat that I saw sleeps." --layer 2
    """
    from headlens.analyses.attend.analysis import Selection
    from headlens.analyses.attend.recipe import AttendRequest, run_attend

    request = AttendRequest(
        model=model,
        text=tuple(text or [EXAMPLE]),
        target_text=tuple(target_text or []),
        selection=Selection(stack, layer, head),
        level=level.value,
        mask=masking.options(),
        model_options=load.options(),
        place=output.place(),
    )
    if output.planned(request):
        return
    screen = output.screen()
    run = run_attend(request, screen)
    screen.notes(run.notes)
    screen.finish(run.summary(), run.files, shlex.join(["headlens", "classify", model]))
