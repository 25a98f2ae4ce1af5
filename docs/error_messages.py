"""Finds the messages of errors in the code, with what they advise, by reading its syntax.

Wherever an error of `headlens.errors` is made, its first two arguments are its message and its advice. What is
known only when it happens (a file, a number) becomes `…`; names are followed to what is assigned to them before, to
constants of other modules, to what functions return, and from parameters to the calls of their function.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from headlens import errors

ROOT = Path(__file__).resolve().parents[1]
VALUE = "…"
KINDS = {
    name: kind for name, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.HeadlensError)
}
_DEPTH = 6  # names that are followed, one from the other
_MOST = 40  # alternatives of one message that are told
_Function = ast.FunctionDef | ast.AsyncFunctionDef
Branches = tuple[tuple[int, str], ...]


@dataclass(frozen=True, order=True)
class Message:
    """One message that a reader may see.

    Attributes:
        module: file that it comes from, as `corpora/conllu.py`.
        text: what it says, with `…` for what is known only then.
        advice: what to do; empty where the message says it.
        kind: name of the class of the error.
    """

    module: str
    text: str
    advice: str
    kind: str


class Module:
    """The syntax of one file, with what its names may stand for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @property
    def name(self) -> str:
        """Path below the package, such as `corpora/sources.py`; below `cli/` with that folder."""
        place = self.path.relative_to(ROOT)
        return str(place if place.parts[0] == "cli" else place.relative_to("headlens")).replace("\\", "/")

    @cached_property
    def calls(self) -> dict[str, list[ast.Call]]:
        """Every call in the file, by the name that is called, without what stands before a dot."""
        found = defaultdict(list)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                found[called(node)].append(node)
        return found

    @cached_property
    def functions(self) -> dict[str, _Function]:
        """Definitions of functions and methods in the file; of several with one name the last."""
        return {node.name: node for node in ast.walk(self.tree) if isinstance(node, _Function)}

    @cached_property
    def imported(self) -> dict[str, tuple[Path, str]]:
        """The file and the name there of what is imported from headlens."""
        found = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headlens"):
                parts = str(node.module).replace("headlens_cli", "cli").split(".")
                path = ROOT.joinpath(*parts).with_suffix(".py")
                found |= {alias.asname or alias.name: (path, alias.name) for alias in node.names if path.is_file()}
        return found

    def branches(self, node: ast.AST, scope: ast.AST) -> Branches:
        """Returns the lists of statements that lead from a scope to a node, each by its statement and field."""
        found: list[tuple[int, str]] = []
        while node is not scope:
            parent = self.parents[node]
            for field, value in ast.iter_fields(parent):
                if isinstance(node, ast.stmt) and isinstance(value, list) and node in value:
                    found.append((id(parent), field))
            node = parent
        return tuple(reversed(found))

    def reaching(self, node: ast.AST, scope: ast.AST, name: str) -> list[tuple[Branches, ast.expr]]:
        """Returns what a name may hold where it is used: its last certain assignment, and those in branches since."""
        use, line = self.branches(node, scope), getattr(node, "lineno", 0)
        before = [
            one
            for one in _assignments(scope, name)
            if (one[1].lineno <= line or isinstance(scope, ast.Module)) and node not in ast.walk(one[1])
        ]
        certain = max((v.lineno for branches, v in before if use[: len(branches)] == branches), default=0)
        return [
            (branches, value) for branches, value in before if value.lineno >= certain and not _excludes(branches, use)
        ]

    def scopes(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yields the functions around a node, the nearest first, and the module."""
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, _Function | ast.Module):
                yield node


def called(node: ast.Call) -> str:
    """Returns the name of what is called, without what stands before a point."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


class Catalogue:
    """The messages of all modules of the package and the command line."""

    def __init__(self) -> None:
        paths = sorted([*(ROOT / "headlens").rglob("*.py"), *(ROOT / "cli").rglob("*.py")])
        self.modules = {path: Module(path) for path in paths}

    def messages(self) -> list[Message]:
        """Returns every message once, by module and text."""
        return sorted(set(itertools.chain.from_iterable(map(self._messages_of, self.modules.values()))))

    @cached_property
    def _advice_of_conllu(self) -> str:
        module = self.modules[ROOT / "headlens" / "corpora" / "conllu.py"]
        return self.texts(module, module.reaching(module.tree, module.tree, "ADVICE")[0][1])[0]

    def _messages_of(self, module: Module) -> Iterator[Message]:
        for name, calls in module.calls.items():
            for call in calls:
                given = {str(keyword.arg): keyword.value for keyword in call.keywords}
                advice = call.args[1] if len(call.args) > 1 else given.get("advice")
                if name in KINDS and call.args:
                    start = "FILE:LINE: " if "line" in given else "FILE: " if "path" in given else ""
                    yield from self._made(module, call.args[0], advice, name, start=start)
                elif name == "_FaultError" and call.args:  # of CoNLL-U, told with its file and line
                    yield from self._made(
                        module, call.args[0], ast.Constant(self._advice_of_conllu), "CorpusError", start="FILE:LINE: "
                    )
                elif name == "read_errors":
                    kind = ast.unparse(call.args[3]) if len(call.args) > 3 else "InputError"
                    for what, told in self._pairs(module, call.args[1], call.args[2]):
                        yield Message(module.name, f"{VALUE} {what}: {VALUE}.", told, kind)
                elif name == "ValueError" and "option" in module.name and call.args:
                    # What makes values of options raises these, and the option is told before them.
                    yield from self._made(module, call.args[0], None, "OptionError", start=f"--{VALUE}: ")

    def _made(
        self, module: Module, text: ast.expr, advice: ast.expr | None, kind: str, *, start: str
    ) -> Iterator[Message]:
        for message, told in self._pairs(module, text, advice):
            if re.search(r"[a-z]{2}", message):  # of those that are handed on as they came nothing is known here
                yield Message(module.name, start + message, told, kind)

    def _pairs(self, module: Module, text: ast.expr, advice: ast.expr | None) -> Iterator[tuple[str, str]]:
        """Yields messages with the advice that each of them is given with."""
        for home, value, told in self._chosen_together(module, text, advice):
            texts = self.texts(home, value)
            advices = [tidy(one) for one in self.texts(home, told)] if told is not None else [""]
            if isinstance(value, ast.IfExp) and isinstance(told, ast.IfExp) and len(texts) == len(advices):
                yield from zip(map(tidy, texts), advices, strict=True)
            else:
                yield from ((tidy(message), " / ".join(dict.fromkeys(advices))) for message in texts)

    def _chosen_together(
        self, module: Module, text: ast.expr, advice: ast.expr | None
    ) -> Iterator[tuple[Module, ast.expr, ast.expr | None]]:
        """Yields what two names are given: by one call, or in one branch of their function."""
        scope = next(module.scopes(text))
        if isinstance(text, ast.Call) and called(text) == "format" and isinstance(text.func, ast.Attribute):
            text = text.func.value  # its places are told as they are
        if not isinstance(text, ast.Name) or not isinstance(advice, ast.Name):
            yield module, text, advice
            return
        names = [argument.arg for argument in scope.args.args] if isinstance(scope, _Function) else []
        if text.id in names and advice.id in names:
            for home, given in self._calls_of(scope, names):
                if text.id in given:
                    yield home, given[text.id], given.get(advice.id)
            return
        advices = list(_assignments(scope, advice.id))
        for branches, value in module.reaching(text, scope, text.id) or [((), text)]:
            around = [(len(outer), told.lineno, told) for outer, told in advices if branches[: len(outer)] == outer]
            yield module, value, max(around, key=lambda one: one[:2])[2] if around else advice

    def _calls_of(self, function: ast.AST, names: list[str]) -> Iterator[tuple[Module, dict[str, ast.expr]]]:
        """Yields the module of every call of a function with what is given for its parameters."""
        own = names[1:] if names[:1] in (["self"], ["cls"]) else names
        name = getattr(function, "name", "")
        # A private name is its module's own.
        homes = [m for m in self.modules.values() if not name.startswith("_") or m.functions.get(name) is function]
        for module in homes:
            for call in module.calls.get(name, ()):
                given = dict(zip(own, call.args, strict=False))
                yield module, given | {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}

    def texts(self, module: Module, node: ast.AST, depth: int = _DEPTH) -> list[str]:
        """Returns the texts that an expression may give."""
        match node:
            case ast.Constant(value=str(text)):
                found = [text]
            case ast.JoinedStr(values=parts):
                found = self._joined([self._part(module, part, depth) for part in parts])
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                found = self._joined([self.texts(module, left, depth), self.texts(module, right, depth)])
            case ast.IfExp(body=body, orelse=other):
                found = [*self.texts(module, body, depth), *self.texts(module, other, depth)]
            case ast.BoolOp(values=values):
                found = list(itertools.chain.from_iterable(self.texts(module, value, depth) for value in values))
            case ast.Name(id=name) if depth:
                found = self._named(module, node, name, depth - 1)
            case ast.Call() if depth:
                found = self._returned(module, node, depth - 1)
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=int(place))) if depth:
                scope = next(module.scopes(node))
                values = [value for _, value in module.reaching(node, scope, name) if isinstance(value, ast.Call)]
                found = [text for value in values for text in self._returned(module, value, depth - 1, place)] or [
                    VALUE
                ]
            case _:
                found = [VALUE]
        return list(dict.fromkeys(found))[:_MOST]

    @staticmethod
    def _joined(parts: list[list[str]]) -> list[str]:
        return ["".join(chosen) for chosen in itertools.islice(itertools.product(*parts), _MOST)]

    def _part(self, module: Module, part: ast.expr, depth: int) -> list[str]:
        if not isinstance(part, ast.FormattedValue):
            return self.texts(module, part, depth)
        if part.conversion == ord("r"):
            return [f"'{VALUE}'"]
        texts = self.texts(module, part.value, depth)
        names = len(texts) > 3 and not any(" " in text for text in texts)
        return [VALUE] if names or VALUE in texts else texts  # what covers the others, and names that are chosen from

    def _named(self, module: Module, node: ast.AST, name: str, depth: int) -> list[str]:
        for scope in module.scopes(node):
            values = [value for _, value in module.reaching(node, scope, name)]
            if values:
                return list(itertools.chain.from_iterable(self.texts(module, value, depth) for value in values))
            if isinstance(scope, _Function):
                names = [argument.arg for argument in scope.args.args]
                if name in names:  # what is given for it wherever a function of this name is called
                    calls = self._calls_of(scope, names)
                    given = [self.texts(home, parts[name], depth) for home, parts in calls if name in parts]
                    default = dict(zip(reversed(names), reversed(scope.args.defaults), strict=False)).get(name)
                    given.append([] if default is None else self.texts(module, default, depth))
                    return list(itertools.chain.from_iterable(given)) or [VALUE]
                if name in {argument.arg for argument in scope.args.kwonlyargs}:
                    return [VALUE]
        if name in module.imported:
            path, original = module.imported[name]
            other = self.modules[path]
            values = [value for _, value in _assignments(other.tree, original)]
            return list(itertools.chain.from_iterable(self.texts(other, value, depth) for value in values)) or [VALUE]
        return [VALUE]

    def _returned(self, module: Module, call: ast.Call, depth: int, place: int | None = None) -> list[str]:
        """What a call may return; of functions that return tuples, at one place of them."""
        name = called(call)
        match name, call.args:
            case "counted", [_, noun]:
                return [f"{VALUE} {text}(s)" for text in self.texts(module, noun, depth)]
            case "format", _ if isinstance(call.func, ast.Attribute):
                return [re.sub(r"\{[^}]*\}", VALUE, text) for text in self.texts(module, call.func.value, depth)]
        if not isinstance(call.func, ast.Name):
            return [VALUE]
        if name in module.imported:
            path, name = module.imported[name]
            module = self.modules[path]
        function = module.functions.get(name)
        if function is None:
            return [VALUE]
        values = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
        if place is not None:
            chosen = [part for value in values for part in ast.walk(value) if isinstance(part, ast.Tuple)]
            values = [value.elts[place] for value in chosen if len(value.elts) > place]
        return list(itertools.chain.from_iterable(self.texts(module, value, depth) for value in values)) or [VALUE]


def _excludes(one: Branches, other: Branches) -> bool:
    """Whether two places are in different branches of one statement, of which only one is run."""
    return any(a[0] == b[0] and a != b for a, b in zip(one, other, strict=False))


def _assignments(scope: ast.AST, name: str, branches: Branches = ()) -> Iterator[tuple[Branches, ast.expr]]:
    """Yields what is assigned to a name, with the branches that lead there, functions and classes inside left out."""
    for field, value in ast.iter_fields(scope):
        parts = value if isinstance(value, list) else [value]
        is_branch = bool(parts) and isinstance(parts[0], ast.stmt)
        inside = (*branches, (id(scope), field)) if is_branch else branches
        for node in parts:
            if not isinstance(node, ast.AST) or isinstance(node, _Function | ast.ClassDef | ast.Lambda):
                continue
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    yield from ((inside, found) for found in _matched(target, node.value, name))
            elif (isinstance(node, ast.AnnAssign) and node.value is not None) or isinstance(node, ast.NamedExpr):
                yield from ((inside, found) for found in _matched(node.target, node.value, name))
            yield from _assignments(node, name, inside)


def _matched(target: ast.expr, value: ast.expr, name: str) -> Iterator[ast.expr]:
    if isinstance(target, ast.Name) and target.id == name:
        yield value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, part in zip(target.elts, value.elts, strict=True):
            yield from _matched(one, part, name)


def tidy(text: str) -> str:
    """Returns a text on one line, in which values without anything between them are one."""
    return re.sub(rf"{VALUE}(?:[, ]*{VALUE})+", VALUE, re.sub(r"\{\w*(?::[^}]*)?\}", VALUE, " ".join(text.split())))
