"""`--dry-run`: what a command would do."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .screen import Screen, duration

if TYPE_CHECKING:
    from headlens.analyses.planning.plan import Plan


def show_plan(request: Any, screen: Screen, resumed: Path | None = None) -> None:
    """Print what would be done for a request, or with --json the plan as JSON.

    Args:
        request: of a command.
        screen: where.
        resumed: the folder of the run that would be gone on with.
    """
    from headlens.analyses.planning.plan import plan_of
    from headlens.pages.page_tables import summary_table
    from headlens.runs.folder import check_resumable

    plan = plan_of(request, screen)
    if resumed is not None:
        check_resumable(resumed, plan.command)
    models, data, work = _models(plan), _data(plan), _work(plan)
    for title, rows in (("Models", models), ("Data", data), ("Planned steps", work)):
        if rows:
            screen.show(summary_table(title, rows))
    screen.notes([_total(plan), *plan.notes])
    command = [word for word in sys.argv[1:] if word != "--dry-run"]
    screen.finish(plan.summary(), [], shlex.join(["headlens", *command]))


def _models(plan: Plan) -> list[dict[str, object]]:
    return [
        {
            "model": m.name,
            "heads": ", ".join(f"{stack} {heads} in {layers} layers" for stack, (layers, heads) in m.stacks.items()),
            "parameters": f"{m.parameters / 1e6:.1f} million",
            "weights": size_text(m.weight_bytes),
            "source": m.source,
        }
        for m in plan.models
    ]


def _data(plan: Plan) -> list[dict[str, object]]:
    return [
        {
            "data": d.name,
            "examples": "unknown" if d.examples is None else f"{d.examples:,}",
            "tokens (approx.)": "unknown" if d.tokens is None else f"{d.tokens:,.0f}",
            "source": d.source,
        }
        for d in plan.data
    ]


def _work(plan: Plan) -> list[dict[str, object]]:
    return [
        {"step": number, "work": w.text, "time (approx.)": "unknown" if s is None else duration(s)}
        for number, (w, s) in enumerate(zip(plan.work, plan.seconds, strict=True), 1)
    ]


def _total(plan: Plan) -> str:
    where = f"on {plan.device}"
    memory = f"about {size_text(plan.bytes)} of memory" if plan.models else "hardly any memory"
    if plan.total is None:
        return f"How long it takes {where} depends on data that is not available here; it needs {memory}."
    return f"About {duration(plan.total)} {where}, estimated from batches timed just now, and {memory}."


def size_text(size: float) -> str:
    """Formats a number of bytes as decimal megabytes or gigabytes, such as `1.5 GB`; at least `1 MB`."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{max(1, round(size / 1e6))} MB"
