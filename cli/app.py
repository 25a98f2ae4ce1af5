"""The Typer app: commands wired together, and what becomes of errors."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from . import attend, classify, models

app = typer.Typer(
    name="headlens",
    help="What every attention head of a transformer does, and what it is worth.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(rich_help_panel="Analyses")(classify.classify)
app.command(rich_help_panel="Analyses")(attend.attend)
app.add_typer(models.app, name="models", rich_help_panel="Models")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"headlens {version('headlens')}")
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """What every attention head of a transformer does, and what it is worth."""
    ctx.obj = {"debug": debug, "version": version}


def main() -> None:
    """Run the command line; the process ends here."""
    # Spinning threads on shared cores cost 8 ms per small operation; this must be set before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    debug = "--debug" in sys.argv
    try:
        app()
    except KeyboardInterrupt:
        _end("Interrupted. What was written so far is kept.", 130)
    except Exception as error:
        from headlens.errors import HeadlensError, InputError

        if debug:
            raise
        if isinstance(error, HeadlensError):
            _end(f"Error: {error}", 2 if isinstance(error, InputError) else 1)
        _end(f"Unexpected {type(error).__name__}: {error}\nRun again with `headlens --debug …` for the traceback.", 1)


def _end(message: str, code: int) -> NoReturn:
    typer.secho(message, err=True, fg=None if "NO_COLOR" in os.environ else "red" if code != 130 else None)
    sys.exit(code)
