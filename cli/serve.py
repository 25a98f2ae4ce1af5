"""`headlens serve`: attention on sentences that are typed in a browser."""

from __future__ import annotations

from typing import Any

from .command import command
from .screen import Screen


def _options() -> Any:
    from headlens.analyses.attend.options import SERVE

    return SERVE


@command("Analyses", options=_options)
def serve(request: Any, screen: Screen) -> None:
    """Show where every head looks in sentences that you type in your browser; press Ctrl-C to stop.

    Nothing leaves this machine, and nobody else can open the page. Examples: headlens serve · headlens serve
    runs/my-run
    """
    from headlens.analyses.attend.sentence_server import open_server
    from headlens.analyses.report.registry import report_of_run

    with open_server(request, screen, screen.warn, lambda run: report_of_run(run).attention(run)) as server:
        screen.say([f"Open {server.address} (press Ctrl-C to stop)"])
        server.serve_forever()
