"""The public names: pinned, resolvable, and free until used."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

import headlens

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = [*sorted((ROOT / "examples").glob("*.py")), *sorted((ROOT / "notebooks").glob("*.ipynb"))]
NAMES = [
    "Ablation",
    "AblationOptions",
    "AttentionCall",
    "AttentionMask",
    "AttentionSession",
    "BatchTokens",
    "CallContext",
    "CallView",
    "Classification",
    "ClassifyOptions",
    "Corpus",
    "CorpusReader",
    "DataOptions",
    "Draws",
    "Edit",
    "EvaluationOptions",
    "Example",
    "Examples",
    "GateOptions",
    "Head",
    "HeadGates",
    "HeadRelevances",
    "HeadTable",
    "HeadlensError",
    "LoadedModel",
    "MaskEdit",
    "Metric",
    "MetricColumn",
    "ModelOptions",
    "Observer",
    "Pruned",
    "RelevanceOptions",
    "RelevanceSession",
    "Result",
    "Sentence",
    "Site",
    "Statistics",
    "StochasticGates",
    "Thresholds",
    "Tokens",
    "TrainingSet",
    "Word",
    "ablate",
    "ablate_heads",
    "attach_edit",
    "attend",
    "attention_page",
    "check_model",
    "classify",
    "classify_heads",
    "collect_attention",
    "compact",
    "compact_model",
    "evaluate",
    "find_sites",
    "head_relevance",
    "load",
    "masks",
    "open_corpus",
    "open_task",
    "paired_comparison",
    "probe",
    "prune",
    "relevance",
    "report",
    "reproduce",
    "sparsefinder",
    "train",
    "train_dam",
    "train_gates",
]


def test_names_are_pinned() -> None:
    assert headlens.__all__ == NAMES
    assert dir(headlens) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_resolves_to_what_its_home_calls_so(name: str) -> None:
    value = getattr(headlens, name)
    assert value.__name__ == name
    home = importlib.import_module(value.__module__)
    assert home.__name__.startswith("headlens.")
    assert getattr(home, name) is value


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="module 'headlens' has no attribute 'unheard_of'"):
        _ = headlens.unheard_of


def test_import_costs_nothing() -> None:
    """A fresh interpreter that imports headlens has not loaded what takes seconds."""
    code = "import sys, headlens; dir(headlens); print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "headlens" in loaded
    assert not loaded & {"torch", "transformers", "numpy", "pandas", "scipy", "matplotlib", "typer"}


def source(program: Path) -> str:
    """The Python code of a script, or of all cells of a notebook without IPython's own commands (`%matplotlib`)."""
    if program.suffix == ".py":
        return program.read_text(encoding="utf-8")
    cells = nbformat.read(program, as_version=4).cells
    lines = [line for cell in cells if cell.cell_type == "code" for line in cell.source.splitlines()]
    return "\n".join(re.sub("^( *)%.*", r"\1pass", line) for line in lines)


def modules_of_headlens(code: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(code)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name for name in names if name.split(".")[0] == "headlens"}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_examples_and_notebooks_import_public_names_only(program: Path) -> None:
    assert modules_of_headlens(source(program)) <= {"headlens"}


def test_an_import_from_inside_is_seen() -> None:
    assert modules_of_headlens("from headlens.runs import lock\nimport numpy, headlens") == {
        "headlens",
        "headlens.runs",
    }
