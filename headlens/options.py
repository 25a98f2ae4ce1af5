"""How options are declared: once, as fields of dataclasses.

A field made by `option` carries its help, its panel and its check. From these fields come the
options of the command line, what `--config` and run.json hold, the arguments of the functions of `headlens`, and the
reference of options. Modules that declare options import neither torch nor pandas, for which `--help` would wait.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from headlens.errors import OptionError, did_you_mean
from headlens.option_values import check_text, folder

MODEL, CORPUS, STATISTICS, ROLES, RELEVANCE, OUTPUT = "Model", "Corpus", "Statistics", "Roles", "Relevance", "Output"
TRAINING, TASK, HEADS, PRUNING, MASK = "Training", "Task", "Heads", "Pruning", "Attention mask"

Level = Literal["token", "word"]
BETWEEN_WORDS = ", between words"  # stands in titles behind a corpus at the level of words
PenaltyKind = Literal["mean", "sum"]  # what λ multiplies: a mean or a sum
StackName = Literal["encoder", "decoder", "cross"]
BleuTokenizer = Literal["13a", "zh", "ja-mecab", "ko-mecab", "flores200", "intl", "char", "none"]
PROBE_NAMES = ("previous", "duplicate", "induction", "sink", "retrieval", "query-retrieval")  # of classify
CIRCUITS_PROBE = "circuits"  # what weights do, without prompts
# Fewer replicates say too little about the tails that intervals end in.
FEWEST_REPLICATES = 100
DEMO = "demo"  # the model and the corpus that come with headlens
T = TypeVar("T")
_DECLARED = "option"
# What stands in the place of names of files, folders, models and corpora.
_PLACES = (
    "MODEL",
    "RUN|MODEL",
    "[MODEL] [SECOND]",
    "[MODEL]...",
    "SOURCE",
    "FILE",
    "DIR",
    "RUN",
    "MASK",
    "GRAPH",
    "PAPER",
)
# Metadata of a field that Python alone can give, so that run.json does not hold it.
NOT_RECORDED = {"recorded": False}


@dataclass(frozen=True)
class Option:
    """The declaration of an option besides its name, its type and its default value.

    Args:
        help: what it does, in a line.
        panel: the group of options that it stands in.
        metavar: what the help shows in place of a value.
        parse: makes the value of a text, or of what a TOML file holds; raises ValueError with what is wrong.
        flags: how it is written, where that is not its name: `--from`, or `--figures/--no-figures`; of an option of a
            group how it was called before, without dashes.
        shown: what the help shows as default, where the value does not say it; empty for nothing.
        at_least: the smallest number.
        at_most: the largest number.
        above: the number that it is larger than.
        needs: the option, as Python writes it, without which it has no meaning: given alone it is refused; with a value
            behind `=` the one that it needs.
        excludes: the option, as Python writes it, in whose place it stands: both are refused.
        argument: whether the command line takes it by place and not by name.
        group: the option of the command line that gives it, and others of its kind, as NAME=VALUE, see `GROUPS`; empty
            for one of its own.
        trusts: whether it lets code or unsafe files run, so that nothing but the command line may give it: a run.json,
            a TOML file and a recipe may come from anybody.
        of_program: whether it is an option of the program, which is understood before and after every command.
        command_line: whether it can be typed; else it is for Python and for files alone.
        former: what gives a value today that it had before.
        replaces: what gives it today, by the names of switches that it replaces, without dashes.
    """

    help: str
    panel: str = ""
    metavar: str | None = None
    parse: Callable[[Any], Any] | None = None
    flags: tuple[str, ...] = ()
    shown: str | None = None
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    needs: str = ""
    excludes: str = ""
    argument: bool = False
    group: str = ""
    trusts: bool = False
    of_program: bool = False
    command_line: bool = True
    former: Mapping[str, str] = field(default_factory=dict)
    replaces: Mapping[str, str] = field(default_factory=dict)


# Options of the command line that stand for several, which few people change: `--thresholds positional=0.5,sink=0.3`.
GROUPS = {
    "thresholds": Option("Thresholds from which a head has a role", ROLES),
    "law": Option("How masks or gates are drawn, penalised and learned", MASK),
    "training-args": Option("How the model is trained", TRAINING),
    "mask-rules": Option("Where a mask applies, what of it is kept, and controls", MASK),
    "data-args": Option("How texts and examples are read", CORPUS),
    "model-args": Option("How the model is loaded", MODEL),
    "strategy-args": Option("Settings of single modes and strategies", PRUNING),
    "methods": Option("Graphs that are tried, and settings of single methods", "Graphs"),
    "projections": Option("How queries and keys are projected", "Projections"),
    "trust": Option(
        "What may run code of whoever made a model: remote-code, its Python files; pickle, a checkpoint that is not "
        "safetensors",
        MODEL,
        "NAME,…",
        of_program=True,
    ),
}


def option(default: Any, declared: str | Option, panel: str = "", **more: Any) -> Any:
    """Returns a dataclass field that is an option.

    Args:
        default: its value where nothing is given; MISSING where something must be.
        declared: an option of several commands, or the help of one of its own.
        panel: the group of options that it stands in.
        more: what else there is to `Option`; of a declared one what is otherwise here.
    """
    made = replace(declared, **more) if isinstance(declared, Option) else Option(declared, panel, **more)
    return field(default=default, metadata={_DECLARED: made})


@dataclass(frozen=True)
class DeclaredOption:
    """An option of a command.

    Args:
        name: as Python writes it.
        hint: the type of the field.
        default: its value where nothing is given; MISSING where something must be.
        option: its declaration.
    """

    name: str
    hint: Any
    default: Any
    option: Option

    @property
    def flag(self) -> str:
        """How the command line writes it: `--batch-tokens`, or `--thresholds positional` of a group."""
        if not self.option.command_line:
            return self.name.replace("_", "-")
        if self.option.group:
            return f"--{self.option.group} {self.name_in_group}"
        return self.option.flags[0].split("/")[0] if self.option.flags else f"--{self.name.replace('_', '-')}"

    @property
    def name_in_group(self) -> str:
        """Its name within its group; with `--trust`, the name of what is trusted."""
        bare_name = self.name.removeprefix("allow_").removeprefix("trust_") if self.option.trusts else self.name
        return bare_name.replace("_", "-")

    @property
    def typed_alone(self) -> bool:
        """Whether it is an option of the command itself, and not of a group, of the program, or of files alone."""
        return self.option.command_line and not self.option.group and not self.option.of_program

    @property
    def former_names(self) -> set[str]:
        """Names under which the command line had the option by itself in earlier versions, without leading dashes."""
        if self.option.command_line and not self.option.group:
            return set()
        return {*self.option.flags, self.name.replace("_", "-")}

    def moved(self, former: str) -> str:
        """How an option is given that the command line wrote by itself before.

        Args:
            former: one of `former_names`, or a switch that it replaces.
        """
        if former in self.option.replaces:
            return f"--{former} is {self.option.replaces[former]} now."
        if self.option.command_line:
            value = "" if self.is_switch and not self.default else "=false" if self.is_switch else "=VALUE"
            return f"--{former} is a part of --{self.option.group} now: {self.flag}{value}."
        example: Any = True if self.is_switch else "VALUE" if self.default in (None, MISSING, ()) else self.default
        return (
            f"--{former} is not on the command line: write {self.flag} = {json.dumps(example)} in a TOML file and name "
            f"it with --config, or give {self.name}={example!r} in Python."
        )

    @property
    def shown_default(self) -> str:
        """What the help shows as default; empty for nothing."""
        if self.option.shown is not None:
            return self.option.shown
        value = self.default
        if isinstance(value, tuple):
            value = "" if self.repeated else ",".join(f"{v:g}" if isinstance(v, float) else str(v) for v in value)
        if self.is_switch and self.option.group:
            return str(value).lower()
        if self.option.flags and "/" in self.option.flags[0]:
            return self.option.flags[0].split("/")[not value]
        return "" if value in (None, MISSING) or value is False else str(value)

    @property
    def is_switch(self) -> bool:
        """Whether it is either on or off, so that its name alone turns it on."""
        return without_none(self.hint) is bool

    @property
    def repeated(self) -> bool:
        """Whether it is given again for a further value, in place of a list with commas."""
        return self.option.parse is None and get_origin(without_none(self.hint)) is tuple

    def value(self, given: Any) -> Any:
        """Returns what the field holds for a given value; None where that stands for the default.

        Raises:
            OptionError: if it is none of its values.
        """
        if given is None:
            return None if self.default is MISSING else self.default
        kind = without_none(self.hint)
        values = given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
        for text in values:
            if isinstance(text, str | Path):
                check_text(self.flag, str(text), is_place=self.option.metavar in _PLACES)
        if self.option.parse is None and (isinstance(kind, type) or self.repeated):
            one = get_args(kind)[0] if self.repeated else kind
            values = [_of_kind(self.flag, part, one) for part in (values if self.repeated else (given,))]
            given = values if self.repeated else values[0]
        if self.repeated:
            return tuple(map(folder, values)) if get_args(kind)[0] is Path else tuple(values)
        if self.option.parse is not None or kind is Path:
            try:
                given = (self.option.parse or folder)(given)
            except ValueError as error:
                raise OptionError(f"{self.flag}: {error}") from error
        self.check(given)
        return given

    def check(self, value: Any) -> None:
        """Refuses a value that is none of its choices or out of its range.

        Raises:
            OptionError: naming the option, and what it may be.
        """
        if isinstance(value, tuple):
            for part in value:
                self.check(part)
            return
        hint = without_none(self.hint)
        choices = [one for part in (hint, *get_args(hint)) if get_origin(part) is Literal for one in get_args(part)]
        if choices and value not in choices:
            if (today := self.option.former.get(str(value))) is not None:
                raise OptionError(f"{self.flag} {value} is an option of its own now.", f"Give {today}.")
            raise OptionError(f"{self.flag} {value!r} is unknown.", f"Choose one of {', '.join(map(str, choices))}.")
        low, high, above = self.option.at_least, self.option.at_most, self.option.above
        if isinstance(value, int) and abs(value) > sys.maxsize:
            raise OptionError(f"{self.flag} is larger than {sys.maxsize}.", "Give a smaller number, or leave it out.")
        if isinstance(value, float) and not math.isfinite(value):
            raise OptionError(f"{self.flag} {value} is not a finite number.", "Give one, or leave it out.")
        if isinstance(value, int | float) and (
            (low is not None and value < low)
            or (above is not None and value <= above)
            or (high is not None and value > high)
        ):
            least = f"at least {low}" if above is None else f"more than {above}"
            bounds = (
                least if high is None else f"{least} and at most {high}" if low is None else f"from {low} to {high}"
            )
            raise OptionError(f"{self.flag} {value} is out of range.", f"Give {bounds}.")


class Checked:
    """A dataclass of options that checks them as they are declared, wherever they come from."""

    def __post_init__(self) -> None:
        """Refuse what is out of range, none of the choices, or given without what it needs.

        Raises:
            OptionError: naming the option, and what to do.
        """
        declared = {leaf.name: (leaf, value) for leaf, value in _held(self)}
        for leaf, value in declared.values():
            if value is not None and leaf.option.help:
                leaf.check(value)
        for leaf, value in declared.values():
            needs, excludes = leaf.option.needs, leaf.option.excludes
            if not (needs or excludes) or value in (leaf.default, None):
                continue
            if needs:
                name, _, wanted = needs.partition("=")
                needed, held = declared[name]
                if wanted and held != wanted:
                    advice = f"It goes with {needed.flag} {wanted}."
                    raise OptionError(f"{leaf.flag} is not for {needed.flag} {held}.", advice)
                if not wanted and held in (None, (), False, needed.default):
                    advice = f"Give {needed.flag} as well, or leave {leaf.flag} out."
                    raise OptionError(f"{leaf.flag} only applies together with {needed.flag}.", advice)
            if excludes:
                other, held = declared[excludes]
                if held not in (other.default, None):
                    raise OptionError(f"{leaf.flag} and {other.flag} cannot be combined.", "Give one of them.")


@dataclass(frozen=True)
class CommandOptions:
    """A command of headlens: its options, and what does the work.

    `COMMAND` in `options.py` of every analysis is one.

    Args:
        name: as it is typed.
        requests: classes whose options it has.
        run: the function of a request and a reporter, in `recipe.py` beside the options.
        make: makes the request of the values of options; without it the first class is built.
        first: names of the options that most people need, which `--help` shows; of a command with few options all.
    """

    name: str
    requests: tuple[type, ...]
    run: str
    make: Callable[[Mapping[str, Any]], Any] | None = None
    first: tuple[str, ...] = ()

    @property
    def options(self) -> dict[str, DeclaredOption]:
        """Declared options of the command by name, in the order of its requests."""
        return declared_options(*self.requests)

    @property
    def groups(self) -> dict[str, list[DeclaredOption]]:
        """Declared options that the command line gives together, by the name of their group."""
        by_group: dict[str, list[DeclaredOption]] = {}
        for leaf in self.options.values():
            if leaf.option.group and leaf.option.command_line:
                by_group.setdefault(leaf.option.group, []).append(leaf)
        return by_group

    def request(self, values: Mapping[str, Any]) -> Any:
        """Returns the request for the values of options by name, as `build` does.

        Raises:
            OptionError: for a value that cannot be meant.
        """
        return self.make(values) if self.make is not None else build(self.requests[0], values)

    def by_field(self, values: Mapping[str, Any], source: str) -> dict[str, Any]:
        """Returns values under the names of options as Python writes them.

        Args:
            values: by name of option, with dashes or underscores.
            source: where they come from, for the message.

        Raises:
            OptionError: if there is no option of a name.
        """
        flags: dict[str, str] = {}
        for leaf in self.options.values():
            flags |= dict.fromkeys([*leaf.option.flags, *(f"--{former}" for former in leaf.former_names)], leaf.name)
        by_field = {flags.get(f"--{n.replace('_', '-')}", n.replace("-", "_")): value for n, value in values.items()}
        for name in by_field:
            if name not in self.options:
                typed, known = name.replace("_", "-"), (option.replace("_", "-") for option in self.options)
                listed = f"headlens {self.name} {'--help-all' if self.first else '--help'} lists all options."
                hint = did_you_mean(typed, known, listed)
                raise OptionError(f"{source}: there is no option {typed!r} of {self.name}.", hint)
        return by_field

    def refuse_trust(self, values: Mapping[str, Any], source: str) -> None:
        """Refuses values from a file that widen what is trusted.

        Args:
            values: by name of option, those of the file alone.
            source: the file, for the message.

        Raises:
            OptionError: naming the option.
        """
        for name, value in values.items():
            if value and self.options[name].option.trusts:
                flag = self.options[name].flag
                raise OptionError(
                    f"{source} asks for {flag}, and a file may come from anyone.",
                    f"If you trust the model that it names, give {flag} on the command line of headlens {self.name}.",
                )

    def execute(self, request: Any, reporter: Any = None) -> Any:
        """Does what a request asks for, and returns what the recipe of the command returns."""
        package = self.requests[0].__module__.rpartition(".")[0]
        return getattr(import_module(f"{package}.recipe"), self.run)(request, reporter)


class Given(str):
    """The name of a model or corpus that Python gives itself, in the place of one that is loaded by its name.

    Args:
        name: what messages, tables and run.json call it.
        value: the loaded model, or the corpus.
    """

    value: Any

    def __new__(cls, name: str, value: Any) -> Given:
        """Makes the name, a text that also holds the object it stands for."""
        given = super().__new__(cls, name)
        given.value = value
        return given


# What may be given for a type, and words for it.
_GIVEN: Mapping[Any, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: ((str, Real, os.PathLike), "one text"),
    Path: ((str, os.PathLike), "one path"),
}


def _of_kind(flag: str, given: Any, kind: Any) -> Any:
    """The value for a field of a type: of a path its text, of 3.0 and of numpy's 3 the whole number."""
    if kind not in _GIVEN:
        return given
    allowed, words = _GIVEN[kind]
    is_whole = kind is int and isinstance(given, float) and given.is_integer()
    if is_whole or (isinstance(given, allowed) and (kind is bool or not isinstance(given, bool))):
        return kind(given) if kind in (int, str) and not isinstance(given, kind) else given
    if hasattr(given, "to_csv"):
        table = type(given).__name__
        raise OptionError(f"{flag} cannot be a {table}.", "Write it to a file with to_csv, and name the file.")
    raise OptionError(f"{flag} cannot be {str(given)[:60]}.", f"Give {words}.")


def declared_options(*requests: type) -> dict[str, DeclaredOption]:
    """Returns the options of requests by name: their fields, and those of the dataclasses in them.

    Options of one name are one option, declared by the first; a request may word options of its parts otherwise in
    `OVERRIDES`.
    """
    options: dict[str, DeclaredOption] = {}
    for request in requests:
        for declared in (*getattr(request, "OVERRIDES", ()), *_options(request)):
            options.setdefault(declared.name, declared)
    return options


def flag_of(options: Any, name: str) -> str:
    """Returns how the command line writes an option of a request, for messages.

    Args:
        options: the request or a part of it, or its class.
        name: of the option, as Python writes it.
    """
    return declared_options(options if isinstance(options, type) else type(options))[name].flag


def build(request: type[T], values: Mapping[str, Any], **parts: Any) -> T:
    """Returns a request made of the values of its options; those that are not given keep their defaults.

    Args:
        request: a dataclass of options.
        values: by name of option.
        parts: fields that are given as they are.

    Raises:
        OptionError: for a value that cannot be meant.
    """
    worded = {leaf.name: leaf.default for leaf in getattr(request, "OVERRIDES", ())}
    return _build(request, {**worded, **values}, None, parts)


def _build(kind: type[T], values: Mapping[str, Any], instance: Any, parts: Mapping[str, Any]) -> T:
    made = dict(parts)
    for attribute, leaf, part in _fields(cast("type", kind), instance):
        if attribute.name in made or not attribute.init:
            continue
        if part is not None and leaf.default is not None:
            made[attribute.name] = _build(part, values, leaf.default, {})
        elif attribute.name in values and (_DECLARED in attribute.metadata or part is None):
            made[attribute.name] = leaf.value(values[attribute.name])
        elif leaf.default is not MISSING:
            made[attribute.name] = leaf.default
    return kind(**made)


def _options(kind: type, instance: Any = None) -> Iterator[DeclaredOption]:
    for attribute, leaf, part in _fields(kind, instance):
        if part is not None:
            yield from _options(part, None if leaf.default is MISSING else leaf.default)
        elif _DECLARED in attribute.metadata:
            yield leaf


def _held(options: Any) -> Iterator[tuple[DeclaredOption, Any]]:
    """Every field of a dataclass and of those in it, as the option that it would be, and what it holds."""
    for attribute, leaf, part in _fields(type(options), None):
        value = getattr(options, attribute.name)
        if part is None or value is None:
            yield leaf, value
        else:
            yield from _held(value)


def typed_words(options: Any, among: Collection[str] | None = None) -> list[str]:
    """Returns what options hold besides their defaults as words of a command line.

    Args:
        options: a dataclass of options, and of such dataclasses.
        among: names of the options that the other command line has, as Python writes them; None for all.
    """
    words, grouped = list[str](), dict[str, list[str]]()
    for declared, value in _held(options):
        told = declared.option.help and declared.option.command_line and not declared.option.argument
        if not told or value in (declared.default, None) or (among is not None and declared.name not in among):
            continue
        if declared.option.group:
            name = declared.name_in_group
            text = name if value is True else f"{name}={'false' if value is False else _as_typed(value)}"
            grouped.setdefault(declared.option.group, []).append(text)
        elif declared.is_switch:
            words.append(declared.option.flags[0].split("/")[not value] if declared.option.flags else declared.flag)
        else:
            given = value if declared.repeated else (value,)
            words += [word for part in given for word in (declared.flag, _as_typed(part))]
    return words + [word for group, texts in grouped.items() for word in (f"--{group}", ",".join(texts))]


def _as_typed(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_as_typed, value))
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _fields(kind: type, instance: Any) -> Iterator[tuple[Field[Any], DeclaredOption, type | None]]:
    """Every field with the option that it would be, whose default an instance may say, and the dataclass in it."""
    hints = _hints(kind)
    for attribute in fields(kind):
        if instance is not None:
            default = getattr(instance, attribute.name)
        else:
            default = attribute.default_factory() if attribute.default_factory is not MISSING else attribute.default
        held = without_none(hints[attribute.name])
        part = held if isinstance(held, type) and is_dataclass(held) else None
        declared = attribute.metadata.get(_DECLARED, Option(""))
        yield attribute, DeclaredOption(attribute.name, hints[attribute.name], default, declared), part


def without_none(hint: Any) -> Any:
    """Returns a type without None: `int` of `int | None`."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    return kinds[0] if len(kinds) == 1 else Union[tuple(kinds)]  # noqa: UP007 - made at run time


@cache
def _hints(kind: type) -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(kind).items() if get_origin(hint) is not ClassVar}
