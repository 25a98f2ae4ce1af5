"""`headlens serve`: attention on sentences that are typed in a browser."""

from __future__ import annotations

from headlens.analyses.attend.options import SERVE, ServeRequest

from .command import with_options
from .screen import Screen


def serve(request: ServeRequest, screen: Screen) -> None:
    """Show where every head looks in sentences that you type in your browser; press Ctrl-C to stop.

    Nothing leaves this machine, and nobody else can open the page. Examples: headlens serve · headlens serve
    runs/my-run
    """
    from headlens.analyses.attend.sentence_server import open_server
    from headlens.analyses.report.registry import report_of_run

    with open_server(request, screen, screen.warn, lambda run: report_of_run(run).attention(run)) as server:
        screen.say([f"Open {server.address} (press Ctrl-C to stop)"])
        server.serve_forever()


SERVE_COMMAND = with_options(serve, SERVE)
