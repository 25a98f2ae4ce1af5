"""Measure how the code is laid out: sizes, names that occur twice, docstrings that say little.

`python .ci/house.py` prints a table of headlens and cli, with what each measure should come to, and exits with 1 where
a name occurs twice, a docstring is empty or a folder too full; `--list` also names the places. It imports nothing of
headlens and changes nothing.
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Files that mean the same in every folder.
PATTERN = {
    *("__init__.py", "options.py", "recipe.py", "analysis.py", "tables.py", "figures.py", "report.py", "plan.py"),
    *("head_cards.py", "overviews.py", "map_figure.py", "results_table.py", "sweep.py"),
}
FEW_WORDS = 3
MOST_FILES = 25  # of a folder
COMMITS = 100  # the last commits whose changed files are counted
Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = Function | ast.ClassDef


def files() -> list[Path]:
    return sorted(path for part in ("headlens", "cli") for path in (ROOT / part).rglob("*.py"))


def docstring_lines(tree: ast.AST) -> set[int]:
    """Returns the numbers of the lines that docstrings of the module, its classes and functions take up."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | Documented) and ast.get_docstring(node, clean=False) is not None:
            found |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return found


def lines_of_code(text: str, tree: ast.AST) -> tuple[set[int], int]:
    """Lines with code outside docstrings and comments, and how many lines have a comment."""
    code: set[int] = set()
    comments = 0
    idle = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        comments += token.type == tokenize.COMMENT
        if token.type not in idle:
            code |= set(range(token.start[0], token.end[0] + 1))
    return code - docstring_lines(tree), comments


def twice(places: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Names that stand in several places."""
    found = defaultdict(list)
    for name, place in places:
        found[name].append(place)
    return {name: where for name, where in found.items() if len(where) > 1}


def definitions(tree: ast.Module, kind: type[ast.AST] | tuple[type[ast.AST], ...]) -> Iterator[str]:
    """Public names that a module defines at its top."""
    for node in tree.body:
        if isinstance(node, kind) and not getattr(node, "name", "_").startswith("_"):
            yield str(getattr(node, "name", ""))


def ignored_dependencies() -> list[str]:
    """Requirements that deptry is told not to look for."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    return list(tools["deptry"].get("per_rule_ignores", {}).get("DEP002", []))


def files_of_commits() -> list[int]:
    """How many files of headlens and cli each of the last commits changes that change any; none without git."""
    words = ["git", "log", f"-{COMMITS}", "--name-only", "--format=%x00", "--", "headlens", "cli"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    changed = [commit.split() for commit in done.stdout.split("\0")[1:]]
    return [sum(name.endswith(".py") for name in commit) for commit in changed]


def main() -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files()}
    names = {path: path.relative_to(ROOT).as_posix() for path in trees}
    measured = [lines_of_code(path.read_text(encoding="utf-8"), tree) for path, tree in trees.items()]
    code = {path: lines for path, (lines, _) in zip(trees, measured, strict=True)}
    total, comments = sum(map(len, code.values())), sum(count for _, count in measured)
    functions = [(p, n) for p, tree in trees.items() for n in ast.walk(tree) if isinstance(n, Function)]
    sizes = [len(code[p] & set(range(n.body[0].lineno, (n.end_lineno or 0) + 1))) for p, n in functions]
    folders = Counter(p.parent.relative_to(ROOT).as_posix() for p in trees if p.name != "__init__.py")
    short = [
        f"{names[path]}:{node.lineno} {text!r}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, Documented) and (text := ast.get_docstring(node)) is not None
        if len(re.findall(r"[A-Za-z]{4,}", text)) <= FEW_WORDS
    ]
    files_twice = twice((p.name, names[p]) for p in trees if p.name not in PATTERN)
    classes = twice((name, names[p]) for p, tree in trees.items() for name in definitions(tree, ast.ClassDef))
    # A command is a function with the name of the function of the package that it calls.
    inside = {p: tree for p, tree in trees.items() if p.is_relative_to(ROOT / "headlens")}
    public = twice((name, names[p]) for p, tree in inside.items() for name in definitions(tree, Function))
    largest, most = folders.most_common(1)[0]
    ignored, changed = ignored_dependencies(), files_of_commits()
    rows: list[tuple[str, object, str, Iterable[str]]] = [
        ("files", len(trees), "", ()),
        ("lines of code", total, "30000 at most", ()),
        ("lines with a comment, %", round(100 * comments / total, 1), "3 to 5", ()),
        (f"files in the largest folder ({largest})", most, f"{MOST_FILES} at most", ()),
        ("file names that occur twice", len(files_twice), "0", described(files_twice)),
        ("public classes of the same name", len(classes), "0", described(classes)),
        ("public functions of the same name", len(public), "0", described(public)),
        ("functions of at most 3 lines, %", round(100 * sum(s <= 3 for s in sizes) / len(sizes)), "", ()),
        ("docstrings of at most 3 words", len(short), "0", short),
        ("dependencies that are not looked for", len(ignored), "0", ignored),
        (f"files of a commit, median of the last {len(changed)}", statistics.median(changed or [0]), "", ()),
    ]
    for what, number, goal, places in rows:
        print(f"{what:60} {number!s:>8}  {goal}")
        if "--list" in sys.argv:
            print("".join(f"    {place}\n" for place in places), end="")
    sys.exit(most > MOST_FILES or any(number for _, number, goal, _ in rows if goal == "0"))


def described(places_of: dict[str, list[str]]) -> list[str]:
    """A line for each name, with its places."""
    return [f"{name}: {', '.join(places)}" for name, places in sorted(places_of.items())]


if __name__ == "__main__":
    main()
