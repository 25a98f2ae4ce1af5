"""Commands, made from what they ask for: every option of a request becomes an option of the command line."""

from __future__ import annotations

import copy
import inspect
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, dataclass, replace
from functools import wraps
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from headlens.analyses.commands import commands
from headlens.errors import InputError, OptionError, of_readable_length
from headlens.learning.training_options import SAME_DATA, named_by_task
from headlens.nested_text import parse_toml
from headlens.options import CORPUS, GROUPS, OUTPUT, TASK, CommandOptions, DeclaredOption, Option, without_none
from headlens.shared_options import FIGURES, OFFLINE
from headlens.tasks.task_options import AUTO
from headlens.visible_text import visible_text

from .config import GROUPED, load_config, load_run
from .screen import Screen, show_plan

Plan = Callable[[Any, Screen, Path | None], None]
_HELP_ALL = "help_all"
_PROGRAM_VALUES = "headlens.program"  # where options of the program are kept that were given
_READ_AS = "headlens.read_as"  # where names of options are kept that a command calls otherwise
_ALWAYS = ("out", "dry_run", "resume", "config")  # in the help of every command
_OF_DATA = (CORPUS, TASK)  # panels
_ALSO_CALLED = dict(SAME_DATA) | {second: first for first, second in SAME_DATA}
# What other programs call options of ours.
_ELSEWHERE = {
    "lr": "learning-rate",
    "output": "out",
    "output-dir": "out",
    **dict.fromkeys(("dataset", "source", "src", "input", "train-data", "train-file"), "corpus"),
    **dict.fromkeys(("translation", "translations", "reference", "tgt"), "target"),
    **dict.fromkeys(("eval-data", "valid", "validation-file"), "dev"),
    "num-epochs": "epochs",
    "max-steps": "steps",
}
# How Typer calls the source of values that are typed, come from a file, or are defaults.
_TYPED, _FILE, _DEFAULTS = "COMMANDLINE", "DEFAULT_MAP", "DEFAULT"
# The last line of the help of every command.
ALSO = "--help-all shows every option, and headlens --help those of every command."
_DEFAULT = " (default: "


@dataclass(frozen=True)
class CommandEntry:
    """A command before its options are known, which only a command that is run, or shown alone, needs.

    Args:
        panel: the group of commands that it stands in.
        help: what it does; the first paragraph stands in the list of commands.
        build: makes what Typer runs, which imports and reads the declarations of all of its options.
    """

    panel: str
    help: str
    build: Callable[[], Any]


COMMANDS: dict[str, CommandEntry] = {}  # by name


class _OfProgram:
    """A command that understands the options of the program, which its own help does not repeat."""

    params: list[Any]
    shows_its_own, add_help_option = False, True

    def get_params(self, ctx: Any) -> list[Any]:
        """Options of the command, and those of the program as the program declares them."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        program = ctx.find_root().command
        if program is self or self.shows_its_own:
            return parameters
        return [*parameters, *(option for option in program.params if option.name in PROGRAM)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the defaults of the command, and not those of a file of `--config`, which may come from anybody."""
        ctx.default_map = None
        shown = copy.copy(self)
        shown.shows_its_own, shown.add_help_option = True, False
        super(_OfProgram, shown).format_help(ctx, formatter)  # type: ignore[misc]


class Folder(_OfProgram, TyperGroup):
    """A command that has further commands below it, and understands the options of the program."""


class ListsOnce(_OfProgram, TyperCommand):
    """A command that refuses a list that is given a second time, which would silently take the place of the first.

    Lists are what the help calls by a plural: HEADS, NAMES, NUMBERS. Of the options of a large command `--help` shows
    those that most people need, in one panel, and `--help-all` every one.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as ever, and look at what was given how often."""
        if program_values(ctx).get(_HELP_ALL):
            _show_help(ctx)
        this = commands().get(self.name or "")
        declarations = {} if this is None else this.options
        words, args = args, [_known_word(word, declarations) for word in args]
        ctx.meta[_READ_AS] = {
            word.partition("=")[0]: read.partition("=")[0]
            for word, read in zip(words, args, strict=True)
            if word != read
        }
        try:
            values, _, given = self.make_parser(ctx).parse_args(list(args))
        except Exception as error:
            # Typer does not export the class of the error.
            refused = str(getattr(error, "option_name", "")).removeprefix("--")
            declaration = next(
                (o for o in declarations.values() if refused in {*o.former_names, *o.option.replaces}), None
            )
            if declaration is None:
                if hasattr(error, "possibilities") and (better := _where_it_is(refused, self.name or "", declarations)):
                    vars(error).update(message=f"No such option: --{refused}, {better}", possibilities=None)
                raise
            raise typer.BadParameter(declaration.moved(refused), ctx=ctx) from error
        for declared in declarations.values():
            if declared.option.former and values.get(declared.name) in declared.option.former:
                declared.check(values[declared.name])
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

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error that names options of data tells which of them were given by another name."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            if any(f"--{name.replace('_', '-')}" in str(error) for name in _ALSO_CALLED):
                for given, read in ctx.meta[_READ_AS].items():
                    error.add_note(f"{given} is another name of {read} here.")
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show what most people need of a large command, unless everything is asked for."""
        shown, declared = copy.copy(self), commands().get(self.name or "")
        if declared is not None and declared.first and not program_values(ctx).get(_HELP_ALL):
            # What few people need is hidden from the help; a shell still completes it.
            shown.params = [copy.copy(parameter) for parameter in self.params]
            for parameter in shown.params:
                if isinstance(parameter, TyperOption):
                    parameter.hidden = parameter.hidden or parameter.name not in (*declared.first, *_ALWAYS)
                    parameter.rich_help_panel, parameter.secondary_opts = None, []
                    said, _, default = (parameter.help or "").partition(_DEFAULT)
                    parameter.help = re.split(r"\. |; ", said)[0].rstrip(".") + "." + (default and _DEFAULT + default)
                    option = declared.options.get(parameter.name)
                    kind = None if option is None else without_none(option.hint)
                    if get_origin(kind) is Literal:
                        parameter.metavar = "NAME"
                        parameter.help = parameter.help.replace(".", f" ({', '.join(get_args(kind))}).", 1)
        super(ListsOnce, shown).format_help(ctx, formatter)


def _known_word(word: str, options: Mapping[str, DeclaredOption]) -> str:
    """Returns an option that names data as the command calls it: `--corpus` of `ablate` is `--data`."""
    written, equals, value = word.partition("=")
    name = written.removeprefix("--").replace("-", "_")
    other = _ALSO_CALLED.get(name, "") if written.startswith("--") and name not in options else ""
    if not {"corpus", "data"} & options.keys() or other not in options or options[other].option.panel not in _OF_DATA:
        return word
    return f"--{other.replace('_', '-')}{equals}{value}"


def _where_it_is(refused: str, command: str, options: Mapping[str, DeclaredOption]) -> str | None:
    """Says how an option is called here that other programs call so, or which commands have it; None if nobody does."""
    called = _ELSEWHERE.get(refused, "")
    for here in (called, _ALSO_CALLED.get(called, "").replace("_", "-")):
        if here.replace("-", "_") in options:
            return f"which is --{here} here."
    name = refused.replace("-", "_")
    having = [
        other
        for other, declared in commands().items()
        if name in declared.options and not declared.options[name].former_names and other != command
    ]
    return f"which {command} does not have: it is one of {', '.join(having)}." if having else None


def _named_by_task(options: Mapping[str, DeclaredOption], values: dict[str, Any]) -> dict[str, Any]:
    """Returns values in which data of a command that learns from texts or examples is called as its task calls it."""
    task = values.get("task")
    if not {"corpus", "data", "dev_data"} <= options.keys() or task in (None, AUTO):
        return values
    return named_by_task(task, values)


def program_values(ctx: Any) -> dict[str, Any]:
    """Returns what options of the program were given, before the command or after it."""
    given: dict[str, Any] = ctx.meta.setdefault(_PROGRAM_VALUES, {})
    return given


def _keep(ctx: typer.Context, option: typer.CallbackParam, value: Any) -> None:
    """Keep an option of the program; what is typed goes before what a file says."""
    name = str(option.name)
    source = getattr(ctx.get_parameter_source(name), "name", "")
    if source == _TYPED and isinstance(value, list):
        program_values(ctx).setdefault(name, []).extend(value)
    elif source == _TYPED:
        program_values(ctx)[name] = value
    elif source == _FILE:
        program_values(ctx).setdefault(name, value)
    if name == _HELP_ALL and value and ctx.parent is not None:
        _show_help(ctx)


def _show_help(ctx: Any) -> NoReturn:
    typer.echo(visible_text(ctx.get_help()))
    raise typer.Exit


def command(
    panel: str, *, plan: Plan | None = None, plans: bool = True, options: Callable[[], CommandOptions] | None = None
) -> Callable[[Callable[[Any, Screen], None]], Callable[[Any, Screen], None]]:
    """Returns a decorator that makes the command of its name of a function of a request and the screen.

    Args:
        panel: the group of commands that it stands in.
        plan: shows what would be done with `--dry-run`; without it the plan of the request.
        plans: whether there is `--dry-run`.
        options: returns the options of a command that is no analysis, which has none of runs: `--resume`, `--config`.
    """

    def made(function: Callable[[Any, Screen], None]) -> Callable[[Any, Screen], None]:
        name = function.__name__.replace("_", "-")
        terminal = [option for option in _TERMINAL if plans or option != "dry_run"]

        def build() -> Any:
            declared = options() if options is not None else commands()[name]
            app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
            app.command(name, cls=ListsOnce, epilog=ALSO)(
                with_options(function, declared, plan=plan, terminal=terminal if options is None else ())
            )
            return typer.main.get_command(app)

        COMMANDS[name] = CommandEntry(panel, inspect.getdoc(function) or "", build)
        return function

    return made


def analysis(
    panel: str, *, plans: bool = True
) -> Callable[[Callable[[Any, Any, Screen], str | None]], Callable[[Any, Screen], None]]:
    """Returns a decorator that makes a command of a function that shows what a run found; arguments as of `command`.

    The function is given the run, the request and the screen, and returns what is sensible next, where that is not
    `headlens report`. Notes and files are shown after it.
    """

    def made(show: Callable[[Any, Any, Screen], str | None]) -> Callable[[Any, Screen], None]:
        @wraps(show)
        def whole(request: Any, screen: Screen) -> None:
            name = show.__name__.replace("_", "-")
            run = commands()[name].execute(request, screen)
            if rank():
                return  # only the first of several processes has the terminal, and the tables
            following = show(run, request, screen) or shlex.join(["headlens", "report", str(run.folder)])
            screen.notes(run.notes)
            screen.finish_run(name, run, following)

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
        grouped, of_program = context.meta.get(GROUPED, {}), program_values(context)
        if of_program.get("trust") and "trust" not in declared.groups:
            raise OptionError(f"--trust: headlens {declared.name} loads no model.", "Leave --trust out.")
        typed = {name: value for name, value in of_program.items() if name in declared.options}
        for group, members in declared.groups.items():
            held = of_program if GROUPS[group].of_program else values
            typed |= values_of_group(group, members, held.pop(group.replace("-", "_"), None) or ())
        declared.refuse_trust({name: value for name, value in grouped.items() if name not in typed}, source)
        terminal_values = {name: values.pop(name, None) for name in _TERMINAL}
        # Of several processes only the first uses the terminal.
        screen = Screen(
            json=bool(of_program.get("json")) and not rank(), quiet=bool(of_program.get("quiet")) or rank() > 0
        )
        with _network(offline=bool(of_program.get("offline"))):
            if (resumed := terminal_values["resume"]) is not None:
                if values["out"] not in (None, resumed) or values["overwrite"]:
                    raise OptionError(
                        "--resume continues a run in its own folder.",
                        "Leave --out and --overwrite out, or leave --resume out.",
                    )
                values |= {"out": resumed, "resume": True}
            # What a command does where nothing is said may depend on other options.
            silent = {name for name in values if getattr(context.get_parameter_source(name), "name", "") == _DEFAULTS}
            values = {name: value for name, value in values.items() if name not in silent or name == "out"}
            request = declared.request({**grouped, **_named_by_task(declared.options, values), **typed})
            if terminal_values["dry_run"]:
                (plan or show_plan)(request, screen, resumed)
            else:
                function(request, screen)

    parameters = [_parameter(declaration) for declaration in declared.options.values() if declaration.typed_alone]
    parameters += [
        _group_parameter(group, grouped) for group, grouped in declared.groups.items() if not GROUPS[group].of_program
    ]
    for name in terminal:
        kind: Any = bool if _TERMINAL[name].metavar is None else Path | None
        declaration = DeclaredOption(name, kind, False if kind is bool else None, _TERMINAL[name])
        called = _CALLED.get(name)
        parameters.append(_parameter(declaration, callback=called, is_eager=called is not None))
    # The command line knows arguments by their place: these come first.
    parameters.sort(key=lambda p: not isinstance(p.annotation.__metadata__[0], typer.models.ArgumentInfo))
    return takes(flat, parameters)


def program_parameters() -> list[inspect.Parameter]:
    """Returns the options of the program as Typer reads them."""
    settings: dict[str, Any] = {"callback": _keep, "expose_value": False}
    return [
        _group_parameter(name, (), **settings) if name in GROUPS else _parameter(declaration, **settings)
        for name, option in PROGRAM.items()
        for declaration in [DeclaredOption(name, bool, option is FIGURES, option)]
    ]


def takes(function: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> Callable[..., None]:
    """Returns the function with parameters that Typer reads, and the context."""
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    function.__signature__ = inspect.Signature([*parameters, context])  # type: ignore[attr-defined]
    function.__annotations__ = {p.name: p.annotation for p in (*parameters, context)}
    return function


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
    # In the line of the help, where it takes up none of its own.
    shown = option.shown_default
    words = f"{declared.help}{_DEFAULT}{shown})" if shown else declared.help
    more |= {
        "metavar": declared.metavar,
        "help": words,
        "show_default": False,
        "rich_help_panel": declared.panel or None,
    }
    if declared.argument:
        info: Any = typer.Argument(**more)
    else:
        flags = declared.flags or ((option.flag,) if kind is bool else ())
        if declared.parse is None:  # of a list its numbers are checked, and not its text
            more |= {"min": declared.at_least, "max": declared.at_most}
        info = typer.Option(*flags, **more)
    default = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


def _group_parameter(group: str, options: Sequence[DeclaredOption], **more: Any) -> inspect.Parameter:
    """The option of the command line that gives a group of options."""
    names = ", ".join(
        declaration.name_in_group
        + (
            f" {declaration.default}"
            if isinstance(declaration.default, int | float | str) and not declaration.is_switch
            else ""
        )
        for declaration in options
    )
    declared = GROUPS[group]
    words = f"{declared.help}: {names}." if names else f"{declared.help}."
    declared = replace(declared, help=words, metavar=declared.metavar or "NAME=VALUE,…", shown="")
    return _parameter(DeclaredOption(group.replace("-", "_"), tuple[str, ...], (), declared), **more)


def values_of_group(group: str, options: Sequence[DeclaredOption], texts: Sequence[str]) -> dict[str, Any]:
    """Returns the values of options of a group by name: `positional=0.5,sink=0.3`, or those in a TOML file.

    Args:
        group: its name.
        options: of it.
        texts: what the command line has, each time that it has the option.

    Raises:
        OptionError: for what is no pair, and for a name that is none of theirs or given twice at once; what is given
            again takes the place of the first, as ever.
    """
    by_name = {declaration.name_in_group.replace("-", "_"): declaration for declaration in options}
    switches = "|".join(re.escape(option.name_in_group) for option in options if option.is_switch) or "=.*"
    # A value may have commas of its own: layers=0,2,4-6.
    between = re.compile(rf",(?=\s*(?:[\w-]+\s*=|(?:{switches})\s*(?:,|$)))")
    pairs: list[tuple[int, str, Any]] = []
    for time, text in enumerate(texts):
        is_file = Path(text).suffix == ".toml" and text.partition("=")[0].strip().replace("-", "_") not in by_name
        if is_file and not any(declaration.option.trusts for declaration in options):
            try:
                pairs += [(time, *pair) for pair in parse_toml(Path(text).read_text(encoding="utf-8")).items()]
            except (OSError, ValueError) as error:
                message = f"--{group}: {text} cannot be read: {error}."
                raise OptionError(message, "Write NAME = VALUE in lines.") from error
        else:
            parts = [part.partition("=") for part in between.split(text) if part.strip()]
            pairs += [(time, name.strip(), value.strip() if mark else None) for name, mark, value in parts]
    values: dict[str, Any] = {}
    seen: set[tuple[int, str]] = set()
    for time, given, written in pairs:
        declaration = by_name.get(given.replace("-", "_"))
        value = True if written is None and declaration is not None and declaration.is_switch else written
        if declaration is None or value is None or (time, declaration.name) in seen:
            known = "has no value" if value is None else "is given twice"
            problem = "is none of its names" if declaration is None else known
            names = ", ".join(option.name_in_group for option in options)
            metavar = "NAME,…" if all(option.is_switch for option in options) else "NAME=VALUE,…"
            raise OptionError(f"--{group}: {given!r} {problem}.", f"Write {metavar} with names among {names}.")
        seen.add((time, declaration.name))
        values[declaration.name] = _of_text(declaration, value) if isinstance(value, str) else value
        try:
            declaration.value(values[declaration.name])
        except OptionError as error:
            raise OptionError(error.message, error.advice or f"Its default is {declaration.default}.") from error
    return values


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
        "Resume the interrupted run in that folder; with the options it was started with.", OUTPUT, "DIR", shown=""
    ),
    "config": Option(
        "Read options from a TOML file, or from a run.json in order to repeat that run.",
        OUTPUT,
        "FILE",
        shown="",
    ),
    "dry_run": Option("Only say what would be done, for how long and with how much memory.", OUTPUT),
}
# Options of the program, which are understood before every command and after it.
PROGRAM = {
    "json": Option("Print the summary as JSON and nothing else.", OUTPUT),
    "quiet": Option("Print only errors; files are still written.", OUTPUT, flags=("--quiet", "-q")),
    "debug": Option("Show the traceback of an error.", OUTPUT),
    "figures": FIGURES,
    "offline": OFFLINE,
    "trust": GROUPS["trust"],
    _HELP_ALL: Option("With a command: show all of its options.", OUTPUT),
}
_CALLED: dict[str, Any] = {"resume": load_run, "config": load_config}  # as soon as one is read


def rank() -> int:
    """The number that torchrun gave this process, known before torch is; 0 without torchrun."""
    return int(os.environ.get("RANK", "0")) if "TORCHELASTIC_RUN_ID" in os.environ else 0
