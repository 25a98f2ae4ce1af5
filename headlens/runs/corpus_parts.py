"""Parts of a corpus that runs of their own read, perhaps on other machines, and the sums of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headlens.errors import InputError, OptionError, read_errors
from headlens.nested_text import conform
from headlens.runs.checkpoint import IDENTITY, unpacked
from headlens.runs.corpus_pass import PassState
from headlens.runs.processes import Processes
from headlens.runs.run_record import changes, read_run

# What parts may differ in: where they were computed and how, not what.
_APART = {"shard", "merge", "figures", "device", "batch_tokens", "offline"}


def parse_shard(text: str) -> Processes:
    """Reads which part of a corpus is meant: `2/5` is the second of five.

    Raises:
        OptionError: for anything else.
    """
    number, _, of = text.partition("/")
    if not (number.isdecimal() and of.isdecimal() and len(of) <= 6 and 1 <= int(number) <= int(of)):
        raise OptionError(
            f"--shard {text} is not a valid part of a corpus.", "Give one such as 2/5: the second of five."
        )
    return Processes(int(number) - 1, int(of))


def sums_file(name: str) -> str:
    """Returns the name of the file with the sums of a pass."""
    return f"sums-{name}.npz"


@dataclass(frozen=True)
class PartialSums:
    """The sums that parts of a corpus gave.

    Args:
        folders: of the runs of all parts, in the order of the parts.
    """

    folders: Sequence[Path]

    @classmethod
    def of(cls, folders: Sequence[Path], command: str, arguments: Mapping[str, Any]) -> PartialSums:
        """Looks at the runs of parts, of which every one has to be there.

        Args:
            folders: of the runs, in any order.
            command: that wrote them.
            arguments: that they have to have begun with, but for where and how they were computed.

        Raises:
            InputError: if one is no such run, was asked something else, or a part is missing or there twice.
        """
        found: dict[int, Path] = {}
        of: set[int] = set()
        for folder in folders:
            record = read_run(folder)
            own = {} if record is None else record.get("arguments") or {}
            if record is None or record.get("command") != command or not own.get("shard"):
                raise InputError(f"{folder} holds no run of headlens {command} --shard.", "Leave it out of --merge.")
            if record.get("status") != "finished":
                raise InputError(
                    f"{folder}: this part has not finished.", f"headlens {command} --resume {folder}, then merge."
                )
            shared = arguments.keys() - _APART
            if differing := changes({name: own.get(name) for name in shared}, {n: arguments[n] for n in shared}):
                raise InputError(
                    f"{folder} was run with different options: {differing}.",
                    f"Give the options of the parts: headlens {command} --config {folder}/run.json --merge …",
                )
            part = parse_shard(str(own["shard"]))
            of.add(part.count)
            if part.rank in found:
                raise InputError(f"{folder} and {found[part.rank]} are the same part.", "Leave one of them out.")
            found[part.rank] = folder
        (count, *more) = sorted(of)
        missing = [f"{number + 1}/{count}" for number in range(count) if number not in found]
        if more or missing:
            problem = f"parts of {count} and of {more[0]}" if more else f"the part {missing[0]} is missing"
            raise InputError(f"--merge: {problem}.", "Name the runs of all parts of one corpus.")
        return cls([found[number] for number in range(count)])

    def fill(self, state: PassState, name: str, identity: Mapping[str, str]) -> None:
        """Replaces a state by the sums of one pass, of all parts.

        Args:
            state: of the pass.
            name: of the pass.
            identity: what the sums depend on, in words fit for a message ("the corpus" -> its hash).

        Raises:
            InputError: if they are missing or damaged, or were computed from something else.
        """
        contents = []
        for folder in self.folders:
            path = folder / sums_file(name)
            with read_errors(path, "cannot be read", "Run this part again with --overwrite."):
                content = path.read_bytes()
                before = conform(unpacked(content)[0][IDENTITY], dict[str, str])
                state.fill([content])  # what is damaged is told with its file
            if changed := [what for what, value in identity.items() if before.get(what) != value]:
                raise InputError(
                    f"{path}: {' and '.join(changed)} changed since this part was run.",
                    "Merge with the same model and corpus files as the parts, or run the parts again.",
                )
            contents.append(content)
        with read_errors(self.folders[0], "does not fit the other parts", "Run all parts again with --overwrite."):
            state.fill(contents)
