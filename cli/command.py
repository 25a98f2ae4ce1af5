"""Commands, made from what they ask for: every option of a request becomes an option of the command line."""

from __future__ import annotations

import copy
import inspect
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, replace
from functools import wraps
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand, TyperOption

from headlens.analyses.commands import commands
from headlens.errors import OptionError, of_readable_length
from headlens.nested_text import parse_toml
from headlens.options import GROUPS, OUTPUT, CommandOptions, DeclaredOption, Option, without_none
from headlens.visible_text import visible_text

from .config import GROUPED, load_config, load_run
from .screen import Screen, show_plan

Plan = Callable[[Any, Screen, Path | None], None]
_HELP_ALL = "help_all"
_ALL = "headlens.all"
_ALWAYS = ("out", "dry_run", "resume", "config", _HELP_ALL, "help")  # in the help of every command
_FILE = "DEFAULT_MAP"  # how Typer calls the source of values that a file gave
# By name the group that a command stands in, and what Typer runs.
COMMANDS: dict[str, tuple[str, Callable[..., None]]] = {}


class ListsOnce(TyperCommand):
    """A command that refuses a list that is given a second time, which would silently take the place of the first.

    Lists are what the help calls by a plural: HEADS, NAMES, NUMBERS. Of the options of a large command `--help` shows
    those that most people need, in one panel, and `--help-all` every one.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as ever, and look at what was given how often."""
        try:
            _, _, given = self.make_parser(ctx).parse_args(list(args))
        except Exception as error:
            # Typer does not export the class of the error.
            refused = str(getattr(error, "option_name", "")).removeprefix("--")
            own = commands()[self.name].options if self.name in commands() else {}
            found = next((o for o in own.values() if refused in o.former_names), None)
            if found is None:
                raise
            told = f"--{refused} is a part of --{found.option.group} now: {found.flag}=VALUE."
            raise typer.BadParameter(told, ctx=ctx) from error
        for parameter, times in Counter(given).items():
            metavar = getattr(parameter, "metavar", None) or ""
            if times > 1 and metavar.isupper() and metavar.endswith("S") and not getattr(parameter, "multiple", True):
                option = parameter.opts[0]
                raise typer.BadParameter(
                    f"{option} is given {times} times. Give it once, with values separated by commas: {option} "
                    "ONE,ANOTHER.",
                    ctx=ctx,
                )
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the defaults of the command, and not those of a file of `--config`, which may come from anybody."""
        ctx.default_map = None
        shown, declared = copy.copy(self), commands().get(self.name or "")
        if declared is not None and declared.first and not ctx.meta.get(_ALL):
            # What few people need is hidden from the help; a shell still completes it.
            shown.params = [copy.copy(own) for own in self.params]
            for own in shown.params:
                if isinstance(own, TyperOption):
                    own.hidden = own.hidden or own.name not in (*declared.first, *_ALWAYS)
                    own.rich_help_panel = None
        super(ListsOnce, shown).format_help(ctx, formatter)


def show_all(ctx: typer.Context, given: bool) -> None:
    """Print the help with every option of a command, and exit."""
    if given:
        ctx.meta[_ALL] = True
        typer.echo(visible_text(ctx.get_help()))
        raise typer.Exit


def command(
    panel: str, *, plan: Plan | None = None, plans: bool = True
) -> Callable[[Callable[[Any, Screen], None]], Callable[..., None]]:
    """Returns a decorator that makes the command of its name of a function of a request and the screen.

    Args:
        panel: the group of commands that it stands in.
        plan: shows what would be done with `--dry-run`; without it the plan of the request.
        plans: whether there is `--dry-run`.
    """

    def made(function: Callable[[Any, Screen], None]) -> Callable[..., None]:
        declared = commands()[function.__name__.replace("_", "-")]
        lacking = {"dry_run": not plans, _HELP_ALL: not declared.first}
        terminal = [name for name in _TERMINAL if not lacking.get(name)]
        flat = with_options(function, declared, plan=plan, terminal=terminal)
        COMMANDS[declared.name] = panel, flat
        return flat

    return made


def analysis(
    panel: str, *, plans: bool = True
) -> Callable[[Callable[[Any, Any, Screen], str | None]], Callable[..., None]]:
    """Returns a decorator that makes a command of a function that shows what a run found; arguments as of `command`.

    The function is given the run, the request and the screen, and returns what is sensible next, where that is not
    `headlens report`. Notes and files are shown after it.
    """

    def made(show: Callable[[Any, Any, Screen], str | None]) -> Callable[..., None]:
        @wraps(show)
        def whole(request: Any, screen: Screen) -> None:
            run = commands()[show.__name__.replace("_", "-")].execute(request, screen)
            if rank():
                return  # only the first of several processes has the terminal, and the tables
            following = show(run, request, screen) or shlex.join(["headlens", "report", str(run.folder)])
            screen.notes(run.notes)
            screen.finish(run.summary(), run.files, following)

        return command(panel, plans=plans)(whole)

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
        sources = {name: context.get_parameter_source(name) for name in declared.options}
        from_file = {n: values[n] for n, found in sources.items() if found is not None and found.name == _FILE}
        declared.refuse_trust(from_file | context.meta.get(GROUPED, {}), source)
        own = {name: values.pop(name, None) for name in _TERMINAL}
        # Of several processes only the first uses the terminal.
        screen = Screen(json=bool(own["json"]) and not rank(), quiet=bool(own["quiet"]) or rank() > 0)
        with _network(offline=values.get("offline", False)):
            if (resumed := own["resume"]) is not None:
                if values["out"] not in (None, resumed) or values["overwrite"]:
                    raise OptionError(
                        "--resume continues a run in its own folder.",
                        "Leave --out and --overwrite out, or leave --resume out.",
                    )
                values |= {"out": resumed, "resume": True}
            for group, grouped in declared.groups.items():
                values |= values_of_group(group, grouped, values.pop(group.replace("-", "_")) or ())
            request = declared.request({**context.meta.get(GROUPED, {}), **values})
            if own["dry_run"]:
                (plan or show_plan)(request, screen, resumed)
            else:
                function(request, screen)

    parameters = [_parameter(own) for own in declared.options.values() if not own.option.group]
    parameters += [_group_parameter(group, grouped) for group, grouped in declared.groups.items()]
    for name, option in _TERMINAL.items():
        if name in terminal or name == _HELP_ALL:  # taken also where `--help` shows all anyway
            kind: Any = bool if option.metavar is None else Path | None
            own = DeclaredOption(name, kind, False if kind is bool else None, option)
            called = _CALLED.get(name)
            parameters.append(
                _parameter(own, callback=called, is_eager=called is not None, hidden=name not in terminal)
            )
    # The command line knows arguments by their place: these come first.
    parameters.sort(key=lambda p: not isinstance(p.annotation.__metadata__[0], typer.models.ArgumentInfo))
    parameters.append(inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {p.name: p.annotation for p in parameters}
    return flat


def _network(*, offline: bool) -> AbstractContextManager[None]:
    """Whether anything may be asked of the network, known before what would ask is imported."""
    if not offline:
        return nullcontext()
    from headlens.hub_access import only_cache

    return only_cache(enabled=True)


def _parameter(option: DeclaredOption, **more: Any) -> inspect.Parameter:
    """An option as Typer reads it from a signature."""
    declared, kind, default = option.option, option.hint, option.default
    if option.repeated:
        values: Any = GenericAlias(list, (get_args(without_none(kind))[0],))
        kind, default = (values, MISSING) if default is MISSING else (values | None, None)
    elif declared.parse is not None:
        if isinstance(default, tuple):  # as it would be typed: a list with commas
            default = ",".join(f"{part:g}" if isinstance(part, float) else str(part) for part in default) or None
        kind, more["parser"] = (str if default is not None else str | None), _parser(option)
    if declared.shown is not None:
        more["show_default"] = declared.shown or False
    more |= {"metavar": declared.metavar, "help": declared.help, "rich_help_panel": declared.panel or None}
    if declared.argument:
        info: Any = typer.Argument(**more)
    else:
        flags = declared.flags or ((option.flag,) if kind is bool else ())
        info = typer.Option(*flags, min=declared.at_least, max=declared.at_most, **more)
    default = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


def _group_parameter(group: str, options: Sequence[DeclaredOption]) -> inspect.Parameter:
    """The option of the command line that gives a group of options."""
    shown = ", ".join(
        own.name.replace("_", "-") + (f" {own.default}" if isinstance(own.default, int | float | str) else "")
        for own in options
    )
    declared = replace(
        GROUPS[group], help=f"{GROUPS[group].help}: {shown}.", metavar="NAME=VALUE,…|FILE.toml", shown=""
    )
    return _parameter(DeclaredOption(group.replace("-", "_"), tuple[str, ...], (), declared))


def values_of_group(group: str, options: Sequence[DeclaredOption], texts: Sequence[str]) -> dict[str, Any]:
    """Returns the values of options of a group by name: `positional=0.5,sink=0.3`, or those in a TOML file.

    Args:
        group: its name.
        options: of it.
        texts: what the command line has, each time that it has the option.

    Raises:
        OptionError: for what is no pair, a name that is none of theirs, or given twice.
    """
    named = {own.name: own for own in options}
    pairs: list[tuple[str, Any]] = []
    for text in texts:
        if Path(text).suffix == ".toml":
            try:
                pairs += parse_toml(Path(text).read_text(encoding="utf-8")).items()
            except (OSError, ValueError) as error:
                message = f"--{group}: {text} cannot be read: {error}."
                raise OptionError(message, "Write NAME = VALUE in lines.") from error
        else:
            # A value may have commas of its own: layers=0,2,4-6.
            parts = [part.partition("=") for part in re.split(r",(?=\s*[\w-]+\s*=)", text) if part.strip()]
            pairs += [(name.strip(), value.strip() if mark else None) for name, mark, value in parts]
    found: dict[str, Any] = {}
    for given, value in pairs:
        name = given.replace("-", "_")
        if value is None or name not in named or name in found:
            problem = "has no value" if value is None else "is given twice" if name in found else "is none of its names"
            names = ", ".join(own.replace("_", "-") for own in named)
            raise OptionError(f"--{group}: {given!r} {problem}.", f"Write NAME=VALUE,… with names among {names}.")
        found[name] = _of_text(named[name], value) if isinstance(value, str) else value
        try:
            named[name].value(found[name])
        except OptionError as error:
            raise OptionError(error.message, error.advice or f"Its default is {named[name].default}.") from error
    return found


def _of_text(option: DeclaredOption, text: str) -> Any:
    """The value that a text stands for, by the type of its option."""
    kind = without_none(option.hint) if option.option.parse is None else str
    if kind is bool and text in ("true", "false"):
        return text == "true"
    for number in (int, float):
        if kind is number:
            try:
                return number(text)
            except ValueError as error:
                words = "a whole number" if kind is int else "a number"
                raise OptionError(f"{option.flag}={text} is not {words}.", "Write one, with a point.") from error
    return text


def _parser(option: DeclaredOption) -> Callable[[Any], Any]:
    parse = option.option.parse
    assert parse is not None

    def parsed(given: Any) -> Any:
        try:
            return parse(given)
        except ValueError as error:
            raise typer.BadParameter(of_readable_length(str(error))) from error

    return parsed


# Options that are about the command line itself: files, which have a metavar, and switches.
_TERMINAL = {
    "resume": Option(
        "Resume the interrupted run in that folder, with the options it was started with.", OUTPUT, "DIR", shown=""
    ),
    "config": Option(
        "Read options from a TOML file, or from the run.json of an earlier run in order to repeat it.",
        OUTPUT,
        "FILE",
        shown="",
    ),
    "json": Option("Print the summary as JSON and nothing else.", OUTPUT),
    "quiet": Option("Print only errors; files are still written.", OUTPUT, flags=("--quiet", "-q")),
    "debug": Option("Show the traceback of an error.", OUTPUT),
    "dry_run": Option(
        "Write nothing: say what would be done, how large the models and data are, and roughly how much time and "
        "memory it would take.",
        OUTPUT,
    ),
    _HELP_ALL: Option("Show every option.", OUTPUT),
}
_CALLED: dict[str, Any] = {"resume": load_run, "config": load_config, _HELP_ALL: show_all}  # as soon as one is read


def rank() -> int:
    """The number that torchrun gave this process, known before torch is; 0 without torchrun."""
    return int(os.environ.get("RANK", "0")) if "TORCHELASTIC_RUN_ID" in os.environ else 0
