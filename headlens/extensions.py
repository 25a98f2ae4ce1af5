"""What other packages add to headlens by entry points."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, wraps
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from headlens.errors import ExtensionError, HeadlensError, Interrupted
from headlens.visible_text import visible_text

T = TypeVar("T")
_PATIENCE = 5.0  # seconds after which a package that does not come to an end is named
_loaded: dict[tuple[str, str], dict[str, str]] = {}


class Registry(Mapping[str, T], Generic[T]):
    """Things by name: those of headlens, and those that other packages register in a group of entry points.

    Names are known without importing anything; what another package has is imported when it is asked for.

    Args:
        group: of the entry points.
        own: those of headlens.
        kind: what an entry point has to name.
        what: that, in words.
    """

    def __init__(self, group: str, built_in: Mapping[str, T], kind: type[T], what: str) -> None:
        self._group, self._own, self._kind, self._what = group, built_in, kind, what
        self._found: dict[str, T] = {}

    @cached_property
    def _points(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self._group)}

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._own, *self._points]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def is_own(self, name: str) -> bool:
        """Whether headlens itself has something of that name."""
        return name in self._own

    def __getitem__(self, name: str) -> T:
        """Returns the entry of a name.

        Raises:
            KeyError: if there is none.
            ExtensionError: if another package takes a name of headlens, or what it names cannot be loaded or is
                something else.
        """
        if name in self._found:
            return self._found[name]
        points = self._points
        for taken in self._own.keys() & points.keys():
            raise ExtensionError(
                f"The entry point {taken!r} of {self._group}{_package(points[taken])} takes a name of headlens.",
                "Give it another name.",
            )
        if name in self._own:
            return self._own[name]
        loaded = load_extension(points[name])
        if not isinstance(loaded, self._kind):
            raise ExtensionError(
                f"The entry point {name!r} of {self._group}{_package(points[name])} names no {self._what}, but "
                f"something of the type {type(loaded).__name__}.",
                f"Let it name a {self._kind.__module__}.{self._kind.__name__}.",
            )
        return self._found.setdefault(name, loaded)


def load_extension(point: EntryPoint) -> Any:
    """Returns what an entry point of another package names, and remembers it for `loaded_extensions`.

    What the package prints goes to standard error, and where it takes long, it is named there.

    Raises:
        ExtensionError: if it cannot be imported, with the package that it comes from.
    """
    waiting = threading.Timer(_PATIENCE, _tell_of_waiting, [point])
    waiting.daemon = True
    waiting.start()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            loaded = point.load()
    except Interrupted:  # by who waits for it
        raise
    except BaseException as error:
        package = _package(point, "{}")
        raise ExtensionError(
            f"The entry point {point.name!r} of {point.group} ({point.value}) cannot be loaded: "
            f"{type(error).__name__}: {error}.",
            f"Mend the package{package} that registers it, or take it away with pip uninstall{package}.",
        ) from error
    finally:
        waiting.cancel()
    dist = point.dist
    about = {} if dist is None else {"package": dist.name, "version": getattr(dist, "version", "")}
    _loaded[point.group, point.name] = {"group": point.group, "name": point.name, "value": str(point.value), **about}
    return loaded


@contextlib.contextmanager
def extension_errors(what: str, part: str) -> Iterator[None]:
    """Raises errors in the code of another package as errors of that package; errors of headlens stay as they are.

    Args:
        what: fails, such as "The metric mine".
        part: the method or function that is called.

    Raises:
        ExtensionError: where anything else is raised, but for want of memory.
    """
    try:
        yield
    except Exception as error:
        from headlens.memory import is_out_of_memory  # noqa: PLC0415 - torch is not for who asks for names only

        # A disk that is full is no fault of who asks for a score.
        if isinstance(error, HeadlensError | OSError) or is_out_of_memory(error):
            raise
        raise ExtensionError(
            f"{what} fails in its {part}: {type(error).__name__}: {error}.",
            "Fix that method; --debug, or a call from Python, shows the line.",
        ) from error


def with_extension_errors(entry: T, what: str) -> T:
    """Returns a dataclass of another package whose functions and iterators raise errors with the package's name.

    Args:
        entry: the dataclass; fields at their default stay as they are.
        what: as in `extension_errors`.
    """

    def wrapped(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any) -> Any:
            with extension_errors(what, part):
                made = function(*arguments)
            return yielded(part, made) if isinstance(made, Iterator) else made

        return call

    def yielded(part: str, made: Iterator[Any]) -> Iterator[Any]:
        with extension_errors(what, part):
            yield from made

    fields = [(f.name, getattr(entry, f.name), f.default) for f in dataclasses.fields(entry)]  # type: ignore[arg-type]
    changes = {n: wrapped(n, value) for n, value, default in fields if callable(value) and value is not default}
    return dataclasses.replace(entry, **changes)  # type: ignore[type-var]


def loaded_extensions() -> list[dict[str, str]]:
    """What other packages added to this process so far: group, name and value of the entry point, package, version."""
    return [_loaded[key] for key in sorted(_loaded)]


def _package(point: EntryPoint, words: str = "of the package {}") -> str:
    return "" if point.dist is None else " " + words.format(point.dist.name)


def _tell_of_waiting(point: EntryPoint) -> None:
    words = f"Waiting for the entry point {point.name!r} of {point.group}{_package(point)} to load …"
    sys.stderr.write(visible_text(words) + "\n")
