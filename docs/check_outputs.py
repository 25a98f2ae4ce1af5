"""Runs the commands of `console` blocks again and shows printed lines that they no longer print.

    python docs/check_outputs.py [PAGE.md ...] [--data FOLDER]

Commands run in a copy of FOLDER, which has the files that they name. Lines may be left out of a page (`...`), but those
that stand there have to be printed, in this order; white space, dates and times of runs do not count.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_VARIES = re.compile(r"\d{8}-\d{6}|127\.0\.0\.1:\S*|\b\d+(?:\.\d+)? (?:ms|s|min|h)\b|[─\s]+")


def console_blocks(page: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the commands of a page, each with the lines that stand below it."""
    for block in _BLOCK.findall(page):
        command, printed = "", list[str]()
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                if command:
                    yield command, printed
                command, printed = line.removeprefix("$ "), []
            else:
                printed.append(line)
        yield command, printed


def missing_lines(printed: list[str], output: str) -> list[str]:
    """Returns the lines of a page that an output does not have, at their place or later; `...` stands for any."""
    rest, missing = re.sub(_VARIES, " ", output), []
    for line in printed:
        words = re.sub(_VARIES, " ", line).strip()
        if words in ("", "..."):
            continue
        place = rest.find(words)
        if place < 0:
            missing.append(line)
        else:
            rest = rest[place + len(words) :]
    return missing


def main() -> int:
    """Returns the number of commands whose output is another one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--data", type=Path)
    given = parser.parse_args()
    different = 0
    for page in given.pages or [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        with tempfile.TemporaryDirectory() as folder:
            for file in given.data.iterdir() if given.data else ():
                (Path(folder) / file.name).symlink_to(file.resolve())
            for command, printed in console_blocks(page.read_text(encoding="utf-8")):
                words = shlex.split(command, comments=True)
                if words[:1] != ["headlens"] or words[1] == "serve":
                    continue
                run = [sys.executable, "-m", "headlens_cli", *words[1:]]
                done = subprocess.run(
                    run, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"}
                )
                missing = missing_lines(printed, done.stdout + done.stderr)
                different += bool(missing)
                print(f"{page.name}: {command}: {len(missing)} of {len(printed)} lines are not printed", flush=True)
                if missing:
                    print(*(f"  - {line}" for line in missing), sep="\n")
                    print(*(f"  + {line}" for line in (done.stdout + done.stderr).splitlines()[-80:]), sep="\n")
    return different


if __name__ == "__main__":
    sys.exit(min(main(), 1))
