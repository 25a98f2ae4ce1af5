"""Imports point one way and never in a circle; transformers' attention internals are touched in one place."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# From top to bottom; a file imports from its own folder and from the layers below.
LAYERS = [
    {"headlens_cli", "api", "lm_eval"},
    {"result", "keywords"},
    {"analyses"},
    {"planning"},
    {"learning", "roles"},
    {"relevance_propagation", "maps"},
    {"replay"},
    {"findings"},
    {"pages"},
    {"runs", "tasks", "plots"},
    {"attention_masks"},
    {"metrics", "interventions", "corpora", "models"},
    {"attention"},
    {"weights"},
    {"tables"},
    {"statistics"},
    {"files", "unchanged_files", "hub_access", "languages", "extensions"},
    {"memory"},
    {"heads", "shared_options"},
    {"options", "nested_text"},
    {"option_values"},
    {"errors"},
    {"visible_text"},
]
RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}
# Folders of one layer may see each other only where that is the design: a run folder writes figures.
SIDEWAYS = {("runs", "plots")}
INTERNALS = ("modeling_utils", "masking_utils", "integrations", "modeling_flash_attention_utils")
INTERNAL_NAMES = {"AttentionInterface", "AttentionMaskInterface", "ALL_ATTENTION_FUNCTIONS"}


def files() -> list[Path]:
    found = [path for part in ("headlens", "cli") for path in (ROOT / part).rglob("*")]
    return sorted(path for path in found if path.suffix in {".py", ".pyi"})


def module_of(path: Path) -> list[str]:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ["headlens_cli" if parts[0] == "cli" else parts[0], *parts[1:]]


@cache
def parsed(path: Path) -> ast.Module:
    """A file, which several tests look through and nobody changes."""
    return ast.parse(path.read_text(encoding="utf-8"))


def statements(inside: ast.AST) -> Iterator[ast.AST]:
    """All statements, those within others too; expressions, which are most of a file, hold none."""
    for node in ast.iter_child_nodes(inside):
        if not isinstance(node, ast.expr):
            yield node
            yield from statements(node)


@cache
def import_nodes(path: Path) -> list[ast.AST]:
    """The imports of a file, wherever they are."""
    return [node for node in statements(parsed(path)) if isinstance(node, ast.Import | ast.ImportFrom)]


@pytest.fixture(scope="module", autouse=True)
def _parsed() -> None:
    """All files are read once, and not as a part of one of the tests."""
    for path in files():
        import_nodes(path)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything a file imports, wherever it does so."""
    for node in import_nodes(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = module_of(path)[: -node.level] if node.level else []
            base = ".".join([*package, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def part_of(name: str) -> str | None:
    """The folder or file of headlens that a module belongs to; None for other packages and the package itself."""
    names = name.split(".")
    if names[0] == "headlens_cli":
        return "headlens_cli"
    inside = names[0] == "headlens" and len(names) > 1 and names[1] not in {"__init__", "__version__"}
    return names[1] if inside else None


def allowed(own: str, other: str) -> bool:
    return own == other or RANK[own] < RANK[other] or (own, other) in SIDEWAYS


def test_every_folder_has_its_layer() -> None:
    parts = {part for f in files() if (part := part_of(".".join(module_of(f)))) is not None}
    assert parts == set(RANK)


def every_import() -> Iterator[tuple[str, str, str]]:
    """File and line, the part that the file belongs to, and the name that it imports."""
    for path in files():
        own = part_of(".".join(module_of(path)))
        if own is not None:  # headlens/__init__.py, the one list of all public names, is of no part
            yield from ((f"{path.relative_to(ROOT)}:{line}", own, name) for line, name in imports(path))


def test_imports_point_downwards() -> None:
    seen = [(place, own, name, part_of(name)) for place, own, name in every_import()]
    assert len(seen) > 1000
    assert [f"{p} imports {n}" for p, own, n, other in seen if other is not None and not allowed(own, other)] == []


def graph() -> dict[str, set[str]]:
    """The modules that each module of headlens imports, those in functions left out: they may wait for each other."""
    modules = {".".join(module_of(path)).removesuffix(".__init__"): path for path in files()}
    found = defaultdict(set)
    for module, path in modules.items():
        for node in parsed(path).body:
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                found[module] |= names & modules.keys() - {module}
    return found


def circle(edges: Mapping[str, set[str]]) -> list[str]:
    """A circle of a graph; empty where there is none."""
    try:
        list(TopologicalSorter(edges).static_order())
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_by_way_of_others() -> None:
    edges = graph()
    assert len(edges) > 300
    assert circle(edges) == []


def test_no_analysis_imports_another() -> None:
    """What two analyses share stands below them."""
    rooms = {path.parent.name for path in (ROOT / "headlens" / "analyses").glob("*/__init__.py")}
    assert len(rooms) >= 12
    seen = [
        f"{place} imports {name}"
        for place, own, name in every_import()
        if own == "analyses"
        and name.startswith("headlens.analyses.")
        and (room := name.split(".")[2]) in rooms
        and not place.startswith(f"headlens/analyses/{room}/")
    ]
    assert seen == []


def top_level_packages(path: Path) -> set[str]:
    """The packages that a file imports as soon as it is imported itself."""
    nodes = parsed(path).body
    named = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    named += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return {name.split(".")[0] for name in named}


def test_pages_and_options_need_no_torch() -> None:
    """A report is drawn from tables, `--help` from options: neither waits for torch (nor needs it)."""
    edges = graph()
    light = {m for m in edges if m.startswith("headlens.analyses.") and m.endswith((".report", ".options"))}
    reached, waiting = set(), [*light, "headlens.analyses.report.recipe", "headlens_cli.app"]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += edges[module]
    assert len(light) > 15
    assert {"headlens.pages.command_report", "headlens.metrics.metric_column"} <= reached
    heavy = {"torch", "transformers", "spacy", "datasets"}
    places = {".".join(module_of(path)).removesuffix(".__init__"): path for path in files()}
    assert {m: names for m in reached if m in places and (names := heavy & top_level_packages(places[m]))} == {}


def test_a_circle_is_found() -> None:
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})) == {"a", "b", "c"}


def test_attention_internals_are_the_seams_alone() -> None:
    internals = tuple(f"transformers.{name}" for name in INTERNALS)
    seen = [
        (place, own, name)
        for place, own, name in every_import()
        if name.startswith(internals)
        or (name.startswith("transformers.") and name.rpartition(".")[2] in INTERNAL_NAMES)
    ]
    assert seen, "the seam itself imports them"
    assert [f"{p} imports {n}" for p, own, n in seen if own not in {"attention", "models", "weights"}] == []


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        ("pages", "analyses", False),
        ("plots", "runs", False),
        ("runs", "plots", True),
        ("metrics", "corpora", False),
        ("corpora", "metrics", False),
        ("analyses", "metrics", True),
        ("corpora", "attention", True),
        ("models", "attention", True),
        ("attention", "models", False),
        ("errors", "heads", False),
        ("analyses", "headlens_cli", False),
    ],
)
def test_the_rule_itself(own: str, other: str, expected: bool) -> None:
    assert allowed(own, other) is expected


def test_relative_and_nested_imports_are_seen() -> None:
    found = {name for _, name in imports(ROOT / "cli" / "app.py")}
    assert "headlens_cli.command.COMMANDS" in found
    assert "headlens.__version__" in found  # inside a function


@pytest.mark.slow
def test_modules_with_options_can_be_imported_first() -> None:
    """Whatever asks `headlens` for a module on the way must not import all commands, and so itself."""
    names = [".".join(p.relative_to(ROOT).with_suffix("").parts) for p in (ROOT / "headlens").rglob("*options.py")]
    assert len(names) > 15
    for name in names:
        done = subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{name}: {done.stderr}"
