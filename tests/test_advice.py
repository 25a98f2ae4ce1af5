"""What errors advise, and what any string of the package names, is an option or a command that there is.

`tests/cli/conftest.py` holds every error of the command line against this as well.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from advice import misleading, options

ROOT = Path(__file__).resolve().parents[1]
# Options of git and torchrun.
OTHERS = {"--abbrev", "--always", "--dirty", "--error-unmatch", "--exclude", "--nproc-per-node"}


def strings(path: Path) -> list[tuple[int, str]]:
    """The strings of a module by their lines, but for docstrings."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source if "--" in source else "")
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings]
    return [(node.lineno, node.value) for node in constants if isinstance(node.value, str)]


def test_every_option_that_is_named_is_one_of_the_program() -> None:
    every = "; ".join(f"headlens {name}" for name in options())
    found, wrong = 0, []
    for path in [*(ROOT / "headlens").rglob("*.py"), *(ROOT / "cli").rglob("*.py")]:
        texts = [(line, text) for line, text in strings(path) if "--" in text]
        found += sum(text.count("--") for _, text in texts)
        names = misleading([], "; ".join([every, *(text for _, text in texts)])) if texts else []
        told = [(line, name) for line, text in texts for name in names if name in text and name not in OTHERS]
        wrong += [f"{path.relative_to(ROOT)}:{line}: {name}" for line, name in told]
    assert found > 300
    assert wrong == []


@pytest.mark.parametrize(
    ("words", "said", "wrong"),
    [
        (["ablate"], "Error: too long. Give a larger --epochs.", ["--epochs"]),
        (["train"], "Error: too long. Give a larger --epochs.", []),
        (["ablate"], "Train it: headlens train MODEL --epochs 3.", []),
        (["ablate", "--lenght=3"], "Error: no such option: --lenght Did you mean --limit?", []),
        (["ablate"], "Install it: pip install 'sacrebleu[ja]' --upgrade", []),
        (["ablate"], "It has none; --debug shows where.", []),
        (["compare"], "Error: no such command. Try headlens --help, or --prune.", ["--prune"]),
    ],
)
def test_what_is_not_there_is_found(words: list[str], said: str, wrong: list[str]) -> None:
    assert misleading(words, said) == wrong
