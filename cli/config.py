"""`--config` and `--resume`: options from a file, which the command line overrules."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import typer

from headlens.analyses.commands import commands
from headlens.errors import OptionError, did_you_mean
from headlens.nested_text import conform, parse_json, parse_toml
from headlens.option_values import check_text, text_of_file
from headlens.options import DeclaredOption

GROUPED = "headlens.grouped"  # values of a file, of options that the command line gives in groups
_TAKEN = "Give a TOML file, or the run.json of an earlier run."


def load_config(context: typer.Context, path: Path | None) -> Path | None:
    """Take the values of a TOML file, or of the run.json of an earlier run, as the defaults of this command."""
    if path is not None and not context.resilient_parsing:
        check_text("--config", str(path), is_place=True)
        read = _from_run if path.suffix == ".json" else _from_toml
        _set_defaults(context, read(path, context.info_name or "", "--config"), f"--config: {path}")
    return path


def load_run(context: typer.Context, folder: Path | None) -> Path | None:
    """Take the options that an interrupted run began with."""
    if folder is not None:
        check_text("--resume", str(folder), is_place=True)
        if (file := folder / "run.json").is_file() and not context.resilient_parsing:
            _set_defaults(context, _from_run(file, context.info_name or "", "--resume"), f"--resume: {file}")
    return folder


def _from_toml(path: Path, command: str, option: str) -> dict[str, Any]:
    """Top-level keys for every command, and a table for this one; or a step of a recipe, `FILE.toml:STEP`."""
    file, _, step = str(path).rpartition(".toml:")
    path = Path(f"{file}.toml") if file else path
    if not path.exists():
        from headlens.analyses.reproduce.paper_recipe import packaged

        path = packaged(str(path).removesuffix(".toml")) or path
    try:
        content = parse_toml(text_of_file(path, option, _TAKEN))
    except ValueError as error:
        raise OptionError(
            f"{option}: {path} is not valid TOML: {error}.", "Write one option per line, such as: limit = 500"
        ) from error
    if isinstance(content.get("steps"), list):
        return _of_recipe(path, content["steps"], command, step if file else None)
    tables = {name: value for name, value in content.items() if isinstance(value, dict)}
    for name in tables:
        if name not in commands():
            close = get_close_matches(name, commands(), n=1)
            hint = (
                f"Did you mean [{close[0]}]?" if close else f"Tables are named after commands: {', '.join(commands())}."
            )
            raise OptionError(f"{option}: {path}: [{name}] is not a command.", hint)
    return {name: value for name, value in content.items() if name not in tables} | tables.get(command, {})


def _of_recipe(path: Path, steps: list[Any], command: str, name: str | None) -> dict[str, Any]:
    """The options of a step of a recipe, see `headlens reproduce`."""
    from headlens.analyses.reproduce.paper_recipe import Step

    try:
        matching = [step for step in map(Step.of, steps) if step.command == command]
    except ValueError as error:
        raise OptionError(
            f"--config: {path} is not a recipe: {error}.", "headlens reproduce NAME --show prints one."
        ) from error
    chosen = [step for step in matching if name in (None, step.name)]
    if len(chosen) != 1:
        problem = f"no step {name!r} of {command}" if name else f"{len(matching)} steps of {command}"
        which = " or ".join(f"--config {path}:{step.name}" for step in matching)
        raise OptionError(
            f"--config: {path} has {problem}.", f"Name one: {which}." if matching else "Use another command."
        )
    return dict(chosen[0].options)


def _from_run(path: Path, command: str, option: str) -> dict[str, Any]:
    """What run.json records; options without a value keep their default."""
    try:
        record = conform(parse_json(text_of_file(path, option, _TAKEN)), dict[str, Any])
        recorded_command = conform(record.get("command"), str, "command")
        values = conform(record.get("arguments"), dict[str, Any], "arguments")
    except ValueError as error:
        raise OptionError(
            f"{option}: {path} is not the run.json of a headlens run.", "A run folder holds one."
        ) from error
    if recorded_command != command:
        where = path if option == "--config" else path.parent
        raise OptionError(
            f"{option}: {path} records a run of {recorded_command}, not of {command}.",
            f"headlens {recorded_command} {option} {where}",
        )
    return {k: v for k, v in values.items() if v is not None}


def _set_defaults(context: typer.Context, values: Mapping[str, Any], source: str) -> None:
    command_parameters = context.command.get_params(context)
    parameters = {p.name: p for p in command_parameters if p.name}
    names = {flag.removeprefix("--").replace("-", "_"): p.name for p in command_parameters for flag in p.opts}
    command = commands().get(context.info_name or "")
    declared = {} if command is None else command.options
    names |= {
        name.replace("-", "_"): declaration.name
        for declaration in declared.values()
        for name in declaration.former_names
    }
    defaults = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        name = name if name in parameters else names.get(name) or name
        if name in declared and declared[name].former_names:
            context.meta.setdefault(GROUPED, {})[name] = _checked(declared[name], value, source, context)
            continue
        if name not in parameters or name in ("config", "resume", "help", "help_all", "trust"):
            known, listed = (p.replace("_", "-") for p in parameters), f"headlens {context.info_name} --help-all"
            hint = did_you_mean(name.replace("_", "-"), known, f"{listed} lists all options.")
            raise OptionError(f"{source}: {context.info_name} has no option {key!r}.", hint)
        if name in declared:
            _checked(declared[name], value, source, context)
        defaults[name] = _fit(value, parameters[name])
    context.default_map = {**(context.default_map or {}), **defaults}


def _checked(declared: DeclaredOption, value: Any, source: str, context: typer.Context) -> Any:
    """The value itself; Typer would make 2 of 2.7, 1 of true, and a text of a table."""
    try:
        declared.value(value)
    except OptionError as error:
        advice = error.advice or f"headlens {context.info_name} --help says what it accepts."
        raise OptionError(f"{source}: {error.message}", advice) from error
    return value


def _fit(value: Any, parameter: Any) -> Any:
    """A list for an option that takes names with commas between them."""
    takes_many = parameter.multiple or parameter.nargs != 1
    if isinstance(value, list) and not takes_many:
        return ",".join(map(str, value))
    return [value] if takes_many and not isinstance(value, list) else value
