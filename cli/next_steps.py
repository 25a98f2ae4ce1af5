"""The command that is sensible after another one, on the same model, data and languages, written to be pasted."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headlens.analyses.commands import commands
from headlens.options import CORPUS, MASK, MODEL, TASK, typed_words

_CARRIED = (MODEL, CORPUS, TASK, MASK)  # panels of options that are about a model and its data
# How a command read its data, and in how many parts, is not what the next one is about.
_LEFT = {"batch_tokens", "shard", "merge", "metric", "predict", "also_on", "dev", "dev_target", "kernel"}
_OF_WEIGHTS = {"relevance", "prune", "compact"}  # commands that read no quantised model


def next_step(name: str, request: Any, *arguments: str, without: Sequence[str] = ()) -> str:
    """Returns a command line with what a request says of its model and data, as far as the command has such options.

    Args:
        name: of the command.
        request: of the command before.
        arguments: words behind the name of the command, such as the model.
        without: names of further options that are not repeated.
    """
    options = commands()[name].options
    left = _LEFT | set(without) | ({"quantize", "device_map"} if name in _OF_WEIGHTS else set())
    among = {n for n, o in options.items() if o.option.panel in _CARRIED and not o.option.argument}
    return shlex.join(["headlens", name, *arguments, *typed_words(request, among - left)])


def as_started(commands_text: str) -> str:
    """Returns command lines that begin with `headlens` as the program that is running was started.

    Args:
        commands_text: one command line, or several with `, or ` between them.
    """
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        program = f"{shlex.quote(sys.executable)} -m headlens_cli"
    elif started.parent == Path() or shutil.which("headlens") in (str(started), str(started.absolute())):
        return commands_text
    else:
        program = shlex.quote(str(started))
    return re.sub(r"(^|, or )headlens ", lambda found: f"{found[1]}{program} ", commands_text)
