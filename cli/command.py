"""Commands, made from what they ask for: every option of a request becomes an option of the command line."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, dataclass
from functools import wraps
from pathlib import Path
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from headlens.errors import of_readable_length
from headlens.options import OUTPUT, CommandOptions, DeclaredOption, without_none

from .config import load_config, load_run
from .lists import show_all
from .process_rank import rank

if TYPE_CHECKING:
    from .screen import Screen

Plan = Callable[[Any, "Screen", Path | None], None]


@dataclass(frozen=True)
class Command:
    """A command of headlens.

    Args:
        name: as it is typed.
        panel: the group of commands that it stands in.
        function: what Typer runs.
        first: names of the options that `--help` shows; all if there are none.
    """

    name: str
    panel: str
    function: Callable[..., None]
    first: tuple[str, ...]


_HELP_ALL = "help_all"
_FILE = "DEFAULT_MAP"  # how Typer calls the source of values that a file gave
COMMANDS: dict[str, Command] = {}


def command(
    declared: CommandOptions, panel: str, *, plan: Plan | None = None, plans: bool = True
) -> Callable[[Callable[[Any, Screen], None]], Callable[..., None]]:
    """Returns a decorator that makes a command of a function of a request and the screen.

    Args:
        declared: its options.
        panel: the group of commands that it stands in.
        plan: shows what would be done with `--dry-run`; without it the plan of the request.
        plans: whether there is `--dry-run`.
    """
    lacking = {"dry_run": not plans, _HELP_ALL: not declared.first}
    terminal = [name for name in inspect.signature(_terminal).parameters if not lacking.get(name)]

    def made(function: Callable[[Any, Screen], None]) -> Callable[..., None]:
        flat = with_options(function, declared, plan=plan, terminal=terminal)
        COMMANDS[declared.name] = Command(declared.name, panel, flat, declared.first)
        return flat

    return made


def with_options(
    function: Callable[[Any, Screen], None],
    declared: CommandOptions,
    *,
    plan: Plan | None = None,
    terminal: Collection[str] = (),
) -> Callable[..., None]:
    """Returns a function for Typer whose parameters are the options of a command, see `command`.

    Args:
        function: what the request and the screen are given to.
        declared: the options.
        plan: shows what would be done with `--dry-run`.
        terminal: names of the options of the terminal that it has.
    """

    @wraps(function)
    def flat(context: typer.Context, **values: Any) -> None:
        source = next((f"--{name} {values[name]}" for name in ("config", "resume") if values.get(name)), "")
        declared.refuse_trust(_from_file(context, {n: values[n] for n in declared.options}), source)
        screen = _screen(values)
        resumed, dry_run = values.pop("resume", None), values.pop("dry_run", False)
        with _network(offline=values.get("offline", False)):
            request = declared.request(_placed(values, resumed))
            if dry_run:
                (plan or _show_plan)(request, screen, resumed)
            else:
                function(request, screen)

    parameters = [*map(_parameter, declared.options.values()), *_of_terminal(terminal)]
    # The command line knows arguments by their place: these come first.
    parameters.sort(key=lambda p: not isinstance(p.annotation.__metadata__[0], typer.models.ArgumentInfo))
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters.append(context)
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {p.name: p.annotation for p in parameters}
    return flat


def _network(*, offline: bool) -> AbstractContextManager[None]:
    """Whether anything may be asked of the network, known before what would ask is imported."""
    if not offline:
        return nullcontext()
    from headlens.hub_access import only_cache

    return only_cache(enabled=True)


def _from_file(context: typer.Context, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are those of `--config` or `--resume`."""
    sources = {name: context.get_parameter_source(name) for name in values}
    return {name: values[name] for name, source in sources.items() if source is not None and source.name == _FILE}


def _show_plan(request: Any, screen: Screen, resumed: Path | None) -> None:
    from .plan import show_plan

    show_plan(request, screen, resumed)


def _placed(values: Mapping[str, Any], resumed: Path | None) -> dict[str, Any]:
    """The values with the folder of the run that is gone on with.

    Raises:
        OptionError: if `--resume` is given with another folder or with `--overwrite`.
    """
    if resumed is None:
        return dict(values)
    if values["out"] not in (None, resumed) or values["overwrite"]:
        from headlens.errors import OptionError

        raise OptionError(
            "--resume continues a run in its own folder.", "Leave --out and --overwrite out, or leave --resume out."
        )
    return {**values, "out": resumed, "resume": True}


def _screen(values: dict[str, Any]) -> Screen:
    """The terminal; of several processes only the first uses it."""
    from .screen import Screen

    for name in ("config", "debug", _HELP_ALL):
        values.pop(name, None)
    json, quiet = values.pop("json", False), values.pop("quiet", False)
    return Screen(json=json and not rank(), quiet=quiet or rank() > 0)


def _parameter(option: DeclaredOption) -> inspect.Parameter:
    """An option as Typer reads it from a signature."""
    declared = option.option
    kind, default, more = option.hint, option.default, dict[str, Any]()
    required = option.default is MISSING
    if option.repeated:
        values: Any = GenericAlias(list, (get_args(without_none(kind))[0],))
        kind, default = values if required else values | None, None
    elif declared.parse is not None:
        default = _text(default)
        kind, more["parser"] = (str if default is not None else str | None), _parser(option)
    if declared.shown is not None:
        more["show_default"] = declared.shown or False
    common = {"metavar": declared.metavar, "help": declared.help, "rich_help_panel": declared.panel or None, **more}
    if declared.argument:
        info: Any = typer.Argument(**common)
    else:
        flags = declared.flags or ((option.flag,) if kind is bool else ())
        info = typer.Option(*flags, min=declared.at_least, max=declared.at_most, **common)
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else default,
        annotation=Annotated[kind, info],
    )


def _parser(option: DeclaredOption) -> Callable[[Any], Any]:
    parse = option.option.parse
    assert parse is not None

    def parsed(given: Any) -> Any:
        try:
            return parse(given)
        except ValueError as error:
            raise typer.BadParameter(of_readable_length(str(error))) from error

    return parsed


def _text(value: Any) -> Any:
    """A default as it would be typed: a list with commas."""
    if isinstance(value, tuple):
        return ",".join(f"{part:g}" if isinstance(part, float) else str(part) for part in value) or None
    return value


def _of_terminal(names: Collection[str]) -> list[inspect.Parameter]:
    """The options that are about the command line itself; `--help-all` is hidden where `--help` shows all anyway."""
    hints = get_type_hints(_terminal, include_extras=True)
    known = inspect.signature(_terminal).parameters
    if _HELP_ALL not in names:
        kind, info = get_args(hints[_HELP_ALL])
        hints[_HELP_ALL] = Annotated[kind, _hidden(info)]
    has = {*names, _HELP_ALL}
    return [known[n].replace(annotation=hints[n], kind=inspect.Parameter.KEYWORD_ONLY) for n in known if n in has]


def _hidden(info: typer.models.OptionInfo) -> typer.models.OptionInfo:
    """Returns a declaration of an option that is taken, and that no help shows."""
    changed = copy.copy(info)
    changed.hidden = True
    return changed


def _terminal(
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Resume the interrupted run in that folder, with the options it was started with.",
            callback=load_run,
            is_eager=True,
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Read options from a TOML file, or from the run.json of an earlier run in order to repeat it.",
            callback=load_config,
            is_eager=True,
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON and nothing else.", rich_help_panel=OUTPUT)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only errors; files are still written.", rich_help_panel=OUTPUT)
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=OUTPUT)
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Write nothing: say what would be done, how large the models and data are, and roughly how much "
            "time and memory it would take.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    help_all: Annotated[
        bool,
        typer.Option("--help-all", callback=show_all, is_eager=True, help="Show every option.", rich_help_panel=OUTPUT),
    ] = False,
) -> None:
    """Options of every command that are about the terminal, in the form that Typer reads."""
