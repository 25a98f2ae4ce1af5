"""`headlens serve`: attention on sentences that are typed in a browser."""

from __future__ import annotations

import signal

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
    from headlens.errors import Interrupted

    with open_server(request, screen, screen.warn, lambda run: report_of_run(run).attention(run)) as server:
        screen.say([f"Open {server.address} (press Ctrl-C to stop)"])
        try:
            server.serve_forever()
        except Interrupted as interrupt:
            if interrupt.signal != signal.SIGINT:
                raise
    screen.say(["Stopped."])


SERVE_COMMAND = with_options(serve, SERVE, terminal=["debug"])
